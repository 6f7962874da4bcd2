//! Test harness that runs `tcp` over frames, checks the ledger, and records the output.

use super::super::TCP;
use crate::contract::{Batch, Block, Counts, LANES};
use crate::testing::{Arena, Frame, Node, Space};
use abi::{BlockFlags, Marks};
use std::collections::BTreeMap;

/// The output and the counters of a run of `tcp`.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Outcome {
    pub(super) blocks: Vec<EmittedBlock>,
    pub(super) counts: Counts,
}

/// A block that the filter has emitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct EmittedBlock {
    pub(super) session: u32,
    pub(super) class: u32,
    pub(super) flags: BlockFlags,
    /// Length of the view in bytes.
    pub(super) length: u32,
    /// Bytes in view; empty for a hole.
    pub(super) bytes: Vec<u8>,
    pub(super) hole: bool,
    /// Timestamp in the block's metadata.
    pub(super) time: u64,
}

/// Runs the filter with these arguments over the frames, in batches of `batch` frames, and then
/// finishes it.
pub(super) fn run_tcp(words: &[&str], frames: &[Frame], batch: usize) -> Outcome {
    run_with_state_moves(words, frames, batch, false)
}

/// Runs the filter like [`run`]. If `moves` is true, moves all state to another instance after
/// every batch.
pub(super) fn run_with_state_moves(
    words: &[&str],
    frames: &[Frame],
    batch: usize,
    moves: bool,
) -> Outcome {
    let arena = Arena::new(frames.len() + 1);
    let mut space = Space::new(&arena);
    let mut node = Node::new(&TCP, words).expect("good arguments");
    let mut blocks = Vec::new();
    let (mut now, mut received) = (0, 0);
    for frames in frames.chunks(batch.min(LANES)) {
        now = frames.iter().map(|frame| frame.time).fold(now, u64::max);
        let batch = space.batch(frames);
        record_blocks(&node.process_batch(batch, &mut space, now), &mut blocks);
        if node.wake.take_if(|wake| *wake <= now).is_some() {
            record_blocks(&node.tick(&mut space, now), &mut blocks);
        }
        received += frames.len();
        assert_balance(&node.counts, received, blocks.len());
        if moves {
            let mut other = Node::new(&TCP, words).expect("good arguments");
            let saved = node.take_sessions();
            (other.counts, other.wake) = (node.counts.clone(), node.wake);
            other.restore_sessions(saved).expect("the same filter");
            node = other;
        }
    }
    record_blocks(&node.finish(&mut space, now), &mut blocks);
    assert_balance(&node.counts, frames.len(), blocks.len());
    assert_eq!(node.counts.held.blocks, 0, "nothing stays behind");
    let counts = node.counts;
    Outcome { blocks, counts }
}

/// Asserts that the ledger balances: received plus made blocks equal emitted plus consumed,
/// evicted, held and dropped blocks.
fn assert_balance(counts: &Counts, received: usize, emitted: usize) {
    let dropped: u64 = counts.dropped.iter().map(|dropped| dropped.blocks).sum();
    let ended = counts.consumed.blocks + counts.evicted.blocks + counts.held.blocks + dropped;
    assert_eq!(received as u64 + counts.made.blocks, ended + emitted as u64, "{counts:?}");
}

fn record_blocks(batches: &[Batch<'_>], blocks: &mut Vec<EmittedBlock>) {
    for batch in batches {
        blocks.extend(batch.blocks().map(|(_, block)| EmittedBlock::from_block(&block)));
    }
}

impl EmittedBlock {
    fn from_block(block: &Block<'_>) -> Self {
        let hole = block.pointer.is_hole();
        if hole {
            assert!(
                block.frame.is_empty() && block.marks == Marks::for_plain_block(block.length())
            );
        } else {
            let answered = block.pointer.class.is_answered();
            assert!(
                block.has_all_bytes() && (block.length() > 0 || !answered),
                "a block without bytes: {block:?}"
            );
        }
        Self {
            session: block.context.session,
            class: block.pointer.class.0,
            flags: block.context.flags,
            length: block.length(),
            bytes: block.bytes().to_vec(),
            hole,
            time: block.context.time,
        }
    }
}

impl Outcome {
    /// Formats the output blocks of all sessions as one line.
    pub(super) fn to_line(&self) -> String {
        let mut line = String::new();
        let mut last = None;
        for block in &self.blocks {
            let way = (block.session, block.flags.contains(BlockFlags::BACKWARD));
            if last.replace(way) != Some(way) {
                let space = if line.is_empty() { "" } else { " " };
                let number =
                    if block.session == 1 { String::new() } else { block.session.to_string() };
                line += &format!("{space}{number}{}", if way.1 { '<' } else { '>' });
            } else {
                line.push('|');
            }
            line += &block.text();
        }
        line
    }

    /// Returns the stream of each session and direction: the bytes, with a zero for each missing
    /// byte, and the holes.
    pub(super) fn streams(&self) -> BTreeMap<(u32, bool), StreamOutput> {
        let mut streams: BTreeMap<(u32, bool), StreamOutput> = BTreeMap::new();
        for block in &self.blocks {
            let stream = streams
                .entry((block.session, block.flags.contains(BlockFlags::BACKWARD)))
                .or_default();
            assert!(!stream.ended, "something follows the end");
            assert!(stream.blocks == 0 || !block.flags.contains(BlockFlags::FIRST), "first again");
            let from = stream.bytes.len();
            match block.hole {
                true => stream.bytes.resize(from + block.length as usize, 0),
                false => stream.bytes.extend(&block.bytes),
            }
            if block.hole && block.length > 0 {
                stream.holes.push((from, block.length as usize));
            }
            stream.blocks += 1;
            stream.first |= block.flags.contains(BlockFlags::FIRST);
            stream.ended |= block.flags.contains(BlockFlags::SESSION_END);
        }
        streams
    }

    /// Returns the number of blocks dropped for this reason.
    pub(super) fn dropped_blocks(&self, reason: &str) -> u64 {
        let at = TCP.reasons.iter().position(|name| *name == reason).expect("a reason");
        self.counts.dropped[at].blocks
    }

    /// Returns the value of this counter.
    pub(super) fn counter_value(&self, counter: &str) -> u64 {
        let at = TCP.counters.iter().position(|name| *name == counter).expect("a counter");
        self.counts.counters[at]
    }
}

/// The stream of one direction of a session.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct StreamOutput {
    pub(super) bytes: Vec<u8>,
    /// The holes in the stream: the offset and the length of each, in bytes.
    pub(super) holes: Vec<(usize, usize)>,
    pub(super) first: bool,
    pub(super) ended: bool,
    blocks: usize,
}

impl EmittedBlock {
    fn text(&self) -> String {
        let first = if self.flags.contains(BlockFlags::FIRST) { "^" } else { "" };
        let end = if self.flags.contains(BlockFlags::SESSION_END) { "$" } else { "" };
        let bytes = match (self.hole, self.length) {
            (true, 0) => String::new(),
            (true, length) => format!("*{length}"),
            _ => String::from_utf8_lossy(&self.bytes).into_owned(),
        };
        format!("{first}{bytes}{end}")
    }
}
