//! Tests of the signatures on texts segmented at every offset, on similar texts that must not
//! match, and on bundled captures.

use super::*;
use crate::testing::{Fragment, Node, run_fragments};
use testkit::Random;

const RECOGNIZERS: [&Description; 4] = [&SSH, &RTSP, &MPEG, &TELNET];

fn make_node(description: &'static Description) -> Node {
    Node::new(description, &[]).unwrap()
}

fn fragment_classes(node: &mut Node, fragments: &[Fragment]) -> Vec<u32> {
    run_fragments(node, fragments).iter().map(|answer| answer.class.0).collect()
}

/// Makes a transport stream of `count` packets.
fn mpeg_transport_stream(count: usize) -> Vec<u8> {
    let packet = |number: usize| {
        let mut packet = vec![0xaa; 188];
        packet[..4].copy_from_slice(&[0x47, 0x41, 0, 0x10 | number as u8 & 15]);
        packet
    };
    (0..count).flat_map(packet).collect()
}

fn concatenate(before: &[u8], rest: &[u8]) -> Vec<u8> {
    [before, rest].concat()
}

/// Returns sample texts of each protocol: the catalog entry, the direction flags, the text, and the
/// number of bytes after which the protocol is certain.
fn signature_samples() -> Vec<(&'static Description, BlockFlags, Vec<u8>, usize)> {
    let (client, server) = (BlockFlags::NONE, BlockFlags::BACKWARD);
    let text = |bytes: &[u8]| bytes.to_vec();
    let reply = b"HTTP/1.1 200 OK\r\nContent-Type: video/mp2t\r\n\r\n";
    let rtp = [0x80, 0x21, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3];
    vec![
        (&SSH, client, text(b"SSH-2.0-OpenSSH_9.2\r\n...."), 9),
        (&SSH, server, text(b"SSH-1.99-x\n"), 10),
        (&SSH, server, text(b"Halt!\r\n\r\nSure.\r\nSSH-2.0-OpenSSH\r\n"), 25),
        (&RTSP, client, text(b"OPTIONS rtsp://a/b RTSP/1.0\r\nCSeq: 1\r\n\r\n"), 29),
        (&RTSP, client, text(b"\r\nGET_PARAMETER * RTSP/2.0\n\n"), 27),
        (&RTSP, server, text(b"RTSP/1.0 200 OK\r\n"), 13),
        (&TELNET, server, text(b"\xff\xfd\x18\xff\xfd\x20\xff\xfd\x23"), 6),
        (&TELNET, client, text(b"\xff\xfb\x18\xff\xfa\x18\0xterm\xff\xf0"), 5),
        (&TELNET, server, text(b"\xff\xfb\x01\r\nlogin: \xff\xfb\x03"), 15),
        (&MPEG, server, mpeg_transport_stream(4), 377),
        (&MPEG, server, concatenate(reply, &mpeg_transport_stream(3)), reply.len() + 377),
        (
            &MPEG,
            server,
            concatenate(reply, &concatenate(b"2f0\r\n", &mpeg_transport_stream(4))),
            reply.len() + 5 + 377,
        ),
        (&MPEG, client, concatenate(&rtp, &mpeg_transport_stream(7)), 12 + 377),
        (&MPEG, client, text(&[0, 0, 1, 0xba, 0x44, 0, 4, 0]), 5),
        (&MPEG, client, text(&[0, 0, 1, 0xba, 0x21, 0, 1, 0]), 5),
        (&MPEG, client, text(&[0, 0, 1, 0xe0, 7, 0xec, 0x84, 0xc0, 0x0a, 0x37]), 9),
        (&MPEG, client, text(&[0, 0, 1, 0xb3, 0x16, 0, 0xf0, 0x15, 0xff, 0xff, 0xe0, 0x18]), 11),
        (&MPEG, client, text(&[0, 0, 1, 0xb0, 1, 0, 0, 1, 0xb5, 9]), 9),
        (&MPEG, client, text(&[0, 0, 0, 1, 9, 0xf0, 0, 0, 0, 1, 0x67, 0x64, 0]), 12),
        (
            &MPEG,
            client,
            concatenate(
                &rtp[..1],
                &concatenate(&[0x20], &concatenate(&rtp[2..], &[0, 0, 0, 0, 0, 0, 1, 9])),
            ),
            20,
        ),
    ]
}

