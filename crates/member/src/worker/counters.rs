//! Conversion of a path's ledger to the types of the protocol.

use super::path::WorkerGroup;
use super::spaces;
use crate::protocol::{CountReply, Counters, Edge, Filter, Link, Loss, Node, Source, Totals};
use engine::live::PathHandle;
use runtime::ledger::{DropReason, Ledger, NodeEntry, NodeName};
use serde::Serialize;
use std::time::Duration;

/// Collects the counters of a path's connected components. Blocks for at most `limit` for each
/// component.
pub(super) fn collect_counters(
    lives: &[PathHandle],
    (nodes, links): (&[Node], &[Link]),
    elapsed_ns: u64,
    limit: Duration,
) -> Counters {
    let adapted = lives.first().map(PathHandle::adaptations).unwrap_or_default();
    let latency = lives.first().and_then(PathHandle::latency);
    let mut counters = Counters { elapsed_ns, adapted, latency, ..Counters::default() };
    for live in lives {
        let snapshot = live.take_snapshot(limit);
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

/// Collects the totals of a path's connected components. Blocks for at most `limit` for each
/// component.
pub(super) fn collect_totals(lives: &[PathHandle], elapsed_ns: u64, limit: Duration) -> Totals {
    let mut all = Totals { elapsed_ns, ..Totals::default() };
    for live in lives {
        let Totals { given, lost, .. } = ledger_totals(&live.ledger_by_number(limit), elapsed_ns);
        all.given.blocks += given.blocks;
        all.given.bytes += given.bytes;
        all.lost += lost;
    }
    all
}

/// Sums the blocks that the sources of a ledger have emitted, and all lost blocks.
pub(super) fn ledger_totals(ledger: &Ledger, elapsed_ns: u64) -> Totals {
    let mut all = Totals { elapsed_ns, ..Totals::default() };
    for (_, source) in &ledger.sources {
        all.given.blocks += source.given.blocks;
        all.given.bytes += source.given.bytes;
        let lost = source.dropped.iter().filter(|(why, _)| why.is_loss());
        all.lost += lost.filter_map(|(_, blocks)| *blocks).sum::<u64>();
    }
    let dropped = ledger.edges.iter().flat_map(|edge| &edge.dropped);
    let lost = dropped.filter(|(why, _)| why.is_loss()).copied();
    let lost = lost.chain(ledger.filters.iter().flat_map(NodeEntry::losses));
    all.lost += lost.map(|(_, amount)| amount.blocks).sum::<u64>();
    all
}

/// Returns the counters of a path that runs in several processes, summed over these processes.
pub(super) fn group_counters(group: &dyn WorkerGroup, nodes: &[Node], elapsed_ns: u64) -> Counters {
    let latency = group.latency();
    let spaces = group.processes().into_iter().map(spaces::worker_status).collect();
    let mut counters = Counters { elapsed_ns, latency, spaces, ..Counters::default() };
    add_ledger(&mut counters, &group.ledger(), nodes);
    counters
}

/// Converts a ledger to the protocol types. Sets only the sources, filters and edges; `nodes`
/// supplies their names.
#[must_use]
pub fn ledger_counters(ledger: &Ledger, nodes: &[Node]) -> Counters {
    let mut counters = Counters::default();
    add_ledger(&mut counters, ledger, nodes);
    counters
}

fn add_ledger(counters: &mut Counters, ledger: &Ledger, nodes: &[Node]) {
    // Equal filters have the same name in the ledger, but different names in the plan.
    let name = |planned: usize, own: &NodeName| {
        let planned = nodes.get(planned).filter(|_| !own.is_ring());
        planned.map_or_else(|| own.to_string(), |node| node.name.clone())
    };
    counters.sources.extend(ledger.sources.iter().map(|(name, source)| Source {
        name: name.clone(),
        observed: source.observed,
        given: source.given,
        lost: source.dropped.iter().map(|(place, n)| to_loss(*place, *n)).collect(),
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
        kept: filter.kept,
        operand: filter.operand,
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

/// Maximum length in bytes of the serialized filters and edges in one reply. The rest of the reply
/// is reserved for the sources, the spaces and the list of automatic changes.
const PAGE_BYTES_MAX: usize = 96 << 10;

/// Returns the filters and then the edges, starting at index `first`, as many as fit into a reply.
/// The page with index 0 also contains all other counters.
pub(super) fn counters_page(all: &Counters, first: usize) -> CountReply {
    let mut page = Counters::default();
    if first == 0 {
        page.elapsed_ns = all.elapsed_ns;
        page.sources.clone_from(&all.sources);
        page.spaces.clone_from(&all.spaces);
        page.adapted.clone_from(&all.adapted);
        page.latency.clone_from(&all.latency);
    }
    let mut room = PAGE_BYTES_MAX;
    page.filters = take_fitting_items(all.filters.get(first..).unwrap_or_default(), &mut room);
    let mut next = first + page.filters.len();
    if let Some(edge) = next.checked_sub(all.filters.len()) {
        page.edges = take_fitting_items(all.edges.get(edge..).unwrap_or_default(), &mut room);
        next += page.edges.len();
    }
    let next = (next < all.filters.len() + all.edges.len()).then_some(next);
    CountReply { counters: page, next }
}

/// Returns the longest beginning of `items` that fits into `room` bytes when serialized. Subtracts
/// the length of these items from `room`, and sets `room` to 0 if an item does not fit. An item
/// longer than [`PAGE_BYTES_MAX`] counts as [`PAGE_BYTES_MAX`] bytes, so that an empty page has
/// room for any item.
fn take_fitting_items<T: Clone + Serialize>(items: &[T], room: &mut usize) -> Vec<T> {
    let fits = |item: &&T| {
        let length = serialized_length(*item).min(PAGE_BYTES_MAX);
        let left = room.checked_sub(length);
        *room = left.unwrap_or(0);
        left.is_some()
    };
    items.iter().take_while(fits).cloned().collect()
}

/// Returns the length in bytes of a value as JSON; 0 if it cannot be serialized.
fn serialized_length(value: &impl Serialize) -> usize {
    struct Length(usize);
    impl std::io::Write for Length {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut length = Length(0);
    serde_json::to_writer(&mut length, value).map_or(0, |()| length.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Amount;

    #[test]
    fn f6_pages_of_counters_contain_each_filter_once() {
        let amount = Amount::default;
        let filter = |node| Filter {
            node,
            name: format!("count#{node}"),
            taken: amount(),
            made: amount(),
            passed: amount(),
            unselected: amount(),
            consumed: amount(),
            held: amount(),
            lost: Vec::new(),
            calls: 0,
            busy_ns: 0,
            ring: None,
            kept: None,
            operand: false,
        };
        let edge = |edge| Edge {
            edge,
            from: "count".to_owned(),
            to: "count".to_owned(),
            kind: "call".to_owned(),
            put: amount(),
            taken: amount(),
            resident: amount(),
            lost: Vec::new(),
            size: None,
        };
        let all = Counters {
            elapsed_ns: 7,
            filters: (0..3000).map(filter).collect(),
            edges: (0..3000).map(edge).collect(),
            adapted: vec!["moved".to_owned()],
            ..Counters::default()
        };
        let (mut read, mut pages, mut next) = (Counters::default(), 0, Some(0));
        while let Some(first) = next {
            let page = counters_page(&all, first);
            assert!(serde_json::to_string(&page).unwrap().len() < crate::varlink::REPLY_BYTES_MAX);
            next = page.next;
            read.append(page.counters);
            pages += 1;
        }
        assert_eq!(read, all);
        assert!(pages > 5, "{pages}");
    }
}
