//! Tests of readers that join and leave while the writer writes.

use super::*;
use crate::stream::Input;
use crate::{Fault, OverflowPolicy};
use abi::DbufId;
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::Random;

fn stream_config() -> Config {
    Config::new(DbufId::new(5).unwrap()).capacity(4096)
}

fn numbered_block(number: u64) -> Vec<u8> {
    let mut block = number.to_le_bytes().to_vec();
    block.resize(8 + usize::try_from(number * 31 % 300).unwrap(), number as u8);
    block
}

/// Returns the number of a block, after checking the block's content.
fn block_number(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, numbered_block(number), "block {number}");
    number
}

fn admit_reader(admission: &Admission) -> (ReaderTicket, Input) {
    let (ticket, offer) = admission.admit().unwrap().unwrap();
    (ticket, offer.open().unwrap())
}

/// Reads one block and returns its number, or `None` at the end of the stream. Checks the content
/// of the block, and its number if one is expected.
fn read_expected(input: &mut Input, expected: Option<u64>) -> Result<Option<u64>, Fault> {
    let mut head = [0; 8];
    if input.read(&mut head)? == 0 {
        return Ok(None);
    }
    let next = u64::from_le_bytes(head);
    let mut bytes = numbered_block(next);
    let mut done = 8;
    while done < bytes.len() {
        done += input.read(&mut bytes[done..])?;
    }
    assert_eq!(block_number(&bytes), expected.unwrap_or(next));
    Ok(Some(next))
}

#[test]
fn late_reader_starts_at_the_head_of_an_idle_writer() {
    let (mut output, admission) = joinable_stream(&stream_config()).unwrap();
    for at in 0..1000 {
        assert!(output.write(&numbered_block(at)).unwrap(), "no reader and no wait");
    }
    output.flush();
    let (_, mut first) = admit_reader(&admission);
    assert_eq!(first.try_read(&mut [0; 100]).unwrap(), None, "nothing that was before");
    output.write(&numbered_block(1000)).unwrap();
    output.flush();
    let (_, mut second) = admit_reader(&admission);
    output.write(&numbered_block(1001)).unwrap();
    drop(output);
    assert!(admission.admit().unwrap().is_none() && admission.has_ended());
    assert_eq!(read_expected(&mut first, Some(1000)), Ok(Some(1000)));
    assert_eq!(read_expected(&mut first, Some(1001)), Ok(Some(1001)));
    assert_eq!(read_expected(&mut second, Some(1001)), Ok(Some(1001)));
    for input in [&mut first, &mut second] {
        assert_eq!((read_expected(input, None), input.counts().lost), (Ok(None), 0));
    }
}

/// Readers join at any moment, read for a while, and leave with or without an announcement.
#[test]
fn d9_readers_join_and_leave_without_losing_blocks() {
    let mut random = Random::with_replayable_seed();
    for policy in [OverflowPolicy::Block, OverflowPolicy::DropNew] {
        let (mut output, admission) = joinable_stream(&stream_config().policy(policy)).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = &stop;
            scope.spawn(move || {
                let mut at = 0;
                while !stop.load(Ordering::Relaxed) {
                    at += u64::from(output.write(&numbered_block(at)).unwrap());
                }
            });
            let mut readers = Vec::new();
            for _ in 0..3 {
                let (mut random, admission) = (Random::new(random.next_u64()), &admission);
                readers.push(scope.spawn(move || {
                    for _ in 0..60 {
                        let (ticket, offer) = admission.admit().unwrap().unwrap();
                        if random.below(4) == 0 {
                            // Like a killed process, which only closes its descriptors.
                            drop(offer);
                            admission.leave(ticket);
                            continue;
                        }
                        let (mut input, mut next) = (offer.open().unwrap(), None);
                        for _ in 0..random.below(200) {
                            next =
                                read_expected(&mut input, next).unwrap().map(|number| number + 1);
                        }
                    }
                }));
            }
            let ended: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
            stop.store(true, Ordering::Relaxed);
            ended.into_iter().for_each(|reader| reader.unwrap());
        });
    }
}

#[test]
fn overwriting_ring_admits_readers() {
    let (mut output, admission) =
        joinable_stream(&stream_config().policy(OverflowPolicy::Overwrite)).unwrap();
    (0..500).for_each(|at| assert!(output.write(&numbered_block(at)).unwrap()));
    output.flush();
    let (_, mut input) = admit_reader(&admission);
    assert_eq!(input.try_read(&mut [0; 400]).unwrap(), None);
    output.write(&numbered_block(500)).unwrap();
    output.flush();
    let mut room = [0; 400];
    let count = input.read(&mut room).unwrap();
    assert_eq!(block_number(&room[..count]), 500);
}

