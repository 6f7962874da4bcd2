//! Tests of filters and sinks of the calling program.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use streamline::report::ReportForm;
use streamline::{Edit, Options, RegistryAdditions};

fn options(own: RegistryAdditions) -> Options {
    Options { own, ..Options::without_daemon() }
}

/// Runs a request, and returns the reports of the filters at its end.
fn end_reports(request: &str, own: &RegistryAdditions) -> String {
    let results = streamline::open(request, options(own.clone())).unwrap().wait().unwrap();
    assert!(!results.has_failed(), "{}", results.sentence());
    results.report().pipeline_end_reports(ReportForm::Text)
}

#[test]
fn request_with_filters_of_the_program_can_be_changed() {
    let taken = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&taken);
    let own = RegistryAdditions::default()
        .with_classifier("odd", |block| Some(u32::from(block.length() % 2 == 1)))
        .with_classifier("any", |_| Some(7))
        .with_sink_fn("tally", move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
    let running =
        streamline::open("generate rate=1000 size=65 | odd |1 tally", options(own)).unwrap();
    let change = |words: &[&str]| running.change(&Edit::parse(words).unwrap()).unwrap();
    change(&["insert", "sample 2", "before", "tally"]);
    change(&["insert", "any", "before", "sample"]);
    let switched = change(&["insert", "tally", "at", "generate"]);
    assert_eq!((switched.lost, switched.duplicated, switched.reordered), (0, 0, 0));
    let last = change(&["remove", "sample"]);
    assert_eq!(last.text, "generate rate=1000 size=65 | tally + (odd |1 any | tally)");
    let before = taken.load(Ordering::Relaxed);
    testkit::wait_until("both sinks are called", || taken.load(Ordering::Relaxed) > before + 2);
    running.stop();
    let results = running.wait().unwrap();
    assert!(!results.has_failed(), "{}", results.sentence());
}

#[test]
fn number_beyond_the_classes_is_no_answer() {
    let own = RegistryAdditions::default()
        .with_classifier("largest", |_| Some(u32::MAX - 2))
        .with_classifier("beyond", |_| Some(u32::MAX - 1))
        .with_classifier("last", |_| Some(u32::MAX));
    for (request, blocks) in [
        ("largest |4294967293 count", 10),
        ("largest | count", 10),
        ("beyond |zero count", 0),
        ("beyond |0 count", 10),
        ("last | count", 0),
        ("last |0 count", 10),
    ] {
        let report = end_reports(&format!("generate count=10 | {request}"), &own);
        assert!(report.starts_with(&format!("{blocks} blocks")), "{request}: {report}");
    }
}
