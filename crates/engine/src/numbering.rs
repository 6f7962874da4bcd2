//! Stable numbers for nodes, edges and sessions. A number stays the same for the lifetime of a
//! path, in every plan.
//!
//! Session numbers (CONTRACT 8): for each filter that numbers sessions, the successive plans of a
//! path determine a set of numbers that no other filter of the request uses, in any thread, replica
//! or process. If the first plan has n such filters, each counts in steps of n; a filter added
//! later gets a separate range. The set of a removed filter is reused as late as possible, because
//! filters downstream may still remember its sessions.
//!
//! The numbers depend only on the plans, so a replay assigns the same numbers.
//! docs/book/decisions/0046-session-numbers.md

use filter::SessionNumbers;
use pipeline::graph::{Graph, Node, NodeId};
use pipeline::plan::Plan;
use runtime::demand::PathEdges;
use std::collections::VecDeque;

/// The numbers of the nodes and edges of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PlanNumbers {
    pub(crate) nodes: Vec<usize>,
    pub(crate) edges: Vec<usize>,
    /// The number of the first ring that connects a replica to the dispatcher or to the merge; the
    /// other such rings follow. These rings have numbers although they are not edges of the graph.
    pub(crate) first_replica_ring: usize,
    /// Session numbers that each filter may assign.
    pub(crate) numbering: SessionNumbering,
    /// The next free node number and edge number.
    pub(crate) next_free: (usize, usize),
}

impl PlanNumbers {
    /// Returns the numbers for the first plan of a path. `independent` permits each filter to
    /// use all session numbers, which the replay of a recording in an older format requires.
    pub(crate) fn for_first_plan(plan: &Plan, independent: bool) -> Self {
        let (nodes, edges) = (plan.graph.nodes.len(), plan.graph.edges.len());
        let next = (nodes, edges + replica_ring_count(plan));
        let nodes: Vec<usize> = (0..nodes).collect();
        let numbering = SessionNumbering::for_first_plan(&plan.graph, &nodes, independent);
        Self {
            nodes,
            edges: (0..edges).collect(),
            first_replica_ring: edges,
            numbering,
            next_free: next,
        }
    }
}

/// Returns how many numbers the rings of a plan's replicas need: two for each replica.
pub(crate) fn replica_ring_count(plan: &Plan) -> usize {
    plan.replicas.iter().map(|copied| 2 * copied.spaces.len()).sum()
}

/// The assignment of session numbers to the filters of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionNumbering {
    /// Number of filters in the first plan that assign session numbers; 1 if there are none.
    initial: u32,
    /// Each filter's share of the session numbers, with the number of the filter's node.
    shares: Vec<(usize, SessionNumberShare)>,
    /// Shares of session numbers that no filter uses now. The share that has been unused for the
    /// longest time comes first.
    free: VecDeque<SessionNumberShare>,
    /// True if every filter uses all session numbers, as in recordings in the first two versions of
    /// the format.
    independent: bool,
    /// True if the plan has more filters that assign session numbers than there are shares.
    is_short: bool,
}

/// A filter's share of the session numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SessionNumberShare {
    /// The session numbers of a filter in the first plan. If that plan has n filters that assign
    /// session numbers, these are every n-th number, beginning with the contained one.
    Initial(u32),
    /// The session numbers of a filter that a change added: the contiguous range of numbers with
    /// this index.
    Later(u32),
}

impl SessionNumbering {
    /// Assigns session numbers to the filters of a first plan. `nodes` holds each node's number.
    /// `independent` is true if every filter may use all session numbers.
    pub(crate) fn for_first_plan(graph: &Graph, nodes: &[usize], independent: bool) -> Self {
        let initial =
            u32::try_from(numbering_nodes(graph, nodes).count()).unwrap_or(u32::MAX).max(1);
        let free = (0..initial).map(SessionNumberShare::Initial);
        let free = free
            .chain((0..SessionNumbers::ADDED_FILTERS_MAX).map(SessionNumberShare::Later))
            .collect();
        let none = Self { initial, shares: Vec::new(), free, independent, is_short: false };
        none.for_next_plan(graph, nodes)
    }

