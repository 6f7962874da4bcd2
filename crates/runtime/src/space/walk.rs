//! The walk of a batch through the local graph, which is completed before the next batch is taken.
//! [Th §5.2.1]
//!
//! The walk follows the arcs depth first. At a join, batches wait until every branch has been
//! walked, and are merged in input order. A node is called once per batch. A walk allocates no
//! memory unless the path forks or its filters create blocks. Blocks on a back edge enter a work
//! list, and follow at most [`HOPS_MAX`] back edges (CONTRACT 17). The input of an editing filter
//! is deferred until all other work is done; the walk then pauses (`space::edit`).

mod exits;
mod route;
mod section;

use super::arc::NodeId;
use super::graph_shape::GraphShape;
use super::join;
use super::memory::Memory;
use super::node::{Node, Operator};
use super::pass::PassState;
use super::pause::DeferredEdit;
use crate::ledger::must_lose_kernel_arc;
use filter::{Amount, Batch, ClassifyContext, Filter, LaneContext, Output, StreamContext, Time};
use route::count_put_blocks;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Maximum number of back edges that a block may follow. A back edge is an arc that closes a cycle.
pub(crate) const HOPS_MAX: u8 = 16;
/// Maximum number of batches waiting on back edges.
const CYCLE_BATCHES_MAX: usize = 256;

/// The state of one walk through the local graph: the borrowed parts of the space, and the batches
/// still to be processed.
pub(crate) struct Walk<'w, 'a> {
    pub(super) nodes: &'w mut [Node],
    pub(super) memory: &'w mut Memory<'a>,
    shape: &'w GraphShape,
    pub(super) now: Time,
    pub(super) waiting: Vec<WaitingBatch<'a>>,
    pub(super) on_back_edges: Vec<(WaitingBatch<'a>, u8)>,
    /// Batches that wait at editing filters until the walk pauses.
    pub(super) deferred: Vec<DeferredEdit>,
    /// Sequence number that the next fork assigns to its first block.
    pub(super) next_sequence_number: u32,
    pub(super) pass: &'w mut PassState,
    /// True if the walk has an observer. Observers are not set or removed during a walk.
    observed: bool,
}

/// A batch that waits on an arc, which leads to a join or is a back edge.
pub(super) struct WaitingBatch<'a> {
    pub(super) from: NodeId,
    pub(super) arc: usize,
    pub(super) batch: Batch<'a>,
}

/// The arrival of a batch at the end of an arc.
struct Arrival {
    to: NodeId,
    /// Index of the arc among the incoming arcs of the node at its end.
    branch: usize,
    amount: Amount,
}

/// The result of running a node on a batch.
pub(super) enum RunResult<'a> {
    /// The batch continues, with the lanes that are still live.
    Unchanged,
    /// The contained blocks continue instead of the batch. The node has emitted them.
    Replaced(Output<'a>),
    /// No blocks continue, because the node has dropped, held or passed on all of them.
    Ended,
}

impl<'w, 'a> Walk<'w, 'a> {
    pub(crate) fn new(
        nodes: &'w mut [Node],
        memory: &'w mut Memory<'a>,
        shape: &'w GraphShape,
        now: Time,
        pass: &'w mut PassState,
    ) -> Self {
        let (waiting, around, deferred) = (Vec::new(), Vec::new(), Vec::new());
        let observed = pass.observers.is_active();
        Self {
            nodes,
            memory,
            shape,
            now,
            waiting,
            on_back_edges: around,
            deferred,
            next_sequence_number: 0,
            pass,
            observed,
        }
    }

    /// Passes a batch from a source or a ring through the graph.
    pub(crate) fn walk_source(&mut self, from: NodeId, batch: &mut Batch<'a>) {
        self.route(from, batch, 0);
        self.walk_waiting_batches();
    }

    /// Passes a batch along an arc that its source has chosen. Joins need not wait for other
    /// branches, because no other batch is in flight. Most output of kernel programs enters the
    /// graph here. The filters after the arc then process the frames about which the kernel program
    /// was unsure.
    pub(crate) fn walk_chosen_arc(&mut self, from: NodeId, arc: usize, batch: &mut Batch<'a>) {
        debug_assert!(self.waiting.is_empty(), "nothing else is under way");
        let leads = arc < self.nodes[from].arcs.len() && !must_lose_kernel_arc();
        let chosen = if leads { batch.live_lanes() } else { 0 };
        let amount = self.count_and_keep_routed_lanes(from, batch, chosen);
        if chosen != 0 {
            let edge = &mut self.nodes[from].arcs[arc];
            if edge.is_back {
                self.walk_lanes((from, arc), chosen, batch, 0);
            } else {
                let amount = count_put_blocks(edge, amount, batch);
                let arrival = Arrival { to: edge.to, branch: edge.branch, amount };
                self.enter_node(arrival, batch, 0);
            }
        }
        self.walk_waiting_batches();
    }

