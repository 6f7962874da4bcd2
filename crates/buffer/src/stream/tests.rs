//! Tests of streams between threads that share only descriptors, like processes.

use super::*;
use crate::Fault;
use abi::DbufId;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

pub(super) fn open(config: &Config) -> (Output, Vec<Input>) {
    let (output, offers) = stream(config).unwrap();
    let copies = |offer: &Offer| {
        let copy = |fd: &BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
        offer.descriptors().iter().map(copy).collect::<Vec<_>>()
    };
    let inputs = offers
        .iter()
        .map(|offer| Offer::from_descriptors(copies(offer)).unwrap().open().unwrap())
        .collect();
    (output, inputs)
}

fn stream_config() -> Config {
    Config::new(DbufId::new(3).unwrap()).capacity(4096)
}

/// Returns the expected byte at position `at` of the stream.
pub(super) fn stream_byte(at: usize) -> u8 {
    u8::try_from(at * 7 % 251).unwrap()
}

#[test]
fn bytes_stay_in_order_for_any_write_and_read_sizes() {
    const BYTES: usize = 300_000;
    for (write, read, spins) in [(64, 64, 0), (1, 100, 0), (1000, 7, 0), (333, 4096, 2000)] {
        let (mut output, mut inputs) = open(&stream_config());
        let mut input = inputs.pop().unwrap();
        output.set_spin_limit(spins);
        input.set_spin_limit(spins);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut at = 0;
                while at < BYTES {
                    let block: Vec<u8> = (at..BYTES.min(at + write)).map(stream_byte).collect();
                    assert!(output.write(&block).unwrap());
                    at += block.len();
                }
            });
            let mut out = vec![0; read];
            let mut at = 0;
            loop {
                let count = input.read(&mut out).unwrap();
                if count == 0 {
                    break;
                }
                for (i, value) in out[..count].iter().enumerate() {
                    assert_eq!(*value, stream_byte(at + i), "{write} {read} at {}", at + i);
                }
                at += count;
            }
            assert_eq!(at, BYTES);
            assert_eq!(input.read(&mut out).unwrap(), 0, "the end stays the end");
        });
    }
}

#[test]
fn every_reader_gets_every_byte() {
    let (mut output, inputs) = open(&stream_config().readers(3));
    std::thread::scope(|scope| {
        let readers: Vec<_> = inputs
            .into_iter()
            .enumerate()
            .map(|(number, mut input)| {
                scope.spawn(move || {
                    let (mut sum, mut out) = (0u64, [0; 100]);
                    loop {
                        match input.read(&mut out[..10 + number * 40]).unwrap() {
                            0 => return (sum, input.counts().blocks),
                            count => sum += out[..count].iter().map(|b| u64::from(*b)).sum::<u64>(),
                        }
                    }
                })
            })
            .collect();
        let mut sum = 0;
        for at in 0..10_000 {
            let block = [stream_byte(at); 37];
            sum += u64::from(stream_byte(at)) * 37;
            assert!(output.write(&block).unwrap());
        }
        drop(output);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), (sum, 10_000));
        }
    });
}

#[test]
fn blocks_are_published_when_due_or_flushed() {
    let (mut output, mut inputs) = open(&Config { every: 3, ..stream_config() });
    let input = &mut inputs[0];
    let mut out = [0; 16];
    output.write(b"a").unwrap();
    output.write(b"b").unwrap();
    assert_eq!(input.try_read(&mut out).unwrap(), None);
    output.write(b"c").unwrap();
    assert_eq!(input.try_read(&mut out).unwrap(), Some(3));
    output.write(b"d").unwrap();
    output.flush();
    assert_eq!(input.try_read(&mut out).unwrap(), Some(1));
    assert_eq!(input.wait(Some(Duration::from_millis(1))).unwrap(), WaitResult::NotReady);
}

/// Programs that preload the pipes of `streamline sh` must not see `EINTR` without a signal.
#[test]
fn stale_notification_is_no_interruption() {
    let (mut output, mut inputs) = open(&stream_config());
    let input = &mut inputs[0];
    output.set_waking_overrides(WakingOverrides { notifies_always: true, ..Default::default() });
    output.flush();
    assert_eq!(input.wait(None), Ok(WaitResult::NotReady));
    output.write(b"a").unwrap();
    output.flush();
    assert_eq!(input.wait(None), Ok(WaitResult::Ready));
}

