//! Selection: the cheapest placement of all, found exactly. [SL §7.1]
//!
//! Branch and bound over the nodes from the sources to the sinks. A placement is legal if no edge
//! turns back (the number of the space never falls) and operands run where their section runs. A
//! process lies between two threads: behind it the path goes on in the next thread at least. The
//! bound is the cost so far plus the least that every node still to come costs anywhere. The
//! sources' greedy rule (`deepest`) is the first placement that the same search finds when every
//! node tries its deepest space first.
//! Where that takes too long, the nodes are eliminated one by one, which is exact too
//! ([`eliminate`]).

mod eliminate;

use super::discover::{Discovered, FIRST};
use super::{Choice, Machine, Policy, SpaceKind, Unplaceable};
use crate::graph::{Graph, NodeId};

/// The most placements examined before elimination takes over.
const STEPS_MAX: u64 = 200_000;

/// A placement.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Selected {
    /// The space of every node.
    pub(super) spaces: Vec<usize>,
    /// The space that hands every node what comes.
    pub(super) enters: Vec<usize>,
    /// The space that takes up what every node gives.
    pub(super) leaves: Vec<usize>,
    /// The way it was found.
    pub(super) choice: Choice,
}

struct Search<'s> {
    graph: &'s Graph,
    discovered: &'s Discovered,
    crossing: f64,
    leaving: f64,
    /// The same of what was taken from the host.
    led: f64,
    /// Finding out where headers begin: in a program, and elsewhere.
    look: (f64, f64),
    policy: Policy,
    /// Nodes from the sources to the sinks.
    order: Vec<NodeId>,
    /// For every position in `order`, the least that the nodes from there on cost.
    least: Vec<f64>,
    best: Option<(f64, Assignment)>,
    steps: u64,
    /// The most nodes placed before one had no space.
    furthest: usize,
}

/// A placement that is being made; `usize::MAX` where nothing has been placed.
#[derive(Debug, Clone)]
struct Assignment {
    spaces: Vec<usize>,
    enters: Vec<usize>,
    leaves: Vec<usize>,
    /// True, by node, if the offsets of headers are known in all that leaves it.
    looked: Vec<bool>,
}

impl Assignment {
    /// Nothing has been placed of so many nodes.
    fn begin(nodes: usize) -> Self {
        let nowhere = vec![usize::MAX; nodes];
        let (enters, leaves) = (nowhere.clone(), nowhere.clone());
        Self { spaces: nowhere, enters, leaves, looked: vec![false; nodes] }
    }
}

/// Places all nodes.
pub(super) fn select(
    graph: &Graph,
    discovered: &Discovered,
    machine: &Machine,
    policy: Policy,
) -> Result<Selected, Unplaceable> {
    let mut search = Search::new(graph, discovered, machine, policy);
    if let Some(id) = search.order.iter().find(|id| cheapest(discovered, **id).is_infinite()) {
        return Err(unplaceable(graph, discovered, *id));
    }
    search.place(0, 0.0, &mut Assignment::begin(graph.nodes.len()));
    let (mut steps, mut proved) = (search.steps, search.steps < STEPS_MAX);
    let mut best = search.best.take();
    if !proved
        && (policy == Policy::Cost || best.is_none())
        && let Some((found, looked, exact)) = eliminate::eliminate(&search)
    {
        // What is not exact may have lost the better one.
        best = best.filter(|(cost, _)| !exact && *cost < found.0).or(Some(found));
        (steps, proved) = (steps + looked, exact);
    }
    match best {
        Some((cost_ns, Assignment { spaces, enters, leaves, .. })) => {
            let choice = Choice { policy, cost_ns, looked_at: steps, proved };
            Ok(Selected { spaces, enters, leaves, choice })
        }
        None => {
            let stuck = search.order.get(search.furthest).copied().unwrap_or(NodeId(0));
            Err(unplaceable(graph, discovered, stuck))
        }
    }
}

