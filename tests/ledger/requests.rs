//! Tests of requests that run to their end.

use crate::probes::{
    PROBE_FILTERS, blocks_sent, captured_frame_numbers, distinct_numbers, edge_drop_count,
    missing_block_count, reported_numbers,
};
use crate::request::PlannedRequest;
use crate::scratch::Scratch;
use engine::build::RunSettings;
use engine::run::RunOutcome;
use std::collections::BTreeSet;
use testkit::Random;

/// Names of the test filters that drop blocks and report their numbers.
const DROPPING_PROBES: [&str; 3] = ["third", "even", "few"];

fn run_balanced_request(text: &str, settings: RunSettings) -> RunOutcome {
    let outcome = PlannedRequest::with_filters(text, PROBE_FILTERS).run_threaded(settings);
    assert!(outcome.failures.is_empty(), "{text}: {:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    outcome
}

/// Runs a request without branches that sends `sent` numbers through the filters `behind` to a
/// capture. Asserts that each number either arrived or was reported as dropped by a test filter,
/// and that the ledger agrees.
fn assert_every_number_accounted_for(behind: &str, sent: u64) {
    let scratch = Scratch::new();
    let file = scratch.path("arrived.pcap");
    let text = format!("generate count={sent} seq=yes{behind} | pcap '{}'", file.display());
    let outcome = run_balanced_request(&text, RunSettings::default());
    let arrived = distinct_numbers(captured_frame_numbers(&file));
    let lost = distinct_numbers(
        DROPPING_PROBES.iter().flat_map(|probe| reported_numbers(&outcome, probe).into_keys()),
    );
    let all: BTreeSet<u64> = arrived.union(&lost).copied().collect();
    assert!(arrived.is_disjoint(&lost), "{text}: what arrived was not lost");
    assert!(all.iter().copied().eq(0..sent), "{text}: {} of {sent} accounted for", all.len());
    assert_eq!(blocks_sent(&outcome), sent, "{text}");
    assert_eq!(
        missing_block_count(&outcome),
        lost.len() as u64,
        "{text}: what the ledger says is missing"
    );
}

#[test]
fn v2_blocks_dropped_by_filters_are_reported_by_number() {
    assert_every_number_accounted_for("", 20_000);
    assert_every_number_accounted_for(" | third", 20_000);
    assert_every_number_accounted_for(" | even", 20_000);
    assert_every_number_accounted_for(" | few", 20_000);
    assert_every_number_accounted_for(" | hoard", 20_000);
    assert_every_number_accounted_for(" | third@thread0 | even@thread1 | few@thread2", 20_000);
}

#[test]
fn random_requests_account_for_every_number() {
    let mut random = Random::with_replayable_seed();
    let pieces = ["third", "even", "few", "hoard", "watch", "count", "inspect", "dport |9", "udp"];
    for _ in 0..60 {
        let mut behind = String::new();
        let mut arc = "|";
        let mut space = 0;
        let mut left = pieces.to_vec();
        for _ in 0..random.within(1..6) {
            // Each at most once, so that its report is what it lost; spaces ascend.
            let piece = left.swap_remove(random.within(0..left.len()));
            space += random.below(2);
            let (name, next) = piece.split_once(' ').unwrap_or((piece, "|"));
            behind += &format!(" {arc}{} {name}@thread{space}", if arc == "|" { "" } else { " " });
            arc = next;
        }
        if arc != "|" {
            behind += &format!(" {arc} watch@thread{space}");
        }
        assert_every_number_accounted_for(&behind, random.below(3000) + 1);
    }
}

#[test]
fn rings_between_the_same_spaces_are_counted_separately() {
    let text = "generate@thread0 count=9000 seq=yes \
                | (third@thread0 | count@thread1) + (even@thread0 | inspect@thread1) + few@thread1";
    let outcome = run_balanced_request(text, RunSettings::default());
    assert_eq!(blocks_sent(&outcome), 9000);
}

#[test]
fn branched_blocks_arrive_once_per_branch() {
    let text = "generate count=9000 seq=yes | (third | count) + (even | inspect) + few | watch";
    let outcome = run_balanced_request(text, RunSettings::default());
    let lost = DROPPING_PROBES.map(|probe| reported_numbers(&outcome, probe));
    let reported = reported_numbers(&outcome, "watch");
    for number in 0..9000 {
        let lost = lost.iter().filter(|lost| lost.contains_key(&number)).count() as u64;
        let reported = reported.get(&number).copied().unwrap_or(0);
        assert_eq!(reported + lost, 3, "number {number} in three branches");
    }
}

#[test]
fn a5_a13_cycle_passes_every_number_sixteen_times() {
    let text = "generate count=3000 seq=yes | dport --name=X |9 (watch | dport --name=X) + discard";
    let outcome = run_balanced_request(text, RunSettings::default());
    let reported = reported_numbers(&outcome, "watch");
    assert!(reported.keys().copied().eq(0..3000));
    assert!(reported.values().all(|times| *times == 17), "once, and sixteen times around");
    assert_eq!(edge_drop_count(&outcome, "too many hops"), 3000);
}

#[test]
fn full_cycle_drops_with_a_reason() {
    // Held blocks are released at once: more batches than fit the back edge.
    let text = "generate count=30000 seq=yes | hoard \
                | dport --name=X |9 (watch | dport --name=X) + discard";
    let outcome = run_balanced_request(text, RunSettings::default());
    let reported = reported_numbers(&outcome, "watch");
    assert!(reported.keys().copied().eq(0..30_000));
    let times = |n: u64| reported.values().filter(|times| **times == n).count() as u64;
    assert_eq!(times(1) + times(17), 30_000, "around to the end, or not at all");
    assert!(times(1) > 0 && times(17) > 0);
    assert_eq!(edge_drop_count(&outcome, "cycle full"), times(1));
    assert_eq!(edge_drop_count(&outcome, "too many hops"), times(17));
}

#[test]
fn blocks_after_the_block_limit_are_reported_not_lost() {
    for space in ["", "@thread0"] {
        let scratch = Scratch::new();
        let file = scratch.path("some.pcap");
        let text = format!("generate seq=yes | count{space} | pcap '{}'", file.display());
        let settings = RunSettings { count: Some(1234), ..RunSettings::default() };
        let outcome = run_balanced_request(&text, settings);
        assert!(captured_frame_numbers(&file).into_iter().eq(0..1234), "{text}");
        assert_eq!(blocks_sent(&outcome), 1234 + missing_block_count(&outcome), "{text}");
        assert_eq!(outcome.ledger.lost_blocks(), 0, "{text}");
    }
}
