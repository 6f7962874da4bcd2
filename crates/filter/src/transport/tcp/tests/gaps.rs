//! Tests of gaps: bytes that were sent but not captured.

use super::super::TCP;
use super::run::run_tcp;
use super::*;
use crate::testing::{Arena, Node, Space, parse_arguments};

const SECOND: u64 = 1_000_000_000;

#[test]
fn acknowledged_uncaptured_bytes_become_a_hole() {
    let frames = with_handshake([
        client_segment(0, 101, b"abc").with_acknowledgement(501),
        client_segment(0, 109, b"ij").with_acknowledgement(501),
        server_segment(0, 501, b"").with_acknowledgement(104),
        server_segment(0, 501, b"yes").with_acknowledgement(111),
        client_segment(0, 111, b"kl").with_acknowledgement(504),
    ]);
    for batch in [1, 64] {
        let found = run_tcp(&[], &frames, batch);
        assert_eq!(found.to_line(), ">^abc|*5|ij <^yes >kl|$ <$", "before the answer");
        assert_eq!((found.counter_value("gaps"), found.counter_value("missing bytes")), (1, 5));
    }
}

#[test]
fn data_after_acknowledged_bytes_is_not_delayed() {
    let frames = with_handshake([
        client_segment(0, 101, b"abc").with_acknowledgement(501),
        server_segment(0, 501, b"").with_acknowledgement(109),
        client_segment(0, 109, b"ij").with_acknowledgement(501),
        client_segment(FIN, 115, b"").with_acknowledgement(501),
        server_segment(0, 501, b"").with_acknowledgement(116),
    ]);
    assert_eq!(run_tcp(&[], &frames, 64).to_line(), ">^abc|*5|ij|*4$ <^$");
}

#[test]
fn late_bytes_are_dropped_and_counted() {
    // Two gaps are abandoned together. Then their bytes arrive in any order, and once more together
    // with bytes that were already emitted and with new bytes.
    let frames = with_handshake([
        client_segment(0, 103, b"cd").with_acknowledgement(501),
        client_segment(0, 107, b"gh").with_acknowledgement(501),
        server_segment(0, 501, b"yes").with_acknowledgement(109),
        client_segment(0, 105, b"ef").with_acknowledgement(501),
        client_segment(0, 101, b"ab").with_acknowledgement(501),
        client_segment(0, 107, b"ghij").with_acknowledgement(504),
        client_segment(0, 109, b"ij").with_acknowledgement(504),
        client_segment(0, 105, b"efghijkl").with_acknowledgement(504),
    ]);
    for batch in [1, 2, 64] {
        let found = run_tcp(&[], &frames, batch);
        assert_eq!(found.to_line(), ">^*2|cd|*2|gh <^yes >ij|kl|$ <$");
        assert_eq!((found.counter_value("gaps"), found.counter_value("missing bytes")), (2, 4));
        assert_eq!((found.dropped_blocks("late"), found.counter_value("late bytes")), (2, 6));
        assert_eq!(found.counter_value("duplicates"), 1);
    }
}

#[test]
fn bytes_before_the_first_observed_are_late() {
    let frames = [
        client_segment(0, 104, b"def"),
        client_segment(0, 101, b"abc"),
        client_segment(0, 104, b"def"),
    ];
    let found = run_tcp(&[], &frames, 1);
    assert_eq!(found.to_line(), ">def|$ <$");
    assert_eq!((found.dropped_blocks("late"), found.counter_value("late bytes")), (1, 3));
    assert_eq!(found.counter_value("duplicates"), 1);
}

#[test]
fn acknowledgement_before_ordered_data_loses_nothing() {
    // The directions of a connection come from different queues: each is in order.
    let frames = with_handshake([
        server_segment(0, 501, b"").with_acknowledgement(107),
        client_segment(0, 101, b"abc").with_acknowledgement(501),
        server_segment(0, 501, b"yes").with_acknowledgement(107),
        client_segment(0, 104, b"def").with_acknowledgement(501),
    ]);
    let found = run_tcp(&[], &frames, 1);
    assert_eq!(found.to_line(), ">^abc <^yes >def|$ <$");
    assert_eq!((found.counter_value("gaps"), found.counter_value("late bytes")), (0, 0));
}

#[test]
fn retransmission_of_truncated_bytes_is_a_duplicate() {
    let cut = client_segment(0, 101, b"abcdef").truncated_to(54 + 2);
    let found = run_tcp(&[], &with_handshake([cut.clone(), cut]), 1);
    assert_eq!(found.to_line(), ">^ab|*4|$ <^$");
    assert_eq!((found.counter_value("duplicates"), found.counter_value("late bytes")), (1, 0));
}