/// Returns the cost of the cheapest placement, if there is any.
pub(super) fn least(graph: &Graph, discovered: &Discovered, machine: &Machine) -> Option<f64> {
    let search = Search::new(graph, discovered, machine, Policy::Cost);
    eliminate::eliminate(&search).map(|((cost, _), ..)| cost)
}

impl<'s> Search<'s> {
    fn new(
        graph: &'s Graph,
        discovered: &'s Discovered,
        machine: &Machine,
        policy: Policy,
    ) -> Self {
        let order = order(graph);
        let mut least = vec![0.0; order.len() + 1];
        for (i, id) in order.iter().enumerate().rev() {
            least[i] = least[i + 1] + cheapest(discovered, *id);
        }
        let (crossing, leaving) = (machine.costs.crossing(), machine.costs.leaving());
        Self {
            graph,
            discovered,
            crossing,
            leaving,
            led: machine.costs.led,
            look: (machine.costs.twin_look, machine.costs.look),
            policy,
            order,
            least,
            best: None,
            steps: 0,
            furthest: 0,
        }
    }

    fn place(&mut self, at: usize, cost: f64, way: &mut Assignment) {
        self.steps += 1;
        self.furthest = self.furthest.max(at);
        let Some(id) = self.order.get(at).copied() else {
            if self.best.as_ref().is_none_or(|(best, _)| cost < *best) {
                self.best = Some((cost, way.clone()));
            }
            return;
        };
        for Try { space, own, enters, leaves } in self.tries(id, way) {
            let (look, looked) = self.looks(id, enters, way);
            let more = own * self.discovered.flows.0[id.0] + self.rings(id, enters, way) + look;
            let bound = cost + more + self.least[at + 1];
            let worse = self.best.as_ref().is_some_and(|(best, _)| bound >= *best);
            // The greedy rule takes the first legal placement: deepest first.
            let settled = self.policy == Policy::Deepest && self.best.is_some();
            let enough = self.best.is_some() || self.steps >= 4 * STEPS_MAX;
            if worse || settled || self.steps >= STEPS_MAX && enough {
                continue;
            }
            (way.spaces[id.0], way.enters[id.0], way.leaves[id.0]) = (space, enters, leaves);
            way.looked[id.0] = looked;
            self.place(at + 1, cost + more, way);
        }
    }

    /// The spaces that may run a node, given where the nodes before it run; cheapest (or deepest)
    /// first.
    fn tries(&self, id: NodeId, way: &Assignment) -> Vec<Try> {
        let node = self.graph.node(id);
        let before = self.graph.inputs(id).filter(|edge| !edge.back);
        let floor = before.map(|edge| way.leaves[edge.from.0]).max();
        let together = node.inside.map(|owner| way.spaces[owner.0]);
        let verdicts = self.discovered.verdicts[id.0].iter().enumerate();
        let possible = verdicts.filter_map(|(s, v)| Some((s, *v.as_ref().ok()?)));
        let mut tries: Vec<Try> = possible
            .filter_map(|(space, own)| {
                if node.is_process() {
                    let (enters, leaves) = self.around(space, floor, self.goes_on(id))?;
                    return Some(Try { space, own, enters, leaves });
                }
                let legal = floor.is_none_or(|floor| space >= floor)
                    && together.is_none_or(|owner| owner == space);
                legal.then_some(Try { space, own, enters: space, leaves: space })
            })
            .collect();
        if self.policy == Policy::Cost {
            tries.sort_by(|a, b| a.own.total_cmp(&b.own).then(a.space.cmp(&b.space)));
        }
        tries
    }

    /// The threads on the two sides of a process: the last that something comes from, and the one
    /// behind that, or the first of all; nothing if there is none. What comes out of the kernel
    /// comes up in the first. Where there is only one side, it stands for both.
    fn around(&self, process: usize, last: Option<usize>, goes_on: bool) -> Option<(usize, usize)> {
        let spaces = &self.discovered.spaces;
        let is_next = |place: &usize| {
            let space = &spaces[*place];
            space.kind == SpaceKind::Thread && space.part == spaces[process].part
        };
        let first = (0..spaces.len()).find(is_next);
        let last = match last {
            Some(last) if spaces[last].kind == SpaceKind::Kernel => first,
            last => last,
        };
        match last {
            Some(last) if !goes_on => Some((last, last)),
            Some(last) => Some((last, (last + 1..spaces.len()).find(is_next)?)),
            None => first.map(|first| (first, first)),
        }
    }

