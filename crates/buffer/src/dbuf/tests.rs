//! Tests of rings of blocks: wrap-around, policies, lap counts, and a writer that stores forged
//! values.

use super::*;
use abi::ring::writer::{COMMITTED_POSITION, RESERVED_POSITION, RESUME_POSITION};
use abi::ring::{PAGE_WORDS, RecordHeader};
use std::sync::atomic::Ordering;

fn ring_config(capacity: usize, policy: OverflowPolicy, readers: usize) -> BlockConfig {
    BlockConfig { capacity, policy, readers, ..BlockConfig::new(DbufId::new(5).unwrap()) }
}

/// Returns the block with this number. Its length and content depend only on the number.
fn numbered_block(number: u64) -> Vec<u8> {
    let length = 8 + (number.wrapping_mul(2_654_435_761) >> 7) as usize % 900;
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((8..length).map(|i| (number.wrapping_mul(31) + i as u64) as u8));
    bytes
}

fn block_number(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, numbered_block(number), "torn");
    number
}

#[test]
fn blocks_stay_intact_and_ordered_across_wraps() {
    let (mut writer, mut readers) = ring(&ring_config(4096, OverflowPolicy::Block, 2));
    let (mut wrote, mut read) = (0, 0);
    while read < 3000 {
        while writer.write(&numbered_block(wrote)).unwrap() {
            wrote += 1;
        }
        writer.publish();
        assert_eq!(readers[0].peek().unwrap().map(block_number), Some(read), "peek takes nothing");
        while let Some(bytes) = readers[0].next_block().unwrap() {
            assert_eq!(block_number(bytes), read);
            let mut copy = [0; 1024];
            let length = readers[1].read(&mut copy).unwrap().unwrap();
            assert_eq!(block_number(&copy[..length]), read);
            read += 1;
        }
        readers[0].release();
    }
    assert_eq!(wrote, read);
    for (index, reader) in readers.iter().enumerate() {
        assert_eq!(writer.counts().resident_blocks(&reader.counts()), Some(0));
        assert_eq!(writer.counts().bytes, reader.counts().bytes);
        assert_eq!(writer.reader_counts(index), Some(reader.counts()));
    }
}

#[test]
fn d14_a20_position_determines_the_lap() {
    let (mut writer, mut readers) = ring(&ring_config(4096, OverflowPolicy::Block, 1));
    let (mut before, mut out) = (0, [0; 1000]);
    for lap in 0..50 {
        for part in 0..4 {
            let room = writer.reserve(1000).unwrap().unwrap();
            let position = room.commit(1000).position();
            assert!(position >= before, "positions never go back");
            // The block follows a 16-byte header; four such records fill a lap.
            assert_eq!((position / 4096, position % 4096), (lap, 1024 * part + 16));
            before = position;
            writer.publish();
            assert_eq!(readers[0].read(&mut out), Ok(Some(1000)));
            readers[0].release();
        }
    }
}

#[test]
fn uncommitted_or_unpublished_blocks_are_invisible() {
    let (mut writer, mut readers) = ring(&ring_config(4096, OverflowPolicy::Block, 1));
    let mut room = writer.reserve(100).unwrap().unwrap();
    room.fill(7);
    drop(room);
    writer.publish();
    assert_eq!(readers[0].peek(), Ok(None));
    let mut room = writer.reserve(100).unwrap().unwrap();
    room.fill(8);
    let place = room.commit(10);
    assert_eq!((place.position(), place.length()), (16, 10));
    assert_eq!(readers[0].peek(), Ok(None));
    writer.publish();
    assert_eq!(readers[0].peek(), Ok(Some(&[8; 10][..])));
    assert_eq!(readers[0].read(&mut [0; 9]), Err(Fault::TooLong { length: 10, limit: 9 }));
    assert!(readers[0].skip().unwrap(), "and it is still there");
    assert!(!readers[0].skip().unwrap());
    drop(writer);
    assert!(readers[0].is_finished().unwrap());
}

#[test]
fn full_ring_waits_drops_or_overwrites_by_policy() {
    for policy in [OverflowPolicy::Block, OverflowPolicy::DropNew, OverflowPolicy::Overwrite] {
        let (mut writer, mut readers) = ring(&ring_config(4096, policy, 1));
        let limit = writer.block_length_max();
        assert_eq!(limit, 2032);
        let longer = writer.reserve(limit + 1).map(|room| room.is_some());
        assert_eq!(longer, Err(Fault::TooLong { length: limit + 1, limit }));
        let put = (0..4).filter(|_| writer.write(&[1; 2032]).unwrap()).count();
        writer.publish();
        let count = writer.counts();
        match policy {
            OverflowPolicy::Block => assert_eq!((put, count.dropped), (2, 0)),
            OverflowPolicy::DropNew => {
                assert_eq!((put, count.dropped, count.dropped_bytes), (2, 2, 4064))
            }
            OverflowPolicy::Overwrite => {
                assert_eq!(put, 4);
                assert_eq!(readers[0].peek(), Err(Fault::Lossy));
            }
        }
        let mut out = [0; 2032];
        let mut received = 0;
        while readers[0].read(&mut out).unwrap().is_some() {
            assert_eq!(out, [1; 2032]);
            received += 1;
        }
        assert_eq!(received + readers[0].counts().lost, put as u64, "{policy:?}");
        assert_eq!(writer.counts().resident_blocks(&readers[0].counts()), Some(0));
        readers.clear();
        if policy != OverflowPolicy::Overwrite {
            while writer.write(&[1; 2032]).unwrap_or(false) {}
            assert!(writer.write(&[1; 2032]).is_err(), "nobody reads any more");
        }
    }
}

