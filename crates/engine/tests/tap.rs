//! Tests of taps of running paths: taps that start now or in the past, and readers that stop,
//! disconnect or follow different policies. A tap must not cost the path a block.

use engine::build::{PathOptions, RunSettings, build_with_options};
use engine::change::change;
use engine::kernel::shared_attach_point::AttachPoints;
use engine::live::PathHandle;
use engine::registry::MachineRegistry;
use engine::run::{RunOutcome, StopConditions, run};
use engine::tap::{TapError, TapNode, TapRequest};
use pipeline::edit::Edit;
use pipeline::plan::{Machine, plan};
use runtime::ledger::LossRanges;
use runtime::space::tap::OverrunPolicy;
use runtime::space::tap::TAP_BACKLOG_BYTES_MAX;
use runtime::space::tap::Tap;
use runtime::space::tap::TapEndReason;
use runtime::space::tap::TapOrigin;
use runtime::space::tap::TapStart;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::Duration;
use testkit::wait_until;

/// A time limit so long that no test reaches it.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Runs the request `text` until `act` returns, and then stops its path. The sources of the path
/// retain `history` bytes of output. Asserts that no failure occurs and no block is lost.
fn run_while<T>(
    text: &str,
    history: Option<usize>,
    act: impl FnOnce(&PathHandle) -> T,
) -> (T, RunOutcome) {
    let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &MachineRegistry::Local, &Machine::example()).expect("a plan");
    let extras = PathOptions { history_bytes: history, ..PathOptions::default() };
    let paths =
        build_with_options(&plan, RunSettings::default(), &AttachPoints::default(), &extras);
    let paths = paths.expect("spaces");
    let live = paths[0].live();
    live.set_request_text(text);
    let (done, outcome) = std::thread::scope(|scope| {
        let run = scope.spawn(|| run(paths, StopConditions::default()).expect("a run"));
        let stop = StopGuard(&live);
        let done = act(&live);
        drop(stop);
        (done, run.join().expect("a run"))
    });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    assert_eq!(outcome.ledger.lost_blocks(), 0, "{text}");
    (done, outcome)
}

/// A guard that stops a path when it is dropped, even if a test fails.
struct StopGuard<'l>(&'l PathHandle);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn blocks_emitted(live: &PathHandle) -> u64 {
    live.take_snapshot(TIME_LIMIT).ledger.sources[0].1.given.blocks
}

/// Returns a request for a tap at a node, and the read end of the tap's pipe. The tap skips blocks
/// that the test does not read in time.
fn tap_request(node: Option<&str>, since: Option<TapOrigin>) -> (TapRequest, CaptureReader) {
    let (near, pipe) = sys::descriptor::pipe().expect("a pipe");
    let node = node.map(|name| TapNode::Name(name.to_owned()));
    let (policy, patience) = (OverrunPolicy::Skip, TIME_LIMIT);
    let (classes, form, ring) = Default::default();
    let request = TapRequest { node, classes, form, since, policy, patience, pipe, ring };
    (request, CaptureReader::new(near))
}

fn start_tap(
    live: &PathHandle,
    node: Option<&str>,
    since: Option<TapOrigin>,
) -> (Tap, TapStart, CaptureReader) {
    let (tap_request, capture) = tap_request(node, since);
    let (tap, began) = live.tap(tap_request, TIME_LIMIT).expect("a tap");
    (tap, began, capture)
}

/// The read end of a pipe that carries a capture.
struct CaptureReader {
    pipe: File,
    begun: bool,
}

impl CaptureReader {
    fn new(pipe: OwnedFd) -> Self {
        Self { pipe: File::from(pipe), begun: false }
    }

    /// Reads the next frame of the capture, and returns the sequence number in its payload. Returns
    /// `None` at the end of the capture.
    fn next(&mut self) -> Option<u64> {
        if !self.begun {
            self.pipe.read_exact(&mut [0; 24]).ok()?;
            self.begun = true;
        }
        let mut record = [0; 16];
        self.pipe.read_exact(&mut record).ok()?;
        let length = u32::from_le_bytes(record[8..12].try_into().expect("four"));
        let mut frame = vec![0; length as usize];
        self.pipe.read_exact(&mut frame).expect("a whole frame");
        Some(u64::from_be_bytes(frame[42..50].try_into().expect("eight")))
    }
}

