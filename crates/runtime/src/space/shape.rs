//! Constant shape of a space's graph.

use super::arc::NodeId;

/// Order and roles of the nodes, constant while the graph runs.
#[derive(Debug, Default)]
pub struct Shape {
    /// Position of each node in topological order.
    pub(crate) rank: Vec<usize>,
    /// Nodes in topological order.
    pub(crate) order: Vec<NodeId>,
    /// True, by node, for forks outside of every branch that is joined again; blocks are numbered
    /// there.
    pub(crate) parts: Vec<bool>,
    /// True if any operator reads bytes.
    pub(crate) looks: bool,
    /// True if any filter edits block by block.
    pub(crate) edits: bool,
    /// Dispatchers to replicas.
    pub(crate) dispatchers: Vec<NodeId>,
    /// Section of each operand that may hold blocks; `None` for other nodes.
    pub(crate) asked_by: Vec<Option<NodeId>>,
}