/// With the largest possible [`Config::every`], blocks are published only after a sixteenth of this
/// small ring, or on a flush.
#[test]
fn largest_publication_threshold_does_not_overflow() {
    let (mut output, mut inputs) = open(&Config { every: usize::MAX, ..stream_config() });
    for round in 0..3 {
        output.write(&[round; 100]).unwrap();
        output.flush();
        assert_eq!(inputs[0].try_read(&mut [0; 200]), Ok(Some(100)));
    }
}

#[test]
fn writer_without_readers_fails_as_abandoned() {
    let (mut output, inputs) = open(&stream_config());
    let writing = std::thread::spawn(move || {
        loop {
            if let Err(fault) = output.write(&[1; 100]) {
                return fault;
            }
        }
    });
    drop(inputs);
    assert_eq!(writing.join().unwrap(), Fault::Abandoned);
}

#[test]
fn reader_of_dead_writer_gets_published_blocks_then_fault() {
    let (mut output, mut inputs) = open(&stream_config());
    output.write(b"shown").unwrap();
    output.flush();
    output.write(b"not shown").unwrap();
    // A process that dies runs no destructor; its descriptors are closed.
    output.simulate_kill();
    let mut out = [0; 100];
    let input = &mut inputs[0];
    assert_eq!(input.read(&mut out).unwrap(), 5);
    assert_eq!(input.read(&mut out), Err(Fault::Abandoned));
}

#[test]
fn dropping_and_overwriting_rings_never_wait() {
    let (mut output, mut inputs) = open(&stream_config().policy(OverflowPolicy::DropNew));
    let taken = (0..1000).filter(|_| output.write(&[5; 100]).unwrap()).count();
    output.flush();
    assert_eq!(
        (taken as u64, output.counts().dropped),
        (output.counts().blocks, 1000 - taken as u64)
    );
    let mut out = [0; 8192];
    assert_eq!(inputs[0].read(&mut out).unwrap(), taken * 100);

    let (mut output, mut inputs) = open(&stream_config().policy(OverflowPolicy::Overwrite));
    for at in 0..1000 {
        assert!(output.write(&[stream_byte(at); 100]).unwrap());
    }
    drop(output);
    let mut received = 0;
    while inputs[0].read(&mut out).unwrap() > 0 {
        received += 1;
    }
    assert!(received > 0 && inputs[0].counts().lost + received == 1000, "{received}");
}

#[test]
fn offer_without_descriptors_is_refused() {
    assert!(matches!(Offer::from_descriptors(Vec::new()), Err(OfferRefusal::Descriptors(0))));
}

/// Returns the position that the writer must reach to wake a sleeping reader that has read nothing.
fn wake_threshold(policy: OverflowPolicy, spins: u32) -> u64 {
    use abi::ring::{reader, wait};
    let (mut output, mut inputs) = open(&stream_config().policy(policy));
    let mut input = inputs.pop().unwrap();
    input.set_spin_limit(spins);
    std::thread::scope(|scope| {
        scope.spawn(move || assert_eq!(input.wait(None), Ok(WaitResult::Ready)));
        while !output.has_unnotified_sleeper() {
            std::thread::yield_now();
        }
        let page = output.cursor_mut().page(0).unwrap();
        let until =
            page.word(reader::WAIT + wait::WAKE_POSITION).load(crate::atomic::Ordering::Relaxed);
        drop(output);
        until
    })
}

/// A reader that shares the writer's processor sleeps until the ring is full. A smaller threshold
/// would interrupt the writer in the middle of a lap, at the cost of two task switches each time.
#[test]
fn reader_on_the_writers_processor_waits_for_a_full_ring() {
    use crate::OverflowPolicy::{Block, DropNew, Overwrite};
    assert_eq!(wake_threshold(Block, 0), 4096);
    assert_eq!(wake_threshold(Block, 1), 1024, "on a processor of its own it reads meanwhile");
    assert_eq!([DropNew, Overwrite].map(|policy| wake_threshold(policy, 0)), [1024; 2]);
}

