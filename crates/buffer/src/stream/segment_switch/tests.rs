//! Tests of changes to a stream within one process: sizes, positions across segments, revocation,
//! and invalid segments.

use crate::stream::tests::{open, stream_byte};
use crate::stream::{ChangeError, Config, Input, Output, WaitResult, joinable_stream};
use crate::{Fault, OverflowPolicy};
use abi::DbufId;
use std::time::{Duration, Instant};
use testkit::Random;

fn stream_config(policy: OverflowPolicy) -> Config {
    Config::new(DbufId::new(3).unwrap()).capacity(4096).policy(policy)
}

/// Reads until no more bytes are available, and returns the bytes.
fn drain_input(input: &mut Input) -> Vec<u8> {
    let (mut all, mut out) = (Vec::new(), [0; 700]);
    while let Some(count) = input.try_read(&mut out).unwrap() {
        if count == 0 {
            break;
        }
        all.extend_from_slice(&out[..count]);
    }
    all
}

/// The ring grows and shrinks repeatedly while blocks flow, with any amount unread, and no byte is
/// lost or reordered.
#[test]
fn f2_reallocation_keeps_bytes_in_order() {
    let mut random = Random::with_replayable_seed();
    for _ in 0..60 {
        let (mut output, mut inputs) = open(&stream_config(OverflowPolicy::Block).readers(2));
        let (mut written, mut read) = (0, [0, 0]);
        let (mut grown, mut shrunk, mut refused) = (0, 0, 0);
        for _ in 0..400 {
            match random.below(8) {
                0..4 => {
                    let length = random.below(output.block_length_max().min(3000) as u64) as usize;
                    let block: Vec<u8> = (written..written + length).map(stream_byte).collect();
                    if output.is_ready(length).unwrap() {
                        assert!(output.write(&block).unwrap());
                        written += length;
                    }
                }
                4 => {
                    output.flush();
                    let before = output.capacity();
                    let size = 4096 << random.below(7);
                    match output.resize(size) {
                        Ok(()) if size > before => grown += 1,
                        Ok(()) => shrunk += u32::from(size < before),
                        Err(ChangeError::InProgress) => refused += 1,
                        Err(stay) => panic!("{stay}"),
                    }
                }
                reader => {
                    output.flush();
                    let reader = reader as usize % 2;
                    let mut out = vec![0; 1 + random.below(5000) as usize];
                    if let Some(count) = inputs[reader].try_read(&mut out).unwrap() {
                        for value in &out[..count] {
                            assert_eq!(*value, stream_byte(read[reader]), "at {}", read[reader]);
                            read[reader] += 1;
                        }
                    }
                }
            }
        }
        drop(output);
        for (input, read) in inputs.iter_mut().zip(read) {
            let rest: Vec<u8> = (read..written).map(stream_byte).collect();
            assert!(drain_input(input) == rest, "{grown} {shrunk}");
            assert_eq!(input.read(&mut [0; 9]), Ok(0), "the end");
        }
        assert!(grown + shrunk + refused > 10, "{grown} {shrunk} {refused}");
    }
}

/// A completely full ring grows, and the writer continues without waiting.
#[test]
fn f2_full_ring_grows_and_writer_continues() {
    let (mut output, mut inputs) = open(&stream_config(OverflowPolicy::Block));
    let mut count = 0;
    while output.is_ready(100).unwrap() {
        output.write(&[1; 100]).unwrap();
        count += 1;
    }
    output.resize(1 << 16).unwrap();
    assert!(output.is_ready(30_000).unwrap(), "the new memory is free, whatever is unread");
    assert_eq!(
        output.resize(1 << 17),
        Err(ChangeError::InProgress),
        "the reader is still in the first"
    );
    assert_eq!(output.resize(usize::MAX), Err(ChangeError::Size(usize::MAX)));
    output.write(&[2; 30_000]).unwrap();
    output.flush();
    let all = drain_input(&mut inputs[0]);
    assert_eq!(all.len(), count * 100 + 30_000);
    assert_eq!((output.segment_number(), output.capacity()), (1, 1 << 16));
    let taken = inputs[0].counts();
    assert_eq!(
        (taken.blocks, output.counts().resident_blocks(&taken)),
        (count as u64 + 1, Some(0))
    );
    output.resize(4096).unwrap();
    assert_eq!((output.segment_number(), output.block_length_max()), (2, 2032));
}

