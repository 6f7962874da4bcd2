//! Tests that run generated and external captures through complete requests. Unchanged captures
//! pass all requests; mutated captures pass the requests with many filters.

use crate::catalog;
use crate::examination::{ExpectedPackets, examine_request, format_failure};
use crate::mutation::{Mutation, MutationCounts, capture_mutations};
use crate::request::PlannedRequest;
use crate::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;
use testkit::{Captures, Random};
use wire::LinkType;

/// Limit on processor time per megabyte of capture, in ns.
const NS_PER_MEGABYTE_MAX: u64 = 100_000_000;
/// Additional processor time that each run may take for the setup and teardown of memory and files,
/// in ns.
const SETUP_NS_PER_RUN: u64 = 10_000_000;
/// Factor by which the limits on processor time grow in a debug build. It is chosen for zlib, the
/// code that is slowest without optimization.
const DEBUG_SLOWDOWN: u64 = if cfg!(debug_assertions) { 20 } else { 1 };
/// Duration after which a run counts as hung, even on a busy machine.
const HANG_TIMEOUT: Duration = Duration::from_secs(600);

/// Name of the file to which a worker writes each mutated capture before it is replayed.
const CAPTURE_FILE_NAME: &str = "capture";
/// Directory into which sinks write. It is emptied before each run.
const OUTPUT_DIRECTORY: &str = "out";

/// A set of requests, and the mutations of the captures that they replay.
struct MutationSweep {
    /// Returns the requests for a capture file and an output directory.
    requests: fn(&Path, &Path) -> Vec<String>,
    /// Number of requests at the start of the list that replay every capture.
    always_run: usize,
    /// Number of requests of the list, after the first `always_run`, that replay one capture. The
    /// next capture is replayed by other requests.
    rotated_requests: usize,
    /// Number of mutations of each capture.
    mutations: MutationCounts,
    /// True if the processor time of the requests is checked. It is not checked for requests that
    /// create many files, because the kernel spends most of the time on the files.
    is_timed: bool,
}

/// A small set of requests and mutations. Its test takes seconds even in a debug build.
const SMALL_MUTATION_SWEEP: MutationSweep = MutationSweep {
    requests: |_, _| Vec::new(),
    always_run: 0,
    rotated_requests: 2,
    mutations: MutationCounts { truncations: 1, flips: 1 },
    is_timed: true,
};

#[test]
fn every_capture_passes_every_filter() {
    assert_captures_pass_every_filter(testkit::generated_captures());
}

#[test]
fn corpus_every_capture_passes_every_filter() {
    testkit::corpus_captures().into_iter().for_each(assert_captures_pass_every_filter);
}

fn assert_captures_pass_every_filter(captures: Captures) {
    let lines = |capture: &Path, _: &Path| {
        let wide = catalog::wide_requests(capture).into_iter();
        wide.chain(catalog::single_filter_requests(capture)).collect()
    };
    let mutations = match is_soak_run() {
        true => MutationCounts { truncations: usize::MAX, flips: 1000 },
        false => MutationCounts { truncations: 4, flips: 4 },
    };
    run_mutation_sweep(
        captures,
        &MutationSweep {
            requests: lines,
            always_run: catalog::WIDE_REQUEST_COUNT,
            mutations,
            ..SMALL_MUTATION_SWEEP
        },
    );
}

#[test]
fn every_capture_passes_a_file_sink() {
    assert_captures_pass_a_file_sink(testkit::generated_captures());
}

#[test]
fn corpus_every_capture_passes_a_file_sink() {
    testkit::corpus_captures().into_iter().for_each(assert_captures_pass_a_file_sink);
}

fn assert_captures_pass_a_file_sink(captures: Captures) {
    run_mutation_sweep(
        captures,
        &MutationSweep {
            requests: catalog::file_sink_requests,
            is_timed: false,
            ..SMALL_MUTATION_SWEEP
        },
    );
}

/// Runs sinks that write to standard output in a child process. Its standard output is /dev/null,
/// so that the test report stays intact.
#[test]
fn every_capture_passes_a_stdout_sink() {
    assert_captures_pass_a_stdout_sink(
        "captures::every_capture_passes_a_stdout_sink",
        testkit::generated_captures(),
    );
}

#[test]
fn corpus_every_capture_passes_a_stdout_sink() {
    let test = "captures::corpus_every_capture_passes_a_stdout_sink";
    testkit::corpus_captures()
        .into_iter()
        .for_each(|corpus| assert_captures_pass_a_stdout_sink(test, corpus));
}

fn assert_captures_pass_a_stdout_sink(test: &str, captures: Captures) {
    const HOSTILE_CHILD_VARIABLE: &str = "STREAMLINE_HOSTILE_CHILD";
    if std::env::var_os(HOSTILE_CHILD_VARIABLE).is_some() {
        let lines = |capture: &Path, _: &Path| {
            let mut lines = catalog::stdout_sink_requests(capture);
            let replay = format!("replay '{}'", capture.display());
            lines.push(format!("{replay} | (eth | vlan) + (ip | ipproto) | json"));
            lines
        };
        return run_mutation_sweep(
            captures,
            &MutationSweep { requests: lines, ..SMALL_MUTATION_SWEEP },
        );
    }
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.args(["--exact", "--nocapture", test]);
    child.env(HOSTILE_CHILD_VARIABLE, "1").stdout(Stdio::null());
    assert!(child.status().expect("this program again").success(), "told above");
}

