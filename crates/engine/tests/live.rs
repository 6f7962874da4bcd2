//! Tests of commands to paths whose spaces work, sleep, block, have failed or have ended.

use endpoint::{Failure, Sink, SinkEntry};
use engine::build::{BuiltPath, RunSettings, build};
use engine::live::{CounterFreshness, PathHandle, PathSnapshot};
use engine::registry::MachineRegistry;
use engine::run::{RunOutcome, StopConditions, run, run_in_calling_thread};
use filter::{Batch, Report, Time};
use pipeline::plan::{Machine, plan};
use runtime::commands::CommandError;
use runtime::failure::FailureCause;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A time limit so long that no test reaches it.
const TIME_LIMIT: Duration = Duration::from_secs(60);

fn build_paths(text: &str, settings: RunSettings) -> Vec<BuiltPath> {
    let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &MachineRegistry::Local, &Machine::example()).expect("a plan");
    build(&plan, settings).expect("spaces")
}

/// Runs a request while `act` runs, then stops it.
fn run_while<T>(
    text: &str,
    settings: RunSettings,
    act: impl FnOnce(&PathHandle) -> T,
) -> (T, PathHandle, RunOutcome) {
    let paths = build_paths(text, settings);
    let live = paths[0].live();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| run(paths, StopConditions::default()).expect("a run"));
        let done = act(&live);
        live.stop();
        (done, live, run.join().expect("a run"))
    })
}

fn blocks_emitted(snapshot: &PathSnapshot) -> u64 {
    snapshot.ledger.sources[0].1.given.blocks
}

#[test]
fn live_counters_balance_and_grow_to_the_final_counters() {
    let text = "generate rate=20000 | ipproto | count + discard";
    let (snapshots, live, outcome) = run_while(text, RunSettings::default(), |live| {
        let mut snapshots = vec![live.take_snapshot(TIME_LIMIT)];
        while snapshots.len() < 3 {
            let next = live.take_snapshot(TIME_LIMIT);
            if blocks_emitted(&next) > snapshots.last().map_or(0, blocks_emitted) {
                snapshots.push(next);
            }
            let totals = live.ledger_by_number(TIME_LIMIT);
            assert_eq!(totals.imbalances(), []);
            let before = snapshots.last().map_or(0, blocks_emitted);
            assert!(totals.sources[0].1.given.blocks >= before, "{totals:?}");
        }
        snapshots
    });
    for snapshot in &snapshots {
        assert_eq!(snapshot.ledger.imbalances(), []);
        assert!(
            snapshot.spaces.iter().all(|space| space.freshness == CounterFreshness::Current),
            "{snapshot:?}"
        );
        let count = snapshot.ledger.filters.iter().find(|node| node.name == "count");
        assert_eq!(
            count.expect("a node").taken.blocks,
            blocks_emitted(snapshot),
            "at a block boundary"
        );
    }
    assert!(live.has_ended());
    let last = live.take_snapshot(TIME_LIMIT);
    assert!(last.spaces.iter().all(|space| space.freshness == CounterFreshness::Ended), "{last:?}");
    assert_eq!(last.ledger, outcome.ledger, "an ended path tells its last counters");
    assert_eq!(live.ledger_by_number(TIME_LIMIT), outcome.ledger);
    assert_eq!(last.reports, outcome.reports);
    assert_eq!(live.execute(0, TIME_LIMIT, |_| ()), Err(CommandError::Ended));
    assert_eq!(live.execute(9, TIME_LIMIT, |_| ()), Err(CommandError::Ended), "no such space");
}

#[test]
fn snapshot_of_two_spaces_includes_ring_residents() {
    let text = "generate rate=50000 | count | pcap /dev/null";
    let (snapshots, live, _) = run_while(text, RunSettings::default(), |live| {
        assert_eq!(live.space_names().len(), 2);
        (0..50).map(|_| live.take_snapshot(TIME_LIMIT)).collect::<Vec<_>>()
    });
    for snapshot in snapshots {
        assert_eq!(snapshot.ledger.imbalances(), []);
        let ring = snapshot.ledger.edges.iter().find(|edge| edge.events.is_some()).expect("a ring");
        assert_eq!(ring.put.blocks, ring.taken.blocks + ring.resident.blocks);
    }
    assert!(live.has_ended());
}

#[test]
fn sleeping_space_executes_commands() {
    for text in ["exec \"sleep 1000\" | count", "exec \"sleep 1000\" | count | exec \"cat\""] {
        let (names, ..) = run_while(text, RunSettings::default(), |live| {
            let spaces = live.space_names().len();
            let name = |space| live.execute(space, TIME_LIMIT, |space| space.name.clone());
            (0..spaces).map(|space| name(space).expect("an answer")).collect::<Vec<_>>()
        });
        assert!(names[0].starts_with("thread"), "{names:?}");
    }
}