/// In an overwriting ring losses are counted exactly across segments.
#[test]
fn f2_overwriting_ring_counts_across_segments() {
    let mut random = Random::with_replayable_seed();
    let (mut output, mut inputs) = open(&stream_config(OverflowPolicy::Overwrite));
    let input = &mut inputs[0];
    let (mut next, mut received, mut resized) = (0u64, 0, 0);
    let mut out = [0; 2048];
    for _ in 0..20_000 {
        match random.below(20) {
            0 => {
                output.flush();
                resized += u32::from(output.resize(4096 << random.below(5)).is_ok());
            }
            1..6 => {
                output.flush();
                if let Some(count) = input.try_read(&mut out).unwrap() {
                    let number = u64::from_le_bytes(out[..8].try_into().unwrap());
                    assert_eq!(out[8..count], vec![number as u8; count - 8], "torn");
                    received += 1;
                    assert_eq!(
                        number + 1,
                        received + input.counts().lost,
                        "what is missing is lost"
                    );
                }
            }
            _ => {
                let length = 8 + random.below(900) as usize;
                let mut block = vec![next as u8; length];
                block[..8].copy_from_slice(&next.to_le_bytes());
                assert!(output.write(&block).unwrap());
                next += 1;
            }
        }
    }
    output.flush();
    while input.try_read(&mut out).unwrap().is_some() {
        received += 1;
    }
    assert_eq!(received + input.counts().lost, next);
    assert!(resized > 20 && input.counts().lost > 100, "{resized} {:?}", input.counts());
}

/// A position is valid in every segment: positions only grow, and position p is stored at p mod
/// capacity in every segment.
#[test]
fn f4_a20_positions_continue_across_segments() {
    let (mut output, mut inputs) = open(&stream_config(OverflowPolicy::Block));
    let mut last = 0;
    for size in [8192, 65_536, 4096, 16_384] {
        output.write(&[7; 500]).unwrap();
        output.resize(size).unwrap();
        let (head, side) = (output.ring.head(), output.ring.cursor_mut());
        assert!(head > last && side.capacity == size as u64);
        last = head;
        assert_eq!(drain_input(&mut inputs[0]).len(), 500);
    }
}

/// A revoked reader reads the blocks written for it, then fails with [`Fault::Revoked`]; the other
/// reader is not affected. (RELIABILITY T11)
#[test]
fn t11_revoked_reader_reads_up_to_the_switch() {
    for policy in [OverflowPolicy::Block, OverflowPolicy::Overwrite] {
        let (mut output, mut inputs) = open(&stream_config(policy).readers(2));
        output.write(b"for both").unwrap();
        output.revoke(0).unwrap();
        output.write(b"for one").unwrap();
        output.flush();
        let mut out = [0; 100];
        assert_eq!(inputs[0].read(&mut out), Ok(8));
        let position = 16 + 16 + 16;
        assert_eq!(inputs[0].read(&mut out), Err(Fault::Revoked { position }));
        assert_eq!(inputs[0].read(&mut out), Err(Fault::Revoked { position }), "and stays there");
        assert_eq!(inputs[1].read(&mut out), Ok(8));
        assert_eq!(inputs[1].read(&mut out), Ok(7));
        assert_eq!(output.revoke(0), Err(ChangeError::Reader(0)), "once");
        assert_eq!(output.revoke(9), Err(ChangeError::Reader(9)));
        // The writer does not wait for the revoked reader.
        for _ in 0..100 {
            output.write(&[3; 1000]).unwrap();
            output.flush();
            while inputs[1].try_read(&mut [0; 4096]).unwrap().is_some() {}
        }
    }
}

