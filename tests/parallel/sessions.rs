//! Tests of replicated filters with sessions. Both directions of a session stay with one replica.

use crate::collected::{RecordedBlock, collect, run_replicated};
use crate::scratch::Scratch;
use std::collections::HashMap;

/// Renumbers sessions by first appearance, because replicas assign different numbers from a single
/// instance.
pub(crate) fn renumber_sessions(seen: Vec<RecordedBlock>) -> Vec<RecordedBlock> {
    let mut numbers = HashMap::new();
    let number = |seen: RecordedBlock| {
        let next = numbers.len() as u32;
        let session = match seen.session {
            0 => 0,
            known => *numbers.entry(known).or_insert(next) + 1,
        };
        RecordedBlock { session, ..seen }
    };
    seen.into_iter().map(number).collect()
}

#[test]
fn n2_n9_v13_replicas_by_session_keep_output_and_order() {
    let scratch = Scratch::new();
    let mut random = testkit::Random::replayable();
    for connections in [1, 7, 60] {
        let file = scratch.path("traffic.pcap");
        let capture = testkit::traffic::mixed_traffic(random.below(1 << 32), connections);
        std::fs::write(&file, capture.to_pcap()).expect("a capture");
        let file = file.display();
        // Blocks released by time may leave in another order (decision 0048); by a reset, too.
        for chain in [
            "tcp gap=1h",
            "ip | tcp gap=1h",
            "tcp gap=1h | http",
            "tcp gap=1h | regex \"a[0-9]\" |all",
            "udp | dns",
        ] {
            let pipe = if chain.ends_with("|all") { "" } else { "| " };
            let text = format!("replay '{file}' | {chain} {pipe}KEEP | discard");
            let one = renumber_sessions(collect(&text, 1));
            for replicas in 2..=4 {
                let several = renumber_sessions(collect(&text, replicas));
                let first = one.iter().zip(&several).position(|(one, other)| one != other);
                let differ = first.map(|at| (at, &one[at], &several[at]));
                assert_eq!(differ, None, "{text}: {replicas} copies");
                assert_eq!(one.len(), several.len(), "{text}: {replicas} copies");
            }
        }
    }
}

/// Returns a capture with gaps that ends early: many connections never close, requests have no
/// response, and segments wait for missing segments.
fn truncated_traffic(seed: u64, connections: usize) -> testkit::traffic::Capture {
    let mut random = testkit::Random::new(seed);
    let mut capture = testkit::traffic::mixed_traffic(seed, connections);
    let keep = capture.frames.len() * 2 / 3;
    capture.frames.truncate(keep);
    capture.frames.retain(|_| random.below(12) > 0);
    // All at the same time, so that no timeout occurs before the end.
    let first = capture.frames.first().map_or(0, |(time, _)| *time);
    capture.frames.iter_mut().for_each(|(time, _)| *time = first);
    capture
}

#[test]
fn n2_v13_open_sessions_end_in_single_instance_order() {
    let scratch = Scratch::new();
    let file = scratch.path("torn.pcap");
    let mut random = testkit::Random::replayable();
    for connections in [3, 40, 300] {
        let capture = truncated_traffic(random.below(1 << 32), connections);
        std::fs::write(&file, capture.to_pcap()).expect("a capture");
        for chain in ["tcp |", "tcp | http |all", "tcp |all tls |all", "tcp |all dns |all"] {
            let text = format!("replay '{}' | {chain} KEEP | discard", file.display());
            let (one, _) = run_replicated(&text, 1);
            let one = renumber_sessions(one);
            for replicas in 2..=4 {
                let (several, outcome) = run_replicated(&text, replicas);
                let several = renumber_sessions(several);
                let first = one.iter().zip(&several).position(|(one, other)| one != other);
                let differ = first.map(|at| (at, one.len(), &one[at], &several[at]));
                assert_eq!(differ, None, "{text}: {replicas} copies");
                assert_eq!(one.len(), several.len(), "{text}: {replicas} copies");
                let rows = outcome.ledger.filters.iter();
                let late = rows.flat_map(|row| &row.counters).find(|(name, _)| name == "late");
                assert_eq!(late, None, "{text}: {replicas} copies");
            }
        }
    }
}
