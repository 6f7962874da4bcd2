//! Tests of the start and the end of connections.

use super::run::{Outcome, run_tcp, run_with_state_moves};
use super::*;

const SECOND: u64 = 1_000_000_000;

#[test]
fn connection_without_data_emits_nothing() {
    let closed = with_handshake([
        client_segment(FIN, 101, b""),
        server_segment(FIN, 501, b"").with_acknowledgement(102),
    ]);
    let refused =
        [client_segment(SYN, 100, b""), server_segment(RST, 0, b"").with_acknowledgement(101)];
    for frames in [&closed[..], &refused] {
        let found = run_tcp(&[], frames, 64);
        assert_eq!(found.to_line(), "");
        assert_eq!(found.counts.consumed.blocks, frames.len() as u64);
    }
}

#[test]
fn reset_ends_both_sides() {
    let frames = with_handshake([
        client_segment(0, 101, b"abc").with_acknowledgement(501),
        client_segment(0, 106, b"fg").with_acknowledgement(501),
        server_segment(0, 501, b"no").with_acknowledgement(104),
        server_segment(RST, 503, b"").with_acknowledgement(104),
        Frame::segment((5000, 80), 0, 1, b"").at_time(2 * SECOND),
        client_segment(0, 104, b"de").with_acknowledgement(501).at_time(2 * SECOND),
    ]);
    let found = run_tcp(&[], &frames, 1);
    assert_eq!(found.to_line(), ">^abc <^no >*2|fg|$ <$", "what was held leaves");
    assert_eq!((found.dropped_blocks("late"), found.dropped_blocks("closed")), (1, 0));
}

#[test]
fn reset_outside_of_the_window_is_ignored() {
    let data = |rst: Frame| {
        let exchange = [
            client_segment(0, 101, b"abc").with_acknowledgement(501),
            server_segment(0, 501, b"").with_acknowledgement(104),
        ];
        with_handshake(
            exchange
                .into_iter()
                .chain([rst, client_segment(0, 104, b"def").with_acknowledgement(501)]),
        )
    };
    for number in [0, 99, 103, 104 + 0xffff, 104 + 0x1_0000 * 4, 0x8000_0000] {
        let found = run_tcp(&[], &data(client_segment(RST, number, b"")), 64);
        assert_eq!(found.to_line(), ">^abc|def|$ <^$", "{number}");
        assert_eq!(found.counter_value("resets ignored"), 1, "{number}");
    }
    for number in [104, 105, 104 + 0xfffe] {
        let found = run_tcp(&[], &data(client_segment(RST, number, b"")), 64);
        assert_eq!(found.to_line(), ">^abc|def|$ <^$", "{number}");
        assert_eq!(found.counter_value("resets taken back"), 1, "{number}");
        assert_eq!(found.counter_value("resets ignored"), 0, "{number}");
    }
}

#[test]
fn windows_are_scaled_if_both_sides_offer_it() {
    let scaled = |frame: Frame| {
        let mut bytes = frame.bytes;
        bytes[14 + 3] += 4;
        bytes[34 + 12] = 0x60;
        bytes.extend([3, 3, 7, 0]);
        Frame { bytes, ..frame }
    };
    let talk = |server_scales: bool| {
        let answer = server_segment(SYN, 500, b"").with_acknowledgement(101);
        vec![
            scaled(client_segment(SYN, 100, b"")),
            if server_scales { scaled(answer) } else { answer },
            client_segment(0, 101, b"a").with_acknowledgement(501),
            server_segment(0, 501, b"").with_acknowledgement(102),
            client_segment(RST, 102 + (1 << 20), b""),
        ]
    };
    assert_eq!(run_tcp(&[], &talk(true), 64).counter_value("resets ignored"), 0);
    assert_eq!(run_tcp(&[], &talk(false), 64).counter_value("resets ignored"), 1);
}

