//! The identity of nodes across hot swaps.

use super::arc::NodeId;
use super::input::Input;
use super::node::{Node, Operator};

/// The identity of a node across hot swaps: the number of a node or edge of the plan, which stays
/// the same for the path's lifetime, unlike an index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NodeKey {
    /// A node of the request, by its node number. For a program (`exec`), this is the node that
    /// writes the program's input.
    Node(usize),
    /// The node that reads the output of the program with this node number.
    ProgramOutput(usize),
    /// The node at the writing end of a ring, by the number of the ring's edge.
    Export(usize),
    /// The node at the reading end of a ring, by the number of the ring's edge.
    Import(usize),
}

/// Returns the identity of each node, by node index.
pub fn node_keys(nodes: &[Node], inputs: &[Input]) -> Vec<NodeKey> {
    let import = |at: NodeId| {
        inputs.iter().find_map(|input| match input {
            Input::Ring { node, import, .. } if *node == at => {
                Some(NodeKey::Import(import.planned))
            }
            _ => None,
        })
    };
    let key = |(at, node): (NodeId, &Node)| match &node.operator {
        Operator::Source(_)
            if node.exec_process().is_some_and(|program| !program.is_first_in_request()) =>
        {
            NodeKey::ProgramOutput(node.number)
        }
        Operator::Export(export) => NodeKey::Export(export.planned),
        _ => import(at).unwrap_or(NodeKey::Node(node.number)),
    };
    nodes.iter().enumerate().map(key).collect()
}
