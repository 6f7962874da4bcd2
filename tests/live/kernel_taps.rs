//! Tests of taps of filters that run in the kernel. A tap receives each frame that leaves its
//! filter once, whether the twin or the user implementation classifies the frame. Opening a tap
//! never replaces the program. Without a reader, no frame is copied. FEATURES B8, B9

use crate::delegated::{attach_delegated_request, parse_as_daemon, plan_kernel_part};
use crate::frame_sending::{parse_capture, send_all};
use crate::frames::tagged_frames;
use crate::numbered_frames::{FRAME_LENGTH, numbered_frames};
use crate::shared_program::{
    RunningRequest, attached_program_ids, datagrams, program_status, quiet_pair,
    send_frames_until_stopped,
};
use engine::build::{BuiltPath, RunSettings};
use engine::change::change;
use engine::kernel::delegation::{OpenTaps, RequestOwner};
use engine::kernel::shared_attach_point::AttachPoints;
use engine::live::PathHandle;
use engine::registry::MachineRegistry;
use engine::run::{StopConditions, run};
use engine::tap::{StreamForm, TapError, TapNode, TapRequest};
use pipeline::edit::Edit;
use pipeline::plan::plan;
use runtime::space::tap::{OverrunPolicy, Tap};
use std::fs::File;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use testkit::net::{NamespacePair, SERVER_DEVICE, WAIT_TIMEOUT, wait_until};

/// A tap, and the bytes that its reader has read so far.
struct TapReader {
    tap: Tap,
    thread: JoinHandle<()>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl TapReader {
    /// Opens a tap of a node, and starts a thread that reads it. `class` selects blocks as an arc
    /// does; an empty text selects as a plain pipe.
    fn open(
        live: &PathHandle,
        node: &str,
        class: &str,
        form: StreamForm,
    ) -> Result<Self, TapError> {
        let (near, pipe) = sys::descriptor::pipe().expect("a pipe");
        let request = TapRequest {
            node: Some(TapNode::Name(node.to_owned())),
            classes: Some(class.to_owned()),
            form,
            since: None,
            policy: OverrunPolicy::Skip,
            patience: WAIT_TIMEOUT,
            pipe,
            ring: None,
        };
        let (tap, _) = live.tap(request, WAIT_TIMEOUT)?;
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&bytes);
        let thread = std::thread::spawn(move || {
            let (mut pipe, mut part) = (File::from(near), vec![0; 64 << 10]);
            while let length @ 1.. = pipe.read(&mut part).expect("a pipe") {
                to.lock().expect("no panic").extend_from_slice(&part[..length]);
            }
        });
        Ok(Self { tap, thread, bytes })
    }

    fn read(&self) -> Vec<u8> {
        self.bytes.lock().expect("no panic").clone()
    }

    /// Waits for `count` frames, ends the tap, and returns all frames.
    fn take_frames(self, count: usize) -> Vec<Vec<u8>> {
        wait_until("all frames are read", || parse_capture(&self.read()).len() >= count);
        parse_capture(&self.close())
    }

    /// Asserts that the tap has lost nothing, and closes it. Returns the bytes that were read.
    fn close(self) -> Vec<u8> {
        let stats = self.tap.stats();
        assert_eq!((stats.skipped, stats.no_frame), (0, 0));
        drop(self.tap);
        self.thread.join().expect("a reader");
        self.bytes.lock().expect("no panic").clone()
    }
}

fn live_handle_of_request(request: &RunningRequest, text: &str) -> PathHandle {
    let live = request.component_handles()[0].clone();
    live.set_request_text(text);
    live
}

fn open_tap_count(points: &AttachPoints) -> usize {
    program_status(points).requests.iter().map(|line| line.taps).sum()
}

