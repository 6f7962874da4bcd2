//! Tests of `ip` on literal packets and fragments: views, orders of arrival, reasons for drops, and
//! the balance of the ledger.

mod bounds;
mod overlaps;

use super::*;
use crate::testing::{self, Answer, Arena, Frame, Node, Space, answer_frames};
use std::collections::BTreeMap;
use testkit::Random;
use wire::ipv6;

fn answer_views(found: &[Answer]) -> Vec<(u32, u32, u32)> {
    found.iter().map(|a| (a.class.0, a.view, a.length)).collect()
}

#[test]
fn view_ends_with_the_packet() {
    let mut padded = Frame::ipv4(17, &[1, 2, 3]);
    padded.bytes.extend([0; 20]);
    let frames = [padded, Frame::ipv4(0, &[9]), Frame::ipv6(6, &[7, 7])];
    let zero = Class::ZERO.0;
    assert_eq!(
        answer_views(&answer_frames(&IP, &[], &frames)),
        [(17, 34, 3), (zero, 34, 1), (6, 54, 2)]
    );
}

#[test]
fn options_and_extension_headers_are_skipped() {
    let mut options = Frame::ipv4(6, &[1, 1, 1, 1, 5]);
    options.bytes[14] = 0x46;
    let extended = Frame::ipv6(0, &[17, 0, 0, 0, 0, 0, 0, 0, 5]);
    let frames = [options, extended];
    assert_eq!(answer_views(&answer_frames(&IP, &[], &frames)), [(6, 38, 1), (17, 62, 1)]);
}

#[test]
fn later_fragment_has_no_transport_header() {
    let later = ipv4_fragment(8, false, &[1, 2, 3, 4]);
    let found = answer_frames(&IP, &["defragment=no"], &[later]);
    assert_eq!(answer_views(&found), [(17, 34, 4)]);
    assert_eq!(found[0].marks.transport, Marks::UNKNOWN_OFFSET);
    assert_eq!(found[0].marks.network, 14);
}

#[test]
fn unanswered_block_keeps_its_view() {
    let mut lying = Frame::ipv4(6, &[]);
    lying.bytes[14] = 0x43;
    let mut cut = Frame::ipv4(6, &[]);
    cut.bytes.truncate(20);
    let frames = [Frame::ethernet(&[8, 6, 0, 1]), lying, cut];
    for words in [&[][..], &["defragment=no"]] {
        let found = answer_frames(&IP, words, &frames);
        assert!(found.iter().all(|a| a.class == Class::NONE && a.view == 0));
        let why: Vec<&str> = found.iter().filter_map(|a| a.reason).collect();
        assert_eq!(why, ["not ip", "malformed", "cut"]);
    }
}

/// Returns an IPv4 fragment of the UDP datagram with identification 7.
fn ipv4_fragment(offset: u16, more: bool, data: &[u8]) -> Frame {
    let mut frame = Frame::ipv4(17, data);
    frame.bytes[14 + 5] = 7;
    let field = (offset / 8) | if more { 0x2000 } else { 0 };
    frame.bytes[20..22].copy_from_slice(&field.to_be_bytes());
    frame
}

/// Returns an IPv6 fragment of the UDP datagram with identification 7.
fn ipv6_fragment(offset: u16, more: bool, data: &[u8]) -> Frame {
    let [high, low] = (offset | u16::from(more)).to_be_bytes();
    Frame::ipv6(44, &[&[17, 0, high, low, 0, 0, 0, 7], data].concat())
}

/// The result of a run of `ip`: answers for the emitted blocks, reassembled frames, and counters.
#[derive(Debug)]
struct RunOutput {
    answers: Vec<Answer>,
    frames: Vec<Vec<u8>>,
    counts: BTreeMap<&'static str, u64>,
}

impl RunOutput {
    fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// Returns the data of the only emitted block.
    fn only_block_data(&self) -> &[u8] {
        assert_eq!(self.answers.len(), 1, "{:?}", self.counts);
        &self.answers[0].bytes
    }
}

