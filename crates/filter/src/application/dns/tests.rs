//! Tests of `dns` on literal messages: datagrams, connections segmented at every offset, gaps,
//! connections that end within a message, and random bytes.

use super::*;
use crate::application::test_support::{
    OutputBlock, TestPiece, client_hole, client_piece, run_filter,
};
use crate::testing::{Arena, Frame, Node, Space};
use wire::record::{Field, Record};

const NXDOMAIN_CLASS: u32 = RESPONSE_CLASS + 3;

/// Makes a message with one question about `name`, followed by `rest`.
fn build_message(
    id: u16,
    flags: u16,
    counts: [u16; 3],
    name: &[u8],
    kind: u16,
    rest: &[u8],
) -> Vec<u8> {
    let words = [id, flags, 1, counts[0], counts[1], counts[2]];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u16::to_be_bytes).collect();
    bytes.extend_from_slice(name);
    bytes.extend([kind.to_be_bytes(), [0, 1]].concat());
    bytes.extend_from_slice(rest);
    bytes
}

fn query_message(id: u16) -> Vec<u8> {
    build_message(id, 0x0100, [0; 3], b"\x03www\x07example\0", 28, b"")
}

fn answer_message(id: u16) -> Vec<u8> {
    let records = [
        &[0xc0, 12, 0, 5, 0, 1, 0, 0, 1, 0, 0, 4, 1, b'w', 0xc0, 16][..],
        &[0xc0, 41, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 192, 0, 2, 1],
    ];
    build_message(id, 0x8583, [2, 0, 0], b"\x03www\x07example\0", 1, &records.concat())
}

fn with_length_prefix(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u16).to_be_bytes()[..], message].concat()
}

fn first_and_last_flags(out: &[OutputBlock]) -> Vec<(bool, bool)> {
    out.iter()
        .map(|o| (o.flags.contains(BlockFlags::FIRST), o.flags.contains(BlockFlags::LAST)))
        .collect()
}

fn output_classes(out: &[OutputBlock]) -> Vec<u32> {
    out.iter().map(|o| o.class.0).collect()
}

/// An output block as a tuple: class, flags, bytes in view and, for a description, its contents.
type DatagramOutput = (Class, BlockFlags, Vec<u8>, Option<Vec<u8>>);

/// Runs `dns` over frames that each contain one datagram, with the payload at offset 42.
fn run_datagrams(frames: &[Frame]) -> Vec<DatagramOutput> {
    let arena = Arena::new(4 * frames.len());
    let mut space = Space::new(&arena);
    let mut node = Node::new(&DNS, &[]).unwrap();
    let mut batch = space.batch(frames);
    for l in lanes(batch.live_lanes()) {
        batch.set_block(l, batch.block(l).view_at(42, u32::MAX));
    }
    let out = node.process_batch(batch, &mut space, 0);
    let blocks = out.iter().flat_map(|batch| batch.blocks().collect::<Vec<_>>());
    blocks
        .map(|(_, block)| {
            let described = block.marks.is_description().then(|| block.frame.to_vec());
            (block.pointer.class, block.context.flags, block.bytes().to_vec(), described)
        })
        .collect()
}

#[test]
fn further_questions_are_counted() {
    let mut query = query_message(7);
    let question = query[12..].to_vec();
    let questions = |query: &[u8]| {
        let out = run_datagrams(&[Frame::udp(4000, 53, query)]);
        Record::parse(out[0].3.as_deref().unwrap()).unwrap().number(Field::Questions)
    };
    assert_eq!(questions(&query), None);
    query.extend(question);
    query[5] = 2;
    assert_eq!(questions(&query), Some(2));
}