#[test]
fn unacknowledged_gap_is_abandoned_after_a_second() {
    let mut frames = vec![
        client_segment(SYN, 100, b""),
        client_segment(0, 103, b"cd"),
        client_segment(0, 107, b"gh").at_time(SECOND / 2),
        client_segment(0, 109, b"ij").at_time(SECOND + SECOND / 4),
        client_segment(0, 111, b"kl").at_time(3 * SECOND),
    ];
    assert_eq!(run_tcp(&[], &frames, 1).to_line(), ">^*2|cd|*2|gh|ij|kl|$ <$");
    frames.truncate(4);
    let early = run_tcp(&["gap=5s"], &frames, 1);
    assert_eq!(early.blocks.len(), 7);
    assert!(early.blocks.iter().filter(|block| block.hole).all(|b| b.time == SECOND * 5 / 4));
    frames.push(client_segment(0, 101, b"ab").at_time(4 * SECOND));
    assert_eq!(run_tcp(&["gap=5s"], &frames, 1).to_line(), ">^ab|cd|*2|gh|ij|$ <$");
}

#[test]
fn changed_gap_and_timeout_apply_to_held_segments() {
    let arena = Arena::new(3);
    let mut space = Space::new(&arena);
    let mut node = Node::new(&TCP, &["gap=5s"]).unwrap();
    let frames = [client_segment(SYN, 100, b""), client_segment(0, 103, b"cd")];
    drop(node.process_batch(space.batch(&frames), &mut space, 0));
    drop(node.tick(&mut space, 2 * SECOND));
    assert_eq!(node.counts.held.blocks, 1);
    node.filter.set(&parse_arguments(&TCP, &["gap=1s"]).unwrap()).unwrap();
    drop(node.tick(&mut space, 2 * SECOND));
    assert_eq!(node.counts.held.blocks, 0);
    let at = TCP.counters.iter().position(|name| *name == "timed out sessions").unwrap();
    let ended = |node: &Node| node.counts.counters[at];
    assert_eq!(ended(&node), 0);
    node.filter.set(&parse_arguments(&TCP, &["timeout=1s"]).unwrap()).unwrap();
    drop(node.tick(&mut space, 2 * SECOND));
    assert_eq!(ended(&node), 1);
}

#[test]
fn exceeded_hold_limit_abandons_the_gap() {
    let mut frames = vec![client_segment(SYN, 100, b"")];
    frames.extend((0..5).map(|n| client_segment(0, 105 + 4 * n, b"abcd")));
    frames.push(client_segment(0, 130, b"xyz"));
    assert_eq!(
        run_tcp(&["held=16"], &frames, 64).to_line(),
        ">^*4|abcd|abcd|abcd|abcd|abcd|*5|xyz|$ <$"
    );
    let found = run_tcp(&["held=0"], &frames[..2], 64);
    assert_eq!(found.to_line(), ">^*4|abcd|$ <$");
}

#[test]
fn truncated_bytes_become_a_hole() {
    let frames = with_handshake([
        client_segment(0, 101, b"abcdef").truncated_to(54 + 2),
        client_segment(0, 113, b"mnopqr").truncated_to(54 + 3),
        client_segment(0, 119, b"stu"),
        client_segment(0, 107, b"ghijkl").truncated_to(54),
    ]);
    let found = run_tcp(&[], &frames, 64);
    assert_eq!(found.to_line(), ">^ab|*4|*6|mno|*3|stu|$ <^$");
    assert_eq!((found.counter_value("gaps"), found.counter_value("missing bytes")), (3, 13));
}

#[test]
fn segment_beyond_the_window_makes_no_gap() {
    let frames = with_handshake([
        client_segment(0, 101, b"abc").with_acknowledgement(501),
        client_segment(0, 101 + (1 << 29), b"forged").with_acknowledgement(501),
        client_segment(0, 101 + 0x7000_0000, b"forged").with_acknowledgement(501),
        client_segment(0, 104, b"def").with_acknowledgement(501).at_time(3 * SECOND),
        server_segment(0, 501, b"").with_acknowledgement(107).at_time(3 * SECOND),
    ]);
    let found = run_tcp(&[], &frames, 1);
    assert_eq!(found.to_line(), ">^abc|def|$ <^$");
    assert_eq!(found.dropped_blocks("out of window"), 2);
}

#[test]
fn early_fin_waits_for_missing_bytes() {
    let frames = with_handshake([
        client_segment(FIN, 105, b"ef"),
        client_segment(0, 103, b"cd"),
        client_segment(0, 101, b"ab"),
        client_segment(0, 108, b""),
    ]);
    assert_eq!(run_tcp(&[], &frames, 64).to_line(), ">^ab|cd|ef$ <^$");
    let frames = with_handshake([client_segment(FIN, 105, b"ef"), client_segment(FIN, 105, b"ef")]);
    assert_eq!(run_tcp(&[], &frames, 64).to_line(), ">^*4|ef$ <^$");
}

#[test]
fn hole_longer_than_a_block_is_split() {
    let far = 101 + (3 << 20);
    let frames = [
        client_segment(SYN, 100, b""),
        client_segment(0, far, b"x").at_time(1),
        client_segment(0, far + 1, b"y"),
    ];
    let found = run_tcp(&[], &frames, 64);
    assert_eq!(found.to_line(), ">^*1048575|*1048575|*1048575|*3|x|y|$ <$");
    assert_eq!((found.counter_value("gaps"), found.counter_value("missing bytes")), (1, 3 << 20));
}
