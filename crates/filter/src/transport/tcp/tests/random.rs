//! Tests with random conversations whose segments are retransmitted, reordered and lost. For every
//! batch size, policy and state move, the output must contain the same bytes, with holes for lost
//! bytes, and the ledger must balance.

use super::run::{Outcome, run_tcp, run_with_state_moves};
use super::{ACK, FIN, SYN};
use crate::testing::Frame;
use testkit::Random;

const POLICIES: [&str; 6] = ["first", "last", "linux", "windows", "bsd", "solaris"];
const ROUNDS: usize = 300;

/// Disturbances that affect the segments of a conversation between the sender and the capture.
#[derive(Clone, Copy, Debug)]
struct Disturbance {
    /// Loss ratio: one in this many segments is lost, together with its retransmissions. No segment
    /// is lost if the value is 0.
    loss_ratio: u64,
    /// Maximum number of positions by which reordering moves a segment.
    displacement_max: usize,
    /// True if parts of the data are retransmitted.
    retransmits: bool,
    /// True if the handshake is omitted, so the capture begins in midstream.
    in_midstream: bool,
}

/// A conversation and its captured frames.
struct Conversation {
    port: u16,
    sides: [Vec<u8>; 2],
    lost: [Vec<(usize, usize)>; 2],
    frames: Vec<Frame>,
    in_midstream: bool,
}

/// A segment on its way from the sender to the capture.
#[derive(Clone, Debug)]
struct SentSegment {
    side: usize,
    flags: u8,
    from: usize,
    to: usize,
    captured: bool,
}

impl Conversation {
    fn new(random: &mut Random, port: u16, disturbance: Disturbance) -> Self {
        let sides = [0, 1].map(|_| {
            let length = random.within(1..4000);
            random.bytes(length)
        });
        let mut lost = [Vec::new(), Vec::new()];
        let mut sent = Vec::new();
        let mut at = [0, 0];
        while (0..2).any(|side| at[side] < sides[side].len()) {
            let side = random.within(0..2);
            let left = sides[side].len() - at[side];
            if left == 0 {
                continue;
            }
            let length = random.within(1..left.min(600) + 1);
            let first = disturbance.in_midstream && at[side] == 0;
            let captured =
                first || disturbance.loss_ratio == 0 || !random.one_in(disturbance.loss_ratio);
            let (from, to) = (at[side], at[side] + length);
            if !captured {
                lost[side].push((from, to));
            }
            sent.push(SentSegment { side, flags: 0, from, to, captured });
            at[side] = to;
        }
        if disturbance.retransmits {
            retransmit(random, &mut sent, &sides, &lost);
        }
        let ends: Vec<usize> = (0..2).map(|side| sides[side].len()).collect();
        let last = (0..2).map(|side| (side, ends[side]));
        sent.extend(last.map(|(side, at)| SentSegment {
            side,
            flags: FIN,
            from: at,
            to: at,
            captured: true,
        }));
        reorder(random, &mut sent, disturbance);
        let frames = captured_frames(random, port, disturbance.in_midstream, &sides, &sent);
        Self { port, sides, lost, frames, in_midstream: disturbance.in_midstream }
    }

    /// Asserts that the output contains the bytes and holes of this conversation.
    fn assert_output(&self, outcome: &Outcome) {
        let session = outcome.blocks.iter().find(|block| block.class == u32::from(self.port));
        let session = session.expect("something of it leaves").session;
        let streams = outcome.streams();
        for (side, sent) in self.sides.iter().enumerate() {
            let found = &streams[&(session, side == 1)];
            assert_eq!(found.first, !self.in_midstream, "the beginning");
            assert!(found.ended, "the end");
            assert_eq!(
                merge_adjacent_ranges(&found.holes),
                merge_adjacent_ranges(&self.expected_holes(side)),
                "holes of side {side}"
            );
            let mut wanted = sent.clone();
            for (from, to) in &self.lost[side] {
                wanted[*from..*to].fill(0);
            }
            assert!(found.bytes == wanted, "bytes of side {side}");
        }
    }

    fn expected_holes(&self, side: usize) -> Vec<(usize, usize)> {
        self.lost[side].iter().map(|(from, to)| (*from, to - from)).collect()
    }
}

