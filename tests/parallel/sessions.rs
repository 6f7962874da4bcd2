//! Tests of replicated filters with sessions. Both directions of a session stay with one replica.

use crate::collected::{RecordedBlock, collect_replicated, run_replicated};
use crate::scratch::Scratch;
use std::collections::HashMap;
use testkit::{Capture, Frame, TcpHeader};

/// Renumbers sessions in the order of their first appearance, because replicas assign other numbers
/// than a single instance.
pub(crate) fn renumber_sessions(blocks: Vec<RecordedBlock>) -> Vec<RecordedBlock> {
    let mut numbers = HashMap::new();
    let number = |block: RecordedBlock| {
        let next = numbers.len() as u32;
        let session = match block.session {
            0 => 0,
            known => *numbers.entry(known).or_insert(next) + 1,
        };
        RecordedBlock { session, ..block }
    };
    blocks.into_iter().map(number).collect()
}

#[test]
fn n2_n9_v13_replicas_by_session_keep_output_and_order() {
    let scratch = Scratch::new();
    let mut random = testkit::Random::with_replayable_seed();
    for connections in [1, 7, 60] {
        let file = scratch.path("traffic.pcap");
        let capture = testkit::traffic::mixed_traffic(random.below(1 << 32), connections);
        std::fs::write(&file, capture.to_pcap()).expect("a capture");
        let file = file.display();
        // Blocks released by time may leave in another order (decision 0048); by a reset, too.
        for chain in [
            "tcp gap=1h",
            "ip | tcp gap=1h",
            "tcp gap=1h | http",
            "tcp gap=1h | regex \"a[0-9]\" |all",
            "udp | dns",
        ] {
            let pipe = if chain.ends_with("|all") { "" } else { "| " };
            let text = format!("replay '{file}' | {chain} {pipe}KEEP | discard");
            let blocks = assert_replicas_agree(&text);
            // A few scenes may have no traffic of a protocol.
            assert!(blocks > 0 || connections < 60, "{text}");
        }
    }
}

/// Returns a capture with gaps that ends early: many connections never close, requests have no
/// response, and segments wait for missing segments.
fn truncated_traffic(seed: u64, connections: usize) -> Capture {
    let mut random = testkit::Random::new(seed);
    let mut capture = testkit::traffic::mixed_traffic(seed, connections);
    let keep = capture.frames.len() * 2 / 3;
    capture.frames.truncate(keep);
    capture.frames.retain(|_| random.below(12) > 0);
    // All at the same time, so that no timeout occurs before the end.
    let first = capture.frames.first().map_or(0, |(time, _)| *time);
    capture.frames.iter_mut().for_each(|(time, _)| *time = first);
    capture
}

#[test]
fn n2_v13_open_sessions_end_in_single_instance_order() {
    let scratch = Scratch::new();
    let file = scratch.path("torn.pcap");
    let mut random = testkit::Random::with_replayable_seed();
    for connections in [3, 40, 300] {
        let capture = truncated_traffic(random.below(1 << 32), connections);
        std::fs::write(&file, capture.to_pcap()).expect("a capture");
        for chain in ["tcp |", "tcp | http |all", "tcp |all tls |all", "tcp |all dns |all"] {
            let text = format!("replay '{}' | {chain} KEEP | discard", file.display());
            let blocks = assert_replicas_agree(&text);
            assert!(blocks > 0 || connections < 40, "{text}");
        }
    }
}

/// Returns a capture in which many frames are delayed by up to `distance` positions: segments wait
/// for earlier ones, resets precede data, and connections begin in midstream. The times stay in
/// order.
pub(crate) fn delayed_traffic(seed: u64, connections: usize, distance: usize) -> Capture {
    let mut random = testkit::Random::new(seed);
    let mut capture = testkit::traffic::mixed_traffic(seed, connections);
    let frames = &mut capture.frames;
    for at in 0..frames.len() {
        let to = at + random.within(0..distance);
        if to < frames.len() && random.one_in(10) {
            let moved = std::mem::take(&mut frames[at].1);
            frames[at].1 = std::mem::replace(&mut frames[to].1, moved);
        }
    }
    capture
}

/// Asserts that a request emits the same blocks in the same order with 2 to 4 replicas as with a
/// single instance, and that the ledger counts no block as late. Returns the number of blocks.
fn assert_replicas_agree(text: &str) -> usize {
    let one = renumber_sessions(collect_replicated(text, 1));
    for replicas in 2..=4 {
        let (several, outcome) = run_replicated(text, replicas);
        assert!(outcome.failures.is_empty(), "{text}: {:?}", outcome.failures);
        let several = renumber_sessions(several);
        let first = one.iter().zip(&several).position(|(one, other)| one != other);
        let differ = first.map(|at| (at, one.len(), &one[at], &several[at]));
        assert_eq!(differ, None, "{text}: {replicas} copies");
        assert_eq!(one.len(), several.len(), "{text}: {replicas} copies");
        let rows = outcome.ledger.filters.iter();
        let late = rows.flat_map(|row| &row.counters).find(|(name, _)| name == "late");
        assert_eq!(late, None, "{text}: {replicas} copies");
    }
    one.len()
}