#[test]
fn overwriting_ring_counts_every_loss() {
    const BLOCK_COUNT: u64 = 100_000;
    for capacity in [4096, 32768] {
        let (mut writer, readers) = ring(&ring_config(capacity, OverflowPolicy::Overwrite, 2));
        std::thread::scope(|scope| {
            for (rate, mut reader) in readers.into_iter().enumerate() {
                scope.spawn(move || {
                    let (mut out, mut next) = ([0; 1024], 0);
                    while !reader.is_finished().unwrap() {
                        let Some(length) = reader.read(&mut out).unwrap() else {
                            std::thread::yield_now();
                            continue;
                        };
                        let number = block_number(&out[..length]);
                        assert!(number >= next, "backwards");
                        next = number + 1;
                        if rate == 1 && number.is_multiple_of(64) {
                            std::thread::yield_now();
                        }
                    }
                    let (put, taken) = (reader.writer_counts(), reader.counts());
                    assert_eq!(put.blocks, BLOCK_COUNT);
                    assert_eq!(taken.blocks + taken.lost, BLOCK_COUNT, "got + lost = produced");
                });
            }
            scope.spawn(move || {
                for number in 0..BLOCK_COUNT {
                    assert!(writer.write(&numbered_block(number)).unwrap());
                    if number.is_multiple_of(8) {
                        writer.publish();
                    }
                }
            });
        });
    }
}

#[test]
fn blocking_ring_loses_nothing_between_threads() {
    const BLOCK_COUNT: u64 = 50_000;
    let (mut writer, readers) = ring(&ring_config(8192, OverflowPolicy::Block, 2));
    std::thread::scope(|scope| {
        for mut reader in readers {
            scope.spawn(move || {
                let mut next = 0;
                while !reader.is_finished().unwrap() {
                    while let Some(bytes) = reader.next_block().unwrap() {
                        assert_eq!(block_number(bytes), next);
                        next += 1;
                    }
                    reader.release();
                    std::thread::yield_now();
                }
                assert_eq!(next, BLOCK_COUNT);
            });
        }
        scope.spawn(move || {
            for number in 0..BLOCK_COUNT {
                while !writer.write(&numbered_block(number)).unwrap() {
                    writer.publish();
                    std::thread::yield_now();
                }
            }
        });
    });
}

/// The writer stores arbitrary values into its control words and its data (T3, T4). The reader
/// fails with a fault or continues, and writes nothing outside its buffer.
#[test]
fn reader_survives_arbitrary_words_from_the_writer() {
    let mut random = 0x5eed_5eed_5eed_5eedu64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let (mut faults, mut blocks) = (0, 0);
    for round in 0..20_000 {
        let policy =
            [OverflowPolicy::Block, OverflowPolicy::DropNew, OverflowPolicy::Overwrite][round % 3];
        let (mut writer, mut readers) = ring(&ring_config(4096, policy, 1));
        for number in 0..4 {
            writer.write(&numbered_block(number)).unwrap();
        }
        writer.publish();
        let store = writer.cursor_mut().store.clone();
        for _ in 0..1 + next() % 3 {
            let value = match next() % 6 {
                0 => next(),
                1 => next() % 8192,
                2 => u64::MAX - next() % 32,
                3 => (1 << 31) + next() % 3,
                4 => (1 << 63) - next() % 3,
                _ => RecordHeader {
                    length: next() as u32 % 5000,
                    kind: RecordHeader::KIND_BLOCK,
                    sequence: 0,
                }
                .words()[0],
            };
            let word = match next() % 5 {
                0 => COMMITTED_POSITION,
                1 => RESERVED_POSITION,
                2 => RESUME_POSITION,
                _ => PAGE_WORDS + next() as usize % 256,
            };
            store.writer.word(word).store(value, Ordering::Relaxed);
        }
        let mut out = [0; 4096];
        for _ in 0..50 {
            match readers[0].read(&mut out) {
                Ok(Some(_)) => blocks += 1,
                Ok(None) => break,
                Err(fault) => {
                    faults += 1;
                    assert!(!fault.to_string().is_empty());
                    break;
                }
            }
        }
        let _ = readers[0].is_finished();
        let _ = readers[0].peek();
    }
    assert!(faults > 1000 && blocks > 1000, "{faults} faults, {blocks} blocks");
}

#[test]
fn disconnected_reader_does_not_stall_the_writer() {
    let (mut writer, mut readers) = ring(&ring_config(4096, OverflowPolicy::Block, 2));
    while writer.write(&[1; 500]).unwrap() {}
    writer.publish();
    while readers[1].skip().unwrap() {}
    readers[1].release();
    assert!(!writer.write(&[2; 500]).unwrap());
    writer.disconnect(0);
    assert!(writer.write(&[2; 500]).unwrap());
}
