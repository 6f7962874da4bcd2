//! Verdicts on the blocks that wait for the operands of a section. A verdict follows from the
//! answers that an operand has given so far.

use super::run::{EvaluatedBlock, OperandAnswer, OperandBlock};
use super::{NextStep, OperandSection, PartialAnswer, WaitingBlock};
use crate::space::arc::NodeId;
use crate::space::walk::Walk;
use abi::Class;
use filter::{Block, BlockFate, Gateway as _, HeldList};
use std::collections::{BTreeSet, HashMap};

/// The verdict of an operand on a block.
#[derive(Clone, Copy)]
enum Verdict {
    /// The operand answered the block. Contains the class that the operand returned for the block,
    /// if any.
    Yes(Option<Class>),
    /// The operand did not answer the block.
    No,
    /// The operand dropped the block.
    Drop,
    /// The operand has not decided about the block yet.
    Wait,
}

/// Sort key that puts the output of an operand into input order: the index of the input block, then
/// the position in the operand's output.
type OutputPosition = (usize, usize);

/// The new results of one operand, by ticket. A ticket is the number that identifies a block in the
/// section.
#[derive(Default)]
struct OperandResults {
    so_far: HashMap<u32, PartialAnswer>,
    at: HashMap<u32, OutputPosition>,
    /// Tickets (numbers in the section) of the blocks with new results, in ascending order.
    touched: BTreeSet<u32>,
    /// For each block that was merged into another one, by its ticket: the ticket of the other
    /// block.
    joined: HashMap<u32, u32>,
}