#[test]
fn indices_of_departed_readers_are_reused() {
    let (mut output, admission) = joinable_stream(&stream_config()).unwrap();
    for round in 0..100 {
        let (ticket, mut input) = admit_reader(&admission);
        output.write(&numbered_block(round)).unwrap();
        output.flush();
        assert_eq!(read_expected(&mut input, Some(round)), Ok(Some(round)));
        if round % 2 == 0 {
            std::mem::forget(input);
            admission.leave(ticket);
        } else {
            drop(input);
        }
        output.flush();
    }
    assert!(output.reader_count() <= 2, "{}", output.reader_count());
}

#[test]
fn writer_is_abandoned_once_no_reader_can_join() {
    let (mut output, admission) = joinable_stream(&stream_config()).unwrap();
    let (_, input) = admit_reader(&admission);
    drop(input);
    for at in 0..100 {
        output.write(&numbered_block(at)).unwrap();
    }
    drop(admission);
    let fault = (0..1000).find_map(|at| output.write(&numbered_block(at)).err());
    assert_eq!(fault, Some(Fault::Abandoned));
}

/// A reader that has joined a running stream stores arbitrary values into its own page. The reader
/// is evicted and counted; if the value is a possible position, the test disconnects the reader
/// instead. The two other readers get every byte (T3).
#[test]
fn t3_hostile_cursor_does_not_affect_other_readers() {
    use abi::ring::{PAGE_SIZE, STATE_CLOSED, reader};
    use std::os::unix::fs::FileExt as _;
    let edges = [0, 1, 2, 7, 8, 4095, 4096, 4097, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 32];
    let edges = edges.into_iter().chain([1 << 63, (1 << 63) - 1, u64::MAX - 7, u64::MAX]);
    let words = [reader::RELEASED_POSITION, reader::WAIT, reader::WAIT + 1, reader::LEDGER];
    let mut location: Vec<Vec<(usize, u64)>> = edges
        .clone()
        .flat_map(|value| words.map(|word| vec![(word, value)]))
        .chain([vec![(reader::STATE, STATE_CLOSED)], vec![(reader::STATE, u64::MAX)]])
        .collect();
    // Forges the whole page, and a cursor that moves backwards.
    location.extend(edges.map(|value| (0..PAGE_SIZE / 8).map(|word| (word, value)).collect()));
    location.push(vec![(reader::RELEASED_POSITION, 800), (reader::RELEASED_POSITION, 16)]);
    for lie in location {
        let (mut output, admission) = joinable_stream(&stream_config()).unwrap();
        let (_, hostile) = admission.admit().unwrap().unwrap();
        let page = std::fs::File::from(hostile.descriptors()[2].try_clone_to_owned().unwrap());
        let mut honest = [admit_reader(&admission).1, admit_reader(&admission).1];
        let mut received = [0, 0];
        let mut drain = |output: &mut Output| {
            output.flush();
            for (input, received) in honest.iter_mut().zip(&mut received) {
                let mut head = [0; 8];
                while input.try_read(&mut head).unwrap().is_some_and(|length| length > 0) {
                    let mut bytes = numbered_block(u64::from_le_bytes(head));
                    let mut done = 8;
                    while done < bytes.len() {
                        done += input.read(&mut bytes[done..]).unwrap();
                    }
                    assert_eq!(block_number(&bytes), *received, "{lie:?}");
                    *received += 1;
                }
            }
        };
        let mut location = lie.iter();
        for at in 0..200 {
            let ready = output.is_ready(numbered_block(at).len());
            if !ready.unwrap() {
                drain(&mut output);
                let lie = location.next();
                lie.into_iter().for_each(|(word, value)| {
                    page.write_all_at(&value.to_le_bytes(), *word as u64 * 8).unwrap();
                });
                // A forged value that does not evict the reader keeps the ring full, so the reader
                // is disconnected explicitly.
                if lie.is_none() && !output.is_ready(numbered_block(at).len()).unwrap() {
                    output.disconnect(0);
                }
            }
            while !output.is_ready(numbered_block(at).len()).unwrap() {
                drain(&mut output);
                if let Some((word, value)) = location.next() {
                    page.write_all_at(&value.to_le_bytes(), *word as u64 * 8).unwrap();
                } else {
                    output.disconnect(0);
                }
            }
            assert_eq!(output.write(&numbered_block(at)), Ok(true), "{lie:?}");
        }
        drain(&mut output);
        assert_eq!(received, [200, 200], "{lie:?}");
        assert!(output.evicted_readers() <= 1, "{lie:?}: counted once");
        if lie == [(reader::RELEASED_POSITION, u64::MAX)] {
            assert_eq!(output.evicted_readers(), 1);
        }
        drop(hostile);
    }
}