#[test]
fn v9_tap_starts_in_the_past_and_reports_the_position() {
    let text = "generate seq=yes rate=5000 | count";
    run_while(text, Some(64 << 20), |live| {
        wait_until("some have come", || blocks_emitted(live) > 300);
        let (_tap, began, mut capture) = start_tap(live, None, Some(TapOrigin::Block(100)));
        assert_eq!(began.block, 100);
        assert!(
            began.history_blocks >= 200 && began.has_history && began.first_age_ns > 0,
            "{began:?}"
        );
        let numbers: Vec<u64> = (0..1000).map_while(|_| capture.next()).collect();
        assert!(numbers.iter().copied().eq(100..1100), "past and present, once and in order");
        // The tap starts at the oldest retained block.
        let (_tap, began, mut capture) = start_tap(live, None, Some(TapOrigin::Oldest));
        assert_eq!((began.block, capture.next()), (0, Some(0)));
        let (_tap, began, mut capture) = start_tap(live, None, Some(TapOrigin::Ago(10_000_000)));
        assert_eq!(capture.next(), Some(began.block));
        assert!(began.first_age_ns <= 10_000_000, "{began:?}");
        // Only sources retain output. The start of a tap of another node reports that none is
        // retained.
        let (_tap, began, mut capture) = start_tap(live, Some("generate"), None);
        assert_eq!((capture.next(), began.history_blocks), (Some(began.block), 0));
        let (_tap, began, mut capture) = start_tap(live, Some("count"), Some(TapOrigin::Oldest));
        assert!(!began.has_history && began.history_blocks == 0, "{began:?}");
        assert_eq!(capture.next(), Some(began.block));
    });
}

#[test]
fn v9_history_of_a_tap_is_bounded() {
    const HISTORY_BYTES: usize = 64 << 10;
    /// Upper bound on the compression ratio of the generated frames, which differ only in their
    /// sequence numbers.
    const COMPRESSION_RATIO_MAX: u64 = 16;
    run_while("generate seq=yes rate=200000 | count", Some(HISTORY_BYTES), |live| {
        let most = COMPRESSION_RATIO_MAX * HISTORY_BYTES as u64 / 64;
        wait_until("more than can be remembered has come", || blocks_emitted(live) > 2 * most);
        let (_tap, began, mut capture) = start_tap(live, None, Some(TapOrigin::Block(0)));
        assert!(began.block > 0 && began.history_blocks <= most, "{began:?}");
        assert_eq!(capture.next(), Some(began.block));
    });
}

#[test]
fn v8_stalled_tap_reader_is_skipped_or_ended() {
    let text = "generate seq=yes size=1500 | count";
    let ((), outcome) = run_while(text, None, |live| {
        let (mut stuck, full) = tap_request(None, None);
        stuck.patience = Duration::from_millis(50);
        let (stuck, _) = live.tap(stuck, TIME_LIMIT).expect("a tap");
        let (skips, mut slow) = tap_request(None, None);
        let (skips, began) = live.tap(skips, TIME_LIMIT).expect("a tap");
        let (mut all, unread) = tap_request(Some("count"), None);
        all.policy = OverrunPolicy::End;
        let (all, _) = live.tap(all, TIME_LIMIT).expect("a tap");
        wait_until("one wanted all", || all.stats().end_reason == Some(TapEndReason::BacklogFull));
        wait_until("one is skipped", || skips.stats().skipped > 0);
        wait_until("one was patient", || {
            matches!(stuck.stats().end_reason, Some(TapEndReason::ReaderStalled(_)))
        });
        assert!(
            all.stats().frames as usize * 1500 <= TAP_BACKLOG_BYTES_MAX + (1 << 20),
            "{:?}",
            all.stats()
        );
        // A slow reader gets the retained blocks in order, then the blocks after the skipped ones.
        let (mut last, mut jumps) = (None, Vec::new());
        for _ in 0..20_000 {
            let number = slow.next().expect("it goes on");
            assert!(last.is_none_or(|last| number > last), "in order");
            jumps.extend(last.filter(|last| *last + 1 < number).map(|last| (last + 1, number - 1)));
            last = Some(number);
        }
        assert!(last > Some(began.block + 20_000), "something was skipped");
        let missed: Vec<(u64, u64)> =
            skips.stats().missing.gaps().map(|gap| (gap.from, gap.to)).collect();
        // The list contains only the first [`LossRanges::STORED_PER_END`] gaps.
        jumps.truncate(LossRanges::RANGES_PER_END_MAX);
        assert!(!jumps.is_empty() && missed.starts_with(&jumps), "{jumps:?} of {missed:?}");
        assert_eq!(skips.stats().end_reason, None);
        drop((full, unread));
    });
    let count = &outcome.reports[0].report.rows[0];
    assert_eq!(count.1, outcome.ledger.sources[0].1.given.blocks, "the path saw all");
}