#[test]
fn path_run_by_its_caller_executes_commands() {
    let paths = build_paths("generate rate=1000 count=100 | count", RunSettings::default());
    let live = paths[0].live();
    let ordered = std::thread::spawn(move || {
        let answer = live.execute(0, TIME_LIMIT, |space| space.name.clone());
        (answer, live)
    });
    // The command arrives before the path starts, while it runs, or after its end.
    let outcome = run_in_calling_thread(paths);
    let (answer, live) = ordered.join().expect("no panic");
    assert!(matches!(answer.as_deref(), Ok("thread0") | Err(CommandError::Ended)), "{answer:?}");
    assert_eq!(live.take_snapshot(TIME_LIMIT).ledger, outcome.ledger);
}

/// The gate on which [`GatedSink`] sinks wait.
static SINK_GATE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// A sink that blocks until the gate is open.
struct GatedSink;

impl Sink for GatedSink {
    fn consume(&mut self, _: &Batch<'_>, _: Time) -> Result<(), Failure> {
        let shut = SINK_GATE.0.lock().expect("no panic");
        let (_open, late) =
            SINK_GATE.1.wait_timeout_while(shut, TIME_LIMIT, |open| !*open).expect("no panic");
        assert!(!late.timed_out(), "the gate was never opened");
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }
}

#[test]
fn blocked_space_reports_and_skips_a_withdrawn_command() {
    let pcap = endpoint::catalog::find_sink("pcap").expect("it is there").description;
    let gated = SinkEntry::new(pcap, |_| Ok(Box::new(GatedSink)));
    let settings = RunSettings { sinks: Box::leak(Box::new([gated])), ..RunSettings::default() };
    let done = Arc::new(AtomicU32::new(0));
    let (why, live, outcome) = run_while("generate | pcap /dev/null", settings, |live| {
        let short = Duration::from_millis(20);
        // Waits until the ring is full.
        let why = loop {
            let done = Arc::clone(&done);
            let order = move |_: &mut _| done.fetch_add(1, Ordering::Relaxed);
            match live.execute(0, short, order) {
                Err(why @ CommandError::RingFull { .. }) => break why,
                Ok(_) | Err(CommandError::TimedOut { .. }) => {}
                Err(why) => panic!("{why}"),
            }
        };
        let before = done.load(Ordering::Relaxed);
        let late = live.execute(1, short, |_| ());
        assert_eq!(late, Err(CommandError::TimedOut { space: "thread1".to_owned() }));
        let snapshot = live.take_snapshot(2 * short);
        assert!(matches!(
            snapshot.spaces[0].freshness,
            CounterFreshness::Stale(CommandError::RingFull { .. })
        ));
        assert_eq!(snapshot.spaces[0].blocked_edge, Some(0), "the index of the edge in the plan");
        *SINK_GATE.0.lock().expect("no panic") = true;
        SINK_GATE.1.notify_all();
        assert_eq!(live.execute(0, TIME_LIMIT, |_| ()), Ok(()), "it goes on");
        assert_eq!(live.execute(1, TIME_LIMIT, |_| ()), Ok(()), "it goes on");
        assert_eq!(done.load(Ordering::Relaxed), before, "what was withdrawn was not done");
        why
    });
    assert_eq!(why, CommandError::RingFull { space: "thread0".to_owned(), edge: 0 });
    assert_eq!(why.to_string(), "thread0 waits for room in a ring: its reader reads nothing");
    assert_eq!(outcome.ledger.imbalances(), []);
    assert!(live.has_ended());
}

#[test]
fn panicking_command_ends_the_path_and_reports_to_its_caller() {
    let paths = build_paths("generate rate=1000 | count", RunSettings::default());
    let live = paths[0].live();
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| run(paths, StopConditions::default()).expect("a run"));
        let answer = live.execute(0, TIME_LIMIT, |_| panic!("this order panics on purpose"));
        assert_eq!(answer, Err::<(), _>(CommandError::Ended));
        run.join().expect("a run")
    });
    assert!(
        matches!(outcome.failures[0].cause, FailureCause::Panic { .. }),
        "{:?}",
        outcome.failures
    );
    assert!(live.has_ended());
}

#[test]
fn j2_commands_from_many_threads_are_serialized() {
    static IN_COMMAND: AtomicBool = AtomicBool::new(false);
    let (done, ..) = run_while("generate rate=100000 | count", RunSettings::default(), |live| {
        std::thread::scope(|scope| {
            let order = |_: &mut _| {
                assert!(!IN_COMMAND.swap(true, Ordering::Relaxed), "two at once");
                IN_COMMAND.store(false, Ordering::Relaxed);
            };
            let fifty =
                move || (0..50).map(|_| live.execute(0, TIME_LIMIT, order)).collect::<Vec<_>>();
            let all: Vec<_> = (0..4).map(|_| scope.spawn(fifty)).collect();
            all.into_iter().flat_map(|one| one.join().expect("no panic")).collect::<Vec<_>>()
        })
    });
    assert_eq!(done, vec![Ok(()); 200]);
}
