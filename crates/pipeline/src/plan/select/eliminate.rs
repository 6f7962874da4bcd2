//! Selection for graphs in which branch and bound looks at too much: one node after the other is
//! placed, and of all ways that agree about the nodes at the border only the cheapest is kept.
//!
//! What comes later depends on what came before only by the nodes that have edges to both, so this
//! is exact. A tree has few of them at a time when it is walked branch by branch, however many
//! branches it has. Where there are too many ways all the same, the cheapest are kept, and the
//! result is not called proved.

use super::{Assignment, Search, Try};
use crate::graph::{Graph, NodeId};
use std::collections::HashMap;

/// The most ways stored at once.
const WAYS_MAX: usize = 20_000;

/// A node at the border: the node, its space, the space that reads its output, and true if header
/// offsets are known there.
type Border = Vec<(usize, usize, usize, bool)>;

/// A way to the nodes so far, as the last of its steps.
struct WayStep {
    before: usize,
    id: NodeId,
    made: Try,
}

/// The cheapest way, how many were looked at, and whether no cheaper one exists.
pub(super) fn eliminate(search: &Search<'_>) -> Option<((f64, Assignment), u64, bool)> {
    let graph = search.graph;
    let order = walked(graph);
    let last = last_uses(graph, &order);
    let mut way = Assignment::begin(graph.nodes.len());
    let mut steps: Vec<WayStep> = Vec::new();
    let mut ways: Vec<(Border, f64, usize)> = vec![(Vec::new(), 0.0, usize::MAX)];
    let (mut looked, mut exact) = (0, true);
    for (at, id) in order.iter().enumerate() {
        let mut next: HashMap<Border, (f64, usize)> = HashMap::new();
        for (border, cost, before) in &ways {
            for (node, space, leaves, looked) in border {
                (way.spaces[*node], way.leaves[*node]) = (*space, *leaves);
                way.looked[*node] = *looked;
            }
            for made in search.tries(*id, &way) {
                looked += 1;
                let own = made.own * search.discovered.flows.0[id.0];
                let (look, looked) = search.looks(*id, made.enters, &way);
                let cost = cost + own + search.rings(*id, made.enters, &way) + look;
                let mut border = border.clone();
                border.push((id.0, made.space, made.leaves, looked));
                border.retain(|(node, ..)| last[*node] > at);
                let best = next.entry(border).or_insert((f64::INFINITY, usize::MAX));
                if cost < best.0 {
                    steps.push(WayStep { before: *before, id: *id, made });
                    *best = (cost, steps.len() - 1);
                }
            }
        }
        ways = next.into_iter().map(|(border, (cost, step))| (border, cost, step)).collect();
        ways.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
        exact &= ways.len() <= WAYS_MAX;
        ways.truncate(WAYS_MAX);
    }
    let (_, cost, mut step) = ways.into_iter().next()?;
    while let Some(WayStep { before, id, made }) = steps.get(step) {
        way.spaces[id.0] = made.space;
        (way.enters[id.0], way.leaves[id.0]) = (made.enters, made.leaves);
        step = *before;
    }
    Some(((cost, way), looked, exact))
}

/// The nodes from the sources to the sinks, each branch to its end before the next; operands behind
/// their section.
fn walked(graph: &Graph) -> Vec<NodeId> {
    let coming = |id: NodeId| graph.inputs(id).filter(|edge| !edge.back).count();
    let mut missing: Vec<usize> = graph.ids().map(|(id, _)| coming(id)).collect();
    let ready = |id: &NodeId| graph.node(*id).inside.is_none() && coming(*id) == 0;
    let mut open: Vec<NodeId> = graph.ids().map(|(id, _)| id).filter(ready).collect();
    open.reverse();
    let mut order = Vec::new();
    while let Some(id) = open.pop() {
        order.push(id);
        order.extend(graph.ids().filter(|(_, n)| n.inside == Some(id)).map(|(operand, _)| operand));
        for edge in graph.outputs(id).filter(|edge| !edge.back) {
            missing[edge.to.0] -= 1;
            if missing[edge.to.0] == 0 {
                open.push(edge.to);
            }
        }
    }
    order
}

/// For every node, the place in the order of the last node that must know where it is.
fn last_uses(graph: &Graph, order: &[NodeId]) -> Vec<usize> {
    let mut last = vec![0; graph.nodes.len()];
    for (at, id) in order.iter().enumerate() {
        let before = graph.inputs(*id).filter(|edge| !edge.back).map(|edge| edge.from);
        for known in before.chain(graph.node(*id).inside) {
            last[known.0] = last[known.0].max(at);
        }
    }
    last
}