#[test]
fn datagram_is_described_and_passed() {
    let (query, answer) = (query_message(7), answer_message(7));
    let frames = [
        Frame::udp(4000, 53, &query).at_time(5),
        Frame::udp(53, 4000, &answer).with_swapped_addresses(),
    ];
    let out = run_datagrams(&frames);
    let classes: Vec<u32> = out.iter().map(|(class, ..)| class.0).collect();
    assert_eq!(classes, [28, 28, NXDOMAIN_CLASS, NXDOMAIN_CLASS]);
    let flags = |n: usize| out[n].1;
    assert_eq!([flags(0), flags(1)], [BlockFlags::FIRST, BlockFlags::LAST]);
    assert_eq!((&out[1].2, &out[3].2), (&query, &answer));
    let record = Record::parse(out[0].3.as_deref().unwrap()).unwrap();
    let text = |record: &Record<'_>, field| {
        String::from_utf8(record.text(field).unwrap_or_default().to_vec()).unwrap()
    };
    assert_eq!(text(&record, Field::Name), "www.example");
    assert_eq!([text(&record, Field::Type), text(&record, Field::Class)], ["AAAA", "IN"]);
    assert_eq!([text(&record, Field::Flags), text(&record, Field::RcodeName)], ["rd", ""]);
    assert_eq!(record.text(Field::Client), Some(&[10, 0, 0, 1][..]));
    let number = |field| record.number(field);
    assert_eq!([number(Field::ClientPort), number(Field::ServerPort)], [Some(4000), Some(53)]);
    assert_eq!([number(Field::Time), number(Field::Id), number(Field::Opcode)], {
        [Some(5), Some(7), Some(0)]
    });
    assert_eq!([number(Field::Answer), number(Field::Rcode), number(Field::Answers)], [None; 3]);
    let record = Record::parse(out[2].3.as_deref().unwrap()).unwrap();
    assert_eq!(record.text(Field::Client), Some(&[10, 0, 0, 1][..]), "who asked");
    assert_eq!(record.number(Field::ClientPort), Some(4000));
    assert_eq!([text(&record, Field::Flags), text(&record, Field::RcodeName)], {
        ["aa rd ra", "NXDOMAIN"]
    });
    assert_eq!(record.number(Field::Answers), Some(2));
    assert_eq!((record.number(Field::Ttl), record.number(Field::Rcode)), (Some(30), Some(3)));
    let data = record.fields().filter(|(field, _)| *field == Field::Data);
    let data: Vec<_> = data.map(|(_, value)| value).collect();
    assert_eq!(data, [&b"w.example"[..], b"192.0.2.1"]);
}

#[test]
fn description_with_omitted_answers_is_marked() {
    let text = |length: usize| {
        let strings = vec![b'a'; length];
        let data: Vec<u8> =
            strings.chunks(255).flat_map(|it| [&[it.len() as u8][..], it].concat()).collect();
        let length = (data.len() as u16).to_be_bytes();
        [&[0xc0, 12, 0, 16, 0, 1, 0, 0, 1, 0][..], &length, &data].concat()
    };
    for (answers, length, is_cut) in
        [(16, 5, false), (17, 5, true), (1, 1000, false), (1, 1100, true)]
    {
        let rest = text(length).repeat(answers.into());
        let message = build_message(1, 0x8180, [answers, 0, 0], b"\x01a\0", 16, &rest);
        let out = run_datagrams(&[Frame::udp(53, 4000, &message)]);
        let record = Record::parse(out[0].3.as_deref().unwrap()).unwrap();
        assert_eq!(record.is_truncated(), is_cut, "{answers} answers of {length} bytes");
        assert_eq!(record.number(Field::Answers), Some(answers.into()));
    }
}

#[test]
fn invalid_messages_have_no_class() {
    let whole = query_message(1);
    let mut looping = whole.clone();
    looping[12] = 0xc0;
    looping[13] = 12;
    let short = |at: usize| Frame::udp(4000, 53, &answer_message(1)).truncated_to(42 + at);
    let frames = [
        Frame::udp(4000, 53, b"question"),
        Frame::udp(4000, 53, b"GET / HTTP/1.1\r\n\r\n"),
        Frame::udp(4000, 53, &looping),
        Frame::udp(4000, 53, &whole[..whole.len() - 1]),
        short(8),
        short(20),
        short(40),
        Frame::udp(4000, 53, b""),
    ];
    let mut why = Vec::new();
    let mut out = Vec::new();
    for frame in &frames {
        let arena = Arena::new(8);
        let mut space = Space::new(&arena);
        let mut node = Node::new(&DNS, &[]).unwrap();
        let mut batch = space.batch(std::slice::from_ref(frame));
        batch.set_block(0, batch.block(0).view_at(42, u32::MAX));
        let after = node.process_batch(batch, &mut space, 0);
        why.push(node.unanswered_reasons().find(|(_, n)| *n > 0).map(|(name, _)| name));
        let blocks = after.iter().flat_map(|batch| batch.blocks().collect::<Vec<_>>());
        out.extend(blocks.map(|(_, block)| (block.pointer.class.0, block.context.flags)));
    }
    let (not, malformed) = (Some("not dns"), Some("malformed"));
    let cut = Some("cut");
    // A message one byte too short for its question cannot be recognized as DNS.
    assert_eq!(why, [not, not, malformed, malformed, cut, cut, None, not]);
    let both = BlockFlags::FIRST.with(BlockFlags::LAST);
    assert_eq!(out[..6], [(0, both); 6]);
    assert_eq!(
        out[6..8],
        [(NXDOMAIN_CLASS, BlockFlags::FIRST), (NXDOMAIN_CLASS, BlockFlags::LAST)]
    );
}

