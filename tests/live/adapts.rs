//! Filters that move between the kernel and a thread by themselves, as the traffic changes. Every
//! frame has a number: it arrives once and in order, whatever has moved.

use crate::numbers::{SHORT, number, numbered};
use crate::scratch::Scratch;
use crate::send::{frames_of, send_all};
use crate::shared::silent;
use engine::build::{Extras, Settings, build_with};
use engine::catalogue::House;
use engine::kernel::point::Points;
use engine::live::Live;
use engine::path::{Adapt, Pace};
use engine::run::{Outcome, Until, run};
use pipeline::plan::{Costs, FilterCost, Machine, SpaceKind, plan};
use std::sync::Arc;
use std::time::Duration;
use testkit::net::{Pair, SERVER_DEVICE, until};

/// Longer than any machine takes to do what it is asked.
const LONG: Duration = Duration::from_secs(60);
/// The cost of leaving the kernel here, and of the twin of `dport`: so high that measured costs do
/// not matter. In the kernel a frame costs the twin, and leaving if it is for port 9; outside it
/// costs leaving.
const LEAVING: f64 = 1e8;
const TWIN: f64 = 5e7;
/// Frames of a burst: those for port 9 stand evenly among them.
const BURST: u64 = 320;

fn machine() -> Machine {
    let mut costs = Costs { record: LEAVING, ..Costs::default() };
    costs.put(FilterCost { filter: "dport".to_owned(), kernel: true, block: TWIN, byte: 0.0 });
    Machine { costs, ..engine::machine::look() }
}

/// A burst of which one frame of so many is for port 9, with the numbers from this one on.
fn burst(from: u64, one_of: u64) -> Vec<Vec<u8>> {
    let other = || testkit::Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(7, 10, &[0; 22]);
    let numbered = numbered(from..from + BURST / one_of, SHORT);
    let others = (1..one_of).map(|_| other());
    let others: Vec<Vec<u8>> = others.collect();
    numbered.into_iter().flat_map(|frame| std::iter::once(frame).chain(others.clone())).collect()
}

/// A line that adapts, and what was sent to it.
struct Adapts<'p> {
    pair: &'p Pair,
    live: Live,
    sent: u64,
}

impl Adapts<'_> {
    /// Sends bursts until this holds, each when the one before has arrived.
    fn until(&mut self, one_of: u64, what: &str, holds: impl Fn(&Live) -> bool) {
        until(what, || {
            send_all(self.pair, &burst(self.sent, one_of));
            self.sent += BURST / one_of;
            until("a burst has arrived", || self.live.is_ended() || self.taken() >= self.sent);
            assert!(!self.live.is_ended(), "{what}: it ended: {:?}", self.live.adapted());
            holds(&self.live)
        });
    }

    fn taken(&self) -> u64 {
        let ledger = self.live.counters(LONG).ledger;
        let sink = ledger.filters.iter().find(|node| node.name == "pcap");
        sink.map_or(0, |node| node.taken.blocks)
    }
}

/// Returns true if `dport` runs in the kernel.
fn inside(live: &Live) -> bool {
    let plan = live.plan().expect("a plan");
    let found = plan.graph.ids().find(|(_, node)| node.name() == "dport");
    found.is_some_and(|(id, _)| plan.space_of(id).kind == SpaceKind::Kernel)
}

/// Runs a line that adapts while `act` sends to it: all that was for port 9 arrives once, in order.
fn adapting(act: impl FnOnce(&mut Adapts<'_>)) -> Option<Outcome> {
    let pair = silent()?;
    let scratch = Scratch::new();
    let file = scratch.path("nine.pcap");
    let text =
        format!("--adapt rx@kernel {SERVER_DEVICE} ring=64MB | dport |9 pcap '{}'", file.display());
    let (graph, mistakes) = pipeline::read(&text, &House);
    assert!(mistakes.is_empty(), "{}", pipeline::render(&text, &mistakes, false));
    let paths = pair.server.enter(|| {
        let plan = plan(graph, &House, &machine()).expect("a plan");
        assert!(!plan.programs.is_empty(), "it begins in the kernel");
        let adapt = Adapt::asked(&plan, &machine()).expect("it is asked for");
        assert!(adapt.moves && !adapt.copies);
        let pace = Pace { look_ns: 2_000_000, rest_ns: 20_000_000, ..Pace::default() };
        let adapt = Some(Arc::new(Adapt { pace, ..(*adapt).clone() }));
        let extras = Extras { adapt, ..Extras::default() };
        build_with(&plan, Settings::default(), &Points::default(), &extras).expect("spaces")
    });
    let live = paths[0].live();
    live.says(&text);
    assert!(!inside(&live), "where all frames are taken to match, it is cheaper outside");
    let (outcome, sent) = std::thread::scope(|scope| {
        let runs = scope.spawn(|| run(paths, Until::default()).expect("a run"));
        let stop = Stop(live.clone());
        let mut adapts = Adapts { pair: &pair, live, sent: 0 };
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

/// Stops a path, also when a test fails.
struct Stop(Live);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[test]
fn v6_o8_a_filter_moves_by_itself_as_the_share_of_matches_changes() {
    let outcome = adapting(|line| {
        line.until(32, "few match: into the kernel", inside);
        line.until(1, "all match: out of it", |live| !inside(live));
        line.until(32, "few match again", inside);
    });
    let Some(outcome) = outcome else { return };
    let told = &outcome.adapted;
    let moves = |to: &str| told.iter().filter(|told| told.starts_with(to)).count();
    let (into, out) = (moves("`dport` to kernel: "), moves("`dport` to thread0: "));
    assert!(into >= 2 && (into == out || into == out + 1), "{told:?}");
}

#[test]
fn v6_at_the_border_of_what_pays_nothing_moves() {
    let outcome = adapting(|line| {
        // Half of the frames: inside it costs what it costs outside.
        line.until(2, "it has looked often", |live| live.looks() > 15);
        assert!(!inside(&line.live));
    });
    let Some(outcome) = outcome else { return };
    assert_eq!(outcome.adapted, Vec::<String>::new());
}