/// Index of the batch after which the state moves to another instance, or `None` for no move.
type StateMoveBatch = Option<usize>;

fn run_ip(words: &[&str], frames: &[Frame]) -> RunOutput {
    run_batches(words, frames, equal_batch_sizes(frames.len(), 64), None)
}

fn equal_batch_sizes(frames: usize, size: usize) -> Vec<usize> {
    (0..frames.div_ceil(size)).map(|_| size).collect()
}

/// Runs the filter on frames, in batches of these sizes, and checks the ledger after each batch.
fn run_batches(
    words: &[&str],
    frames: &[Frame],
    sizes: Vec<usize>,
    moves: StateMoveBatch,
) -> RunOutput {
    let arena = Arena::new(3 * frames.len() + 2);
    let mut space = Space::new(&arena);
    let mut nodes = vec![Node::new(&IP, words).expect("good arguments")];
    let (mut answers, mut whole, mut rest) = (Vec::new(), Vec::new(), frames);
    let (mut now, mut taken) = (0, 0);
    for (pass, size) in sizes.into_iter().enumerate() {
        if moves == Some(pass) {
            let mut next = Node::new(&IP, words).expect("good arguments");
            let before = nodes.last_mut().expect("a node");
            next.restore_sessions(before.take_sessions()).expect("the same filter");
            nodes.push(next);
        }
        let (batch, behind) = rest.split_at(size.min(rest.len()));
        rest = behind;
        now = batch.iter().map(|frame| frame.time).fold(now, u64::max);
        taken += batch.len() as u64;
        let node = nodes.last_mut().expect("a node");
        let mut gone = node.process_batch(space.batch(batch), &mut space, now);
        gone.extend(node.tick(&mut space, now));
        for (_, block) in gone.iter().flat_map(|batch| batch.blocks().collect::<Vec<_>>()) {
            answers.push(Answer::from_block(&block, None));
            whole.push(block.frame.to_vec());
        }
        assert_balance(&nodes, taken, answers.len() as u64);
    }
    let last = nodes.last_mut().expect("a node");
    assert!(last.finish(&mut space, now).is_empty(), "nothing incomplete leaves");
    assert_balance(&nodes, taken, answers.len() as u64);
    assert_eq!(nodes.iter().map(|node| node.counts.held.blocks as i64).sum::<i64>(), 0);
    RunOutput { answers, frames: whole, counts: counters_by_name(&nodes) }
}

/// Asserts that the ledger of a run balances (CONTRACT 19). Sums the counters of all instances of
/// the filter: after a move of the state, another instance than the one that received a block may
/// release it.
fn assert_balance(nodes: &[Node], taken: u64, passed: u64) {
    let sum = |of: fn(&Counts) -> u64| {
        nodes.iter().map(|node| of(&node.counts)).fold(0, u64::wrapping_add)
    };
    let ended = sum(|counts| {
        let dropped: u64 = counts.dropped.iter().map(|amount| amount.blocks).sum();
        dropped + counts.consumed.blocks + counts.evicted.blocks + counts.no_room.blocks
    });
    let (made, held) = (sum(|counts| counts.made.blocks), sum(|counts| counts.held.blocks));
    assert_eq!(taken + made, passed.wrapping_add(ended).wrapping_add(held));
}

fn counters_by_name(nodes: &[Node]) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for node in nodes {
        let dropped = node.counts.dropped.iter().map(|amount| amount.blocks);
        let reasons = IP.reasons.iter().zip(dropped);
        let counters = IP.counters.iter().zip(node.counts.counters.iter().copied());
        for (name, n) in reasons.chain(counters).chain(unanswered_counts(node)) {
            *counts.entry(*name).or_default() += n;
        }
    }
    counts
}