impl OperandSection {
    /// Applies the new results `answer` of an operand to blocks: those in `flow`, which the operand
    /// has just processed, and those that were already waiting for it. The operand is at step
    /// `step` of the section's program `program`. Returns the blocks that have a verdict, in input
    /// order; the other blocks wait.
    pub(super) fn apply_answer<'a>(
        &mut self,
        walk: &mut Walk<'_, 'a>,
        at: NodeId,
        (program, step): (usize, usize),
        answer: OperandAnswer<'a>,
        flow: Vec<EvaluatedBlock<'a>>,
    ) -> Vec<EvaluatedBlock<'a>> {
        let orders: Vec<u32> = flow.iter().map(|subject| subject.order).collect();
        let mut known = self.collect_results(answer);
        self.add_waiting_results(program, step, &mut known);
        let mut left: Vec<(OutputPosition, EvaluatedBlock<'a>)> = Vec::with_capacity(flow.len());
        let mut decided = Vec::new();
        let failed = walk.pass.failure.is_some();
        for (place, mut subject) in flow.into_iter().enumerate() {
            if subject.next_step != NextStep::Ask(step) {
                left.push(((place, 0), subject));
                continue;
            }
            let ticket = subject.ticket;
            known.touched.remove(&ticket);
            let root = known.joined.get(&ticket).copied().unwrap_or(ticket);
            let verdict = if failed { Verdict::No } else { self.verdict(&known, root) };
            if let Verdict::Wait = verdict {
                let so_far = known.so_far.get(&ticket).copied().unwrap_or_default();
                let merged_into = known.joined.get(&ticket).copied();
                self.suspend_block(walk, at, (program, step), subject, (merged_into, so_far));
                continue;
            }
            decided.push((ticket, verdict));
            if self.set_next_step(walk, at, (program, step), &mut subject, verdict) {
                let position = known.at.get(&root).copied().unwrap_or((place, 0));
                subject.order = orders.get(position.0).copied().unwrap_or(subject.order);
                left.push((position, subject));
            }
        }
        for ticket in std::mem::take(&mut known.touched) {
            let root = self.merged_into(program, ticket).unwrap_or(ticket);
            match self.verdict(&known, root) {
                Verdict::Wait => {}
                verdict => decided.push((ticket, verdict)),
            }
        }
        let last = (orders.len(), usize::MAX);
        let mut next = 0;
        while let Some((ticket, verdict)) = decided.get(next).copied() {
            next += 1;
            // Merged blocks share the verdict.
            let others = self.joined.remove(&ticket).unwrap_or_default();
            decided.extend(others.into_iter().map(|other| (other, verdict)));
            let root = self.merged_into(program, ticket).unwrap_or(ticket);
            let place = known.at.get(&root).copied().unwrap_or(last);
            let order = orders.get(place.0).copied().unwrap_or_default();
            if let Some(mut subject) = self.release_block(walk, at, (program, step), ticket, order)
                && self.set_next_step(walk, at, (program, step), &mut subject, verdict)
            {
                left.push((place, subject));
            }
        }
        left.sort_by_key(|(place, _)| *place);
        left.into_iter().map(|(_, subject)| subject).collect()
    }

    /// Collects an operand's new results for each block, from the operand's output and from the
    /// events of the blocks.
    fn collect_results(&mut self, answer: OperandAnswer<'_>) -> OperandResults {
        let mut known = OperandResults::default();
        for (number, OperandBlock { block, input_index }) in answer.output.iter().enumerate() {
            let ticket = block.marks.section_ticket();
            if ticket == 0 {
                // The operand created this block, which ends here.
                continue;
            }
            let so_far = known.so_far.entry(ticket).or_default();
            match block.pointer.class {
                class if class.is_answered() => so_far.class = Some(class),
                _ => so_far.has_class_0 = true,
            }
            known.at.entry(ticket).or_insert((*input_index as usize, number + 1));
            known.touched.insert(ticket);
        }
        for ticket in answer.arrived.into_iter().filter(|ticket| *ticket != 0) {
            known.so_far.entry(ticket).or_default().arrived = true;
            known.touched.insert(ticket);
        }
        for fate in answer.fates {
            match fate {
                BlockFate::Held(ticket) => *self.held.entry(ticket).or_default() += 1,
                BlockFate::Released(ticket) => {
                    known.touched.insert(ticket);
                    if let Some(held) = self.held.get_mut(&ticket) {
                        *held -= 1;
                        if *held == 0 {
                            self.held.remove(&ticket);
                        }
                    }
                }
                BlockFate::Dropped(ticket) => {
                    known.so_far.entry(ticket).or_default().dropped = true;
                    known.touched.insert(ticket);
                }
                // The block was merged into one that the operand created: it counts as consumed.
                BlockFate::Merged(_, 0) => {}
                BlockFate::Merged(ticket, into) => {
                    known.joined.insert(ticket, into);
                    self.joined.entry(into).or_default().push(ticket);
                }
            }
        }
        known
    }

    /// Combines the new results in `known` with the earlier results of the blocks that wait at step
    /// `step` of the section's program `program`. Stores the combined results both in `known` and
    /// with the waiting blocks. Marks the waiting blocks that were merged into others.
    fn add_waiting_results(&mut self, program: usize, step: usize, known: &mut OperandResults) {
        let waiting = &mut self.programs[program].waiting;
        for (ticket, into) in &known.joined {
            if let Some(it) = waiting.get_mut(ticket) {
                it.merged_into = Some(*into);
            }
        }
        known.touched.retain(|ticket| {
            let Some(it) = waiting.get_mut(ticket).filter(|it| it.step == step) else {
                return true;
            };
            let new = known.so_far.entry(*ticket).or_default();
            new.class = new.class.or(it.so_far.class);
            new.has_class_0 |= it.so_far.has_class_0;
            new.dropped |= it.so_far.dropped;
            new.arrived |= it.so_far.arrived;
            it.so_far = *new;
            true
        });
    }

    /// Returns the verdict on the block with this ticket that follows from an operand's results.
    fn verdict(&self, known: &OperandResults, ticket: u32) -> Verdict {
        let so_far = known.so_far.get(&ticket).copied().unwrap_or_default();
        match so_far {
            PartialAnswer { class: Some(class), .. } => Verdict::Yes(Some(class)),
            _ if self.held.contains_key(&ticket) => Verdict::Wait,
            PartialAnswer { has_class_0: true, .. } => Verdict::No,
            PartialAnswer { dropped: true, .. } => Verdict::Drop,
            PartialAnswer { arrived: true, .. } => Verdict::Yes(None),
            _ => Verdict::No,
        }
    }

    fn merged_into(&self, program: usize, ticket: u32) -> Option<u32> {
        self.programs[program].waiting.get(&ticket)?.merged_into
    }

    /// Applies an operand's verdict to a block: sets the class of the block and the step at which
    /// it continues. The operand is at step `step` of the section's program `program`. Returns
    /// false if the operand dropped the block.
    fn set_next_step(
        &mut self,
        walk: &mut Walk<'_, '_>,
        at: NodeId,
        (program, step): (usize, usize),
        subject: &mut EvaluatedBlock<'_>,
        verdict: Verdict,
    ) -> bool {
        let it = &self.programs[program].steps[step];
        match verdict {
            Verdict::Yes(class) => {
                if let Some(class) = class.filter(|_| it.sets_class) {
                    subject.classes.result = class;
                }
                subject.next_step = it.yes;
            }
            Verdict::No | Verdict::Wait => subject.next_step = it.no,
            Verdict::Drop => {
                self.entry_classes.remove(&subject.ticket);
                let bytes = subject.block.length();
                match self.programs[program].enclosing_operand {
                    None => {
                        if let Some(dropped) = walk.nodes[at].counts.dropped.first_mut() {
                            dropped.add_block(bytes);
                        }
                    }
                    Some(_) => self.report_dropped_block(&subject.block),
                }
                return false;
            }
        }
        true
    }

    /// Records that the program of an inner section has dropped a block. The program of the
    /// enclosing section processes the record later.
    fn report_dropped_block(&mut self, block: &Block<'_>) {
        let around = block.marks.section_ticket();
        self.fates.extend((around != 0).then_some(BlockFate::Dropped(around)));
    }

    /// Makes a block wait until an operand has answered. The operand is at step `step` of the
    /// section's program `program`. If the section cannot hold the block, discards the block:
    /// counts it as evicted or, in the program of an inner section, reports it as dropped.
    fn suspend_block<'a>(
        &mut self,
        walk: &mut Walk<'_, 'a>,
        at: NodeId,
        (program, step): (usize, usize),
        subject: EvaluatedBlock<'a>,
        (merged_into, so_far): (Option<u32>, PartialAnswer),
    ) {
        let outermost = self.programs[program].enclosing_operand.is_none();
        let Some((entry, pin)) = walk.memory.pin(&subject.block) else {
            self.entry_classes.remove(&subject.ticket);
            match outermost {
                true => walk.nodes[at].counts.evicted.add_block(subject.block.length()),
                false => self.report_dropped_block(&subject.block),
            }
            return;
        };
        let node = &mut walk.nodes[at];
        let mut list = HeldList::default();
        node.holds.insert(&mut list, 0, entry, pin);
        if outermost {
            node.counts.held.add_block(subject.block.length());
        }
        let classes = subject.classes;
        let waiting = WaitingBlock { list, step, merged_into, classes, so_far };
        self.programs[program].waiting.insert(subject.ticket, waiting);
    }

    /// Removes a block from the blocks that wait at step `step` of the section's program `program`,
    /// so that it can continue. Returns `None` if the block does not wait there.
    fn release_block<'a>(
        &mut self,
        walk: &mut Walk<'_, 'a>,
        at: NodeId,
        (program, step): (usize, usize),
        ticket: u32,
        order: u32,
    ) -> Option<EvaluatedBlock<'a>> {
        let waiting = &mut self.programs[program].waiting;
        waiting.get(&ticket).filter(|it| it.step == step)?;
        let mut it = waiting.remove(&ticket)?;
        let block = self.take_waiting_block(walk, at, &mut it, program)?;
        Some(EvaluatedBlock {
            block,
            order,
            ticket,
            classes: it.classes,
            next_step: NextStep::Ask(step),
        })
    }

    /// Takes a waiting block out of the section's held blocks, and unpins it. Returns `None` if the
    /// section does not hold the block.
    fn take_waiting_block<'a>(
        &self,
        walk: &mut Walk<'_, 'a>,
        at: NodeId,
        waiting: &mut WaitingBlock,
        program: usize,
    ) -> Option<Block<'a>> {
        let node = &mut walk.nodes[at];
        let (_, entry, pin) = node.holds.pop(&mut waiting.list)?;
        let frame = walk.memory.frame(&entry);
        let block =
            Block { pointer: entry.pointer, frame, marks: entry.marks, context: entry.context };
        if self.programs[program].enclosing_operand.is_none() {
            node.counts.held.subtract_block(block.length());
        }
        walk.memory.unpin(pin);
        Some(block)
    }

    /// Decides about all waiting blocks of the section from the results that operands have returned
    /// so far, because no more results will arrive. Returns the blocks that leave the section.
    pub(super) fn release_all_blocks<'a>(
        &mut self,
        walk: &mut Walk<'_, 'a>,
        at: NodeId,
    ) -> Vec<EvaluatedBlock<'a>> {
        let mut all = Vec::new();
        // Inner programs have higher indices and end first.
        while let Some(program) = self.programs.iter().rposition(|it| !it.waiting.is_empty()) {
            let waiting = &self.programs[program].waiting;
            let Some(step) = waiting.values().map(|it| it.step).min() else { break };
            let here = waiting.iter().filter(|(_, it)| it.step == step);
            let tickets: Vec<(u32, PartialAnswer)> =
                here.map(|(ticket, it)| (*ticket, it.so_far)).collect();
            let mut flow = Vec::new();
            for (ticket, so_far) in tickets {
                self.held.remove(&ticket);
                self.joined.remove(&ticket);
                let verdict = match so_far {
                    PartialAnswer { has_class_0: true, .. } => Verdict::No,
                    PartialAnswer { dropped: true, .. } => Verdict::Drop,
                    PartialAnswer { arrived: true, .. } => Verdict::Yes(None),
                    _ => Verdict::No,
                };
                if let Some(mut subject) = self.release_block(walk, at, (program, step), ticket, 0)
                    && self.set_next_step(walk, at, (program, step), &mut subject, verdict)
                {
                    flow.push(subject);
                }
            }
            all.extend(self.continue_enclosing_programs(walk, at, (program, step), flow));
        }
        all
    }

    /// Releases the blocks that wait for an operand that a hot swap has removed. A block gets class
    /// 0 if the operand passed a part of the block with class 0. Otherwise, it gets its result so
    /// far (`result` in [`super::BlockClasses`]).
    pub(super) fn release_orphaned_blocks<'a>(
        &mut self,
        walk: &mut Walk<'_, 'a>,
        at: NodeId,
    ) -> Vec<EvaluatedBlock<'a>> {
        let mut left = Vec::new();
        for mut it in std::mem::take(&mut self.orphans) {
            let Some(block) = self.take_waiting_block(walk, at, &mut it, 0) else { continue };
            let class = if it.so_far.has_class_0 { Class::NONE } else { it.classes.result };
            let (block, classes) = (block.with_class(class), it.classes);
            left.push(EvaluatedBlock {
                block,
                order: 0,
                ticket: 0,
                classes,
                next_step: NextStep::Yes,
            });
        }
        left
    }
}
