//! Tests of changes that add sources upstream of existing sinks.

use crate::common::{StopGuard, TIME_LIMIT, build_paths_with_settings};
use endpoint::{Failure, Origins, Sink, SinkEntry};
use engine::build::RunSettings;
use engine::change::change;
use engine::live::PathHandle;
use engine::run::{StopConditions, run};
use filter::{Batch, Report, Time};
use pipeline::edit::Edit;
use pipeline::plan::Machine;
use std::collections::HashMap;
use std::sync::Mutex;
use testkit::wait_until;

/// The source name of each block that a sink has received, by file name.
static SOURCE_NAMES: Mutex<Option<HashMap<String, Vec<Option<String>>>>> = Mutex::new(None);

/// A replacement for `pcap` that stores the source names of its blocks.
struct SourceNameSink(String, Origins);

impl Sink for SourceNameSink {
    fn consume(&mut self, batch: &Batch<'_>, _: Time) -> Result<(), Failure> {
        let name = |origin| self.1.distinguishing_name(origin).map(str::to_owned);
        let names = batch.blocks().map(|(_, block)| name(block.context.origin));
        let mut all = SOURCE_NAMES.lock().expect("no panic");
        all.get_or_insert_default().entry(self.0.clone()).or_default().extend(names);
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }
}

fn test_settings() -> RunSettings {
    let description = endpoint::catalog::find_sink("pcap").expect("it is there").description;
    let entry = SinkEntry::new(description, |opening| {
        let file = opening.arguments.text("file").unwrap_or_default();
        Ok(Box::new(SourceNameSink(file.to_owned(), opening.origins.clone())))
    });
    RunSettings { sinks: Box::leak(Box::new([entry])), ..RunSettings::default() }
}

fn source_names(file: &str) -> Vec<Option<String>> {
    let all = SOURCE_NAMES.lock().expect("no panic");
    all.as_ref().and_then(|all| all.get(file)).cloned().unwrap_or_default()
}

/// Replaces the whole request. Asserts that no block is lost, duplicated or reordered.
fn replace_request(live: &PathHandle, line: &str) {
    let switched =
        change(live, &Edit::ReplaceText(line.to_owned()), &Machine::example(), TIME_LIMIT);
    let switched = switched.unwrap_or_else(|why| panic!("{line}: {why}"));
    let zeros = (switched.lost, switched.duplicated, switched.reordered);
    assert_eq!(zeros, (0, 0, 0), "{line}: {switched}");
}

/// After a change, a sink that was opened for a single source knows the names of all sources, even
/// if its own space did not change.
#[test]
fn v3_surviving_sink_receives_the_names_of_new_sources() {
    for thread in ["thread0", "thread1"] {
        let source = |name: &str| format!("generate --name={name} rate=5000 seq=yes");
        let behind = format!("inspect@thread0 | pcap@{thread} {thread}");
        let paths =
            build_paths_with_settings(&format!("{} | {behind}", source("one")), test_settings());
        let live = paths[0].live();
        let outcome = std::thread::scope(|scope| {
            let run = scope.spawn(|| run(paths, StopConditions::default()).expect("a run"));
            let stop = StopGuard(&live);
            wait_until("blocks of the first", || source_names(thread).len() >= 100);
            replace_request(&live, &format!("({} + {}) | {behind}", source("one"), source("two")));
            wait_until("blocks of both", || {
                let all = source_names(thread);
                let has = |name: &str| all.iter().any(|known| known.as_deref() == Some(name));
                has("generate#one") && has("generate#two")
            });
            drop(stop);
            run.join().expect("a run")
        });
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        assert_eq!(outcome.ledger.imbalances(), []);
        let all = source_names(thread);
        let given: u64 = outcome.ledger.sources.iter().map(|(_, source)| source.given.blocks).sum();
        assert_eq!(all.len() as u64, given, "{thread}");
        let alone = all.iter().take_while(|name| name.is_none()).count();
        assert!(alone >= 100, "{thread}: {alone} while there was one source");
        assert!(all[alone..].iter().all(Option::is_some), "{thread}: all, once there were two");
    }
}