#[test]
fn v8_tap_ends_with_its_reader_owner_node_or_path() {
    let text = "generate seq=yes rate=20000 | count | discard";
    let (last, _) = run_while(text, None, |live| {
        let (gone, _, capture) = start_tap(live, None, None);
        drop(capture);
        wait_until("its reader has disconnected", || {
            gone.stats().end_reason == Some(TapEndReason::ReaderLeft)
        });
        let (owned, _, mut capture) = start_tap(live, None, None);
        assert!(capture.next().is_some());
        drop(owned);
        wait_until("its owner has gone", || capture.next().is_none());
        let (moved, _, mut capture) = start_tap(live, Some("count"), None);
        assert!(capture.next().is_some());
        let edit = Edit::parse(&["remove", "count"]).expect("an edit");
        change(live, &edit, &Machine::example(), TIME_LIMIT).expect("a change");
        wait_until("its node has gone", || capture.next().is_none());
        wait_until("it says why", || moved.stats().end_reason == Some(TapEndReason::NodeMoved));
        for (node, why) in [("nothing", "the request has no"), ("discard", "the node is a sink")] {
            let refused = live.tap(tap_request(Some(node), None).0, TIME_LIMIT).expect_err("none");
            assert!(refused.to_string().contains(why), "{refused}");
        }
        start_tap(live, None, None)
    });
    let (tap, began, mut capture) = last;
    let mut next = began.block;
    while let Some(number) = capture.next() {
        assert_eq!(number, next);
        next += 1;
    }
    wait_until("the path has ended", || tap.stats().end_reason == Some(TapEndReason::PathEnded));
}

#[test]
fn v8_tap_without_frames_is_a_capture_without_packets() {
    let text = "generate seq=yes rate=1000 | bpf \"tcp\" | count | discard";
    let ((tap, mut capture), _) = run_while(text, None, |live| {
        let (tap, _, capture) = start_tap(live, Some("count"), None);
        (tap, capture)
    });
    let mut header = Vec::new();
    capture.pipe.read_to_end(&mut header).expect("a capture");
    assert_eq!((header.len(), &header[..4]), (24, &0xa1b2_3c4d_u32.to_le_bytes()[..]));
    wait_until("the path has ended", || tap.stats().end_reason == Some(TapEndReason::PathEnded));
}

#[test]
fn v9_tap_of_an_ended_path_is_refused() {
    let (live, _) = run_while("generate count=10 | count", None, |live| {
        wait_until("it has ended", || live.has_ended());
        live.clone()
    });
    let refused = live.tap(tap_request(None, None).0, TIME_LIMIT).expect_err("none");
    assert!(
        matches!(refused, TapError::NotTappable(_) | TapError::SpaceUnavailable(_)),
        "{refused}"
    );
}

#[test]
fn v9_tap_of_classes_that_no_arc_requests_is_refused() {
    let asked =
        || TapRequest { classes: Some("exchange".to_owned()), ..tap_request(Some("http"), None).0 };
    for (arc, may_tap) in [("", false), ("|all ", false), ("|exchange ", true)] {
        let line = format!("generate rate=1000 | tcp | http {arc}discard");
        let line = line.replace("http d", "http | d");
        let (found, _) = run_while(&line, None, |live| live.tap(asked(), TIME_LIMIT).map(drop));
        let why = found.err().map(|why| why.to_string());
        assert_eq!(why.is_none(), may_tap, "{line}: {why:?}");
        assert!(why.is_none_or(|why| why.contains("only while an arc of the request selects it")));
    }
}
