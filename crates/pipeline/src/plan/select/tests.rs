//! Tests of both placement searches on small graphs. Their results are compared with each other and
//! with exhaustive enumeration.

use super::*;
use crate::classes::ClassSet;
use crate::graph::{Edge, Node, Step};
use crate::language::Span;
use crate::plan::{Costs, PlannedSpace};

/// A random number generator (xorshift*), seeded for each case.
struct Random(u64);

impl Random {
    fn next_below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

/// Returns a random acyclic graph with `nodes` nodes, the first of which is a source.
fn random_graph(random: &mut Random, nodes: usize) -> Graph {
    let node = Node {
        step: Step::Unknown,
        span: Span { start: 0, end: 0 },
        inside: None,
        input_forms: Vec::new(),
        classifiers: Vec::new(),
    };
    let mut graph = Graph { nodes: vec![node; nodes], ..Graph::default() };
    for to in 1..nodes {
        for from in 0..to {
            let near = from + 1 == to;
            if near && random.next_below(3) > 0 || random.next_below(5) == 0 {
                let (classes, span) = (ClassSet::plain_pipe(), Span { start: 0, end: 0 });
                let (from, to) = (NodeId(from), NodeId(to));
                graph.edges.push(Edge { from, to, classes, span, back: false });
            }
        }
    }
    graph
}

fn random_discovery(random: &mut Random, graph: &Graph) -> Discovery {
    let space = |name: &str, kind| PlannedSpace { name: name.to_owned(), kind, component: 0 };
    let spaces = vec![
        space("kernel", SpaceKind::Kernel),
        space(FIRST_THREAD, SpaceKind::Thread),
        space("thread1", SpaceKind::Thread),
    ];
    let verdict = |random: &mut Random| match random.next_below(5) {
        0 => Err("no".to_owned()),
        _ => Ok(random.next_below(300) as f64),
    };
    let verdicts =
        graph.nodes_with_ids().map(|_| (0..3).map(|_| verdict(random)).collect()).collect();
    let mut share = |n: usize| (0..n).map(|_| random.next_below(101) as f64 / 100.0).collect();
    let flows = (share(graph.nodes.len()), share(graph.edges.len()));
    let components = vec![0; graph.nodes.len()];
    let taken_from_host = graph.nodes_with_ids().map(|_| random.next_below(2) == 1).collect();
    let needs_headers = graph.nodes_with_ids().map(|_| random.next_below(2) == 1).collect();
    Discovery {
        owners: vec![None; spaces.len()],
        spaces,
        verdicts,
        flows,
        components,
        taken_from_host,
        needs_headers,
    }
}

/// Returns the minimal cost of all placements, by exhaustive enumeration.
fn minimal_cost_by_enumeration(graph: &Graph, discovery: &Discovery, costs: &Costs) -> Option<f64> {
    let nodes = graph.nodes.len();
    let mut best = None;
    for number in 0..3_usize.pow(u32::try_from(nodes).unwrap()) {
        let space: Vec<usize> =
            (0..nodes).map(|node| number / 3_usize.pow(node as u32) % 3).collect();
        let mut cost = 0.0;
        for (node, space) in space.iter().enumerate() {
            let own = discovery.verdicts[node][*space].as_ref().copied();
            cost += own.map_or(f64::INFINITY, |own| own * discovery.flows.0[node]);
        }
        for (edge, flow) in graph.edges.iter().zip(&discovery.flows.1) {
            let taken_from_host = discovery.taken_from_host[edge.from.0];
            let leaving = if taken_from_host { costs.redirect } else { costs.kernel_exit_cost() };
            cost += match (space[edge.from.0], space[edge.to.0]) {
                (from, to) if from > to => f64::INFINITY,
                (from, to) if from == to => 0.0,
                (0, 1) => flow * leaving,
                (0, _) => flow * (leaving + costs.crossing_cost()),
                _ => flow * costs.crossing_cost(),
            };
        }
        cost += header_search_cost(graph, discovery, costs, &space);
        if cost.is_finite() && best.is_none_or(|best| cost < best) {
            best = Some(cost);
        }
    }
    best
}

/// Returns the total cost of the searches for header offsets that a placement causes. `space`
/// contains the space of each node. Edges must lead to nodes with higher indices.
fn header_search_cost(graph: &Graph, discovery: &Discovery, costs: &Costs, space: &[usize]) -> f64 {
    let mut cost = 0.0;
    let mut found = vec![false; space.len()];
    for node in 0..space.len() {
        let inputs = || graph.edges.iter().zip(&discovery.flows.1).filter(|(e, _)| e.to.0 == node);
        let lacks = |from: usize| match (space[from] == 0, space[node] == 0) {
            (true, false) => discovery.taken_from_host[from],
            (was, here) => was != here || !found[from],
        };
        let look = if space[node] == 0 { costs.twin_header_search } else { costs.header_search };
        let unseen: f64 = inputs().filter(|(e, _)| lacks(e.from.0)).map(|(_, flow)| flow).sum();
        let known = inputs().next().is_some() && !inputs().any(|(e, _)| lacks(e.from.0));
        if discovery.needs_headers[node] {
            cost += look * unseen;
        }
        found[node] = discovery.needs_headers[node] || known;
    }
    cost
}

#[test]
fn o3_both_searches_find_a_placement_of_minimal_cost() {
    let mut machine = Machine::example_with_kernel();
    // The cost of a redirect differs from the cost of the other exits from the kernel.
    machine.costs.redirect = 77.0;
    (machine.costs.header_search, machine.costs.twin_header_search) = (33.0, 51.0);
    let (mut found, mut none) = (0, 0);
    for seed in 1..400 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let nodes = 1 + random.next_below(7) as usize;
        let graph = random_graph(&mut random, nodes);
        let discovery = random_discovery(&mut random, &graph);
        let all = minimal_cost_by_enumeration(&graph, &discovery, &machine.costs);
        let bounded = select_placement(&graph, &discovery, &machine, Policy::Cost).ok();
        let bounded = bounded.map(|selection| selection.choice.cost_ns);
        let search = PlacementSearch::new(&graph, &discovery, &machine, Policy::Cost);
        let eliminated = node_elimination::search_by_elimination(&search);
        assert!(eliminated.as_ref().is_none_or(|(_, _, exact)| *exact));
        let eliminated = eliminated.map(|((cost, _), ..)| cost);
        for one in [bounded, eliminated] {
            let same = match (one, all) {
                (Some(one), Some(all)) => (one - all).abs() < 1e-6,
                (one, all) => one == all,
            };
            assert!(same, "seed {seed}: {one:?}, and the best is {all:?}\n{graph}");
        }
        found += usize::from(all.is_some());
        none += usize::from(all.is_none());
    }
    assert!(found > 100 && none > 20, "{found} and {none}");
}