#[test]
fn unusual_queries_are_recognized() {
    let mut inverse = query_message(1);
    inverse.truncate(12);
    inverse[2..8].copy_from_slice(&[0x09, 0, 0, 0, 0, 1]);
    inverse.extend(b"\0\0\x01\0\x01\0\0\0\x05\0\x04\x0a\0\0\x01");
    let odd = |flags: u16| {
        let mut query = query_message(1);
        query[2..4].copy_from_slice(&flags.to_be_bytes());
        query
    };
    for (message, class) in [(odd(0x0105), 28), (odd(0x4900), 28), (inverse, Class::ZERO.0)] {
        let out = run_datagrams(&[Frame::udp(4000, 53, &message)]);
        assert_eq!(out.iter().map(|(class, ..)| class.0).collect::<Vec<_>>(), [class; 2]);
        for cut in 1..message.len() {
            let wire = with_length_prefix(&message);
            let pieces = [
                client_piece(&wire[..cut]),
                client_piece(&wire[cut..]),
                client_piece(&with_length_prefix(&query_message(2))),
            ];
            let (out, unanswered) = run_filter(&DNS, &[], &pieces, None);
            assert!(unanswered.is_empty(), "{cut}");
            assert_eq!((out[0].class.0, out.last().unwrap().class.0), (class, 28), "{cut}");
        }
        let more = run_datagrams(&[Frame::udp(4000, 53, &[&message[..], b"x"].concat())]);
        assert_eq!(more[0].0.0, 0, "bytes behind it: it is something else");
    }
}

/// Checks real ONC RPC datagrams whose first bytes look like the header of a DNS response.
#[test]
fn remote_procedure_calls_are_not_dns() {
    let transaction = b"\x39\xc6\xad\x03";
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let call: Vec<u8> = words(&[0, 2, 100_000, 2, 3, 0, 0, 0, 0, 100_232, 10, 17, 0]);
    let reply: Vec<u8> = words(&[1, 0, 0, 0, 0, 32_773]);
    for body in [call, reply] {
        let out = run_datagrams(&[Frame::udp(111, 4000, &[&transaction[..], &body].concat())]);
        assert_eq!(out.iter().map(|(class, ..)| class.0).collect::<Vec<_>>(), [0]);
    }
}

#[test]
fn response_without_question_must_be_whole() {
    let response = |flags: u16, counts: [u16; 4], rest: &[u8]| {
        let words = [&[7, flags][..], &counts].concat();
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u16::to_be_bytes).collect();
        bytes.extend_from_slice(rest);
        run_datagrams(&[Frame::udp(53, 4000, &bytes)])[0].0.0
    };
    let record = [0, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 192, 0, 2, 1];
    assert_eq!(response(0x8180, [0, 1, 0, 0], &record), RESPONSE_CLASS);
    assert_eq!(response(0x8183, [0; 4], b""), NXDOMAIN_CLASS, "a header alone is a response");
    assert_eq!(response(0x8183, [0; 4], b"x"), 0, "a byte behind it");
    assert_eq!(response(0x8183, [0, 1, 0, 0], &[&record[..], b"x"].concat()), 0, "a byte behind");
    assert_eq!(response(0x8183, [0, 0, 2, 0], &record), 0, "a record too few");
    assert_eq!(response(0x9983, [0; 4], b""), 0, "an operation without a name");
    assert_eq!(response(0x8180, [0, 1, 0, 0], &[0; 11]), 0, "type 0 in class 0");
    let keep_alive = [0, 1, 0, 8, 0, 0, 0, 10, 0, 0, 0, 20];
    assert_eq!(response(0xb000, [0; 4], &keep_alive), RESPONSE_CLASS, "a stateful operation");
}

