//! Lines that share the program of an interface: what they do alike is done once; they come and go
//! while frames pass, and those that stay notice nothing; what fails leaves everything as it was.

use crate::numbers::{SHORT, number, numbered};
use crate::scratch::Scratch;
use crate::send::{frames_of, send_all};
use engine::build::{BuildError, Extras, Path, Settings, build_with};
use engine::catalogue::House;
use engine::kernel::point::{Points, Shown};
use engine::live::Live;
use engine::run::{Outcome, Until, run};
use pipeline::plan::plan;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::bpf::{RunStatistics, Side, tcx_chain};
use sys::net::RouteSocket;
use sys::packet::{PacketSender, Qdisc};
use sys::steps::{InjectedFault, Steps};
use testkit::net::{CLIENT_DEVICE, Cable, Pair, SERVER_DEVICE, until};
use testkit::{Frame, need};

/// A cable over which nobody but the test sends, where programs can be loaded.
pub(crate) fn silent() -> Option<Pair> {
    need::bpf()?;
    Pair::new(Cable { addresses: false, ..Cable::default() })
}

fn built(pair: &Pair, points: &Points, text: &str) -> Result<Vec<Path>, BuildError> {
    built_with(pair, points, text, &Steps::default())
}

/// Builds a line in the server's name space; every source must be placed in the kernel.
fn built_with(
    pair: &Pair,
    points: &Points,
    text: &str,
    steps: &Steps,
) -> Result<Vec<Path>, BuildError> {
    pair.server.enter(|| {
        let (graph, mistakes) = pipeline::read(text, &House);
        assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
        let plan = plan(graph, &House, &engine::machine::look()).expect("a plan");
        assert!(!plan.programs.is_empty(), "{text}: {plan:?}");
        let extras = Extras { steps: steps.clone(), ..Extras::default() };
        build_with(&plan, Settings::default(), points, &extras)
    })
}

/// A line that runs.
pub(crate) struct Running {
    lives: Vec<Live>,
    thread: JoinHandle<Outcome>,
}

impl Running {
    pub(crate) fn start(pair: &Pair, points: &Points, text: &str) -> Self {
        let paths = built(pair, points, text).unwrap_or_else(|why| panic!("{text}: {why}"));
        let lives = paths.iter().map(Path::live).collect();
        let thread = std::thread::spawn(|| run(paths, Until::default()).expect("a run"));
        Self { lives, thread }
    }

    pub(crate) fn stop(self) -> Outcome {
        self.lives.iter().for_each(Live::stop);
        let outcome = self.thread.join().expect("a run");
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        assert_eq!(outcome.ledger.imbalances(), [], "{:#?}", outcome.ledger);
        outcome
    }
}

/// Returns the reports of a line's filters, by name.
pub(crate) fn reports(outcome: &Outcome) -> BTreeMap<String, Vec<(String, u64)>> {
    let reports = outcome.reports.iter();
    reports.map(|report| (report.name.clone(), report.report.rows.clone())).collect()
}

fn index() -> u32 {
    RouteSocket::open().expect("links").named(SERVER_DEVICE).expect("the device").index
}

/// The programs at the receiving end.
pub(crate) fn chain(pair: &Pair) -> Vec<u32> {
    let chain = pair.server.enter(|| tcx_chain(index(), Side::Ingress).expect("a chain"));
    chain.members.iter().map(|member| member.program).collect()
}