/// Merges adjacent ranges, which are given as start and length, in ascending order.
fn merge_adjacent_ranges(ranges: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut joined: Vec<(usize, usize)> = Vec::new();
    for &(from, length) in ranges {
        match joined.last_mut() {
            Some((at, so_far)) if *at + *so_far == from => *so_far += length,
            _ => joined.push((from, length)),
        }
    }
    joined
}

/// Adds retransmissions whose segment boundaries differ from the original ones. Lost bytes are not
/// retransmitted.
fn retransmit(
    random: &mut Random,
    sent: &mut Vec<SentSegment>,
    sides: &[Vec<u8>; 2],
    lost: &[Vec<(usize, usize)>; 2],
) {
    for _ in 0..sent.len() / 2 {
        let side = random.within(0..2);
        let from = random.within(0..sides[side].len());
        let to = random.within(from..sides[side].len().min(from + 900)) + 1;
        if lost[side].iter().any(|(a, b)| from < *b && *a < to) {
            continue;
        }
        // A retransmission follows the first transmission of all of its bytes.
        let earliest = sent.iter().rposition(|s| s.side == side && s.flags == 0 && s.from < to);
        let at = random.within(earliest.unwrap_or(0)..sent.len()) + 1;
        sent.insert(at, SentSegment { side, flags: 0, from, to, captured: true });
    }
}

/// Reorders segments. In a midstream capture the first segment of each side stays first.
fn reorder(random: &mut Random, sent: &mut [SentSegment], disturbance: Disturbance) {
    for at in 0..sent.len() {
        let other = (at + random.within(0..disturbance.displacement_max + 1)).min(sent.len() - 1);
        let begins = |s: &SentSegment| disturbance.in_midstream && s.from == 0;
        if !sent[at..=other].iter().any(begins) {
            sent.swap(at, other);
        }
    }
}

/// Returns the captured frames of a conversation. Each frame acknowledges the bytes that its sender
/// has received so far.
fn captured_frames(
    random: &mut Random,
    port: u16,
    in_midstream: bool,
    sides: &[Vec<u8>; 2],
    sent: &[SentSegment],
) -> Vec<Frame> {
    let starts = [0, 1].map(|_| match random.one_in(2) {
        true => random.next_u64() as u32,
        false => (random.below(4000) as u32).wrapping_neg(),
    });
    let mut got: [Vec<bool>; 2] = [0, 1].map(|side: usize| vec![false; sides[side].len()]);
    let mut frames = Vec::new();
    let segment = |side: usize, flags: u8, sequence: u32, bytes: &[u8]| match side {
        0 => Frame::segment((4000, port), flags, sequence, bytes),
        _ => Frame::segment((port, 4000), flags, sequence, bytes).with_swapped_addresses(),
    };
    if !in_midstream {
        let begins = |side: usize| segment(side, SYN, starts[side].wrapping_sub(1), b"");
        frames.extend([begins(0), begins(1).with_acknowledgement(starts[0])]);
    }
    for s in sent {
        got[s.side][s.from..s.to].fill(true);
        let other = 1 - s.side;
        let has = got[other].iter().position(|got| !got).unwrap_or(got[other].len());
        if s.captured {
            let sequence = starts[s.side].wrapping_add(s.from as u32);
            let frame = segment(s.side, s.flags | ACK, sequence, &sides[s.side][s.from..s.to]);
            frames.push(frame.with_acknowledgement(starts[other].wrapping_add(has as u32)));
        }
    }
    frames
}

/// Interleaves the frames of conversations, preserving the order within each.
fn interleave(random: &mut Random, conversations: &[Conversation]) -> Vec<Frame> {
    let mut next = vec![0; conversations.len()];
    let mut frames = Vec::new();
    let mut time = 1_700_000_000_000_000_000;
    while let Some(talk) =
        (0..conversations.len()).find(|talk| next[*talk] < conversations[*talk].frames.len())
    {
        let other = random.within(talk..conversations.len());
        let talk = if next[other] < conversations[other].frames.len() { other } else { talk };
        frames.push(conversations[talk].frames[next[talk]].clone().at_time(time));
        next[talk] += 1;
        time += random.below(2000);
    }
    frames
}

fn random_disturbance(random: &mut Random, lost: u64) -> Disturbance {
    Disturbance {
        loss_ratio: lost,
        displacement_max: *random.pick(&[0, 1, 3, 10]),
        retransmits: random.one_in(2),
        in_midstream: random.one_in(4),
    }
}

