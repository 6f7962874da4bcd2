//! Selection: finds the cheapest placement exactly. [SL §7.1]
//!
//! Branch and bound searches over the nodes from the sources to the sinks. A placement is legal if
//! no edge leads to a space with a lower index, and operands run in the space of their section. A
//! process is between two threads: after it, the path continues in the next thread or in a later
//! one. The bound is the cost so far plus the minimal costs of all unplaced nodes. The greedy rule
//! of the paper (`deepest`) is the first placement of the same search when every node tries its
//! deepest space first. If the search takes too long, nodes are eliminated one by one instead,
//! which is exact too, unless there are too many partial placements ([`node_elimination`]).

mod node_elimination;

use super::discover::{Discovery, FIRST_THREAD};
use super::machine::Machine;
use super::model::{PlacementChoice, Policy, SpaceKind, Unplaceable};
use crate::graph::{Graph, NodeId};

/// The number of partial placements after which the branch-and-bound search stops if it has found a
/// placement. The limit is four times as high if it has found none.
const SEARCH_STEPS_MAX: u64 = 200_000;

/// A placement of all nodes, and the result of the search that found it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Selection {
    /// The index of the space in which each node runs.
    pub(super) spaces: Vec<usize>,
    /// For each node, the index of the space that writes its input.
    pub(super) input_spaces: Vec<usize>,
    /// For each node, the index of the space that reads its output.
    pub(super) output_spaces: Vec<usize>,
    /// The result of the placement search: policy, cost and number of placements examined.
    pub(super) choice: PlacementChoice,
}

struct PlacementSearch<'s> {
    graph: &'s Graph,
    discovery: &'s Discovery,
    crossing: f64,
    leaving: f64,
    /// The cost, in ns, of an edge over which frames taken from the host leave the kernel.
    redirect: f64,
    /// The cost in ns of searching a block for header offsets: in a kernel program, and in a thread
    /// or process.
    header_search: (f64, f64),
    policy: Policy,
    /// The nodes in the order of placement, from the sources to the sinks.
    order: Vec<NodeId>,
    /// For each position in `order`, the sum of the minimal costs of the nodes from that position
    /// to the end: a lower bound of the cost of placing them.
    minimal: Vec<f64>,
    best: Option<(f64, Assignment)>,
    steps: u64,
    /// The largest number of nodes that the search has placed so far. If the search fails, no space
    /// could run the node at this position in `order`.
    most_placed: usize,
}

/// A partial placement; the entries of unplaced nodes are `usize::MAX`.
#[derive(Debug, Clone)]
struct Assignment {
    spaces: Vec<usize>,
    input_spaces: Vec<usize>,
    output_spaces: Vec<usize>,
    /// For each node, true if the header offsets of all blocks in its output are known.
    headers_known: Vec<bool>,
}

impl Assignment {
    /// Returns an empty placement for this number of nodes.
    fn unplaced(nodes: usize) -> Self {
        let nowhere = vec![usize::MAX; nodes];
        let (input_spaces, output_spaces) = (nowhere.clone(), nowhere.clone());
        Self { spaces: nowhere, input_spaces, output_spaces, headers_known: vec![false; nodes] }
    }
}

/// Finds a placement for all nodes. Fails if a node has no legal space.
pub(super) fn select_placement(
    graph: &Graph,
    discovery: &Discovery,
    machine: &Machine,
    policy: Policy,
) -> Result<Selection, Unplaceable> {
    let mut search = PlacementSearch::new(graph, discovery, machine, policy);
    if let Some(id) =
        search.order.iter().find(|id| minimal_node_cost(discovery, **id).is_infinite())
    {
        return Err(unplaceable_node_error(graph, discovery, *id));
    }
    search.place_next(0, 0.0, &mut Assignment::unplaced(graph.nodes.len()));
    let (mut steps, mut proved) = (search.steps, search.steps < SEARCH_STEPS_MAX);
    let mut best = search.best.take();
    if !proved
        && (policy == Policy::Cost || best.is_none())
        && let Some((found, examined, exact)) = node_elimination::search_by_elimination(&search)
    {
        // An inexact result may be worse than the result of the branch-and-bound search.
        best = best.filter(|(cost, _)| !exact && *cost < found.0).or(Some(found));
        (steps, proved) = (steps + examined, exact);
    }
    match best {
        Some((cost_ns, Assignment { spaces, input_spaces, output_spaces, .. })) => {
            let choice = PlacementChoice { policy, cost_ns, examined: steps, is_exact: proved };
            Ok(Selection { spaces, input_spaces, output_spaces, choice })
        }
        None => {
            let stuck = search.order.get(search.most_placed).copied().unwrap_or(NodeId(0));
            Err(unplaceable_node_error(graph, discovery, stuck))
        }
    }
}

