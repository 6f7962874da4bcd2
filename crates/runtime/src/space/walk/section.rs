//! Evaluation of Boolean sections on one batch.

use super::Walk;
use crate::space::class_selection::SelectedClasses;
use crate::space::section::Section;
use abi::Class;
use filter::{Batch, LANES, LaneMask, lanes};

/// The classes of a batch's blocks during the evaluation of a section.
struct SectionClasses {
    /// Class of each block on entry into the section, indexed by lane.
    entry: [Class; LANES],
    /// Class of each block on entry into the current operand, by lane.
    incoming: [Class; LANES],
    /// Class that each block gets if the section answers the block, indexed by lane. This is the
    /// class from the last operand that answered, outside negations. Before any such answer, it is
    /// the class on entry into the section, or [`Class::YES`] if that class is 0.
    result: [Class; LANES],
}

impl Section {
    /// Evaluates the section, and sets the class of every live lane to the section's answer. A
    /// block that the section answers gets the class [`SectionClasses::result`], any other block
    /// class 0. No lane ends.
    pub(super) fn set_section_answers<'a>(&self, walk: &mut Walk<'_, 'a>, batch: &mut Batch<'a>) {
        let all = batch.live_lanes();
        let mut entry = [Class::NONE; LANES];
        let mut result = [Class::YES; LANES];
        for l in lanes(all) {
            entry[l] = batch.class(l);
            if entry[l].is_answered() {
                result[l] = entry[l];
            }
        }
        let mut classes = SectionClasses { entry, incoming: entry, result };
        let answered = self.evaluate(walk, batch, all, &mut classes);
        batch.set_live_lanes(all);
        for l in lanes(all) {
            let yes = answered & (1 << l) != 0;
            batch.set_class(l, if yes { classes.result[l] } else { Class::NONE });
        }
    }

    /// Evaluates this expression on the lanes in `mask`, and returns the lanes that it answered.
    fn evaluate<'a>(
        &self,
        walk: &mut Walk<'_, 'a>,
        batch: &mut Batch<'a>,
        mask: LaneMask,
        classes: &mut SectionClasses,
    ) -> LaneMask {
        if mask == 0 {
            return 0;
        }
        match self {
            Self::Filter(node) => {
                batch.set_live_lanes(mask);
                for l in lanes(mask) {
                    batch.set_class(l, classes.incoming[l]);
                }
                walk.run_operand(*node, batch);
                let answered = batch.answered_lanes();
                for l in lanes(answered) {
                    classes.result[l] = batch.class(l);
                }
                answered
            }
            Self::All(parts) => parts.iter().fold(mask, |both, (wanted, part)| {
                let enter = select_lanes(both, wanted, &classes.entry);
                part.evaluate(walk, batch, enter, classes)
            }),
            Self::Any(parts) => parts.iter().fold(0, |any, (wanted, part)| {
                let enter = select_lanes(mask & !any, wanted, &classes.entry);
                any | part.evaluate(walk, batch, enter, classes)
            }),
            Self::Not(part) => {
                let before = classes.result;
                let answered = part.evaluate(walk, batch, mask, classes);
                classes.result = before;
                mask & !answered
            }
            Self::Chain(steps) => evaluate_operand_chain(steps, walk, batch, mask, classes),
        }
    }
}

fn evaluate_operand_chain<'a>(
    steps: &[(SelectedClasses, Section)],
    walk: &mut Walk<'_, 'a>,
    batch: &mut Batch<'a>,
    mask: LaneMask,
    classes: &mut SectionClasses,
) -> LaneMask {
    let (before, result) = (classes.incoming, classes.result);
    let mut answered = mask;
    for (i, (wanted, step)) in steps.iter().enumerate() {
        let enter = if i == 0 { mask } else { select_lanes(mask, wanted, &classes.incoming) };
        answered = step.evaluate(walk, batch, enter, classes);
        for l in lanes(mask) {
            let yes = answered & (1 << l) != 0;
            classes.incoming[l] = if yes { classes.result[l] } else { Class::NONE };
        }
    }
    classes.incoming = before;
    // If the chain does not answer a block, the classes set by its inner steps are discarded.
    for l in lanes(mask & !answered) {
        classes.result[l] = result[l];
    }
    answered
}

/// Returns the lanes in `mask` whose class is in the set `wanted`.
fn select_lanes(mask: LaneMask, wanted: &SelectedClasses, classes: &[Class; LANES]) -> LaneMask {
    lanes(mask).filter(|l| wanted.contains(classes[*l])).fold(0, |chosen, l| chosen | 1 << l)
}
