//! Tests of automatic replicas: a path adds replicas of filters, and removes them again.

use crate::common::{StopGuard, blocks_emitted, received_numbers, test_settings};
use engine::build::{PathOptions, build_with_options};
use engine::kernel::shared_attach_point::AttachPoints;
use engine::live::PathHandle;
use engine::path::{AdaptationSettings, RatePolicy};
use engine::registry::MachineRegistry;
use engine::run::{RunOutcome, StopConditions, run};
use pipeline::plan::{Costs, Machine, MovePeriod, plan};
use std::sync::Arc;

/// Runs a request with adaptation until `holds` returns true, then stops it. Asserts that no
/// failure occurs and that the ledger balances.
fn run_with_adaptation(text: &str, what: &str, holds: impl Fn(&PathHandle) -> bool) -> RunOutcome {
    let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &MachineRegistry::Local, &Machine::example()).expect("a plan");
    assert!(plan.replicas.is_empty(), "nothing is known of costs");
    // With crossings at no cost, replicas of any filter seem to pay.
    let costs = Costs { ring: 0.0, wake: 0.0, head: 0.0, call: 0.0, ..Costs::default() };
    let machine = Machine { costs, ..Machine::example() };
    let rate_policy =
        RatePolicy { observation_ns: 5_000_000, pause_ns: 20_000_000, ..RatePolicy::default() };
    let adapt = Some(Arc::new(AdaptationSettings {
        machine,
        may_replicate: true,
        may_move_stages: false,
        moves: MovePeriod::Never,
        may_move_sinks: false,
        may_move_sessions: false,
        rate_policy,
    }));
    let extras = PathOptions { adaptation: adapt, ..PathOptions::default() };
    let paths = build_with_options(&plan, test_settings(), &AttachPoints::default(), &extras)
        .expect("spaces");
    let live = paths[0].live();
    live.set_request_text(text);
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| run(paths, StopConditions::default()).expect("a run"));
        let stop = StopGuard(&live);
        testkit::wait_until(what, || live.has_ended() || holds(&live));
        assert!(!live.has_ended(), "it ended before {what}");
        drop(stop);
        run.join().expect("a run")
    });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    outcome
}

/// Asserts that no automatic change lost, duplicated or reordered a block. Returns the number of
/// changes of the kind `how`.
fn assert_lossless_changes(outcome: &RunOutcome, how: &str) -> usize {
    let switches = outcome.adapted.iter().filter(|change| change.contains("switched at block"));
    for change in switches.clone() {
        assert!(change.contains("lost 0, duplicated 0, reordered 0"), "{change}");
    }
    switches.filter(|change| change.starts_with(how)).count()
}

#[test]
fn n1_v13_expensive_filter_is_replicated_once_measured() {
    let text = "--parallel=latency generate seq=yes size=1400 | match hex=ff |all match hex=fe \
                |all match hex=fd |all pcap dear";
    let copied = |live: &PathHandle| !live.adaptations().is_empty();
    let outcome = run_with_adaptation(text, "copies", copied);
    assert!(assert_lossless_changes(&outcome, "replicas: `") > 0, "{:?}", outcome.adapted);
    assert!(
        received_numbers("dear").into_iter().eq(0..blocks_emitted(&outcome)),
        "each once, in order"
    );
}

#[test]
fn n1_v13_idle_replicas_are_removed() {
    let text = "--parallel=latency generate rate=500 seq=yes | inspect | match hex=ff \
                |all pcap little";
    // A thread that sleeps needs no replicas, whatever its filters cost.
    let outcome =
        run_with_adaptation(text, "it has looked often", |live| live.observation_count() > 8);
    let shared = assert_lossless_changes(&outcome, "replicas: `");
    // On an overloaded machine a thread may seem never to sleep, so the last replicas may remain.
    let back = assert_lossless_changes(&outcome, "one replica again: ");
    assert!(back == shared || back + 1 == shared, "{:?}", outcome.adapted);
    assert!(
        received_numbers("little").into_iter().eq(0..blocks_emitted(&outcome)),
        "each once, in order"
    );
}
