//! Selection: the cheapest placement of all, found exactly. [SL §7.1]
//!
//! Branch and bound over the nodes from the sources to the sinks. A placement is legal if no edge
//! turns back (the number of the space never falls) and operands run where their section runs. The
//! bound is the cost so far plus the least that every node still to come costs anywhere. The
//! sources' greedy rule (`deepest`) is the first placement that the same search finds when every
//! node tries its deepest space first.

use super::discover::Discovered;
use super::{Choice, Machine, Policy, Unplaceable};
use crate::graph::{Graph, NodeId};

/// How many placements are looked at before the best so far is taken without a proof.
const STEPS_MAX: u64 = 200_000;

/// A placement.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Selected {
    /// The space of every node.
    pub(super) spaces: Vec<usize>,
    /// How it was found.
    pub(super) choice: Choice,
}

struct Search<'s> {
    graph: &'s Graph,
    discovered: &'s Discovered,
    crossing: f64,
    policy: Policy,
    /// Nodes from the sources to the sinks.
    order: Vec<NodeId>,
    /// For every position in `order`, the least that the nodes from there on cost.
    least: Vec<f64>,
    best: Option<(f64, Vec<usize>)>,
    steps: u64,
}

/// Places all nodes.
pub(super) fn select(
    graph: &Graph,
    discovered: &Discovered,
    machine: &Machine,
    policy: Policy,
) -> Result<Selected, Unplaceable> {
    let order = order(graph);
    let cheapest = |id: &NodeId| {
        let costs = discovered.verdicts[id.0].iter().filter_map(|v| v.as_ref().ok());
        costs.copied().fold(f64::INFINITY, f64::min)
    };
    let mut least = vec![0.0; order.len() + 1];
    for (i, id) in order.iter().enumerate().rev() {
        least[i] = least[i + 1] + cheapest(id);
    }
    if let Some(id) = order.iter().find(|id| cheapest(id).is_infinite()) {
        return Err(unplaceable(graph, discovered, *id));
    }
    let crossing = machine.costs.ring + machine.costs.wake / 32.0;
    let mut search =
        Search { graph, discovered, crossing, policy, order, least, best: None, steps: 0 };
    let mut spaces = vec![usize::MAX; graph.nodes.len()];
    search.place(0, 0.0, &mut spaces);
    let (steps, proved) = (search.steps, search.steps < STEPS_MAX);
    match search.best {
        Some((cost_ns, spaces)) => {
            let choice = Choice { policy, cost_ns, looked_at: steps, proved };
            Ok(Selected { spaces, choice })
        }
        None => {
            let last = search.order.last().copied().unwrap_or(NodeId(0));
            Err(unplaceable(graph, discovered, last))
        }
    }
}

impl Search<'_> {
    fn place(&mut self, at: usize, cost: f64, spaces: &mut Vec<usize>) {
        self.steps += 1;
        let Some(id) = self.order.get(at).copied() else {
            if self.best.as_ref().is_none_or(|(best, _)| cost < *best) {
                self.best = Some((cost, spaces.clone()));
            }
            return;
        };
        for (space, own) in self.tries(id, spaces) {
            let more = own + self.crossings(id, space, spaces);
            let bound = cost + more + self.least[at + 1];
            let worse = self.best.as_ref().is_some_and(|(best, _)| bound >= *best);
            // The greedy rule takes the first legal placement: deepest first.
            let settled = self.policy == Policy::Deepest && self.best.is_some();
            if worse || settled || self.steps >= STEPS_MAX && self.best.is_some() {
                continue;
            }
            spaces[id.0] = space;
            self.place(at + 1, cost + more, spaces);
            spaces[id.0] = usize::MAX;
        }
    }

    /// The spaces that may run a node, given where the nodes before it run; cheapest (or deepest)
    /// first.
    fn tries(&self, id: NodeId, spaces: &[usize]) -> Vec<(usize, f64)> {
        let node = self.graph.node(id);
        let before = self.graph.inputs(id).filter(|edge| !edge.back);
        let floor = before.map(|edge| spaces[edge.from.0]).max().unwrap_or(0);
        let together = node.inside.map(|owner| spaces[owner.0]);
        let legal = |(space, _): &(usize, f64)| {
            *space >= floor && together.is_none_or(|owner| owner == *space)
        };
        let verdicts = self.discovered.verdicts[id.0].iter().enumerate();
        let mut tries: Vec<(usize, f64)> =
            verdicts.filter_map(|(s, v)| Some((s, *v.as_ref().ok()?))).filter(legal).collect();
        if self.policy == Policy::Cost {
            tries.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        }
        tries
    }

    fn crossings(&self, id: NodeId, space: usize, spaces: &[usize]) -> f64 {
        let before = self.graph.inputs(id).filter(|edge| !edge.back);
        let crossed = before.filter(|edge| spaces[edge.from.0] != space).count();
        self.crossing * f64::from(u32::try_from(crossed).unwrap_or(u32::MAX))
    }
}

/// The nodes from the sources to the sinks, operands behind their section.
fn order(graph: &Graph) -> Vec<NodeId> {
    let mut missing: Vec<usize> =
        graph.ids().map(|(id, _)| graph.inputs(id).filter(|edge| !edge.back).count()).collect();
    let outer = |id: &NodeId| graph.node(*id).inside.is_none();
    let mut order: Vec<NodeId> = graph.ids().map(|(id, _)| id).filter(outer).collect();
    order.retain(|id| missing[id.0] == 0);
    let mut next = 0;
    while let Some(id) = order.get(next).copied() {
        next += 1;
        for edge in graph.outputs(id).filter(|edge| !edge.back) {
            missing[edge.to.0] -= 1;
            if missing[edge.to.0] == 0 {
                order.push(edge.to);
            }
        }
    }
    let operands: Vec<NodeId> = graph.ids().map(|(id, _)| id).filter(|id| !outer(id)).collect();
    order.extend(operands);
    order
}

fn unplaceable(graph: &Graph, discovered: &Discovered, id: NodeId) -> Unplaceable {
    let part = discovered.parts[id.0];
    let refusals = discovered
        .spaces
        .iter()
        .zip(&discovered.verdicts[id.0])
        .filter(|(space, _)| space.part == part)
        .map(|(space, verdict)| {
            let why = verdict.as_ref().err().cloned();
            (
                space.name.clone(),
                why.unwrap_or_else(|| "the path would have to turn back".to_owned()),
            )
        })
        .collect();
    Unplaceable { node: id, name: graph.node(id).name().to_owned(), refusals }
}