    /// Calls the filters whose timers have expired.
    pub(crate) fn run_expired_timers(&mut self) {
        for at in 0..self.shape.order.len() {
            let at = self.shape.order[at];
            if self.nodes[at].wake.is_some_and(|wake| wake <= self.now) {
                self.nodes[at].wake = None;
                self.call_filter_without_input(at, false, self.pass.order);
            }
        }
    }

    /// Ends a node's filter, and passes the blocks that the filter releases through the graph.
    pub(crate) fn finish_node(&mut self, at: NodeId) {
        match (&self.nodes[at].operator, self.nodes[at].is_replica) {
            (Operator::Filter(Filter::Stream(_)), true) => self.finish_replica(at),
            _ => self.call_filter_without_input(at, true, 0),
        }
    }

    /// Runs an operand of a Boolean section on a batch. Afterwards, each live lane has the class
    /// that the operand answered; unanswered lanes stay live, with class 0. If the path has failed,
    /// no lane is live.
    pub(super) fn run_operand(&mut self, at: NodeId, batch: &mut Batch<'a>) {
        let came = batch.cache_amount_in_lanes(batch.live_lanes());
        self.nodes[at].taken[0] += came;
        if matches!(self.run_node(at, batch), RunResult::Ended) {
            batch.retain_lanes(0);
            return;
        }
        let answered = batch.answered_lanes();
        let yes = batch.cache_amount_in_lanes(answered);
        let flow = &mut self.nodes[at].flow;
        flow.routed += yes;
        flow.unselected.blocks += came.blocks - yes.blocks;
        flow.unselected.bytes += came.bytes - yes.bytes;
    }

    /// Passes blocks that a section has released through the graph.
    fn walk_released_blocks(&mut self, section: NodeId, ran: RunResult<'a>) {
        if let RunResult::Replaced(output) = ran {
            self.route_output(section, output, 0);
        }
        self.walk_waiting_batches();
    }

