//! Tests of requests that share the program of an interface: common filters run once, requests join
//! and leave under traffic without affecting other requests, and a failed attachment changes
//! nothing.

use crate::frame_sending::{parse_capture, send_all};
use crate::numbered_frames::{FRAME_LENGTH, frame_number, numbered_frames};
use crate::scratch::Scratch;
use engine::build::{BuildError, BuiltPath, PathOptions, RunSettings, build_with_options};
use engine::kernel::shared_attach_point::{AttachPoints, PointStatus};
use engine::live::PathHandle;
use engine::registry::MachineRegistry;
use engine::run::{RunOutcome, StopConditions, run};
use pipeline::plan::plan;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::bpf::{RunStatisticsGuard, TrafficDirection, tcx_chain};
use sys::net::RouteSocket;
use sys::packet::{PacketSender, QdiscMode};
use sys::rollback::{InjectedFault, RollbackLog};
use testkit::net::{CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER_DEVICE, wait_until};
use testkit::{Frame, need};

/// Returns a veth pair that carries only the test's traffic, or `None` if programs cannot be
/// loaded.
pub(crate) fn quiet_pair() -> Option<NamespacePair> {
    need::require_bpf()?;
    NamespacePair::new(DevicePairSettings { addresses: false, ..DevicePairSettings::default() })
}

fn build_request(
    pair: &NamespacePair,
    points: &AttachPoints,
    text: &str,
) -> Result<Vec<BuiltPath>, BuildError> {
    build_with_rollback_log(pair, points, text, &RollbackLog::default())
}

/// Builds a request in the server's namespace, with the rollback log `steps`. Asserts that the plan
/// places a source in the kernel.
fn build_with_rollback_log(
    pair: &NamespacePair,
    points: &AttachPoints,
    text: &str,
    steps: &RollbackLog,
) -> Result<Vec<BuiltPath>, BuildError> {
    pair.server.run_in_network_namespace(|| {
        let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
        assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
        let plan = plan(graph, &MachineRegistry::Local, &engine::machine::inspect_machine())
            .expect("a plan");
        assert!(!plan.programs.is_empty(), "{text}: {plan:?}");
        let extras = PathOptions { steps: steps.clone(), ..PathOptions::default() };
        build_with_options(&plan, RunSettings::default(), points, &extras)
    })
}

/// A request that runs in a thread of the test, with handles of its connected components.
pub(crate) struct RunningRequest {
    lives: Vec<PathHandle>,
    thread: JoinHandle<RunOutcome>,
}

impl RunningRequest {
    pub(crate) fn start(pair: &NamespacePair, points: &AttachPoints, text: &str) -> Self {
        let paths = build_request(pair, points, text).unwrap_or_else(|why| panic!("{text}: {why}"));
        let lives = paths.iter().map(BuiltPath::live).collect();
        let thread = std::thread::spawn(|| run(paths, StopConditions::default()).expect("a run"));
        Self { lives, thread }
    }

    /// Returns the handles of the request's connected components.
    pub(crate) fn component_handles(&self) -> &[PathHandle] {
        &self.lives
    }

    pub(crate) fn stop(self) -> RunOutcome {
        self.lives.iter().for_each(PathHandle::stop);
        let outcome = self.thread.join().expect("a run");
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        assert_eq!(outcome.ledger.imbalances(), [], "{:#?}", outcome.ledger);
        outcome
    }
}

/// Returns the rows in the reports of a request's filters, by name of the filter.
pub(crate) fn reports_by_filter(outcome: &RunOutcome) -> BTreeMap<String, Vec<(String, u64)>> {
    let reports = outcome.reports.iter();
    reports.map(|report| (report.name.clone(), report.report.rows.clone())).collect()
}

fn device_index() -> u32 {
    RouteSocket::open().expect("links").interface_by_name(SERVER_DEVICE).expect("the device").index
}

/// Returns the ids of the programs at the server's device.
pub(crate) fn attached_program_ids(pair: &NamespacePair) -> Vec<u32> {
    let chain = pair.server.run_in_network_namespace(|| {
        tcx_chain(device_index(), TrafficDirection::Ingress).expect("a chain")
    });
    chain.members.iter().map(|member| member.program).collect()
}

