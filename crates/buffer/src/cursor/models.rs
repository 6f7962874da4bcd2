//! Loom models of properties that the public interface does not expose: a slot is rewritten only
//! after all readers have read it, a party survives a lying peer (RELIABILITY T3), and a reader
//! follows a ring into a new segment or capacity. The models of lying peers cover all
//! interleavings; the others are limited to two preemptions.

use super::*;
use crate::Fault;
use crate::atomic::Ordering;
use crate::ibuf::{self, EntryColumns, RingConfig};
use abi::{Entry, RichPointer};
use loom::cell::UnsafeCell;
use loom::thread;

/// The content of the only slot in a modelled ring. There is no data, because loom only tracks the
/// order of accesses.
struct Bytes(UnsafeCell<()>);

#[expect(unsafe_code, reason = "loom judges whether the accesses race")]
// SAFETY: the cell holds nothing.
unsafe impl Sync for Bytes {}

/// Models the reuse of a slot with two readers: the first reads the slot and releases it, the
/// second does the same or leaves without releasing it.
fn check_slot_reuse(leaves: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let config = RingConfig {
            entries: 1,
            columns: EntryColumns::Pointer,
            policy: OverflowPolicy::Block,
            readers: 2,
        };
        let (mut writer, readers) = ibuf::ring(&config);
        let bytes = loom::sync::Arc::new(Bytes(UnsafeCell::new(())));
        bytes.0.with_mut(|_| ());
        writer.push(&[Entry::default()]).unwrap();
        let reading: Vec<_> = readers
            .into_iter()
            .enumerate()
            .map(|(index, mut reader)| {
                let bytes = bytes.clone();
                thread::spawn(move || {
                    while reader.unread_entries().unwrap() == 0 {
                        thread::yield_now();
                    }
                    bytes.0.with(|_| ());
                    if index == 0 || !leaves {
                        reader.cursor.next += 1;
                        reader.cursor.release();
                        // Not dropped: the release must free the slot, not the reader's departure.
                        std::mem::forget(reader);
                    }
                })
            })
            .collect();
        while writer.free_entries(1).unwrap() == 0 {
            thread::yield_now();
        }
        bytes.0.with_mut(|_| ());
        for reading in reading {
            reading.join().unwrap();
        }
    });
}

#[test]
fn slot_is_rewritten_only_after_both_readers_release() {
    check_slot_reuse(false);
}

#[test]
fn slot_is_rewritten_only_after_a_reader_has_left() {
    check_slot_reuse(true);
}

fn create_ring() -> (ibuf::PointerWriter, ibuf::PointerReader) {
    let config = RingConfig {
        entries: 2,
        columns: EntryColumns::Pointer,
        policy: OverflowPolicy::Block,
        readers: 1,
    };
    let (writer, mut readers) = ibuf::ring(&config);
    (writer, readers.remove(0))
}

#[test]
fn reader_of_lying_writer_fails_permanently() {
    for lie in [3, 1 << 31, u64::MAX] {
        loom::model(move || {
            let (writer, mut reader) = create_ring();
            let store = writer.cursor.store.clone();
            let lying = thread::spawn(move || {
                store.writer.word(writer::COMMITTED_POSITION).store(lie, Ordering::Release);
            });
            let mut out = [Entry::default(); 2];
            let first = reader.read(&mut out);
            lying.join().unwrap();
            let second = reader.read(&mut out);
            assert!(first.is_err() || first.is_ok_and(|read| read.count == 0));
            assert!(matches!(second, Err(Fault::Poisoned { .. })), "{second:?}");
            drop(writer);
            assert!(reader.is_finished().is_err());
        });
    }
}

#[test]
fn writer_evicts_lying_reader() {
    loom::model(|| {
        let (mut writer, reader) = create_ring();
        writer.push(&[Entry::default()]).unwrap();
        let store = reader.cursor.store.clone();
        let lying = thread::spawn(move || {
            store.readers[0].word(reader::RELEASED_POSITION).store(2, Ordering::Release);
        });
        let looked = writer.cursor.refresh_reader_positions();
        lying.join().unwrap();
        if looked.is_ok() {
            assert!(matches!(
                writer.cursor.refresh_reader_positions(),
                Err(Fault::Poisoned { published: 2, own: 1 })
            ));
        }
        assert!(writer.cursor.is_abandoned());
        assert_eq!(writer.push(&[Entry::default()]), Err(Fault::Abandoned));
        drop(reader);
    });
}