#[test]
fn truncated_message_is_marked_incomplete() {
    let out = run_datagrams(&[Frame::udp(53, 4000, &answer_message(1)).truncated_to(42 + 40)]);
    let record = Record::parse(out[0].3.as_deref().unwrap()).unwrap();
    assert_eq!(record.number(Field::Incomplete), Some(1));
    assert_eq!((record.number(Field::Answers), record.text(Field::Data)), (Some(2), None));
}

/// Segmentation affects neither the messages nor their bytes.
#[test]
fn messages_are_the_same_for_any_segmentation() {
    let wire = [
        with_length_prefix(&query_message(1)),
        with_length_prefix(&answer_message(2)),
        with_length_prefix(&query_message(3)),
    ]
    .concat();
    for step in [1, 2, 3, 5, 17, 33, 40, 63, wire.len()] {
        let mut pieces: Vec<TestPiece> = wire.chunks(step).map(client_piece).collect();
        pieces.push(client_piece(b"").with_end_flag());
        let (out, unanswered) = run_filter(&DNS, &[], &pieces, None);
        assert_eq!(unanswered, [], "{step}");
        let described = out.iter().filter(|o| o.description_fields.is_some());
        let described: Vec<_> = described.map(|o| (o.class.0, o.number(Field::Id))).collect();
        assert_eq!(described, [(28, Some(1)), (NXDOMAIN_CLASS, Some(2)), (28, Some(3))], "{step}");
        let bytes: Vec<u8> = out.iter().flat_map(|o| o.bytes.clone()).collect();
        assert_eq!(
            bytes,
            [query_message(1), answer_message(2), query_message(3)].concat(),
            "{step}"
        );
        let starts = out.iter().filter(|o| o.flags.contains(BlockFlags::FIRST)).count();
        let ends = out.iter().filter(|o| o.flags.contains(BlockFlags::LAST)).count();
        assert_eq!((starts, ends), (3, 3), "{step}");
        // Moving the state at any point changes nothing.
        for at in [pieces.len() / 3, pieces.len() / 2, pieces.len() - 1] {
            assert_eq!(run_filter(&DNS, &[], &pieces, Some(at)).0, out, "{step} {at}");
        }
    }
    let one = run_filter(&DNS, &[], &[client_piece(&wire).with_end_flag()], None).0;
    assert_eq!(first_and_last_flags(&one), [(true, false), (false, true)].repeat(3));
}

#[test]
fn a14_segments_without_session_are_not_answered() {
    let (a, b) = (with_length_prefix(&query_message(1)), with_length_prefix(&answer_message(1)));
    let pieces = [
        client_piece(&a[..9]).in_session(0),
        client_piece(&b[..20]).in_session(0),
        client_hole(3).in_session(0),
        client_piece(&a),
    ];
    let (out, unanswered) = run_filter(&DNS, &[], &pieces, None);
    assert_eq!(unanswered, [("not dns", 3)], "none goes on with what another begins");
    assert_eq!(out.iter().filter(|o| o.description_fields.is_some()).count(), 1);
}

#[test]
fn directions_and_sessions_have_separate_state() {
    let (a, b) = (with_length_prefix(&query_message(1)), with_length_prefix(&answer_message(1)));
    let pieces = [
        client_piece(&a[..9]),
        client_piece(&b[..20]).sent_by_server(),
        client_piece(&a[..30]).in_session(2),
        client_piece(&b[20..]).sent_by_server(),
        client_piece(&a[9..]),
        client_piece(&a[30..]).in_session(2),
    ];
    let (out, unanswered) = run_filter(&DNS, &[], &pieces, None);
    assert_eq!(unanswered, []);
    let described: Vec<_> = out.iter().filter(|o| o.description_fields.is_some()).collect();
    let described: Vec<_> =
        described.iter().map(|o| (o.session, o.class.0, o.number(Field::Time))).collect();
    assert_eq!(described, [(1, NXDOMAIN_CLASS, Some(1)), (1, 28, Some(0)), (2, 28, Some(2))]);
}

