//! Tests of the end of a stream by FIN, in the presence of stray segments and acknowledgements.

use super::run::{Outcome, run_tcp, run_with_state_moves};
use super::*;

/// Runs the filter on frames with several batch sizes and state moves, asserts that the output is
/// always the same, and returns it.
fn run_with_varied_batches(frames: &[Frame]) -> Outcome {
    let found = run_tcp(&[], frames, 1);
    for batch in [1, 2, 64] {
        let moved = run_with_state_moves(&[], frames, batch, true);
        assert_eq!(moved.counts.counters, found.counts.counters, "{batch}");
        assert_eq!(moved.streams(), found.streams(), "{batch}");
    }
    found
}

/// Returns the frames of a connection: these segments of the client, and then the FIN of the
/// server, which acknowledges the client's data up to `end`.
fn closed_connection_frames(segments: impl IntoIterator<Item = Frame>, end: u32) -> Vec<Frame> {
    let close = [
        server_segment(FIN, 501, b"").with_acknowledgement(end),
        client_segment(0, end, b"").with_acknowledgement(502),
    ];
    with_handshake(segments.into_iter().chain(close))
}

/// Asserts that no stream ended as broken, and that no gaps and no missing bytes were counted.
fn assert_streams_complete(found: &Outcome) {
    assert!(found.blocks.iter().all(|block| !block.flags.contains(abi::BlockFlags::BROKEN)));
    assert_eq!((found.counter_value("gaps"), found.counter_value("missing bytes")), (0, 0));
}

#[test]
fn fin_in_sequence_drops_later_bytes_in_any_order() {
    let data = client_segment(0, 101, b"abc");
    let stray = client_segment(0, 111, b"EVIL");
    let fin = client_segment(FIN, 104, b"");
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let segments = order.map(|at| [&data, &stray, &fin][at].clone());
        let found = run_with_varied_batches(&closed_connection_frames(segments, 105));
        assert_eq!(found.streams()[&(1, false)].bytes, b"abc", "{order:?}");
        assert!(found.streams().values().all(|stream| stream.ended), "{order:?}");
        assert_streams_complete(&found);
        assert_eq!(found.dropped_blocks("closed"), 1, "{order:?}");
    }
}

#[test]
fn fin_with_data_cuts_a_held_segment_that_crosses_it() {
    for policy in ["first", "last"] {
        let frames = closed_connection_frames(
            [
                client_segment(0, 103, b"cdXX"),
                client_segment(0, 108, b"EVIL"),
                client_segment(FIN, 101, b"abcd"),
            ],
            106,
        );
        let found = run_tcp(&[&format!("policy={policy}")], &frames, 1);
        assert_eq!(found.streams()[&(1, false)].bytes, b"abcd", "{policy}");
        assert_streams_complete(&found);
    }
}

#[test]
fn fin_after_a_segment_out_of_window_is_not_a_missing_byte() {
    let frames = closed_connection_frames(
        [
            client_segment(0, 101, b"abc"),
            client_segment(0, 101 + (1 << 29), b"stray"),
            client_segment(FIN, 104, b""),
        ],
        105,
    );
    let found = run_with_varied_batches(&frames);
    assert_eq!(found.to_line(), ">^abc|$ <^$");
    assert_streams_complete(&found);
    assert_eq!(found.dropped_blocks("closed"), 1);
}

#[test]
fn acknowledgement_of_unsent_bytes_makes_no_gap_after_fin() {
    let fin =
        |sequence: u32, payload| client_segment(FIN, sequence, payload).with_acknowledgement(501);
    let rest = client_segment(0, 104, b"def").with_acknowledgement(501);
    let ends =
        [vec![rest.clone(), fin(107, b"")], vec![fin(104, b"def")], vec![fin(107, b""), rest]];
    for end in ends {
        let start = [
            client_segment(0, 101, b"abc").with_acknowledgement(501),
            server_segment(0, 501, b"").with_acknowledgement(701),
        ];
        let found =
            run_with_varied_batches(&closed_connection_frames(start.into_iter().chain(end), 108));
        assert_eq!(found.streams()[&(1, false)].bytes, b"abcdef");
        assert_streams_complete(&found);
    }
}

#[test]
fn missing_bytes_before_a_fin_end_at_the_fin() {
    // The bytes from 104 to 109 were not captured, and the server acknowledged the FIN.
    let frames = closed_connection_frames(
        [
            client_segment(0, 101, b"abc"),
            client_segment(0, 200, b"EVIL"),
            client_segment(FIN, 110, b""),
        ],
        111,
    );
    let found = run_with_varied_batches(&frames);
    assert_eq!(found.to_line(), ">^abc|*6$ <^$");
    assert_eq!((found.counter_value("missing bytes"), found.dropped_blocks("closed")), (6, 1));
}

#[test]
fn data_in_order_passes_a_fin_with_an_earlier_number() {
    // The receiver meets the FIN only if a segment ends at its number.
    let frames = with_handshake([
        client_segment(0, 110, b"jkl"),
        client_segment(FIN, 106, b""),
        client_segment(0, 101, b"abcdefghi"),
        server_segment(0, 501, b"").with_acknowledgement(113),
        client_segment(0, 113, b"mno"),
    ]);
    assert_eq!(run_with_varied_batches(&frames).to_line(), ">^abcdefghi|jkl|mno|$ <^$");
}
