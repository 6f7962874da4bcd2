//! Tests of stages: a request whose branches or consecutive filters run in several threads has the
//! same output as in one thread, in the same order.

use crate::collected::{RecordedBlock, collect_replicated, collect_staged};
use crate::scratch::Scratch;
use testkit::Random;

/// Sets the times of all blocks to 0, because they differ between runs.
fn without_times(blocks: Vec<RecordedBlock>) -> Vec<RecordedBlock> {
    blocks.into_iter().map(|block| RecordedBlock { time: 0, ..block }).collect()
}

/// Asserts that the blocks equal those of a run in one thread, in the same order.
fn assert_same_blocks(one: &[RecordedBlock], several: &[RecordedBlock], text: &str) {
    let first = one.iter().zip(several).position(|(one, other)| one != other);
    let differ = first.map(|at| (at, &one[at], &several[at]));
    assert_eq!(differ, None, "{text}");
    assert_eq!(one.len(), several.len(), "{text}");
}

#[test]
fn n4_v13_stages_keep_output_and_order() {
    let mut random = Random::with_replayable_seed();
    let mut most = 0;
    for _ in 0..6 {
        let filters = [
            "compress level=1",
            "times most=3",
            "match hex=07 hex=11",
            "stumble seed=7",
            "(regex \"[0-4]\" + regex \"[5-9a-f]\")",
        ];
        let chain: Vec<&str> = (0..random.within(2..5)).map(|_| *random.pick(&filters)).collect();
        let text = format!(
            "generate count={} seq=yes flows={} size={} | {} |all KEEP | discard",
            random.within(1..3000),
            random.within(1..9),
            random.within(64..300),
            chain.join(" |all "),
        );
        let one = without_times(collect_replicated(&text, 1));
        for processors in 2..=3 {
            let (several, threads) = collect_staged(&text, processors);
            // Branches that meet again stay together, so a short chain may have nothing to divide.
            assert!((1..=processors).contains(&threads), "{text}: {threads} threads");
            assert_same_blocks(&one, &without_times(several), &text);
            most = most.max(threads);
        }
    }
    assert!(most >= 2, "no chain was divided");
}

#[test]
fn n4_v13_open_sessions_end_as_in_one_thread() {
    let scratch = Scratch::new();
    let file = scratch.path("torn.pcap");
    let mut random = Random::with_replayable_seed();
    for connections in [1, 40] {
        let mut capture = testkit::traffic::mixed_traffic(random.below(1 << 32), connections);
        capture.frames.truncate(capture.frames.len() * 2 / 3);
        std::fs::write(&file, capture.to_pcap()).expect("a capture");
        // Blocks that a timer releases may leave in another order (decision 0097).
        for chain in ["tcp gap=1h | http |all", "ip | tcp gap=1h |all regex \"a[0-9]\" |all"] {
            let text = format!("replay '{}' | {chain} KEEP | discard", file.display());
            let (several, threads) = collect_staged(&text, 2);
            assert_eq!(threads, 2, "{text}");
            assert_same_blocks(&collect_replicated(&text, 1), &several, &text);
        }
    }
}
