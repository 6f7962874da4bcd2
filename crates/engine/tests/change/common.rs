//! Paths for the tests of changes: sinks that keep what came, edits of which the ledger must say
//! that nothing happened to any block.

use endpoint::{Failure, Sink, SinkEntry};
use engine::build::{Path, Settings, build};
use engine::catalogue::House;
use engine::change::{Switched, Unchanged, change};
use engine::live::Live;
use engine::run::{Outcome, Until, run};
use filter::{Batch, Report, Time};
use pipeline::edit::Edit;
use pipeline::plan::{Machine, plan};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than any machine takes to do what it is asked.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The blocks that a sink has taken: the number in each block, and its class.
pub(crate) type Taken = Arc<Mutex<Vec<(u64, u32)>>>;

/// The blocks taken by every sink of every test, by the name of its file.
static TAKEN: Mutex<Option<HashMap<String, Taken>>> = Mutex::new(None);

pub(crate) fn taken(file: &str) -> Taken {
    let mut all = TAKEN.lock().expect("no panic");
    Arc::clone(all.get_or_insert_default().entry(file.to_owned()).or_default())
}

/// Stands in the place of `pcap`: keeps the numbers of generated frames.
struct Numbers(Taken);

impl Sink for Numbers {
    fn take(&mut self, batch: &Batch<'_>, _: Time) -> Result<(), Failure> {
        let number = |frame: &[u8]| u64::from_be_bytes(frame[42..50].try_into().expect("eight"));
        let blocks = batch.blocks().map(|(_, block)| (number(block.frame), block.pointer.class.0));
        self.0.lock().expect("no panic").extend(blocks);
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }
}

pub(crate) fn settings() -> Settings {
    let description = endpoint::catalog::sink("pcap").expect("it is there").description;
    let entry = SinkEntry::new(description, |opening| {
        let file = opening.arguments.text("file").unwrap_or_default();
        Ok(Box::new(Numbers(taken(file))))
    });
    Settings { sinks: Box::leak(Box::new([entry])), ..Settings::default() }
}

pub(crate) fn paths(text: &str) -> Vec<Path> {
    paths_with(text, settings())
}

/// The same, with other sinks of the test's own.
pub(crate) fn paths_with(text: &str, settings: Settings) -> Vec<Path> {
    let (graph, mistakes) = pipeline::read(text, &House);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &House, &Machine::example()).expect("a plan");
    let paths = build(&plan, settings).expect("spaces");
    paths[0].live().says(text);
    paths
}

/// Stops a path, also when a test fails.
pub(crate) struct Stop<'l>(pub(crate) &'l Live);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Runs a line while `act` has it; then it is stopped, and its ledger must balance.
pub(crate) fn during<T>(text: &str, act: impl FnOnce(&Live) -> T) -> (T, Outcome) {
    let paths = paths(text);
    let live = paths[0].live();
    let (done, outcome) = std::thread::scope(|scope| {
        let run = scope.spawn(|| run(paths, Until::default()).expect("a run"));
        let stop = Stop(&live);
        let done = act(&live);
        drop(stop);
        (done, run.join().expect("a run"))
    });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    (done, outcome)
}

pub(crate) fn edit(live: &Live, words: &str) -> Result<Switched, Unchanged> {
    let words: Vec<&str> = words.split(' ').collect();
    change(live, &Edit::parse(&words).expect("an edit"), &Machine::example(), LONG)
}

/// Makes an edit, of which the ledger must say that nothing happened to any block.
pub(crate) fn set(live: &Live, words: &str) -> Switched {
    let switched = edit(live, words).unwrap_or_else(|why| panic!("{words}: {why}"));
    let Switched { lost, duplicated, reordered, draining, .. } = switched;
    assert_eq!((lost, duplicated, reordered, draining), (0, 0, 0, 0), "{words}: {switched}");
    switched
}

/// Waits until the source has given this many blocks more.
pub(crate) fn on(live: &Live, more: u64) {
    let given = || live.counters(LONG).ledger.sources[0].1.given.blocks;
    let from = given();
    while given() < from + more {
        assert!(!live.is_ended(), "it has ended");
        std::thread::yield_now();
    }
}

pub(crate) fn given(outcome: &Outcome) -> u64 {
    outcome.ledger.sources[0].1.given.blocks
}

/// Returns all numbers that a sink has taken.
pub(crate) fn numbers(file: &str) -> Vec<u64> {
    taken(file).lock().expect("no panic").iter().map(|(number, _)| *number).collect()
}
