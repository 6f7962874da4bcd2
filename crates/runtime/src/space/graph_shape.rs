//! The shape of a space's graph: the order and roles of its nodes.

use super::arc::NodeId;

/// The order and roles of the nodes in a space's graph. Does not change while the graph runs.
#[derive(Debug, Default)]
pub struct GraphShape {
    /// Position of each node in the topological order of the graph.
    pub(crate) rank: Vec<usize>,
    /// Nodes in topological order.
    pub(crate) order: Vec<NodeId>,
    /// For each node, true if it is a fork that assigns sequence numbers to blocks. Such a fork
    /// lies outside all branches that are joined further downstream.
    pub(crate) numbering_forks: Vec<bool>,
    /// True if the operator of at least one node reads bytes.
    pub(crate) reads_bytes: bool,
    /// True if at least one node reads bytes or passes blocks on to another space.
    pub(crate) needs_bytes: bool,
    /// For each source, a bit mask of its outgoing arcs. Bit `i` is set if arc `i` leads only to
    /// sinks, and all of these sinks use the frames in place. 0 for other nodes.
    pub(crate) arcs_in_place: Vec<u64>,
    /// True if at least one node is a filter that edits block by block.
    pub(crate) edits: bool,
    /// Nodes that dispatch blocks to replicas.
    pub(crate) dispatchers: Vec<NodeId>,
    /// For each node that is an operand of an [`OperandSection`](super::operands::OperandSection),
    /// the section; `None` for all other nodes.
    pub(crate) section_of: Vec<Option<NodeId>>,
}