/// A ring of one slot continues in a new segment. The reader finishes the old segment and follows
/// into the new one, and the writer does not wait.
#[test]
fn reader_follows_into_a_new_segment() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let old = RingMemory::heap(1, 1, OverflowPolicy::Block, 1);
        let new = RingMemory::new(
            Region::heap(DATA_OFFSET_WORDS + 1),
            old.readers.clone(),
            1,
            OverflowPolicy::Block,
        );
        let bytes = loom::sync::Arc::new([Bytes(UnsafeCell::new(())), Bytes(UnsafeCell::new(()))]);
        let (mut producer, mut consumer) =
            (WriterCursor::new(old.clone()), ReaderCursor::new(old, 0));
        let reading = {
            let (bytes, new) = (bytes.clone(), new.clone());
            thread::spawn(move || {
                while !consumer.has_switched() {
                    thread::yield_now();
                }
                assert_eq!(
                    consumer.available_position(),
                    Ok(1),
                    "the last position comes with the switch"
                );
                bytes[0].0.with(|_| ());
                consumer.next = 1;
                consumer.continue_in_memory(new);
                while consumer.available_position().unwrap() == 1 {
                    thread::yield_now();
                }
                bytes[1].0.with(|_| ());
                consumer.next = 2;
                consumer.release();
                std::mem::forget(consumer);
            })
        };
        bytes[0].0.with_mut(|_| ());
        producer.head = 1;
        producer.continue_in_memory(new);
        assert_eq!(producer.free_positions(1), Ok(1), "the new memory is free at once");
        bytes[1].0.with_mut(|_| ());
        producer.head = 2;
        producer.publish();
        reading.join().unwrap();
    });
}

/// A ring of pointers grows and shrinks. The reader follows each change, receives all entries in
/// order, and detects the end of the stream.
#[test]
fn reader_of_pointers_follows_a_resized_ring() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let (mut writer, mut reader) = create_ring();
        let entry = |length| Entry { pointer: RichPointer::hole(length), ..Entry::default() };
        let reading = thread::spawn(move || {
            let (mut out, mut next) = ([Entry::default(); 2], 1);
            while !reader.is_finished().unwrap() {
                let read = reader.read(&mut out).unwrap();
                for entry in out.iter().take(read.count) {
                    assert_eq!(entry.pointer.length(), next);
                    next += 1;
                }
                thread::yield_now();
            }
            next
        });
        assert_eq!(writer.push(&[entry(1)]).unwrap().put, 1);
        assert!(writer.resize(1));
        while writer.push(&[entry(2)]).unwrap().put == 0 {
            thread::yield_now();
        }
        let _ = writer.cursor.refresh_reader_positions();
        writer.resize(2);
        drop(writer);
        assert_eq!(reading.join().unwrap(), 3);
    });
}

/// The capacity of a ring shrinks in place. Until the reader has passed the position of the change,
/// the writer uses only the smaller capacity.
#[test]
fn writer_waits_at_a_cut_until_the_reader_has_passed() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let store = RingMemory::heap(2, 2, OverflowPolicy::Block, 1);
        let bytes = loom::sync::Arc::new(Bytes(UnsafeCell::new(())));
        let (mut producer, mut consumer) =
            (WriterCursor::new(store.clone()), ReaderCursor::new(store, 0));
        let reading = {
            let bytes = bytes.clone();
            thread::spawn(move || {
                for position in 0..3 {
                    while consumer.available_position().unwrap() == consumer.next {
                        thread::yield_now();
                    }
                    if position != 1 {
                        bytes.0.with(|_| ());
                    }
                    consumer.next += 1;
                    match position {
                        // The capacity changes at the second position.
                        1 => consumer.change_capacity(1),
                        _ => consumer.release(),
                    }
                }
                std::mem::forget(consumer);
            })
        };
        // Positions 0 and 2 use the same slot with either capacity.
        bytes.0.with_mut(|_| ());
        producer.head = 2;
        producer.change_capacity(1);
        while producer.free_positions(1).unwrap() == 0 {
            thread::yield_now();
        }
        assert_eq!(producer.take_passed_capacity(), Some(2), "reported once");
        bytes.0.with_mut(|_| ());
        producer.head = 3;
        producer.publish();
        reading.join().unwrap();
        assert_eq!(producer.take_passed_capacity(), None);
    });
}
