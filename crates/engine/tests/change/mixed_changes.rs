//! Tests of many successive changes under traffic. A sink that is never removed receives every
//! number of the source once and in order. A sink that is added and later removed receives
//! consecutive numbers.

use crate::common::{
    blocks_emitted, edit_losslessly, received_numbers, run_while, wait_for_blocks,
};
use std::time::Instant;

/// Makes at least `changes` changes of alternating kinds, at intervals of `between` blocks.
fn run_mixed_changes(name: &str, rate: &str, changes: usize, between: u64) {
    let text = format!("generate {rate} seq=yes flows=64 | udp | inspect | pcap {name}");
    let (peers, outcome) = run_while(&text, |live| {
        let begin = Instant::now();
        let (mut peers, mut longest, mut all) = (Vec::new(), 0, 0);
        'changes: loop {
            let peer = format!("{name}-{}", peers.len());
            let mix = [
                "insert dport after udp".to_owned(),
                "replace dport with sport".to_owned(),
                format!("insert pcap@thread1 {peer} at inspect"),
                "move inspect to thread1".to_owned(),
                "upgrade udp".to_owned(),
                "remove sport".to_owned(),
                "move inspect to thread0".to_owned(),
                "remove pcap:1".to_owned(),
            ];
            for words in &mix {
                wait_for_blocks(live, between);
                let switched = edit_losslessly(live, words);
                longest = longest.max(switched.paused_ns);
                if words.starts_with("insert pcap") {
                    peers.push((peer.clone(), switched.text.clone()));
                }
                all += 1;
                // The last round is completed, so that every added sink is removed.
                if all >= changes && words.starts_with("remove pcap") {
                    break 'changes;
                }
            }
        }
        wait_for_blocks(live, between);
        let given = live.take_snapshot(crate::common::TIME_LIMIT).ledger.sources[0].1.given.blocks;
        let seconds = begin.elapsed().as_secs_f64();
        eprintln!(
            "{name}: {all} changes among {given} blocks in {seconds:.1} s; longest pause {} µs",
            longest / 1000
        );
        peers
    });
    assert!(
        received_numbers(name).into_iter().eq(0..blocks_emitted(&outcome)),
        "each once, in order"
    );
    let dropped: Vec<_> = outcome.ledger.sources.iter().flat_map(|(_, s)| &s.dropped).collect();
    eprintln!("{name}: dropped at the source: {dropped:?}");
    let mut before = 0;
    for (peer, _) in peers {
        let numbers = received_numbers(&peer);
        let (first, last) = (numbers[0], numbers[numbers.len() - 1]);
        assert!(numbers.into_iter().eq(first..=last), "{peer}: no hole, no number twice");
        assert!(first >= before, "{peer} came after the one before had left");
        before = last;
    }
}

#[test]
fn v3_mixed_changes_at_10000_blocks_a_second_lose_nothing() {
    run_mixed_changes("short", "rate=10000", 40, 50);
}

#[test]
fn v3_mixed_changes_at_the_highest_rate_lose_nothing() {
    run_mixed_changes("fast", "size=64", 8, 20_000);
}

#[test]
#[ignore = "half a minute: cargo test --release -p streamline-engine --test change -- --ignored \
            --nocapture v3_200"]
fn v3_mixed_changes_at_two_rates_lose_nothing() {
    run_mixed_changes("long", "rate=10000", 200, 500);
    run_mixed_changes("highest", "size=64", 24, 1_000_000);
}
