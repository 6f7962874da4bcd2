//! Tests of sessions that move between replicas while the path runs.

use crate::collected::{run_replicated, run_replicated_concurrently_with};
use crate::request::PlannedRequest;
use crate::scratch::Scratch;
use crate::sessions::{delayed_traffic, renumber_sessions};
use engine::change::{ChangeError, move_sessions, session_shares};
use engine::live::PathHandle;
use pipeline::plan::Machine;
use runtime::replicas::balance::SessionMove;
use std::io::Write as _;
use std::time::Duration;
use testkit::traffic::Capture;
use testkit::{Frame, Random};

/// The numbers of sessions and of held blocks that moved between replicas.
#[derive(Clone, Copy, Default, Debug)]
struct MovedStateCounts {
    sessions: usize,
    held: u64,
}

/// Moves sessions between random replicas until the path ends. Sessions move in buckets, the groups
/// into which their hash divides them.
fn move_random_buckets(live: &PathHandle, replicas: u8, mut random: Random) -> MovedStateCounts {
    let mut all = MovedStateCounts::default();
    while !live.has_ended() {
        let Some(shares) = session_shares(live, Duration::from_millis(50)) else {
            // The path has not begun yet, or is about to end.
            std::thread::yield_now();
            continue;
        };
        let from = random.within(0..usize::from(replicas)) as u8;
        let to = (from + 1 + random.within(0..usize::from(replicas) - 1) as u8) % replicas;
        let of_from = (0..).zip(&shares.replicas).filter(|(_, replica)| **replica == from);
        let buckets = of_from.map(|(bucket, _)| bucket).filter(|_| random.below(2) == 0).collect();
        let chosen = SessionMove { from, to, buckets, before: 0, after: 0 };
        match move_sessions(live, &chosen, Duration::from_millis(200)) {
            Ok(moved) => {
                all.sessions += moved.sessions;
                all.held += moved.held;
            }
            Err(ChangeError::SpaceUnavailable(_)) => {}
            Err(why) => panic!("{why}"),
        }
    }
    all
}

/// Moves random sessions between replicas at random times. Asserts that the output and its order
/// are those of a single instance, and that the ledger balances.
#[test]
fn n3_n9_v13_moved_sessions_keep_output_and_order() {
    let scratch = Scratch::new();
    let mut random = Random::with_replayable_seed();
    for chain in [
        "tcp gap=1h",
        "tcp gap=1h | http",
        "tcp gap=1h |all dns |all",
        "tcp gap=1h | regex \"a[0-9]\" |all",
        "udp | dns",
    ] {
        let file = scratch.path("traffic.pcap");
        let capture = delayed_traffic(random.below(1 << 32), 1500, 3000);
        std::fs::write(&file, capture.to_pcap()).expect("a capture");
        let pipe = if chain.ends_with("|all") { "" } else { "| " };
        let text = format!("replay '{}' | {chain} {pipe}KEEP | discard", file.display());
        let (one, _) = run_replicated(&text, 1);
        let one = renumber_sessions(one);
        let mut moved = MovedStateCounts::default();
        testkit::wait_until(&format!("sessions of `{chain}` that move"), || {
            let replicas = random.within(2..5);
            let seed = Random::new(random.below(1 << 32));
            let (several, outcome, state) =
                run_replicated_concurrently_with(&text, replicas, |live| {
                    move_random_buckets(live, replicas as u8, seed)
                });
            assert!(outcome.failures.is_empty(), "{text}: {:?}", outcome.failures);
            let several = renumber_sessions(several);
            let first = one.iter().zip(&several).position(|(one, other)| one != other);
            let differ = first.map(|at| (at, &one[at], &several[at]));
            assert_eq!(differ, None, "{text}: {replicas} copies, {state:?}");
            assert_eq!(one.len(), several.len(), "{text}: {replicas} copies, {state:?}");
            moved.sessions += state.sessions;
            moved.held += state.held;
            moved.sessions > 100
        });
        println!("{chain}: {moved:?}");
    }
}

/// Number of flows. The first flow becomes an elephant: it is much larger than all others.
const FLOWS: u16 = 40;

/// Returns a capture of [`FLOWS`] flows, whose frames alternate. If `skewed` is true, every second
/// frame belongs to the first flow.
fn flow_capture(skewed: bool) -> Vec<u8> {
    let flow =
        |number: u16| if skewed && number.is_multiple_of(2) { 0 } else { number / 2 % FLOWS };
    let frame = |number| {
        Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").udp(4000 + flow(number), 53, b"twelve bytes")
    };
    Capture::from_frames((0..2 * FLOWS * 50).map(frame)).to_pcap()
}

/// Sends a flow that is much larger than all others. Asserts that the path moves other flows away
/// from its replica, reports the move, and loses nothing.
#[test]
fn n3_other_sessions_leave_the_replica_of_an_elephant() {
    let scratch = Scratch::new();
    let pipe = scratch.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    let text = format!(
        "--parallel=2 replay '{}' | udp | regex \"a+b\" |all count | discard",
        pipe.display()
    );
    let line = PlannedRequest::new(text);
    assert_eq!(line.replica_count(), 2, "{}", line.text);
    let (even, skewed) = (flow_capture(false), flow_capture(true));
    let (outcome, records) = line.run_adapting(&Machine::example(), |live| {
        let mut to = std::fs::OpenOptions::new().write(true).open(&pipe).expect("the pipe");
        to.write_all(&even).expect("a reader");
        let mut records = 1;
        testkit::wait_until("sessions move", || {
            // The file header comes once.
            to.write_all(&skewed[24..]).expect("a reader");
            records += 1;
            !live.adaptations().is_empty()
        });
        // Some more, for the replicas as they are now.
        to.write_all(&skewed[24..]).expect("a reader");
        records + 1
    });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), []);
    let adapted = outcome.adapted.join("\n");
    assert!(
        adapted.contains(" sessions to thread") && adapted.contains(" % without them"),
        "{adapted}"
    );
    let frames = records * u64::from(2 * FLOWS * 50);
    let (_, source) = &outcome.ledger.sources[0];
    assert_eq!(source.given.blocks, frames, "{adapted}");
    let count = outcome.ledger.filters.iter().find(|filter| filter.name == "count");
    assert_eq!(count.expect("count").taken.blocks, frames, "{adapted}");
}