#[test]
fn reordered_bytes_are_emitted_in_order() {
    let mut random = Random::with_replayable_seed();
    for round in 0..ROUNDS {
        let disturbance = random_disturbance(&mut random, 0);
        let conversations: Vec<Conversation> = (1..=random.within(1..5))
            .map(|n| Conversation::new(&mut random, n as u16, disturbance))
            .collect();
        let frames = interleave(&mut random, &conversations);
        let policy = format!("policy={}", POLICIES[round % POLICIES.len()]);
        let batch = random.within(1..65);
        let outcome = run_tcp(&[&policy], &frames, batch);
        conversations.iter().for_each(|talk| talk.assert_output(&outcome));
        assert_eq!(outcome.counter_value("missing bytes"), 0, "{disturbance:?}");
        assert_eq!(outcome.counter_value("new sessions"), conversations.len() as u64);
    }
}

/// Stray segments after the end of a stream do not change the output, regardless of their position
/// in the capture.
#[test]
fn bytes_after_a_fin_do_not_change_the_output() {
    let mut random = Random::with_replayable_seed();
    for round in 0..ROUNDS {
        let disturbance = Disturbance { in_midstream: false, ..random_disturbance(&mut random, 0) };
        let mut talk = Conversation::new(&mut random, 7, disturbance);
        let (mut strays, handshake) = (0, 2);
        for fin in talk.frames.clone().iter().filter(|frame| frame.bytes[47] & FIN != 0) {
            for _ in 0..random.within(0..4) {
                let mut stray = Frame { bytes: [&fin.bytes[..], b"EVIL"].concat(), ..fin.clone() };
                let number = u32::from_be_bytes(fin.bytes[38..42].try_into().unwrap());
                let ahead = random.within(1..3000) as u32;
                stray.overwrite(38, &number.wrapping_add(ahead).to_be_bytes());
                stray.overwrite(47, &[0]);
                stray.overwrite(16, &(stray.bytes.len() as u16 - 14).to_be_bytes());
                let at = random.within(handshake..talk.frames.len() + 1);
                talk.frames.insert(at, stray);
                strays += 1;
            }
        }
        let frames = interleave(&mut random, std::slice::from_ref(&talk));
        let policy = format!("policy={}", POLICIES[round % POLICIES.len()]);
        let outcome = run_tcp(&[&policy], &frames, random.within(1..65));
        talk.assert_output(&outcome);
        assert_eq!(outcome.counter_value("missing bytes"), 0, "{disturbance:?}");
        // Two strays may cover the same bytes.
        let dropped = outcome.dropped_blocks("closed") + outcome.dropped_blocks("overlapped");
        assert!(dropped + outcome.counter_value("duplicates") >= strays);
    }
}

#[test]
fn lost_bytes_become_a_hole_of_their_length() {
    let mut random = Random::with_replayable_seed();
    for round in 0..ROUNDS {
        let lost = *random.pick(&[2, 5, 20]);
        let disturbance = random_disturbance(&mut random, lost);
        let conversations: Vec<Conversation> = (1..=random.within(1..5))
            .map(|n| Conversation::new(&mut random, n as u16, disturbance))
            .collect();
        let frames = interleave(&mut random, &conversations);
        let policy = format!("policy={}", POLICIES[round % POLICIES.len()]);
        let outcome = run_tcp(&[&policy], &frames, random.within(1..65));
        let has = |side: usize, talk: &Conversation| talk.lost[side].len() < talk.sides[side].len();
        for talk in conversations.iter().filter(|talk| has(0, talk) || has(1, talk)) {
            talk.assert_output(&outcome);
        }
        let missing: usize = conversations
            .iter()
            .flat_map(|talk| [talk.expected_holes(0), talk.expected_holes(1)].concat())
            .map(|h| h.1)
            .sum();
        assert_eq!(outcome.counter_value("missing bytes"), missing as u64, "{disturbance:?}");
    }
}

