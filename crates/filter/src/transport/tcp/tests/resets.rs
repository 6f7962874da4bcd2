//! Tests of forged resets, and of resets that their receivers ignore.

use super::run::{EmittedBlock, Outcome, run_tcp, run_with_state_moves};
use super::*;

const MILLISECOND: u64 = 1_000_000;

/// Returns the frame with an option added to its TCP header.
fn add_tcp_option(frame: Frame, option: &[u8]) -> Frame {
    let mut bytes = frame.bytes;
    let padded = option.len().next_multiple_of(4);
    bytes[14 + 3] += padded as u8;
    bytes[34 + 12] += (padded as u8 / 4) << 4;
    let options = option.iter().copied().chain(std::iter::repeat(0)).take(padded);
    bytes.splice(54..54, options);
    Frame { bytes, ..frame }
}

/// Returns TCP-MD5 and TCP-AO options with invalid signatures.
fn signature_options() -> [Vec<u8>; 2] {
    [[&[19, 18][..], &[7; 16]].concat(), [&[29, 16, 1, 1][..], &[7; 12]].concat()]
}

/// Runs the filter on frames with several batch sizes and state moves, asserts that the output is
/// always the same, and returns it.
fn run_with_all_batch_sizes(frames: &[Frame]) -> Outcome {
    let found = run_tcp(&[], frames, 1);
    for batch in [1, 2, 3, 64] {
        let moved = run_with_state_moves(&[], frames, batch, true);
        assert_eq!(moved.counts.counters, found.counts.counters, "{batch}");
        assert_eq!(moved.streams(), found.streams(), "{batch}");
    }
    found
}

/// Returns the frames of a connection that the segments in `by` disturb: some data, then these
/// segments, then data in both directions from time `then` on.
fn disturbed_connection(by: &[Frame], then: u64) -> Vec<Frame> {
    let data_before = [
        client_segment(0, 101, b"abc").with_acknowledgement(501),
        server_segment(0, 501, b"one").with_acknowledgement(104),
    ];
    let data_after = [
        client_segment(0, 104, b"def").with_acknowledgement(504),
        server_segment(0, 504, b"two").with_acknowledgement(107),
        client_segment(FIN, 107, b"").with_acknowledgement(507),
        server_segment(FIN, 507, b"").with_acknowledgement(108),
    ];
    let data_after = data_after.into_iter().enumerate();
    let data_after = data_after.map(|(n, frame)| frame.at_time(then + n as u64 * MILLISECOND));
    with_handshake(data_before.into_iter().chain(by.iter().cloned()).chain(data_after))
}

fn forged_resets() -> [Vec<Frame>; 4] {
    let (one, other) =
        (client_segment(RST, 104, b""), server_segment(RST, 504, b"").with_acknowledgement(104));
    [
        vec![one.clone()],
        vec![other.clone()],
        vec![one.clone(), other.clone()],
        vec![other.clone(), one, other],
    ]
}

#[test]
fn ignored_reset_is_withdrawn() {
    for resets in forged_resets() {
        let found = run_with_all_batch_sizes(&disturbed_connection(&resets, 300 * MILLISECOND));
        assert_eq!(found.to_line(), ">^abc <^one >def <two >$ <$");
        assert_eq!(
            (found.counter_value("resets taken back"), found.counter_value("new sessions")),
            (1, 1)
        );
        assert_eq!(found.counts.dropped.iter().map(|amount| amount.blocks).sum::<u64>(), 0);
        let broken = |block: &EmittedBlock| block.flags.contains(abi::BlockFlags::BROKEN);
        assert!(!found.blocks.iter().any(broken), "both sides ended by a FIN");
    }
}

#[test]
fn data_after_an_accepted_reset_is_another_session() {
    for resets in forged_resets() {
        let found = run_with_all_batch_sizes(&disturbed_connection(&resets, 5_000 * MILLISECOND));
        assert_eq!(found.to_line(), ">^abc <^one >$ <$ 2>def 2<two 2>$ 2<$");
        assert_eq!(
            (found.counter_value("resets taken back"), found.counter_value("new sessions")),
            (1, 2)
        );
        let broken = found
            .blocks
            .iter()
            .filter(|block| block.flags.contains(abi::BlockFlags::SESSION_END_MASK));
        assert_eq!(broken.map(|block| block.session).collect::<Vec<_>>(), [1, 1]);
    }
}

#[test]
fn reset_is_accepted_after_silence() {
    let frames = with_handshake([
        client_segment(0, 101, b"ask").with_acknowledgement(501),
        server_segment(0, 501, b"one").with_acknowledgement(104),
        client_segment(RST, 104, b""),
        // This segment was in flight when the RST was sent.
        server_segment(0, 504, b"two").with_acknowledgement(104).at_time(100 * MILLISECOND),
        client_segment(RST, 104, b"").at_time(101 * MILLISECOND),
        Frame::segment((5000, 80), 0, 1, b"").at_time(3_000 * MILLISECOND),
        // Retransmitted by an end that missed the RST.
        server_segment(0, 504, b"two").with_acknowledgement(104).at_time(3_001 * MILLISECOND),
    ]);
    let found = run_with_all_batch_sizes(&frames);
    assert_eq!(found.to_line(), ">^ask <^one|two >$ <$");
    assert_eq!(
        (found.counter_value("resets taken back"), found.counter_value("duplicates")),
        (0, 1)
    );
    assert!(
        found.blocks.iter().any(|block| block.flags.contains(abi::BlockFlags::SESSION_END_MASK))
    );
}