fn unanswered_counts(node: &Node) -> impl Iterator<Item = (&'static &'static str, u64)> + '_ {
    IP.reasons.iter().zip(node.counts.unanswered.iter().copied())
}

/// Returns the frames in every possible order.
fn permutations(frames: &[Frame]) -> Vec<Vec<Frame>> {
    let [one] = frames else {
        let each = (0..frames.len()).flat_map(|first| {
            let rest = [&frames[..first], &frames[first + 1..]].concat();
            let behind = permutations(&rest).into_iter();
            behind.map(move |order| [&[frames[first].clone()][..], &order].concat())
        });
        return each.collect();
    };
    vec![vec![one.clone()]]
}

const UDP_DATAGRAM: &[u8] = b"\x00\x07\x00\x35\x00\x1c\x00\x00twenty bytes of data";

#[test]
fn fragments_in_any_order_make_one_frame() {
    let whole4 = {
        let mut frame = ipv4_fragment(0, false, UDP_DATAGRAM);
        frame.bytes[24..26].copy_from_slice(&[0x66, 0xb4]);
        frame
    };
    let sets = [
        (
            vec![
                ipv4_fragment(0, true, &UDP_DATAGRAM[..8]),
                ipv4_fragment(8, true, &UDP_DATAGRAM[8..24]),
                ipv4_fragment(24, false, &UDP_DATAGRAM[24..]),
            ],
            whole4,
        ),
        (
            vec![
                ipv6_fragment(0, true, &UDP_DATAGRAM[..8]),
                ipv6_fragment(8, true, &UDP_DATAGRAM[8..24]),
                ipv6_fragment(24, false, &UDP_DATAGRAM[24..]),
            ],
            Frame::ipv6(17, UDP_DATAGRAM),
        ),
    ];
    for (fragments, whole) in sets {
        for mut order in permutations(&fragments) {
            // An unfragmented packet overtakes the pending datagram.
            order.insert(1, Frame::tcp(1, 2, b"plain"));
            order.push(Frame::tcp(3, 4, b"plain"));
            let output = run_ip(&[], &order);
            let data = u32::try_from(whole.bytes.len() - UDP_DATAGRAM.len()).unwrap();
            assert_eq!(answer_views(&output.answers), [(6, 34, 25), (17, data, 28), (6, 34, 25)]);
            assert_eq!(output.answers[1].bytes, UDP_DATAGRAM);
            assert_eq!(output.frames[1], whole.bytes);
            assert_eq!(
                (output.count("joined datagrams"), output.count("fragments missing")),
                (1, 0)
            );
            let marks = output.answers[1].marks;
            assert_eq!((marks.transport, marks.payload), (data as u16, data as u16 + 8));
            assert_eq!((marks.captured, marks.wire_length), (data + 28, data + 28));
            assert_eq!(marks.link, testing::ETHERNET);
        }
    }
}

#[test]
fn headers_come_from_the_first_fragment() {
    let options = |frame: Frame| {
        let mut bytes = frame.bytes;
        bytes.splice(34..34, [7, 4, 0, 0]);
        (bytes[14], bytes[17]) = (0x46, bytes[17] + 4);
        bytes.splice(12..12, [0x81, 0, 0, 5]);
        Frame::new(testing::ETHERNET, &bytes)
    };
    let tagged = |mut frame: Frame| {
        frame.bytes.splice(12..12, [0x81, 0, 0, 5]);
        frame
    };
    let output = run_ip(
        &[],
        &[
            tagged(ipv4_fragment(8, false, &UDP_DATAGRAM[8..])),
            options(ipv4_fragment(0, true, &UDP_DATAGRAM[..8])),
        ],
    );
    assert_eq!(output.only_block_data(), UDP_DATAGRAM);
    assert_eq!(output.frames[0][..18], options(ipv4_fragment(0, true, &[])).bytes[..18]);
    assert!(wire::ipv4::has_valid_checksum(&output.frames[0][18..]));
    assert_eq!(output.frames[0][38..42], [7, 4, 0, 0]);

    // IPv6 headers before the fragment header stay; headers after it are data.
    let before = |mut frame: Frame| {
        frame.bytes.splice(54..54, [44, 0, 1, 4, 0, 0, 0, 0]);
        (frame.bytes[20], frame.bytes[19]) = (60, frame.bytes[19] + 8);
        frame
    };
    let fragments = [
        before(ipv6_fragment(0, true, &UDP_DATAGRAM[..16])),
        before(ipv6_fragment(16, false, &UDP_DATAGRAM[16..])),
    ];
    let output = run_ip(&[], &fragments);
    let expected = Frame::ipv6(60, &[&[17, 0, 1, 4, 0, 0, 0, 0], UDP_DATAGRAM].concat());
    assert_eq!((output.only_block_data(), &output.frames[0]), (UDP_DATAGRAM, &expected.bytes));
}

