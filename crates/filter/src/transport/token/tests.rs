//! Tests of `token`: valid, forged, replayed and truncated tokens, and the format compared with an
//! independent implementation.

use super::TOKEN;
use super::token_writer::write_token;
use crate::testing::{Arena, Frame, Node, Space, TEST_KEY, answer_frames, parse_arguments};
use abi::Class;
use ebpf::emit::{self, ReturnConversion, Target};
use ebpf::exam;
use ebpf::interpret::{Machine, Packet};
use ebpf::{FilterSpan, Hook};

const KEY_ARGUMENT: &str = "key=any";
const PAYLOAD_TEXT: &[u8] = b"priority please";

fn token_datagram(number: u64) -> Frame {
    let mut frame = Frame::udp(4000, 53, &[&[0; 16], PAYLOAD_TEXT].concat());
    write_token(&mut frame.bytes, &TEST_KEY, number, 64);
    frame
}

fn unanswered_reasons(words: &[&str], frames: &[Frame]) -> Vec<Option<&'static str>> {
    answer_frames(&TOKEN, words, frames).iter().map(|answer| answer.reason).collect()
}

/// The expected tag was computed by another implementation of SipHash, from the format in the
/// module comment of `token`.
#[test]
fn h22_tag_matches_the_documented_format() {
    let token = [&[0, 0, 0, 0, 0, 0, 0, 7], &0x1001_4a64_35e1_4345_u64.to_be_bytes()[..]].concat();
    let mut four = Frame::udp(4000, 53, &[&token, PAYLOAD_TEXT].concat());
    four.overwrite(26, &[192, 0, 2, 1, 198, 51, 100, 2]);
    let token = [&[0, 0, 0, 0, 0, 0, 0, 7], &0x1bdc_1bf1_7ed8_33d8_u64.to_be_bytes()[..]].concat();
    let payload = [&token, PAYLOAD_TEXT].concat();
    let mut six = Frame::ipv6(17, &Frame::udp(4000, 53, &payload).bytes[34..]);
    let address = |last| [&[0x20, 1, 0x0d, 0xb8][..], &[0; 11], &[last]].concat();
    six.overwrite(22, &[address(1), address(2)].concat());
    assert_eq!(unanswered_reasons(&[KEY_ARGUMENT], &[four]), [None]);
    assert_eq!(unanswered_reasons(&[KEY_ARGUMENT, "covers=4"], &[six.clone()]), [None]);
    assert_eq!(unanswered_reasons(&[KEY_ARGUMENT], &[six]), [Some("forged")]);
}

#[test]
fn h22_data_after_a_valid_token_is_viewed() {
    let mut padded = token_datagram(2);
    padded.bytes.extend([0; 9]);
    for answer in answer_frames(&TOKEN, &[KEY_ARGUMENT], &[token_datagram(1), padded]) {
        assert_eq!((answer.class, answer.view, &answer.bytes[..]), (Class::YES, 58, PAYLOAD_TEXT));
    }
}

#[test]
fn h22_tag_depends_on_every_covered_bit() {
    let good = token_datagram(1);
    // Addresses and ports; the number, the tag and the data.
    for at in (26..38).chain(42..good.bytes.len()) {
        for bit in 0..8 {
            let mut wrong = good.clone();
            wrong.bytes[at] ^= 1 << bit;
            assert_eq!(
                unanswered_reasons(&[KEY_ARGUMENT], &[wrong, good.clone()]),
                [Some("forged"), None],
                "{at}.{bit}"
            );
        }
    }
    let last = good.bytes.len() - 1;
    let mut beyond = good;
    beyond.bytes[last] ^= 1;
    write_token(&mut beyond.bytes, &TEST_KEY, 1, PAYLOAD_TEXT.len() - 1);
    beyond.bytes[last] ^= 1;
    assert_eq!(
        unanswered_reasons(&[KEY_ARGUMENT, "covers=14"], &[beyond]),
        [None],
        "what is not covered may be anything"
    );
}

#[test]
fn h22_token_number_is_accepted_once_in_any_order() {
    let passes = |numbers: &[u64]| {
        let frames: Vec<Frame> = numbers.iter().map(|number| token_datagram(*number)).collect();
        unanswered_reasons(&[KEY_ARGUMENT], &frames).iter().map(Option::is_none).collect::<Vec<_>>()
    };
    assert_eq!(passes(&[1, 2, 2, 1, 5, 3, 4]), [true, true, false, false, true, true, true]);
    assert_eq!(passes(&[0]), [false], "numbers begin with 1");
    assert_eq!(passes(&[300, 44, 45, 301]), [true, false, true, true], "256 behind is too late");
    assert_eq!(passes(&[u64::MAX, u64::MAX - 1, u64::MAX]), [true, true, false]);
    // A forged number does not use up the real one.
    let mut forged = token_datagram(9);
    forged.bytes[57] ^= 1;
    let again =
        unanswered_reasons(&[KEY_ARGUMENT], &[forged, token_datagram(9), token_datagram(9)]);
    assert_eq!(again, [Some("forged"), None, Some("replayed")]);
}