pub(crate) fn shown(points: &Points) -> Shown {
    let shown = points.shown();
    assert_eq!(shown.len(), 1, "one point: {shown:?}");
    shown[0].1.clone()
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
fn o7_lines_of_a_request_are_one_program_with_one_demultiplexer() {
    const FRAMES: usize = 400;
    let Some(pair) = silent() else { return };
    let scratch = Scratch::new();
    let line = |rx: &str, name: &str| {
        let capture = scratch.path(name);
        format!(
            "{rx} | ip | udp | dport |53 count ; {rx} | ip | udp | dport |80 hist length ; \
             {rx} | ip | udp | dport |443 pcap {}",
            capture.display()
        )
    };
    let points = Points::default();
    let counting = RunStatistics::enable().expect("statistics");
    let inside =
        Running::start(&pair, &points, &line(&format!("rx {SERVER_DEVICE}"), "inside.pcap"));
    let programs = chain(&pair);
    assert_eq!(programs.len(), 1, "three lines, one program");
    let frames = datagrams(FRAMES);
    send_all(&pair, &frames);
    let now = shown(&points);
    assert_eq!((now.lines, now.owners, now.program), (3, 1, programs[0]));
    let all = FRAMES as u64;
    let steps = |name: &str| now.steps.iter().filter(|(step, ..)| step == name).collect::<Vec<_>>();
    for name in ["ip", "udp", "dport"] {
        assert_eq!(steps(name), [&(name.to_owned(), 3, all)], "once for all lines: {now:?}");
    }
    assert_eq!(steps("count"), [&("count".to_owned(), 1, all / 4)], "{now:?}");
    assert_eq!(now.runs, all, "the kernel counts one run for a frame");
    drop(counting);
    let told = reports(&inside.stop());
    assert!(chain(&pair).is_empty(), "nothing stays");
    // Beside it the same lines in threads, on the same frames.
    let outside = format!("rx@thread0 {SERVER_DEVICE}");
    let threads = pair.server.enter(|| {
        let (graph, _) = pipeline::read(&line(&outside, "outside.pcap"), &House);
        let plan = plan(graph, &House, &engine::machine::look()).expect("a plan");
        engine::build::build(&plan, Settings::default()).expect("paths")
    });
    let lives: Vec<Live> = threads.iter().map(Path::live).collect();
    let thread = std::thread::spawn(|| run(threads, Until::default()).expect("a run"));
    send_all(&pair, &frames);
    lives.iter().for_each(Live::stop);
    assert_eq!(told, reports(&thread.join().expect("a run")));
    let captured = |name| frames_of(&std::fs::read(scratch.path(name)).expect("a capture"));
    assert_eq!(captured("inside.pcap").len(), FRAMES / 4);
    assert!(captured("inside.pcap") == captured("outside.pcap"));
}

/// A filter that keeps something is not shared with a line that came earlier.
#[test]
fn o6_a_filter_that_keeps_something_is_each_lines_own() {
    let Some(pair) = silent() else { return };
    let points = Points::default();
    let text = format!("rx {SERVER_DEVICE} | ip | udp | count");
    let first = Running::start(&pair, &points, &text);
    send_all(&pair, &datagrams(100));
    let second = Running::start(&pair, &points, &text);
    assert_eq!(chain(&pair).len(), 1);
    send_all(&pair, &datagrams(100));
    let now = shown(&points);
    let lines: Vec<_> = now.steps.iter().map(|(name, lines, _)| (name.as_str(), *lines)).collect();
    assert_eq!(lines[..2], [("ip", 2), ("udp", 2)], "{now:?}");
    assert_eq!(lines[2..].iter().filter(|one| **one == ("count", 1)).count(), 2, "{now:?}");
    let second = reports(&second.stop());
    send_all(&pair, &datagrams(100));
    let first = reports(&first.stop());
    let blocks = |told: &BTreeMap<String, Vec<(String, u64)>>| told["count"][0].1;
    assert_eq!((blocks(&first), blocks(&second)), (300, 100));
}

#[test]
fn adding_a_line_changes_nothing_whichever_step_fails() {
    let name = "shared::adding_a_line_changes_nothing_whichever_step_fails";
    if !testkit::alone(name) {
        return;
    }
    let Some(pair) = silent() else { return };
    let scratch = Scratch::new();
    let points = Points::default();
    let stays = scratch.path("stays.pcap");
    let first = format!("rx {SERVER_DEVICE} | ip | udp | dport |53 pcap {}", stays.display());
    let first = Running::start(&pair, &points, &first);
    let text = format!("rx {SERVER_DEVICE} ring=1MB | ip | udp | dport |80 count");
    let mut failed = 0;
    let own = descriptors();
    for step in 0.. {
        let shows = shown(&points);
        let steps = Steps::with(InjectedFault::Fail(step));
        send_all(&pair, &datagrams(40));
        match built_with(&pair, &points, &text, &steps) {
            Err(why) => assert!(why.to_string().contains("a test"), "{step}: {why}"),
            Ok(_) => break,
        }
        failed += 1;
        // Another one, where the line was there when something behind it failed.
        assert_eq!(chain(&pair).len(), 1, "{step}");
        assert_eq!(shown(&points).lines, shows.lines, "{step}");
        // What waits for replaced programs is made once.
        let more = if step == 0 { 0 } else { 2 };
        until("what was made is gone", || descriptors() <= own + more);
    }
    assert!(failed >= 6, "{failed} steps");
    let outcome = first.stop();
    let seen = frames_of(&std::fs::read(stays).expect("a capture")).len();
    assert_eq!(outcome.ledger.sources[0].1.given.blocks, 40 * (failed + 1));
    assert_eq!(seen as u64, 10 * (failed + 1), "every frame");
}

/// Returns the number of descriptors of kernel objects in this process.
fn descriptors() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let link =
        |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
    links.filter_map(link).filter(|to| to.to_string_lossy().contains("bpf")).count()
}