/// A reader that requests marks gets each empty block as a mark, and no read returns bytes from
/// both before and after an empty block.
#[test]
fn read_until_mark_reports_empty_blocks_between_bytes() {
    let (mut output, mut offers) = stream(&Config::new(DbufId::new(3).unwrap())).unwrap();
    let mut input = offers.remove(0).open().unwrap();
    for block in [&b"one"[..], b"two", b"", b"three", b"", b""] {
        output.write(block).unwrap();
    }
    output.flush();
    let mut out = [0; 100];
    assert_eq!(input.take_mark(), Ok(false), "bytes are first");
    assert_eq!(input.read_until_mark(&mut out[..2]), Ok(ReadUntilMarkResult::Bytes(2)));
    assert_eq!(input.take_mark(), Ok(false), "the rest of a block is first");
    assert_eq!(input.read_until_mark(&mut out[2..]), Ok(ReadUntilMarkResult::Bytes(4)));
    assert_eq!(&out[..6], b"onetwo");
    assert_eq!(input.read_until_mark(&mut out), Ok(ReadUntilMarkResult::Mark));
    assert_eq!(input.read_until_mark(&mut out), Ok(ReadUntilMarkResult::Bytes(5)));
    assert_eq!(input.take_mark(), Ok(true));
    assert_eq!(input.read_until_mark(&mut out), Ok(ReadUntilMarkResult::Mark));
    assert_eq!(input.read_until_mark(&mut out), Ok(ReadUntilMarkResult::Nothing));
    drop(output);
    assert_eq!(input.read_until_mark(&mut out), Ok(ReadUntilMarkResult::End));
}

/// The block and byte counts of a reader belong to the same position, even before a release.
#[test]
fn reader_counts_include_unreleased_blocks() {
    let (mut output, mut offers) = stream(&Config::new(DbufId::new(1).unwrap())).unwrap();
    let mut input = offers.pop().unwrap().open().unwrap();
    let mut out = [0; 8];
    for number in 1..=3 {
        assert!(output.write(&[1; 5]).unwrap());
        output.flush();
        assert_eq!(input.read(&mut out), Ok(5));
        let counts = input.counts();
        assert_eq!((counts.blocks, counts.bytes), (number, 5 * number));
    }
}

#[test]
fn o6_reader_copies_parts_of_a_block_until_it_is_overwritten() {
    let (mut output, mut inputs) = open(&stream_config().policy(OverflowPolicy::Overwrite));
    let mut input = inputs.pop().unwrap();
    for block in [&b"no"[..], b"yes, this one"] {
        assert!(output.write(block).unwrap());
    }
    output.flush();
    let mut head = [0; 3];
    assert!(!input.copy_opened_block(0, &mut []), "no block is open");
    assert_eq!((input.open_block(&mut head), &head), (Ok(BlockReadResult::Block(2)), b"no\0"));
    assert_eq!((input.open_block(&mut head), &head), (Ok(BlockReadResult::Block(13)), b"yes"));
    assert_eq!((input.next_block_number(), input.counts().blocks), (Some(2), 2));
    let mut part = [0; 4];
    assert!(input.copy_opened_block(5, &mut part) && &part == b"this");
    for beyond in [10, 14, usize::MAX] {
        assert!(!input.copy_opened_block(beyond, &mut part), "{beyond}");
    }
    for at in 0..1000 {
        assert!(output.write(&[stream_byte(at); 100]).unwrap());
    }
    assert!(!input.copy_opened_block(5, &mut part), "the writer came round");
    output.flush();
    // Blocks for which the reader was too slow are lost.
    let mut taken = 0;
    while let Ok(BlockReadResult::Block(length)) = input.open_block(&mut head) {
        assert_eq!(length, 100);
        taken += 1;
    }
    let lost = input.counts().lost;
    assert!(taken > 0 && lost > 0 && taken + lost == 1000, "{taken} {lost}");
    assert_eq!(input.open_block(&mut head), Ok(BlockReadResult::Nothing));
    assert!(!input.copy_opened_block(0, &mut part), "no block was opened");
    drop(output);
    assert_eq!(input.open_block(&mut head), Ok(BlockReadResult::End));
    let (_output, mut inputs) = open(&stream_config());
    assert_eq!(inputs.pop().unwrap().open_block(&mut head), Err(Fault::Lossy));
}

#[test]
fn o6_flush_does_not_end_a_pause_before_a_quarter_is_unread() {
    let (mut output, mut inputs) = open(&stream_config().policy(OverflowPolicy::Overwrite));
    let mut input = inputs.pop().unwrap();
    let is_notified =
        |input: &Input| sys::poll::wait_until_readable(&[input.as_fd()], Some(Duration::ZERO))[0];
    input.announce_pause();
    output.write(b"few").unwrap();
    output.flush();
    assert!(!is_notified(&input) && !input.is_pause_over(true).unwrap());
    output.write(&[1; 1100]).unwrap();
    output.flush();
    assert!(is_notified(&input) && input.is_pause_over(false).unwrap());
    input.announce_wake(true);
    // A sleep, in contrast to a rest, ends at the flush.
    let mut out = [0; 2000];
    while let Ok(BlockReadResult::Block(_)) = input.read_block(&mut out) {}
    assert_eq!(input.announce_sleep_until_flush(), Ok(false));
    output.write(b"few").unwrap();
    output.flush();
    assert!(is_notified(&input));
}