#[test]
fn half_closed_connection_stays_open() {
    let frames = with_handshake([
        client_segment(FIN, 101, b"ask").with_acknowledgement(501),
        server_segment(0, 501, b"one").with_acknowledgement(105),
        client_segment(0, 105, b"").with_acknowledgement(504),
        server_segment(0, 504, b"two").with_acknowledgement(105).at_time(5 * SECOND),
        server_segment(FIN, 507, b"").with_acknowledgement(105),
        client_segment(0, 105, b"").with_acknowledgement(508),
        server_segment(FIN, 507, b"").with_acknowledgement(105),
    ]);
    assert_eq!(run_tcp(&[], &frames, 64).to_line(), ">^ask$ <^one|two|$");
}

#[test]
fn syn_after_the_end_begins_another_session() {
    let whole = with_handshake([
        client_segment(FIN, 101, b"a").with_acknowledgement(501),
        server_segment(FIN, 501, b"b").with_acknowledgement(103),
        client_segment(0, 103, b"").with_acknowledgement(503),
    ]);
    let again = whole.iter().cloned().map(|frame| {
        let sequence = u32::from_be_bytes(frame.bytes[38..42].try_into().unwrap());
        let mut frame = frame;
        frame.overwrite(38, &(sequence + 1000).to_be_bytes());
        let number = u32::from_be_bytes(frame.bytes[42..46].try_into().unwrap());
        frame.overwrite(42, &number.wrapping_add(1000).to_be_bytes());
        frame
    });
    let frames: Vec<Frame> = whole.iter().cloned().chain(again).collect();
    let found = run_tcp(&[], &frames, 64);
    assert_eq!(found.to_line(), ">^a$ <^b$ 2>^a$ 2<^b$");
    assert_eq!(found.counter_value("new sessions"), 2);
}

#[test]
fn repeated_syn_begins_no_connection() {
    let mut frames = handshake_frames();
    frames.insert(1, client_segment(SYN, 100, b""));
    frames.extend([
        client_segment(SYN, 100, b""),
        client_segment(0, 101, b"abc"),
        client_segment(SYN, 100, b""),
    ]);
    let found = run_tcp(&[], &frames, 64);
    assert_eq!((found.to_line().as_str(), found.counter_value("new sessions")), (">^abc|$ <^$", 1));
}

/// The server's second SYN restarts its stream. A FIN of the first stream is then discarded, since
/// the new stream may never reach the sequence number of this FIN.
#[test]
fn fin_of_a_restarted_stream_is_discarded() {
    let answers = |number: u32| server_segment(SYN, number, b"").with_acknowledgement(101);
    for fin in [600, 2_000_000_000] {
        let frames = [
            client_segment(SYN, 100, b""),
            answers(500),
            server_segment(FIN, fin, b"").with_acknowledgement(101),
            answers(9000),
            client_segment(0, 101, b"abc").with_acknowledgement(9001),
            server_segment(0, 9001, b"yes").with_acknowledgement(104),
        ];
        assert_eq!(run_tcp(&[], &frames, 64).to_line(), ">^abc <^yes >$ <$", "{fin}");
    }
}

#[test]
fn server_sequence_may_change_until_acknowledged() {
    let answers = |number: u32| server_segment(SYN, number, b"").with_acknowledgement(101);
    let frames = [
        client_segment(SYN, 100, b""),
        answers(500),
        answers(0x9000_0000),
        answers(500),
        answers(0x9000_0000),
        client_segment(0, 101, b"abc").with_acknowledgement(0x9000_0001),
        answers(500),
        server_segment(0, 0x9000_0001, b"xyz").with_acknowledgement(104),
    ];
    assert_eq!(run_tcp(&[], &frames, 64).to_line(), ">^abc <^xyz >$ <$");
}

#[test]
fn syn_in_open_connection_needs_the_server_to_agree() {
    let open = with_handshake([
        client_segment(0, 101, b"abc").with_acknowledgement(501),
        client_segment(SYN, 7000, b""),
    ]);
    let forged =
        open.iter().cloned().chain([client_segment(0, 104, b"def").with_acknowledgement(501)]);
    let found = run_tcp(&[], &forged.collect::<Vec<_>>(), 64);
    assert_eq!(found.to_line(), ">^abc|def|$ <^$");
    let real = [
        server_segment(SYN, 9000, b"").with_acknowledgement(7001),
        client_segment(0, 7001, b"new").with_acknowledgement(9001),
    ];
    let found = run_tcp(&[], &[&open[..], &real].concat(), 64);
    assert_eq!(found.to_line(), ">^abc|$ <^$ 2>^new|$ 2<^$");
}

