//! Loom models of the rings and the doorbell, in all interleavings with a bounded number of
//! preemptions.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p streamline-buffer --release --lib --test
//! model_ring`; without the flag this file is empty. The models run the production code on loom's
//! atomics, with words on the heap. Verified: if any one of the orderings of `COMMIT`, `CURSOR`,
//! `RESERVE` and `STATE`, of the doorbell, or of returning a lease is weakened, a model fails here
//! or in `cursor` or `slots`.
#![cfg(loom)]

use abi::{Class, DbufId, Entry, Extent, RichPointer};
use loom::sync::Arc;
use loom::thread;
use streamline_buffer::OverflowPolicy;
use streamline_buffer::ibuf::{self, EntryColumns, PointerReader, PointerWriter, RingConfig};
use streamline_buffer::signal::Doorbell;

/// Runs a model with at most `preemptions` forced switches per interleaving.
fn run_model(preemptions: usize, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(check);
}

fn create_ring(
    entries: usize,
    policy: OverflowPolicy,
    readers: usize,
) -> (PointerWriter, Vec<PointerReader>) {
    ibuf::ring(&RingConfig { entries, policy, readers, columns: EntryColumns::Pointer })
}

fn numbered_entry(number: u64) -> Entry {
    let mut entry = Entry::default();
    let dbuf = DbufId::new(number as u32 + 1).unwrap();
    entry.pointer = RichPointer::new(dbuf, Extent::new(number, 1), Class(number as u32));
    entry
}

/// Returns the number of an entry. Asserts that both of its words match: otherwise the entry is
/// torn.
fn entry_number(entry: &Entry) -> u64 {
    let number = entry.pointer.place.position();
    assert_eq!(entry.pointer, numbered_entry(number).pointer, "torn");
    number
}

/// Reads all entries until the ring is finished. Returns the numbers of the entries.
fn drain(reader: &mut PointerReader) -> Vec<u64> {
    let mut received = Vec::new();
    let mut out = [Entry::default(); 2];
    while !reader.is_finished().unwrap() {
        let read = reader.read(&mut out).unwrap();
        received.extend(out[..read.count].iter().map(entry_number));
        if read.count == 0 {
            thread::yield_now();
        }
    }
    received
}

fn push_all(writer: &mut PointerWriter, numbers: std::ops::Range<u64>) {
    for number in numbers {
        while writer.push(&[numbered_entry(number)]).unwrap().put == 0 {
            thread::yield_now();
        }
    }
}

#[test]
fn one_reader_gets_every_entry_in_order() {
    run_model(2, || {
        let (mut writer, mut readers) = create_ring(2, OverflowPolicy::Block, 1);
        let mut reader = readers.remove(0);
        let reading = thread::spawn(move || drain(&mut reader));
        push_all(&mut writer, 0..3);
        drop(writer);
        assert_eq!(reading.join().unwrap(), [0, 1, 2]);
    });
}

/// Both readers read once each while the writer works, so the positions free for writing depend on
/// both cursors.
#[test]
fn slowest_of_two_readers_limits_the_writer() {
    run_model(3, || {
        let (mut writer, readers) = create_ring(1, OverflowPolicy::Block, 2);
        let reading: Vec<_> = readers
            .into_iter()
            .map(|mut reader| {
                thread::spawn(move || {
                    let mut out = [Entry::default(); 1];
                    let count = reader.read(&mut out).unwrap().count;
                    let received: Vec<_> = out[..count].iter().map(entry_number).collect();
                    (reader, received)
                })
            })
            .collect();
        let pushed: usize = (0..2).map(|n| writer.push(&[numbered_entry(n)]).unwrap().put).sum();
        drop(writer);
        for reading in reading {
            let (mut reader, mut received) = reading.join().unwrap();
            received.extend(drain(&mut reader));
            assert_eq!(received, [0, 1][..pushed]);
        }
    });
}

#[test]
fn lapped_reader_gets_no_torn_entry_and_counts_loss() {
    run_model(3, || {
        let (mut writer, mut readers) = create_ring(2, OverflowPolicy::Overwrite, 1);
        let mut reader = readers.remove(0);
        let reading = thread::spawn(move || {
            let mut out = [Entry::default(); 2];
            let count = reader.read(&mut out).unwrap().count;
            (reader, out[..count].iter().map(entry_number).collect::<Vec<_>>())
        });
        for number in 0..3 {
            writer.push(&[numbered_entry(number)]).unwrap();
        }
        drop(writer);
        let (mut reader, mut received) = reading.join().unwrap();
        received.extend(drain(&mut reader));
        assert!(received.is_sorted_by(|a, b| a < b));
        assert_eq!(received.len() as u64, reader.counts().blocks);
        assert_eq!(
            reader.writer_counts().resident_blocks(&reader.counts()),
            Some(0),
            "got + lost = produced"
        );
        assert_eq!(received.last().copied(), Some(2), "the last is never lost");
    });
}

#[test]
fn dropped_entries_are_counted_by_the_writer() {
    run_model(3, || {
        let (mut writer, mut readers) = create_ring(1, OverflowPolicy::DropNew, 1);
        let mut reader = readers.remove(0);
        let reading = thread::spawn(move || drain(&mut reader).len() as u64);
        for number in 0..3 {
            writer.push(&[numbered_entry(number)]).unwrap();
        }
        let count = writer.counts();
        drop(writer);
        assert_eq!(count.blocks + count.dropped, 3);
        assert_eq!(reading.join().unwrap(), count.blocks);
    });
}