/// Returns the cost of the cheapest placement in ns, or `None` if no placement is legal.
pub(super) fn minimal_cost(graph: &Graph, discovery: &Discovery, machine: &Machine) -> Option<f64> {
    let search = PlacementSearch::new(graph, discovery, machine, Policy::Cost);
    node_elimination::search_by_elimination(&search).map(|((cost, _), ..)| cost)
}

impl<'s> PlacementSearch<'s> {
    fn new(graph: &'s Graph, discovery: &'s Discovery, machine: &Machine, policy: Policy) -> Self {
        let order = graph.stream_order();
        let mut minimal = vec![0.0; order.len() + 1];
        for (i, id) in order.iter().enumerate().rev() {
            minimal[i] = minimal[i + 1] + minimal_node_cost(discovery, *id);
        }
        let (crossing, leaving) = (machine.costs.crossing_cost(), machine.costs.kernel_exit_cost());
        Self {
            graph,
            discovery,
            crossing,
            leaving,
            redirect: machine.costs.redirect,
            header_search: (machine.costs.twin_header_search, machine.costs.header_search),
            policy,
            order,
            minimal,
            best: None,
            steps: 0,
            most_placed: 0,
        }
    }

    fn place_next(&mut self, at: usize, cost: f64, assignment: &mut Assignment) {
        self.steps += 1;
        self.most_placed = self.most_placed.max(at);
        let Some(id) = self.order.get(at).copied() else {
            if self.best.as_ref().is_none_or(|(best, _)| cost < *best) {
                self.best = Some((cost, assignment.clone()));
            }
            return;
        };
        for LegalSpace { space, own, input_space, output_space } in
            self.legal_spaces(id, assignment)
        {
            let (look, headers_known) = self.header_cost(id, input_space, assignment);
            let more = own * self.discovery.flows.0[id.0]
                + self.ring_cost(id, input_space, assignment)
                + look;
            let bound = cost + more + self.minimal[at + 1];
            let worse = self.best.as_ref().is_some_and(|(best, _)| bound >= *best);
            // The greedy rule accepts the first legal placement.
            let decided = self.policy == Policy::Deepest && self.best.is_some();
            let enough = self.best.is_some() || self.steps >= 4 * SEARCH_STEPS_MAX;
            if worse || decided || self.steps >= SEARCH_STEPS_MAX && enough {
                continue;
            }
            (
                assignment.spaces[id.0],
                assignment.input_spaces[id.0],
                assignment.output_spaces[id.0],
            ) = (space, input_space, output_space);
            assignment.headers_known[id.0] = headers_known;
            self.place_next(at + 1, cost + more, assignment);
        }
    }

    /// Returns the spaces in which a node may run, given the spaces of the nodes upstream. The
    /// cheapest space comes first or, if the policy is `Deepest`, the deepest.
    fn legal_spaces(&self, id: NodeId, assignment: &Assignment) -> Vec<LegalSpace> {
        let node = self.graph.node(id);
        let before = self.graph.inputs(id).filter(|edge| !edge.back);
        let floor = before.map(|edge| assignment.output_spaces[edge.from.0]).max();
        let together = node.inside.map(|owner| assignment.spaces[owner.0]);
        let verdicts = self.discovery.verdicts[id.0].iter().enumerate();
        let possible = verdicts.filter_map(|(s, v)| Some((s, *v.as_ref().ok()?)));
        let mut legal_spaces: Vec<LegalSpace> = possible
            .filter_map(|(space, own)| {
                if node.has_own_process() {
                    let (input_space, output_space) =
                        self.adjacent_threads(space, floor, self.has_output(id))?;
                    return Some(LegalSpace { space, own, input_space, output_space });
                }
                let legal = floor.is_none_or(|floor| space >= floor)
                    && together.is_none_or(|owner| owner == space);
                legal.then_some(LegalSpace { space, own, input_space: space, output_space: space })
            })
            .collect();
        if self.policy == Policy::Cost {
            legal_spaces.sort_by(|a, b| a.own.total_cmp(&b.own).then(a.space.cmp(&b.space)));
        }
        legal_spaces
    }

