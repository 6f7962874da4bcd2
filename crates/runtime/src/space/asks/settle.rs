//! Answers of operands, and blocks that wait for them.

use super::run::{Answer, Given, Subject};
use super::{Asks, SoFar, Then, Waiting};
use crate::space::node::NodeId;
use crate::space::walk::Walk;
use abi::Class;
use filter::{Block, Fate, Gateway as _, HeldList};
use std::collections::{BTreeSet, HashMap};

/// Verdict on a block.
#[derive(Clone, Copy)]
enum Verdict {
    /// It is answered; with this class, if the operand said one.
    Yes(Option<Class>),
    No,
    /// It ends here.
    Drop,
    /// It waits.
    Wait,
}

/// Position of a block in the output: behind the block that caused it, in the operand's order.
type At = (usize, usize);

/// Results of an operand, by block.
#[derive(Default)]
struct Known {
    so_far: HashMap<u32, SoFar>,
    at: HashMap<u32, At>,
    /// The tickets of which something is known now that was not.
    touched: BTreeSet<u32>,
    /// Ticket of the block into which the block of this ticket was merged.
    joined: HashMap<u32, u32>,
}

impl Asks {
    /// Takes what an operand answered: of `flow` the blocks that were asked about go on or wait,
    /// and those that have waited go on with them.
    pub(super) fn settle<'a>(
        &mut self,
        walk: &mut Walk<'_, 'a>,
        at: NodeId,
        (program, step): (usize, usize),
        answer: Answer<'a>,
        flow: Vec<Subject<'a>>,
    ) -> Vec<Subject<'a>> {
        let orders: Vec<u32> = flow.iter().map(|subject| subject.order).collect();
        let mut known = self.know(answer);
        self.remember(program, step, &mut known);
        let mut left: Vec<(At, Subject<'a>)> = Vec::with_capacity(flow.len());
        let mut decided = Vec::new();
        let failed = walk.turn.failure.is_some();
        for (place, mut subject) in flow.into_iter().enumerate() {
            if subject.then != Then::Ask(step) {
                left.push(((place, 0), subject));
                continue;
            }
            let ticket = subject.ticket;
            known.touched.remove(&ticket);
            let root = known.joined.get(&ticket).copied().unwrap_or(ticket);
            let verdict = if failed { Verdict::No } else { self.verdict(&known, root) };
            if let Verdict::Wait = verdict {
                let so_far = known.so_far.get(&ticket).copied().unwrap_or_default();
                let follows = known.joined.get(&ticket).copied();
                self.suspend(walk, at, (program, step), subject, (follows, so_far));
                continue;
            }
            decided.push((ticket, verdict));
            if self.goes_on(walk, at, (program, step), &mut subject, verdict) {
                let seen = known.at.get(&root).copied().unwrap_or((place, 0));
                subject.order = orders.get(seen.0).copied().unwrap_or(subject.order);
                left.push((seen, subject));
            }
        }
        for ticket in std::mem::take(&mut known.touched) {
            let root = self.follows(program, ticket).unwrap_or(ticket);
            match self.verdict(&known, root) {
                Verdict::Wait => {}
                verdict => decided.push((ticket, verdict)),
            }
        }
        let last = (orders.len(), usize::MAX);
        let mut next = 0;
        while let Some((ticket, verdict)) = decided.get(next).copied() {
            next += 1;
            // Those that were put together with it are what it is.
            let others = self.joined.remove(&ticket).unwrap_or_default();
            decided.extend(others.into_iter().map(|other| (other, verdict)));
            let root = self.follows(program, ticket).unwrap_or(ticket);
            let place = known.at.get(&root).copied().unwrap_or(last);
            let order = orders.get(place.0).copied().unwrap_or_default();
            if let Some(mut subject) = self.release(walk, at, (program, step), ticket, order)
                && self.goes_on(walk, at, (program, step), &mut subject, verdict)
            {
                left.push((place, subject));
            }
        }
        left.sort_by_key(|(place, _)| *place);
        left.into_iter().map(|(_, subject)| subject).collect()
    }

    /// Collects the new results of each block.
    fn know(&mut self, answer: Answer<'_>) -> Known {
        let mut known = Known::default();
        for (number, Given { block, cause }) in answer.given.iter().enumerate() {
            let ticket = block.marks.ticket();
            if ticket == 0 {
                // Made inside: it ends here.
                continue;
            }
            let so_far = known.so_far.entry(ticket).or_default();
            match block.pointer.class {
                class if class.answered() => so_far.class = Some(class),
                _ => so_far.zero = true,
            }
            known.at.entry(ticket).or_insert((*cause as usize, number + 1));
            known.touched.insert(ticket);
        }
        for ticket in answer.arrived.into_iter().filter(|ticket| *ticket != 0) {
            known.so_far.entry(ticket).or_default().arrived = true;
            known.touched.insert(ticket);
        }
        for fate in answer.fates {
            match fate {
                Fate::Held(ticket) => *self.held.entry(ticket).or_default() += 1,
                Fate::Left(ticket) => {
                    known.touched.insert(ticket);
                    if let Some(held) = self.held.get_mut(&ticket) {
                        *held -= 1;
                        if *held == 0 {
                            self.held.remove(&ticket);
                        }
                    }
                }
                Fate::Dropped(ticket) => {
                    known.so_far.entry(ticket).or_default().dropped = true;
                    known.touched.insert(ticket);
                }
                // Into what was made inside: it was used up.
                Fate::Joined(_, 0) => {}
                Fate::Joined(ticket, into) => {
                    known.joined.insert(ticket, into);
                    self.joined.entry(into).or_default().push(ticket);
                }
            }
        }
        known
    }

    /// Adds what was known before of blocks that wait for this step, and leaves it with them.
    fn remember(&mut self, program: usize, step: usize, known: &mut Known) {
        let waiting = &mut self.programs[program].waiting;
        for (ticket, into) in &known.joined {
            if let Some(it) = waiting.get_mut(ticket) {
                it.follows = Some(*into);
            }
        }
        known.touched.retain(|ticket| {
            let Some(it) = waiting.get_mut(ticket).filter(|it| it.step == step) else {
                return true;
            };
            let new = known.so_far.entry(*ticket).or_default();
            new.class = new.class.or(it.so_far.class);
            new.zero |= it.so_far.zero;
            new.dropped |= it.so_far.dropped;
            new.arrived |= it.so_far.arrived;
            it.so_far = *new;
            true
        });
    }

    /// Returns the verdict on the block of this ticket.
    fn verdict(&self, known: &Known, ticket: u32) -> Verdict {
        let so_far = known.so_far.get(&ticket).copied().unwrap_or_default();
        match so_far {
            SoFar { class: Some(class), .. } => Verdict::Yes(Some(class)),
            _ if self.held.contains_key(&ticket) => Verdict::Wait,
            SoFar { zero: true, .. } => Verdict::No,
            SoFar { dropped: true, .. } => Verdict::Drop,
            SoFar { arrived: true, .. } => Verdict::Yes(None),
            _ => Verdict::No,
        }
    }

    fn follows(&self, program: usize, ticket: u32) -> Option<u32> {
        self.programs[program].waiting.get(&ticket)?.follows
    }

    /// Leads a block on behind a step, and answers whether it does go on.
    fn goes_on(
        &mut self,
        walk: &mut Walk<'_, '_>,
        at: NodeId,
        (program, step): (usize, usize),
        subject: &mut Subject<'_>,
        verdict: Verdict,
    ) -> bool {
        let it = &self.programs[program].steps[step];
        match verdict {
            Verdict::Yes(class) => {
                if let Some(class) = class.filter(|_| it.says) {
                    subject.classes.result = class;
                }
                subject.then = it.yes;
            }
            Verdict::No | Verdict::Wait => subject.then = it.no,
            Verdict::Drop => {
                self.came.remove(&subject.ticket);
                let bytes = subject.block.length();
                match self.programs[program].inside {
                    None => {
                        if let Some(dropped) = walk.nodes[at].counts.dropped.first_mut() {
                            dropped.add(bytes);
                        }
                    }
                    Some(_) => self.ended(&subject.block),
                }
                return false;
            }
        }
        true
    }

    /// A block of a program inside an operand ended: the operand dropped it.
    fn ended(&mut self, block: &Block<'_>) {
        let around = block.marks.ticket();
        self.fates.extend((around != 0).then_some(Fate::Dropped(around)));
    }

    /// Has a block wait for an operand.
    fn suspend<'a>(
        &mut self,
        walk: &mut Walk<'_, 'a>,
        at: NodeId,
        (program, step): (usize, usize),
        subject: Subject<'a>,
        (follows, so_far): (Option<u32>, SoFar),
    ) {
        let outermost = self.programs[program].inside.is_none();
        let Some((entry, pin)) = walk.memory.pin(&subject.block) else {
            self.came.remove(&subject.ticket);
            match outermost {
                true => walk.nodes[at].counts.evicted.add(subject.block.length()),
                false => self.ended(&subject.block),
            }
            return;
        };
        let node = &mut walk.nodes[at];
        let mut list = HeldList::default();
        node.holds.insert(&mut list, 0, entry, pin);
        if outermost {
            node.counts.held.add(subject.block.length());
        }
        let classes = subject.classes;
        let waiting = Waiting { list, step, follows, classes, so_far };
        self.programs[program].waiting.insert(subject.ticket, waiting);
    }

    /// Takes out a block that waits for this step.
    fn release<'a>(
        &mut self,
        walk: &mut Walk<'_, 'a>,
        at: NodeId,
        (program, step): (usize, usize),
        ticket: u32,
        order: u32,
    ) -> Option<Subject<'a>> {
        let waiting = &mut self.programs[program].waiting;
        waiting.get(&ticket).filter(|it| it.step == step)?;
        let mut it = waiting.remove(&ticket)?;
        let block = self.taken(walk, at, &mut it, program)?;
        Some(Subject { block, order, ticket, classes: it.classes, then: Then::Ask(step) })
    }

    /// The block that waits, which the section no longer holds.
    fn taken<'a>(
        &self,
        walk: &mut Walk<'_, 'a>,
        at: NodeId,
        waiting: &mut Waiting,
        program: usize,
    ) -> Option<Block<'a>> {
        let node = &mut walk.nodes[at];
        let (_, entry, pin) = node.holds.pop(&mut waiting.list)?;
        let frame = walk.memory.frame(&entry);
        let block =
            Block { pointer: entry.pointer, frame, marks: entry.marks, context: entry.context };
        if self.programs[program].inside.is_none() {
            node.counts.held.take(block.length());
        }
        walk.memory.unpin(pin);
        Some(block)
    }

    /// Has all blocks leave that wait: of what operands hold now nothing more will be known.
    pub(super) fn end<'a>(&mut self, walk: &mut Walk<'_, 'a>, at: NodeId) -> Vec<Subject<'a>> {
        let mut all = Vec::new();
        // What stands inside an operand comes behind what is around it, and goes before.
        while let Some(program) = self.programs.iter().rposition(|it| !it.waiting.is_empty()) {
            let waiting = &self.programs[program].waiting;
            let Some(step) = waiting.values().map(|it| it.step).min() else { break };
            let here = waiting.iter().filter(|(_, it)| it.step == step);
            let tickets: Vec<(u32, SoFar)> =
                here.map(|(ticket, it)| (*ticket, it.so_far)).collect();
            let mut flow = Vec::new();
            for (ticket, so_far) in tickets {
                self.held.remove(&ticket);
                self.joined.remove(&ticket);
                let verdict = match so_far {
                    SoFar { zero: true, .. } => Verdict::No,
                    SoFar { dropped: true, .. } => Verdict::Drop,
                    SoFar { arrived: true, .. } => Verdict::Yes(None),
                    _ => Verdict::No,
                };
                if let Some(mut subject) = self.release(walk, at, (program, step), ticket, 0)
                    && self.goes_on(walk, at, (program, step), &mut subject, verdict)
                {
                    flow.push(subject);
                }
            }
            all.extend(self.left_behind(walk, at, (program, step), flow));
        }
        all
    }

    /// Blocks that wait for what is asked no longer leave as they are.
    pub(super) fn release_orphans<'a>(
        &mut self,
        walk: &mut Walk<'_, 'a>,
        at: NodeId,
    ) -> Vec<Subject<'a>> {
        let mut left = Vec::new();
        for mut it in std::mem::take(&mut self.orphans) {
            let Some(block) = self.taken(walk, at, &mut it, 0) else { continue };
            let class = if it.so_far.zero { Class::NONE } else { it.classes.result };
            let (block, classes) = (block.with_class(class), it.classes);
            left.push(Subject { block, order: 0, ticket: 0, classes, then: Then::Yes });
        }
        left
    }
}