pub(crate) fn program_status(points: &AttachPoints) -> PointStatus {
    let points_status = points.status();
    assert_eq!(points_status.len(), 1, "one point: {points_status:?}");
    points_status[0].1.clone()
}

pub(crate) fn datagrams(count: usize) -> Vec<Vec<u8>> {
    let frame = |number: usize| {
        let frame = Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1");
        match number % 4 {
            3 => frame.udp(9, 5000, &[1; 30]),
            port => frame.udp(4000, [53, 80, 443][port], &vec![7; 20 + number % 100]),
        }
    };
    (0..count).map(frame).collect()
}

#[test]
fn o7_branches_of_a_request_share_one_demultiplexer() {
    const FRAMES: usize = 400;
    let Some(pair) = quiet_pair() else { return };
    let scratch = Scratch::new();
    let line = |rx: &str, name: &str| {
        let capture = scratch.path(name);
        format!(
            "{rx} | ip | udp | dport |53 count ; {rx} | ip | udp | dport |80 hist length ; \
             {rx} | ip | udp | dport |443 pcap {}",
            capture.display()
        )
    };
    let points = AttachPoints::default();
    let counting = RunStatisticsGuard::enable().expect("statistics");
    let inside =
        RunningRequest::start(&pair, &points, &line(&format!("rx {SERVER_DEVICE}"), "inside.pcap"));
    let programs = attached_program_ids(&pair);
    assert_eq!(programs.len(), 1, "three lines, one program");
    let frames = datagrams(FRAMES);
    send_all(&pair, &frames);
    let now = program_status(&points);
    assert_eq!((now.request_count, now.frame_rings, now.program), (3, 1, programs[0]));
    let all = FRAMES as u64;
    let steps = |name: &str| now.steps.iter().filter(|(step, ..)| step == name).collect::<Vec<_>>();
    for name in ["ip", "udp", "dport"] {
        assert_eq!(steps(name), [&(name.to_owned(), 3, all)], "once for all lines: {now:?}");
    }
    assert_eq!(steps("count"), [&("count".to_owned(), 1, all / 4)], "{now:?}");
    assert_eq!(now.runs, all, "the kernel counts one run for a frame");
    drop(counting);
    let reports = reports_by_filter(&inside.stop());
    assert!(attached_program_ids(&pair).is_empty(), "nothing stays");
    // The same requests in threads, on the same frames.
    let outside = format!("rx@thread0 {SERVER_DEVICE}");
    let threads = pair.server.run_in_network_namespace(|| {
        let (graph, _) =
            pipeline::read_request(&line(&outside, "outside.pcap"), &MachineRegistry::Local);
        let plan = plan(graph, &MachineRegistry::Local, &engine::machine::inspect_machine())
            .expect("a plan");
        engine::build::build(&plan, RunSettings::default()).expect("paths")
    });
    let lives: Vec<PathHandle> = threads.iter().map(BuiltPath::live).collect();
    let thread = std::thread::spawn(|| run(threads, StopConditions::default()).expect("a run"));
    send_all(&pair, &frames);
    lives.iter().for_each(PathHandle::stop);
    assert_eq!(reports, reports_by_filter(&thread.join().expect("a run")));
    let captured = |name| parse_capture(&std::fs::read(scratch.path(name)).expect("a capture"));
    assert_eq!(captured("inside.pcap").len(), FRAMES / 4);
    assert!(captured("inside.pcap") == captured("outside.pcap"));
}