    /// Returns the assignment of session numbers for the next plan of the path. A filter that
    /// survives the change keeps its share.
    pub(crate) fn for_next_plan(&self, graph: &Graph, nodes: &[usize]) -> Self {
        let mut next = Self { shares: Vec::new(), is_short: false, ..self.clone() };
        let stays = |number: usize| self.shares.iter().find(|(known, _)| *known == number);
        for number in numbering_nodes(graph, nodes) {
            match stays(number).copied().or_else(|| Some((number, next.free.pop_front()?))) {
                Some(share) => next.shares.push(share),
                None => next.is_short = true,
            }
        }
        let goes = |(_, share): &&(usize, SessionNumberShare)| {
            !next.shares.iter().any(|(_, kept)| kept == share)
        };
        let goes: Vec<SessionNumberShare> =
            self.shares.iter().filter(goes).map(|(_, share)| *share).collect();
        next.free.extend(goes);
        next
    }

    /// Returns the session numbers that the filter of this node may use.
    pub(crate) fn session_numbers(&self, node: usize) -> SessionNumbers {
        let share = self.shares.iter().find(|(known, _)| *known == node);
        match share.filter(|_| !self.independent) {
            Some((_, SessionNumberShare::Initial(number))) => {
                SessionNumbers::for_initial_filter(*number, self.initial)
            }
            Some((_, SessionNumberShare::Later(range))) => SessionNumbers::for_added_filter(*range),
            None => SessionNumbers::ALL,
        }
    }

    /// Returns an error message if there are too few shares of session numbers for the filters of
    /// the plan; otherwise `None`.
    pub(crate) fn shortage_message(&self) -> Option<String> {
        let most = SessionNumbers::ADDED_FILTERS_MAX;
        self.is_short.then(|| {
            format!(
                "at most {most} filters with sessions can be added to a path while it runs: stop \
                 the path and start it again"
            )
        })
    }
}

/// Returns the node numbers of the filters that assign session numbers.
fn numbering_nodes<'g>(graph: &'g Graph, nodes: &'g [usize]) -> impl Iterator<Item = usize> + 'g {
    let gives = |node: &Node| {
        node.filter().is_some_and(|used| used.description.state.writes_session_numbers)
    };
    let giving = graph.nodes_with_ids().filter(move |(_, node)| gives(node));
    giving.filter_map(|(id, _)| nodes.get(id.0).copied())
}

