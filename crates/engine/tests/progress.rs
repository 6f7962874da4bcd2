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
    // A busy machine lets the run end late, and then more is told; but never more often.
    let most = outcome.elapsed_ns / 100_000_000;
    assert!((1..=most).contains(&(told.len() as u64)), "as often as was asked for: {}", told.len());
    let given: Vec<u64> = told.iter().map(|told| told.sources[0].1.given.blocks).collect();
    // On a busy machine a space may not have come to answer.
    let grew = |two: &[Progress]| two[0].sources != two[1].sources || !two[1].held_up.is_empty();
    assert!(given[0] > 0 && given.is_sorted() && told.windows(2).all(grew), "{told:?}");
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
fn who_is_held_up_is_named_and_what_it_said_before_stays() {
    // What takes its blocks begins to read after a second, and a pipe holds some hundred KB.
    let text = "generate size=1000 rate=2000 | exec \"sleep 1; cat > /dev/null\"";
    let (told, outcome) = told(text, 100_000_000, 900_000_000);
    let late = told.last().expect("one");
    assert_eq!(late.held_up, ["generate"], "{told:?}");
    let given = late.sources[0].1.given.blocks;
    assert!(given < 1500, "no more than the pipe holds: {given}");
    assert!(outcome.ledger.sources[0].1.given.blocks >= given);
}

#[test]
fn what_has_ended_is_held_up_by_nobody_and_still_told() {
    // The first path is over before it is asked; the second goes on.
    let text = "generate count=10 | count ; generate rate=1000 | count";
    let (told, _) = told(text, 100_000_000, 350_000_000);
    assert!(told.len() > 1);
    for told in told {
        assert_eq!(told.sources[0].1.given.blocks, 10, "{told:?}");
        assert!(told.held_up.len() < 2, "{told:?}");
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
