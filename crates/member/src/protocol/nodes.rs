//! The details of a path's nodes, for programs that show the entire path.

use serde::{Deserialize, Serialize};

/// Parameters of `Nodes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nodes {
    /// Index of the first node to return, by default 0.
    pub first: Option<usize>,
    /// Version of the nodes that the caller knows. If it is current, the reply has no nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known: Option<u64>,
}

/// Reply to `Nodes`: consecutive nodes of the path's plan, as many as fit into a reply.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodesReply {
    /// Version of the nodes and of the text, which is unique on this machine. It differs after
    /// each change. `None` if the path has no plan to describe.
    pub version: Option<u64>,
    /// Text of the request that the path runs; empty if the caller knows the version.
    pub line: String,
    /// Nodes in the order of the plan.
    pub nodes: Vec<NodeDetails>,
    /// Index of the first node of the next call, or `None` if there are no more nodes.
    pub next: Option<usize>,
}

/// A node of a plan.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeDetails {
    /// Number that the node keeps through all changes to the request, or `None` if several
    /// processes run the path.
    pub id: Option<u64>,
    /// Name of the node, unique in the plan.
    pub name: String,
    /// Name of the filter in the catalog; empty for a Boolean section or a merge of sources.
    pub filter: String,
    /// True if the node is a sink that the request does not contain.
    pub implied: bool,
    /// Index of the Boolean section that has the node as an operand; an operand has no arcs.
    pub inside: Option<usize>,
    /// Arguments of the filter, including defaults.
    pub arguments: Vec<Argument>,
    /// Form of the blocks that leave the node, such as `frame`; empty for a sink.
    pub form: String,
    /// Space that runs the node.
    pub space: String,
    /// Spaces of all replicas of the node, including its own; empty if there are no replicas.
    pub copies: Vec<String>,
    /// Reason for the placement.
    pub because: String,
    /// Other spaces, each with the reason why the node does not run there.
    pub elsewhere: Vec<String>,
    /// Arcs that leave the node.
    pub arcs: Vec<NodeArc>,
}

/// An argument of a filter.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Argument {
    /// Name of the parameter.
    pub name: String,
    /// Value, as written in a request but without quotes.
    pub value: String,
    /// True if the value distinguishes this filter from others of its name.
    pub given: bool,
    /// True if the value can be changed while the filter runs.
    pub writable: bool,
}

/// An arc that leaves a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeArc {
    /// Index of the downstream node.
    pub to: usize,
    /// Classes that pass, as written in the request; empty for a plain pipe.
    pub classes: String,
    /// True if the arc closes a cycle.
    pub back: bool,
}
