//! One test suite for every kind of ring: blocks of any length and slots of one size, read by
//! threads of the writer's process and by untrusted peers, with every full-ring policy and every
//! rate policy. (FEATURES D11, D14; CONTRACT 19)
//!
//! The writer numbers its blocks. A reader must get intact blocks in increasing order, and must
//! count all other blocks exactly, as lost or skipped.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod rings;

use rings::{RingReader, for_each_ring, slot_ring_config};
use streamline_buffer::dbuf::fixed_size;
use streamline_buffer::rate::{RatePolicy, RatedReader, StartPosition};
use streamline_buffer::{Fault, OverflowPolicy, ReaderCounts};
use testkit::Random;

/// Maximum length of a block in these tests.
const BLOCK_LENGTH_MAX: usize = 200;
/// Capacity of a ring in bytes; small, so that laps are short.
const CAPACITY: usize = 4096;
const POLICIES: [OverflowPolicy; 3] =
    [OverflowPolicy::Block, OverflowPolicy::DropNew, OverflowPolicy::Overwrite];

// ---- reference model

/// Returns the block with this number. Its length and content depend only on the number.
fn numbered_block(number: u64) -> Vec<u8> {
    let length = 8 + usize::try_from(number * 7919 % (BLOCK_LENGTH_MAX as u64 - 8)).unwrap();
    let mut block = vec![number.wrapping_mul(37) as u8; length];
    block[..8].copy_from_slice(&number.to_le_bytes());
    block
}

/// The blocks that one reader has received so far.
#[derive(Default)]
struct Received {
    /// Number of the next block if none is lost or skipped.
    next: u64,
    blocks: u64,
    bytes: u64,
    missing: u64,
}

impl Received {
    fn take(&mut self, what: &str, bytes: &[u8]) {
        let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(bytes, numbered_block(number), "{what}: block {number} is not what was put");
        assert!(number >= self.next, "{what}: {number} after {}", self.next);
        self.missing += number - self.next;
        self.next = number + 1;
        self.blocks += 1;
        self.bytes += bytes.len() as u64;
    }

    fn check_balance(&self, what: &str, counted: ReaderCounts) {
        assert_eq!((counted.blocks, counted.bytes), (self.blocks, self.bytes), "{what}");
    }
}

fn read_block(reader: &mut dyn RingReader) -> Option<Vec<u8>> {
    let mut out = vec![0; BLOCK_LENGTH_MAX];
    let length = reader.read(&mut out).unwrap()?;
    out.truncate(length);
    Some(out)
}

// ---- tests

/// Under any random order of writes and reads, blocks are intact and in order, and the counts
/// balance.
#[test]
fn d11_random_operations_account_for_every_block() {
    let seed = Random::with_replayable_seed().next_u64();
    for_each_ring(|what, policy, mut writer, mut readers| {
        let mut random = Random::new(seed);
        let policies = [
            (StartPosition::Oldest, RatePolicy::EveryBlock),
            (StartPosition::Oldest, RatePolicy::Latest),
            (StartPosition::Now, RatePolicy::EveryBlock),
        ];
        let mut received: Vec<Received> = readers.iter().map(|_| Received::default()).collect();
        let (mut number, mut dropped) = (0, 0);
        for _ in 0..6000 {
            match random.below(5) {
                0..=2 => {
                    let next = numbered_block(number);
                    let put = if random.below(2) == 0 {
                        writer.write(&next).unwrap()
                    } else {
                        writer
                            .write_reserved((next.len() + 20).min(BLOCK_LENGTH_MAX), &next)
                            .unwrap()
                    };
                    number += u64::from(put);
                    dropped += u64::from(!put && policy == OverflowPolicy::DropNew);
                    assert!(put || policy != OverflowPolicy::Overwrite, "{what}");
                }
                3 => writer.publish(),
                _ => {
                    let at = random.within(0..readers.len());
                    let (_, rate) = policies[at];
                    if rate == RatePolicy::Latest {
                        readers[at].skip_to_latest().unwrap();
                    } else if at == 2 && random.below(50) == 0 {
                        readers[at].skip_to_now().unwrap();
                    }
                    for _ in 0..random.below(8) {
                        let Some(bytes) = read_block(&mut *readers[at]) else { break };
                        received[at].take(what, &bytes);
                    }
                    readers[at].release();
                }
            }
        }
        assert!(number > 500, "{what}: {number}");
        let put = writer.counts();
        assert_eq!((put.blocks, put.dropped), (number, dropped), "{what}");
        drop(writer);
        for (at, (reader, received)) in readers.iter_mut().zip(&mut received).enumerate() {
            while let Some(bytes) = read_block(&mut **reader) {
                received.take(what, &bytes);
            }
            assert!(reader.is_finished().unwrap(), "{what}");
            let counted = reader.counts();
            received.check_balance(what, counted);
            assert_eq!(counted.blocks + counted.lost + counted.skipped, number, "{what}");
            assert_eq!(reader.writer_counts(), put, "{what}: both sides agree");
            assert_eq!(put.resident_blocks(&counted), Some(0), "{what}");
            let (start, rate) = policies[at];
            let skips = start == StartPosition::Now || rate == RatePolicy::Latest;
            assert_eq!(counted.skipped > 0, skips, "{what} {at}: {counted:?}");
            assert!(
                counted.lost == 0 || policy == OverflowPolicy::Overwrite,
                "{what}: {counted:?}"
            );
        }
    });
}

