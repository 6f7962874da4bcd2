//! The sessions that a replica in the space of the join has not ended yet.

use super::arc::NodeId;
use super::node::{Node, Operator};
use super::sessions::SessionEnds;
use filter::{Filter, Time};

/// Position of a block in the final output of a replica chain. It consists of the number of the
/// emitting filter, counted from 1, and the rank of the emitting session in the order of the
/// sessions' first blocks ([`super::replica_shutdown`]).
pub(super) type FinalOutputPosition = (u32, u32);
/// A position that follows the positions of all blocks in the final output.
pub(super) const FINAL_OUTPUT_POSITION_MAX: FinalOutputPosition = (u32::MAX, u32::MAX);

/// The sessions that the replica in the join's space has not ended yet.
#[derive(Debug)]
pub(crate) struct FinalSessions {
    /// Filters whose sessions remain to be ended, in reverse topological order. The last filter in
    /// the list is next.
    pub(super) filters: Vec<NodeId>,
    /// Node of the filter whose sessions are being ended, and the remaining sessions; `None`
    /// between two filters.
    pub(super) current: Option<(NodeId, SessionEnds)>,
    pub(super) step: u32,
    /// Time of the replica's shutdown on the path's clock, in nanoseconds.
    pub(super) now: Time,
}

impl FinalSessions {
    /// Prepares to end the sessions of the replicated stream filters among `nodes` at time `now`.
    /// `order` is the topological order of the nodes.
    pub(super) fn new(nodes: &[Node], order: &[NodeId], now: Time) -> Self {
        let lets_out = |at: &NodeId| {
            let node: &Node = &nodes[*at];
            node.is_replica && matches!(node.operator, Operator::Filter(Filter::Stream(_)))
        };
        let filters = order.iter().copied().filter(lets_out).rev().collect();
        Self { filters, current: None, step: 0, now }
    }

    /// Returns true if all sessions of the replica have been ended.
    pub(super) fn has_ended(&self) -> bool {
        self.filters.is_empty() && self.current.is_none()
    }
}
