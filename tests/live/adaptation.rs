//! Adaptation moves filters between the kernel and a thread as the traffic changes. Every frame has
//! a number, and must arrive once and in order.

use crate::numbers::{FRAME_LENGTH, number, numbered_frames};
use crate::scratch::Scratch;
use crate::send::{frames_of, send_all};
use crate::shared_program::quiet_pair;
use engine::build::{Extras, Settings, build_with};
use engine::kernel::point::Points;
use engine::live::Live;
use engine::path::{Adapt, RatePolicy};
use engine::registry::MachineRegistry;
use engine::run::{Outcome, Until, run};
use pipeline::plan::{Costs, FilterCost, Machine, SpaceKind, plan};
use std::sync::Arc;
use std::time::Duration;
use testkit::net::{Pair, SERVER_DEVICE, until};

/// Timeout of one operation, longer than any machine needs.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);
/// Cost of leaving the kernel in ns, so high that measured costs are irrelevant. In the kernel a
/// frame costs [`TWIN_NS`], plus [`KERNEL_EXIT_NS`] if it is for port 9; in a thread, every frame
/// costs [`KERNEL_EXIT_NS`].
const KERNEL_EXIT_NS: f64 = 1e8;
const TWIN_NS: f64 = 5e7;
/// Number of frames per batch, in which the frames for port 9 are evenly distributed.
const BATCH_FRAMES: u64 = 320;

fn machine() -> Machine {
    let mut costs = Costs { record: KERNEL_EXIT_NS, ..Costs::default() };
    costs.put(FilterCost { filter: "dport".to_owned(), kernel: true, block: TWIN_NS, byte: 0.0 });
    Machine { costs, ..engine::machine::look() }
}

/// Returns a batch of frames numbered from `from`; one frame in `one_of` is for port 9.
fn batch(from: u64, one_of: u64) -> Vec<Vec<u8>> {
    let other = || testkit::Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(7, 10, &[0; 22]);
    let numbered = numbered_frames(from..from + BATCH_FRAMES / one_of, FRAME_LENGTH);
    let others = (1..one_of).map(|_| other());
    let others: Vec<Vec<u8>> = others.collect();
    numbered.into_iter().flat_map(|frame| std::iter::once(frame).chain(others.clone())).collect()
}

/// A running adaptive request, and the sender of its traffic.
struct AdaptiveRun<'p> {
    pair: &'p Pair,
    live: Live,
    sent: u64,
}

impl AdaptiveRun<'_> {
    /// Sends batches, each after the previous one has arrived, until the condition holds.
    fn send_until(&mut self, one_of: u64, what: &str, holds: impl Fn(&Live) -> bool) {
        until(what, || {
            send_all(self.pair, &batch(self.sent, one_of));
            self.sent += BATCH_FRAMES / one_of;
            until("a burst has arrived", || {
                self.live.is_ended() || self.frames_taken() >= self.sent
            });
            assert!(!self.live.is_ended(), "{what}: it ended: {:?}", self.live.adapted());
            holds(&self.live)
        });
    }

    fn frames_taken(&self) -> u64 {
        let ledger = self.live.counters(OPERATION_TIMEOUT).ledger;
        let sink = ledger.filters.iter().find(|node| node.name == "pcap");
        sink.map_or(0, |node| node.taken.blocks)
    }
}

/// Returns true if `dport` runs in the kernel.
fn runs_in_kernel(live: &Live) -> bool {
    let plan = live.plan().expect("a plan");
    let found = plan.graph.ids().find(|(_, node)| node.name() == "dport");
    found.is_some_and(|(id, _)| plan.space_of(id).kind == SpaceKind::Kernel)
}

/// Runs an adaptive request while `act` sends to it; asserts that all frames for port 9 arrive once
/// and in order. Returns `None` if the machine cannot run the test.
fn run_adaptive(act: impl FnOnce(&mut AdaptiveRun<'_>)) -> Option<Outcome> {
    let pair = quiet_pair()?;
    let scratch = Scratch::new();
    let file = scratch.path("nine.pcap");
    let text =
        format!("--adapt rx@kernel {SERVER_DEVICE} ring=64MB | dport |9 pcap '{}'", file.display());
    let (graph, mistakes) = pipeline::read(&text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(&text, &mistakes, false));
    let paths = pair.server.enter(|| {
        let plan = plan(graph, &MachineRegistry::Local, &machine()).expect("a plan");
        assert!(!plan.programs.is_empty(), "it begins in the kernel");
        let adapt = Adapt::asked(&plan, &machine()).expect("it is asked for");
        assert!(adapt.moves && !adapt.copies);
        let rate_policy =
            RatePolicy { observation_ns: 2_000_000, pause_ns: 20_000_000, ..RatePolicy::default() };
        let adapt = Some(Arc::new(Adapt { rate_policy, ..(*adapt).clone() }));
        let extras = Extras { adapt, ..Extras::default() };
        build_with(&plan, Settings::default(), &Points::default(), &extras).expect("spaces")
    });
    let live = paths[0].live();
    live.set_request_text(&text);
    assert!(!runs_in_kernel(&live), "where all frames are taken to match, it is cheaper outside");
    let (outcome, sent) = std::thread::scope(|scope| {
        let runs = scope.spawn(|| run(paths, Until::default()).expect("a run"));
        let stop = StopOnDrop(live.clone());
        let mut adapts = AdaptiveRun { pair: &pair, live, sent: 0 };
        act(&mut adapts);
        drop(stop);
        (runs.join().expect("a run"), adapts.sent)
    });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{:#?}", outcome.ledger);
    for told in outcome.adapted.iter().filter(|told| told.contains("switched at block")) {
        assert!(told.contains("lost 0, duplicated 0, reordered 0"), "{told}");
    }
    let frames = frames_of(&std::fs::read(file).expect("a capture"));
    let all = frames.iter().map(|frame| number(frame)).eq(0..sent);
    assert!(all, "each once, in order: {:?}", outcome.adapted);
    Some(outcome)
}

/// Stops a path on drop, also when a test fails.
struct StopOnDrop(Live);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[test]
fn v6_o8_filter_moves_when_the_share_of_matches_changes() {
    let outcome = run_adaptive(|line| {
        line.send_until(32, "few match: into the kernel", runs_in_kernel);
        line.send_until(1, "all match: out of it", |live| !runs_in_kernel(live));
        line.send_until(32, "few match again", runs_in_kernel);
    });
    let Some(outcome) = outcome else { return };
    let told = &outcome.adapted;
    let moves = |to: &str| told.iter().filter(|told| told.starts_with(to)).count();
    let (into, out) = (moves("`dport` to kernel: "), moves("`dport` to thread0: "));
    assert!(into >= 2 && (into == out || into == out + 1), "{told:?}");
}

#[test]
fn v6_filter_with_equal_costs_does_not_move() {
    let outcome = run_adaptive(|line| {
        // Half of the frames: equal cost inside and outside.
        line.send_until(2, "it has looked often", |live| live.observations() > 15);
        assert!(!runs_in_kernel(&line.live));
    });
    let Some(outcome) = outcome else { return };
    assert_eq!(outcome.adapted, Vec::<String>::new());
}
