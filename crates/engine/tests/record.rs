//! Paths that are recorded while they run, and run again from the record: the same files, byte for
//! byte, and the same ledger. (v10)

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

use endpoint::source::inject::{Injected, Injector};
use engine::build::{Extras, Settings, build_with};
use engine::catalogue::House;
use engine::kernel::point::Points;
use engine::record::told::{differences, told};
use engine::record::{Head, Record, Recording, Replay, Tape, Whole, layout};
use engine::run::{Outcome, Until, run};
use pipeline::plan::{Machine, Plan, plan};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use testkit::{Frame, Random, Segment};
use wire::LinkType;

/// A folder that goes away.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("streamline-v10-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn planned(text: &str) -> (Plan, Machine) {
    let (graph, mistakes) = pipeline::read(text, &House);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let machine = Head::outside_kernel(Machine::example());
    (plan(graph, &House, &machine).expect("a plan"), machine)
}

/// Runs a line beside its record, while `feed` gives it what comes.
fn recorded(
    text: &str,
    settings: Settings,
    (record, into, most): (&Path, &Path, u64),
    feed: impl FnOnce() + Send,
) -> (Outcome, String) {
    let (plan, machine) = planned(text);
    let head = Head::new(text, &plan, &machine, settings.count);
    let recording = Recording::create(record, &head, most, &sys::steps::UNLOGGED).unwrap();
    let tape = Tape::Record(std::sync::Arc::clone(&recording));
    let extras = Extras { tape, into: Some(into.to_owned()), ..Extras::default() };
    let paths = build_with(&plan, settings, &Points::default(), &extras).expect("spaces");
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| run(paths, Until::default()).expect("a run"));
        feed();
        run.join().expect("a run")
    });
    assert_eq!(outcome.ledger.imbalances(), []);
    let said = told(&outcome);
    let summary = recording.finish(&said);
    assert_eq!(summary.failure, None);
    (outcome, said)
}

/// Runs a record again.
fn replayed(record: &Path, into: &Path) -> (Outcome, String, bool) {
    let record = Record::open(record).expect("a record");
    let (plan, _) = planned(&record.head.request);
    assert_eq!(layout(&plan), record.head.layout);
    let settings = Settings { count: record.head.count, ..Settings::default() };
    let replay = Replay::new(record);
    let tape = Tape::Play(std::sync::Arc::clone(&replay));
    let extras = Extras { tape, into: Some(into.to_owned()), ..Extras::default() };
    let paths = build_with(&plan, settings, &Points::default(), &extras).expect("spaces");
    let outcome = run(paths, Until::default()).expect("a run");
    let said = told(&outcome);
    (outcome, said, replay.ended_short())
}

/// All files of a folder, with what they hold.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let bytes = std::fs::read(&path).unwrap();
                found.insert(path.strip_prefix(folder).unwrap().to_owned(), bytes);
            }
        }
    }
    found
}

/// Records a line, replays it twice, and compares everything.
fn same(name: &str, text: &str, settings: Settings, feed: impl FnOnce() + Send) -> Outcome {
    let folder = Folder::new(name);
    let at = |name: &str| folder.0.join(name);
    let first = (&*at("r.pcapng"), &*at("live"), 1 << 28);
    let (outcome, said) = recorded(text, settings, first, feed);
    let record = Record::open(&at("r.pcapng")).expect("a record");
    assert_eq!(record.whole, Whole::Whole { told: said.clone() });
    std::fs::create_dir_all(at("live")).unwrap();
    let live = files(&at("live"));
    for again in ["one", "two"] {
        std::fs::create_dir_all(at(again)).unwrap();
        let (other, now, short) = replayed(&at("r.pcapng"), &at(again));
        assert_eq!(differences(&said, &now), [], "{text}");
        assert!(!short);
        assert_eq!(other.ledger.imbalances(), [], "{text}");
        let files = files(&at(again));
        let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&files), names(&live), "{text}");
        for (name, bytes) in &files {
            assert!(*bytes == live[name], "{text}: {} differs", name.display());
        }
    }
    outcome
}