    /// Returns the thread that writes a process's input, and the thread that reads its output.
    /// `last` is the last space upstream. That space writes the input, or the first thread does if
    /// `last` is the kernel, whose output the first thread reads. The thread after the writing one
    /// reads the output.
    ///
    /// Returns one thread twice if the process has no output (`has_output` is false) or no input
    /// (`last` is `None`). Returns `None` if there is no thread to read the output.
    fn adjacent_threads(
        &self,
        process: usize,
        last: Option<usize>,
        has_output: bool,
    ) -> Option<(usize, usize)> {
        let spaces = &self.discovery.spaces;
        let is_next = |place: &usize| {
            let space = &spaces[*place];
            space.kind == SpaceKind::Thread && space.component == spaces[process].component
        };
        let first = (0..spaces.len()).find(is_next);
        let last = match last {
            Some(last) if spaces[last].kind == SpaceKind::Kernel => first,
            last => last,
        };
        match last {
            Some(last) if !has_output => Some((last, last)),
            Some(last) => Some((last, (last + 1..spaces.len()).find(is_next)?)),
            None => first.map(|first| (first, first)),
        }
    }

    fn has_output(&self, id: NodeId) -> bool {
        self.graph.outputs(id).next().is_some()
    }

    /// Returns the cost of searching a node's input for header offsets, and true if the offsets are
    /// known downstream of the node. The cost is 0 if a node upstream has found them. Header
    /// offsets found by a kernel program do not leave the kernel. Therefore the cost of an edge out
    /// of the kernel includes a new search, except for frames redirected to a socket.
    fn header_cost(&self, id: NodeId, input_space: usize, assignment: &Assignment) -> (f64, bool) {
        let inside = |space: usize| self.discovery.spaces[space].kind == SpaceKind::Kernel;
        let here = inside(input_space);
        let edges = self.graph.edges.iter().zip(&self.discovery.flows.1);
        let inputs = edges.filter(|(edge, _)| edge.to == id && !edge.back);
        let (mut unseen, mut known) = (0.0, false);
        for (at, (edge, flow)) in inputs.enumerate() {
            let from = edge.from.0;
            let headers_known = match inside(assignment.output_spaces[from]) {
                true if !here => !self.discovery.taken_from_host[from],
                was => was == here && assignment.headers_known[from],
            };
            known = headers_known && (known || at == 0);
            unseen += if headers_known { 0.0 } else { *flow };
        }
        let look = if here { self.header_search.0 } else { self.header_search.1 };
        match self.discovery.needs_headers[id.0] {
            true => (unseen * look, true),
            false => (0.0, known),
        }
    }

    fn ring_cost(&self, id: NodeId, input_space: usize, assignment: &Assignment) -> f64 {
        let spaces = &self.discovery.spaces;
        let edges = self.graph.edges.iter().zip(&self.discovery.flows.1);
        let inputs = edges.filter(|(edge, _)| edge.to == id && !edge.back);
        inputs
            .map(|(edge, flow)| match assignment.output_spaces[edge.from.0] {
                from if from == input_space => 0.0,
                // The first thread reads the output of the kernel and forwards it to other threads.
                from if spaces[from].kind == SpaceKind::Kernel => {
                    let on =
                        if spaces[input_space].name == FIRST_THREAD { 0.0 } else { self.crossing };
                    let taken = self.discovery.taken_from_host[edge.from.0];
                    flow * (if taken { self.redirect } else { self.leaving } + on)
                }
                _ => flow * self.crossing,
            })
            .sum()
    }
}

/// Returns the cost of a node in its cheapest space, multiplied by the fraction of blocks that
/// reach the node. Returns infinity if no space can run the node.
fn minimal_node_cost(discovery: &Discovery, id: NodeId) -> f64 {
    let costs = discovery.verdicts[id.0].iter().filter_map(|v| v.as_ref().ok());
    let minimal = costs.copied().fold(f64::INFINITY, f64::min);
    if minimal.is_finite() { minimal * discovery.flows.0[id.0] } else { minimal }
}

/// A space that can run a node, given the spaces of the nodes upstream. Contains the cost per block
/// there, and the spaces that write the node's input and read its output.
struct LegalSpace {
    space: usize,
    own: f64,
    input_space: usize,
    output_space: usize,
}

fn unplaceable_node_error(graph: &Graph, discovery: &Discovery, id: NodeId) -> Unplaceable {
    let component = discovery.components[id.0];
    let spaces = discovery.spaces.iter().zip(&discovery.owners);
    let refusals = spaces
        .zip(&discovery.verdicts[id.0])
        .filter(|((space, owner), _)| {
            space.component == component && owner.is_none_or(|owner| owner == id)
        })
        .map(|((space, _), verdict)| {
            let why = verdict.as_ref().err().cloned();
            (
                space.name.clone(),
                why.unwrap_or_else(|| "the path would have to return to a space".to_owned()),
            )
        })
        .collect();
    Unplaceable { node: id, name: graph.node(id).name().to_owned(), refusals }
}

#[cfg(test)]
mod tests;
