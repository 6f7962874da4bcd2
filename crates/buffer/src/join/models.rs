//! Models, in all interleavings, of a reader that joins while the writer writes and finds the data
//! at its start.

use super::*;
use crate::Policy;
use crate::cursor::{Producer, Store};
use abi::ring::{CLOSED, writer};
use loom::cell::UnsafeCell;
use loom::thread;

/// The bytes of the slots. Nothing is read or written: loom sees who looks, and when.
struct Slots([UnsafeCell<()>; 2]);

#[expect(unsafe_code, reason = "loom judges whether the accesses race")]
// SAFETY: the cells hold nothing.
unsafe impl Sync for Slots {}

/// The writer goes round a ring of so many slots, showing each block or every second one; a reader
/// comes, reads one block and leaves.
fn comes_late(slots: u64, blocks: u64, every: u64) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let store = Store::heap(0, slots, Policy::Block, 0);
        let door = Arc::new(Door::new());
        let cells = loom::sync::Arc::new(Slots([UnsafeCell::new(()), UnsafeCell::new(())]));
        let coming = {
            let (store, door, cells) = (store.clone(), door.clone(), cells.clone());
            thread::spawn(move || {
                let page = Arc::new(Region::heap(reader::WAIT + abi::ring::LINE_WORDS));
                let shown = || acquire(store.writer.word(writer::COMMIT));
                if door.enter(page.clone(), None, shown).is_none() {
                    return;
                }
                let start = acquire(page.word(reader::CURSOR));
                while shown() == start {
                    if acquire(store.writer.word(writer::STATE)) == CLOSED && shown() == start {
                        return;
                    }
                    thread::yield_now();
                }
                cells.0[usize::try_from(start % slots).unwrap()].with(|_| ());
                page.word(reader::STATE).store(CLOSED, Ordering::Release);
            })
        };
        let mut producer = Producer::new(store);
        producer.open(door);
        for block in 0..blocks {
            while producer.room(1).unwrap() == 0 {
                producer.publish();
                thread::yield_now();
            }
            cells.0[usize::try_from(block % slots).unwrap()].with_mut(|_| ());
            producer.head += 1;
            if (block + 1) % every == 0 {
                producer.publish();
            }
        }
        producer.close();
        coming.join().unwrap();
    });
}

#[test]
fn what_a_late_reader_starts_at_is_not_overwritten() {
    comes_late(1, 3, 1);
}

#[test]
fn nor_when_more_is_written_than_is_shown() {
    comes_late(2, 5, 2);
}
