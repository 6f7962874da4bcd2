//! Constant shape of a space's graph.

use super::arc::NodeId;

/// Order and roles of the nodes, constant while the graph runs.
#[derive(Debug, Default)]
pub struct Shape {
    /// Position of each node in topological order.
    pub(crate) rank: Vec<usize>,
    /// Nodes in topological order.
    pub(crate) order: Vec<NodeId>,
    /// True, by node, for a fork that lies in no branch that is joined again; such forks number
    /// blocks.
    pub(crate) parts: Vec<bool>,
    /// True if any operator reads bytes.
    pub(crate) reads_bytes: bool,
    /// True if any filter edits block by block.
    pub(crate) edits: bool,
    /// Dispatchers to replicas.
    pub(crate) dispatchers: Vec<NodeId>,
    /// Section of each operand that may hold blocks; `None` for other nodes.
    pub(crate) section_of: Vec<Option<NodeId>>,
}