#[test]
fn tiny_fragments_reassemble_to_a_full_header() {
    // Eight bytes of TCP: the ports, not the flags. And an IPv6 destination header cut in half.
    let segment = Frame::tcp(4000, 80, b"x").bytes.split_off(34);
    let fragments = |data: &[u8], next: u8, six: bool| -> Vec<Frame> {
        let count = data.len().div_ceil(8);
        let each = data.chunks(8).enumerate().map(|(number, data)| {
            let (offset, more) = (8 * number as u16, number + 1 < count);
            let mut frame = if six {
                ipv6_fragment(offset, more, data)
            } else {
                ipv4_fragment(offset, more, data)
            };
            frame.bytes[if six { 54 } else { 23 }] = next;
            frame
        });
        each.collect()
    };
    let output = run_ip(&[], &fragments(&segment, 6, false));
    assert_eq!((output.only_block_data(), output.answers[0].marks.payload), (&segment[..], 54));
    let behind = [&[6, 2, 1, 20][..], &[0; 20], &segment].concat();
    let output = run_ip(&[], &fragments(&behind, 60, true));
    assert_eq!(output.only_block_data(), segment);
    assert_eq!(output.answers[0].class, Class(6));
}

#[test]
fn atomic_fragments_pass_unchanged() {
    let atomic = ipv6_fragment(0, false, UDP_DATAGRAM);
    let fragments = [
        ipv6_fragment(0, true, &UDP_DATAGRAM[..8]),
        atomic.clone(),
        ipv6_fragment(8, false, &UDP_DATAGRAM[8..]),
    ];
    let output = run_ip(&[], &fragments);
    assert_eq!(
        answer_views(&output.answers),
        [(17, 62, 28), (17, 54, 28)],
        "RFC 6946: each by itself"
    );
    assert_eq!(output.frames[0], atomic.bytes);
}

#[test]
fn datagrams_with_different_keys_are_separate() {
    let first = ipv4_fragment(0, true, &UDP_DATAGRAM[..8]);
    let last = ipv4_fragment(8, false, &UDP_DATAGRAM[8..]);
    let with = |at: usize, byte: u8| {
        let mut frame = last.clone();
        frame.bytes[at] = byte;
        frame
    };
    let mut tagged = last.clone();
    tagged.bytes.splice(12..12, [0x81, 0, 0, 5]);
    // Identification, protocol, source, target, VLAN.
    for other in [with(18, 1), with(23, 6), with(26, 9), with(33, 9), tagged] {
        let output = run_ip(&[], &[first.clone(), other.clone()]);
        assert_eq!((output.answers.len(), output.count("fragments missing")), (0, 2), "{other:?}");
        let output = run_ip(&[], &[first.clone(), other, last.clone()]);
        assert_eq!(
            (output.only_block_data(), output.count("fragments missing")),
            (UDP_DATAGRAM, 1)
        );
    }
    // For IPv6 the protocol is not part of the key (RFC 8200 §4.5).
    let mut other = ipv6_fragment(8, false, &UDP_DATAGRAM[8..]);
    other.bytes[54] = 6;
    assert_eq!(
        run_ip(&[], &[ipv6_fragment(0, true, &UDP_DATAGRAM[..8]), other]).only_block_data(),
        UDP_DATAGRAM
    );
}