/// Numbers that a line wrote into its capture.
fn captured(path: &std::path::Path) -> Vec<u64> {
    let frames = frames_of(&std::fs::read(path).expect("a capture"));
    frames.iter().map(|frame| number(frame)).collect()
}

/// Sends numbered frames until it is told to end, so many microseconds apart; answers how many.
pub(crate) fn send_until(pair: &Pair, apart_us: u64, ending: &AtomicBool) -> u64 {
    const AT_ONCE: u64 = 20;
    pair.client.enter(|| {
        let index =
            RouteSocket::open().expect("links").named(CLIENT_DEVICE).expect("a device").index;
        let mut sender = PacketSender::open(index, Qdisc::Through).expect("root may send");
        let (begin, mut sent) = (Instant::now(), 0);
        while !ending.load(Ordering::Relaxed) {
            let frames = numbered(sent..sent + AT_ONCE, SHORT);
            let mut rest: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            until("all frames are sent", || {
                let sent = sender.send(&rest);
                rest.drain(..sent.frames);
                rest.is_empty()
            });
            sent += AT_ONCE;
            // The pace of the traffic: nothing becomes readable.
            let due = Duration::from_micros(apart_us * sent);
            sys::poll::readable(&[], Some(due.saturating_sub(begin.elapsed())));
        }
        sent
    })
}

/// Lines come and go under traffic: who stays gets every number once and in order, or counts it as
/// lost; who comes gets all from its first to its last.
fn come_and_go(rounds: usize, apart_us: u64) {
    let Some(pair) = silent() else { return };
    let scratch = Scratch::new();
    let points = Points::default();
    let stays = scratch.path("stays.pcap");
    let behind = format!("ip | udp | dport |9 pcap {}", stays.display());
    let text = format!("rx {SERVER_DEVICE} ring=128MB | {behind}");
    let first = Running::start(&pair, &points, &text);
    let (ending, begin) = (AtomicBool::new(false), Instant::now());
    let mut lapped = 0;
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_until(&pair, apart_us, &ending));
        for round in 0..rounds {
            lapped += comes_and_goes(&pair, &points, &scratch, round);
        }
        ending.store(true, Ordering::Relaxed);
        sender.join().expect("a sender")
    });
    let took = begin.elapsed();
    assert_eq!(shown(&points).replaced, 2 * rounds as u64);
    let outcome = first.stop();
    let numbers = captured(&stays);
    let lost = outcome.ledger.lost();
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

/// A line comes, sees some frames, and goes; answers how many of them were lapped.
fn comes_and_goes(pair: &Pair, points: &Points, scratch: &Scratch, round: usize) -> u64 {
    let path = scratch.path(&format!("{round}.pcap"));
    let capture = path.display();
    let behind = [
        format!("ip | udp | dport |9 pcap {capture}"),
        format!("pcap {capture}"),
        format!("ip | ( |udp pcap {capture} + count )"),
        format!("bpf \"udp\" | ip | dport |9 pcap {capture}"),
    ];
    let text = format!("rx {SERVER_DEVICE} | {}", behind[round % behind.len()]);
    let line = Running::start(pair, points, &text);
    // Counted by the program since it was put in its place.
    until("it sees frames", || shown(points).steps[0].2 > 20);
    let lost = line.stop().ledger.lost();
    let numbers = captured(&path);
    let all = numbers[numbers.len() - 1] - numbers[0] + 1;
    assert!(numbers.is_sorted_by(|one, next| one < next), "{text}");
    let here = numbers.len() as u64;
    assert!((here..=here + lost).contains(&all), "{text}: {here} of {all}, {lost} lost");
    std::fs::remove_file(&path).expect("a capture");
    lost
}

#[test]
fn o6_lines_come_and_go_at_a_steady_rate() {
    come_and_go(12, 100);
}

#[test]
fn o6_lines_come_and_go_flat_out() {
    come_and_go(6, 0);
}

#[test]
#[ignore = "long: `cargo test -p streamline-tests --test live -- --ignored o6_two --nocapture`"]
fn o6_two_hundred_lines_come_and_go() {
    come_and_go(200, 100);
    come_and_go(200, 0);
}
