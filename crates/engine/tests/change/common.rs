//! Fixtures for tests of changes: sinks that store their input, and edits that must not lose,
//! duplicate or reorder a block.

use endpoint::{Failure, Sink, SinkEntry};
use engine::build::{BuiltPath, RunSettings, build};
use engine::change::{ChangeError, SwitchReport, change};
use engine::live::PathHandle;
use engine::registry::MachineRegistry;
use engine::run::{RunOutcome, StopConditions, run};
use filter::{Batch, Report, Time};
use pipeline::edit::Edit;
use pipeline::plan::{Machine, plan};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A time limit for commands to a path, so long that no test reaches it.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The blocks that a sink has received, each as the number in its frame and its class.
pub(crate) type SinkBlocks = Arc<Mutex<Vec<(u64, u32)>>>;

/// The blocks that the sinks of all tests have received, by file name.
static SINK_BLOCKS: Mutex<Option<HashMap<String, SinkBlocks>>> = Mutex::new(None);

pub(crate) fn sink_blocks(file: &str) -> SinkBlocks {
    let mut all = SINK_BLOCKS.lock().expect("no panic");
    Arc::clone(all.get_or_insert_default().entry(file.to_owned()).or_default())
}

/// A replacement for `pcap` that stores the numbers and classes of generated frames.
struct RecordingSink(SinkBlocks);

impl Sink for RecordingSink {
    fn consume(&mut self, batch: &Batch<'_>, _: Time) -> Result<(), Failure> {
        let number = |frame: &[u8]| u64::from_be_bytes(frame[42..50].try_into().expect("eight"));
        let blocks = batch.blocks().map(|(_, block)| (number(block.frame), block.pointer.class.0));
        self.0.lock().expect("no panic").extend(blocks);
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }
}

pub(crate) fn test_settings() -> RunSettings {
    let description = endpoint::catalog::find_sink("pcap").expect("it is there").description;
    let entry = SinkEntry::new(description, |opening| {
        let file = opening.arguments.text("file").unwrap_or_default();
        Ok(Box::new(RecordingSink(sink_blocks(file))))
    });
    RunSettings { sinks: Box::leak(Box::new([entry])), ..RunSettings::default() }
}

pub(crate) fn build_paths(text: &str) -> Vec<BuiltPath> {
    build_paths_with_settings(text, test_settings())
}

/// Builds the paths of a request with the sinks of these settings.
pub(crate) fn build_paths_with_settings(text: &str, settings: RunSettings) -> Vec<BuiltPath> {
    let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &MachineRegistry::Local, &Machine::example()).expect("a plan");
    let paths = build(&plan, settings).expect("spaces");
    paths[0].live().set_request_text(text);
    paths
}

/// A guard that stops a path when it is dropped, even if a test fails.
pub(crate) struct StopGuard<'l>(pub(crate) &'l PathHandle);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Runs a request while `act` runs, then stops it. Asserts that no failure occurs and that the
/// ledger balances.
pub(crate) fn run_while<T>(text: &str, act: impl FnOnce(&PathHandle) -> T) -> (T, RunOutcome) {
    let paths = build_paths(text);
    let live = paths[0].live();
    let (done, outcome) = std::thread::scope(|scope| {
        let run = scope.spawn(|| run(paths, StopConditions::default()).expect("a run"));
        let stop = StopGuard(&live);
        let done = act(&live);
        drop(stop);
        (done, run.join().expect("a run"))
    });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    (done, outcome)
}

pub(crate) fn edit(live: &PathHandle, words: &str) -> Result<SwitchReport, ChangeError> {
    let words: Vec<&str> = words.split(' ').collect();
    change(live, &Edit::parse(&words).expect("an edit"), &Machine::example(), TIME_LIMIT)
}

/// Makes an edit. Asserts that it loses, duplicates and reorders no block.
pub(crate) fn edit_losslessly(live: &PathHandle, words: &str) -> SwitchReport {
    let switched = edit(live, words).unwrap_or_else(|why| panic!("{words}: {why}"));
    let SwitchReport { lost, duplicated, reordered, draining, .. } = switched;
    assert_eq!((lost, duplicated, reordered, draining), (0, 0, 0, 0), "{words}: {switched}");
    switched
}

/// Waits until the first source has emitted this many more blocks.
pub(crate) fn wait_for_blocks(live: &PathHandle, more: u64) {
    let given = || live.take_snapshot(TIME_LIMIT).ledger.sources[0].1.given.blocks;
    let from = given();
    while given() < from + more {
        assert!(!live.has_ended(), "it has ended");
        std::thread::yield_now();
    }
}

pub(crate) fn blocks_emitted(outcome: &RunOutcome) -> u64 {
    outcome.ledger.sources[0].1.given.blocks
}

/// Returns the numbers of all blocks that a sink has received.
pub(crate) fn received_numbers(file: &str) -> Vec<u64> {
    sink_blocks(file).lock().expect("no panic").iter().map(|(number, _)| *number).collect()
}