    /// Calls a filter without input, and passes its output through the graph. The reason for the
    /// call is an expired timer or, if `last` is true, the end of the filter. If the filter is a
    /// replica, its output gets the sequence number `order`. If the node is a section of operands,
    /// instead releases all blocks that wait in the section.
    pub(super) fn call_filter_without_input(&mut self, at: NodeId, last: bool, order: u32) {
        if let Operator::OperandSection(_) = self.nodes[at].operator {
            let ran = self.release_section_blocks(at);
            return self.walk_released_blocks(at, ran);
        }
        let mut output = Output::default();
        let node = &mut self.nodes[at];
        if let Operator::Filter(Filter::Stream(filter)) = &mut node.operator {
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
                self.fail_node(at, None, 0, &*panic);
                return;
            }
        }
        if let Some(section) = self.shape.section_of.get(at).copied().flatten() {
            let ran = self.continue_section((at, section), &mut output);
            return self.walk_released_blocks(section, ran);
        }
        let copied = self.nodes[at].is_replica;
        for mut batch in output.take_batches() {
            if copied {
                batch.set_all_sequence_numbers(order);
            }
            self.route(at, &mut batch, 0);
        }
        self.walk_waiting_batches();
    }

    /// Continues the walk with the batches that wait at joins and on back edges. Returns when no
    /// such batch is left, or when a deferred edit must be made first.
    pub(super) fn walk_waiting_batches(&mut self) {
        loop {
            let next = self
                .waiting
                .iter()
                .map(|w| self.target_node(w))
                .min_by_key(|to| self.shape.rank[*to]);
            let edit = self.deferred.iter().map(|edit| self.shape.rank[edit.at]).min();
            if let (Some(edit), next) = (edit, next)
                && next.is_none_or(|to| edit < self.shape.rank[to])
            {
                return;
            }
            if let Some(to) = next {
                self.walk_join(to);
            } else if let Some((w, hops)) = self.on_back_edges.pop() {
                let (to, branch) = self.target_and_branch(&w);
                let mut batch = w.batch;
                let amount = batch.cache_amount_in_lanes(batch.live_lanes());
                self.enter_node(Arrival { to, branch, amount }, &mut batch, hops);
            } else {
                return;
            }
        }
    }

    fn walk_join(&mut self, to: NodeId) {
        let mut branches = Vec::new();
        let mut i = 0;
        while i < self.waiting.len() {
            if self.target_node(&self.waiting[i]) == to {
                let w = self.waiting.remove(i);
                let (_, branch) = self.target_and_branch(&w);
                let mut batch = w.batch;
                let came = batch.cache_amount_in_lanes(batch.live_lanes());
                self.nodes[to].taken[branch] += came;
                branches.push((branch, batch));
            } else {
                i += 1;
            }
        }
        branches.sort_by_key(|(branch, _)| *branch);
        for mut batch in join::merge_branches(branches) {
            match self.run_observed_node(to, &mut batch, 0) {
                RunResult::Unchanged => self.route(to, &mut batch, 0),
                RunResult::Replaced(output) => self.route_output(to, output, 0),
                RunResult::Ended => {}
            }
        }
    }

    fn target_node(&self, w: &WaitingBatch<'a>) -> NodeId {
        self.nodes[w.from].arcs[w.arc].to
    }

    fn target_and_branch(&self, w: &WaitingBatch<'a>) -> (NodeId, usize) {
        let arc = &self.nodes[w.from].arcs[w.arc];
        (arc.to, arc.branch)
    }

    /// Runs a node on an arriving batch. Then continues the walk from this node, until no blocks
    /// continue or all of them wait.
    fn enter_node(&mut self, arrival: Arrival, batch: &mut Batch<'a>, hops: u8) {
        let mut next = Some(arrival);
        while let Some(Arrival { to, branch, amount }) = next {
            self.nodes[to].taken[branch] += amount;
            next = match self.run_observed_node(to, batch, hops) {
                RunResult::Unchanged => self.route_step(to, batch, hops),
                RunResult::Replaced(output) => return self.route_output(to, output, hops),
                RunResult::Ended => return,
            };
        }
    }

    fn route_output(&mut self, at: NodeId, mut output: Output<'a>, hops: u8) {
        for mut made in output.take_batches() {
            self.route(at, &mut made, hops);
        }
    }

    /// Runs a node on a batch, and calls the observers before and after the run. If the node is an
    /// editing filter, defers the batch instead of running the node.
    #[inline]
    fn run_observed_node(&mut self, at: NodeId, batch: &mut Batch<'a>, hops: u8) -> RunResult<'a> {
        if self.observed {
            self.pass.observers.before_node(&self.nodes[at], batch);
        }
        let edits = self.shape.edits
            && matches!(&self.nodes[at].operator, Operator::Filter(Filter::Edit(_)));
        let ran = if edits { self.defer_batch(at, batch, hops) } else { self.run_node(at, batch) };
        if self.observed {
            self.pass.observers.after_node(&mut self.nodes[at], self.now);
        }
        ran
    }

    /// Calls a node once for all live lanes of a batch. If the path has failed, only counts the
    /// blocks as failed.
    pub(super) fn run_node(&mut self, at: NodeId, batch: &mut Batch<'a>) -> RunResult<'a> {
        if self.pass.failure.is_some() {
            let lost = batch.cache_amount_in_lanes(batch.live_lanes());
            self.nodes[at].flow.failed += lost;
            return RunResult::Ended;
        }
        if let Operator::Section(section) = &self.nodes[at].operator {
            let section = Arc::clone(section);
            section.set_section_answers(self, batch);
            return RunResult::Unchanged;
        }
        if let Operator::OperandSection(_) = &self.nodes[at].operator {
            return self.evaluate_section(at, batch);
        }
        if self.nodes[at].counts_to_limit && self.pass.count_limit.is_some() {
            self.drop_blocks_beyond_limit(at, batch);
            if batch.live_lanes() == 0 {
                return RunResult::Ended;
            }
        }
        let node = &mut self.nodes[at];
        node.flow.calls += 1;
        let came = batch.live_lanes();
        let (now, memory) = (self.now, &mut *self.memory);
        let counts = &mut node.counts;
        let ran = match &mut node.operator {
            Operator::Filter(Filter::Statistics(f)) => {
                catch_unwind(AssertUnwindSafe(|| f.record(batch.metadata_view(), now)))
            }
            Operator::Filter(Filter::Lanes(f)) => {
                let mut cx = LaneContext::new(ClassifyContext::new(now, counts), memory);
                catch_unwind(AssertUnwindSafe(|| f.process(batch, &mut cx)))
            }
            Operator::Filter(Filter::Stream(f)) => {
                let (holds, wake) = (&mut node.holds, &mut node.wake);
                let mut output = Output::default();
                if node.is_replica {
                    output.enable_session_log();
                }
                let mut cx = StreamContext::new(now, counts, holds, memory, &mut output, wake);
                let ran = catch_unwind(AssertUnwindSafe(|| f.process(batch, &mut cx)));
                self.pass.births.add(output.take_session_log());
                match ran {
                    Ok(()) if output.is_empty() && batch.live_lanes() == 0 => {
                        return RunResult::Ended;
                    }
                    Ok(()) if output.is_empty() => return RunResult::Unchanged,
                    Ok(()) => {
                        if batch.live_lanes() != 0 {
                            output.insert_first_batch(batch.duplicate());
                        }
                        return RunResult::Replaced(output);
                    }
                    Err(panic) => Err(panic),
                }
            }
            Operator::Sink(_) => return self.run_sink(at, batch),
            Operator::Export(_) => return self.run_export(at, batch),
            Operator::Dispatch(_) => return self.run_dispatch(at, batch),
            // The input of editing filters was deferred earlier.
            Operator::Filter(Filter::Edit(_)) => Ok(()),
            Operator::Pass
            | Operator::Source(_)
            | Operator::Section(_)
            | Operator::OperandSection(_) => Ok(()),
        };
        match ran {
            Ok(()) => RunResult::Unchanged,
            Err(panic) => {
                batch.set_live_lanes(came);
                self.fail_node(at, Some(batch), came, &*panic);
                RunResult::Ended
            }
        }
    }
}