/// Checks that the output stays the same if the state moves to another space after every batch. The
/// table has room for all connections, because the order of eviction does not survive a move.
#[test]
fn state_may_move_after_every_batch() {
    let mut random = Random::with_replayable_seed();
    for round in 0..ROUNDS / 4 {
        let disturbance = random_disturbance(&mut random, 6);
        let conversations: Vec<Conversation> =
            (1..=4).map(|n| Conversation::new(&mut random, n as u16, disturbance)).collect();
        let mut frames = interleave(&mut random, &conversations);
        if round % 2 == 0 {
            corrupt_frames(&mut random, &mut frames);
        }
        let policy = format!("policy={}", POLICIES[round % POLICIES.len()]);
        let words = [&policy[..], "held=2000", "gap=5ms", "timeout=20s"];
        let batch = random.within(1..65);
        let stays = run_with_state_moves(&words, &frames, batch, false);
        let moves = run_with_state_moves(&words, &frames, batch, true);
        assert!(stays.counts == moves.counts, "{:?}\n{:?}", stays.counts, moves.counts);
        assert!(stays == moves);
    }
}

/// Corrupts frames: flips bits, truncates, changes times.
fn corrupt_frames(random: &mut Random, frames: &mut [Frame]) {
    let mut later = 0;
    for frame in frames {
        if random.one_in(40) {
            later += random.below(40_000_000_000);
        }
        frame.time += later;
        if random.one_in(50) {
            frame.time -= random.below(40_000_000_000);
        }
        if random.one_in(10) {
            random.flip_bits(&mut frame.bytes[14..], 1);
        }
        if random.one_in(10) {
            let length = random.within(20..frame.bytes.len());
            *frame = frame.clone().truncated_to(length);
        }
    }
}

/// Compares the output with a model of the overlap policies, which chooses a segment for each byte.
/// The model compares each range of bytes that a held segment supplies with the new segment.
#[test]
fn overlaps_follow_the_policy() {
    let mut random = Random::with_replayable_seed();
    for round in 0..ROUNDS {
        let policy = POLICIES[round % POLICIES.len()];
        let length = random.within(4..30);
        let mut owner: Vec<Option<(usize, u8)>> = vec![None; length];
        let mut pieces = 0;
        let mut frames = vec![Frame::segment((4000, 80), SYN, 99, b"")];
        for letter in b'a'..b'a' + 12 {
            let from = random.within(0..length);
            let to = random.within(from..length) + 1;
            let bytes = vec![letter; to - from];
            let first = 101 + from as u32;
            frames.push(Frame::segment((4000, 80), 0, first, &bytes));
            add_segment_to_model(policy, &mut owner, (from, to), letter, &mut pieces);
        }
        frames.push(Frame::segment((4000, 80), FIN, 101 + length as u32, b""));
        frames.push(Frame::segment((4000, 80), 0, 100, b"_"));
        let outcome = run_tcp(&[&format!("policy={policy}")], &frames, random.within(1..65));
        let letter = |owner: &Option<(usize, u8)>| owner.map_or(0, |(_, letter)| letter);
        let wanted: Vec<u8> = [b'_'].into_iter().chain(owner.iter().map(letter)).collect();
        let found = &outcome.streams()[&(1, false)].bytes;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(text(found), text(&wanted), "{policy}: {frames:?}");
    }
}

/// Adds a segment to the model of reassembly, in which `owner` stores for each byte the segment
/// that supplies it.
fn add_segment_to_model(
    policy: &str,
    owner: &mut [Option<(usize, u8)>],
    (from, to): (usize, usize),
    letter: u8,
    pieces: &mut usize,
) {
    let before = owner.to_vec();
    let mut at = 0;
    while at < before.len() {
        let end = (at..before.len()).find(|n| before[*n] != before[at]).unwrap_or(before.len());
        let (old_from, old_to) = (at, end);
        at = end;
        if before[old_from].is_none() || old_to <= from || to <= old_from {
            continue;
        }
        let wins = match policy {
            "last" => true,
            "linux" => from < old_from || (from == old_from && to > old_to),
            "windows" | "bsd" => from < old_from,
            "solaris" => to > old_to || (to == old_to && from <= old_from),
            _ => false,
        };
        if wins {
            owner[old_from.max(from)..old_to.min(to)].fill(None);
            // The rest of the old piece, after the new segment, becomes a separate piece.
            *pieces += 1;
            if old_to > to {
                let letter = before[old_from].map_or(0, |(_, letter)| letter);
                owner[to..old_to].fill(Some((*pieces, letter)));
            }
        }
    }
    let mut number = None;
    for owner in &mut owner[from..to] {
        match owner {
            Some(_) => number = None,
            None => {
                let number = *number.get_or_insert_with(|| {
                    *pieces += 1;
                    *pieces
                });
                *owner = Some((number, letter));
            }
        }
    }
}