#[test]
fn repeated_fragment_is_a_duplicate() {
    for build in [ipv6_fragment, ipv4_fragment] {
        let (first, last) =
            (build(0, true, &UDP_DATAGRAM[..16]), build(16, false, &UDP_DATAGRAM[16..]));
        let frames = [first.clone(), first.clone(), first, last.clone()];
        let output = run_ip(&[], &frames);
        assert_eq!((output.only_block_data(), output.count("duplicate")), (UDP_DATAGRAM, 2));
        let output = run_ip(&["policy=drop"], &[last.clone(), last, frames[0].clone()]);
        assert_eq!(
            (output.only_block_data(), output.count("duplicate"), output.count("overlap")),
            (UDP_DATAGRAM, 1, 0)
        );
    }
}

#[test]
fn overlong_datagram_is_dropped() {
    // Ping of death (CVE-1999-0128): the last fragment ends beyond byte 65,535.
    let most = 65_535 - 20 - 65_512;
    for (length, fits) in [(most, true), (most + 1, false)] {
        let mut frames: Vec<Frame> = (0..8189)
            .step_by(181)
            .map(|unit| ipv4_fragment(8 * unit, true, &[7; 181 * 8]))
            .collect();
        frames.pop();
        frames.push(ipv4_fragment(8 * 8145, true, &[7; 44 * 8]));
        frames.push(ipv4_fragment(65_512, false, &vec![7; usize::from(length as u16)]));
        let output = run_ip(&[], &frames);
        assert_eq!(output.answers.len(), usize::from(fits), "{:?}", output.counts);
        assert_eq!(output.count("too big"), u64::from(!fits));
        assert_eq!(output.count("fragments missing") == 0, fits);
    }
    // Options of the first fragment can make it too long.
    let mut first = ipv4_fragment(0, true, &[7; 12]);
    (first.bytes[14], first.bytes[17]) = (0x46, 32);
    let mut frames = vec![first];
    frames.extend((1..8188).step_by(178).map(|unit| ipv4_fragment(8 * unit, true, &[7; 178 * 8])));
    frames.push(ipv4_fragment(65_512, false, &[7; 3]));
    let output = run_ip(&[], &frames);
    assert_eq!((output.answers.len(), output.count("too big")), (0, frames.len() as u64));
}

#[test]
fn fragments_of_invalid_length_have_no_class() {
    let frames = [
        ipv4_fragment(8, true, &[1; 9]),
        ipv4_fragment(0, true, &[]),
        ipv6_fragment(8, true, &[1; 9]),
        ipv6_fragment(8, false, &[]),
        Frame {
            wire_length: Some(200),
            bytes: ipv4_fragment(0, true, UDP_DATAGRAM).bytes[..50].to_vec(),
            ..ipv4_fragment(0, true, &[])
        },
    ];
    let output = run_ip(&[], &frames);
    assert_eq!(output.answers.len(), frames.len());
    assert_eq!((output.count("malformed"), output.count("cut")), (4, 1));
    // The policy `linux` keeps the first 16 bytes, a multiple of 8.
    let frames = [
        ipv4_fragment(0, true, &UDP_DATAGRAM[..19]),
        ipv4_fragment(16, false, &UDP_DATAGRAM[16..]),
    ];
    assert_eq!(run_ip(&["policy=linux"], &frames).only_block_data(), UDP_DATAGRAM);
}

