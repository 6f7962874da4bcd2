//! Transfer of waiting blocks from a section to its successor in a new graph.

use super::{OperandPart, OperandSection};

impl OperandSection {
    /// Takes over the blocks that wait in `old`, the section that this section replaces.
    pub(in crate::space) fn take_over(&mut self, old: Self) {
        let steps: Vec<Vec<Option<(usize, usize)>>> = (0..old.programs.len())
            .map(|program| {
                let steps = 0..old.programs[program].steps.len();
                steps.map(|step| self.find_matching_step(&old, program, step)).collect()
            })
            .collect();
        (self.last_ticket, self.held, self.joined) = (old.last_ticket, old.held, old.joined);
        (self.entry_classes, self.fates, self.orphans) =
            (old.entry_classes, old.fates, old.orphans);
        for (program, steps) in old.programs.into_iter().zip(steps) {
            for (ticket, mut waiting) in program.waiting {
                match steps.get(waiting.step).copied().flatten() {
                    Some((at, step)) => {
                        waiting.step = step;
                        self.programs[at].waiting.insert(ticket, waiting);
                    }
                    None if program.enclosing_operand.is_none() => self.orphans.push(waiting),
                    // The waiting block belongs to an inner program. It is discarded, and the block
                    // of the enclosing program gets no further results from it.
                    None => {}
                }
            }
        }
    }

    /// Finds the step of this section that takes the place of a step of the old section `old`. Two
    /// steps correspond if they have a filter in common, and if either both or neither belong to
    /// the program of the whole section. Returns the index of the program and of the step in this
    /// section, or `None` if no step corresponds.
    fn find_matching_step(
        &self,
        old: &Self,
        program: usize,
        step: usize,
    ) -> Option<(usize, usize)> {
        let mut numbers = Vec::new();
        old.collect_operand_filter_numbers(program, step, &mut numbers);
        let outermost = old.programs[program].enclosing_operand.is_none();
        numbers.into_iter().find_map(|number| {
            self.programs.iter().enumerate().find_map(|(at, it)| {
                let steps = 0..it.steps.len();
                let asks = |step: &usize| {
                    let mut numbers = Vec::new();
                    self.collect_operand_filter_numbers(at, *step, &mut numbers);
                    numbers.contains(&number)
                };
                let step = steps.into_iter().find(asks)?;
                (it.enclosing_operand.is_none() == outermost).then_some((at, step))
            })
        })
    }

    /// Adds to `numbers` the node numbers of the filters in the operand of a step, including the
    /// filters of inner sections.
    fn collect_operand_filter_numbers(
        &self,
        program: usize,
        step: usize,
        numbers: &mut Vec<usize>,
    ) {
        let operand = self.programs[program].steps.get(step).map_or(&[][..], |it| &it.operand);
        for (_, part) in operand {
            match part {
                OperandPart::Filter(_, number) => numbers.push(*number),
                OperandPart::Program(inner) => {
                    let steps = 0..self.programs[*inner].steps.len();
                    steps.for_each(|step| {
                        self.collect_operand_filter_numbers(*inner, step, numbers)
                    });
                }
            }
        }
    }
}