/// Returns the edges and the sources of a graph. Nodes are identified by their numbers in
/// `numbers`.
pub(crate) fn edges_by_node_number(graph: &Graph, numbers: &[usize]) -> PathEdges {
    let number = |id: NodeId| numbers[id.0];
    PathEdges {
        edges: graph.edges.iter().map(|edge| (number(edge.from), number(edge.to))).collect(),
        sources: graph.heads().into_iter().map(number).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::MachineRegistry;
    use std::collections::HashSet;

    fn parse_graph(text: &str) -> Graph {
        let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
        assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
        graph
    }

    /// Returns a graph with a `udp` filter for each element of `udp`, and the numbers of all nodes.
    /// The elements of `udp` are the numbers of these filters.
    fn udp_graph(udp: &[usize]) -> (Graph, Vec<usize>) {
        let branches = vec!["udp"; udp.len()].join(" + ");
        let graph = parse_graph(&format!("generate | ({branches}) | drop"));
        let mut own = udp.iter().copied();
        let number = |(id, node): (NodeId, &Node)| match node.name() {
            "udp" => own.next().unwrap_or_default(),
            _ => 1_000_000 + id.0,
        };
        let nodes = graph.nodes_with_ids().map(number).collect();
        (graph, nodes)
    }

    #[test]
    fn a14_single_filter_has_all_numbers_and_several_count_in_steps() {
        let (one, nodes) = udp_graph(&[3]);
        let numbering = SessionNumbering::for_first_plan(&one, &nodes, false);
        assert_eq!(numbering.session_numbers(3), SessionNumbers::for_initial_filter(0, 1));
        let (three, nodes) = udp_graph(&[3, 5, 9]);
        let numbering = SessionNumbering::for_first_plan(&three, &nodes, false);
        let numbers = [3, 5, 9].map(|node| numbering.session_numbers(node).first());
        assert_eq!(numbers, [1, 2, 3]);
        assert_eq!(numbering.session_numbers(5).next_after(2), Some(5));
        let old = SessionNumbering::for_first_plan(&three, &nodes, true);
        assert_eq!(
            old.session_numbers(5),
            SessionNumbers::ALL,
            "as records of the first forms have it"
        );
    }

    #[test]
    fn a14_first_filter_added_later_counts_from_1() {
        let none = parse_graph("generate | drop");
        let numbering = SessionNumbering::for_first_plan(&none, &[0, 1], false);
        let (one, nodes) = udp_graph(&[7]);
        assert_eq!(
            numbering.for_next_plan(&one, &nodes).session_numbers(7),
            SessionNumbers::for_initial_filter(0, 1)
        );
    }

    /// Existing filters never share a number, a surviving filter keeps its numbers, and freed
    /// numbers are reused as late as possible.
    #[test]
    fn a14_filters_added_and_removed_never_share_a_number() {
        let mut random = testkit::Random::with_replayable_seed();
        for _ in 0..20 {
            let mut there: Vec<usize> = (0..random.within(1..4)).collect();
            let mut next = there.len();
            let (graph, nodes) = udp_graph(&there);
            let mut numbering = SessionNumbering::for_first_plan(&graph, &nodes, false);
            let mut given: Vec<SessionNumbers> = Vec::new();
            for _ in 0..40 {
                let before = numbering.clone();
                let kept: Vec<usize> = there.clone();
                if there.len() > 1 && random.one_in(2) {
                    there.remove(random.within(0..there.len()));
                }
                for _ in 0..random.within(0..3) {
                    there.insert(random.within(0..there.len() + 1), next);
                    next += 1;
                }
                let (graph, nodes) = udp_graph(&there);
                numbering = numbering.for_next_plan(&graph, &nodes);
                assert_eq!(numbering.shortage_message(), None);
                let numbers: HashSet<_> =
                    there.iter().map(|node| numbering.session_numbers(*node)).collect();
                assert_eq!(numbers.len(), there.len(), "each has its own");
                for node in there.iter().filter(|node| kept.contains(node)) {
                    assert_eq!(numbering.session_numbers(*node), before.session_numbers(*node));
                }
                for node in there.iter().filter(|node| !kept.contains(node)) {
                    let new = numbering.session_numbers(*node);
                    let since = given.iter().rev().position(|old| *old == new);
                    assert!(since.is_none_or(|since| since > 32), "after {since:?}");
                    given.push(new);
                }
            }
        }
    }

    #[test]
    fn a14_more_filters_than_ranges_are_refused() {
        let (one, nodes) = udp_graph(&[0]);
        let numbering = SessionNumbering::for_first_plan(&one, &nodes, false);
        let all: Vec<usize> = (0..=SessionNumbers::ADDED_FILTERS_MAX as usize).collect();
        let (most, nodes) = udp_graph(&all);
        let full = numbering.for_next_plan(&most, &nodes);
        assert_eq!(full.shortage_message(), None);
        let (more, beyond) = udp_graph(&(0..=all.len()).collect::<Vec<_>>());
        let shortage = full.for_next_plan(&more, &beyond);
        let why = shortage.shortage_message().expect("there are no more");
        assert!(why.starts_with("at most 64 filters"), "{why}");
        assert_eq!(shortage.for_next_plan(&most, &nodes).shortage_message(), None);
    }
}