/// Starts two requests with the same filters. Asserts that they share the stateless filters, but
/// not the stateful filter `count`.
#[test]
fn o6_stateful_filter_is_separate_per_request() {
    let Some(pair) = quiet_pair() else { return };
    let points = AttachPoints::default();
    let text = format!("rx {SERVER_DEVICE} | ip | udp | count");
    let first = RunningRequest::start(&pair, &points, &text);
    send_all(&pair, &datagrams(100));
    let second = RunningRequest::start(&pair, &points, &text);
    assert_eq!(attached_program_ids(&pair).len(), 1);
    send_all(&pair, &datagrams(100));
    let now = program_status(&points);
    let lines: Vec<_> = now.steps.iter().map(|(name, lines, _)| (name.as_str(), *lines)).collect();
    assert_eq!(lines[..2], [("ip", 2), ("udp", 2)], "{now:?}");
    assert_eq!(lines[2..].iter().filter(|one| **one == ("count", 1)).count(), 2, "{now:?}");
    let second = reports_by_filter(&second.stop());
    send_all(&pair, &datagrams(100));
    let first = reports_by_filter(&first.stop());
    let blocks = |reports: &BTreeMap<String, Vec<(String, u64)>>| reports["count"][0].1;
    assert_eq!((blocks(&first), blocks(&second)), (300, 100));
}

#[test]
fn failed_addition_of_a_request_changes_nothing() {
    let name = "shared_program::failed_addition_of_a_request_changes_nothing";
    if !testkit::run_in_separate_process(name) {
        return;
    }
    let Some(pair) = quiet_pair() else { return };
    let scratch = Scratch::new();
    let points = AttachPoints::default();
    let stays = scratch.path("stays.pcap");
    let first = format!("rx {SERVER_DEVICE} | ip | udp | dport |53 pcap {}", stays.display());
    let first = RunningRequest::start(&pair, &points, &first);
    let text = format!("rx {SERVER_DEVICE} ring=1MB | ip | udp | dport |80 count");
    let mut failed = 0;
    let own = kernel_object_descriptors();
    for step in 0.. {
        let shows = program_status(&points);
        let steps = RollbackLog::with_fault(InjectedFault::Fail(step));
        send_all(&pair, &datagrams(40));
        match build_with_rollback_log(&pair, &points, &text, &steps) {
            Err(why) => assert!(why.to_string().contains("a test"), "{step}: {why}"),
            Ok(_) => break,
        }
        failed += 1;
        // Another program, if the request existed when a later step failed.
        assert_eq!(attached_program_ids(&pair).len(), 1, "{step}");
        assert_eq!(program_status(&points).request_count, shows.request_count, "{step}");
        // The thread that waits for replaced programs is created once.
        let more = if step == 0 { 0 } else { 2 };
        wait_until("what was made is gone", || kernel_object_descriptors() <= own + more);
    }
    assert!(failed >= 6, "{failed} steps");
    let outcome = first.stop();
    let captured = parse_capture(&std::fs::read(stays).expect("a capture")).len();
    assert_eq!(outcome.ledger.sources[0].1.given.blocks, 40 * (failed + 1));
    assert_eq!(captured as u64, 10 * (failed + 1), "every frame");
}

/// Returns the number of descriptors of this process that refer to BPF objects.
fn kernel_object_descriptors() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let link =
        |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
    links.filter_map(link).filter(|to| to.to_string_lossy().contains("bpf")).count()
}

/// Returns the frame numbers in the capture of a request.
fn captured_numbers(path: &std::path::Path) -> Vec<u64> {
    let frames = parse_capture(&std::fs::read(path).expect("a capture"));
    frames.iter().map(|frame| frame_number(frame)).collect()
}

/// Sends numbered frames in batches, on average `apart_us` microseconds apart, until `stop` is set.
/// Returns the number of frames.
pub(crate) fn send_frames_until_stopped(
    pair: &NamespacePair,
    apart_us: u64,
    stop: &AtomicBool,
) -> u64 {
    const FRAMES_PER_BATCH: u64 = 20;
    pair.client.run_in_network_namespace(|| {
        let index = RouteSocket::open()
            .expect("links")
            .interface_by_name(CLIENT_DEVICE)
            .expect("a device")
            .index;
        let mut sender = PacketSender::open(index, QdiscMode::Through).expect("root may send");
        let (begin, mut sent) = (Instant::now(), 0);
        while !stop.load(Ordering::Relaxed) {
            let frames = numbered_frames(sent..sent + FRAMES_PER_BATCH, FRAME_LENGTH);
            let mut rest: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            wait_until("all frames are sent", || {
                let sent = sender.send(&rest);
                rest.drain(..sent.frames);
                rest.is_empty()
            });
            sent += FRAMES_PER_BATCH;
            // Only delays, because nothing becomes readable.
            let due = Duration::from_micros(apart_us * sent);
            sys::poll::wait_until_readable(&[], Some(due.saturating_sub(begin.elapsed())));
        }
        sent
    })
}

