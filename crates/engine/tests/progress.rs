//! Progress reports of a running line: sources answer while they work, wait or sleep.

use engine::build::{Settings, build};
use engine::registry::MachineRegistry;
use engine::run::{Outcome, Progress, ProgressWatch, Until, run};
use pipeline::plan::{Machine, plan};
use std::cell::RefCell;
use std::os::fd::AsFd as _;
use sys::eventfd::EventFd;

/// The reporting interval.
const EVERY_NS: u64 = 100_000_000;
/// A time limit that no machine reaches, in ns.
const LONG_NS: u64 = 60_000_000_000;

/// Runs a line until enough reports arrived; returns the reports and the outcome.
fn told(text: &str, enough: impl Fn(&[Progress]) -> bool) -> (Vec<Progress>, Outcome) {
    reports_every(EVERY_NS, text, enough)
}

fn reports_every(
    every_ns: u64,
    text: &str,
    enough: impl Fn(&[Progress]) -> bool,
) -> (Vec<Progress>, Outcome) {
    let (graph, mistakes) = pipeline::read(text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &MachineRegistry::Local, &Machine::example()).expect("a plan");
    let paths = build(&plan, Settings::default()).expect("spaces");
    let (told, stop) = (RefCell::new(Vec::new()), EventFd::new().expect("an event"));
    let tell = |progress: &Progress| {
        let mut told = told.borrow_mut();
        told.push(progress.clone());
        if enough(&told) {
            stop.notify();
        }
    };
    let watch = Some(ProgressWatch { every_ns, tell: &tell });
    let until =
        Until { elapsed: Some(LONG_NS), readable: Some(stop.as_fd()), watch, ..Until::default() };
    let outcome = run(paths, until).expect("a run");
    assert!(outcome.elapsed_ns < LONG_NS, "it was never enough: {:?}", told.borrow());
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), []);
    (told.into_inner(), outcome)
}

#[test]
fn progress_grows_to_the_final_totals() {
    // On a busy machine a space may not answer in time.
    let answered = |told: &Progress| told.held_up.is_empty();
    let (told, outcome) = told("generate rate=20000 | count", |told| {
        told.iter().filter(|told| answered(told)).count() >= 5
    });
    // On a busy machine reports are late, but never more frequent.
    let most = outcome.elapsed_ns / EVERY_NS;
    assert!(told.len() as u64 <= most, "as often as was asked for: {} of {most}", told.len());
    // The first reports may lack sources for the same reason.
    let reports = |told: &Progress| !told.stopped && !told.sources.is_empty();
    let told: Vec<Progress> = told.into_iter().filter(reports).collect();
    let given: Vec<u64> = told.iter().map(|told| told.sources[0].1.given.blocks).collect();
    let grew = |two: &[Progress]| two[0].sources != two[1].sources || !answered(&two[1]);
    assert!(given.is_sorted() && told.windows(2).all(grew), "{told:?}");
    assert!(*given.last().expect("one") <= outcome.ledger.sources[0].1.given.blocks, "{given:?}");
    assert!(told.iter().all(|told| told.sources[0].0 == "generate"));
    assert!(told.is_sorted_by(|a, b| a.elapsed_ns + EVERY_NS / 2 <= b.elapsed_ns));
}

#[test]
fn sleeping_source_wakes_to_answer() {
    // One space sleeps on a descriptor that never becomes ready, the other without a limit.
    for text in ["exec \"sleep 1000\" | count", "exec \"sleep 1000\" | count | exec \"cat\""] {
        let (told, _) = told(text, |told| told.len() == 3);
        for told in told {
            let sources: Vec<_> = told.sources.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(sources, ["exec"], "{text}: the head alone is a source");
            assert_eq!(told.sources[0].1.given.blocks, 0);
        }
    }
}

#[test]
fn blocked_source_is_named_with_its_previous_totals() {
    // The program reads nothing until the mark exists, and a pipe holds some hundred KB.
    let mark = std::env::temp_dir().join(format!("streamline-progress-{}", std::process::id()));
    let _ = std::fs::remove_file(&mark);
    let wait = format!("until [ -e {} ]; do sleep 0.01; done; cat > /dev/null", mark.display());
    let text = format!("generate size=1000 rate=2000 | exec \"{wait}\"");
    let is_late = |told: &Progress| told.held_up == ["generate"];
    let (told, outcome) = told(&text, |told| {
        let enough = told.windows(2).any(|two| two.iter().all(is_late));
        if enough {
            std::fs::write(&mark, "").expect("a mark");
        }
        enough
    });
    std::fs::remove_file(&mark).expect("a mark");
    let late = told.iter().find(|told| is_late(told)).expect("one");
    let given = late.sources[0].1.given.blocks;
    assert!(given < 1500, "no more than the pipe holds: {given}");
    assert!(outcome.ledger.sources[0].1.given.blocks >= given);
}

#[test]
fn ended_source_is_reported_and_not_blocked() {
    // The first path ends before the first query; the second continues.
    let text = "generate count=10 | count ; generate rate=1000 | count";
    let has_ended = |told: &&Progress| told.sources[0].1.given.blocks == 10;
    let (told, _) = told(text, |told| told.iter().filter(has_ended).count() >= 3);
    for told in told.iter().skip_while(|told| !has_ended(told)) {
        assert!(has_ended(&told), "{told:?}");
        assert!(told.held_up.len() < 2, "{told:?}");
    }
}

#[test]
fn every_source_of_every_path_is_reported() {
    let text = "generate rate=1000 | count ; generate rate=1000 size=100 | count";
    let (told, _) = told(text, |told| told.len() == 2);
    assert!(told.iter().all(|told| told.sources.len() == 2), "{told:?}");
}

#[test]
fn short_run_reports_no_progress() {
    let (told, outcome) = reports_every(LONG_NS, "generate count=10 | count", |_| false);
    assert_eq!((told.len(), outcome.stopped), (0, false));
}
