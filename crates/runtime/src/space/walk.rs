//! The walk: one batch through the whole local graph before the next is taken. [Th §5.2.1]
//!
//! Depth first along the arcs; where branches meet, their batches wait until every branch has been
//! walked and are merged in input order. A node is called once per batch; nothing is allocated
//! while a path neither splits nor makes blocks. Blocks on a back edge go on a work list and around
//! at most [`HOPS_MAX`] times (CONTRACT 17). What comes to an editing filter is put aside until
//! everything else is done, and the walk pauses there (`space::edit`).

mod leave;

use super::join;
use super::memory::Memory;
use super::node::{Arc as Edge, Node, NodeId, Part};
use super::pause::Cut;
use super::select::Wanted;
use super::turn::Turn;
use crate::ledger::{EdgeKind, loses_here, loses_way};
use filter::{
    Amount, Batch, Filter, LaneContext, LaneMask, Output, StreamContext, Tell, Time, lanes,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Maximum number of times that a block may follow a back edge.
pub(crate) const HOPS_MAX: u8 = 16;
/// Maximum number of batches that wait on back edges.
const CYCLE_MAX: usize = 256;

/// One turn of a space.
pub(crate) struct Walk<'w, 'a> {
    pub(super) nodes: &'w mut [Node],
    pub(super) memory: &'w mut Memory<'a>,
    shape: &'w Shape,
    pub(super) now: Time,
    pub(super) waiting: Vec<Waiting<'a>>,
    pub(super) around: Vec<(Waiting<'a>, u8)>,
    /// Input of editing filters.
    pub(super) cuts: Vec<Cut>,
    /// The number for the next block where paths part.
    pub(super) next: u32,
    pub(super) turn: &'w mut Turn,
}

/// The constant shape of a running space: the order of its nodes and their roles.
#[derive(Debug, Default)]
pub struct Shape {
    /// The position of each node in topological order.
    pub(crate) rank: Vec<usize>,
    /// The nodes in topological order.
    pub(crate) order: Vec<NodeId>,
    /// True, by node, where paths fork outside of any branch that is joined again: blocks are
    /// numbered there.
    pub(crate) parts: Vec<bool>,
    /// True if anything in the space reads bytes.
    pub(crate) looks: bool,
    /// True if anything in the space edits block by block.
    pub(crate) edits: bool,
    /// The nodes that share blocks out.
    pub(crate) deals: Vec<NodeId>,
    /// Section of each operand that may hold blocks.
    pub(crate) asked_by: Vec<Option<NodeId>>,
}

/// A batch on an arc, not yet taken.
pub(super) struct Waiting<'a> {
    pub(super) from: NodeId,
    pub(super) arc: usize,
    pub(super) batch: Batch<'a>,
}

/// A batch at the end of an arc.
struct Arrival {
    to: NodeId,
    /// The number of the arc among those that lead to the node.
    branch: usize,
    amount: Amount,
}

/// Result of a node for a batch.
pub(super) enum Ran<'a> {
    /// It is still the same batch.
    Same,
    /// Other blocks came out.
    Others(Output<'a>),
    /// Nothing goes on.
    Ended,
}

impl<'w, 'a> Walk<'w, 'a> {
    pub(crate) fn new(
        nodes: &'w mut [Node],
        memory: &'w mut Memory<'a>,
        shape: &'w Shape,
        now: Time,
        turn: &'w mut Turn,
    ) -> Self {
        let (waiting, around, cuts) = (Vec::new(), Vec::new(), Vec::new());
        Self { nodes, memory, shape, now, waiting, around, cuts, next: 0, turn }
    }

    /// Walks what a source or an importing ring gave.
    pub(crate) fn source(&mut self, from: NodeId, batch: &mut Batch<'a>) {
        self.route(from, batch, 0);
        self.settle();
    }

    /// Walks what a source gave that chose the arc. Nothing else is under way, so what comes to a
    /// join by this arc waits for nothing there: nearly all that leaves a program passes the
    /// filters that decide what twins are unsure of, and joins behind them.
    pub(crate) fn source_along(&mut self, from: NodeId, arc: usize, batch: &mut Batch<'a>) {
        debug_assert!(self.waiting.is_empty(), "nothing else is under way");
        let leads = arc < self.nodes[from].arcs.len() && !loses_way();
        let goes = if leads { batch.live() } else { 0 };
        let amount = self.leave(from, batch, goes);
        if goes != 0 {
            let edge = &mut self.nodes[from].arcs[arc];
            if edge.back {
                self.along_alone((from, arc), goes, batch, 0);
            } else {
                let amount = put(edge, amount, batch);
                let arrival = Arrival { to: edge.to, branch: edge.branch, amount };
                self.enter(arrival, batch, 0);
            }
        }
        self.settle();
    }

    /// Calls the filters that asked to be called by now.
    pub(crate) fn tick(&mut self) {
        for at in 0..self.shape.order.len() {
            let at = self.shape.order[at];
            if self.nodes[at].wake.is_some_and(|wake| wake <= self.now) {
                self.nodes[at].wake = None;
                self.out_of_turn(at, false, self.turn.order);
            }
        }
    }

    /// Ends a node: nothing will come any more, and what it holds must leave.
    pub(crate) fn finish(&mut self, at: NodeId) {
        match (&self.nodes[at].part, self.nodes[at].copied) {
            (Part::Filter(Filter::Stream(_)), true) => self.finish_replica(at),
            _ => self.out_of_turn(at, true, 0),
        }
    }

    /// Runs a filter of a Boolean section in place; its answer is the class of each live lane.
    pub(super) fn operand(&mut self, at: NodeId, batch: &mut Batch<'a>) {
        let came = batch.amount(batch.live());
        add(&mut self.nodes[at].taken[0], came);
        if matches!(self.run(at, batch), Ran::Ended) {
            batch.keep(0);
            return;
        }
        let answered = batch.answered();
        let yes = batch.amount(answered);
        let flow = &mut self.nodes[at].flow;
        add(&mut flow.routed, yes);
        flow.unselected.blocks += came.blocks - yes.blocks;
        flow.unselected.bytes += came.bytes - yes.bytes;
    }

    /// Walks on with what a section lets go out of turn.
    fn settled(&mut self, section: NodeId, ran: Ran<'a>) {
        if let Ran::Others(output) = ran {
            self.route_all(section, output, 0);
        }
        self.settle();
    }

    /// Has a filter let out what is due, or all that it holds because it is the `last` time. What a
    /// replica lets out gets this number.
    pub(super) fn out_of_turn(&mut self, at: NodeId, last: bool, order: u32) {
        if let Part::Asks(_) = self.nodes[at].part {
            let ran = self.section_ends(at);
            return self.settled(at, ran);
        }
        let mut output = Output::default();
        let node = &mut self.nodes[at];
        if let Part::Filter(Filter::Stream(filter)) = &mut node.part {
            let mut cx = StreamContext::new(
                self.now,
                &mut node.counts,
                &mut node.holds,
                self.memory,
                &mut output,
                &mut node.wake,
            );
            let called = catch_unwind(AssertUnwindSafe(|| match last {
                true => filter.finish(&mut cx),
                false => filter.tick(&mut cx),
            }));
            if let Err(panic) = called {
                self.failed(at, None, 0, &*panic);
                return;
            }
        }
        if let Some(section) = self.shape.asked_by.get(at).copied().flatten() {
            let ran = self.operand_gave((at, section), &mut output);
            return self.settled(section, ran);
        }
        let copied = self.nodes[at].copied;
        for mut batch in output.take() {
            if copied {
                batch.number_all(order);
            }
            self.route(at, &mut batch, 0);
        }
        self.settle();
    }

    /// Walks on until nothing waits at a join or on a back edge, or only behind an edit.
    pub(super) fn settle(&mut self) {
        loop {
            let next =
                self.waiting.iter().map(|w| self.target(w)).min_by_key(|to| self.shape.rank[*to]);
            let edit = self.cuts.iter().map(|cut| self.shape.rank[cut.at]).min();
            if let (Some(edit), next) = (edit, next)
                && next.is_none_or(|to| edit < self.shape.rank[to])
            {
                return;
            }
            if let Some(to) = next {
                self.join(to);
            } else if let Some((w, hops)) = self.around.pop() {
                let (to, branch) = self.end_of(&w);
                let mut batch = w.batch;
                let amount = batch.amount(batch.live());
                self.enter(Arrival { to, branch, amount }, &mut batch, hops);
            } else {
                return;
            }
        }
    }

    fn join(&mut self, to: NodeId) {
        let mut branches = Vec::new();
        let mut i = 0;
        while i < self.waiting.len() {
            if self.target(&self.waiting[i]) == to {
                let w = self.waiting.remove(i);
                let (_, branch) = self.end_of(&w);
                let mut batch = w.batch;
                let came = batch.amount(batch.live());
                add(&mut self.nodes[to].taken[branch], came);
                branches.push((branch, batch));
            } else {
                i += 1;
            }
        }
        branches.sort_by_key(|(branch, _)| *branch);
        for mut batch in join::merge(branches) {
            match self.observed_run(to, &mut batch, 0) {
                Ran::Same => self.route(to, &mut batch, 0),
                Ran::Others(output) => self.route_all(to, output, 0),
                Ran::Ended => {}
            }
        }
    }

    fn target(&self, w: &Waiting<'a>) -> NodeId {
        self.nodes[w.from].arcs[w.arc].to
    }

    fn end_of(&self, w: &Waiting<'a>) -> (NodeId, usize) {
        let arc = &self.nodes[w.from].arcs[w.arc];
        (arc.to, arc.branch)
    }

    /// Takes a batch off an arc and walks on with it, until nothing goes on or what does waits.
    fn enter(&mut self, arrival: Arrival, batch: &mut Batch<'a>, hops: u8) {
        let mut next = Some(arrival);
        while let Some(Arrival { to, branch, amount }) = next {
            add(&mut self.nodes[to].taken[branch], amount);
            next = match self.observed_run(to, batch, hops) {
                Ran::Same => self.step(to, batch, hops),
                Ran::Others(output) => return self.route_all(to, output, hops),
                Ran::Ended => return,
            };
        }
    }

    fn route_all(&mut self, at: NodeId, mut output: Output<'a>, hops: u8) {
        for mut made in output.take() {
            self.route(at, &mut made, hops);
        }
    }

    /// Calls what runs in a node, or puts the batch aside if that edits blocks.
    #[inline]
    fn observed_run(&mut self, at: NodeId, batch: &mut Batch<'a>, hops: u8) -> Ran<'a> {
        let observed = self.turn.observers.are_active();
        if observed {
            self.turn.observers.begins(&self.nodes[at], batch);
        }
        let edits =
            self.shape.edits && matches!(&self.nodes[at].part, Part::Filter(Filter::Edit(_)));
        let ran = if edits { self.put_aside(at, batch, hops) } else { self.run(at, batch) };
        if observed {
            self.turn.observers.done(&mut self.nodes[at], self.now);
        }
        ran
    }

    /// Calls what runs in a node, once, for all live lanes.
    pub(super) fn run(&mut self, at: NodeId, batch: &mut Batch<'a>) -> Ran<'a> {
        if self.turn.failure.is_some() {
            let lost = batch.amount(batch.live());
            add(&mut self.nodes[at].flow.failed, lost);
            return Ran::Ended;
        }
        if let Part::Section(section) = &self.nodes[at].part {
            let section = Arc::clone(section);
            section.answer(self, batch);
            return Ran::Same;
        }
        if let Part::Asks(_) = &self.nodes[at].part {
            return self.ask(at, batch);
        }
        if self.nodes[at].counted && self.turn.left.is_some() {
            self.cut_to_count(at, batch);
            if batch.live() == 0 {
                return Ran::Ended;
            }
        }
        let node = &mut self.nodes[at];
        node.flow.calls += 1;
        let came = batch.live();
        let (now, memory) = (self.now, &mut *self.memory);
        let counts = &mut node.counts;
        let ran = match &mut node.part {
            Part::Filter(Filter::Statistics(f)) => {
                catch_unwind(AssertUnwindSafe(|| f.record(batch.tags(), now)))
            }
            Part::Filter(Filter::Lanes(f)) => {
                let mut cx = LaneContext::new(Tell::new(now, counts), memory);
                catch_unwind(AssertUnwindSafe(|| f.process(batch, &mut cx)))
            }
            Part::Filter(Filter::Stream(f)) => {
                let (holds, wake) = (&mut node.holds, &mut node.wake);
                let mut output = Output::default();
                if node.copied {
                    output.note_sessions();
                }
                let mut cx = StreamContext::new(now, counts, holds, memory, &mut output, wake);
                let ran = catch_unwind(AssertUnwindSafe(|| f.process(batch, &mut cx)));
                self.turn.births.add(output.sessions_begun());
                match ran {
                    Ok(()) if !f.in_place() => return Ran::Others(output),
                    Ok(()) if output.is_empty() && batch.live() == 0 => return Ran::Ended,
                    Ok(()) if output.is_empty() => return Ran::Same,
                    Ok(()) => {
                        if batch.live() != 0 {
                            output.lead(batch.duplicate());
                        }
                        return Ran::Others(output);
                    }
                    Err(panic) => Err(panic),
                }
            }
            Part::Sink(_) => return self.sink(at, batch),
            Part::Export(_) => return self.export(at, batch),
            Part::Deal(_) => return self.deal(at, batch),
            // Put aside before.
            Part::Filter(Filter::Edit(_)) => Ok(()),
            Part::Pass | Part::Source(_) | Part::Section(_) | Part::Asks(_) => Ok(()),
        };
        match ran {
            Ok(()) => Ran::Same,
            Err(panic) => {
                batch.set_live(came);
                self.failed(at, Some(batch), came, &*panic);
                Ran::Ended
            }
        }
    }

    /// Sends the live lanes along the arcs that want them, and walks on.
    pub(super) fn route(&mut self, from: NodeId, batch: &mut Batch<'a>, hops: u8) {
        if let Some(arrival) = self.step(from, batch, hops) {
            self.enter(arrival, batch, hops);
        }
    }

    /// Sends the live lanes along the arcs that want them. Returns where what is left in the batch
    /// arrives; all else has been walked, or waits.
    #[inline]
    fn step(&mut self, from: NodeId, batch: &mut Batch<'a>, hops: u8) -> Option<Arrival> {
        if self.turn.observers.are_active() && self.split(from, batch, hops) {
            return None;
        }
        let [arc] = self.nodes[from].arcs.as_slice() else {
            return self.fork(from, batch, hops);
        };
        let mask = match &arc.wanted {
            Wanted::Answered => batch.answered(),
            wanted => wanted.select(batch),
        };
        let amount = self.leave(from, batch, mask);
        if mask == 0 {
            return None;
        }
        self.along((from, 0), amount, batch, hops)
    }

    /// Routes blocks one by one if an observer asks for that; returns true if it was done.
    #[cold]
    fn split(&mut self, from: NodeId, batch: &Batch<'a>, hops: u8) -> bool {
        let live = batch.live();
        let split = live.count_ones() > 1 && self.turn.observers.split_batches();
        for l in lanes(live).filter(|_| split) {
            let mut one = batch.duplicate();
            one.keep(1 << l);
            self.route(from, &mut one, hops);
        }
        split
    }

    /// Sends copies of the batch along all arcs but the last that wants something.
    fn fork(&mut self, from: NodeId, batch: &mut Batch<'a>, hops: u8) -> Option<Arrival> {
        let arcs = self.nodes[from].arcs.len();
        let mut masks = [0 as LaneMask; 8];
        let mut more = Vec::new();
        let masks: &mut [LaneMask] = if arcs <= masks.len() {
            &mut masks[..arcs]
        } else {
            more.resize(arcs, 0);
            &mut more
        };
        for (mask, arc) in masks.iter_mut().zip(&self.nodes[from].arcs) {
            *mask = arc.wanted.select(batch);
        }
        if self.shape.parts[from] {
            batch.renumber(&mut self.next);
        }
        let any = masks.iter().fold(0, |a, b| a | b);
        self.leave(from, batch, any);
        let last = masks.iter().rposition(|mask| *mask != 0)?;
        for (arc, mask) in masks.iter().enumerate().take(last).filter(|(_, mask)| **mask != 0) {
            let mut copy = batch.duplicate();
            self.along_alone((from, arc), *mask, &mut copy, hops);
        }
        batch.keep(masks[last]);
        let amount = batch.amount(masks[last]);
        self.along((from, last), amount, batch, hops)
    }

    /// Puts these lanes of a batch on an arc, and walks on.
    pub(super) fn along_alone(
        &mut self,
        arc: (NodeId, usize),
        mask: LaneMask,
        batch: &mut Batch<'a>,
        hops: u8,
    ) {
        batch.keep(mask);
        let amount = batch.amount(mask);
        if let Some(arrival) = self.along(arc, amount, batch, hops) {
            self.enter(arrival, batch, hops);
        }
    }

    /// Counts what of a batch goes on and what ends here, and keeps the former.
    fn leave(&mut self, from: NodeId, batch: &mut Batch<'a>, wanted: LaneMask) -> Amount {
        let node = &mut self.nodes[from];
        let rest = batch.live() & !wanted;
        if rest != 0 {
            add(&mut node.flow.unselected, batch.amount_in(rest));
        }
        let routed = batch.amount(wanted);
        add(&mut node.flow.routed, routed);
        if self.turn.observers.are_active() {
            self.turn.observers.routed(node, batch, wanted, self.now);
        }
        batch.keep(wanted);
        routed
    }

    /// Puts a batch on an arc. Returns where it arrives, unless it waits on the way.
    #[inline]
    fn along(
        &mut self,
        (from, arc): (NodeId, usize),
        amount: Amount,
        batch: &mut Batch<'a>,
        hops: u8,
    ) -> Option<Arrival> {
        let edge = &mut self.nodes[from].arcs[arc];
        let arrives = put(edge, amount, batch);
        let arrival = Arrival { to: edge.to, branch: edge.branch, amount: arrives };
        if edge.direct {
            return Some(arrival);
        }
        let waiting = |batch: &Batch<'a>| Waiting { from, arc, batch: batch.duplicate() };
        if !edge.back {
            self.waiting.push(waiting(batch));
        } else if hops >= HOPS_MAX {
            add(&mut edge.dropped.too_many_hops, amount);
        } else if self.around.len() >= CYCLE_MAX {
            add(&mut edge.dropped.cycle_full, amount);
        } else {
            self.around.push((waiting(batch), hops + 1));
        }
        None
    }
}

/// Counts what goes on an arc; returns what arrives.
#[inline]
fn put(edge: &mut Edge, amount: Amount, batch: &mut Batch<'_>) -> Amount {
    add(&mut edge.put, amount);
    let kind = if edge.back { EdgeKind::Back } else { EdgeKind::Call };
    if !loses_here(kind, edge.put) {
        return amount;
    }
    lose_one(batch);
    batch.amount(batch.live())
}

/// Loses one block, in a fault-injection build.
#[cold]
fn lose_one(batch: &mut Batch<'_>) {
    let first = batch.live() & batch.live().wrapping_neg();
    batch.keep(!first);
}

#[inline]
fn add(to: &mut Amount, amount: Amount) {
    to.blocks += amount.blocks;
    to.bytes += amount.bytes;
}
