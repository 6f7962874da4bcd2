//! The choice of the parent below which a node is shown, if it has several parents.

use super::{NodeKey, PathKey, key_of, node_key};
use std::collections::HashMap;
use streamline::paths::PathView;

/// The parent below which each node of a path is shown, with the index of the arc from that parent;
/// `None` for a source.
pub(super) type Parents = Vec<Option<(usize, usize)>>;

/// Returns the parent below which each node of a path is shown: the parent in `nesting_parents`, as
/// long as an arc leads from that parent to the node, or else the first parent in the text of the
/// request.
pub(super) fn first_parents(view: &PathView, nesting_parents: &NestingParents) -> Parents {
    let nodes = &view.nodes;
    let mut parents: Parents = vec![None; nodes.len()];
    let is_listed = |to: usize| nodes.get(to).is_some_and(|node| !node.implied);
    let mut is_head = vec![true; nodes.len()];
    for arc in nodes.iter().flat_map(|node| &node.arcs).filter(|arc| !arc.back) {
        is_head.get_mut(arc.to).into_iter().for_each(|head| *head = false);
    }
    if !nesting_parents.is_empty() {
        let path = key_of(view);
        for (from, node) in nodes.iter().enumerate() {
            for (number, arc) in node.arcs.iter().enumerate().filter(|(_, arc)| !arc.back) {
                let Some(to) = nodes.get(arc.to).filter(|to| !to.implied) else { continue };
                let parent = nesting_parents.get(&(path, node_key(to)));
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
    // The remaining nodes are not downstream of any source.
    for (from, node) in nodes.iter().enumerate() {
        for (number, arc) in node.arcs.iter().enumerate().filter(|(_, arc)| !arc.back) {
            if let Some(parent) = parents.get_mut(arc.to).filter(|_| is_listed(arc.to)) {
                parent.get_or_insert((from, number));
            }
        }
    }
    parents
}

/// The parent below which each node is shown, and the classes of the arc from that parent.
pub(super) type NestingParents = HashMap<(PathKey, NodeKey), (NodeKey, String)>;

/// Converts the parents of nodes from indexes to identities that stay the same across changes to
/// the request.
pub(super) fn nesting_parents(paths: &[PathView], parents: &[Parents]) -> NestingParents {
    let count = parents.iter().map(Vec::len).sum();
    let mut nesting_parents = NestingParents::with_capacity(count);
    for (view, parents) in paths.iter().zip(parents) {
        for (at, node) in view.nodes.iter().enumerate() {
            let Some((from, number)) = parents[at] else { continue };
            let Some(arc) = view.nodes[from].arcs.get(number) else { continue };
            let nesting_parent = (node_key(&view.nodes[from]), arc.classes.clone());
            nesting_parents.insert((key_of(view), node_key(node)), nesting_parent);
        }
    }
    nesting_parents
}