/// Starts and stops requests under traffic while another request runs throughout. Asserts that this
/// request receives every number once and in order, or counts it as lost. Each new request must
/// receive all numbers from its first to its last.
fn start_and_stop_requests(rounds: usize, apart_us: u64) {
    let Some(pair) = quiet_pair() else { return };
    let scratch = Scratch::new();
    let points = AttachPoints::default();
    let stays = scratch.path("stays.pcap");
    let behind = format!("ip | udp | dport |9 pcap {}", stays.display());
    let text = format!("rx {SERVER_DEVICE} ring=128MB | {behind}");
    let first = RunningRequest::start(&pair, &points, &text);
    let (stop, begin) = (AtomicBool::new(false), Instant::now());
    let mut lapped = 0;
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_frames_until_stopped(&pair, apart_us, &stop));
        for round in 0..rounds {
            lapped += start_and_stop_request(&pair, &points, &scratch, round);
        }
        stop.store(true, Ordering::Relaxed);
        sender.join().expect("a sender")
    });
    let took = begin.elapsed();
    assert_eq!(program_status(&points).replaced, 2 * rounds as u64);
    let outcome = first.stop();
    let numbers = captured_numbers(&stays);
    let lost = outcome.ledger.lost_blocks();
    assert!(numbers.is_sorted_by(|one, next| one < next), "each once, in order");
    assert_eq!(numbers.len() as u64 + lost, sent, "{:#?}", outcome.ledger);
    let rate = sent as f64 / took.as_secs_f64();
    eprintln!(
        "{rounds} lines came and went in {took:?} under {sent} frames ({rate:.0} a second): lost \
         to the one that stayed {lost}, to those that came {lapped}; duplicated 0, reordered 0"
    );
    if apart_us > 0 {
        assert_eq!(lost, 0);
    }
}

/// Starts a request, waits until it receives frames, and stops it. Returns the number of frames
/// that the request lost because its ring was lapped.
fn start_and_stop_request(
    pair: &NamespacePair,
    points: &AttachPoints,
    scratch: &Scratch,
    round: usize,
) -> u64 {
    let path = scratch.path(&format!("{round}.pcap"));
    let capture = path.display();
    let behind = [
        format!("ip | udp | dport |9 pcap {capture}"),
        format!("pcap {capture}"),
        format!("ip | ( |udp pcap {capture} + count )"),
        format!("bpf \"udp\" | ip | dport |9 pcap {capture}"),
    ];
    let text = format!("rx {SERVER_DEVICE} | {}", behind[round % behind.len()]);
    let line = RunningRequest::start(pair, points, &text);
    // The current program counts the frames.
    wait_until("it sees frames", || program_status(points).steps[0].2 > 20);
    let lost = line.stop().ledger.lost_blocks();
    let numbers = captured_numbers(&path);
    let all = numbers[numbers.len() - 1] - numbers[0] + 1;
    assert!(numbers.is_sorted_by(|one, next| one < next), "{text}");
    let here = numbers.len() as u64;
    assert!((here..=here + lost).contains(&all), "{text}: {here} of {all}, {lost} lost");
    std::fs::remove_file(&path).expect("a capture");
    lost
}

#[test]
fn o6_requests_start_and_stop_under_steady_traffic() {
    start_and_stop_requests(12, 100);
}

#[test]
fn o6_requests_start_and_stop_under_full_rate_traffic() {
    start_and_stop_requests(6, 0);
}

#[test]
#[ignore = "long: `cargo test -p streamline-tests --test live -- --ignored o6_two --nocapture`"]
fn o6_two_hundred_requests_start_and_stop() {
    start_and_stop_requests(200, 100);
    start_and_stop_requests(200, 0);
}
