//! Loom models of a reader that joins a ring while the writer writes, in all interleavings with a
//! bounded number of preemptions. The first block that the reader finds must be intact.

use super::*;
use crate::OverflowPolicy;
use crate::atomic::load_acquire;
use crate::cursor::{RingMemory, WriterCursor};
use abi::ring::{STATE_CLOSED, writer};
use loom::cell::UnsafeCell;
use loom::thread;

/// The contents of two slots. There is no data, because loom only tracks the order of accesses.
struct Slots([UnsafeCell<()>; 2]);

#[expect(unsafe_code, reason = "loom judges whether the accesses race")]
// SAFETY: the cells hold nothing.
unsafe impl Sync for Slots {}

/// Checks a writer and a reader that joins late. The writer puts `blocks` blocks into a ring of
/// `slots` slots and publishes after every `every` blocks. Meanwhile the reader joins, reads one
/// block and leaves.
fn check_late_join(slots: u64, blocks: u64, every: u64) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let store = RingMemory::heap(0, slots, OverflowPolicy::Block, 0);
        let queue = Arc::new(JoinQueue::default());
        let cells = loom::sync::Arc::new(Slots([UnsafeCell::new(()), UnsafeCell::new(())]));
        let joining = {
            let (store, queue, cells) = (store.clone(), queue.clone(), cells.clone());
            thread::spawn(move || {
                let page = Arc::new(Region::heap(reader::WAIT + abi::ring::LINE_WORDS));
                let published = || load_acquire(store.writer.word(writer::COMMITTED_POSITION));
                if queue.join(page.clone(), None, published).is_none() {
                    return;
                }
                let start = load_acquire(page.word(reader::RELEASED_POSITION));
                while published() == start {
                    if load_acquire(store.writer.word(writer::STATE)) == STATE_CLOSED
                        && published() == start
                    {
                        return;
                    }
                    thread::yield_now();
                }
                cells.0[usize::try_from(start % slots).unwrap()].with(|_| ());
                page.word(reader::STATE).store(STATE_CLOSED, Ordering::Release);
            })
        };
        let mut producer = WriterCursor::new(store);
        producer.accept_joins_from(queue);
        for block in 0..blocks {
            while producer.free_positions(1).unwrap() == 0 {
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
        joining.join().unwrap();
    });
}

#[test]
fn first_block_of_a_late_reader_is_not_overwritten() {
    check_late_join(1, 3, 1);
}

#[test]
fn late_reader_survives_unpublished_blocks() {
    check_late_join(2, 5, 2);
}
