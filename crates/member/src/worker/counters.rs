//! From what spaces counted to what is told of a path.

use super::{Joint, spaces};
use crate::protocol::{
    Amount, Counters, Edge, Filter, Latency, Link, Lost, Measured, Node, Source,
};
use engine::live::Live;
use runtime::ledger::{DropReason, Ledger, NodeName};
use std::time::Duration;

/// The amount of the ledger, whose type is a crate's that we do not know.
macro_rules! amount {
    ($amount:expr) => {{
        let amount = $amount;
        Amount { blocks: amount.blocks, bytes: amount.bytes }
    }};
}

/// Converts the counts of a path's parts so far.
pub(super) fn counters(
    lives: &[Live],
    (nodes, links): (&[Node], &[Link]),
    elapsed_ns: u64,
    limit: Duration,
) -> Counters {
    let adapted = lives.first().map(Live::adapted).unwrap_or_default();
    let latency = lives.first().and_then(Live::latency).map(late);
    let mut told = Counters { elapsed_ns, adapted, latency, ..Counters::default() };
    for live in lives {
        let snapshot = live.counters(limit);
        add(&mut told, &snapshot.ledger, nodes);
        let name = |node: usize| Some(nodes.get(node)?.name.as_str());
        let edge = |edge: usize| {
            let link = links.get(edge)?;
            Some((name(link.from)?, name(link.to)?))
        };
        told.spaces.extend(snapshot.spaces.iter().map(|found| spaces::told(found, &edge)));
    }
    told
}

/// Adds up the counts of several processes that run a path.
pub(super) fn of_joint(joint: &dyn Joint, nodes: &[Node], elapsed_ns: u64) -> Counters {
    let latency = joint.latency().map(late);
    let spaces = joint.processes().into_iter().map(spaces::of_engine).collect();
    let mut told = Counters { elapsed_ns, latency, spaces, ..Counters::default() };
    add(&mut told, &joint.ledger(), nodes);
    told
}

fn add(told: &mut Counters, ledger: &Ledger, nodes: &[Node]) {
    // Of several equal filters each has a name of its own in the plan.
    let name = |planned: usize, own: &NodeName| {
        let planned = nodes.get(planned).filter(|_| !own.is_ring());
        planned.map_or_else(|| own.to_string(), |node| node.name.clone())
    };
    told.sources.extend(ledger.sources.iter().map(|(name, seen)| Source {
        name: name.clone(),
        seen: seen.seen.map(|seen| amount!(seen)),
        given: amount!(seen.given),
        lost: seen.dropped.iter().map(|(place, n)| lost(*place, *n)).collect(),
    }));
    told.filters.extend(ledger.filters.iter().map(|filter| Filter {
        node: filter.planned,
        name: name(filter.planned, &filter.name),
        taken: amount!(filter.taken),
        made: amount!(filter.made),
        passed: amount!(filter.passed),
        unselected: amount!(filter.unselected),
        consumed: amount!(filter.consumed),
        held: amount!(filter.held),
        lost: filter.dropped.iter().map(|(why, n)| lost(*why, Some(n.blocks))).collect(),
        calls: filter.calls,
        busy_ns: filter.busy_ns,
    }));
    told.edges.extend(ledger.edges.iter().map(|edge| Edge {
        edge: edge.planned,
        from: edge.from.to_string(),
        to: edge.to.to_string(),
        kind: edge.kind.name().to_owned(),
        put: amount!(edge.put),
        taken: amount!(edge.taken),
        resident: amount!(edge.resident),
        lost: edge.dropped.iter().map(|(why, n)| lost(*why, Some(n.blocks))).collect(),
    }));
}

fn late(told: runtime::latency::Latency) -> Latency {
    let measured = |at: runtime::latency::Measured| Measured {
        name: at.name,
        share_ns: at.share_ns,
        blocks: at.looked,
        late: at.over,
        worst_ns: at.worst_ns,
    };
    Latency {
        asked_ns: told.asked_ns,
        alarms: told.breaches,
        ways: told.ways.into_iter().map(measured).collect(),
        waits: told.waits.into_iter().map(measured).collect(),
    }
}

fn lost(why: DropReason, blocks: Option<u64>) -> Lost {
    Lost { why: why.to_string(), blocks }
}
