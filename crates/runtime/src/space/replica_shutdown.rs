//! Shutdown of a replica: its filters emit their final output session by session, in the order in
//! which a single instance would emit it. [Th §5.4; CONTRACT 16]
//!
//! A single instance ends its filters one after another, and each filter emits its sessions in the
//! order in which they began. The replicas number their sessions independently, so session numbers
//! do not determine that order. The order instead comes from the sequence number of each session's
//! first block, which is recorded when the session begins; all replicas use the same sequence
//! numbers ([`crate::replicas`]). At the end, every filter is ended one session at a time, and its
//! output is marked with the **step** (index of the ending filter in the chain) and the **rank** of
//! the session (sequence number of its first block, relative to the end). The join merges the
//! outputs of all replicas by step and rank (`super::final_merge`).
//!
//! Ranks are exact for sessions that began within the last 2²⁶ batches.

use super::arc::NodeId;
use super::node::Operator;
use super::sessions::SessionEnds;
use super::walk::Walk;
use super::{Clock, Input, Space};
use crate::replicas::{ReplicaProgress, SESSIONLESS_RANK};
use filter::{Filter, Time};

impl Walk<'_, '_> {
    /// Ends a filter of a replica. Ends the filter's sessions one by one, then its state outside
    /// sessions.
    pub(super) fn finish_replica(&mut self, at: NodeId) {
        self.pass.finishing_filter += 1;
        let mut leaving = SessionEnds::take_all_sessions(
            &mut self.nodes[at],
            &self.pass.births,
            self.pass.end_sequence_number,
        );
        while leaving.next_rank().is_some() && self.pass.failure.is_none() {
            self.finish_session(at, &mut leaving);
        }
        self.call_filter_without_input(at, true, SESSIONLESS_RANK);
    }

    /// Ends one session of a filter whose sessions have all been removed into `leaving`. Puts the
    /// next session from `leaving` back into the filter, and then ends the filter, so that it emits
    /// the final output of this session alone.
    pub(super) fn finish_session(&mut self, at: NodeId, leaving: &mut SessionEnds) {
        let Some((rank, moved)) = leaving.sessions.pop() else { return };
        let node = &mut self.nodes[at];
        if let Operator::Filter(Filter::Stream(filter)) = &mut node.operator
            && let Some(state) = filter.state()
        {
            // A session taken from a filter can always be put back into it.
            let back = state.put_session(moved, &mut node.holds);
            debug_assert!(back.is_ok(), "{back:?}");
        }
        self.call_filter_without_input(at, true, rank);
    }
}

impl Space {
    /// Begins the shutdown of a replica. Reads two values from the progress that the replica chain
    /// shares: the end of the dispatched sequence numbers, which it stores, and the time at which
    /// all replicas end, which it returns. Returns `now` if the space is not part of a replica
    /// chain.
    pub(super) fn begin_replica_shutdown(&mut self, now: Time) -> Time {
        let known = self
            .chain_progress()
            .map(|progress| (progress.end_sequence_number(), progress.final_block_time()));
        let Some((end, clock)) = known else { return now };
        self.graph.pass.end_sequence_number = end;
        self.graph.clock.advance_to(clock, now)
    }

    /// Announces to the replicas that the dispatcher at node `at` dispatches no more batches, and
    /// closes the rings to them. Called before the replica in the dispatcher's space ends.
    pub(super) fn close_dispatch(&mut self, at: NodeId) {
        let Operator::Dispatch(dispatch) = &self.graph.nodes[at].operator else { return };
        dispatch.close(match self.graph.clock {
            Clock::BlockTime(newest) => newest,
            Clock::Live => 0,
        });
        let replicas: Vec<NodeId> = self.graph.nodes[at].arcs.iter().map(|arc| arc.to).collect();
        for to in replicas {
            if let Operator::Export(export) = &mut self.graph.nodes[to].operator {
                export.close();
            }
        }
    }

    /// Returns the progress of the replica chain that includes the space, or `None` if there is
    /// none.
    fn chain_progress(&self) -> Option<&ReplicaProgress> {
        let dispatch = self.graph.shape.dispatchers.first().and_then(|at| {
            match &self.graph.nodes[*at].operator {
                Operator::Dispatch(dispatch) => Some(dispatch.progress()),
                _ => None,
            }
        });
        let input = self.inputs.list.iter().find_map(|input| match input {
            Input::Replica { replica: own, .. } => Some(&*own.progress),
            Input::Join(gather) => Some(gather.progress()),
            _ => None,
        });
        dispatch.or(input)
    }

    /// Forgets the births of ended sessions, which are the sequence numbers of their first blocks.
    /// Does nothing until there are more entries than
    /// [`SessionBirths`](super::sessions::SessionBirths) permits.
    pub(super) fn prune_session_births(&mut self) {
        if !self.graph.pass.births.is_over_entry_limit() {
            return;
        }
        let mut live = Vec::new();
        for node in self.graph.nodes.iter_mut().filter(|node| node.is_replica) {
            let Operator::Filter(Filter::Stream(filter)) = &mut node.operator else { continue };
            let Some(state) = filter.state() else { continue };
            let keys = state.session_keys().into_iter();
            live.extend(keys.filter_map(|key| u32::try_from(state.session_number(key)).ok()));
        }
        self.graph.pass.births.retain_sessions(live.into_iter());
    }
}
