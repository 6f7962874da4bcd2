//! The details of a path's nodes, for programs that display the entire path.

use serde::{Deserialize, Serialize};

/// Parameters of `Nodes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nodes {
    /// Index of the first node to return; the default is 0.
    pub first: Option<usize>,
    /// Version of the nodes that the caller already has. If it is the current version, the reply
    /// contains no nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known: Option<u64>,
}

/// Reply to `Nodes`: consecutive nodes of the path's plan, as many as fit into a reply.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodesReply {
    /// Version of the nodes and of the text, unique on this machine. Each change assigns a new
    /// version. `None` if the path has no plan that can be described.
    pub version: Option<u64>,
    /// Text of the request that the path runs; empty if the caller already has this version.
    pub line: String,
    /// Nodes, in plan order.
    pub nodes: Vec<NodeDetails>,
    /// Index of the first node for the next call, or `None` if there are no more nodes.
    pub next: Option<usize>,
}

/// A node of a plan.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeDetails {
    /// Number that the node keeps when the request is changed, or `None` if several processes run
    /// the path.
    pub id: Option<u64>,
    /// Name of the node, unique in the plan.
    pub name: String,
    /// Name of the filter in the catalog; empty for a Boolean section or a merge of sources.
    pub filter: String,
    /// True if the node is a sink that the request does not contain.
    pub implied: bool,
    /// Index of the Boolean section in which the node is an operand; an operand has no arcs.
    pub inside: Option<usize>,
    /// Arguments of the filter, including defaults.
    pub arguments: Vec<Argument>,
    /// Form of the blocks that leave the node, such as `frame`; empty for a sink.
    pub form: String,
    /// Space that runs the node.
    pub space: String,
    /// Spaces of all replicas of the node, including its own; empty if there are no replicas.
    pub copies: Vec<String>,
    /// Reason why the node runs in its space.
    pub because: String,
    /// Other spaces, each with the reason why the node does not run there.
    pub elsewhere: Vec<String>,
    /// Outgoing arcs of the node.
    pub arcs: Vec<NodeArc>,
}

/// An argument of a filter.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Argument {
    /// Name of the parameter.
    pub name: String,
    /// Value, in the syntax of a request but without quotes.
    pub value: String,
    /// True if the parameter is required, or is positional and its value differs from the default.
    pub given: bool,
    /// True if the value can be changed while the filter runs.
    pub writable: bool,
}

/// An outgoing arc of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeArc {
    /// Index of the downstream node.
    pub to: usize,
    /// Classes that pass over the arc, as written in the request; empty for a plain pipe.
    pub classes: String,
    /// True if the arc closes a cycle.
    pub back: bool,
}