#[test]
fn ring_never_finishes_before_the_last_entry() {
    run_model(3, || {
        let (mut writer, mut readers) = create_ring(2, OverflowPolicy::Block, 1);
        let mut reader = readers.remove(0);
        let writing = thread::spawn(move || {
            writer.push(&[numbered_entry(0)]).unwrap();
        });
        let finished = reader.is_finished().unwrap();
        assert!(!finished, "not yet read");
        assert_eq!(drain(&mut reader), [0]);
        writing.join().unwrap();
    });
}

#[test]
fn departed_reader_does_not_stall_the_writer() {
    run_model(3, || {
        let (mut writer, mut readers) = create_ring(1, OverflowPolicy::Block, 2);
        let (mut stays, leaves) = (readers.remove(0), readers.remove(0));
        writer.push(&[numbered_entry(0)]).unwrap();
        let leaving = thread::spawn(move || drop(leaves));
        let mut out = [Entry::default(); 1];
        assert_eq!(stays.read(&mut out).unwrap().count, 1);
        push_all(&mut writer, 1..2);
        drop(writer);
        leaving.join().unwrap();
        assert_eq!(drain(&mut stays), [1]);
    });
}

#[test]
fn writer_notices_that_all_readers_have_left() {
    run_model(3, || {
        let (mut writer, mut readers) = create_ring(1, OverflowPolicy::Block, 1);
        let reader = readers.remove(0);
        let leaving = thread::spawn(move || drop(reader));
        let mut pushed = 0;
        while let Ok(done) = writer.push(&[numbered_entry(0)]) {
            pushed += done.put;
            thread::yield_now();
        }
        assert!(writer.is_abandoned() && pushed <= 1);
        leaving.join().unwrap();
    });
}

#[test]
fn counts_are_published_with_the_position() {
    run_model(3, || {
        let (mut writer, mut readers) = create_ring(2, OverflowPolicy::Block, 1);
        let mut reader = readers.remove(0);
        let writing = thread::spawn(move || {
            push_all(&mut writer, 0..2);
            writer
        });
        let waiting = reader.unread_entries().unwrap() as u64;
        assert!(reader.writer_counts().blocks >= waiting);
        let writer = writing.join().unwrap();
        reader.read(&mut [Entry::default(); 2]).unwrap();
        assert_eq!(writer.reader_counts(0), Some(reader.counts()));
    });
}

/// If a wake-up is lost, the sleeper never wakes, which loom reports as a deadlock.
#[test]
fn no_notification_is_lost() {
    run_model(3, || {
        let doorbell = Arc::new(Doorbell::new());
        let (mut writer, mut readers) = create_ring(1, OverflowPolicy::Block, 1);
        let mut reader = readers.remove(0);
        let ours = doorbell.clone();
        let sleeping = thread::spawn(move || {
            ours.wait_until(0, || reader.unread_entries().unwrap() > 0);
            drain(&mut reader)
        });
        writer.push(&[numbered_entry(0)]).unwrap();
        doorbell.notify();
        drop(writer);
        assert_eq!(sleeping.join().unwrap(), [0]);
    });
}

/// Two sleepers with different conditions share a doorbell. The epoch prevents a notified sleeper
/// from sleeping again after the other sleeper has set the flag.
#[test]
fn two_sleepers_on_one_doorbell_are_both_woken() {
    use loom::sync::atomic::{AtomicU32, Ordering};
    run_model(2, || {
        let doorbell = Arc::new(Doorbell::new());
        let ready = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let sleepers: Vec<_> = (0..2)
            .map(|i| {
                let (doorbell, ready) = (doorbell.clone(), ready.clone());
                thread::spawn(move || {
                    doorbell.wait_until(0, || ready[i].load(Ordering::Relaxed) == 1);
                })
            })
            .collect();
        for flag in &*ready {
            // Relaxed: the doorbell alone must make the store visible.
            flag.store(1, Ordering::Relaxed);
            doorbell.notify();
        }
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    });
}

/// Reader and writer wait for each other alternately, on an empty and on a full ring.
#[test]
fn writer_and_reader_wake_each_other() {
    run_model(2, || {
        let (full, empty) = (Arc::new(Doorbell::new()), Arc::new(Doorbell::new()));
        let (mut writer, mut readers) = create_ring(1, OverflowPolicy::Block, 1);
        let mut reader = readers.remove(0);
        let (to_writer, mine) = (full.clone(), empty.clone());
        let reading = thread::spawn(move || {
            for expected in 0..2 {
                mine.wait_until(0, || reader.unread_entries().unwrap() > 0);
                let mut out = [Entry::default(); 1];
                assert_eq!(reader.read(&mut out).unwrap().count, 1);
                assert_eq!(entry_number(&out[0]), expected);
                to_writer.notify();
            }
        });
        for next in 0..2 {
            full.wait_until(0, || writer.free_entries(1).unwrap() > 0);
            assert_eq!(writer.push(&[numbered_entry(next)]).unwrap().put, 1);
            empty.notify();
        }
        reading.join().unwrap();
    });
}