#[test]
fn every_capture_passes_typical_requests() {
    assert_captures_pass_typical_requests(testkit::generated_captures());
}

#[test]
fn corpus_every_capture_passes_typical_requests() {
    testkit::corpus_captures().into_iter().for_each(assert_captures_pass_typical_requests);
}

fn assert_captures_pass_typical_requests(captures: Captures) {
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
    run_mutation_sweep(captures, &MutationSweep { requests: lines, ..SMALL_MUTATION_SWEEP });
}

fn is_soak_run() -> bool {
    std::env::var_os("STREAMLINE_SOAK").is_some_and(|value| value == "1")
}

/// Runs every capture through the requests, with a thread per processor.
fn run_mutation_sweep(captures: Captures, sweep: &MutationSweep) {
    let paths = captures.paths;
    let seed = Random::with_replayable_seed().next_u64();
    let work =
        SweepProgress { sweep, paths, seed, next: AtomicUsize::new(0), runs: AtomicU64::new(0) };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let now: Vec<Mutex<String>> = (0..threads).map(|_| Mutex::default()).collect();
    let work = &work;
    let spent = std::thread::scope(|scope| {
        let (ended, watched) = mpsc::channel::<()>();
        scope.spawn(|| abort_on_hang(&now, &work.runs, watched));
        let worker = |now| scope.spawn(move || SweepWorker::new(work, now).process_captures());
        let workers: Vec<_> = now.iter().map(worker).collect();
        let shares: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        drop(ended);
        shares.into_iter().map(|share| share.expect("told above")).reduce(sum_costs)
    });
    assert_costs_within_limit(&spent.unwrap_or_default(), sweep.is_timed);
}

/// The state of a run over all captures, shared by its threads.
struct SweepProgress<'s> {
    sweep: &'s MutationSweep,
    paths: Vec<PathBuf>,
    seed: u64,
    next: AtomicUsize,
    runs: AtomicU64,
}

impl SweepProgress<'_> {
    fn next_capture(&self) -> Option<(usize, &Path)> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        Some((index, self.paths.get(index)?))
    }
}

/// A thread that processes captures of a [`MutationSweep`]. It writes each mutated capture to its
/// own file.
struct SweepWorker<'w> {
    work: &'w SweepProgress<'w>,
    now: &'w Mutex<String>,
    file: PathBuf,
    requests: Vec<PlannedRequest>,
    costs: Vec<RequestCost>,
    scratch: Scratch,
}

/// Processor time of a request, summed over all captures.
struct RequestCost {
    line: String,
    ns: u64,
    /// Processor time spent on packets, in ns: the total minus the time of empty runs.
    packet_ns: u64,
    bytes: u64,
    runs: u64,
    /// Processor time of a run over a capture without packets, in ns. Such a run only starts and
    /// ends the spaces.
    empty_ns: u64,
}

impl RequestCost {
    fn new(
        line: &PlannedRequest,
        scratch: &Scratch,
        work: &SweepProgress<'_>,
        now: &Mutex<String>,
    ) -> Self {
        let header = wire::capture::write::encode_file_header(LinkType::ETHERNET);
        let nothing = ExpectedPackets::read(&header);
        std::fs::write(scratch.path(CAPTURE_FILE_NAME), header).expect("a file");
        *now.lock().unwrap_or_else(PoisonError::into_inner) = format!("it hangs: {}", line.text);
        let cost = |_| {
            let out = scratch.path(OUTPUT_DIRECTORY);
            std::fs::create_dir(&out).expect("a folder for sinks");
            let cost = examine_request(line, &nothing);
            std::fs::remove_dir_all(out).expect("what sinks left");
            work.runs.fetch_add(1, Ordering::Relaxed);
            cost.unwrap_or_else(|why| panic!("{}: {why}", line.text))
        };
        let empty_ns = (0..10).map(cost).min().unwrap_or(0);
        let line = line.text.replace(&scratch.path("").display().to_string(), "");
        Self { line, ns: 0, packet_ns: 0, bytes: 0, runs: 0, empty_ns }
    }

    fn add_run_cost(&mut self, ns: u64, bytes: u64) {
        self.ns += ns;
        self.packet_ns += ns.saturating_sub(self.empty_ns);
        self.bytes += bytes;
        self.runs += 1;
    }
}

/// Adds the costs that two threads have measured, request by request.
fn sum_costs(mut one: Vec<RequestCost>, other: Vec<RequestCost>) -> Vec<RequestCost> {
    for (one, other) in one.iter_mut().zip(other) {
        one.ns += other.ns;
        one.packet_ns += other.packet_ns;
        one.bytes += other.bytes;
        one.runs += other.runs;
    }
    one
}

