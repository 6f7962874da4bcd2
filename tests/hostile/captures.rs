//! Every capture of the outside cases through whole lines: untouched through all lines, broken
//! through the wide ones.

use crate::catalogue;
use crate::exam::{Expected, examine, report};
use crate::line::Line;
use crate::mutate::{Dose, Mutation, mutations};
use crate::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;
use testkit::{Captures, Random};
use wire::LinkType;

/// Processor time that a megabyte may cost a line, in ns.
const PER_MEGABYTE: u64 = 100_000_000;
/// The fixed budget of a run, in ns, for the memory and files with which it begins and ends.
const PER_RUN: u64 = 10_000_000;
/// The factor for a debug build: zlib without optimization is slowest.
const SLOWNESS: u64 = if cfg!(debug_assertions) { 20 } else { 1 };
/// A run that takes longer than this hangs, however busy the machine is.
const HANGS: Duration = Duration::from_secs(600);

/// The file that every capture is written to in turn.
const CAPTURE: &str = "capture";
/// The folder that sinks write into, fresh for every run.
const OUT: &str = "out";

/// Lines, and the captures on which they are tried.
struct Sweep {
    /// Lines over the capture in this file, which may write into this folder. Every capture goes
    /// through the first `always` of them, and through `turns` of the others.
    lines: fn(&Path, &Path) -> Vec<String>,
    always: usize,
    turns: usize,
    /// The mutations of each capture.
    dose: Dose,
    /// True if the time is the lines' own, not that of the kernel making files.
    timed: bool,
}

/// A few lines and mutations, so that a debug build is done in seconds.
const FEW: Sweep = Sweep {
    lines: |_, _| Vec::new(),
    always: 0,
    turns: 2,
    dose: Dose { cuts: 1, flips: 1 },
    timed: true,
};

#[test]
fn every_capture_passes_every_filter() {
    pass_every_filter(testkit::made());
}

#[test]
fn corpus_every_capture_passes_every_filter() {
    testkit::corpus().into_iter().for_each(pass_every_filter);
}

fn pass_every_filter(captures: Captures) {
    let lines = |capture: &Path, _: &Path| {
        let wide = catalogue::wide_lines(capture).into_iter();
        wide.chain(catalogue::single_lines(capture)).collect()
    };
    let dose = match soaks() {
        true => Dose { cuts: usize::MAX, flips: 1000 },
        false => Dose { cuts: 4, flips: 4 },
    };
    sweep(captures, &Sweep { lines, always: catalogue::WIDE, dose, ..FEW });
}

#[test]
fn every_capture_passes_a_file_sink() {
    pass_a_file_sink(testkit::made());
}

#[test]
fn corpus_every_capture_passes_a_file_sink() {
    testkit::corpus().into_iter().for_each(pass_a_file_sink);
}

fn pass_a_file_sink(captures: Captures) {
    sweep(captures, &Sweep { lines: catalogue::file_sink_lines, timed: false, ..FEW });
}

/// Sinks that write to standard output would spoil the report of the tests: they run in a process
/// of their own whose standard output goes nowhere.
#[test]
fn every_capture_passes_a_standard_sink() {
    pass_a_standard_sink("captures::every_capture_passes_a_standard_sink", testkit::made());
}

#[test]
fn corpus_every_capture_passes_a_standard_sink() {
    let test = "captures::corpus_every_capture_passes_a_standard_sink";
    testkit::corpus().into_iter().for_each(|corpus| pass_a_standard_sink(test, corpus));
}

fn pass_a_standard_sink(test: &str, captures: Captures) {
    const CHILD: &str = "STREAMLINE_HOSTILE_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let lines = |capture: &Path, _: &Path| {
            let mut lines = catalogue::standard_sink_lines(capture);
            let replay = format!("replay '{}'", capture.display());
            lines.push(format!("{replay} | (eth | vlan) + (ip | ipproto) | json"));
            lines
        };
        return sweep(captures, &Sweep { lines, ..FEW });
    }
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.args(["--exact", "--nocapture", test]);
    child.env(CHILD, "1").stdout(Stdio::null());
    assert!(child.status().expect("this program again").success(), "told above");
}

#[test]
fn every_capture_passes_lines_of_people() {
    pass_lines_of_people(testkit::made());
}

#[test]
fn corpus_every_capture_passes_lines_of_people() {
    testkit::corpus().into_iter().for_each(pass_lines_of_people);
}