#[test]
fn silent_connection_times_out() {
    let frames = [
        client_segment(0, 101, b"abc"),
        Frame::segment((5000, 80), 0, 1, b"other").at_time(599 * SECOND),
        client_segment(0, 104, b"def").at_time(600 * SECOND),
        Frame::segment((5000, 80), 0, 6, b"more").at_time(1150 * SECOND),
        client_segment(0, 107, b"ghi").at_time(1201 * SECOND),
        Frame::segment((5000, 80), 0, 10, b"!").at_time(1300 * SECOND),
        client_segment(0, 110, b"jkl").at_time(1400 * SECOND),
    ];
    for batch in [1, 64] {
        let found = run_tcp(&[], &frames, batch);
        assert_eq!(found.counter_value("timed out sessions"), 1, "{batch}");
        let streams = found.streams();
        let bytes = |session| String::from_utf8(streams[&(session, false)].bytes.clone()).unwrap();
        assert_eq!([1, 2, 3].map(bytes), ["abcdef", "othermore!", "ghijkl"]);
        assert!(streams.values().all(|stream| stream.ended));
    }
    let found = run_tcp(&["timeout=20m"], &frames, 1);
    assert_eq!(found.counter_value("new sessions"), 2);
}

#[test]
fn clock_expires_idle_connection() {
    let frames = [client_segment(0, 101, b"abc"), Frame::udp(1, 2, b"").at_time(700 * SECOND)];
    let found = run_tcp(&[], &frames, 1);
    assert_eq!(found.counter_value("timed out sessions"), 1);
    assert_eq!(end_times(&found), [0; 2]);
    assert_eq!(found.blocks.len(), 4);
}

/// The path's clock stands still at 9,000 s while timestamps are an hour behind it.
#[test]
fn connection_after_clock_was_set_back_is_not_idle() {
    let at = |second: u64, offset: u32| {
        client_segment(0, 101 + offset, b"abc").at_time((5400 + second) * SECOND)
    };
    let mut frames = vec![Frame::udp(1, 2, b"").at_time(9000 * SECOND)];
    frames.extend((0..20).map(|number| at(40 * u64::from(number), 3 * number)));
    for (batch, moves) in [(1, false), (4, false), (64, false), (1, true)] {
        let found = run_with_state_moves(&[], &frames, batch, moves);
        let sessions = ["new sessions", "timed out sessions"].map(|name| found.counter_value(name));
        assert_eq!(sessions, [1, 0], "{batch} {moves}");
        let bytes = &found.streams()[&(1, false)].bytes;
        assert_eq!(*bytes, b"abc".repeat(20), "{batch} {moves}");
    }
    // After that, it is silent for longer than the timeout.
    frames.extend([Frame::udp(1, 2, b"").at_time(6900 * SECOND), at(1501, 60)]);
    for batch in [1, 4] {
        let found = run_tcp(&[], &frames, batch);
        assert_eq!(found.counter_value("timed out sessions"), 1, "{batch}");
        assert_eq!(found.counter_value("new sessions"), 2, "{batch}");
    }
}

fn end_times(found: &Outcome) -> Vec<u64> {
    let ends =
        found.blocks.iter().filter(|block| block.flags.contains(abi::BlockFlags::SESSION_END));
    ends.map(|block| block.time).collect()
}