#[test]
fn n2_n9_v13_delayed_frames_keep_output_and_order() {
    let scratch = Scratch::new();
    let file = scratch.path("delayed.pcap");
    let mut random = testkit::Random::with_replayable_seed();
    for distance in [2, 30, 500, 3000] {
        let connections = random.within(20..400);
        let capture = delayed_traffic(random.below(1 << 32), connections, distance);
        std::fs::write(&file, capture.to_pcap()).expect("a capture");
        for chain in [
            "tcp gap=1h |",
            "ip | tcp gap=1h |",
            "tcp gap=1h | http |",
            "tcp gap=1h |all dns |all",
            "tcp gap=1h |all tls |all",
            "tcp gap=1h |all regex \"a[0-9]\" |all",
            "tcp gap=1h | pcap |",
            "udp | dns |",
        ] {
            let text = format!("replay '{}' | {chain} KEEP | discard", file.display());
            assert!(assert_replicas_agree(&text) > 0, "{text}");
        }
    }
}

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// Returns a frame with a TCP segment of a connection from the client port `port`. `words` contains
/// the sequence number, the acknowledgement number and the TCP flags.
fn segment(port: u16, from_server: bool, words: (u32, u32, u8), data: &[u8]) -> Vec<u8> {
    let (sequence, acknowledgement, flags) = words;
    let ends = ("10.0.0.1", "192.0.2.80");
    let (from, to) = if from_server { (ends.1, ends.0) } else { ends };
    let (source, target) = if from_server { (80, port) } else { (port, 80) };
    let options = vec![];
    let header =
        TcpHeader { source, target, sequence, acknowledgement, flags, window: 64_240, options };
    Frame::ethernet().ipv4(from, to).tcp(&header, data)
}

/// Replays connections that the server refuses before it sends data, which begins a new session.
/// Asserts that these sessions end in the same order as with a single instance.
#[test]
fn n2_v13_sessions_after_a_reset_end_in_single_instance_order() {
    let scratch = Scratch::new();
    let file = scratch.path("refused.pcap");
    let mut frames = Vec::new();
    for port in 40_000..40_100 {
        let answer = if port % 2 == 0 { SYN | ACK } else { RST | ACK };
        frames.push(segment(port, false, (1_000, 0, SYN), b""));
        frames.push(segment(port, true, (9_000, 1_001, answer), b""));
        frames.push(segment(port, true, (9_001, 1_001, ACK), b"data"));
    }
    std::fs::write(&file, Capture::from_frames(frames).to_pcap()).expect("a capture");
    for chain in ["tcp gap=1h |", "tcp gap=1h | http |all"] {
        let text = format!("replay '{}' | {chain} KEEP | discard", file.display());
        assert!(assert_replicas_agree(&text) > 0, "{text}");
    }
}

/// Replays a capture in which one batch makes a filter release more blocks than the ring of a
/// replica holds. Asserts that the order is kept.
#[test]
fn n9_v13_batch_larger_than_a_ring_keeps_order() {
    /// Length in bytes of the gap in each connection, slightly below the maximum that `tcp`
    /// accepts. It becomes 1024 holes.
    const GAP: u32 = (1 << 30) - 100;
    let scratch = Scratch::new();
    let file = scratch.path("gaps.pcap");
    let ports = 40_000..40_010;
    let mut frames = Vec::new();
    for port in ports.clone() {
        frames.push(segment(port, false, (1_000, 0, SYN), b""));
        frames.push(segment(port, true, (9_000, 1_001, SYN | ACK), b""));
        frames.push(segment(port, false, (1_001 + GAP, 9_001, ACK), b"data"));
    }
    for port in ports {
        // What is acknowledged was sent, so the gap is given up.
        frames.push(segment(port, true, (9_001, 1_005 + GAP, ACK), b"more"));
    }
    std::fs::write(&file, Capture::from_frames(frames).to_pcap()).expect("a capture");
    for chain in ["tcp gap=1h |", "tcp gap=1h | http |all", "tcp gap=1h |all dns |all"] {
        let text = format!("replay '{}' | {chain} KEEP | discard", file.display());
        assert!(assert_replicas_agree(&text) > 0, "{text}");
    }
}
