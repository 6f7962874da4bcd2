//! Tests of adaptation, which moves filters between the kernel and a thread as the traffic changes.
//! Frames for port 9 have a number; those that the filter passes must arrive once and in order.

use crate::frame_sending::{parse_capture, send_all};
use crate::numbered_frames::{FRAME_LENGTH, frame_number, numbered_frames};
use crate::scratch::Scratch;
use crate::shared_program::quiet_pair;
use engine::build::{PathOptions, RunSettings, build_with_options};
use engine::kernel::shared_attach_point::AttachPoints;
use engine::live::PathHandle;
use engine::path::{AdaptationSettings, RatePolicy};
use engine::registry::MachineRegistry;
use engine::run::{RunOutcome, StopConditions, run};
use pipeline::plan::{Costs, FilterCost, Machine, MovePeriod, SpaceKind, plan};
use std::sync::Arc;
use std::time::Duration;
use testkit::net::{NamespacePair, SERVER_DEVICE, wait_until};

/// Timeout of one operation, longer than any machine needs for it.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);
/// Assumed cost, in ns, of moving a frame from the kernel to a thread. It exceeds any measured
/// cost, so that it decides the placement. If the filters run in a thread, every frame pays it. If
/// they run in the kernel, only a frame for port 9 pays it, and every frame costs
/// [`ASSUMED_TWIN_NS`] in addition.
const ASSUMED_KERNEL_EXIT_NS: f64 = 1e8;
/// Assumed cost of a frame in a twin, in ns.
const ASSUMED_TWIN_NS: f64 = 5e7;
/// Number of frames that are sent at a time; the frames for port 9 are evenly distributed among
/// them.
const BATCH_FRAMES: u64 = 320;

fn machine_with_assumed_costs() -> Machine {
    let mut costs = Costs { record: ASSUMED_KERNEL_EXIT_NS, ..Costs::default() };
    for filter in ["dport", "ratelimit"] {
        costs.set_filter_cost(FilterCost {
            filter: filter.to_owned(),
            kernel: true,
            block: ASSUMED_TWIN_NS,
            byte: 0.0,
        });
    }
    Machine { costs, ..engine::machine::inspect_machine() }
}

/// Returns [`BATCH_FRAMES`] frames, of which one in `one_of` is for port 9. Only the frames for
/// port 9 are numbered, beginning with `from`.
fn numbered_batch(from: u64, one_of: u64) -> Vec<Vec<u8>> {
    let other = || testkit::Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(7, 10, &[0; 22]);
    let numbered = numbered_frames(from..from + BATCH_FRAMES / one_of, FRAME_LENGTH);
    let others = (1..one_of).map(|_| other());
    let others: Vec<Vec<u8>> = others.collect();
    numbered.into_iter().flat_map(|frame| std::iter::once(frame).chain(others.clone())).collect()
}

/// A running request that adapts, and the sender of its traffic.
struct AdaptiveRun<'p> {
    pair: &'p NamespacePair,
    live: PathHandle,
    sent: u64,
}

impl AdaptiveRun<'_> {
    /// Sends batches until `holds` returns true. One in `one_of` frames of a batch is for port 9.
    /// Waits after each batch until its numbered frames have arrived. `what` describes the
    /// condition in messages.
    fn send_batches_until(&mut self, one_of: u64, what: &str, holds: impl Fn(&PathHandle) -> bool) {
        wait_until(what, || {
            send_all(self.pair, &numbered_batch(self.sent, one_of));
            self.sent += BATCH_FRAMES / one_of;
            wait_until("a burst has arrived", || {
                self.live.has_ended() || self.frames_received() >= self.sent
            });
            assert!(!self.live.has_ended(), "{what}: it ended: {:?}", self.live.adaptations());
            holds(&self.live)
        });
    }

    fn frames_received(&self) -> u64 {
        let ledger = self.live.take_snapshot(OPERATION_TIMEOUT).ledger;
        let sink = ledger.filters.iter().find(|node| node.name == "pcap");
        sink.map_or(0, |node| node.taken.blocks)
    }
}

/// Returns true if the first filter runs in the kernel.
fn first_filter_runs_in_kernel(live: &PathHandle) -> bool {
    let plan = live.plan().expect("a plan");
    let found = plan.graph.nodes_with_ids().nth(1);
    found.is_some_and(|(id, _)| plan.space_of(id).kind == SpaceKind::Kernel)
}