#[test]
fn b8_kernel_tap_adds_no_program() {
    const FRAMES: usize = 400;
    let Some(pair) = quiet_pair() else { return };
    let points = AttachPoints::default();
    let text = format!("rx {SERVER_DEVICE} | ip | udp | dport |53 count");
    let request = RunningRequest::start(&pair, &points, &text);
    let live = live_handle_of_request(&request, &text);
    let programs = attached_program_ids(&pair);
    let frames = datagrams(FRAMES);
    send_all(&pair, &frames);
    assert_eq!(
        (open_tap_count(&points), program_status(&points).requests[0].delivered.blocks),
        (0, 0)
    );
    let capture = |node, class| TapReader::open(&live, node, class, StreamForm::Capture);
    let one = capture("udp", "").expect("a tap");
    let other = capture("udp", "").expect("a second reader");
    let dns = capture("dport", "53").expect("a class that an arc selects");
    let web = capture("dport", "80").expect("a class that no arc selects");
    let lines = TapReader::open(&live, "ip", "", StreamForm::Json).expect("lines");
    // Two readers of a filter share a tap.
    assert_eq!(open_tap_count(&points), 3);
    send_all(&pair, &frames);
    let with_port = |port: u16| -> Vec<Vec<u8>> {
        let of = |frame: &&Vec<u8>| frame[36..38] == port.to_be_bytes();
        frames.iter().filter(of).cloned().collect()
    };
    assert!(one.take_frames(FRAMES) == frames);
    assert_eq!(open_tap_count(&points), 3);
    assert!(other.take_frames(FRAMES) == frames);
    wait_until("the tap is closed", || open_tap_count(&points) == 2);
    assert!(dns.take_frames(FRAMES / 4) == with_port(53));
    assert!(web.take_frames(FRAMES / 4) == with_port(80));
    let count = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
    wait_until("all lines are read", || count(&lines.read()) >= FRAMES);
    assert_eq!(count(&lines.close()), FRAMES);
    wait_until("all taps are closed", || open_tap_count(&points) == 0);
    send_all(&pair, &frames);
    assert_eq!(attached_program_ids(&pair), programs, "the program stays");
    assert_eq!(program_status(&points).replaced, 0);
    let outcome = request.stop();
    let reports = crate::shared_program::reports_by_filter(&outcome);
    assert_eq!(reports["count"][0].1, 3 * FRAMES as u64 / 4, "{reports:?}");
}

#[test]
fn b10_tap_of_a_kernel_source_gets_its_frames() {
    let Some(pair) = quiet_pair() else { return };
    let points = AttachPoints::default();
    let text = format!("rx {SERVER_DEVICE} | discard");
    let request = RunningRequest::start(&pair, &points, &text);
    let live = live_handle_of_request(&request, &text);
    let reader = TapReader::open(&live, "rx", "", StreamForm::Capture).expect("a tap");
    let frames = datagrams(100);
    send_all(&pair, &frames);
    assert!(reader.take_frames(100) == frames);
    let refused = TapReader::open(&live, "discard", "", StreamForm::Capture).map(drop);
    assert!(matches!(refused, Err(TapError::NotTappable(_))), "{refused:?}");
    request.stop();
}

/// Sends frames to a request with the given source (`rx@kernel` or `rx@thread0`), and returns the
/// frames that leave the filter `node`.
fn frames_after_node(
    pair: &NamespacePair,
    source: &str,
    node: &str,
    frames: &[Vec<u8>],
) -> Vec<Vec<u8>> {
    let text = format!("{source} | ip | tcp | count");
    let (paths, points) = pair.server.run_in_network_namespace(|| {
        let (graph, _) = pipeline::read_request(&text, &MachineRegistry::Local);
        let machine = engine::machine::inspect_machine();
        let plan = plan(graph, &MachineRegistry::Local, &machine).expect("a plan");
        assert_eq!(plan.programs.is_empty(), source.contains("thread0"), "{text}");
        let points = AttachPoints::default();
        let extras = engine::build::PathOptions::default();
        let paths =
            engine::build::build_with_options(&plan, RunSettings::default(), &points, &extras);
        (paths.expect("paths"), points)
    });
    let live = paths.first().map(BuiltPath::live).expect("a path");
    live.set_request_text(&text);
    let thread = std::thread::spawn(|| run(paths, StopConditions::default()).expect("a run"));
    let reader = TapReader::open(&live, node, "", StreamForm::Capture).expect("a tap");
    send_all(pair, frames);
    live.stop();
    let outcome = thread.join().expect("a run");
    // The tap ends once its reader has read everything.
    reader.tap.wait_for_end(WAIT_TIMEOUT);
    let captured = parse_capture(&reader.close());
    assert_eq!(outcome.ledger.imbalances(), [], "{:#?}", outcome.ledger);
    drop(points);
    captured
}