/// Returns the data of a random datagram, and its fragments.
fn random_fragments(random: &mut Random, id: u8) -> (Vec<u8>, Vec<Frame>) {
    let length = if random.within(0..8) == 0 { 65_515 } else { random.within(9..6000) };
    let data = random.bytes(length);
    let is_six = random.within(0..2) == 0;
    let mut fragments = Vec::new();
    let mut at = 0;
    while at < length {
        let most =
            if length > 6000 { 8 * random.within(20..1000) } else { 8 * random.within(1..90) };
        let to = (at + most).min(length);
        let make = if is_six { ipv6_fragment } else { ipv4_fragment };
        let mut frame = make(at as u16, to < length, &data[at..to]);
        frame.bytes[if is_six { 60 } else { 18 }] = id;
        // The protocol number is unassigned, so no transport header is validated.
        frame.bytes[if is_six { 54 } else { 23 }] = 253;
        fragments.push(frame);
        at = to;
    }
    (data, fragments)
}

/// Splits datagrams into random fragments, and interleaves, shuffles, duplicates and batches the
/// fragments at random, with a state move. Each datagram must be emitted once, with its original
/// bytes.
#[test]
fn random_fragments_reassemble_to_their_datagrams() {
    let mut random = Random::with_replayable_seed();
    for round in 0..60 {
        let count = random.within(1..6);
        let (mut wanted, mut frames, mut twice) = (Vec::new(), Vec::new(), 0);
        for id in 0..count {
            let (data, fragments) = random_fragments(&mut random, id as u8);
            if fragments.len() == 1 {
                continue;
            }
            // Duplicates precede the last fragment of their datagram.
            let mut order: Vec<Frame> = fragments;
            random.shuffle(&mut order);
            for _ in 0..random.within(0..4) {
                let before = random.within(0..order.len());
                let again = order[random.within(0..order.len().min(before + 1))].clone();
                if before > 0 && order[..before].contains(&again) {
                    order.insert(before, again);
                    twice += 1;
                }
            }
            let places = order.iter().map(|_| random.within(0..frames.len() + 1));
            let mut places: Vec<usize> = places.collect();
            places.sort_unstable();
            for (late, (place, frame)) in places.into_iter().zip(order).enumerate() {
                frames.insert(place + late, frame);
            }
            wanted.push(data);
        }
        let mut sizes = Vec::new();
        while sizes.iter().sum::<usize>() < frames.len() {
            sizes.push(random.within(1..65));
        }
        let moves = Some(random.within(0..sizes.len() + 1));
        let output = run_batches(&[], &frames, sizes, moves);
        let mut found: Vec<Vec<u8>> = output.answers.into_iter().map(|block| block.bytes).collect();
        let counts = &output.counts;
        assert_eq!(counts.get("duplicate"), Some(&twice), "{round}: {counts:?}");
        found.sort_unstable();
        wanted.sort_unstable();
        assert!(found == wanted, "{round}: {counts:?}");
        for frame in &output.frames {
            assert!(frame[14] == 0x60 || wire::ipv4::has_valid_checksum(&frame[14..]));
        }
    }
}

#[test]
fn fragment_length_ends_with_the_packet() {
    // Padding is not data, and a zero payload length is invalid for a fragment.
    let mut padded = ipv6_fragment(8, false, &UDP_DATAGRAM[8..]);
    padded.bytes.extend([0; 30]);
    assert_eq!(
        run_ip(&[], &[padded, ipv6_fragment(0, true, &UDP_DATAGRAM[..8])]).only_block_data(),
        UDP_DATAGRAM
    );
    let mut jumbo = ipv6_fragment(0, true, &UDP_DATAGRAM[..8]);
    jumbo.bytes[18..20].fill(0);
    assert_eq!(jumbo.bytes[14 + ipv6::NEXT_HEADER_OFFSET], 44);
    let mut lying = ipv6_fragment(8, false, &UDP_DATAGRAM[8..]);
    lying.bytes[14] = 0x20;
    assert_eq!(run_ip(&[], &[lying]).count("malformed"), 1, "another version is no fragment");
    let output = run_ip(&[], &[jumbo]);
    assert_eq!((output.count("malformed"), output.answers.len()), (1, 1));
}
