//! Automatic replicas: a path adds them to filters by itself, and removes them again.

use crate::common::{Stop, given, numbers, settings};
use engine::build::{Extras, build_with};
use engine::catalogue::House;
use engine::kernel::point::Points;
use engine::live::Live;
use engine::path::{Adapt, Pace};
use engine::run::{Outcome, Until, run};
use pipeline::plan::{Costs, Machine, plan};
use std::sync::Arc;

/// Runs a line that adapts until this holds of it; then it is stopped, and its ledger must balance.
fn adapts(text: &str, what: &str, holds: impl Fn(&Live) -> bool) -> Outcome {
    let (graph, mistakes) = pipeline::read(text, &House);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &House, &Machine::example()).expect("a plan");
    assert!(plan.copied.is_empty(), "nothing is known of costs");
    // Where crossing costs nothing, copies of anything pay: this is about what is done then.
    let costs = Costs { ring: 0.0, wake: 0.0, head: 0.0, call: 0.0, ..Costs::default() };
    let machine = Machine { costs, ..Machine::example() };
    let pace = Pace { look_ns: 5_000_000, rest_ns: 20_000_000, ..Pace::default() };
    let adapt = Some(Arc::new(Adapt { machine, copies: true, moves: false, pace }));
    let extras = Extras { adapt, ..Extras::default() };
    let paths = build_with(&plan, settings(), &Points::default(), &extras).expect("spaces");
    let live = paths[0].live();
    live.says(text);
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| run(paths, Until::default()).expect("a run"));
        let stop = Stop(&live);
        testkit::until(what, || live.is_ended() || holds(&live));
        assert!(!live.is_ended(), "it ended before {what}");
        drop(stop);
        run.join().expect("a run")
    });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    outcome
}

/// Asserts that no change lost, duplicated or reordered a block; returns the number of changes of
/// this kind.
fn changed(outcome: &Outcome, how: &str) -> usize {
    let switches = outcome.adapted.iter().filter(|told| told.contains("switched at block"));
    for told in switches.clone() {
        assert!(told.contains("lost 0, duplicated 0, reordered 0"), "{told}");
    }
    switches.filter(|told| told.starts_with(how)).count()
}

#[test]
fn n1_v13_a_dear_filter_gets_copies_when_it_was_seen_to_be_dear() {
    let text = "--parallel=latency generate seq=yes size=1400 | match hex=ff |all match hex=fe \
                |all match hex=fd |all pcap dear";
    let copied = |live: &Live| !live.adapted().is_empty();
    let outcome = adapts(text, "copies", copied);
    assert!(changed(&outcome, "copies: `") > 0, "{:?}", outcome.adapted);
    assert!(numbers("dear").into_iter().eq(0..given(&outcome)), "each once, in order");
}

#[test]
fn n1_v13_copies_that_have_little_to_do_become_one() {
    let text = "--parallel=latency generate rate=500 seq=yes | inspect | match hex=ff \
                |all pcap little";
    // Whoever sleeps is fast enough, whatever it costs.
    let outcome = adapts(text, "it has looked often", |live| live.looks() > 8);
    let shared = changed(&outcome, "copies: `");
    // On a machine that has not even time for this a thread may seem never to sleep.
    let back = changed(&outcome, "one copy again: ");
    assert!(back == shared || back + 1 == shared, "{:?}", outcome.adapted);
    assert!(numbers("little").into_iter().eq(0..given(&outcome)), "each once, in order");
}
