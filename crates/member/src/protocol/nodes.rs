//! The details of a path's nodes, for programs that display the entire path.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Parameters of `Nodes`, which returns details of the path's nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodesParameters {
    /// Index of the first node to return; the default is 0.
    pub first: Option<usize>,
    /// Version of the nodes that the caller already has, or `None` if the caller has none. If this
    /// is the current version, the reply contains no nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known: Option<u64>,
}

/// Reply to `Nodes`: consecutive nodes of the path's plan, as many as fit into a reply.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodesReply {
    /// Version of the path's nodes and request, unique on this machine. Each change to the path
    /// assigns a new version. `None` if the path has no plan that can be described.
    pub version: Option<u64>,
    /// Text of the request that the path runs; empty if the caller already has this version.
    pub line: String,
    /// Details of these nodes, in the order of the plan.
    pub nodes: Vec<NodeDetails>,
    /// Index of the first node for the next call, or `None` if there are no more nodes.
    pub next: Option<usize>,
}

/// The nodes of a path's plan after a change.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ChangedNodes {
    /// Version of the path's nodes and request after the change, as in [`NodesReply`].
    pub version: Option<u64>,
    /// Text of the request that the path runs.
    pub line: String,
    /// Details of the nodes after the change, in plan order. If `kept` is given, only the nodes
    /// that the caller does not have yet.
    pub nodes: Vec<NodeDetails>,
    /// For each node of the new plan, the index of the same node in the version that the caller
    /// has. The value -1 stands for the next element of `nodes`. `None` if `nodes` contains all
    /// nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Vec<i64>>,
    /// New names and arcs of nodes in `kept`, for each node whose name or arcs differ from the
    /// version that the caller has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patches: Option<Vec<NodePatch>>,
    /// Index of the first node that the reply has no room for; `None` if it has room for all.
    pub next: Option<usize>,
}

/// The difference between two versions of a node that differ only in their names and arcs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodePatch {
    /// Index of the node in the new plan.
    pub node: usize,
    /// New name of the node; `None` if the name is unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// New outgoing arcs of the node; `None` if the arcs are unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arcs: Option<Vec<NodeArc>>,
}

impl ChangedNodes {
    /// Returns all nodes of the path after the change, in plan order. `known` are the nodes that
    /// the caller has, in the version that it sent in the call. Returns `None` if a node is neither
    /// in the reply nor in `known`.
    #[must_use]
    pub fn all_nodes(self, known: &[Arc<NodeDetails>]) -> Option<Vec<Arc<NodeDetails>>> {
        if self.version.is_none() || self.next.is_some() {
            return None;
        }
        let mut new = self.nodes.into_iter().map(Arc::new);
        let Some(kept) = self.kept else { return Some(new.collect()) };
        let node = |kept: i64| match usize::try_from(kept) {
            Ok(at) => known.get(at).map(Arc::clone),
            Err(_) => new.next(),
        };
        let mut nodes = kept.into_iter().map(node).collect::<Option<Vec<_>>>()?;
        for NodePatch { node, name, arcs } in self.patches.into_iter().flatten() {
            let node = Arc::make_mut(nodes.get_mut(node)?);
            name.into_iter().for_each(|name| node.name = name);
            arcs.into_iter().for_each(|arcs| node.arcs = arcs);
        }
        new.next().is_none().then_some(nodes)
    }
}

/// A node of a plan, with its arguments, arcs and placement.
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
    /// Index of the Boolean section in which the node is an operand, or `None` for any other node;
    /// an operand has no arcs.
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

/// An argument of a filter, as text.
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
    /// Index of the node to which the arc leads.
    pub to: usize,
    /// Classes that pass over the arc, as written in the request; empty for a plain pipe.
    pub classes: String,
    /// True if the arc closes a cycle.
    pub back: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> NodeDetails {
        NodeDetails { name: name.to_owned(), ..NodeDetails::default() }
    }

    fn all_names(reply: ChangedNodes) -> Option<String> {
        let known = ["udp", "sample", "count"].map(|name| Arc::new(named(name)));
        let nodes = reply.all_nodes(&known)?;
        Some(nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn b4_kept_and_changed_nodes_yield_all_nodes_in_order() {
        let reply = |nodes: &[&str], kept: Option<Vec<i64>>| ChangedNodes {
            version: Some(1),
            nodes: nodes.iter().map(|name| named(name)).collect(),
            kept,
            ..ChangedNodes::default()
        };
        let kept = vec![0, -1, 2, -1];
        let changed = reply(&["inspect", "discard"], Some(kept.clone()));
        assert_eq!(all_names(changed).as_deref(), Some("udp inspect count discard"));
        assert_eq!(all_names(reply(&["a", "b"], None)).as_deref(), Some("a b"));
        assert_eq!(all_names(reply(&[], Some(vec![2, 0]))).as_deref(), Some("count udp"));
        assert_eq!(all_names(reply(&["inspect"], Some(kept.clone()))), None, "too few");
        assert_eq!(all_names(reply(&["a", "b", "c"], Some(kept))), None, "too many");
        assert_eq!(all_names(reply(&[], Some(vec![3]))), None, "an index that nobody has");
        assert_eq!(all_names(reply(&[], Some(vec![i64::MIN]))), None);
        assert_eq!(all_names(ChangedNodes { next: Some(1), ..reply(&["a"], None) }), None);
        assert_eq!(all_names(ChangedNodes { version: None, ..reply(&["a"], None) }), None);
        let patch = |node: usize, name: &str| ChangedNodes {
            patches: Some(vec![NodePatch { node, name: Some(name.to_owned()), arcs: None }]),
            ..reply(&["a"], Some(vec![0, -1, 2]))
        };
        assert_eq!(all_names(patch(2, "count#1")).as_deref(), Some("udp a count#1"));
        assert_eq!(all_names(patch(3, "count#1")), None, "a node that the plan does not have");
    }
}