#[test]
fn b8_frames_of_which_a_twin_is_unsure_reach_the_tap_once() {
    let Some(pair) = quiet_pair() else { return };
    let frames = tagged_frames();
    let of = |source: &str| {
        let mut got = frames_after_node(&pair, source, "ip", &frames);
        got.sort();
        got
    };
    let (kernel, thread) =
        (of(&format!("rx {SERVER_DEVICE}")), of(&format!("rx@thread0 {SERVER_DEVICE}")));
    assert!(!thread.is_empty());
    assert!(kernel == thread, "{} and {} frames", kernel.len(), thread.len());
}

#[test]
fn b8_taps_beyond_the_limit_are_refused() {
    let Some(pair) = quiet_pair() else { return };
    let points = AttachPoints::default();
    let text = format!("rx {SERVER_DEVICE} | ip | udp | sport | dport |53 count");
    let request = RunningRequest::start(&pair, &points, &text);
    let live = live_handle_of_request(&request, &text);
    let begin = |node| TapReader::open(&live, node, "", StreamForm::Capture);
    let mut open: Vec<TapReader> =
        ["rx", "ip", "udp", "sport"].into_iter().map(|node| begin(node).expect(node)).collect();
    let refused = begin("dport").map(drop).expect_err("four are open");
    assert!(refused.to_string().contains("at most 4 kernel filters"), "{refused}");
    let frames = datagrams(40);
    send_all(&pair, &frames);
    assert!(open.remove(0).take_frames(40) == frames);
    wait_until("its tap is closed", || open_tap_count(&points) == 3);
    let last = begin("dport").expect("one was closed");
    send_all(&pair, &frames);
    assert_eq!(last.take_frames(40).len(), 40);
    for reader in open {
        assert_eq!(reader.take_frames(80).len(), 80);
    }
    request.stop();
}

#[test]
fn b8_filter_with_a_fifth_tap_stays_in_its_thread() {
    const NODES: [&str; 5] = ["rx", "ip", "udp", "sport", "dport"];
    let Some(pair) = quiet_pair() else { return };
    let points = AttachPoints::default();
    let text = format!("rx {SERVER_DEVICE} | ip | udp@thread0 | sport | dport |53 count");
    let request = RunningRequest::start(&pair, &points, &text);
    let live = live_handle_of_request(&request, &text);
    let begin = |node| TapReader::open(&live, node, "", StreamForm::Capture).expect(node);
    let open = NODES.map(begin);
    let edit = |words: [&str; 3]| {
        let edit = Edit::parse(&words).expect("an edit");
        let machine = pair.server.run_in_network_namespace(engine::machine::inspect_machine);
        pair.server.run_in_network_namespace(|| change(&live, &edit, &machine, WAIT_TIMEOUT))
    };
    for filter in ["udp", "sport"] {
        edit(["move", filter, "kernel"]).expect("a move");
    }
    assert_eq!(open_tap_count(&points), 4);
    let frames = datagrams(40);
    send_all(&pair, &frames);
    let refused = edit(["move", "dport", "kernel"]).expect_err("four are read in the kernel");
    assert!(refused.to_string().contains("at most 4 filters"), "{refused}");
    for (node, reader) in NODES.into_iter().zip(open) {
        wait_until(node, || parse_capture(&reader.read()).len() >= 40);
        assert_eq!(reader.tap.stats().end_reason, None, "{node}");
        assert!(reader.take_frames(40) == frames, "{node}");
    }
    // Once they have gone, the filter may run in the kernel.
    wait_until("the taps are closed", || open_tap_count(&points) == 0);
    edit(["move", "dport", "kernel"]).expect("nothing is read");
    request.stop();
}

#[test]
fn b8_tap_stays_open_while_the_request_changes() {
    let edits = ["insert ip before udp", "move dport process", "move dport kernel", "remove ip"];
    check_tap_during_changes("udp | dport |9 count", &edits);
}

#[test]
fn b8_tap_follows_its_filter_into_the_kernel_and_out_of_it() {
    let edits = ["move udp kernel", "move udp process", "move udp kernel"];
    check_tap_during_changes("ip | udp@thread0 | dport |9 count", &edits);
}