fn pass_lines_of_people(captures: Captures) {
    let lines = |capture: &Path, _: &Path| {
        let behind = [
            "eth | ip | udp | discard",
            "bpf \"tcp or vlan and udp port 53\" | dport |all inspect",
            "match \"GET\" |all hist of=length",
            "dport |80 count + !bpf \"tcp\" | discard",
            "dport --name=X |53,80 (inspect | dport --name=X) + |all discard",
        ];
        let replay = format!("replay '{}'", capture.display());
        let mut lines: Vec<_> = behind.map(|rest| format!("{replay} | {rest}")).to_vec();
        lines.push(format!("{replay} ++ {replay} | eth |all discard"));
        lines
    };
    sweep(captures, &Sweep { lines, ..FEW });
}

fn soaks() -> bool {
    std::env::var_os("STREAMLINE_SOAK").is_some_and(|value| value == "1")
}

/// Runs every capture. As many threads as there are processors share them.
fn sweep(captures: Captures, sweep: &Sweep) {
    let paths = captures.paths;
    let seed = Random::replayable().next();
    let work = Work { sweep, paths, seed, next: AtomicUsize::new(0), runs: AtomicU64::new(0) };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let now: Vec<Mutex<String>> = (0..threads).map(|_| Mutex::default()).collect();
    let work = &work;
    let spent = std::thread::scope(|scope| {
        let (ended, watched) = mpsc::channel::<()>();
        scope.spawn(|| watch(&now, &work.runs, watched));
        let worker = |now| scope.spawn(move || Worker::new(work, now).share());
        let workers: Vec<_> = now.iter().map(worker).collect();
        let shares: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        drop(ended);
        shares.into_iter().map(|share| share.expect("told above")).reduce(sum)
    });
    judge(&spent.unwrap_or_default(), sweep.timed);
}

/// State shared by all threads.
struct Work<'s> {
    sweep: &'s Sweep,
    paths: Vec<PathBuf>,
    seed: u64,
    next: AtomicUsize,
    runs: AtomicU64,
}

impl Work<'_> {
    fn take(&self) -> Option<(usize, &Path)> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        Some((index, self.paths.get(index)?))
    }
}

/// One thread, with a file that the captures are written to.
struct Worker<'w> {
    work: &'w Work<'w>,
    now: &'w Mutex<String>,
    file: PathBuf,
    lines: Vec<Line>,
    spent: Vec<Spent>,
    scratch: Scratch,
}

/// The time of a line over all captures.
struct Spent {
    line: String,
    ns: u64,
    /// The cost of the bytes: beyond the cost of a run without any.
    own_ns: u64,
    bytes: u64,
    runs: u64,
    /// The cost of a capture without packets: making and ending spaces.
    empty_ns: u64,
}

impl Spent {
    fn new(line: &Line, scratch: &Scratch, work: &Work<'_>, now: &Mutex<String>) -> Self {
        let header = wire::capture::write::header(LinkType::ETHERNET);
        let nothing = Expected::of(&header);
        std::fs::write(scratch.path(CAPTURE), header).expect("a file");
        *now.lock().unwrap_or_else(PoisonError::into_inner) = format!("it hangs: {}", line.text);
        let cost = |_| {
            let out = scratch.path(OUT);
            std::fs::create_dir(&out).expect("a folder for sinks");
            let cost = examine(line, &nothing);
            std::fs::remove_dir_all(out).expect("what sinks left");
            work.runs.fetch_add(1, Ordering::Relaxed);
            cost.unwrap_or_else(|why| panic!("{}: {why}", line.text))
        };
        let empty_ns = (0..10).map(cost).min().unwrap_or(0);
        let line = line.text.replace(&scratch.path("").display().to_string(), "");
        Self { line, ns: 0, own_ns: 0, bytes: 0, runs: 0, empty_ns }
    }

    fn add(&mut self, ns: u64, bytes: u64) {
        self.ns += ns;
        self.own_ns += ns.saturating_sub(self.empty_ns);
        self.bytes += bytes;
        self.runs += 1;
    }
}

/// Adds up the times of two threads, line by line.
fn sum(mut one: Vec<Spent>, other: Vec<Spent>) -> Vec<Spent> {
    for (one, other) in one.iter_mut().zip(other) {
        one.ns += other.ns;
        one.own_ns += other.own_ns;
        one.bytes += other.bytes;
        one.runs += other.runs;
    }
    one
}