#[test]
fn connection_without_fin_ends_at_its_last_segment() {
    let mut frames = with_handshake([
        client_segment(0, 101, b"abc").with_acknowledgement(501).at_time(SECOND),
        client_segment(0, 108, b"hi").with_acknowledgement(501).at_time(2 * SECOND),
        server_segment(0, 501, b"").with_acknowledgement(104).at_time(3 * SECOND),
    ]);
    let other = |at: u64| Frame::segment((5000, 80), SYN, 1, b"").at_time(at * SECOND);
    let data = Frame::segment((5000, 80), 0, 2, b"other");
    let reset = client_segment(RST, 110, b"").with_acknowledgement(501).at_time(4 * SECOND);
    // The end of the capture, the timeout, an eviction, and a RST.
    for (words, last, ends) in [
        (&["gap=1h"][..], vec![other(50)], 3),
        (&["gap=1h"], vec![other(800), data.clone().at_time(801 * SECOND)], 3),
        (&["gap=1h", "sessions=1"], vec![other(50)], 3),
        (&["gap=10s"], vec![reset, other(50)], 4),
    ] {
        frames.truncate(6);
        frames.extend(last);
        for batch in [1, 64] {
            let found = run_tcp(words, &frames, batch);
            let blocks = found.blocks.iter().filter(|block| block.session == 1);
            let made = blocks.filter(|block| block.hole);
            assert!(made.clone().count() >= 2, "{words:?}: {}", found.to_line());
            assert!(made.clone().all(|block| block.time == ends * SECOND), "{words:?}");
        }
    }
}

#[test]
fn connection_beyond_the_maximum_evicts_another() {
    let one =
        |port: u16, sequence: u32, payload: &[u8]| Frame::segment((port, 80), 0, sequence, payload);
    let frames = [
        one(4000, 1, b"a"),
        one(4000, 5, b"e"),
        one(4001, 1, b"b"),
        one(4002, 1, b"c"),
        one(4000, 2, b"b"),
    ];
    let found = run_tcp(&["sessions=2"], &frames, 64);
    assert_eq!(found.counter_value("evicted sessions"), 2);
    assert_eq!(found.counter_value("new sessions"), 4);
    let streams = found.streams();
    assert_eq!((streams.len(), streams.values().all(|stream| stream.ended)), (8, true));
}

#[test]
fn checksums_are_verified_on_request() {
    let right = |frame: Frame| {
        let mut frame = frame;
        let (ends, segment) = (&frame.bytes[26..34], &frame.bytes[34..]);
        let length = [0, 6, 0, segment.len() as u8];
        let sum = wire::checksum::OnesComplementSum::new()
            .with_bytes(ends)
            .with_bytes(&length)
            .with_bytes(segment);
        frame.overwrite(34 + 16, &sum.checksum().to_be_bytes());
        frame
    };
    let good: Vec<Frame> =
        with_handshake([client_segment(0, 101, b"abc")]).into_iter().map(right).collect();
    let mut bad = right(client_segment(0, 104, b"def"));
    bad.overwrite(34 + 20, b"D");
    let cut = client_segment(0, 104, b"defg").truncated_to(54 + 2);
    let frames = [&good[..], &[bad, cut]].concat();
    let found = run_tcp(&["checksum=yes"], &frames, 64);
    assert_eq!(
        (found.to_line().as_str(), found.dropped_blocks("checksum")),
        (">^abc|de|*2|$ <^$", 1)
    );
    assert_eq!(run_tcp(&[], &frames, 64).to_line(), ">^abc|Def|*1|$ <^$");
}

/// The checksum of a packet on its way covers the last address of the route.
#[test]
fn checksum_covers_the_final_target_of_a_route() {
    let segment = client_segment(0, 101, b"abc").bytes.split_off(34);
    let route = |checksum_target: &str, left: u8| {
        let segments = "fd00::9".parse::<std::net::Ipv6Addr>().unwrap().octets();
        let routing = [&[6, 2, 4, left, 0, 0, 0, 0][..], &segments].concat();
        let mut frame = Frame::ipv6(43, &[&routing[..], &segment].concat());
        frame.overwrite(14 + 8, &[0; 32]);
        let target = checksum_target.parse().unwrap();
        let source = std::net::Ipv6Addr::UNSPECIFIED.into();
        let length = segment.len() as u32;
        let sum = wire::checksum::pseudo_header_sum(source, target, 6, length).unwrap();
        let at = 14 + 40 + routing.len();
        frame.overwrite(at + 16, &sum.with_bytes(&segment).checksum().to_be_bytes());
        frame
    };
    let dropped = |frame| run_tcp(&["checksum=yes"], &[frame], 64).dropped_blocks("checksum");
    assert_eq!((dropped(route("fd00::9", 1)), dropped(route("::", 0))), (0, 0));
    assert_eq!((dropped(route("::", 1)), dropped(route("fd00::9", 0))), (1, 1));
}