#[test]
fn peeked_block_is_not_overwritten_until_released() {
    for_each_ring(|what, policy, mut writer, mut readers| {
        let reader = &mut *readers[0];
        if reader.peek().is_none() {
            return;
        }
        if policy == OverflowPolicy::Overwrite {
            assert_eq!(reader.peek(), Some(Err(Fault::Lossy)), "{what}");
            assert_eq!(reader.take_in_place(), Some(Err(Fault::Lossy)), "{what}");
            return;
        }
        assert_eq!(reader.peek(), Some(Ok(None)), "{what}");
        assert!(
            writer.write(&numbered_block(0)).unwrap() && writer.write(&numbered_block(1)).unwrap()
        );
        assert_eq!(reader.peek(), Some(Ok(None)), "{what}: not published yet");
        writer.publish();
        for _ in 0..3 {
            assert_eq!(reader.peek(), Some(Ok(Some(numbered_block(0)))), "{what}");
        }
        assert_eq!(reader.take_in_place(), Some(Ok(Some(numbered_block(0)))), "{what}");
        assert_eq!(reader.peek(), Some(Ok(Some(numbered_block(1)))), "{what}");
        // The block is taken but not released, so the writer fills the ring only up to this block.
        let (mut number, mut released) = (2, false);
        for _ in 0..2 {
            drain_other_readers(&mut readers);
            while writer.write(&numbered_block(number)).unwrap() {
                number += 1;
                writer.publish();
                drain_other_readers(&mut readers);
            }
            if released {
                break;
            }
            assert_eq!(
                readers[0].peek(),
                Some(Ok(Some(numbered_block(1)))),
                "{what}: not overwritten"
            );
            readers[0].release();
            released = true;
        }
        assert!(number > 10, "{what}");
    });
}

/// Reads all remaining blocks through every reader but the first.
fn drain_other_readers(readers: &mut [Box<dyn RingReader>]) {
    for other in readers.iter_mut().skip(1) {
        while read_block(&mut **other).is_some() {}
    }
}

#[test]
fn block_that_does_not_fit_is_rejected_without_effect() {
    for_each_ring(|what, _, mut writer, mut readers| {
        let limit = writer.block_length_max();
        let long = vec![0; limit + 1];
        assert_eq!(writer.write(&long), Err(Fault::TooLong { length: limit + 1, limit }), "{what}");
        assert!(writer.write(&numbered_block(0)).unwrap());
        writer.drop_reservation(100).unwrap();
        assert!(writer.write(&[]).unwrap() && writer.write(&numbered_block(2)).unwrap());
        writer.publish();
        for reader in &mut readers {
            let length = numbered_block(0).len();
            let refused = reader.read(&mut vec![0; length - 1]);
            assert!(matches!(refused, Err(Fault::TooLong { .. })), "{what}: {refused:?}");
            assert_eq!(read_block(&mut **reader), Some(numbered_block(0)), "{what}: it stayed");
            assert_eq!(
                read_block(&mut **reader),
                Some(Vec::new()),
                "{what}: an empty block is a block"
            );
            assert_eq!(
                read_block(&mut **reader),
                Some(numbered_block(2)),
                "{what}: an abandoned reservation is no block"
            );
            assert_eq!(read_block(&mut **reader), None, "{what}");
        }
    });
}

