//! Tests of a sink with a pausing reader. The sink shares the thread of the kernel ring until one
//! of its writes holds up that thread; then it continues in its own thread.

use crate::frame_sending::{parse_capture, send_all};
use crate::numbered_frames::{FRAME_LENGTH, frame_number, numbered_frames};
use crate::scratch::Scratch;
use crate::shared_program::quiet_pair;
use engine::build::{PathOptions, RunSettings, build_with_options};
use engine::kernel::shared_attach_point::AttachPoints;
use engine::live::PathHandle;
use engine::path::AdaptationSettings;
use engine::registry::MachineRegistry;
use engine::run::{RunOutcome, StopConditions, run};
use pipeline::plan::plan;
use std::fs::File;
use std::io::Read as _;
use std::process::Command;
use std::sync::mpsc;
use testkit::net::{NamespacePair, SERVER_DEVICE, wait_until};

/// Number of frames that the test sends at a time, more than fit into a pipe. A write of the sink
/// then stalls.
const FRAMES: u64 = 5000;

/// Returns the name of the space in which the sink `pcap` runs.
fn pcap_sink_space(live: &PathHandle) -> String {
    let plan = live.plan().expect("a plan");
    let (id, _) =
        plan.graph.nodes_with_ids().find(|(_, node)| node.name() == "pcap").expect("a sink");
    plan.space_of(id).name.clone()
}

/// Runs a request with the option `option`, whose output is a pipe. The reader of the pipe starts
/// only after the first [`FRAMES`] frames have been sent. Then calls `then`, and sends [`FRAMES`]
/// frames again. Returns the outcome and the numbers of the frames that arrived.
fn run_into_pipe(
    pair: &NamespacePair,
    option: &str,
    then: impl FnOnce(&PathHandle),
) -> (RunOutcome, Vec<u64>) {
    let scratch = Scratch::new();
    let pipe = scratch.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let text = format!("{option} rx@kernel {SERVER_DEVICE} ring=64MB | pcap '{}'", pipe.display());
    let (graph, mistakes) = pipeline::read_request(&text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(&text, &mistakes, false));
    let (read, waits) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut pipe = File::open(pipe).expect("a pipe");
        let mut all = Vec::new();
        // The receiver also returns if the test fails.
        let _ = waits.recv();
        pipe.read_to_end(&mut all).map(|_| all).expect("a capture")
    });
    let machine = engine::machine::inspect_machine();
    let paths = pair.server.run_in_network_namespace(|| {
        let plan = plan(graph, &MachineRegistry::Local, &machine).expect("a plan");
        let extras = PathOptions {
            adaptation: AdaptationSettings::permitted_by(&plan, &machine),
            ..PathOptions::default()
        };
        build_with_options(&plan, RunSettings::default(), &AttachPoints::default(), &extras)
            .expect("spaces")
    });
    let live = paths[0].live();
    live.set_request_text(&text);
    assert_eq!(pcap_sink_space(&live), "thread0");
    let runs = std::thread::spawn(|| run(paths, StopConditions::default()).expect("a run"));
    send_all(pair, &numbered_frames(0..FRAMES, FRAME_LENGTH));
    let sent = sys::clock::monotonic_ns();
    // Only the clock determines how long the write has taken.
    wait_until("the write has taken long", || sys::clock::monotonic_ns() - sent > 60_000_000);
    read.send(()).expect("a reader");
    then(&live);
    send_all(pair, &numbered_frames(FRAMES..2 * FRAMES, FRAME_LENGTH));
    live.stop();
    let outcome = runs.join().expect("a run");
    let frames = parse_capture(&reader.join().expect("a reader"));
    (outcome, frames.iter().map(|frame| frame_number(frame)).collect())
}

/// Asserts that all frames arrived in order, except those that the ledger counts as lost.
fn assert_accounted_for(outcome: &RunOutcome, numbers: &[u64]) {
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{:#?}", outcome.ledger);
    assert!(numbers.is_sorted_by(|one, next| one < next), "each once, in order");
    assert_eq!(numbers.len() as u64 + outcome.ledger.lost_blocks(), 2 * FRAMES);
}

#[test]
fn v6_stalled_sink_moves_to_a_separate_thread() {
    let Some(pair) = quiet_pair() else { return };
    let (outcome, numbers) = run_into_pipe(&pair, "", |live| {
        wait_until("the sink has moved", || pcap_sink_space(live) == "thread1");
    });
    let [report] = outcome.adapted.as_slice() else { panic!("{:?}", outcome.adapted) };
    assert!(report.starts_with("`pcap` to thread1: a write took "), "{report}");
    assert!(report.contains("lost 0, duplicated 0, reordered 0"), "{report}");
    assert_accounted_for(&outcome, &numbers);
}

#[test]
fn v6_no_adapt_keeps_a_stalled_sink_with_its_reader() {
    let Some(pair) = quiet_pair() else { return };
    let (outcome, numbers) = run_into_pipe(&pair, "--no-adapt", |live| {
        assert_eq!(pcap_sink_space(live), "thread0");
    });
    assert_eq!(outcome.adapted, Vec::<String>::new());
    assert_accounted_for(&outcome, &numbers);
}