#[test]
fn gap_loses_only_its_message() {
    let wire = [
        with_length_prefix(&query_message(1)),
        with_length_prefix(&answer_message(2)),
        with_length_prefix(&query_message(3)),
    ]
    .concat();
    let (one, two) = (2 + query_message(1).len(), 2 + answer_message(2).len());
    let hole = |from: usize, length: usize| {
        [
            client_piece(&wire[..from]),
            client_hole(length as u32),
            client_piece(&wire[from + length..]),
        ]
    };
    let ids = |pieces: &[TestPiece]| {
        let (out, unanswered) = run_filter(&DNS, &[], pieces, None);
        let ids: Vec<_> = out.iter().filter_map(|o| o.number(Field::Id)).collect();
        let gaps = out.iter().filter(|o| o.length > 0 && o.bytes.is_empty()).count();
        assert_eq!(gaps, 1, "a hole goes on");
        (ids, unanswered.iter().map(|(why, _)| *why).collect::<Vec<_>>())
    };
    assert_eq!(ids(&hole(one + 10, 20)), (vec![1, 3], vec!["gap"]), "inside");
    assert_eq!(ids(&hole(one + 10, two - 10)), (vec![1, 3], vec!["gap"]), "up to its end");
    assert_eq!(ids(&hole(one + 10, two)), (vec![1], vec!["gap"]), "beyond");
    assert_eq!(ids(&hole(one + 1, 4)), (vec![1], vec!["gap"]), "where a length stands");
    // A hole of one or several whole messages.
    assert_eq!(ids(&hole(one, two)), (vec![1, 3], vec!["gap"]), "all of it");
    assert_eq!(ids(&hole(0, one + two)), (vec![3], vec!["gap"]), "from the first");
    assert_eq!(
        ids(&hole(one - 5, two + 5)),
        (vec![3], vec!["gap"]),
        "and the end of the one before"
    );
    let begun = [
        &hole(one, two)[..2],
        &[client_piece(&wire[one + two..][..20]), client_piece(&wire[one + two + 20..])],
    ]
    .concat();
    assert_eq!(ids(&begun), (vec![1, 3], vec!["gap"]), "in pieces");
    let noise = [
        &hole(one, two)[..2],
        &[
            client_piece(b"no message"),
            client_piece(&with_length_prefix(&query_message(3))).with_end_flag(),
        ],
    ]
    .concat();
    assert_eq!(ids(&noise), (vec![1, 3], vec!["gap"]), "what is no message goes by");
    let (out, _) = run_filter(&DNS, &[], &hole(0, 1), None);
    assert_eq!(output_classes(&out), [0, 0], "at the very beginning");
}

#[test]
fn other_protocol_is_recognized_by_its_first_bytes() {
    let pieces = [
        client_piece(b"GET / HTTP/1.1\r\n"),
        client_piece(b"\r\n"),
        client_piece(b"HTTP/1.1 200\r\n").sent_by_server(),
    ];
    let (out, unanswered) = run_filter(&DNS, &[], &pieces, None);
    assert_eq!(unanswered, [("not dns", 3)]);
    let bytes: Vec<u8> = out.iter().flat_map(|o| o.bytes.clone()).collect();
    assert_eq!(bytes, b"GET / HTTP/1.1\r\n\r\nHTTP/1.1 200\r\n", "nothing is left out");
    assert_eq!(first_and_last_flags(&out), [(true, true); 3]);
    let pieces = [
        client_piece(&with_length_prefix(&query_message(1))),
        client_piece(b"\0\x03abc"),
        client_piece(b"more"),
    ];
    let (out, unanswered) = run_filter(&DNS, &[], &pieces, None);
    assert_eq!(unanswered, [("malformed", 2)]);
    assert_eq!(output_classes(&out), [28, 28, 0, 0]);
}

#[test]
fn other_protocol_passes_in_full_for_any_segmentation() {
    for text in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\0\x03abcdefgh", b"\x02", b"\0\x40\0"] {
        for step in 1..text.len() + 1 {
            let mut pieces: Vec<TestPiece> = text.chunks(step).map(client_piece).collect();
            pieces.push(client_piece(b"").with_end_flag());
            for moved in [None, Some(1), Some(pieces.len() / 2), Some(pieces.len() - 1)] {
                let (out, unanswered) = run_filter(&DNS, &[], &pieces, moved);
                let bytes: Vec<u8> = out.iter().flat_map(|o| o.bytes.clone()).collect();
                assert_eq!(bytes, text, "{step} {moved:?}");
                assert!(out.iter().all(|o| o.class.0 == 0) && unanswered.len() == 1, "{step}");
            }
        }
    }
}

