//! `--latency`: the maximum time that a block spends on its path, distributed over all causes of
//! delay.
//!
//! A block may be delayed in a ring between threads until the reader is woken, before a kernel
//! program notifies its reader, in the ring of a packet socket, and in the rings to and from
//! replicas. The share of a delay is the budget divided by the number of delays on the longest path
//! through it. Therefore no path exceeds the budget, and delays on a short branch may be longer
//! than delays on a long branch. [Th §5.2.2]
//!
//! A ring's share becomes its maximum time before a notification (T_t). The pipe of a program has
//! no share, because the delay inside a program is unknown.

use super::model::{DelayCause, LatencyPlan, Plan, PlannedEdge, ReplicaChain, SpaceKind};
use crate::graph::NodeId;

/// Distributes the request's latency budget over the rings of a plan.
pub(super) fn distribute_latency(plan: &mut Plan) {
    let Some(bound_ns) = plan.graph.options.number("latency") else { return };
    let longest = LongestPaths::new(plan);
    let mut delays = Vec::new();
    for (id, _) in plan.graph.nodes_with_ids().filter(|(id, _)| node_delay_count(plan, *id) > 0) {
        delays.push(DelayCause::Source(id, bound_ns / longest.max_delay_count_from(id)));
    }
    for edge in 0..plan.edges.len() {
        let parts = longest.max_delay_count_over_edge(plan, edge);
        let share = bound_ns / parts.max(1);
        match &mut plan.edges[edge] {
            PlannedEdge::Ring(ring) | PlannedEdge::Kernel(ring) => {
                (ring.signal_ns, ring.ns_because) = (share, latency_share_reason(parts));
            }
            _ => continue,
        }
        let weight = edge_delay_count_without_replicas(plan, edge);
        if weight > 0 {
            delays.push(DelayCause::Edge(edge, share * weight));
        }
    }
    // All edges out of a program share one doorbell.
    for number in 0..plan.programs.len() {
        let left = (0..plan.edges.len()).filter(|edge| plan.programs[number].has_exit(*edge));
        let most =
            left.map(|edge| longest.max_delay_count_over_edge(plan, edge)).max().unwrap_or(1);
        let ring = &mut plan.programs[number].ring;
        ring.signal_ns = bound_ns / most.max(1);
        ring.interval_min_ns = ring.signal_ns / 2;
    }
    for number in 0..plan.replicas.len() {
        let replicas = &plan.replicas[number];
        let borders =
            (0..plan.edges.len()).filter(|edge| replica_delay_count(plan, replicas, *edge) > 0);
        let parts =
            borders.map(|edge| longest.max_delay_count_over_edge(plan, edge)).max().unwrap_or(1);
        let ring = &mut plan.replicas[number].ring;
        (ring.signal_ns, ring.ns_because) = (bound_ns / parts.max(1), latency_share_reason(parts));
        delays.push(DelayCause::Replicas(number, 2 * (bound_ns / parts.max(1))));
    }
    plan.latency = Some(LatencyPlan { bound_ns, delays });
}

fn latency_share_reason(parts: u64) -> String {
    match parts {
        0 | 1 => "T_t by `--latency`".to_owned(),
        _ => format!("T_t: one of {parts} parts of `--latency`"),
    }
}

/// The number of delays on the longest paths through each node. A delay is a place where a block
/// may wait, such as a ring. `to` counts the delays up to the node, and `from` those after it; both
/// include the delays of the node itself.
struct LongestPaths {
    to: Vec<u64>,
    from: Vec<u64>,
}

impl LongestPaths {
    fn new(plan: &Plan) -> Self {
        let nodes = plan.graph.nodes.len();
        let own: Vec<u64> = (0..nodes).map(|node| node_delay_count(plan, NodeId(node))).collect();
        let mut longest = Self { to: own.clone(), from: own.clone() };
        let order = plan.graph.stream_order();
        let edges = || plan.graph.edges.iter().enumerate().filter(|(_, edge)| !edge.back);
        for id in &order {
            for (at, edge) in edges().filter(|(_, edge)| edge.to == *id) {
                let delays = longest.to[edge.from.0] + edge_delay_count(plan, at) + own[id.0];
                longest.to[id.0] = longest.to[id.0].max(delays);
            }
        }
        for id in order.iter().rev() {
            for (at, edge) in edges().filter(|(_, edge)| edge.from == *id) {
                let delays = longest.from[edge.to.0] + edge_delay_count(plan, at) + own[id.0];
                longest.from[id.0] = longest.from[id.0].max(delays);
            }
        }
        longest
    }

    /// Returns the number of delays (rings and other places where a block may wait) on the longest
    /// path that includes this edge.
    fn max_delay_count_over_edge(&self, plan: &Plan, edge: usize) -> u64 {
        let ends = &plan.graph.edges[edge];
        self.to[ends.from.0] + edge_delay_count(plan, edge) + self.from[ends.to.0]
    }

    /// Returns the number of delays (rings and other places where a block may wait) on the longest
    /// path from this source, at least 1.
    fn max_delay_count_from(&self, node: NodeId) -> u64 {
        self.from[node.0].max(1)
    }
}

/// Returns the number of delays in a node: 1 if the node is a source that reads the ring of a
/// packet socket, otherwise 0.
fn node_delay_count(plan: &Plan, node: NodeId) -> u64 {
    let used = plan.graph.node(node).filter();
    let in_kernel = plan.space_of(node).kind == SpaceKind::Kernel;
    let takes = used.is_some_and(|used| {
        used.endpoint.accepts_pushdown && used.description.kind == filter::FilterKind::Source
    });
    u64::from(takes && !in_kernel)
}

/// Returns the number of delays on an edge: the rings in which a block may wait, including rings to
/// and from replicas, and the doorbell of a kernel program.
fn edge_delay_count(plan: &Plan, edge: usize) -> u64 {
    let replicas = plan.replicas.iter().map(|replicas| replica_delay_count(plan, replicas, edge));
    edge_delay_count_without_replicas(plan, edge) + replicas.sum::<u64>()
}

/// Returns the number of delays on an edge, like [`edge_delay_count`], but without rings to and
/// from replicas.
fn edge_delay_count_without_replicas(plan: &Plan, edge: usize) -> u64 {
    let program = plan.programs.iter().find(|program| program.has_exit(edge));
    // Frames taken from the host are in the memory of the process, which is woken immediately.
    let doorbell = u64::from(program.is_some_and(|program| !program.attach.redirects));
    match plan.edges[edge] {
        PlannedEdge::Ring(_) => 1 + doorbell,
        PlannedEdge::Kernel(_) => doorbell,
        _ => 0,
    }
}

/// Returns the number of rings to or from these replicas on an edge: 1 if the edge enters or leaves
/// the replicated chain, otherwise 0.
fn replica_delay_count(plan: &Plan, replicas: &ReplicaChain, edge: usize) -> u64 {
    let edge = &plan.graph.edges[edge];
    let inside = |node| replicas.nodes.contains(&node);
    u64::from(inside(edge.from) != inside(edge.to))
}