    /// Returns true if a node follows this one.
    fn goes_on(&self, id: NodeId) -> bool {
        self.graph.outputs(id).next().is_some()
    }

    /// Returns the cost of finding headers in a node's input, unless a node before it has, and if
    /// they are known behind it. A program's findings stay in the program; the reader of its output
    /// finds them again for all behind it, which the cost of leaving includes. Frames redirected to
    /// a socket have not been parsed.
    fn looks(&self, id: NodeId, enters: usize, way: &Assignment) -> (f64, bool) {
        let inside = |space: usize| self.discovered.spaces[space].kind == SpaceKind::Kernel;
        let here = inside(enters);
        let edges = self.graph.edges.iter().zip(&self.discovered.flows.1);
        let comes = edges.filter(|(edge, _)| edge.to == id && !edge.back);
        let (mut unseen, mut known) = (0.0, false);
        for (at, (edge, flow)) in comes.enumerate() {
            let from = edge.from.0;
            let looked = match inside(way.leaves[from]) {
                true if !here => !self.discovered.taken[from],
                was => was == here && way.looked[from],
            };
            known = looked && (known || at == 0);
            unseen += if looked { 0.0 } else { *flow };
        }
        let look = if here { self.look.0 } else { self.look.1 };
        match self.discovered.looks[id.0] {
            true => (unseen * look, true),
            false => (0.0, known),
        }
    }

    fn rings(&self, id: NodeId, enters: usize, way: &Assignment) -> f64 {
        let spaces = &self.discovered.spaces;
        let edges = self.graph.edges.iter().zip(&self.discovered.flows.1);
        let comes = edges.filter(|(edge, _)| edge.to == id && !edge.back);
        comes
            .map(|(edge, flow)| match way.leaves[edge.from.0] {
                from if from == enters => 0.0,
                // The first thread reads what leaves the kernel, and hands on what goes elsewhere.
                from if spaces[from].kind == SpaceKind::Kernel => {
                    let on = if spaces[enters].name == FIRST { 0.0 } else { self.crossing };
                    let taken = self.discovered.taken[edge.from.0];
                    flow * (if taken { self.led } else { self.leaving } + on)
                }
                _ => flow * self.crossing,
            })
            .sum()
    }
}

/// The least that a node costs anywhere, as far as blocks come to it; no end if nothing runs it.
fn cheapest(discovered: &Discovered, id: NodeId) -> f64 {
    let costs = discovered.verdicts[id.0].iter().filter_map(|v| v.as_ref().ok());
    let least = costs.copied().fold(f64::INFINITY, f64::min);
    if least.is_finite() { least * discovered.flows.0[id.0] } else { least }
}

/// A space that may run a node, what a block costs in it, and the spaces on its two sides.
struct Try {
    space: usize,
    own: f64,
    enters: usize,
    leaves: usize,
}

/// The nodes from the sources to the sinks, operands behind their section.
pub(super) fn order(graph: &Graph) -> Vec<NodeId> {
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
    let spaces = discovered.spaces.iter().zip(&discovered.owners);
    let refusals = spaces
        .zip(&discovered.verdicts[id.0])
        .filter(|((space, owner), _)| space.part == part && owner.is_none_or(|owner| owner == id))
        .map(|((space, _), verdict)| {
            let why = verdict.as_ref().err().cloned();
            (
                space.name.clone(),
                why.unwrap_or_else(|| "the path would have to turn back".to_owned()),
            )
        })
        .collect();
    Unplaceable { node: id, name: graph.node(id).name().to_owned(), refusals }
}

#[cfg(test)]
mod tests;