#[test]
fn incomplete_message_at_the_end_is_released() {
    let wire = with_length_prefix(&query_message(1));
    let (out, unanswered) = run_filter(
        &DNS,
        &[],
        &[client_piece(&wire[..20]), client_piece(b"").with_end_flag()],
        None,
    );
    assert_eq!((output_classes(&out), unanswered), (vec![0], vec![("cut", 1)]));
    let (out, unanswered) = run_filter(&DNS, &[], &[client_piece(&wire[..20])], None);
    assert_eq!((output_classes(&out), unanswered), (vec![0], vec![("cut", 1)]), "with the path");
    let many: Vec<TestPiece> =
        (1..9).map(|session| client_piece(&wire[..20]).in_session(session)).collect();
    let (_, unanswered) = run_filter(&DNS, &["sessions=5"], &many, None);
    assert_eq!(unanswered, [("cut", 5), ("forgotten", 3)]);
}

#[test]
fn message_in_too_many_pieces_is_released() {
    let long = build_message(
        1,
        0x0100,
        [0, 0, 1],
        b"\0",
        1,
        &[&[0, 0, 16, 0, 1, 0, 0, 0, 0, 1, 0][..], &[0; 256]].concat(),
    );
    let wire = [with_length_prefix(&long), with_length_prefix(&query_message(2))].concat();
    let pieces: Vec<TestPiece> = wire.chunks(1).map(client_piece).collect();
    let (out, unanswered) = run_filter(&DNS, &[], &pieces, None);
    assert_eq!(unanswered, [("too many pieces", 2 + long.len() as u64)]);
    let ids: Vec<_> = out.iter().filter_map(|o| o.number(Field::Id)).collect();
    assert_eq!(ids, [2]);
}

#[test]
fn classes_are_named_by_types_and_codes() {
    let named = |name: &str| CLASS_NAMES.iter().find(|(n, _)| *n == name).map(|(_, class)| *class);
    assert_eq!([named("a"), named("aaaa"), named("https")], [Some(1), Some(28), Some(65)]);
    assert_eq!([named("noerror"), named("nxdomain")], [Some(65536), Some(65539)]);
}

#[test]
fn bytes_after_fin_are_released_with_the_connection() {
    let whole = with_length_prefix(&query_message(1));
    let part = &whole[..20];
    let ends = client_piece(&whole).sent_by_server().with_end_flag();
    let pieces = [
        client_piece(&whole).sent_by_server(),
        client_piece(&whole).with_end_flag(),
        client_piece(part),
        ends,
    ];
    let (_, unanswered) = run_filter(&DNS, &[], &pieces, None);
    assert_eq!(unanswered, [("cut", 1)]);
}

#[test]
fn random_bytes_keep_the_ledger_balanced() {
    let mut random = testkit::Random::with_replayable_seed();
    let good = [
        with_length_prefix(&query_message(1)),
        with_length_prefix(&answer_message(2)),
        with_length_prefix(&query_message(3)),
    ]
    .concat();
    for _ in 0..400 {
        let mut wire = good.repeat(2);
        let flips = random.within(0..4);
        random.flip_bits(&mut wire, flips);
        let mut pieces = Vec::new();
        while !wire.is_empty() {
            let rest = wire.split_off(random.within(1..80).min(wire.len()));
            let piece = match random.below(12) {
                0 => client_hole(wire.len() as u32),
                1 => client_piece(&wire).sent_by_server(),
                _ => client_piece(&wire),
            };
            pieces.push(if random.below(20) == 0 { piece.with_end_flag() } else { piece });
            wire = rest;
        }
        let moved = random.within(0..pieces.len());
        let (out, _) = run_filter(&DNS, &[], &pieces, None);
        assert_eq!(run_filter(&DNS, &[], &pieces, Some(moved)).0, out);
    }
}

#[test]
fn padding_after_a_short_udp_header_is_no_message() {
    let short = Frame::ipv4(17, &[0, 53, 0, 53]);
    let mut padded = short.clone();
    padded.bytes.extend([0, 40, 0, 0, 7, 7, 7, 7]);
    let filters: [(&'static Description, &[&str]); 2] =
        [(&crate::network::ip::IP, &[]), (&DNS, &[])];
    let why = |frame: &Frame| {
        crate::testing::answer_through_chain(&filters, std::slice::from_ref(frame))[0].reason
    };
    assert_eq!(why(&padded), why(&short));
}
