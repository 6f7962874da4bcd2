//! Filters with sessions: each session stays with its copy, both ways.

use crate::kept::{Seen, kept};
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
        for chain in ["tcp", "ip | tcp", "tcp | http", "tcp | regex \"a[0-9]\" |all", "udp | dns"] {
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
