//! Choice of the parent directory for nodes with several parents.

use super::{NodeKey, node_key};
use std::collections::HashMap;
use std::sync::Arc;
use streamline::paths::{NodeDetails, PathView};

/// For each node of a path, the parent below which the node has its directory: the index of the
/// parent node, and the index of the arc from the parent. `None` for a source.
pub(super) type Parents = Vec<Option<(usize, usize)>>;

/// Returns, for each node of a path, the parent below which the node has its directory. `before` is
/// an earlier view of the path. A node keeps its parent of the earlier view as long as an arc leads
/// from that parent to the node. Otherwise, it gets the first parent in the text of the request.
pub(super) fn first_parents<'t>(
    view: &PathView,
    before: impl FnOnce() -> Option<(&'t PathView, &'t Parents)>,
) -> Parents {
    let nodes = &view.nodes;
    let mut parents: Parents = vec![None; nodes.len()];
    let is_listed = |to: usize| nodes.get(to).is_some_and(|node| !node.implied);
    let mut is_head = vec![true; nodes.len()];
    let mut is_choice = false;
    for arc in nodes.iter().flat_map(|node| &node.arcs).filter(|arc| !arc.back) {
        if let Some(head) = is_head.get_mut(arc.to) {
            is_choice |= !std::mem::replace(head, false);
        }
    }
    if let Some((before, parents_before)) = is_choice.then(before).flatten() {
        let nesting_parents = nesting_parents(before, parents_before);
        for (from, node) in nodes.iter().enumerate() {
            for (number, arc) in node.arcs.iter().enumerate().filter(|(_, arc)| !arc.back) {
                let Some(to) = nodes.get(arc.to).filter(|to| !to.implied) else { continue };
                let parent = nesting_parents.get(&node_key(to));
                if parent.is_some_and(|it| *it == (node_key(node), arc.classes.clone())) {
                    parents[arc.to].get_or_insert((from, number));
                }
            }
        }
    }
    let mut visited = vec![false; nodes.len()];
    // The search is depth-first, in the order of the request's text.
    let mut open: Vec<(usize, usize)> = Vec::new();
    open.extend((0..nodes.len()).rev().filter(|at| is_head[*at]).map(|at| (at, 0)));
    while let Some((from, number)) = open.pop() {
        let Some(arc) = nodes[from].arcs.get(number) else { continue };
        open.push((from, number + 1));
        if arc.back || !is_listed(arc.to) || visited[arc.to] || is_head[arc.to] {
            continue;
        }
        if *parents[arc.to].get_or_insert((from, number)) == (from, number) {
            visited[arc.to] = true;
            open.push((arc.to, 0));
        }
    }
    // The remaining nodes are not downstream of any source; each gets the first node with an arc to
    // it.
    for (from, node) in nodes.iter().enumerate() {
        for (number, arc) in node.arcs.iter().enumerate().filter(|(_, arc)| !arc.back) {
            if let Some(parent) = parents.get_mut(arc.to).filter(|_| is_listed(arc.to)) {
                parent.get_or_insert((from, number));
            }
        }
    }
    parents
}

/// For each node of a path, the parent below which the node has its directory, and the classes of
/// the arc from this parent. Nodes are given by their identities.
type NestingParents = HashMap<NodeKey, (NodeKey, String)>;

/// Converts the parents of nodes from indexes to identities, which stay the same when the request
/// is edited.
fn nesting_parents(view: &PathView, parents: &Parents) -> NestingParents {
    let mut nesting_parents = NestingParents::with_capacity(parents.len());
    for (node, parent) in view.nodes.iter().zip(parents) {
        let Some((from, number)) = *parent else { continue };
        let Some(from) = view.nodes.get(from) else { continue };
        let Some(arc) = from.arcs.get(number) else { continue };
        nesting_parents.insert(node_key(node), (node_key(from), arc.classes.clone()));
    }
    nesting_parents
}

/// Returns the nodes without a parent, except operands and nodes that the request does not contain.
pub(super) fn top_nodes(nodes: &[Arc<NodeDetails>], parents: &Parents) -> Vec<usize> {
    let top = |at: &usize| {
        let node = &nodes[*at];
        parents[*at].is_none() && node.inside.is_none() && !node.implied
    };
    (0..nodes.len()).filter(top).collect()
}
