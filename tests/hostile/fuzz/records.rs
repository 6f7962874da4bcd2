//! Fuzz body for records: an untrusted file is opened, planned and replayed.

use super::fuzz_target::FuzzTarget;
use crate::scratch::Scratch;
use engine::build::{PathOptions, RunSettings, build_with_options};
use engine::change::change;
use engine::digest::digest;
use engine::kernel::shared_attach_point::AttachPoints;
use engine::record::{
    Completeness, Record, RecordMode, Recording, RecordingHead, Replay, format_placement,
};
use engine::registry::MachineRegistry;
use engine::run::{StopConditions, run};
use pipeline::edit::Edit;
use pipeline::plan::{Machine, Plan, plan};
use std::sync::Arc;
use std::time::Duration;

/// Fuzz body for records: any bytes are either rejected with a message, or replayed to the end: the
/// spaces run the recorded passes, and the counts balance.
pub(crate) const RECORD_FUZZ_TARGET: FuzzTarget =
    FuzzTarget { name: "record", corpus: record_corpus, rounds: 150, run: fuzz_record };

/// Timeout of a change to a running path, longer than any machine needs for it.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(240);

/// Returns valid records: of a path with one space, of a path with two spaces, of a path that was
/// changed while it was recorded, and of the first format version.
fn record_corpus() -> Vec<Vec<u8>> {
    let lines: [(&str, &[&str]); 3] = [
        ("generate count=4 size=60 seq=yes | udp | print", &[]),
        ("generate count=9 size=70 seq=yes | (tcp gap=1ms + udp | count@thread1) | discard", &[]),
        (
            "generate rate=4000 size=60 seq=yes | ipproto | discard@thread1",
            &["insert inspect after ipproto", "upgrade inspect"],
        ),
    ];
    let mut all =
        vec![include_bytes!("../../../crates/cli/tests/records/first-form.pcapng").into()];
    all.extend(lines.map(|(line, changes)| record_request(line, changes)));
    all
}

/// Runs a request, and makes the given changes to the path during the run. Returns the record of
/// the run.
fn record_request(line: &str, changes: &[&str]) -> Vec<u8> {
    let (plan, machine) = plan_request(line).expect("a line of ours");
    let folder = Scratch::new();
    let file = folder.path("r.pcapng");
    let head = RecordingHead::new(line, &plan, &machine, None);
    let steps = &sys::rollback::NO_ROLLBACK_LOG;
    let recording = Recording::create(&file, &head, 1 << 20, steps).expect("a new file");
    let extras = PathOptions {
        record_mode: RecordMode::Record(Arc::clone(&recording)),
        discards_output: true,
        ..PathOptions::default()
    };
    let paths =
        build_with_options(&plan, RunSettings::default(), &AttachPoints::default(), &extras);
    let paths = paths.expect("spaces");
    let live = paths[0].live();
    live.set_request_text(line);
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| run(paths, StopConditions::default()).expect("a run"));
        for words in changes {
            let words: Vec<&str> = words.split(' ').collect();
            let edit = Edit::parse(&words).expect("an edit");
            let changed = change(&live, &edit, &Machine::example_with_kernel(), CHANGE_TIMEOUT);
            changed.unwrap_or_else(|why| panic!("{edit}: {why}"));
        }
        if !changes.is_empty() {
            live.stop();
        }
        run.join().expect("a run")
    });
    let summary = recording.finish(&digest(&outcome));
    assert_eq!(summary.failure, None, "{line}");
    let bytes = std::fs::read(&file).expect("what was just written");
    let record = Record::open(&file).expect("a record");
    assert_eq!(record.changes.len(), changes.len(), "{line}");
    assert_eq!(replay_record(record), Some(0), "{line}");
    bytes
}

/// Plans a request as the engine does for recording and replay. Returns `None` if the request has
/// an error or cannot be planned.
fn plan_request(line: &str) -> Option<(Plan, Machine)> {
    let (graph, mistakes) = pipeline::read_request(line, &MachineRegistry::Local);
    let wrong = |m: &pipeline::Diagnostic| m.severity == pipeline::language::Severity::Error;
    let machine = RecordingHead::replay_machine(Machine::example());
    (!mistakes.iter().any(wrong)).then_some(())?;
    Some((plan(graph, &MachineRegistry::Local, &machine).ok()?, machine))
}

/// Replays a record, and discards the output. Returns the number of failures of the replayed path,
/// or `None` if the planner places the request differently on this machine.
fn replay_record(record: Record) -> Option<usize> {
    let (plan, _) = plan_request(&record.head.request)?;
    if format_placement(&plan) != record.head.layout {
        return None;
    }
    let settings = RunSettings { count: record.head.count, ..RunSettings::default() };
    let replay = Replay::new(record);
    let extras = PathOptions {
        record_mode: RecordMode::Replay(Arc::clone(&replay)),
        discards_output: true,
        ..PathOptions::default()
    };
    let paths = build_with_options(&plan, settings, &AttachPoints::default(), &extras).ok()?;
    let outcome = run(paths, StopConditions::default()).expect("a run");
    assert_eq!(outcome.ledger.imbalances(), [], "{}", digest(&outcome));
    for failure in &outcome.failures {
        assert!(!failure.to_string().is_empty());
    }
    if outcome.failures.is_empty() && !replay.is_truncated() {
        assert!(matches!(
            replay.record().completeness,
            Completeness::Complete { .. } | Completeness::Changed
        ));
    }
    Some(outcome.failures.len())
}

fn fuzz_record(bytes: &[u8]) {
    let folder = Scratch::new();
    let file = folder.path("any.pcapng");
    std::fs::write(&file, bytes).expect("a file");
    match Record::open(&file) {
        Err(broken) => assert!(broken.to_string().contains("any.pcapng"), "{broken}"),
        Ok(record) => {
            assert!(engine::record::read::is_record(&file).expect("a file"));
            replay_record(record);
        }
    }
}
