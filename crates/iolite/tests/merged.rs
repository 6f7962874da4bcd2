//! Tests of many producers in processes of another user, merged by one reader. A producer that is
//! killed or writes garbage into its own ring is removed, and the other producers lose nothing.
//! (CONTRACT 24; RELIABILITY T3, T10)

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

extern crate buffer as streamline_buffer;

mod common;

use abi::DbufId;
use buffer::Fault;
use buffer::stream::{Config, Input, Output, stream};
use common::ring_memory::RingMemoryAccess;
use common::{OtherUserProcess, receive_stream, send_offer, with_watchdog};
use std::io::stdin;
use std::time::Duration;
use streamline_iolite::merge::{
    DepartedProducer, MergeOrder, MergedRead, MergedReader, TimestampMerge,
};
use testkit::Random;

const BLOCK_COUNT: u64 = 30_000;

fn ring_config() -> Config {
    Config::new(DbufId::new(1).unwrap()).capacity(16384)
}

/// Returns a block that contains a producer number and a sequence number, filled with a pattern
/// derived from the sequence number.
fn stamped_block(producer: u64, number: u64) -> [u8; 64] {
    let mut block = [number.wrapping_mul(37) as u8; 64];
    for (at, word) in [producer, number].into_iter().enumerate() {
        block[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
    }
    block
}

fn block_word(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at * 8..at * 8 + 8].try_into().unwrap())
}

/// Starts a producer in another process. Returns the process, and the stream that it writes.
/// Returns `None`, after reporting a skip, if this machine does not allow that.
fn start_producer(role: &str, producer: u64) -> Option<(OtherUserProcess, Input)> {
    let other = OtherUserProcess::start(&format!("{role} {producer}"))?;
    let input = receive_stream(&other).unwrap();
    Some((other, input))
}

/// Reads the merged streams to their end. Calls `each` with each block, as words. Returns the
/// number of blocks of each producer, after checking that the first `honest` producers have no gap.
fn read_and_count_blocks(
    merged: &mut MergedReader,
    honest: usize,
    mut each: impl FnMut(&[u64]),
) -> Vec<u64> {
    let mut counts = vec![0; 8];
    let mut out = vec![0; 8192];
    loop {
        match with_watchdog("a producer", || merged.read(&mut out).unwrap()) {
            MergedRead::End => return counts,
            MergedRead::Nothing => panic!("it waits"),
            MergedRead::Block { length: 64, .. } => {
                let producer = usize::try_from(block_word(&out, 0)).unwrap_or(usize::MAX);
                if producer < honest {
                    assert_eq!(
                        out[..64],
                        stamped_block(producer as u64, counts[producer]),
                        "producer {producer}"
                    );
                }
                // The liar's id is meaningless.
                let producer = producer.min(counts.len() - 1);
                counts[producer] += 1;
                each(&counts);
            }
            MergedRead::Block { .. } => {}
        }
    }
}

fn departed_producers(merged: &mut MergedReader) -> Vec<DepartedProducer> {
    let mut all: Vec<_> = std::iter::from_fn(|| merged.next_departed_producer()).collect();
    all.sort_by_key(|gone| gone.producer);
    all
}

#[test]
fn killed_or_lying_producer_is_removed_and_others_continue() {
    let mut random = Random::with_replayable_seed();
    for round in 0..4 {
        let order = match round % 2 {
            0 => MergeOrder::Fair(16),
            _ => MergeOrder::Stamped(TimestampMerge::new(100, Duration::from_millis(5), |block| {
                if block.len() == 64 { block_word(block, 1) } else { 0 }
            })),
        };
        let mut merged = MergedReader::new(order);
        let mut others = Vec::new();
        for (producer, role) in (0..).zip(["write", "write", "until killed", "ring_memory"]) {
            let Some((other, input)) = start_producer(role, producer) else { return };
            merged.add_producer(input);
            others.push(other);
        }
        let (mut killed, until) = (false, random.below(20_000));
        let counts = read_and_count_blocks(&mut merged, 3, |counts| {
            // Killed at some block, or after the honest ones have finished, and the liar last.
            let through = counts[0] + counts[1] == 2 * BLOCK_COUNT;
            if !killed && (counts[2] > until || through) {
                others[2].kill();
                killed = true;
            }
            if through {
                others[3].stop();
            }
        });
        assert_eq!(counts[..2], [BLOCK_COUNT, BLOCK_COUNT], "round {round}");
        let gone = departed_producers(&mut merged);
        assert_eq!(gone.len(), 4);
        for honest in &gone[..2] {
            assert_eq!(honest.fault, None);
            assert_eq!(honest.put.resident_blocks(&honest.taken), Some(0));
        }
        assert_eq!(gone[2].fault, Some(Fault::Abandoned), "it was killed");
        assert_eq!(gone[2].taken.blocks, counts[2], "all that was taken was given");
        assert_eq!(
            gone[2].put.resident_blocks(&gone[2].taken),
            Some(0),
            "and all that it had shown"
        );
        assert!(gone[3].fault.is_some(), "{:?}", gone[3]);
    }
}

// ---- there

#[test]
#[ignore = "run by another test, in a process of its own"]
fn run_other_process() {
    let Some(role) = common::child_role() else { return };
    let (role, producer) = role.rsplit_once(' ').unwrap();
    let producer = producer.parse().unwrap();
    let (output, offers) = stream(&ring_config()).unwrap();
    send_offer(stdin(), &offers[0]);
    drop(offers);
    match role {
        "write" => write_blocks(output, producer, 0..BLOCK_COUNT),
        "until killed" => write_blocks(output, producer, 0..u64::MAX),
        "ring_memory" => write_garbage(output, producer),
        _ => panic!("no role {role}"),
    }
}

fn write_blocks(mut output: Output, producer: u64, numbers: std::ops::Range<u64>) {
    for number in numbers {
        if output.write(&stamped_block(producer, number)).is_err() {
            return;
        }
    }
}

/// Writes some valid blocks, then garbage at random offsets of its own ring.
fn write_garbage(mut output: Output, producer: u64) {
    for number in 0..100 {
        output.write(&stamped_block(producer, number)).unwrap();
    }
    output.flush();
    let (ring, mut random) = (RingMemoryAccess::find(), Random::new(7));
    loop {
        // Mostly overwrites the published positions, sometimes a block header.
        let at = match random.below(4) {
            0 => random.below(20480 / 8) * 8,
            _ => random.below(6) * 128,
        };
        let value = match random.below(3) {
            0 => random.next_u64(),
            1 => random.below(1 << 20),
            _ => u64::MAX - random.below(4),
        };
        ring.write_word(at, value);
        if random.below(64) == 0 && output.write(&stamped_block(producer, 0)).is_err() {
            return;
        }
    }
}
