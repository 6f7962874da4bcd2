//! How far a line is, told while it runs: sources answer whether they work, wait or sleep.

use engine::build::{Settings, build};
use engine::catalogue::House;
use engine::run::{Outcome, Progress, Until, Watch, run};
use pipeline::plan::{Machine, plan};
use std::cell::RefCell;

/// Runs a line for `for_ns`; answers what was told every `every_ns`, and what became of it.
fn told(text: &str, every_ns: u64, for_ns: u64) -> (Vec<Progress>, Outcome) {
    let (graph, mistakes) = pipeline::read(text, &House);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &House, &Machine::example()).expect("a plan");
    let paths = build(&plan, Settings::default()).expect("spaces");
    let told = RefCell::new(Vec::new());
    let tell = |progress: &Progress| told.borrow_mut().push(progress.clone());
    let watch = Some(Watch { every_ns, tell: &tell });
    let until = Until { elapsed: Some(for_ns), watch, ..Until::default() };
    let outcome = run(paths, until).expect("a run");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), []);
    (told.into_inner(), outcome)
}

#[test]
fn what_was_given_so_far_grows_to_what_was_given_in_all() {
    let (told, outcome) = told("generate rate=20000 | count", 100_000_000, 650_000_000);
    assert!((1..=6).contains(&told.len()), "as often as was asked for: {}", told.len());
    let given: Vec<u64> = told.iter().map(|told| told.sources[0].1.given.blocks).collect();
    assert!(given[0] > 0 && given.is_sorted_by(|a, b| a < b), "{given:?}");
    assert!(*given.last().expect("one") <= outcome.ledger.sources[0].1.given.blocks, "{given:?}");
    assert!(told.iter().all(|told| told.sources[0].0 == "generate" && !told.stopped));
    assert!(told.is_sorted_by(|a, b| a.elapsed_ns + 50_000_000 < b.elapsed_ns));
}

#[test]
fn who_sleeps_is_woken_to_answer() {
    // One sleeps on a descriptor that never becomes ready, the other would sleep for ever.
    for text in ["exec \"sleep 1000\" | count", "exec \"sleep 1000\" | count | exec \"cat\""] {
        let (told, _) = told(text, 50_000_000, 220_000_000);
        assert!(!told.is_empty());
        for told in told {
            let sources: Vec<_> = told.sources.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(sources, ["exec"], "{text}: the head alone is a source");
            assert_eq!(told.sources[0].1.given.blocks, 0);
        }
    }
}

#[test]
fn every_source_of_every_path_is_told() {
    let text = "generate rate=1000 | count ; generate rate=1000 size=100 | count";
    let (told, _) = told(text, 100_000_000, 250_000_000);
    assert!(!told.is_empty());
    assert!(told.iter().all(|told| told.sources.len() == 2), "{told:?}");
}

#[test]
fn nothing_is_told_of_a_line_that_is_over_before() {
    let (told, outcome) = told("generate count=10 | count", 60_000_000_000, u64::MAX);
    assert_eq!((told.len(), outcome.stopped), (0, false));
}