#[test]
fn segments_of_the_peer_alone_withdraw_a_reset() {
    // The capture contains only the server's data, and a RST in the client's name.
    let frames = [
        server_segment(0, 501, b"one").with_acknowledgement(104),
        client_segment(RST, 104, b""),
        server_segment(0, 504, b"two").with_acknowledgement(104).at_time(700 * MILLISECOND),
        server_segment(0, 507, b"three").with_acknowledgement(104).at_time(1_400 * MILLISECOND),
    ];
    let found = run_with_all_batch_sizes(&frames);
    assert_eq!(found.streams()[&(1, true)].bytes, b"onetwothree");
    assert_eq!(found.counter_value("resets taken back"), 1);
    // The server acknowledges data that the client sent after the RST, so it still has the
    // connection.
    let frames = with_handshake([
        client_segment(0, 101, b"abc").with_acknowledgement(501),
        client_segment(RST, 104, b""),
        server_segment(0, 501, b"one").with_acknowledgement(110),
        client_segment(0, 110, b"ghi").with_acknowledgement(504).at_time(2_000 * MILLISECOND),
    ]);
    let found = run_with_all_batch_sizes(&frames);
    assert_eq!(found.streams()[&(1, false)].bytes, b"abc\0\0\0\0\0\0ghi");
    assert_eq!(found.counter_value("resets taken back"), 1);
}

#[test]
fn reset_with_other_signature_status_is_ignored() {
    for signature in signature_options() {
        for plain in
            [client_segment(RST, 104, b""), server_segment(RST, 504, b"").with_acknowledgement(104)]
        {
            let reset = add_tcp_option(plain.clone(), &signature);
            let found =
                run_with_all_batch_sizes(&disturbed_connection(&[reset], 400_000 * MILLISECOND));
            assert_eq!(found.to_line(), ">^abc <^one >def <two >$ <$");
            let counted =
                ["resets ignored", "resets taken back"].map(|name| found.counter_value(name));
            assert_eq!(counted, [1, 0]);
            // In a signed connection unsigned segments are ignored.
            let sign = |mut frames: Vec<Frame>| {
                for frame in &mut frames[..2] {
                    *frame = add_tcp_option(frame.clone(), &signature);
                }
                frames
            };
            let found = run_with_all_batch_sizes(&sign(disturbed_connection(
                std::slice::from_ref(&plain),
                400_000 * MILLISECOND,
            )));
            assert_eq!(found.counter_value("resets ignored"), 1);
            // A RST signed like its connection is indistinguishable from a real one.
            let reset = add_tcp_option(plain.clone(), &signature);
            let found =
                run_with_all_batch_sizes(&sign(disturbed_connection(&[reset], 300 * MILLISECOND)));
            let counted =
                ["resets ignored", "resets taken back"].map(|name| found.counter_value(name));
            assert_eq!(counted, [0, 1]);
        }
    }
}

#[test]
fn fin_that_the_receiver_ignores_has_no_effect() {
    let [signature, _] = signature_options();
    let forged = [
        add_tcp_option(client_segment(FIN, 104, b"").with_acknowledgement(504), &signature),
        client_segment(FIN, 104 + (1 << 24), b"").with_acknowledgement(504),
        client_segment(FIN, 90, b"").with_acknowledgement(504),
    ];
    for fin in forged {
        let found = run_with_all_batch_sizes(&disturbed_connection(&[fin], 300 * MILLISECOND));
        assert_eq!(found.to_line(), ">^abc <^one >def <two >$ <$");
    }
}

#[test]
fn syn_within_a_connection_has_no_data() {
    for syn in [
        client_segment(SYN, 103, b"XYZ"),
        server_segment(SYN, 503, b"XYZ").with_acknowledgement(104),
    ] {
        let found = run_with_all_batch_sizes(&disturbed_connection(&[syn], 300 * MILLISECOND));
        assert_eq!(found.to_line(), ">^abc <^one >def <two >$ <$");
        assert_eq!(found.counter_value("new sessions"), 1);
    }
}

#[test]
fn acknowledgement_of_an_ignored_reset_has_no_effect() {
    let frames = with_handshake([
        client_segment(0, 101, b"abc").with_acknowledgement(501),
        client_segment(0, 106, b"fg").with_acknowledgement(501),
        server_segment(RST, 0x7000_0000, b"").with_acknowledgement(108),
        client_segment(0, 104, b"de").with_acknowledgement(501),
    ]);
    let found = run_with_all_batch_sizes(&frames);
    assert_eq!(found.streams()[&(1, false)].bytes, b"abcdefg");
    assert_eq!(found.counter_value("gaps"), 0);
}
