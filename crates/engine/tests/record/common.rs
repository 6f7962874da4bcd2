//! Fixtures for recording and replaying paths: runs, comparisons and frames.

use endpoint::source::inject::{InjectOutcome, Injector};
use engine::build::{PathOptions, RunSettings, build_with_options};
use engine::digest::{changed_lines, digest};
use engine::kernel::shared_attach_point::AttachPoints;
use engine::live::PathHandle;
use engine::record::{
    Completeness, Record, RecordMode, Recording, RecordingHead, Replay, format_placement,
};
use engine::registry::MachineRegistry;
use engine::run::{RunOutcome, StopConditions, run};
use pipeline::plan::{Machine, Plan, plan};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use testkit::{Frame, Random, TcpHeader};
use wire::LinkType;

/// A guard that stops a path when it is dropped, even if a test fails.
struct StopGuard<'l>(&'l PathHandle);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A temporary directory of a test, removed on drop.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
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

pub(crate) fn plan_request(text: &str) -> (Plan, Machine) {
    let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let machine = RecordingHead::replay_machine(Machine::example());
    (plan(graph, &MachineRegistry::Local, &machine).expect("a plan"), machine)
}

/// Records a run of a request while `feed` provides the input. Returns the outcome and its digest.
pub(crate) fn record_run(
    text: &str,
    settings: RunSettings,
    (record, into, most): (&Path, &Path, u64),
    feed: impl FnOnce(&PathHandle),
) -> (RunOutcome, String) {
    let (plan, machine) = plan_request(text);
    let head = RecordingHead::new(text, &plan, &machine, settings.count);
    let recording =
        Recording::create(record, &head, most, &sys::rollback::NO_ROLLBACK_LOG).unwrap();
    let record_mode = RecordMode::Record(std::sync::Arc::clone(&recording));
    let extras = PathOptions {
        record_mode,
        output_directory: Some(into.to_owned()),
        ..PathOptions::default()
    };
    let paths =
        build_with_options(&plan, settings, &AttachPoints::default(), &extras).expect("spaces");
    let live = paths[0].live();
    live.set_request_text(text);
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| run(paths, StopConditions::default()).expect("a run"));
        // Stops the path if `feed` panics.
        let stop = StopGuard(&live);
        feed(&live);
        std::mem::forget(stop);
        run.join().expect("a run")
    });
    assert_eq!(outcome.ledger.imbalances(), []);
    let recorded = digest(&outcome);
    let summary = recording.finish(&recorded);
    assert_eq!(summary.failure, None);
    (outcome, recorded)
}

/// Replays a recording. Returns the outcome, its digest, and a flag that is true if the recording
/// is shorter than the recorded run.
pub(crate) fn replay_run(record: &Path, into: &Path) -> (RunOutcome, String, bool) {
    let record = Record::open(record).expect("a record");
    let (plan, _) = plan_request(&record.head.request);
    assert_eq!(format_placement(&plan), record.head.layout);
    let settings = RunSettings { count: record.head.count, ..RunSettings::default() };
    let replay = Replay::new(record);
    let record_mode = RecordMode::Replay(std::sync::Arc::clone(&replay));
    let extras = PathOptions {
        record_mode,
        output_directory: Some(into.to_owned()),
        ..PathOptions::default()
    };
    let paths =
        build_with_options(&plan, settings, &AttachPoints::default(), &extras).expect("spaces");
    let outcome = run(paths, StopConditions::default()).expect("a run");
    let replayed = digest(&outcome);
    (outcome, replayed, replay.is_truncated())
}

/// Reads all files below a directory.
pub(crate) fn read_files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
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

/// Records a request, replays it twice, and compares files, digests and ledgers.
pub(crate) fn assert_same_replays(
    name: &str,
    text: &str,
    settings: RunSettings,
    feed: impl FnOnce(&PathHandle),
) -> RunOutcome {
    let folder = Folder::new(name);
    let at = |name: &str| folder.0.join(name);
    let first = (&*at("r.pcapng"), &*at("live"), 1 << 28);
    let (outcome, recorded) = record_run(text, settings, first, feed);
    let record = Record::open(&at("r.pcapng")).expect("a record");
    assert_eq!(record.completeness, Completeness::Complete { digest: recorded.clone() });
    std::fs::create_dir_all(at("live")).unwrap();
    let live = read_files(&at("live"));
    for again in ["one", "two"] {
        std::fs::create_dir_all(at(again)).unwrap();
        let (other, now, short) = replay_run(&at("r.pcapng"), &at(again));
        assert_eq!(changed_lines(&recorded, &now), [], "{text}");
        assert!(!short);
        assert_eq!(other.ledger.imbalances(), [], "{text}");
        let files = read_files(&at(again));
        let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&files), names(&live), "{text}");
        for (name, bytes) in &files {
            assert!(*bytes == live[name], "{text}: {} differs", name.display());
        }
    }
    outcome
}

/// Generates TCP connections with gaps and disorder, datagrams in fragments, and random bytes.
pub(crate) fn random_frames(random: &mut Random, count: usize) -> Vec<Vec<u8>> {
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
                frames.push(here().fragment(0, true).ip_payload(17, &whole));
                if random.one_in(2) {
                    frames.push(here().fragment(8, false).ip_payload(17, &random.bytes(16)));
                }
            }
            _ => {
                let text = format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n");
                let segment = TcpHeader {
                    source: port,
                    target: 80,
                    sequence: next[flow],
                    ..TcpHeader::default()
                };
                frames.push(here().tcp(&segment, text.as_bytes()));
                next[flow] = next[flow].wrapping_add(text.len() as u32);
                if random.one_in(8) {
                    // A gap, behind which later segments are held.
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

/// Injects `frames` into a path, with occasional short pauses. Calls `act` with the index of each
/// frame after its injection.
pub(crate) fn inject_frames(
    injector: Injector,
    frames: &[Vec<u8>],
    seed: u64,
    act: &mut dyn FnMut(usize),
) {
    let mut random = Random::new(seed);
    for (number, frame) in frames.iter().enumerate() {
        // No path accepts frames before the source is open or after the path has ended.
        while injector.inject_frame(frame, LinkType::ETHERNET, sys::clock::realtime_ns())
            == InjectOutcome::NoPath
            && number == 0
        {
            std::thread::yield_now();
        }
        if random.one_in(7) {
            std::thread::sleep(Duration::from_micros(random.below(1500)));
        }
        act(number);
    }
}
