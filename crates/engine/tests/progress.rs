//! Tests of progress reports of a running request: sources report while they work, wait or sleep.

use engine::build::{RunSettings, build};
use engine::registry::MachineRegistry;
use engine::run::{Progress, ProgressWatch, RunOutcome, StopConditions, run};
use pipeline::plan::{Machine, plan};
use std::cell::RefCell;
use std::os::fd::AsFd as _;
use sys::eventfd::EventFd;

/// Interval between two progress reports, in ns.
const REPORT_INTERVAL_NS: u64 = 100_000_000;
/// A time limit in ns, so long that no test reaches it.
const TIME_LIMIT_NS: u64 = 60_000_000_000;

/// Runs a request until `enough` returns true for the progress reports received so far. Returns the
/// reports and the outcome.
fn collect_progress(
    text: &str,
    enough: impl Fn(&[Progress]) -> bool,
) -> (Vec<Progress>, RunOutcome) {
    collect_reports(REPORT_INTERVAL_NS, text, enough)
}

fn collect_reports(
    every_ns: u64,
    text: &str,
    enough: impl Fn(&[Progress]) -> bool,
) -> (Vec<Progress>, RunOutcome) {
    let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &MachineRegistry::Local, &Machine::example()).expect("a plan");
    let paths = build(&plan, RunSettings::default()).expect("spaces");
    let (reports, stop) = (RefCell::new(Vec::new()), EventFd::new().expect("an event"));
    let report_progress = |progress: &Progress| {
        let mut reports = reports.borrow_mut();
        reports.push(progress.clone());
        if enough(&reports) {
            stop.notify();
        }
    };
    let watch = Some(ProgressWatch { interval_ns: every_ns, report: &report_progress });
    let until = StopConditions {
        time_limit_ns: Some(TIME_LIMIT_NS),
        stop_descriptor: Some(stop.as_fd()),
        watch,
        ..StopConditions::default()
    };
    let outcome = run(paths, until).expect("a run");
    assert!(outcome.elapsed_ns < TIME_LIMIT_NS, "it was never enough: {:?}", reports.borrow());
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), []);
    (reports.into_inner(), outcome)
}

#[test]
fn progress_grows_to_the_final_totals() {
    // On a busy machine a space may not answer in time.
    let answered = |report: &Progress| report.unresponsive.is_empty();
    let (reports, outcome) = collect_progress("generate rate=20000 | count", |reports| {
        reports.iter().filter(|report| answered(report)).count() >= 5
    });
    // On a busy machine reports are late, but never more frequent.
    let most = outcome.elapsed_ns / REPORT_INTERVAL_NS;
    assert!(reports.len() as u64 <= most, "as often as was asked for: {} of {most}", reports.len());
    // On a busy machine, the first reports may lack sources.
    let has_sources = |report: &Progress| !report.stopped && !report.sources.is_empty();
    let reports: Vec<Progress> = reports.into_iter().filter(has_sources).collect();
    let given: Vec<u64> = reports.iter().map(|report| report.sources[0].1.given.blocks).collect();
    let grew = |two: &[Progress]| two[0].sources != two[1].sources || !answered(&two[1]);
    assert!(given.is_sorted() && reports.windows(2).all(grew), "{reports:?}");
    assert!(*given.last().expect("one") <= outcome.ledger.sources[0].1.given.blocks, "{given:?}");
    assert!(reports.iter().all(|report| report.sources[0].0 == "generate"));
    assert!(reports.is_sorted_by(|a, b| a.elapsed_ns + REPORT_INTERVAL_NS / 2 <= b.elapsed_ns));
}

#[test]
fn sleeping_source_wakes_up_to_report_progress() {
    // One space sleeps on a descriptor that never becomes ready, the other without a limit.
    for text in ["exec \"sleep 1000\" | count", "exec \"sleep 1000\" | count | exec \"cat\""] {
        let (reports, _) = collect_progress(text, |reports| reports.len() == 3);
        for report in reports {
            let sources: Vec<_> = report.sources.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(sources, ["exec"], "{text}: the head alone is a source");
            assert_eq!(report.sources[0].1.given.blocks, 0);
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
    let is_late = |report: &Progress| report.unresponsive == ["generate"];
    let (reports, outcome) = collect_progress(&text, |reports| {
        let enough = reports.windows(2).any(|two| two.iter().all(is_late));
        if enough {
            std::fs::write(&mark, "").expect("a mark");
        }
        enough
    });
    std::fs::remove_file(&mark).expect("a mark");
    let late = reports.iter().find(|report| is_late(report)).expect("one");
    let given = late.sources[0].1.given.blocks;
    assert!(given < 1500, "no more than the pipe holds: {given}");
    assert!(outcome.ledger.sources[0].1.given.blocks >= given);
}

#[test]
fn ended_source_is_reported_and_not_blocked() {
    // The first path ends before the first query; the second continues.
    let text = "generate count=10 | count ; generate rate=1000 | count";
    let has_ended = |report: &&Progress| report.sources[0].1.given.blocks == 10;
    let (reports, _) =
        collect_progress(text, |reports| reports.iter().filter(has_ended).count() >= 3);
    for report in reports.iter().skip_while(|report| !has_ended(report)) {
        assert!(has_ended(&report), "{report:?}");
        assert!(report.unresponsive.len() < 2, "{report:?}");
    }
}

#[test]
fn every_source_of_every_path_is_reported() {
    let text = "generate rate=1000 | count ; generate rate=1000 size=100 | count";
    let (reports, _) = collect_progress(text, |reports| reports.len() == 2);
    assert!(reports.iter().all(|report| report.sources.len() == 2), "{reports:?}");
}

#[test]
fn short_run_reports_no_progress() {
    let (reports, outcome) = collect_reports(TIME_LIMIT_NS, "generate count=10 | count", |_| false);
    assert_eq!((reports.len(), outcome.stopped), (0, false));
}
