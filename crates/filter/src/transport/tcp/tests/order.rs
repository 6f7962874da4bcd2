//! Tests of segments that arrive in order, early, repeated, or partly repeated.

use super::run::run_tcp;
use super::*;
use crate::transport::tcp::TCP;

/// Runs the filter on frames with several batch sizes, asserts that the output is always the same,
/// and returns it as one line.
fn output_line(frames: &[Frame]) -> String {
    let one = run_tcp(&[], frames, 1);
    assert_eq!(one, run_tcp(&[], frames, 64));
    one.to_line()
}

#[test]
fn segments_in_order_are_emitted_at_once_in_both_directions() {
    let frames = with_handshake([
        client_segment(0, 101, b"GET").with_acknowledgement(501),
        server_segment(0, 501, b"200").with_acknowledgement(104),
        client_segment(0, 104, b"more").with_acknowledgement(504),
        client_segment(FIN, 108, b"").with_acknowledgement(504),
        server_segment(FIN, 504, b"bye").with_acknowledgement(109),
        client_segment(0, 109, b"").with_acknowledgement(508),
    ]);
    assert_eq!(output_line(&frames), ">^GET <^200 >more|$ <bye$");
    let found = run_tcp(&[], &frames, 64);
    assert!(found.blocks.iter().all(|block| block.class == 80 && block.session == 1));
    assert_eq!((found.counts.consumed.blocks, found.counts.made.blocks), (5, 1));
}

#[test]
fn h6_early_segment_is_held_until_gap_closes() {
    let frames = with_handshake([
        client_segment(0, 104, b"def"),
        client_segment(0, 110, b"jkl"),
        client_segment(0, 107, b"ghi"),
        client_segment(FIN, 113, b""),
        client_segment(0, 101, b"abc"),
    ]);
    assert_eq!(output_line(&frames), ">^abc|def|ghi|jkl$ <^$");
}

#[test]
fn h6_repeated_bytes_are_dropped_and_new_ones_kept() {
    let frames = with_handshake([
        client_segment(0, 101, b"abc"),
        client_segment(0, 101, b"abc"),
        client_segment(0, 102, b"bcde"),
        client_segment(0, 105, b"e"),
        client_segment(0, 104, b""),
        client_segment(0, 106, b"f"),
    ]);
    let found = run_tcp(&[], &frames, 64);
    assert_eq!(found.to_line(), ">^abc|de|f|$ <^$");
    assert_eq!(found.counter_value("duplicates"), 2, "again, and a keep-alive");
}

#[test]
fn sequence_numbers_wrap_around() {
    let frames = [
        client_segment(SYN, u32::MAX - 2, b""),
        client_segment(0, u32::MAX - 1, b"ab"),
        client_segment(0, 3, b"fgh"),
        client_segment(0, 0, b"cde"),
        client_segment(0, u32::MAX, b"bc"),
        client_segment(FIN, 6, b""),
    ];
    assert_eq!(output_line(&frames), ">^ab|cde|fgh|$ <$");
}

#[test]
fn midstream_connection_begins_with_its_first_data() {
    let frames = [
        server_segment(0, 900, b"").with_acknowledgement(40),
        server_segment(0, 900, b"xyz").with_acknowledgement(40),
        client_segment(0, 40, b"abc").with_acknowledgement(903),
        server_segment(0, 890, b"old").with_acknowledgement(43),
    ];
    let found = run_tcp(&[], &frames, 64);
    assert_eq!(found.to_line(), "<xyz >abc|$ <$", "the lesser port is the server's; no beginning");
    assert_eq!(found.dropped_blocks("late"), 1);
}

#[test]
fn single_observed_side_is_reassembled() {
    let frames = [
        server_segment(SYN | ACK, 500, b"").with_acknowledgement(101),
        server_segment(0, 504, b"de").with_acknowledgement(150),
        server_segment(0, 501, b"abc").with_acknowledgement(150),
        server_segment(FIN, 506, b"").with_acknowledgement(200),
    ];
    assert_eq!(output_line(&frames), "<^abc|de|$ >^$");
    let frames = [client_segment(0, 5, b"abc"), client_segment(0, 8, b"d")];
    assert_eq!(output_line(&frames), ">abc|d|$ <$");
}

#[test]
fn syn_may_carry_data_and_bytes_after_fin_are_ignored() {
    let frames = [
        client_segment(SYN, 100, b"early"),
        server_segment(SYN, 500, b"").with_acknowledgement(106),
        client_segment(0, 106, b"late").with_acknowledgement(501),
        client_segment(FIN, 110, b"!").with_acknowledgement(501),
        client_segment(0, 111, b"beyond").with_acknowledgement(501),
        client_segment(0, 110, b"!more").with_acknowledgement(501),
    ];
    let found = run_tcp(&[], &frames, 64);
    assert_eq!(found.to_line(), ">^early|late|!$ <^$");
    assert_eq!((found.dropped_blocks("closed"), found.counter_value("duplicates")), (1, 1));
}

#[test]
fn packets_other_than_tcp_pass_without_class() {
    let mut first = client_segment(0, 101, b"abc");
    first.overwrite(14 + 6, &[0x20, 0]);
    let mut later = client_segment(0, 101, b"abc");
    later.overwrite(14 + 6, &[0, 9]);
    let mut liar = client_segment(0, 101, b"abc");
    liar.overwrite(34 + 12, &[0x40]);
    let mut long = client_segment(0, 101, b"abc");
    long.overwrite(34 + 12, &[0xf0]);
    let cut = client_segment(0, 101, b"abc").truncated_to(34 + 19);
    let frames = [first, later, liar, long, cut, Frame::udp(1, 2, b""), Frame::ethernet(&[8, 6])];
    let found = run_tcp(&[], &frames, 64);
    assert!(found.blocks.iter().all(|block| block.class == 0 && block.session == 0));
    let why = |reason: &str| {
        let at = TCP.reasons.iter().position(|name| *name == reason).unwrap();
        found.counts.unanswered[at]
    };
    let reasons = ["fragment", "malformed", "cut", "not tcp", "not ip"];
    assert_eq!(reasons.map(why), [2, 2, 1, 1, 1]);
}

#[test]
fn vlan_tagged_and_ipv6_segments_are_reassembled() {
    let tagged = |frame: Frame| {
        let bytes = [&frame.bytes[..12], &[0x81, 0, 0, 7], &frame.bytes[12..]].concat();
        Frame { bytes, ..frame }
    };
    let six = |frame: Frame| Frame::ipv6(6, &frame.bytes[34..]);
    for shape in [tagged, six] {
        let frames = [
            client_segment(SYN, 100, b""),
            client_segment(0, 103, b"c"),
            client_segment(0, 101, b"ab"),
        ];
        let frames: Vec<Frame> = frames.into_iter().map(shape).collect();
        assert_eq!(output_line(&frames), ">^ab|c|$ <$");
    }
}
