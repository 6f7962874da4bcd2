//! Tests that peeked bytes equal the written bytes, regardless of changes to the ring in between.

use crate::stream::{Config, Input, Output, stream};
use crate::{Fault, OverflowPolicy};
use abi::DbufId;
use std::os::fd::AsFd;
use testkit::Random;

fn stream_config() -> Config {
    Config::new(DbufId::new(3).unwrap()).capacity(8192)
}

fn open_trusted(config: &Config) -> (Output, Input) {
    let (output, mut offers) = stream(config).unwrap();
    (output, offers.remove(0).open_trusting().unwrap())
}

/// Blocks of any length are peeked and taken in parts, mixed with reads. All bytes arrive in order,
/// and peeked bytes are in the ring's memory.
#[test]
fn d10_blocks_of_a_trusted_writer_are_peeked_in_place() {
    let mut random = Random::with_replayable_seed();
    let (mut output, mut input) = open_trusted(&stream_config());
    let (mut sent, mut received, mut peeks) = (Vec::new(), Vec::new(), 0);
    while received.len() < 400_000 {
        while sent.len() < 400_000 && output.is_ready(2000).unwrap() {
            let length = random.within(0..2000);
            let block = random.bytes(length);
            output.write(&block).unwrap();
            sent.extend_from_slice(&block);
        }
        output.flush();
        let mut out = vec![0; random.within(1..3000)];
        if random.within(0..4) == 0 {
            let count = input.try_read(&mut out).unwrap().unwrap_or(0);
            received.extend_from_slice(&out[..count]);
            continue;
        }
        let Some(block) = input.peek().unwrap() else { continue };
        let (bytes, at) = (block.to_vec(), block.as_ptr());
        assert_eq!(input.peek().unwrap().unwrap().as_ptr(), at, "the same block again");
        let count = bytes.len().min(out.len());
        received.extend_from_slice(&bytes[..count]);
        input.take(count);
        peeks += 1;
    }
    assert!(peeks > 100 && received == sent[..received.len()], "{peeks} peeks");
    assert_eq!(output.reader_counts(0).unwrap().lost, 0);
}

#[test]
fn d10_peeked_block_is_not_overwritten_until_taken() {
    let (mut output, mut input) = open_trusted(&stream_config());
    assert_eq!(input.peek(), Ok(None));
    output.write(b"first").unwrap();
    output.flush();
    let at = input.peek().unwrap().unwrap().as_ptr();
    while output.is_ready(1000).unwrap() {
        output.write(&[9; 1000]).unwrap();
    }
    let first = input.peek().unwrap().unwrap();
    assert_eq!((first, first.as_ptr()), (&b"first"[..], at), "not overwritten");
    drop(output);
    let mut count = 0;
    while let Some(block @ [_, ..]) = input.peek().unwrap() {
        count += block.len();
        let all = block.len();
        input.take(all);
    }
    assert!(count > 4000, "{count}");
    assert_eq!(input.peek(), Ok(Some(&[][..])), "the end");
}

#[test]
fn d10_untrusted_writer_or_lossy_ring_cannot_be_peeked() {
    let (mut output, mut offers) = stream(&stream_config()).unwrap();
    output.write(b"x").unwrap();
    output.flush();
    let mut input = offers.remove(0).open().unwrap();
    assert_eq!(input.peek(), Err(Fault::Foreign), "not opened trusting");
    let (_output, mut input) = open_trusted(&stream_config().policy(OverflowPolicy::Overwrite));
    assert_eq!(input.peek(), Err(Fault::Lossy));
    // The kernel reports the creator of the memory. Only root can change the owner of a file.
    let (_output, mut offers) = stream(&stream_config()).unwrap();
    let offer = offers.remove(0);
    let [_, ring, ..] = offer.descriptors();
    if sys::process::effective_ids().0 != 0 {
        eprintln!("skipped: d10_untrusted…: only root can change a file's owner");
        return;
    }
    std::os::unix::fs::fchown(ring.as_fd(), Some(65_534), None).unwrap();
    let mut input = offer.open_trusting().unwrap();
    assert_eq!(input.peek(), Err(Fault::Foreign), "another user's");
    assert!(!input.can_peek());
}

/// The ring continues in other memory while a block is peeked.
#[test]
fn d10_peek_survives_a_change_of_capacity() {
    let (mut output, mut input) = open_trusted(&stream_config());
    for round in 0..64_u32 {
        output.write(&round.to_le_bytes()).unwrap();
        output.flush();
        assert_eq!(input.peek().unwrap().unwrap(), round.to_le_bytes());
        output.resize(if round % 2 == 0 { 16_384 } else { 4096 }).unwrap();
        assert_eq!(input.peek().unwrap().unwrap(), round.to_le_bytes());
        input.take(4);
    }
}
