//! Selection by node elimination, for graphs that are too large for branch and bound.
//!
//! Nodes are placed one after another. The border consists of the placed nodes on which later costs
//! depend. Among partial placements that agree on the border, only the cheapest is kept. Since
//! later costs depend on no other placed nodes, the result is exact. The border of a tree is small,
//! regardless of the number of branches, because they are traversed one by one. If there are still
//! too many partial placements, only the cheapest are kept, and the result is not exact.

use super::{Assignment, LegalSpace, PlacementSearch};
use crate::graph::{Graph, NodeId};
use std::collections::HashMap;

/// The maximum number of partial placements that the search stores at a time.
const PARTIAL_PLACEMENTS_MAX: usize = 20_000;

/// The border of a partial placement: the placed nodes on which later costs depend. For each node,
/// contains its space, the space that reads its output, and true if its header offsets are known.
type BorderNodes = Vec<(usize, usize, usize, bool)>;

/// A step of a partial placement, which places one node. `before` is the index of the step that
/// placed the previous node. The last step thus represents the entire partial placement.
struct SearchStep {
    before: usize,
    id: NodeId,
    made: LegalSpace,
}

/// Searches for the cheapest placement. Returns this placement and its cost, the number of
/// candidates examined, and true if no placement can be cheaper. Returns `None` if no placement is
/// legal.
pub(super) fn search_by_elimination(
    search: &PlacementSearch<'_>,
) -> Option<((f64, Assignment), u64, bool)> {
    let graph = search.graph;
    let order = graph.stream_order();
    let last = last_dependent_positions(graph, &order);
    let mut assignment = Assignment::unplaced(graph.nodes.len());
    let mut steps: Vec<SearchStep> = Vec::new();
    let mut candidates: Vec<(BorderNodes, f64, usize)> = vec![(Vec::new(), 0.0, usize::MAX)];
    let (mut examined, mut exact) = (0, true);
    for (at, id) in order.iter().enumerate() {
        let mut next: HashMap<BorderNodes, (f64, usize)> = HashMap::new();
        for (border, cost, before) in &candidates {
            for (node, space, output_space, headers_known) in border {
                (assignment.spaces[*node], assignment.output_spaces[*node]) =
                    (*space, *output_space);
                assignment.headers_known[*node] = *headers_known;
            }
            for made in search.legal_spaces(*id, &assignment) {
                examined += 1;
                let own = made.own * search.discovery.flows.0[id.0];
                let (look, headers_known) = search.header_cost(*id, made.input_space, &assignment);
                let cost = cost + own + search.ring_cost(*id, made.input_space, &assignment) + look;
                let mut border = border.clone();
                border.push((id.0, made.space, made.output_space, headers_known));
                border.retain(|(node, ..)| last[*node] > at);
                let best = next.entry(border).or_insert((f64::INFINITY, usize::MAX));
                if cost < best.0 {
                    steps.push(SearchStep { before: *before, id: *id, made });
                    *best = (cost, steps.len() - 1);
                }
            }
        }
        candidates = next.into_iter().map(|(border, (cost, step))| (border, cost, step)).collect();
        candidates.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
        exact &= candidates.len() <= PARTIAL_PLACEMENTS_MAX;
        candidates.truncate(PARTIAL_PLACEMENTS_MAX);
    }
    let (_, cost, mut step) = candidates.into_iter().next()?;
    while let Some(SearchStep { before, id, made }) = steps.get(step) {
        assignment.spaces[id.0] = made.space;
        (assignment.input_spaces[id.0], assignment.output_spaces[id.0]) =
            (made.input_space, made.output_space);
        step = *before;
    }
    Some(((cost, assignment), examined, exact))
}

/// Returns, for every node, how long the placement search must remember the node's placement: the
/// last position in `order` whose cost depends on it.
fn last_dependent_positions(graph: &Graph, order: &[NodeId]) -> Vec<usize> {
    let mut last = vec![0; graph.nodes.len()];
    for (at, id) in order.iter().enumerate() {
        let before = graph.inputs(*id).filter(|edge| !edge.back).map(|edge| edge.from);
        for known in before.chain(graph.node(*id).inside) {
            last[known.0] = last[known.0].max(at);
        }
    }
    last
}