/// A guard that stops the sending thread on drop, even if a test fails, so that the scope of this
/// thread ends.
struct StopOnDrop<'s>(&'s AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes edits to a request while frames arrive, and waits between two edits until the tap of `udp`
/// has received frames. Asserts that the tap receives each frame once, in order.
fn check_tap_during_changes(filters: &str, edits: &[&str]) {
    let Some(pair) = quiet_pair() else { return };
    let points = AttachPoints::default();
    let text = format!("rx {SERVER_DEVICE} | {filters}");
    let request = RunningRequest::start(&pair, &points, &text);
    let live = live_handle_of_request(&request, &text);
    let reader = TapReader::open(&live, "udp", "", StreamForm::Capture).expect("a tap");
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_frames_until_stopped(&pair, 200, &stop));
        let stops = StopOnDrop(&stop);
        for words in edits {
            let before = reader.read().len();
            wait_until("frames come", || reader.read().len() > before);
            let words: Vec<&str> = words.split(' ').collect();
            let edit = Edit::parse(&words).expect("an edit");
            let machine = pair.server.run_in_network_namespace(engine::machine::inspect_machine);
            let done = pair
                .server
                .run_in_network_namespace(|| change(&live, &edit, &machine, WAIT_TIMEOUT));
            assert!(done.is_ok(), "{done:?}");
        }
        let before = reader.read().len();
        wait_until("frames come", || reader.read().len() > before);
        drop(stops);
        sender.join().expect("a sender")
    });
    assert!(program_status(&points).replaced >= edits.len() as u64);
    let captured = reader.take_frames(usize::try_from(sent).expect("few"));
    assert!(captured == numbered_frames(0..sent, FRAME_LENGTH), "{} of {sent}", captured.len());
    request.stop();
}

#[test]
fn b8_path_gets_each_frame_once_while_taps_open_and_close() {
    const CHANGES: usize = 40;
    let Some(pair) = quiet_pair() else { return };
    let points = AttachPoints::default();
    let text = format!("rx {SERVER_DEVICE} | ip | udp | dport |9 count");
    let request = RunningRequest::start(&pair, &points, &text);
    let live = live_handle_of_request(&request, &text);
    let stays = TapReader::open(&live, "udp", "", StreamForm::Capture).expect("a tap");
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_frames_until_stopped(&pair, 200, &stop));
        for node in ["rx", "ip", "dport"].into_iter().cycle().take(CHANGES) {
            let reader = TapReader::open(&live, node, "", StreamForm::Capture).expect("a tap");
            wait_until("a frame is read", || !parse_capture(&reader.read()).is_empty());
            drop(reader.close());
            wait_until("its tap is closed", || open_tap_count(&points) == 1);
        }
        stop.store(true, Ordering::Relaxed);
        sender.join().expect("a sender")
    });
    let captured = stays.take_frames(usize::try_from(sent).expect("few"));
    assert!(captured == numbered_frames(0..sent, FRAME_LENGTH), "{} of {sent}", captured.len());
    let outcome = request.stop();
    let reports = crate::shared_program::reports_by_filter(&outcome);
    assert_eq!(reports["count"][0].1, sent, "{reports:?}");
}

#[test]
fn b8_request_change_keeps_taps_of_other_requests() {
    let Some(pair) = quiet_pair() else { return };
    let points = AttachPoints::default();
    let user = sys::process::OVERFLOW_ID;
    let line = |port: u16| format!("rx {SERVER_DEVICE} | ip | udp | dport |{port} count");
    let (_, changed) = attach_delegated_request(&pair, &points, &line(53), user);
    let (_, other) = attach_delegated_request(&pair, &points, &line(80), user - 1);
    let machine = pair.server.run_in_network_namespace(engine::machine::inspect_machine);
    let taps_of_other = || {
        let each = program_status(&points).requests;
        each.iter().find(|line| Some(line.number) == other.request_number()).map(|line| line.taps)
    };
    let mut running = changed;
    for (port, open) in [(443, OpenTaps::from_indices([2])), (53, OpenTaps::default())] {
        let next = pair.server.run_in_network_namespace(|| {
            let (graph, part) =
                (parse_as_daemon(&line(port)), plan_kernel_part(&line(port), &machine));
            let owner = RequestOwner { uid: user, about: "" };
            let how = (&[][..], OpenTaps::from_indices([1]));
            let request = (&graph, &part);
            points.prepare_delegated_successor(
                &running,
                request,
                &machine,
                how,
                (owner, &|_| Ok(())),
            )
        });
        let (_, next) = next.expect("a program");
        // After the next program was loaded with the taps as they were then.
        other.set_taps(&open).expect("few taps");
        running = next.switch().expect("a switch");
        assert_eq!(taps_of_other(), Some(open.iter().count()));
        assert_eq!(open_tap_count(&points), 1 + open.iter().count());
    }
}