/// Runs a request with the option `option` while `act` sends frames to it. Asserts that all frames
/// for port 9 arrive once and in order. Returns `None` if the machine cannot run the test.
fn assert_frames_arrive_in_order(
    option: &str,
    act: impl FnOnce(&mut AdaptiveRun<'_>),
) -> Option<RunOutcome> {
    let (outcome, sent, numbers) = run_request(option, "dport |9", act)?;
    assert!(numbers.into_iter().eq(0..sent), "each once, in order: {:?}", outcome.adapted);
    Some(outcome)
}

/// Runs a request with the option `option` and the filter `filter` while `act` sends frames to it.
/// Returns its outcome, the number of numbered frames sent, and the numbers of the frames that
/// arrived. Returns `None` if the machine cannot run the test.
fn run_request(
    option: &str,
    filter: &str,
    act: impl FnOnce(&mut AdaptiveRun<'_>),
) -> Option<(RunOutcome, u64, Vec<u64>)> {
    let pair = quiet_pair()?;
    let scratch = Scratch::new();
    let file = scratch.path("nine.pcap");
    let text = format!(
        "{option} rx@kernel {SERVER_DEVICE} ring=64MB | {filter} pcap '{}'",
        file.display()
    );
    let (graph, mistakes) = pipeline::read_request(&text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(&text, &mistakes, false));
    let paths = pair.server.run_in_network_namespace(|| {
        let plan =
            plan(graph, &MachineRegistry::Local, &machine_with_assumed_costs()).expect("a plan");
        assert!(!plan.programs.is_empty(), "it begins in the kernel");
        let rate_policy =
            RatePolicy { observation_ns: 2_000_000, pause_ns: 20_000_000, ..RatePolicy::default() };
        let adapt =
            AdaptationSettings::permitted_by(&plan, &machine_with_assumed_costs()).map(|adapt| {
                assert!(!adapt.may_replicate);
                Arc::new(AdaptationSettings { rate_policy, ..(*adapt).clone() })
            });
        let period = adapt.as_ref().map_or(MovePeriod::Never, |adapt| adapt.moves);
        let asked = match option {
            "--adapt" => MovePeriod::Always,
            "--no-adapt" => MovePeriod::Never,
            _ => MovePeriod::Start,
        };
        assert_eq!(period, asked);
        let extras = PathOptions { adaptation: adapt, ..PathOptions::default() };
        build_with_options(&plan, RunSettings::default(), &AttachPoints::default(), &extras)
            .expect("spaces")
    });
    let live = paths[0].live();
    live.set_request_text(&text);
    assert!(
        !first_filter_runs_in_kernel(&live),
        "where all frames are taken to match, it is cheaper outside"
    );
    let (outcome, sent) = std::thread::scope(|scope| {
        let runs = scope.spawn(|| run(paths, StopConditions::default()).expect("a run"));
        let stop = StopOnDrop(live.clone());
        let mut adapts = AdaptiveRun { pair: &pair, live, sent: 0 };
        act(&mut adapts);
        drop(stop);
        (runs.join().expect("a run"), adapts.sent)
    });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{:#?}", outcome.ledger);
    for note in outcome.adapted.iter().filter(|note| note.contains("switched at block")) {
        assert!(note.contains("lost 0, duplicated 0, reordered 0"), "{note}");
    }
    let frames = parse_capture(&std::fs::read(file).expect("a capture"));
    Some((outcome, sent, frames.iter().map(|frame| frame_number(frame)).collect()))
}

/// Stops a path on drop, even if a test fails.
struct StopOnDrop(PathHandle);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[test]
fn v6_o8_filter_moves_when_the_share_of_matches_changes() {
    let outcome = assert_frames_arrive_in_order("--adapt", |line| {
        line.send_batches_until(32, "few match: into the kernel", first_filter_runs_in_kernel);
        line.send_batches_until(1, "all match: out of it", |live| {
            !first_filter_runs_in_kernel(live)
        });
        line.send_batches_until(32, "few match again", first_filter_runs_in_kernel);
    });
    let Some(outcome) = outcome else { return };
    let notes = &outcome.adapted;
    let moves = |to: &str| notes.iter().filter(|note| note.starts_with(to)).count();
    let (into, out) = (moves("`dport` to kernel: "), moves("`dport` to thread0: "));
    assert!(into >= 2 && (into == out || into == out + 1), "{notes:?}");
}

#[test]
fn v6_filter_with_equal_costs_does_not_move() {
    let outcome = assert_frames_arrive_in_order("--adapt", |line| {
        // Half of the frames: equal cost inside and outside.
        line.send_batches_until(2, "it has looked often", |live| live.observation_count() > 15);
        assert!(!first_filter_runs_in_kernel(&line.live));
    });
    let Some(outcome) = outcome else { return };
    assert_eq!(outcome.adapted, Vec::<String>::new());
}

#[test]
fn v6_wrong_placement_is_corrected_in_the_first_seconds() {
    let outcome = assert_frames_arrive_in_order("", |line| {
        line.send_batches_until(32, "few match: into the kernel", first_filter_runs_in_kernel);
        // Two looks agreed on it, of twenty that the period has.
        assert!(line.live.observation_count() >= 2);
    });
    let Some(outcome) = outcome else { return };
    let [note] = outcome.adapted.as_slice() else { panic!("{:?}", outcome.adapted) };
    assert!(note.starts_with("`dport` to kernel: a block takes "), "{note}");
    // One of 32: 3.125 %, of the batches that were seen.
    assert!(note.contains(", since 3.") && note.contains(" % pass `dport |9`"), "{note}");
}

#[test]
fn v6_placement_is_kept_after_the_first_seconds() {
    let outcome = assert_frames_arrive_in_order("", |line| {
        let begin = sys::clock::monotonic_ns();
        // All match, as the planner assumed.
        line.send_batches_until(1, "the period is over", |_| {
            sys::clock::monotonic_ns() - begin > 3_000_000_000
        });
        let looks = line.live.observation_count();
        assert!(looks > 0);
        line.send_batches_until(32, "later, few match", |_| {
            sys::clock::monotonic_ns() - begin > 5_000_000_000
        });
        assert_eq!(line.live.observation_count(), looks, "nothing is measured any more");
        assert!(!first_filter_runs_in_kernel(&line.live));
    });
    let Some(outcome) = outcome else { return };
    assert_eq!(outcome.adapted, Vec::<String>::new());
}

#[test]
fn v6_no_adapt_keeps_the_placement() {
    let outcome = assert_frames_arrive_in_order("--no-adapt", |line| {
        let begin = sys::clock::monotonic_ns();
        line.send_batches_until(32, "few match", |_| {
            sys::clock::monotonic_ns() - begin > 3_000_000_000
        });
        assert!(!first_filter_runs_in_kernel(&line.live));
        assert_eq!(line.live.observation_count(), 0);
    });
    let Some(outcome) = outcome else { return };
    assert_eq!(outcome.adapted, Vec::<String>::new());
}

#[test]
fn v6_short_run_moves_no_filter() {
    // It waits for traffic that never comes; then for the end of its period.
    let Some(outcome) = assert_frames_arrive_in_order("", |_| {}) else { return };
    assert_eq!(outcome.adapted, Vec::<String>::new());
    let outcome =
        assert_frames_arrive_in_order("", |line| line.send_batches_until(1, "one burst", |_| true));
    assert_eq!(outcome.expect("it can run").adapted, Vec::<String>::new());
}

#[test]
fn v6_rate_limit_holds_while_filter_moves_into_kernel() {
    const BLOCKS_PER_SECOND_MAX: f64 = 500.0;
    let ran = run_request("", "ratelimit 500 burst=20 |", |line| {
        let send = |line: &mut AdaptiveRun<'_>| {
            send_all(line.pair, &numbered_batch(line.sent, 1));
            line.sent += BATCH_FRAMES;
        };
        wait_until("few pass: into the kernel", || {
            send(line);
            first_filter_runs_in_kernel(&line.live)
        });
        let before = line.frames_received();
        wait_until("some pass there", || {
            send(line);
            line.frames_received() > before + 100
        });
    });
    let Some((outcome, sent, numbers)) = ran else { return };
    let [note] = outcome.adapted.as_slice() else { panic!("{:?}", outcome.adapted) };
    assert!(note.starts_with("`ratelimit` to kernel: "), "{note}");
    assert!(numbers.is_sorted_by(|one, next| one < next), "each once, in order");
    assert!(numbers.last().is_some_and(|last| *last < sent));
    let most = outcome.elapsed_ns as f64 / 1e9 * BLOCKS_PER_SECOND_MAX + 20.0 + 2.0;
    assert!((numbers.len() as f64) <= most, "{} passed of {most} at most", numbers.len());
}