#[test]
fn h22_missing_token_has_its_reason() {
    let short = Frame::udp(4000, 53, &[0; 15]);
    let cut = token_datagram(1).truncated_to(42 + 16 + 3);
    let covered = token_datagram(2).truncated_to(42 + 16 + 3);
    let mut later = token_datagram(3);
    later.bytes[14 + 7] = 1;
    let frames = [short, cut, later, Frame::tcp(1, 2, &[0; 40]), Frame::ethernet(&[8, 6, 0, 1])];
    let found = unanswered_reasons(&[KEY_ARGUMENT], &frames);
    assert_eq!(found, ["no token", "cut", "fragment", "not udp", "not ip"].map(Some));
    let mut enough = covered;
    write_token(&mut enough.bytes, &TEST_KEY, 2, 3);
    assert_eq!(
        unanswered_reasons(&[KEY_ARGUMENT, "covers=3"], &[enough]),
        [None],
        "all that is covered is here"
    );
}

#[test]
fn h22_used_numbers_move_with_the_filter() {
    let is_accepted = |node: &mut Node, number| {
        let arena = Arena::new(1);
        let mut space = Space::new(&arena);
        let batch =
            node.process_batch(space.batch(&[token_datagram(number)]), &mut space, 0).remove(0);
        batch.lanes_with_class(Class::is_answered) != 0
    };
    let mut node = Node::new(&TOKEN, &[KEY_ARGUMENT]).unwrap();
    assert!(is_accepted(&mut node, 7));
    let mut moved = Node::new(&TOKEN, &[KEY_ARGUMENT]).unwrap();
    moved.restore_sessions(node.take_sessions()).unwrap();
    assert!(!is_accepted(&mut moved, 7) && is_accepted(&mut moved, 8));
}

/// As the fallback of its twin, the filter does not know the used token numbers, so it lets no
/// datagram pass.
#[test]
fn h22_fallback_of_a_twin_is_unsure_of_every_datagram() {
    let given = parse_arguments(&TOKEN, &[KEY_ARGUMENT]).unwrap().with_fallback(true);
    let mut node = Node::new(&TOKEN, &[KEY_ARGUMENT]).unwrap();
    node.filter = TOKEN.constructor.unwrap()(&given).unwrap();
    let arena = Arena::new(1);
    let mut space = Space::new(&arena);
    let batch = node.process_batch(space.batch(&[token_datagram(1)]), &mut space, 0).remove(0);
    assert_eq!(batch.lanes_with_class(Class::is_answered), 0);
    assert_eq!(node.unanswered_reasons().find(|(_, count)| *count > 0), Some(("unsure", 1)));
}

/// A twin of `token` whose tag covers the maximum number of bytes must compile for every hook, with
/// and without CAP_PERFMON. A larger number of bytes must be rejected.
#[test]
fn h22_program_covers_at_most_128_bytes() {
    let program = |target: Target, covers: &str| {
        let given = parse_arguments(&TOKEN, &[KEY_ARGUMENT, covers]).unwrap();
        let emit = TOKEN.emit_twin.unwrap();
        emit::program(target, ReturnConversion::Answer, |s, on, out| {
            s.emit_twin(FilterSpan::new("token", 0, 5), emit, &given, on, out)
        })
    };
    for place in [Hook::Tc, Hook::Xdp, Hook::Socket, Hook::Cgroup] {
        for target in [Target::from(place), Target::without_perfmon(place)] {
            let large = program(target, "covers=128").unwrap();
            let mut frame = Frame::udp(4000, 53, &[7; 160]).bytes;
            write_token(&mut frame, &TEST_KEY, 1, 128);
            let packet = exam::packet_at_hook(&Packet::new(&frame), place).unwrap();
            let ran = Machine::for_program(&large).run(&large.code, place, &packet).unwrap();
            assert_eq!(ran as u32, 1, "{target:?}");
            let why = program(target, "covers=129").unwrap_err();
            assert!(why.to_string().contains("more than 128 bytes"), "{why}");
        }
    }
}

#[test]
fn h22_filter_is_refused_without_a_key_reader() {
    let given = parse_arguments(&TOKEN, &[KEY_ARGUMENT]).unwrap().with_key_reader(None);
    let mistake = TOKEN.constructor.unwrap()(&given).expect_err("no key");
    assert_eq!(mistake.parameter, Some("key"));
    assert!(mistake.message.contains("the process of their user"), "{mistake}");
    assert!(
        parse_arguments(&TOKEN, &[]).is_err()
            && parse_arguments(&TOKEN, &[KEY_ARGUMENT, "covers=1025"]).is_err()
    );
}
