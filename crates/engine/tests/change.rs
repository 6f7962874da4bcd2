//! Changes of running paths: every block that a source gave reaches exactly one of the old graph
//! and the new one, in order, proved by the numbers in the blocks.

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
const LONG: Duration = Duration::from_secs(60);

/// What a sink has taken: the number in each block, and its class.
type Taken = Arc<Mutex<Vec<(u64, u32)>>>;

/// What every sink of every test has taken, by the name of its file.
static TAKEN: Mutex<Option<HashMap<String, Taken>>> = Mutex::new(None);

fn taken(file: &str) -> Taken {
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

fn settings() -> Settings {
    let description = endpoint::catalog::sink("pcap").expect("it is there").description;
    let entry = SinkEntry {
        description,
        open: |opening| {
            let file = opening.arguments.text("file").unwrap_or_default();
            Ok(Box::new(Numbers(taken(file))))
        },
    };
    Settings { sinks: Box::leak(Box::new([entry])), ..Settings::default() }
}

fn paths(text: &str) -> Vec<Path> {
    let (graph, mistakes) = pipeline::read(text, &House);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &House, &Machine::example()).expect("a plan");
    let paths = build(&plan, settings()).expect("spaces");
    paths[0].live().says(text);
    paths
}

/// Stops a path, also when a test fails.
struct Stop<'l>(&'l Live);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Runs a line while `act` has it; then it is stopped, and its ledger must balance.
fn during<T>(text: &str, act: impl FnOnce(&Live) -> T) -> (T, Outcome) {
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

fn edit(live: &Live, words: &str) -> Result<Switched, Unchanged> {
    let words: Vec<&str> = words.split(' ').collect();
    change(live, &Edit::parse(&words).expect("an edit"), &Machine::example(), LONG)
}

/// Makes an edit, of which the ledger must say that nothing happened to any block.
fn set(live: &Live, words: &str) -> Switched {
    let switched = edit(live, words).unwrap_or_else(|why| panic!("{words}: {why}"));
    let Switched { lost, duplicated, reordered, draining, .. } = switched;
    assert_eq!((lost, duplicated, reordered, draining), (0, 0, 0, 0), "{words}: {switched}");
    switched
}

/// Waits until the source has given this many blocks more.
fn on(live: &Live, more: u64) {
    let given = || live.counters(LONG).ledger.sources[0].1.given.blocks;
    let from = given();
    while given() < from + more {
        assert!(!live.is_ended(), "it has ended");
        std::thread::yield_now();
    }
}

fn given(outcome: &Outcome) -> u64 {
    outcome.ledger.sources[0].1.given.blocks
}

/// All numbers that a sink has taken.
fn numbers(file: &str) -> Vec<u64> {
    taken(file).lock().expect("no panic").iter().map(|(number, _)| *number).collect()
}

#[test]
fn m1_a_filter_is_inserted_and_removed_within_a_space() {
    let text = "generate rate=20000 seq=yes | pcap@thread0 within";
    let (done, outcome) = during(text, |live| {
        on(live, 200);
        let inserted = set(live, "insert ipproto before pcap");
        assert_eq!(live.text().as_deref(), Some(inserted.text.as_str()));
        on(live, 200);
        let replaced = set(live, "replace ipproto with dport");
        on(live, 200);
        let removed = set(live, "remove dport");
        on(live, 200);
        [inserted.position, replaced.position, removed.position]
    });
    let kept = taken("within").lock().expect("no panic").clone();
    assert!(kept.iter().map(|(number, _)| *number).eq(0..given(&outcome)), "each once, in order");
    // The classes tell which graph a block met.
    let [first, second, third] = done.map(|position| position as usize);
    let classes = |range: std::ops::Range<usize>| {
        let mut classes: Vec<u32> = kept[range].iter().map(|(_, class)| *class).collect();
        classes.dedup();
        classes
    };
    let whole = [0..first, first..second, second..third, third..kept.len()].map(classes);
    assert_eq!(whole[0], whole[3]);
    assert_eq!((whole[1].as_slice(), whole[2].len()), (&[17][..], 1), "udp, and one port");
    assert_ne!(whole[1], whole[2]);
}

#[test]
fn m1_a_sink_in_a_space_of_its_own_joins_and_leaves() {
    let text = "generate rate=20000 seq=yes | inspect | pcap@thread0 stays";
    let (counts, outcome) = during(text, |live| {
        assert_eq!(live.spaces(), ["thread0"]);
        on(live, 200);
        let joined = set(live, "insert pcap guest at inspect");
        assert_eq!(live.spaces(), ["thread0", "thread1"]);
        on(live, 200);
        let left = set(live, "remove pcap:1");
        assert_eq!(live.spaces(), ["thread0"]);
        on(live, 100);
        set(live, "insert pcap again at inspect");
        on(live, 100);
        (joined.position, left.position)
    });
    assert!(numbers("stays").into_iter().eq(0..given(&outcome)));
    assert!(numbers("guest").into_iter().eq(counts.0..counts.1), "exactly what came meanwhile");
    let again = numbers("again");
    assert!(again.iter().copied().eq(again[0]..given(&outcome)));
    assert!(again[0] >= counts.1);
}

#[test]
fn m1_a_node_moves_between_spaces_and_back() {
    let text = "generate rate=20000 seq=yes flows=16 | udp | inspect | pcap moved";
    let ((), outcome) = during(text, |live| {
        for _ in 0..3 {
            on(live, 200);
            set(live, "move inspect to thread1");
            on(live, 200);
            set(live, "move udp to thread1");
            on(live, 200);
            set(live, "move udp to thread0");
            on(live, 200);
            set(live, "move inspect to thread0");
        }
    });
    assert!(numbers("moved").into_iter().eq(0..given(&outcome)), "each once, in order");
    let udp = outcome.ledger.filters.iter().find(|node| node.name == "udp").expect("a node");
    assert_eq!(udp.taken.blocks, given(&outcome), "it goes on counting");
    let sessions = udp.counters.iter().find(|(name, _)| name == "new sessions").expect("sessions");
    assert_eq!(sessions.1, 16, "what it knows came along");
}

#[test]
fn m1_what_cannot_be_done_leaves_the_path_as_it_was() {
    let text = "generate rate=20000 seq=yes | inspect | pcap refused";
    let ((), outcome) = during(text, |live| {
        on(live, 100);
        let spaces = live.spaces();
        for (words, part) in [
            ("remove tcp", "no `tcp`"),
            ("insert nonsense after inspect", "nonsense"),
            ("insert (pcap /nowhere/at/all + http) after inspect", "http"),
            ("remove generate", "source"),
            ("insert pcap@thread3 x before inspect", "pcap"),
            ("move generate to thread1", "stays where it is"),
            ("upgrade pcap", "only filters are upgraded"),
        ] {
            let why = edit(live, words).expect_err(words).to_string();
            assert!(why.contains(part), "{words}: {why}");
            assert_eq!((live.spaces(), live.text().as_deref()), (spaces.clone(), Some(text)));
        }
        on(live, 100);
    });
    assert!(numbers("refused").into_iter().eq(0..given(&outcome)));
}
