//! `--latency`: how long a block may be on its way, spread over all that may keep it waiting.
//!
//! What may do so is known: a ring between threads until its reader is woken, the bell of a program
//! in the kernel, the ring of a packet socket, the rings to copies and from them. Each gets the
//! whole divided by how many there are on the longest way through it: then no way adds up to more
//! than was asked for, and a short branch beside a long one has more time. [Th §5.2.2]
//!
//! The share of a ring is its T_t. A program's pipe has no share: what a program keeps for itself
//! is its own affair.

use super::{Copied, Plan, PlannedEdge, SpaceKind};
use crate::graph::NodeId;

/// A bound on the latency, and its shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latency {
    /// The bound of the request, in ns.
    pub asked_ns: u64,
    /// The places that may delay a block, in the order of the edges; sources first, replicas last.
    pub holds: Vec<Holds>,
}

/// A place that may delay a block, and for how many ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// The ring of the kernel from which a source reads.
    Source(NodeId, u64),
    /// A ring of an edge, and where the edge leaves the kernel the bell of the program.
    Edge(usize, u64),
    /// The two rings of each of the copies of this place in [`Plan::copied`], together.
    Copies(usize, u64),
}

impl Latency {
    /// The share of a source.
    #[must_use]
    pub fn of_source(&self, node: NodeId) -> Option<u64> {
        self.holds.iter().find_map(|holds| match holds {
            Holds::Source(id, ns) if *id == node => Some(*ns),
            _ => None,
        })
    }
}

/// Gives every ring of a plan its share of what the request asks for, if it asks.
pub(super) fn spread(plan: &mut Plan) {
    let Some(asked_ns) = plan.graph.options.number("latency") else { return };
    let ways = Ways::new(plan);
    let mut holds = Vec::new();
    for (id, _) in plan.graph.ids().filter(|(id, _)| of_node(plan, *id) > 0) {
        holds.push(Holds::Source(id, asked_ns / ways.through_node(id)));
    }
    for edge in 0..plan.edges.len() {
        let parts = ways.through(plan, edge);
        let share = asked_ns / parts.max(1);
        match &mut plan.edges[edge] {
            PlannedEdge::Ring(ring) | PlannedEdge::Kernel(ring) => {
                (ring.signal_ns, ring.ns_because) = (share, because(parts));
            }
            _ => continue,
        }
        let weight = own_of(plan, edge);
        if weight > 0 {
            holds.push(Holds::Edge(edge, share * weight));
        }
    }
    // All that leaves a program is told by one bell.
    for number in 0..plan.programs.len() {
        let left = (0..plan.edges.len()).filter(|edge| plan.programs[number].leaves(*edge));
        let most = left.map(|edge| ways.through(plan, edge)).max().unwrap_or(1);
        let ring = &mut plan.programs[number].ring;
        ring.signal_ns = asked_ns / most.max(1);
        ring.apart_ns = ring.signal_ns / 2;
    }
    for number in 0..plan.copied.len() {
        let copied = &plan.copied[number];
        let borders = (0..plan.edges.len()).filter(|edge| borders(plan, copied, *edge) > 0);
        let parts = borders.map(|edge| ways.through(plan, edge)).max().unwrap_or(1);
        let ring = &mut plan.copied[number].ring;
        (ring.signal_ns, ring.ns_because) = (asked_ns / parts.max(1), because(parts));
        holds.push(Holds::Copies(number, 2 * (asked_ns / parts.max(1))));
    }
    plan.latency = Some(Latency { asked_ns, holds });
}

fn because(parts: u64) -> String {
    match parts {
        0 | 1 => "T_t as `--latency` says".to_owned(),
        _ => format!("T_t: one of {parts} parts of `--latency`"),
    }
}

/// Sums on the longest way to each node and from it, the node counted in both.
struct Ways {
    to: Vec<u64>,
    from: Vec<u64>,
}

impl Ways {
    fn new(plan: &Plan) -> Self {
        let nodes = plan.graph.nodes.len();
        let own: Vec<u64> = (0..nodes).map(|node| of_node(plan, NodeId(node))).collect();
        let mut ways = Self { to: own.clone(), from: own };
        let forward = |edge: &usize| !plan.graph.edges[*edge].back;
        // No way has more edges than there are nodes.
        for _ in 0..nodes {
            let mut longer = false;
            for edge in (0..plan.edges.len()).filter(forward) {
                let (near, far) = (plan.graph.edges[edge].from.0, plan.graph.edges[edge].to.0);
                let own = of_edge(plan, edge);
                let to = ways.to[near] + own + of_node(plan, NodeId(far));
                let from = ways.from[far] + own + of_node(plan, NodeId(near));
                longer |= to > ways.to[far] || from > ways.from[near];
                ways.to[far] = ways.to[far].max(to);
                ways.from[near] = ways.from[near].max(from);
            }
            if !longer {
                break;
            }
        }
        ways
    }

    /// On the longest way that follows this edge.
    fn through(&self, plan: &Plan, edge: usize) -> u64 {
        let ends = &plan.graph.edges[edge];
        self.to[ends.from.0] + of_edge(plan, edge) + self.from[ends.to.0]
    }

    /// On the longest way from this source.
    fn through_node(&self, node: NodeId) -> u64 {
        self.from[node.0].max(1)
    }
}

/// Counts the rings of the kernel that a source reads.
fn of_node(plan: &Plan, node: NodeId) -> u64 {
    let used = plan.graph.node(node).filter();
    let in_kernel = plan.space_of(node).kind == SpaceKind::Kernel;
    let takes = used.is_some_and(|used| {
        used.endpoint.takes_filter && used.description.kind == filter::Kind::Source
    });
    u64::from(takes && !in_kernel)
}

/// Counts the rings and doorbells of an edge, with those of replicas that begin or end there.
fn of_edge(plan: &Plan, edge: usize) -> u64 {
    let copied = plan.copied.iter().map(|copied| borders(plan, copied, edge));
    own_of(plan, edge) + copied.sum::<u64>()
}

/// The same without copies.
fn own_of(plan: &Plan, edge: usize) -> u64 {
    let program = plan.programs.iter().find(|program| program.leaves(edge));
    // What is taken lies in the memory of the process, and whoever reads is told at once.
    let bell = u64::from(program.is_some_and(|program| !program.attach.takes));
    match plan.edges[edge] {
        PlannedEdge::Ring(_) => 1 + bell,
        PlannedEdge::Kernel(_) => bell,
        _ => 0,
    }
}

/// Counts the rings of replicas whose chain the edge enters or leaves.
fn borders(plan: &Plan, copied: &Copied, edge: usize) -> u64 {
    let edge = &plan.graph.edges[edge];
    let inside = |node| copied.nodes.contains(&node);
    u64::from(inside(edge.from) != inside(edge.to))
}
