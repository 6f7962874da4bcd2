//! Nodes at which blocks leave a walk: sinks, rings to other spaces, dispatch to replicas, and
//! failed filters.

use super::{RunResult, Walk};
use crate::failure::PathFailure;
use crate::replicas::last_sequence_number;
use crate::space::arc::NodeId;
use crate::space::count_limit::ClaimPolicy;
use crate::space::node::Operator;
use filter::{Amount, Batch, LaneMask, lanes};
use std::panic::{AssertUnwindSafe, catch_unwind};

impl<'a> Walk<'_, 'a> {
    pub(super) fn run_sink(&mut self, at: NodeId, batch: &mut Batch<'a>) -> RunResult<'a> {
        let came = batch.live_lanes();
        let amount = batch.cache_amount_in_lanes(came);
        let now = self.now;
        let node = &mut self.nodes[at];
        let Operator::Sink(part) = &mut node.operator else { return RunResult::Ended };
        match catch_unwind(AssertUnwindSafe(|| part.sink.consume(batch, now))) {
            Ok(Ok(())) => {
                node.flow.accepted_by_sink += amount;
                part.age.iter().for_each(|age| age.measure_taken_blocks(batch, came));
                self.pass.store_long_write(node.number, part.sink.take_longest_write());
            }
            Ok(Err(failure)) => {
                node.flow.failed += amount;
                let name = node.name.clone();
                self.pass.failure = Some(PathFailure::from_endpoint(name, failure));
            }
            Err(panic) => self.fail_node(at, Some(batch), came, &*panic),
        }
        RunResult::Ended
    }

    /// Drops the blocks that exceed the limit on delivered blocks (`-c`).
    pub(super) fn drop_blocks_beyond_limit(&mut self, at: NodeId, batch: &mut Batch<'a>) {
        let Some(left) = &self.pass.count_limit else { return };
        let live = batch.live_lanes();
        let may = match &mut self.pass.claims {
            ClaimPolicy::Free => left.claim(live.count_ones()),
            ClaimPolicy::Recorded(noted) => {
                let may = left.claim(live.count_ones());
                noted.push(may);
                may
            }
            ClaimPolicy::Replayed(rest) => {
                let may = live.count_ones().min(*rest);
                *rest -= may;
                may
            }
        };
        let taken: LaneMask = lanes(live).take(may as usize).map(|l| 1 << l).sum();
        if taken != live {
            let beyond = batch.cache_amount_in_lanes(live & !taken);
            self.nodes[at].flow.beyond_count += beyond;
            batch.retain_lanes(taken);
        }
    }

    pub(super) fn run_export(&mut self, at: NodeId, batch: &mut Batch<'a>) -> RunResult<'a> {
        let node = &mut self.nodes[at];
        let Operator::Export(export) = &mut node.operator else { return RunResult::Ended };
        let came = batch.live_lanes();
        let amount = batch.cache_amount_in_lanes(came);
        let before = export.writer_counts();
        export.step = self.pass.finishing_filter;
        match export.put(batch, self.memory, self.pass.sleeps_next) {
            Ok(()) => node.flow.routed += amount,
            Err(failure) => {
                // The ring accounts for blocks that were put before the failure.
                let after = export.writer_counts();
                let put = Amount {
                    blocks: after.blocks + after.dropped - before.blocks - before.dropped,
                    bytes: after.bytes + after.dropped_bytes - before.bytes - before.dropped_bytes,
                };
                node.flow.routed += put;
                let Amount { blocks, bytes } = amount;
                let lost = Amount { blocks: blocks - put.blocks, bytes: bytes - put.bytes };
                node.flow.failed += lost;
                let name = node.name.clone();
                self.pass.failure = Some(PathFailure::from_ring(name, failure));
            }
        }
        RunResult::Ended
    }

    /// Dispatches a batch to the replicas of a chain. Sends the blocks for replicas in other spaces
    /// first, so that these replicas work in parallel with the replica in this space.
    pub(super) fn run_dispatch(&mut self, at: NodeId, batch: &mut Batch<'a>) -> RunResult<'a> {
        let (before, here) = self.nodes.split_at_mut(at);
        let Some((node, behind)) = here.split_first_mut() else { return RunResult::Ended };
        let Operator::Dispatch(dispatcher) = &mut node.operator else { return RunResult::Ended };
        let arcs = &node.arcs;
        let mut load = |copy: usize| {
            let to = arcs.get(copy).map_or(at, |arc| arc.to);
            let far = if to < at { before.get_mut(to) } else { behind.get_mut(to - at - 1) };
            match far.map(|node| &mut node.operator) {
                Some(Operator::Export(export)) => export.untaken_entries(),
                _ => 0,
            }
        };
        let (batch_id, hands) = dispatcher.dispatch(batch, &mut load);
        let here = dispatcher.local_replica();
        self.count_and_keep_routed_lanes(at, batch, batch.live_lanes());
        self.pass.order = last_sequence_number(batch_id);
        if let [(copy, mask)] = hands.as_slice() {
            self.walk_lanes((at, *copy), *mask, batch, 0);
            return RunResult::Ended;
        }
        let (own, others): (Vec<_>, Vec<_>) = hands.into_iter().partition(|(c, _)| *c == here);
        for (copy, mask) in others.into_iter().chain(own) {
            let mut part = batch.duplicate();
            self.walk_lanes((at, copy), mask, &mut part, 0);
        }
        RunResult::Ended
    }

    pub(super) fn fail_node(
        &mut self,
        at: NodeId,
        batch: Option<&mut Batch<'a>>,
        came: LaneMask,
        panic: &(dyn std::any::Any + Send),
    ) {
        let block = batch.map(|batch| {
            let lost = batch.cache_amount_in_lanes(came);
            self.nodes[at].flow.failed += lost;
            batch.block(batch.last_processed_lane())
        });
        let name = self.nodes[at].name.clone();
        self.pass.failure = Some(PathFailure::from_panicked_filter(name, panic, block.as_ref()));
    }
}