/// TCP connections with holes, repeats and disorder, datagrams in fragments, and frames of nothing.
fn frames(random: &mut Random, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut next = [1000_u32; 6];
    for number in 0..count {
        let flow = random.within(0..6);
        let port = 2000 + flow as u16;
        let here = || Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2");
        let length = random.within(1..90);
        match random.within(0..10) {
            0 => frames.push(here().udp(port, 53, &random.bytes(length))),
            1 => frames.push(random.bytes(length)),
            2 => {
                let whole = random.bytes(64);
                frames.push(here().fragment(0, true).protocol(17, &whole));
                if random.one_in(2) {
                    frames.push(here().fragment(8, false).protocol(17, &random.bytes(16)));
                }
            }
            _ => {
                let text = format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n");
                let segment = Segment {
                    source: port,
                    target: 80,
                    sequence: next[flow],
                    ..Segment::default()
                };
                frames.push(here().tcp(&segment, text.as_bytes()));
                next[flow] = next[flow].wrapping_add(text.len() as u32);
                if random.one_in(8) {
                    // A hole, which the next ones wait behind.
                    next[flow] = next[flow].wrapping_add(40);
                }
            }
        }
        if random.one_in(6) && frames.len() > 2 {
            let last = frames.len() - 1;
            frames.swap(last, last - 1);
        }
    }
    frames
}

/// Hands frames in, now and then after a moment.
fn feed(injector: Injector, frames: &[Vec<u8>], seed: u64) {
    let mut random = Random::new(seed);
    for frame in frames {
        // Before the source is open nobody takes anything.
        while injector.inject_as(frame, LinkType::ETHERNET, sys::clock::real()) == Injected::NoPath
        {
            std::thread::yield_now();
        }
        if random.one_in(7) {
            std::thread::sleep(Duration::from_micros(random.below(1500)));
        }
    }
}

#[test]
fn v10_paths_with_timers_and_holds_run_again_as_they_ran() {
    let mut random = Random::replayable();
    let lines = [
        "tcp gap=1ms | http | files got/",
        "tcp gap=2ms timeout=3ms | ((http |get files got/) + pcap all.pcap)",
        "ip defragment=yes timeout=1s | udp | pcap udp.pcap",
        "ratelimit 1500 | ((count | pcap some.pcap) + (dport |53 pcap dns.pcap))",
        "sample every=3 | tcp gap=1ms | regex \"GET /[0-9]+\" | files all/ per=connection",
        "((dport |53 udp) + (dport |80 tcp gap=1ms)) | files both/ per=session",
    ];
    for (number, line) in lines.into_iter().enumerate() {
        let name = format!("v10-{number}");
        let frames = frames(&mut random, 400);
        let injector = Injector::new(&name).unwrap();
        let (text, seed) = (format!("inject {name} | {line}"), random.below(u64::MAX));
        let outcome = same(&name, &text, Settings::default(), || feed(injector, &frames, seed));
        assert!(outcome.ledger.sources[0].1.given.blocks > 300, "{text}");
    }
}

#[test]
fn v10_programs_are_not_run_again() {
    let mut random = Random::replayable();
    let frames = frames(&mut random, 200);
    let injector = Injector::new("v10-exec").unwrap();
    // What it says is never the same twice.
    let text = "inject v10-exec | tcp gap=1ms | exec \"wc -c; date +%N; echo $$\" | files said.txt";
    same("v10-exec", text, Settings::default(), || feed(injector, &frames, 3));
}

#[test]
fn v10_a_number_of_blocks_ends_where_it_ended() {
    let mut random = Random::replayable();
    let frames = frames(&mut random, 600);
    let injector = Injector::new("v10-count").unwrap();
    let text = "inject v10-count | (pcap one.pcap + (dport |80 pcap two.pcap))";
    let settings = Settings { count: Some(150), ..Settings::default() };
    same("v10-count", text, settings, || {
        let mut random = Random::new(5);
        for frame in &frames {
            while injector.inject(frame) == Injected::NoPath && frames.first() == Some(frame) {
                std::thread::yield_now();
            }
            if random.one_in(9) {
                std::thread::sleep(Duration::from_micros(300));
            }
        }
    });
}

#[test]
fn v10_a_full_record_is_played_as_far_as_it_goes() {
    let folder = Folder::new("full");
    let at = |name: &str| folder.0.join(name);
    let mut random = Random::replayable();
    let frames = frames(&mut random, 2000);
    let injector = Injector::new("v10-full").unwrap();
    let text = "inject v10-full | (pcap all.pcap + (tcp gap=1ms | files all/))";
    let first = (&*at("r.pcapng"), &*at("live"), 1 << 16);
    recorded(text, Settings::default(), first, || feed(injector, &frames, 1));
    let record = Record::open(&at("r.pcapng")).unwrap();
    let Whole::Full { beyond } = record.whole else { panic!("{record:?}") };
    assert!(beyond.blocks > 0);
    let (outcome, _, short) = replayed(&at("r.pcapng"), &at("again"));
    assert!(short);
    assert_eq!(outcome.ledger.imbalances(), []);
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    let (live, again) = (files(&at("live")), files(&at("again")));
    let all = Path::new("all.pcap");
    assert!(again[all].len() > 10_000 && live[all].starts_with(&again[all]), "a beginning of it");
}
