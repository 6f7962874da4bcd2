//! Conversion of a path's ledger to the types of the protocol.

use super::path::WorkerGroup;
use super::spaces;
use crate::protocol::{Counters, Edge, Filter, Link, Loss, Node, Source};
use engine::live::Live;
use runtime::ledger::{DropReason, Ledger, NodeName};
use std::time::Duration;

/// Collects the counters of a path's connected components. Blocks for at most `limit` for each
/// component.
pub(super) fn collect_counters(
    lives: &[Live],
    (nodes, links): (&[Node], &[Link]),
    elapsed_ns: u64,
    limit: Duration,
) -> Counters {
    let adapted = lives.first().map(Live::adapted).unwrap_or_default();
    let latency = lives.first().and_then(Live::latency);
    let mut counters = Counters { elapsed_ns, adapted, latency, ..Counters::default() };
    for live in lives {
        let snapshot = live.counters(limit);
        add_ledger(&mut counters, &snapshot.ledger, nodes);
        let name = |node: usize| Some(nodes.get(node)?.name.as_str());
        let edge = |edge: usize| {
            let link = links.get(edge)?;
            Some((name(link.from)?, name(link.to)?))
        };
        counters
            .spaces
            .extend(snapshot.spaces.iter().map(|found| spaces::space_status(found, &edge)));
    }
    counters
}

/// Returns the aggregated counters of a path that runs in several processes.
pub(super) fn group_counters(group: &dyn WorkerGroup, nodes: &[Node], elapsed_ns: u64) -> Counters {
    let latency = group.latency();
    let spaces = group.processes().into_iter().map(spaces::worker_status).collect();
    let mut counters = Counters { elapsed_ns, latency, spaces, ..Counters::default() };
    add_ledger(&mut counters, &group.ledger(), nodes);
    counters
}

/// Converts a ledger of a plan with these nodes. Sets neither the elapsed time nor the spaces.
#[must_use]
pub fn ledger_counters(ledger: &Ledger, nodes: &[Node]) -> Counters {
    let mut counters = Counters::default();
    add_ledger(&mut counters, ledger, nodes);
    counters
}

fn add_ledger(counters: &mut Counters, ledger: &Ledger, nodes: &[Node]) {
    // The plan gives each of several equal filters a unique name.
    let name = |planned: usize, own: &NodeName| {
        let planned = nodes.get(planned).filter(|_| !own.is_ring());
        planned.map_or_else(|| own.to_string(), |node| node.name.clone())
    };
    counters.sources.extend(ledger.sources.iter().map(|(name, seen)| Source {
        name: name.clone(),
        seen: seen.observed,
        given: seen.given,
        lost: seen.dropped.iter().map(|(place, n)| to_loss(*place, *n)).collect(),
    }));
    counters.filters.extend(ledger.filters.iter().map(|filter| Filter {
        node: filter.planned,
        name: name(filter.planned, &filter.name),
        taken: filter.taken,
        made: filter.made,
        passed: filter.passed,
        unselected: filter.unselected,
        consumed: filter.consumed,
        held: filter.held,
        lost: filter.dropped.iter().map(|(why, n)| to_loss(*why, Some(n.blocks))).collect(),
        calls: filter.calls,
        busy_ns: filter.busy_ns,
        ring: filter.ring.clone(),
    }));
    counters.edges.extend(ledger.edges.iter().map(|edge| Edge {
        edge: edge.planned,
        from: edge.from.to_string(),
        to: edge.to.to_string(),
        kind: edge.kind.name().to_owned(),
        put: edge.put,
        taken: edge.taken,
        resident: edge.resident,
        lost: edge.dropped.iter().map(|(why, n)| to_loss(*why, Some(n.blocks))).collect(),
        size: edge.size.clone(),
    }));
}

fn to_loss(why: DropReason, blocks: Option<u64>) -> Loss {
    Loss { why: why.to_string(), blocks }
}