impl<'w> Worker<'w> {
    fn new(work: &'w Work<'w>, now: &'w Mutex<String>) -> Self {
        let scratch = Scratch::new();
        let file = scratch.path(CAPTURE);
        let texts = (work.sweep.lines)(&file, &scratch.path(OUT));
        let lines: Vec<Line> = texts.into_iter().map(Line::new).collect();
        let spent = lines.iter().map(|line| Spent::new(line, &scratch, work, now)).collect();
        Self { work, now, file, lines, spent, scratch }
    }

    /// Takes captures until there are none left.
    fn share(mut self) -> Vec<Spent> {
        let &Sweep { always, turns, dose, .. } = self.work.sweep;
        let others = self.lines.len() - always;
        let turns = if soaks() { others } else { turns.min(others) };
        while let Some((index, path)) = self.work.take() {
            let bytes = std::fs::read(path).expect("a capture that can be read");
            let in_turn = (0..turns).map(|turn| always + (index * turns + turn) % others);
            for which in (0..always).chain(in_turn) {
                self.run(path, &bytes, Mutation::Untouched, which);
            }
            let mut random = Random::new(self.work.seed.wrapping_add(index as u64));
            let from = if always > 0 { always } else { others };
            for (number, mutation) in mutations(&bytes, dose, &mut random).into_iter().enumerate() {
                self.run(path, &bytes, mutation, (index + number) % from);
            }
        }
        self.spent
    }

    fn run(&mut self, path: &Path, bytes: &[u8], mutation: Mutation, which: usize) {
        let out = self.scratch.path(OUT);
        std::fs::create_dir(&out).expect("a folder for sinks");
        let capture = mutation.apply(bytes);
        std::fs::write(&self.file, &capture).expect("a file");
        let line = &self.lines[which];
        let report = |why: &str| report(why, line, path, mutation);
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = report("it hangs");
        let expected = Expected::of(&capture);
        let cost = || examine(line, &expected).unwrap_or_else(|why| panic!("{}", report(&why)));
        let length = capture.len() as u64;
        let slow = |cost: &u64| *cost > SLOWNESS * PER_RUN + allowed(length);
        let mut spent = cost();
        if self.work.sweep.timed && slow(&spent) {
            // A busy machine may be slow once; what is slow of itself is so again.
            spent = (0..3).map(|_| cost()).min().unwrap_or(spent);
            assert!(!slow(&spent), "{}", report(&format!("it took {spent} ns for {length} bytes")));
        }
        self.spent[which].add(spent, length);
        self.work.runs.fetch_add(1, Ordering::Relaxed);
        std::fs::remove_dir_all(&out).expect("what sinks left");
    }
}

/// The processor time that so many bytes may take, in ns.
fn allowed(bytes: u64) -> u64 {
    bytes * PER_MEGABYTE / 1_000_000 * SLOWNESS
}

/// Ends the process where a run does not end: a hang would look like a slow test for ever.
fn watch(now: &[Mutex<String>], runs: &AtomicU64, ended: mpsc::Receiver<()>) {
    let mut before = 0;
    while ended.recv_timeout(HANGS) == Err(mpsc::RecvTimeoutError::Timeout) {
        let done = runs.load(Ordering::Relaxed);
        if done == before {
            for now in now {
                eprintln!("{}", now.lock().unwrap_or_else(PoisonError::into_inner));
            }
            std::process::abort();
        }
        before = done;
    }
}

/// Prints what every line cost. A megabyte costs at most what it may, beside what a run costs that
/// has no packet: most captures are small. Lines that saw less than a megabyte are not judged.
#[expect(clippy::print_stdout, reason = "figures, which the harness shows when asked")]
fn judge(spent: &[Spent], timed: bool) {
    let mut slow = Vec::new();
    println!("ms/MB; with the costs of a run; runs; MB; line");
    for &Spent { ref line, ns, own_ns, bytes, runs, .. } in spent {
        let rate = |ns: u64| ns as f64 / bytes as f64;
        let (own, all, megabytes) = (rate(own_ns), rate(ns), bytes as f64 / 1e6);
        println!("{own:8.1} {all:8.1} {runs:7} {megabytes:8.1}  {line}");
        if timed && bytes > 1_000_000 && own_ns > allowed(bytes) {
            slow.push(line);
        }
    }
    assert!(slow.is_empty(), "more than {} ms/MB: {slow:#?}", SLOWNESS * PER_MEGABYTE / 1_000_000);
}