impl<'w> SweepWorker<'w> {
    fn new(work: &'w SweepProgress<'w>, now: &'w Mutex<String>) -> Self {
        let scratch = Scratch::new();
        let file = scratch.path(CAPTURE_FILE_NAME);
        let texts = (work.sweep.requests)(&file, &scratch.path(OUTPUT_DIRECTORY));
        let requests: Vec<PlannedRequest> = texts.into_iter().map(PlannedRequest::new).collect();
        let costs =
            requests.iter().map(|line| RequestCost::new(line, &scratch, work, now)).collect();
        Self { work, now, file, requests, costs, scratch }
    }

    /// Processes captures until the threads of the run have taken all of them. Returns the costs of
    /// the requests.
    fn process_captures(mut self) -> Vec<RequestCost> {
        let &MutationSweep {
            always_run: always,
            rotated_requests: rounds,
            mutations: mutation_counts,
            ..
        } = self.work.sweep;
        let others = self.requests.len() - always;
        let rounds = if is_soak_run() { others } else { rounds.min(others) };
        while let Some((index, path)) = self.work.next_capture() {
            let bytes = std::fs::read(path).expect("a capture that can be read");
            let interleaved = (0..rounds).map(|round| always + (index * rounds + round) % others);
            for which in (0..always).chain(interleaved) {
                self.run_mutation(path, &bytes, Mutation::Unchanged, which);
            }
            let mut random = Random::new(self.work.seed.wrapping_add(index as u64));
            let from = if always > 0 { always } else { others };
            for (number, mutation) in
                capture_mutations(&bytes, mutation_counts, &mut random).into_iter().enumerate()
            {
                self.run_mutation(path, &bytes, mutation, (index + number) % from);
            }
        }
        self.costs
    }

    fn run_mutation(&mut self, path: &Path, bytes: &[u8], mutation: Mutation, which: usize) {
        let out = self.scratch.path(OUTPUT_DIRECTORY);
        std::fs::create_dir(&out).expect("a folder for sinks");
        let capture = mutation.apply(bytes);
        std::fs::write(&self.file, &capture).expect("a file");
        let line = &self.requests[which];
        let report = |why: &str| format_failure(why, line, path, mutation);
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = report("it hangs");
        let expected = ExpectedPackets::read(&capture);
        let cost =
            || examine_request(line, &expected).unwrap_or_else(|why| panic!("{}", report(&why)));
        let length = capture.len() as u64;
        let slow = |cost: &u64| *cost > DEBUG_SLOWDOWN * SETUP_NS_PER_RUN + time_limit_ns(length);
        let mut spent = cost();
        if self.work.sweep.is_timed && slow(&spent) {
            // Repeats a slow run, since the machine may be busy.
            spent = (0..3).map(|_| cost()).min().unwrap_or(spent);
            assert!(!slow(&spent), "{}", report(&format!("it took {spent} ns for {length} bytes")));
        }
        self.costs[which].add_run_cost(spent, length);
        self.work.runs.fetch_add(1, Ordering::Relaxed);
        std::fs::remove_dir_all(&out).expect("what sinks left");
    }
}

/// Returns the maximum processor time for captures of `bytes` bytes in total, in ns.
fn time_limit_ns(bytes: u64) -> u64 {
    bytes * NS_PER_MEGABYTE_MAX / 1_000_000 * DEBUG_SLOWDOWN
}

/// Ends the process if a run exceeds [`HANG_TIMEOUT`], because a hang would look like a slow test.
fn abort_on_hang(now: &[Mutex<String>], runs: &AtomicU64, ended: mpsc::Receiver<()>) {
    let mut before = 0;
    while ended.recv_timeout(HANG_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
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

/// Prints the cost of each request, and panics if a cost exceeds the limit per megabyte. The cost
/// of a run without packets is subtracted, because most captures are small. Requests that processed
/// less than a megabyte have no limit.
#[expect(clippy::print_stdout, reason = "figures, which the harness shows when asked")]
fn assert_costs_within_limit(costs: &[RequestCost], is_timed: bool) {
    let mut slow = Vec::new();
    println!("ms/MB; with the costs of a run; runs; MB; line");
    for &RequestCost { ref line, ns, packet_ns, bytes, runs, .. } in costs {
        let rate = |ns: u64| ns as f64 / bytes as f64;
        let (own, all, megabytes) = (rate(packet_ns), rate(ns), bytes as f64 / 1e6);
        println!("{own:8.1} {all:8.1} {runs:7} {megabytes:8.1}  {line}");
        if is_timed && bytes > 1_000_000 && packet_ns > time_limit_ns(bytes) {
            slow.push(line);
        }
    }
    assert!(
        slow.is_empty(),
        "more than {} ms/MB: {slow:#?}",
        DEBUG_SLOWDOWN * NS_PER_MEGABYTE_MAX / 1_000_000
    );
}
