//! Boolean sections by sequence: `a +* b`, `a ++ b`, `!a` over filters that only answer (CONTRACT 10).
//!
//! Nothing is duplicated, so nothing must be removed and nothing waits: `a +* b` is a, then b on what a
//! answered; `a ++ b` is a, and b on what a answered 0; `!a` is what a answered 0. The result is the
//! block as it came in, with the class of the last operand that answered.

use super::node::NodeId;
use super::select::Wanted;
use super::walk::Walk;
use abi::Class;
use filter::{Batch, LANES, LaneMask, lanes};

/// An expression over nodes of the space.
#[derive(Clone, Debug)]
pub enum Section {
    /// A chain of filters, each with the classes that enter it.
    Chain(Vec<(Wanted, NodeId)>),
    /// Both answer.
    And(Box<Section>, Box<Section>),
    /// One answers.
    Or(Box<Section>, Box<Section>),
    /// It does not answer.
    Not(Box<Section>),
}

/// The classes of a batch while a section is asked.
struct Classes {
    incoming: [Class; LANES],
    result: [Class; LANES],
}

impl Section {
    /// Answers all live lanes: the class of the last operand that answered, or 0. All stay live.
    pub(super) fn answer<'a>(&self, walk: &mut Walk<'_, 'a>, batch: &mut Batch<'a>) {
        let all = batch.live();
        let mut classes = Classes { incoming: [Class::NONE; LANES], result: [Class::NONE; LANES] };
        for l in lanes(all) {
            classes.incoming[l] = batch.class(l);
            let came = batch.class(l);
            classes.result[l] = if came.answered() { came } else { Class::YES };
        }
        let answered = self.ask(walk, batch, all, &mut classes);
        batch.set_live(all);
        for l in lanes(all) {
            let yes = answered & (1 << l) != 0;
            batch.set_class(l, if yes { classes.result[l] } else { Class::NONE });
        }
    }

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
            Self::And(a, b) => {
                let both = a.ask(walk, batch, mask, classes);
                b.ask(walk, batch, both, classes)
            }
            Self::Or(a, b) => {
                let first = a.ask(walk, batch, mask, classes);
                first | b.ask(walk, batch, mask & !first, classes)
            }
            Self::Not(a) => {
                let before = classes.result;
                let answered = a.ask(walk, batch, mask, classes);
                classes.result = before;
                mask & !answered
            }
            Self::Chain(steps) => {
                batch.set_live(mask);
                for l in lanes(mask) {
                    batch.set_class(l, classes.incoming[l]);
                }
                for (wanted, node) in steps {
                    let enter = wanted.select(batch);
                    batch.set_live(enter);
                    if enter == 0 {
                        break;
                    }
                    walk.operand(*node, batch);
                    batch.keep(batch.select(Class::answered));
                }
                for l in lanes(batch.live()) {
                    classes.result[l] = batch.class(l);
                }
                batch.live()
            }
        }
    }
}