/// Readers join at any time between segments, and each gets all blocks written afterwards.
#[test]
fn reader_joining_between_segments_gets_later_blocks() {
    let mut random = Random::with_replayable_seed();
    let (mut output, admission) = joinable_stream(&stream_config(OverflowPolicy::Block)).unwrap();
    let mut inputs: Vec<(Input, u64)> = Vec::new();
    let mut number = 0u64;
    for _ in 0..3000 {
        match random.below(12) {
            0 if inputs.len() < 6 => {
                output.flush();
                let (_, offer) = admission.admit().unwrap().unwrap();
                inputs.push((offer.open().unwrap(), number));
            }
            1 => {
                output.flush();
                let _ = output.resize(4096 << random.below(5));
            }
            2 if inputs.len() > 3 => {
                let at = random.below(inputs.len() as u64) as usize;
                inputs.remove(at);
            }
            3..8 => {
                if output.is_ready(300).unwrap() {
                    let length = 8 + (number % 290) as usize;
                    let mut block = vec![0; length];
                    block[..8].copy_from_slice(&number.to_le_bytes());
                    assert!(output.write(&block).unwrap());
                    number += 1;
                }
            }
            _ => {
                output.flush();
                for (input, next) in &mut inputs {
                    let mut out = [0; 300];
                    let length = 8 + (*next % 290) as usize;
                    if let Some(count) = input.try_read(&mut out[..length]).unwrap() {
                        assert_eq!((count, &out[..8]), (length, &next.to_le_bytes()[..]));
                        *next += 1;
                    }
                }
            }
        }
    }
    assert!(number > 300 && output.segment_number() > 5, "{number} {}", output.segment_number());
}

/// Block-wise reads and skips continue across a switch.
#[test]
fn block_reads_and_skips_cross_a_switch() {
    use crate::stream::BlockReadResult;
    let (mut output, mut inputs) = open(&stream_config(OverflowPolicy::Block).readers(2));
    output.write(b"one").unwrap();
    output.resize(8192).unwrap();
    output.write(b"two").unwrap();
    output.flush();
    let mut out = [0; 9];
    assert_eq!(inputs[0].read_block(&mut out), Ok(BlockReadResult::Block(3)));
    assert_eq!(inputs[0].read_block(&mut out), Ok(BlockReadResult::Block(3)));
    assert_eq!(
        (inputs[0].read_block(&mut out), &out[..3]),
        (Ok(BlockReadResult::Nothing), &b"two"[..])
    );
    assert_eq!(inputs[1].skip_to_now(), Ok(2));
    output.write(b"three").unwrap();
    output.revoke(1).unwrap();
    assert_eq!(inputs[1].read_block(&mut out), Ok(BlockReadResult::Block(5)));
    assert!(matches!(inputs[1].read_block(&mut out), Err(Fault::Revoked { .. })));
    drop(output);
    assert_eq!(inputs[0].skip_to_now(), Ok(1));
    assert_eq!(inputs[0].read_block(&mut out), Ok(BlockReadResult::End));
}

/// A writer that waits for room and a reader that waits for blocks are woken on either side of a
/// switch.
#[test]
fn sleeping_parties_are_woken_across_a_switch() {
    for spins in [0, 2000] {
        let (mut output, mut inputs) = open(&stream_config(OverflowPolicy::Block));
        let mut input = inputs.remove(0);
        output.set_spin_limit(spins);
        input.set_spin_limit(spins);
        const BYTES: usize = 4_000_000;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut at, mut random) = (0, Random::new(5));
                while at < BYTES {
                    let length = (1 + random.below(1500) as usize).min(BYTES - at);
                    let block: Vec<u8> = (at..at + length).map(stream_byte).collect();
                    assert!(output.write(&block).unwrap());
                    at += length;
                    if random.below(10) == 0 {
                        resize_ring(&mut output, 4096 << random.below(4));
                    }
                }
                assert!(output.segment_number() > 20, "{}", output.segment_number());
            });
            let (mut at, mut out) = (0, [0; 2000]);
            loop {
                match input.read(&mut out).unwrap() {
                    0 => break,
                    count => {
                        for (i, value) in out[..count].iter().enumerate() {
                            assert_eq!(*value, stream_byte(at + i), "at {}", at + i);
                        }
                        at += count;
                    }
                }
            }
            assert_eq!(at, BYTES);
        });
    }
}

fn resize_ring(output: &mut Output, size: usize) {
    match output.resize(size) {
        Ok(()) | Err(ChangeError::InProgress) => {}
        Err(stay) => panic!("{stay}"),
    }
}

/// Opens a stream whose capacity changes in place.
fn open_stream_resizable_in_place(extent: usize, readers: usize) -> (Output, Vec<Input>) {
    let config =
        stream_config(OverflowPolicy::Block).in_place_capacity_max(extent).readers(readers);
    let (output, offers) = crate::stream::stream(&config).unwrap();
    (output, offers.into_iter().map(|offer| offer.open_trusting().unwrap()).collect())
}

