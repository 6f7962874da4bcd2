//! Arcs between the nodes of a space, with the counters of the node that puts blocks on them.

use super::class_selection::SelectedClasses;
use crate::ledger::DropReason;
use filter::Amount;

/// The index of a node in its space.
pub type NodeId = usize;

/// An outgoing arc of a node. The fields read for every batch come first.
#[derive(Debug)]
#[repr(C)]
pub struct GraphArc {
    /// Index of the node to which the arc leads.
    pub to: NodeId,
    /// Index of the arc among the incoming arcs of the node to which it leads. A join merges its
    /// branches in the order of this index.
    pub branch: usize,
    /// True for a forward arc to a node that is not a join. A walk then processes the target node
    /// at once.
    pub is_direct: bool,
    /// Blocks and bytes that the node has put on the arc so far.
    pub put: Amount,
    /// Classes of the blocks that the arc accepts.
    pub wanted: SelectedClasses,
    /// True for a back edge, whose work list is bounded and never blocks (CONTRACT 17).
    pub is_back: bool,
    /// Number of the edge, which stays the same across changes to the path.
    pub planned: usize,
    /// Amounts dropped on the arc, by reason.
    pub dropped: EdgeDrops,
}

/// Amounts of blocks that were dropped on an arc, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EdgeDrops {
    /// Blocks dropped because the work list of the back edge was full.
    pub cycle_full: Amount,
    /// Blocks dropped because they had already passed over back edges as often as permitted.
    pub too_many_hops: Amount,
    /// Blocks dropped because the ring to another space was full.
    pub ring_full: Amount,
    /// Blocks that were still on the edge when the path ended.
    pub path_ended: Amount,
}

impl EdgeDrops {
    /// Returns the dropped amounts, each with its reason.
    pub fn amounts_by_reason(&self) -> [(DropReason, Amount); 4] {
        [
            ("cycle full".into(), self.cycle_full),
            ("too many hops".into(), self.too_many_hops),
            ("ring full".into(), self.ring_full),
            ("path ended".into(), self.path_ended),
        ]
    }
}
