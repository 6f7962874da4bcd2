//! Filters with sessions: each session stays with its copy, both ways.

use crate::kept::{Seen, kept, run};
use crate::scratch::Scratch;
use std::collections::HashMap;

/// The same with sessions numbered in the order in which they are met: copies give other numbers.
fn numbered(seen: Vec<Seen>) -> Vec<Seen> {
    let mut numbers = HashMap::new();
    let number = |seen: Seen| {
        let next = numbers.len() as u32;
        let session = match seen.session {
            0 => 0,
            known => *numbers.entry(known).or_insert(next) + 1,
        };
        Seen { session, ..seen }
    };
    seen.into_iter().map(number).collect()
}

#[test]
fn n2_n9_v13_copies_by_session_give_what_one_gives_in_the_same_order() {
    let scratch = Scratch::new();
    let mut random = testkit::Random::replayable();
    for connections in [1, 7, 60] {
        let file = scratch.path("traffic.pcap");
        let capture = testkit::traffic::traffic(random.below(1 << 32), connections);
        std::fs::write(&file, capture.to_pcap()).expect("a capture");
        let file = file.display();
        // What falls due by time may leave in another order (decision 0048); a reset does, too.
        for chain in [
            "tcp gap=1h",
            "ip | tcp gap=1h",
            "tcp gap=1h | http",
            "tcp gap=1h | regex \"a[0-9]\" |all",
            "udp | dns",
        ] {
            let pipe = if chain.ends_with("|all") { "" } else { "| " };
            let text = format!("replay '{file}' | {chain} {pipe}KEEP | discard");
            let one = numbered(kept(&text, 1));
            for copies in 2..=4 {
                let several = numbered(kept(&text, copies));
                let first = one.iter().zip(&several).position(|(one, other)| one != other);
                let differ = first.map(|at| (at, &one[at], &several[at]));
                assert_eq!(differ, None, "{text}: {copies} copies");
                assert_eq!(one.len(), several.len(), "{text}: {copies} copies");
            }
        }
    }
}

/// Some of the frames: a part is missing here and there, and the end. Many connections never close,
/// requests have no response, and segments wait for what never comes.
fn torn(seed: u64, connections: usize) -> testkit::traffic::Capture {
    let mut random = testkit::Random::new(seed);
    let mut capture = testkit::traffic::traffic(seed, connections);
    let keep = capture.frames.len() * 2 / 3;
    capture.frames.truncate(keep);
    capture.frames.retain(|_| random.below(12) > 0);
    // All at once, so that nothing is given up before the end.
    let first = capture.frames.first().map_or(0, |(time, _)| *time);
    capture.frames.iter_mut().for_each(|(time, _)| *time = first);
    capture
}

#[test]
fn n2_v13_open_sessions_end_in_the_order_of_one_instance() {
    let scratch = Scratch::new();
    let file = scratch.path("torn.pcap");
    let mut random = testkit::Random::replayable();
    for connections in [3, 40, 300] {
        let capture = torn(random.below(1 << 32), connections);
        std::fs::write(&file, capture.to_pcap()).expect("a capture");
        for chain in ["tcp |", "tcp | http |all", "tcp |all tls |all", "tcp |all dns |all"] {
            let text = format!("replay '{}' | {chain} KEEP | discard", file.display());
            let (one, _) = run(&text, 1);
            let one = numbered(one);
            for copies in 2..=4 {
                let (several, outcome) = run(&text, copies);
                let several = numbered(several);
                let first = one.iter().zip(&several).position(|(one, other)| one != other);
                let differ = first.map(|at| (at, one.len(), &one[at], &several[at]));
                assert_eq!(differ, None, "{text}: {copies} copies");
                assert_eq!(one.len(), several.len(), "{text}: {copies} copies");
                let rows = outcome.ledger.filters.iter();
                let late = rows.flat_map(|row| &row.counters).find(|(name, _)| name == "late");
                assert_eq!(late, None, "{text}: {copies} copies");
            }
        }
    }
}