#[test]
fn readers_can_skip_to_newest_or_to_now_at_any_time() {
    for_each_ring(|what, _, mut writer, mut readers| {
        let mut number = 0;
        for round in 1..60 {
            for _ in 0..round % 7 {
                number += u64::from(writer.write(&numbered_block(number)).unwrap());
            }
            writer.publish();
            for (at, reader) in readers.iter_mut().enumerate() {
                if at == 1 {
                    reader.skip_to_now().unwrap();
                    assert_eq!(read_block(&mut **reader), None, "{what}");
                } else {
                    let before = reader.counts();
                    let skipped = reader.skip_to_latest().unwrap();
                    assert_eq!(reader.counts().skipped - before.skipped, skipped, "{what}");
                    let newest = (round % 7 > 0).then(|| numbered_block(number - 1));
                    assert_eq!(read_block(&mut **reader), newest, "{what}, round {round}");
                    assert_eq!(reader.skip_to_latest(), Ok(0), "{what}");
                }
                reader.release();
                let counted = reader.counts();
                let all = counted.blocks + counted.lost + counted.skipped;
                assert_eq!(all, number, "{what}: {counted:?}");
            }
        }
    });
}

/// A reader with the policy `Latest` skips all older blocks when it reads.
#[test]
fn v8_reader_with_latest_policy_takes_the_newest() {
    for policy in POLICIES {
        let (mut writer, mut readers) = fixed_size::ring(&slot_ring_config(policy, 1));
        for number in 0..5 {
            assert!(writer.write(&numbered_block(number)).unwrap());
        }
        writer.publish();
        let mut out = [0; BLOCK_LENGTH_MAX];
        let reader = readers.remove(0);
        let mut paced = RatedReader::new(reader, StartPosition::Now, RatePolicy::Latest).unwrap();
        assert_eq!(paced.read(&mut out).unwrap(), None);
        for number in 5..9 {
            assert!(writer.write(&numbered_block(number)).unwrap());
        }
        writer.publish();
        let length = paced.read(&mut out).unwrap().unwrap();
        assert_eq!(out[..length], numbered_block(8));
        let expected = ReaderCounts { blocks: 1, bytes: length as u64, lost: 0, skipped: 8 };
        assert_eq!((paced.counts(), paced.reader().writer_counts().blocks), (expected, 9));
    }
}

#[test]
fn disconnected_or_departed_reader_stalls_no_writer() {
    for_each_ring(|what, policy, mut writer, mut readers| {
        let all = readers.len();
        writer.disconnect(0);
        let left = readers.drain(1..).collect::<Vec<_>>();
        drop(left);
        let mut written = 0;
        let ended = loop {
            match writer.write(&numbered_block(written)) {
                Ok(true) => written += 1,
                Ok(false) => break None,
                Err(fault) => break Some(fault),
            }
            if written > 200 {
                break None;
            }
        };
        // A ring that retains unread blocks notices departed readers when it needs room; a ring
        // that overwrites never checks.
        let has_noticed = ended == Some(Fault::Abandoned);
        assert!(
            has_noticed || policy == OverflowPolicy::Overwrite,
            "{what}: {written} of {all}, {ended:?}"
        );
    });
}

#[test]
fn both_sides_publish_their_counts() {
    for_each_ring(|what, _, mut writer, mut readers| {
        for number in 0..9 {
            assert!(writer.write(&numbered_block(number)).unwrap());
        }
        writer.publish();
        for (at, reader) in readers.iter_mut().enumerate() {
            for _ in 0..at + 2 {
                read_block(&mut **reader);
            }
            reader.release();
            assert_eq!(writer.reader_counts(at), Some(reader.counts()), "{what}");
            assert_eq!(reader.writer_counts(), writer.counts(), "{what}");
            let resident = writer.counts().resident_blocks(&reader.counts());
            assert_eq!(resident, Some(9 - (at as u64 + 2)), "{what}");
        }
        assert_eq!(writer.reader_counts(readers.len()), None, "{what}");
    });
}