/// The writer sleeps until the reader has passed a change to capacity, which is the last record in
/// the ring. Passing the change wakes the writer.
#[test]
fn f3_reader_that_passes_a_cut_wakes_the_writer() {
    const BLOCKS: usize = 20_000;
    const LIMIT: Duration = Duration::from_secs(20);
    let (mut output, mut inputs) = open_stream_resizable_in_place(256 << 10, 1);
    // As if both sides shared a processor: the writer sleeps immediately, until little data is
    // left.
    output.set_spin_limit(0);
    let mut input = inputs.remove(0);
    input.set_spin_limit(0);
    let writer = std::thread::spawn(move || {
        for number in 0..BLOCKS {
            if number % 20 == 0 {
                resize_ring(&mut output, [64 << 10, 256 << 10][number / 20 % 2]);
            }
            assert!(output.write(&[7; 9000]).unwrap());
        }
    });
    let (mut out, mut read) = (vec![0; 9000], 0);
    loop {
        match input.try_read(&mut out).unwrap() {
            Some(0) => break,
            Some(count) => read += count,
            // Far longer than a writer ever takes, unless both sides wait.
            None => {
                let begin = Instant::now();
                let woken = input.wait(Some(LIMIT)).unwrap();
                let asleep = woken == WaitResult::NotReady && begin.elapsed() >= LIMIT;
                assert!(!asleep, "both sides wait after {read} bytes");
            }
        }
    }
    writer.join().unwrap();
    assert_eq!(read, BLOCKS * 9000);
}

/// The capacity changes in the same memory, up and down, while blocks flow; memory beyond the
/// capacity is released when the last reader has passed the change.
#[test]
fn f3_deck_cut_resizes_in_place_and_releases_memory() {
    const EXTENT: usize = 1 << 20;
    let mut random = Random::with_replayable_seed();
    let (mut output, mut inputs) = open_stream_resizable_in_place(EXTENT, 2);
    let (mut written, mut read, mut cut) = (0, [0, 0], 0);
    for _ in 0..20_000 {
        match random.below(8) {
            0..4 => {
                let length = random.below(output.block_length_max().min(3000) as u64) as usize;
                if output.is_ready(length).unwrap() {
                    let block: Vec<u8> = (written..written + length).map(stream_byte).collect();
                    assert!(output.write(&block).unwrap());
                    written += length;
                }
            }
            4 if random.below(10) == 0 => {
                output.flush();
                match output.resize(4096 << random.below(9)) {
                    Ok(()) => cut += 1,
                    Err(ChangeError::InProgress) => {}
                    Err(stay) => panic!("{stay}"),
                }
            }
            reader => {
                output.flush();
                let reader = reader as usize % 2;
                let mut out = vec![0; 1 + random.below(9000) as usize];
                if let Some(count) = inputs[reader].try_read(&mut out).unwrap() {
                    for value in &out[..count] {
                        assert_eq!(*value, stream_byte(read[reader]), "at {}", read[reader]);
                        read[reader] += 1;
                    }
                }
            }
        }
    }
    assert!(cut > 30, "{cut}");
    for size in [EXTENT, 8192] {
        output.flush();
        inputs.iter_mut().for_each(|input| drop(drain_input(input)));
        output.flush();
        output.resize(size).unwrap();
        output.flush();
        inputs.iter_mut().for_each(|input| drop(drain_input(input)));
        output.flush();
        assert_eq!(output.resident_bytes(), Some(4096 + size as u64), "what the kernel holds");
    }
    assert_eq!(output.segment_number(), 0, "all in the same memory");
    assert_eq!(output.resize(2 * EXTENT), Err(ChangeError::Size(2 * EXTENT)));
    assert_eq!(output.capacity(), 8192);
}

/// A reader that does not trust its writer refuses a ring into which the writer can punch holes.
#[test]
fn f3_untrusting_reader_refuses_a_deck_cut_ring() {
    let (_output, offers) =
        crate::stream::stream(&stream_config(OverflowPolicy::Block).in_place_capacity_max(1 << 20))
            .unwrap();
    for offer in offers {
        assert!(matches!(offer.open(), Err(crate::share::OfferRefusal::Geometry(_))));
    }
    // A ring that overwrites is never cut.
    let config = stream_config(OverflowPolicy::Overwrite).in_place_capacity_max(1 << 20);
    let (mut output, mut offers) = crate::stream::stream(&config).unwrap();
    let mut input = offers.remove(0).open().unwrap();
    output.resize(8192).unwrap();
    output.write(b"in a new segment").unwrap();
    drop(output);
    assert_eq!(drain_input(&mut input), b"in a new segment");
}
