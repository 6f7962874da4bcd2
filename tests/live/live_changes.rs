//! Tests of a fixed sequence of all kinds of changes while frames arrive: filters are added,
//! removed, replaced by filters with other classes, and moved between the kernel and threads; `tcp`
//! is recreated while connections are within messages. Every frame has a number: it arrives once
//! and in order, or its source counts it as lost.

use crate::change::{LiveRequest, OPERATION_TIMEOUT, change_request};
use crate::frame_sending::{parse_capture, send_frames};
use crate::numbered_frames::frame_number;
use crate::scratch::Scratch;
use crate::shared_program::{quiet_pair, send_frames_until_stopped};
use engine::live::PathHandle;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use testkit::net::{CLIENT_DEVICE, NamespacePair, SERVER_DEVICE, wait_until};
use testkit::{Frame, TcpHeader};

/// The changes in the order in which a test makes them, all in the syntax of `set`.
const CHANGES: [&str; 10] = [
    "move udp process",
    "insert dport after udp",
    "upgrade tcp",
    "replace dport with sport",
    "move udp kernel",
    "insert ip before udp",
    "remove sport",
    "move ipproto process",
    "remove ip",
    "move ipproto kernel",
];

/// Returns frames of `connections` connections. If `first` is true, they are the first halves of
/// messages. Otherwise, they are the SYN and the second halves, which `tcp` holds until the first
/// halves arrive.
fn message_halves(connections: u32, first: bool) -> Vec<Vec<u8>> {
    let frame = |connection: u32, sequence: u32, flags: u8, text: &str| {
        let source = format!("10.{}.{}.9", connection >> 8, connection & 0xff);
        let ports = TcpHeader { source: 4000, target: 80, window: 8192, ..TcpHeader::default() };
        let segment = TcpHeader { sequence, flags, ..ports };
        Frame::ethernet().ipv4(&source, "192.0.2.1").tcp(&segment, text.as_bytes())
    };
    let text = "GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n";
    let (one, other) = text.split_at(text.len() / 2);
    let behind = 7 + u32::try_from(one.len()).expect("short");
    let begins = (0..connections).filter(|_| !first).map(|at| frame(at, 6, 0x02, ""));
    let half = |at| match first {
        true => frame(at, 7, 0x10, one),
        false => frame(at, behind, 0x10, other),
    };
    begins.chain((0..connections).map(half)).collect()
}

/// Returns the number of blocks held by `tcp`.
fn held_block_count(live: &PathHandle) -> u64 {
    let ledger = live.take_snapshot(OPERATION_TIMEOUT).ledger;
    let tcp = ledger.filters.iter().find(|node| node.name == "tcp").map(|node| node.held.blocks);
    tcp.unwrap_or(0)
}

/// Makes `many` changes to a path while frames arrive and `connections` connections are open. The
/// frames are `apart_us` microseconds apart or, if `apart_us` is 0, arrive at full rate.
fn change_under_traffic(pair: &NamespacePair, many: usize, connections: u32, apart_us: u64) {
    let scratch = Scratch::new();
    let file = scratch.path("all.pcap");
    let text = format!(
        "rx@kernel {SERVER_DEVICE} ring=128MB | ipproto | (|6 (tcp gap=10m | http | count) + \
         |17 (udp | pcap '{}'))",
        file.display()
    );
    let line = LiveRequest::start(pair, &text);
    for some in message_halves(connections, false).chunks(500) {
        send_frames(&pair.client, CLIENT_DEVICE, some);
    }
    let open = u64::from(connections);
    wait_until("all connections are open", || held_block_count(&line.live) == open);
    let stop = AtomicBool::new(false);
    let (mut pauses, mut drops) = (Vec::new(), 0);
    let begin = Instant::now();
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_frames_until_stopped(pair, apart_us, &stop));
        let ends = StopSenderOnDrop(&stop);
        for words in CHANGES.iter().cycle().take(many) {
            let before = line.blocks_received();
            wait_until("frames come", || line.live.has_ended() || line.blocks_received() > before);
            if line.live.has_ended() {
                // The exit status contains the reason.
                break;
            }
            let switched = change_request(&line.live, words);
            pauses.push(switched.paused_ns / 1000);
            drops += switched.source_drops.iter().map(|(_, _, blocks)| blocks).sum::<u64>();
            assert_eq!(held_block_count(&line.live), open, "{words}: what is held comes along");
        }
        drop(ends);
        sender.join().expect("a sender")
    });
    let took = begin.elapsed();
    if line.live.has_ended() {
        let outcome = line.stop();
        panic!("the path ended after {} changes: {:#?}", pauses.len(), outcome.ledger);
    }
    for some in message_halves(connections, true).chunks(500) {
        send_frames(&pair.client, CLIENT_DEVICE, some);
    }
    wait_until("all messages are whole", || held_block_count(&line.live) == 0);
    let outcome = line.stop();
    let count = outcome.reports.iter().find(|report| report.name == "count").expect("a report");
    assert_eq!(count.report.rows[0], ("messages".to_owned(), open), "{count:?}");
    let frames = parse_capture(&std::fs::read(file).expect("a capture"));
    let numbers: Vec<u64> = frames.iter().map(|frame| frame_number(frame)).collect();
    assert!(numbers.is_sorted_by(|one, next| one < next), "each once, in order");
    let lost = outcome.ledger.lost_blocks();
    assert_eq!(numbers.len() as u64 + lost, sent, "{:#?}", outcome.ledger);
    if apart_us > 0 {
        assert_eq!(lost, 0, "{:#?}", outcome.ledger);
    }
    pauses.sort_unstable();
    eprintln!(
        "{many} changes in {took:.1?} under {sent} frames ({:.0} a second), {connections} \
         connections open: lost 0, duplicated 0, reordered 0; the source lost {lost}, {drops} of \
         them in pauses; paused: median {} µs, worst {} µs",
        sent as f64 / took.as_secs_f64(),
        pauses[pauses.len() / 2],
        pauses[pauses.len() - 1],
    );
}

/// A guard that stops the sending thread on drop, even if a test fails.
struct StopSenderOnDrop<'e>(&'e AtomicBool);

impl Drop for StopSenderOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn v3_every_kind_of_change_under_steady_traffic() {
    let Some(pair) = quiet_pair() else { return };
    change_under_traffic(&pair, CHANGES.len(), 500, 100);
}

#[test]
fn v3_every_kind_of_change_under_full_rate_traffic() {
    let Some(pair) = quiet_pair() else { return };
    change_under_traffic(&pair, CHANGES.len(), 50, 0);
}

#[test]
#[ignore = "a minute: cargo test --release -p streamline-tests --test live -- --ignored \
            --nocapture v3_200"]
fn v3_200_changes_under_steady_and_20_under_full_rate_traffic() {
    let Some(pair) = quiet_pair() else { return };
    change_under_traffic(&pair, 200, 10_000, 100);
    let Some(pair) = quiet_pair() else { return };
    change_under_traffic(&pair, 20, 10_000, 0);
}
