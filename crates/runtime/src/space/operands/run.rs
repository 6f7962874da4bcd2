//! Evaluation of a section, which runs blocks through the section's programs and operands.

use super::{
    BlockClasses, CALL_BLOCKS_MAX, NextStep, OperandPart, OperandPosition, OperandSection,
};
use crate::space::arc::NodeId;
use crate::space::node;
use crate::space::walk::{RunResult, Walk};
use abi::Class;
use filter::{Batch, Block, BlockFate, Filter, Output, lanes};
use std::collections::HashSet;

/// A block that a section's programs are evaluating, with its next step.
pub(super) struct EvaluatedBlock<'a> {
    /// The evaluated block, which the section leaves unchanged.
    pub(super) block: Block<'a>,
    /// Sequence number of the block. In the program of the whole section, it is the number that the
    /// last fork assigned ([`Batch::sequence_number`]). In the program of an inner section, it is
    /// the block's index in the enclosing program.
    pub(super) order: u32,
    pub(super) ticket: u32,
    pub(super) classes: BlockClasses,
    pub(super) next_step: NextStep,
}

/// A block that one part of an operand has emitted.
pub(super) struct OperandBlock<'a> {
    pub(super) block: Block<'a>,
    /// Index of the input block from which this block was made, among the blocks that one call
    /// evaluates.
    pub(super) input_index: u32,
}

/// The output that an operand has emitted so far.
#[derive(Default)]
pub(super) struct OperandAnswer<'a> {
    pub(super) output: Vec<OperandBlock<'a>>,
    /// Tickets (numbers in the section) of the blocks of which at least one byte reached the
    /// operand's last part.
    pub(super) arrived: HashSet<u32>,
    /// Events of blocks in the operand since the operand's last answer: held, released, dropped or
    /// merged.
    pub(super) fates: Vec<BlockFate>,
}

