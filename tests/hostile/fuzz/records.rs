//! The body of records: a file that anybody may have made is opened, planned and played.

use super::bodies::Body;
use crate::scratch::Scratch;
use engine::build::{Extras, Settings, build_with};
use engine::catalogue::House;
use engine::change::change;
use engine::digest::digest;
use engine::kernel::point::Points;
use engine::record::{Head, Record, Recording, Replay, Tape, Whole, layout};
use engine::run::{Until, run};
use pipeline::edit::Edit;
use pipeline::plan::{Machine, Plan, plan};
use std::sync::Arc;
use std::time::Duration;

/// Any bytes are no record, which is said in words, or one that is played to an end: the spaces of
/// its line take the turns that it has, and what was done adds up.
pub(crate) const RECORD: Body = Body { name: "record", corpus: records, rounds: 150, run: played };

/// Longer than any machine takes for one change.
const LONG: Duration = Duration::from_secs(240);

/// Real records: of one space, of two, of a path that was changed while it was recorded, and one of
/// the first form.
fn records() -> Vec<Vec<u8>> {
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
    all.extend(lines.map(|(line, changes)| recorded(line, changes)));
    all
}

/// The record of this line, with these changes.
fn recorded(line: &str, changes: &[&str]) -> Vec<u8> {
    let (plan, machine) = planned(line).expect("a line of ours");
    let folder = Scratch::new();
    let file = folder.path("r.pcapng");
    let head = Head::new(line, &plan, &machine, None);
    let steps = &sys::steps::UNLOGGED;
    let recording = Recording::create(&file, &head, 1 << 20, steps).expect("a new file");
    let extras =
        Extras { tape: Tape::Record(Arc::clone(&recording)), silent: true, ..Extras::default() };
    let paths = build_with(&plan, Settings::default(), &Points::default(), &extras);
    let paths = paths.expect("spaces");
    let live = paths[0].live();
    live.says(line);
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| run(paths, Until::default()).expect("a run"));
        for words in changes {
            let words: Vec<&str> = words.split(' ').collect();
            let edit = Edit::parse(&words).expect("an edit");
            let changed = change(&live, &edit, &Machine::with_kernel(), LONG);
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
    assert_eq!(replayed(record), Some(0), "{line}");
    bytes
}

/// Plans a line as the engine does when it is recorded or played.
fn planned(line: &str) -> Option<(Plan, Machine)> {
    let (graph, mistakes) = pipeline::read(line, &House);
    let wrong = |m: &pipeline::Diagnostic| m.severity == pipeline::language::Severity::Error;
    let machine = Head::outside_kernel(Machine::example());
    (!mistakes.iter().any(wrong)).then_some(())?;
    Some((plan(graph, &House, &machine).ok()?, machine))
}

/// Plays a record whose line is planned here as it was where it was made, with nothing written;
/// answers how many failures there were. None: the line is another.
fn replayed(record: Record) -> Option<usize> {
    let (plan, _) = planned(&record.head.request)?;
    if layout(&plan) != record.head.layout {
        return None;
    }
    let settings = Settings { count: record.head.count, ..Settings::default() };
    let replay = Replay::new(record);
    let extras =
        Extras { tape: Tape::Play(Arc::clone(&replay)), silent: true, ..Extras::default() };
    let paths = build_with(&plan, settings, &Points::default(), &extras).ok()?;
    let outcome = run(paths, Until::default()).expect("a run");
    assert_eq!(outcome.ledger.imbalances(), [], "{}", digest(&outcome));
    for failure in &outcome.failures {
        assert!(!failure.to_string().is_empty());
    }
    if outcome.failures.is_empty() && !replay.ended_short() {
        assert!(matches!(replay.record().whole, Whole::Whole { .. } | Whole::Changed));
    }
    Some(outcome.failures.len())
}

fn played(bytes: &[u8]) {
    let folder = Scratch::new();
    let file = folder.path("any.pcapng");
    std::fs::write(&file, bytes).expect("a file");
    match Record::open(&file) {
        Err(broken) => assert!(broken.to_string().contains("any.pcapng"), "{broken}"),
        Ok(record) => {
            assert!(engine::record::read::is_record(&file).expect("a file"));
            replayed(record);
        }
    }
}