/// Returns texts that resemble one of the four protocols without belonging to it.
fn similar_texts() -> Vec<Vec<u8>> {
    let text = |bytes: &[u8]| bytes.to_vec();
    let late = concatenate(b"HTTP/1.1 200 OK\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n");
    vec![
        text(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        text(b"GET rtsp://a/ HTTP/1.1\r\n\r\nRTSP/1.0 200 OK\r\n"),
        text(b"SSH is a protocol\r\n"),
        text(b"SSH-2.0\r\nSSH-2.0-x"),
        text(b"SIP/2.0 200 OK\r\n"),
        text(b"RTSP/1.0 900\r\n"),
        text(b"\xff\xfb\x90\x64\0\0\0\xff\xfb\x90\x64"),
        text(b"\xff\xfe1\0\xff\xfe1\0"),
        text(b"\xff\xfb\x01 and nothing more"),
        text(b"\xff\xd8\xff\xe0\0\x10JFIF"),
        text(b"G is the first letter of GET"),
        concatenate(b"\x47\x40\x00\x00", &mpeg_transport_stream(3)),
        concatenate(&mpeg_transport_stream(1)[..187], &mpeg_transport_stream(3)),
        text(&[0, 0, 1, 0, 1, 0, 0x20, 0x20]),
        text(&[0, 0, 1, 0xba, 0x80]),
        text(&[0, 0, 1, 0xb3, 0x16, 0, 0xf0, 0x19, 0xff, 0xff, 0xe0]),
        late,
        vec![0; 20_000],
        b"a line without an end ".repeat(1000),
        b"line\n".repeat(5000),
    ]
}

#[test]
fn deciding_byte_is_the_same_for_any_segmentation() {
    for other in RECOGNIZERS {
        let mut filter = make_node(other);
        for (description, way, text, decides) in signature_samples() {
            for at in 0..=text.len() {
                let cut: Vec<Fragment> = Fragment::split_at(7, &text, &[at]);
                let cut: Vec<Fragment> =
                    cut.into_iter().map(|piece| piece.with_flags(way)).collect();
                let yes = u32::from(std::ptr::eq(other, description));
                let first = if at >= decides { yes } else { 0 };
                assert_eq!(
                    fragment_classes(&mut filter, &cut),
                    [first, yes],
                    "`{}` cut at {at}: {}",
                    other.name,
                    text.escape_ascii()
                );
            }
            assert_eq!(filter.filter.state().map(|state| state.session_keys()), Some(vec![]));
        }
    }
}

#[test]
fn segmentation_and_state_moves_keep_the_answers() {
    let mut random = Random::with_replayable_seed();
    let samples = signature_samples();
    // Two instances of each filter, between which the state moves.
    let mut pairs: Vec<[Node; 2]> =
        RECOGNIZERS.iter().map(|filter| [make_node(filter), make_node(filter)]).collect();
    for _ in 0..2000 {
        let (description, way, text, decides) = random.pick(&samples);
        let own =
            RECOGNIZERS.iter().position(|filter| std::ptr::eq(*filter, *description)).unwrap();
        let [one, two] = &mut pairs[own];
        let mut places: Vec<usize> =
            (0..random.within(0..9)).map(|_| random.within(0..text.len() + 1)).collect();
        places.sort_unstable();
        let mut end = 0;
        for piece in Fragment::split_at(3, text, &places) {
            end += piece.bytes.len();
            let class = fragment_classes(one, &[piece.with_flags(*way)]);
            assert_eq!(class, [u32::from(end >= *decides)], "{places:?} {}", text.escape_ascii());
            two.restore_sessions(one.take_sessions()).unwrap();
            std::mem::swap(one, two);
        }
    }
}

#[test]
fn similar_texts_are_not_recognized() {
    for description in RECOGNIZERS {
        let mut filter = make_node(description);
        for text in similar_texts() {
            let brief = text.get(..40).unwrap_or(&text).escape_ascii().to_string();
            for way in [BlockFlags::NONE, BlockFlags::BACKWARD] {
                let whole = Fragment::new(0, &text).with_flags(way);
                assert_eq!(
                    fragment_classes(&mut filter, &[whole]),
                    [0],
                    "`{}`: {brief}",
                    description.name
                );
                let cut: Vec<Fragment> =
                    Fragment::split_at(1, &text, &[text.len() / 3, text.len() / 2]);
                let cut: Vec<Fragment> =
                    cut.into_iter().map(|piece| piece.with_flags(way)).collect();
                let found = fragment_classes(&mut filter, &cut);
                assert_eq!(found, [0, 0, 0], "`{}`: {brief}", description.name);
            }
        }
    }
}

#[test]
fn match_in_one_direction_identifies_the_session() {
    let client = |bytes: &[u8]| Fragment::new(1, bytes);
    let server = |bytes: &[u8]| Fragment::new(1, bytes).with_flags(BlockFlags::BACKWARD);
    let mut ssh = make_node(&SSH);
    let found = fragment_classes(
        &mut ssh,
        &[
            server(b"SS"),
            client(b"hello"),
            server(b"H-2.0-x\r\n"),
            client(b"more"),
            server(b"more").with_flags(BlockFlags::SESSION_END),
            client(b"more"),
            client(b"").with_flags(BlockFlags::SESSION_END),
        ],
    );
    assert_eq!(found, [0, 0, 1, 1, 1, 1, 1]);
    let why: Vec<_> = ssh.unanswered_reasons().collect();
    assert_eq!(why, [("undecided", 1), ("not recognised", 1)]);
    assert_eq!(ssh.filter.state().map(|state| state.session_keys()), Some(vec![]));
}

#[test]
fn text_from_midstream_is_not_recognized() {
    let pieces = [
        Fragment::new(1, b"SSH-").with_flags(BlockFlags::FIRST),
        Fragment::hole(1, 1),
        Fragment::new(1, b"2.0-x\r\n"),
        Fragment::hole(2, 3),
        Fragment::new(2, b"SSH-2.0-x\r\n"),
        Fragment::new(3, b"SSH-2.0-x\r\n"),
        Fragment::hole(3, 3),
        Fragment::new(3, b"later"),
    ];
    assert_eq!(fragment_classes(&mut make_node(&SSH), &pieces), [0, 0, 0, 0, 0, 1, 1, 1]);
}

#[test]
fn each_message_is_recognized_separately() {
    let back = |piece: Fragment| piece.with_flags(BlockFlags::BACKWARD);
    let found = fragment_classes(
        &mut make_node(&MPEG),
        &[
            back(Fragment::description(1)),
            back(Fragment::new(1, &mpeg_transport_stream(2))),
            back(Fragment::new(1, &mpeg_transport_stream(1))),
            Fragment::description(1),
            Fragment::new(1, b"GET / HTTP/1.1\r\n\r\n").with_flags(BlockFlags::LAST),
            back(Fragment::new(1, &mpeg_transport_stream(1)).with_flags(BlockFlags::LAST)),
            back(Fragment::description(1)),
            back(Fragment::new(1, b"plain text").with_flags(BlockFlags::LAST)),
        ],
    );
    assert_eq!(found, [0, 0, 1, 0, 0, 1, 0, 0]);
}

#[test]
fn mpeg_datagram_may_end_at_a_packet_boundary() {
    let mut mpeg = make_node(&MPEG);
    let mut whole = |bytes: &[u8]| fragment_classes(&mut mpeg, &[Fragment::new(0, bytes)]);
    assert_eq!(whole(&mpeg_transport_stream(7)), [1]);
    assert_eq!(whole(&mpeg_transport_stream(2)), [1]);
    assert_eq!(whole(&mpeg_transport_stream(1)), [0]);
    assert_eq!(whole(&mpeg_transport_stream(2)[..375]), [0]);
}

#[test]
fn packets_are_searched_after_their_headers() {
    use crate::testing::{Arena, Frame, Space};
    let arena = Arena::new(8);
    let mut space = Space::new(&arena);
    let mut mpeg = make_node(&MPEG);
    let frames = [
        Frame::udp(5004, 5004, &mpeg_transport_stream(3)),
        Frame::tcp(9, 80, &mpeg_transport_stream(3)),
        Frame::udp(5004, 5004, b"nothing"),
    ];
    let batch = space.batch(&frames);
    let after = make_node(&crate::network::ip::IP).process_batch(batch, &mut space, 0);
    let mut classes = Vec::new();
    for batch in after {
        let after = mpeg.process_batch(batch, &mut space, 0);
        classes.extend(after.iter().flat_map(|it| it.blocks().map(|(_, b)| b.pointer.class.0)));
    }
    assert_eq!(classes, [1, 1, 0]);
}

#[test]
fn sessions_beyond_the_maximum_evict_others() {
    let mut filter = Node::new(&TELNET, &["sessions=4"]).unwrap();
    let many: Vec<Fragment> = (1..60).map(|session| Fragment::new(session, b"\xff")).collect();
    fragment_classes(&mut filter, &many);
    assert_eq!(filter.counts.counters, [55]);
    assert_eq!(filter.filter.state().map(|state| state.session_keys().len()), Some(4));
}

#[test]
fn noise_and_forged_state_never_panic() {
    let mut random = Random::with_replayable_seed();
    for description in RECOGNIZERS {
        let mut filter = make_node(description);
        for _ in 0..500 {
            let length = random.within(0..60);
            let mut piece = Fragment::new(random.below(5) as u32, &random.bytes(length));
            piece.flags = BlockFlags(random.next_u64() as u16);
            piece.missing = if random.one_in(9) { random.next_u64() as u32 % 5000 } else { 0 };
            piece.is_description = piece.missing == 0 && random.one_in(9);
            run_fragments(&mut filter, &[piece]);
        }
        let mut saved = filter.take_sessions();
        saved.iter_mut().for_each(|moved| moved.bytes = random.bytes(moved.bytes.len()));
        filter.restore_sessions(saved).unwrap();
        for session in 1..5 {
            run_fragments(&mut filter, &[Fragment::new(session, b"SSH-2.0-x")]);
        }
    }
}
