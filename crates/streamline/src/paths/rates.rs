//! Computation of a path's rates and losses from samples of its counters.

use super::{Amount, Counters, PathUpdate, Totals};
use member::protocol::{Edge, sum_lost_blocks};
use runtime::ledger::{NodeName, RingEnd};
use serde::Serialize;
use std::collections::BTreeMap;

/// Blocks and bytes per second.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Rate {
    /// Number of blocks per second.
    pub blocks: f64,
    /// Number of bytes per second.
    pub bytes: f64,
}

/// Computes the rate from two amounts sampled `ns` apart. The rate is zero if `ns` is zero.
#[must_use]
pub fn compute_rate(before: Amount, now: Amount, ns: u64) -> Rate {
    let seconds = ns as f64 / 1e9;
    let each = |now: u64, before: u64| match seconds > 0.0 {
        true => now.saturating_sub(before) as f64 / seconds,
        false => 0.0,
    };
    Rate { blocks: each(now.blocks, before.blocks), bytes: each(now.bytes, before.bytes) }
}

/// Returns the number of blocks lost per second, from two counts taken `ns` apart. The rate is zero
/// if `ns` is zero.
#[must_use]
pub fn compute_loss_rate(before: u64, now: u64, ns: u64) -> f64 {
    if ns == 0 { 0.0 } else { now.saturating_sub(before) as f64 * 1e9 / ns as f64 }
}

/// Returns the total output of all sources.
#[must_use]
pub fn total_source_output(counters: &Counters) -> Amount {
    let sum =
        |a: Amount, b: Amount| Amount { blocks: a.blocks + b.blocks, bytes: a.bytes + b.bytes };
    counters.sources.iter().map(|source| source.given).fold(Amount::default(), sum)
}

/// Computes a path's totals: its running time, the total output of its sources, and its number of
/// lost blocks.
#[must_use]
pub fn path_totals(counters: &Counters) -> Totals {
    let (given, lost) = (total_source_output(counters), counters.lost_blocks());
    Totals { elapsed_ns: counters.elapsed_ns, given, lost }
}

/// Returns the totals in an update of a path, or computes them from the update's counters if it has
/// no totals. Returns `None` if it contains neither.
#[must_use]
pub fn update_totals(update: &PathUpdate) -> Option<Totals> {
    update.totals.or_else(|| update.counters.as_ref().map(path_totals))
}

/// Returns, for each edge of the plan, the amount that has entered the edge and the number of
/// blocks lost on it, by edge index.
///
/// `counters` has a separate entry for each segment of an edge that leads through a ring. Blocks
/// enter such an edge on its first segment, and may be lost on any segment.
#[must_use]
pub fn edge_totals(counters: &Counters) -> BTreeMap<usize, (Amount, u64)> {
    let mut totals: BTreeMap<usize, (Amount, u64)> = BTreeMap::new();
    for edge in &counters.edges {
        let (entered, lost) = totals.entry(edge.edge).or_default();
        if is_first_segment(edge) {
            entered.blocks += edge.put.blocks;
            entered.bytes += edge.put.bytes;
        }
        *lost += sum_lost_blocks(&edge.lost);
    }
    totals
}

/// Returns true if `edge` counts the blocks that enter an edge of the plan. An edge that leads
/// through a ring has several entries in the counters, one for each segment; only the first segment
/// counts the entering blocks.
fn is_first_segment(edge: &Edge) -> bool {
    // Blocks that leave the join of replicas come from the last filter of the chain, and enter the
    // edge at the join.
    let end = NodeName::from(edge.from.as_str()).ring_end();
    matches!(end, None | Some(RingEnd::Join))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::{Loss, Source};

    #[test]
    fn rates_are_differences_over_time() {
        let amount = |blocks, bytes| Amount { blocks, bytes };
        let rate = compute_rate(amount(10, 1000), amount(30, 5000), 500_000_000);
        assert_eq!(rate, Rate { blocks: 40.0, bytes: 8000.0 });
        assert_eq!(compute_rate(amount(1, 1), amount(2, 2), 0), Rate::default());
    }

    #[test]
    fn filtered_blocks_are_not_losses() {
        let lost = |why: &str, blocks| Loss { why: why.to_owned(), blocks };
        let source = Source {
            name: "rx".to_owned(),
            observed: None,
            given: Amount::default(),
            lost: vec![lost("ring", Some(3)), lost("nic", None), lost("filtered", Some(9))],
        };
        let counters = Counters { sources: vec![source], ..Counters::default() };
        assert!(counters.losses_by_location().contains(&("before rx (ring)".to_owned(), 3)));
    }

    #[test]
    fn edge_through_a_ring_is_counted_once() {
        let segment = |edge: usize, from: &str, to: &str, blocks| Edge {
            edge,
            from: from.to_owned(),
            to: to.to_owned(),
            kind: "call".to_owned(),
            put: Amount { blocks, bytes: blocks * 10 },
            taken: Amount { blocks, bytes: blocks * 10 },
            resident: Amount::default(),
            lost: vec![Loss { why: "ring".to_owned(), blocks: Some(1) }],
            size: None,
        };
        let edges = vec![
            segment(1, "sample", "ring to thread1", 9),
            segment(1, "ring to thread1", "ring from thread0", 8),
            segment(1, "ring from thread0", "pcap", 7),
            segment(0, "match", "match", 5),
            segment(0, "match", "match", 6),
            segment(2, "ring join of match", "count", 4),
        ];
        let totals = edge_totals(&Counters { edges, ..Counters::default() });
        let amount = |blocks| Amount { blocks, bytes: blocks * 10 };
        let expected = [(0, (amount(11), 2)), (1, (amount(9), 3)), (2, (amount(4), 1))];
        assert_eq!(totals, BTreeMap::from(expected));
    }
}
