//! Boolean sections by sequence: `a +* b`, `a ++ b`, `!a` over filters that only answer (CONTRACT
//! 10).
//!
//! Nothing is duplicated, so nothing must be removed and nothing waits: `a +* b` is a, then b on
//! what a answered; `a ++ b` is a, and b on what a answered 0; `!a` is what a answered 0. The
//! result is the block as it came in, with the class of the last operand that answered.

use super::node::NodeId;
use super::select::Wanted;
use super::walk::Walk;
use abi::Class;
use filter::{Batch, LANES, LaneMask, lanes};

/// An expression over nodes of the space.
#[derive(Clone, Debug)]
pub enum Section {
    /// A question that a filter answers.
    Filter(NodeId),
    /// A chain of steps, of which the last answers on what the ones before let through; a step's
    /// classes are those that the step before answered. The first step's are not used.
    Chain(Vec<(Wanted, Self)>),
    /// Both answer: each part is asked for what the ones before answered, if the block came into
    /// the section with one of the part's classes.
    All(Vec<(Wanted, Self)>),
    /// One answers: each part is asked for what the ones before did not answer.
    Any(Vec<(Wanted, Self)>),
    /// It does not answer.
    Not(Box<Self>),
}

/// The classes of a batch while a section is asked.
struct Classes {
    /// Classes with which the blocks came into the section, by lane.
    came: [Class; LANES],
    /// Classes with which the blocks come into the operand, by lane.
    incoming: [Class; LANES],
    /// Class that the last answering operand gave, by lane.
    result: [Class; LANES],
}

impl Section {
    /// Answers all live lanes: the class of the last operand that answered, or 0. All stay live.
    pub(super) fn answer<'a>(&self, walk: &mut Walk<'_, 'a>, batch: &mut Batch<'a>) {
        let all = batch.live();
        let mut came = [Class::NONE; LANES];
        let mut result = [Class::YES; LANES];
        for l in lanes(all) {
            came[l] = batch.class(l);
            if came[l].answered() {
                result[l] = came[l];
            }
        }
        let mut classes = Classes { came, incoming: came, result };
        let answered = self.ask(walk, batch, all, &mut classes);
        batch.set_live(all);
        for l in lanes(all) {
            let yes = answered & (1 << l) != 0;
            batch.set_class(l, if yes { classes.result[l] } else { Class::NONE });
        }
    }

    /// The lanes of `mask` that are answered.
    fn ask<'a>(
        &self,
        walk: &mut Walk<'_, 'a>,
        batch: &mut Batch<'a>,
        mask: LaneMask,
        classes: &mut Classes,
    ) -> LaneMask {
        if mask == 0 {
            return 0;
        }
        match self {
            Self::Filter(node) => {
                batch.set_live(mask);
                for l in lanes(mask) {
                    batch.set_class(l, classes.incoming[l]);
                }
                walk.operand(*node, batch);
                let answered = batch.answered();
                for l in lanes(answered) {
                    classes.result[l] = batch.class(l);
                }
                answered
            }
            Self::All(parts) => parts.iter().fold(mask, |both, (wanted, part)| {
                let enter = chosen(both, wanted, &classes.came);
                part.ask(walk, batch, enter, classes)
            }),
            Self::Any(parts) => parts.iter().fold(0, |any, (wanted, part)| {
                let enter = chosen(mask & !any, wanted, &classes.came);
                any | part.ask(walk, batch, enter, classes)
            }),
            Self::Not(part) => {
                let before = classes.result;
                let answered = part.ask(walk, batch, mask, classes);
                classes.result = before;
                mask & !answered
            }
            Self::Chain(steps) => chain(steps, walk, batch, mask, classes),
        }
    }
}

fn chain<'a>(
    steps: &[(Wanted, Section)],
    walk: &mut Walk<'_, 'a>,
    batch: &mut Batch<'a>,
    mask: LaneMask,
    classes: &mut Classes,
) -> LaneMask {
    let (before, result) = (classes.incoming, classes.result);
    let mut answered = mask;
    for (i, (wanted, step)) in steps.iter().enumerate() {
        let enter = if i == 0 { mask } else { chosen(mask, wanted, &classes.incoming) };
        answered = step.ask(walk, batch, enter, classes);
        for l in lanes(mask) {
            let yes = answered & (1 << l) != 0;
            classes.incoming[l] = if yes { classes.result[l] } else { Class::NONE };
        }
    }
    classes.incoming = before;
    // A chain answers as a whole: what its beginning said of others is nobody's answer.
    for l in lanes(mask & !answered) {
        classes.result[l] = result[l];
    }
    answered
}

/// The lanes of `mask` whose class is wanted.
fn chosen(mask: LaneMask, wanted: &Wanted, classes: &[Class; LANES]) -> LaneMask {
    lanes(mask).filter(|l| wanted.has(classes[*l])).fold(0, |chosen, l| chosen | 1 << l)
}