impl<'a> Walk<'_, 'a> {
    /// Runs the live blocks of a batch through a section.
    pub(in crate::space) fn evaluate_section(
        &mut self,
        at: NodeId,
        batch: &Batch<'a>,
    ) -> RunResult<'a> {
        let blocks = lanes(batch.live_lanes()).map(|l| (batch.block(l), batch.sequence_number(l)));
        let blocks: Vec<_> = blocks.collect();
        self.with_detached_section(at, |asks, walk| asks.run_program(walk, at, 0, blocks))
    }

    /// Continues the evaluation of the section at node `section` with blocks that an operand has
    /// released. The operand's filter at node `at` released the blocks in `output` because its
    /// timer expired or because it ended. Returns the blocks that leave the section.
    pub(in crate::space) fn continue_section(
        &mut self,
        (at, section): (NodeId, NodeId),
        output: &mut Output<'a>,
    ) -> RunResult<'a> {
        let given: Vec<_> =
            output.take_batches().iter().flat_map(Batch::blocks).map(|(_, block)| block).collect();
        self.with_detached_section(section, |asks, walk| {
            let Some(place) = asks.operand_position(at) else { return Vec::new() };
            let given =
                given.into_iter().map(|block| OperandBlock { block, input_index: 0 }).collect();
            let mut answer = OperandAnswer { output: given, ..OperandAnswer::default() };
            answer.fates = walk.nodes[at].holds.take_fates();
            asks.resume_operand(walk, section, place, answer)
        })
    }

    /// Releases all blocks that wait in the section at node `at`, and returns them.
    pub(in crate::space) fn release_section_blocks(&mut self, at: NodeId) -> RunResult<'a> {
        self.with_detached_section(at, |asks, walk| asks.release_all_blocks(walk, at))
    }

    /// Detaches the section from node `at` and runs `act` with it, so that `act` can call the
    /// section's operands. Returns the blocks that leave the section.
    fn with_detached_section(
        &mut self,
        at: NodeId,
        act: impl FnOnce(&mut OperandSection, &mut Self) -> Vec<EvaluatedBlock<'a>>,
    ) -> RunResult<'a> {
        let part = std::mem::replace(&mut self.nodes[at].operator, node::Operator::Pass);
        let node::Operator::OperandSection(mut asks) = part else {
            self.nodes[at].operator = part;
            return RunResult::Ended;
        };
        let mut left = act(&mut asks, self);
        left.extend(asks.release_orphaned_blocks(self, at));
        self.nodes[at].operator = node::Operator::OperandSection(asks);
        let mut output = Output::default();
        for subject in left {
            output.push(subject.block, subject.order);
        }
        if output.is_empty() { RunResult::Ended } else { RunResult::Replaced(output) }
    }

    /// Runs blocks through a filter that is a part of an operand. Appends the filter's output, and
    /// the events of its blocks, to the operand's answer.
    fn call_filter(
        &mut self,
        at: NodeId,
        given: &[OperandBlock<'a>],
        answer: &mut OperandAnswer<'a>,
    ) {
        for some in given.chunks(CALL_BLOCKS_MAX) {
            let mut batch = Batch::empty();
            for OperandBlock { block, input_index } in some {
                let added = batch.push(*block, *input_index);
                debug_assert!(added.is_ok(), "as many as there are lanes");
            }
            let came = batch.cache_amount_in_lanes(batch.live_lanes());
            self.nodes[at].taken[0] += came;
            let stays = matches!(self.nodes[at].operator, node::Operator::Filter(Filter::Lanes(_)));
            match self.run_node(at, &mut batch) {
                RunResult::Unchanged => append_live_blocks(&batch, answer),
                RunResult::Replaced(mut output) => {
                    output.take_batches().iter().for_each(|batch| append_live_blocks(batch, answer))
                }
                RunResult::Ended => batch.retain_lanes(0),
            }
            if stays {
                // Lanes that are no longer live were dropped.
                let ended =
                    some.iter().enumerate().filter(|(l, _)| batch.live_lanes() >> l & 1 == 0);
                let tickets = ended.map(|(_, given)| given.block.marks.section_ticket());
                answer.fates.extend(tickets.filter(|ticket| *ticket != 0).map(BlockFate::Dropped));
            }
            answer.fates.extend(self.nodes[at].holds.take_fates());
        }
    }

    /// Counts the output of the filter `part` of an operand. A block counts as routed if `goes_on`
    /// returns true for it, otherwise as unselected. Does nothing if `part` is an inner section.
    fn count_routed_blocks(
        &mut self,
        part: OperandPart,
        all: &[OperandBlock<'_>],
        goes_on: impl Fn(&OperandBlock<'_>) -> bool,
    ) {
        let OperandPart::Filter(at, _) = part else { return };
        let flow = &mut self.nodes[at].flow;
        for given in all {
            let to = if goes_on(given) { &mut flow.routed } else { &mut flow.unselected };
            to.add_block(given.block.length());
        }
    }
}

impl OperandSection {
    /// Runs blocks through the section's program with index `program`. Each block is paired with
    /// its sequence number. Returns the blocks about which the program has decided; the other
    /// blocks wait.
    fn run_program<'a>(
        &mut self,
        walk: &mut Walk<'_, 'a>,
        at: NodeId,
        program: usize,
        blocks: Vec<(Block<'a>, u32)>,
    ) -> Vec<EvaluatedBlock<'a>> {
        let Some(first) = self.programs.get(program).map(|program| program.first_step) else {
            return Vec::new();
        };
        let mut flow = Vec::with_capacity(blocks.len());
        for (mut block, order) in blocks {
            if program == 0 {
                // No enclosing section tracks the block.
                block.marks = block.marks.with_section_ticket(0);
            }
            let class = block.pointer.class;
            let result = if class.is_answered() { class } else { Class::YES };
            let came = self.entry_class(program, &block).unwrap_or(class);
            let classes = BlockClasses { entry: came, incoming: class, result };
            let ticket = self.new_ticket();
            if self.needs_entry_classes {
                self.entry_classes.insert(ticket, came);
            }
            flow.push(EvaluatedBlock { block, order, ticket, classes, next_step: first });
        }
        self.run_program_steps(walk, at, (program, 0), flow)
    }

    /// Runs blocks through the steps of the section's program `program`, starting at step `from`.
    /// Returns the blocks about which the program has decided; the other blocks wait.
    pub(super) fn run_program_steps<'a>(
        &mut self,
        walk: &mut Walk<'_, 'a>,
        at: NodeId,
        (program, from): (usize, usize),
        mut flow: Vec<EvaluatedBlock<'a>>,
    ) -> Vec<EvaluatedBlock<'a>> {
        let steps = self.programs.get(program).map_or(0, |program| program.steps.len());
        for step in from..steps {
            let it = &self.programs[program].steps[step];
            let (yes, no, asked, plain) =
                (it.yes, it.no, it.accepted.clone(), it.operand.is_empty());
            let mut given = Vec::new();
            for (input_index, subject) in flow.iter_mut().enumerate() {
                if subject.next_step != NextStep::Ask(step) {
                    continue;
                }
                if !asked.contains(subject.classes.entry) {
                    subject.next_step = no;
                } else if plain {
                    subject.next_step = yes;
                } else {
                    let mut block = subject.block.with_class(subject.classes.incoming);
                    block.marks = block.marks.with_section_ticket(subject.ticket);
                    given.push(OperandBlock { block, input_index: input_index as u32 });
                }
            }
            if given.is_empty() {
                continue;
            }
            let answer = OperandAnswer { output: given, ..OperandAnswer::default() };
            let answer = self.run_operand(walk, at, (program, step, 0), answer);
            flow = self.apply_answer(walk, at, (program, step), answer, flow);
        }
        if self.needs_entry_classes {
            for subject in &flow {
                self.entry_classes.remove(&subject.ticket);
            }
        }
        flow.into_iter().map(EvaluatedBlock::with_final_class).collect()
    }

    /// Runs blocks through the parts of an operand, from part `from` on. Returns the operand's
    /// answer.
    fn run_operand<'a>(
        &mut self,
        walk: &mut Walk<'_, 'a>,
        at: NodeId,
        (program, step, from): OperandPosition,
        mut answer: OperandAnswer<'a>,
    ) -> OperandAnswer<'a> {
        let parts = self.programs[program].steps[step].operand.len();
        for place in from..parts {
            let (wanted, part) = self.programs[program].steps[step].operand[place].clone();
            let mut given = std::mem::take(&mut answer.output);
            if place > 0 {
                let goes_on = |given: &OperandBlock<'_>| wanted.contains(given.block.pointer.class);
                let before = self.programs[program].steps[step].operand[place - 1].1;
                walk.count_routed_blocks(before, &given, goes_on);
                given.retain(goes_on);
            }
            if place + 1 == parts {
                let arrived = given.iter().filter(|given| given.block.length() > 0);
                answer.arrived.extend(arrived.map(|given| given.block.marks.section_ticket()));
            }
            match part {
                OperandPart::Filter(node, _) => walk.call_filter(node, &given, &mut answer),
                OperandPart::Program(inner) => {
                    let blocks = given.into_iter().map(|given| (given.block, given.input_index));
                    let left = self.run_program(walk, at, inner, blocks.collect());
                    answer.output = left.into_iter().map(OperandBlock::from).collect();
                    answer.fates.extend(self.take_inner_block_fates(walk, at));
                }
            }
        }
        if let Some((_, last)) = self.programs[program].steps[step].operand.last() {
            walk.count_routed_blocks(*last, &answer.output, |given| {
                given.block.pointer.class.is_answered()
            });
        }
        answer
    }

    /// Continues the evaluation of a section after a part of an operand has released blocks. The
    /// part at the given position released the blocks in `answer` because its timer expired or
    /// because it ended. Returns the blocks that leave the section.
    pub(super) fn resume_operand<'a>(
        &mut self,
        walk: &mut Walk<'_, 'a>,
        at: NodeId,
        (program, step, place): OperandPosition,
        answer: OperandAnswer<'a>,
    ) -> Vec<EvaluatedBlock<'a>> {
        let answer = self.run_operand(walk, at, (program, step, place + 1), answer);
        let flow = self.apply_answer(walk, at, (program, step), answer, Vec::new());
        self.continue_enclosing_programs(walk, at, (program, step), flow)
    }

    /// Runs blocks about which a step has decided through the steps after `step`, and then through
    /// the later steps of the enclosing programs. Returns the blocks that leave the section.
    pub(super) fn continue_enclosing_programs<'a>(
        &mut self,
        walk: &mut Walk<'_, 'a>,
        at: NodeId,
        (program, step): (usize, usize),
        flow: Vec<EvaluatedBlock<'a>>,
    ) -> Vec<EvaluatedBlock<'a>> {
        let left = self.run_program_steps(walk, at, (program, step + 1), flow);
        match self.programs[program].enclosing_operand {
            None => left,
            Some(around) => {
                let given = left.into_iter().map(OperandBlock::from).collect();
                let fates = self.take_inner_block_fates(walk, at);
                self.resume_operand(
                    walk,
                    at,
                    around,
                    OperandAnswer { output: given, fates, ..OperandAnswer::default() },
                )
            }
        }
    }

    /// Removes and returns the stored events of blocks in the programs of inner sections.
    fn take_inner_block_fates(&mut self, walk: &mut Walk<'_, '_>, at: NodeId) -> Vec<BlockFate> {
        let mut fates = walk.nodes[at].holds.take_fates();
        fates.append(&mut self.fates);
        fates
    }

    /// Returns the class with which a block in the program of an inner section entered the whole
    /// section. Returns `None` for the program of the whole section, or if entry classes are not
    /// recorded.
    fn entry_class(&self, program: usize, block: &Block<'_>) -> Option<Class> {
        self.programs.get(program)?.enclosing_operand?;
        self.entry_classes.get(&block.marks.section_ticket()).copied()
    }

    /// Returns a new ticket: a nonzero number that identifies no waiting block yet.
    fn new_ticket(&mut self) -> u32 {
        loop {
            self.last_ticket = self.last_ticket.wrapping_add(1);
            if self.last_ticket != 0 && !self.held.contains_key(&self.last_ticket) {
                return self.last_ticket;
            }
        }
    }
}

impl<'a> EvaluatedBlock<'a> {
    /// Returns the decided block with its final class, which is 0 if the program did not answer the
    /// block.
    fn with_final_class(mut self) -> Self {
        let class = if self.next_step == NextStep::Yes { self.classes.result } else { Class::NONE };
        self.block = self.block.with_class(class);
        self
    }
}

impl<'a> From<EvaluatedBlock<'a>> for OperandBlock<'a> {
    fn from(subject: EvaluatedBlock<'a>) -> Self {
        Self { block: subject.block, input_index: subject.order }
    }
}

/// Appends the live blocks of the batch that an operand has emitted to the operand's answer.
fn append_live_blocks<'a>(batch: &Batch<'a>, answer: &mut OperandAnswer<'a>) {
    let given = lanes(batch.live_lanes())
        .map(|l| OperandBlock { block: batch.block(l), input_index: batch.sequence_number(l) });
    answer.output.extend(given);
}
