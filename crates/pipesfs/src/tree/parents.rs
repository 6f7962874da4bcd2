//! The parent below which each node stands, if it has several.

use super::{NodeKey, PathKey, key_of, node_key};
use std::collections::HashMap;
use streamline::paths::PathView;

/// The first parent of each node of a path, with the index of the arc from that parent.
pub(super) type Parents = Vec<Option<(usize, usize)>>;

/// Returns the parent below which each node stands: the earlier one, as long as it is a parent, or
/// else the first in the text.
pub(super) fn first_parents(view: &PathView, homes: &Homes) -> Parents {
    let nodes = &view.nodes;
    let mut parents: Parents = vec![None; nodes.len()];
    let is_listed = |to: usize| nodes.get(to).is_some_and(|node| !node.implied);
    let mut is_head = vec![true; nodes.len()];
    for arc in nodes.iter().flat_map(|node| &node.arcs).filter(|arc| !arc.back) {
        is_head.get_mut(arc.to).into_iter().for_each(|head| *head = false);
    }
    if !homes.is_empty() {
        let path = key_of(view);
        for (from, node) in nodes.iter().enumerate() {
            for (number, arc) in node.arcs.iter().enumerate().filter(|(_, arc)| !arc.back) {
                let Some(to) = nodes.get(arc.to).filter(|to| !to.implied) else { continue };
                let home = homes.get(&(path, node_key(to)));
                if home.is_some_and(|home| *home == (node_key(node), arc.classes.clone())) {
                    parents[arc.to].get_or_insert((from, number));
                }
            }
        }
    }
    let mut visited = vec![false; nodes.len()];
    // Depth first, as the request is written: a parent that is added later stands behind.
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
    // Nodes to which no source leads.
    for (from, node) in nodes.iter().enumerate() {
        for (number, arc) in node.arcs.iter().enumerate().filter(|(_, arc)| !arc.back) {
            if let Some(parent) = parents.get_mut(arc.to).filter(|_| is_listed(arc.to)) {
                parent.get_or_insert((from, number));
            }
        }
    }
    parents
}

/// The parent below which each node stands, and the classes of the arc.
pub(super) type Homes = HashMap<(PathKey, NodeKey), (NodeKey, String)>;

/// Returns the parents below which the nodes of these paths stand.
pub(super) fn homes(paths: &[PathView], parents: &[Parents]) -> Homes {
    let mut homes = Homes::new();
    for (view, parents) in paths.iter().zip(parents) {
        for (at, node) in view.nodes.iter().enumerate() {
            let Some((from, number)) = parents[at] else { continue };
            let Some(arc) = view.nodes[from].arcs.get(number) else { continue };
            let home = (node_key(&view.nodes[from]), arc.classes.clone());
            homes.insert((key_of(view), node_key(node)), home);
        }
    }
    homes
}
