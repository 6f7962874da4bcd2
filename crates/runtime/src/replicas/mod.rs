//! Replicas of a filter chain that share its work, each in a separate space: the protocol between
//! dispatcher, replicas and join. [Th §5.4], [Par §IV], CONTRACT 16
//!
//! Each batch that reaches the chain gets a **batch id**. The **sequence number** of a block
//! combines the batch id and the block's position in the batch in one 32-bit word. Between spaces
//! the sequence number is sent in the block's marks; within a space it is stored as the block's
//! order number. A filter's output inherits the sequence number of the block from which it was
//! made. [`dispatch`] assigns an entire batch to one replica, or the blocks of each session to the
//! replica that owns the session. The join ([`crate::space::join_state`]) collects one batch at a
//! time from the replicas that processed it, and sorts the blocks by sequence number. Therefore the
//! output order equals the input order, regardless of the number and speed of the replicas.
//!
//! The joins of the thesis do not preserve the order of blocks ("implied by Fig 5.3"); this join
//! does, because CONTRACT 16 requires it. The join waits without timeouts: rings are bounded, so
//! the other replicas cannot get far ahead of a slow one.
//!
//! After the last batch, each replica ends its filters one session at a time, and the join merges
//! the sessions in the order of their first blocks (`crate::space::replica_shutdown`).
//!
//! [`ReplicaProgress`] records the replicas of each batch and the progress of each replica. It is
//! lock-free: each word has only one writer.

pub mod balance;
pub mod dispatch;

use buffer::signal::Doorbell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of bits in a sequence number that contain the block's position in its batch.
const LANE_BITS: u32 = filter::LANES.trailing_zeros();
/// Mask of the low bits of a batch id, which are the part of the id that a sequence number
/// contains.
const BATCH_ID_MASK: u64 = (1 << (u32::BITS - LANE_BITS)) - 1;
/// Rank, in the output of replicas that are shutting down, of blocks that belong to no session. The
/// join of the replica chain emits these blocks after the blocks of all sessions.
pub const SESSIONLESS_RANK: u32 = u32::MAX;

/// Returns the sequence number of the first block of a batch.
pub const fn first_sequence_number(batch_id: u64) -> u32 {
    ((batch_id & BATCH_ID_MASK) << LANE_BITS) as u32
}

/// Returns the highest sequence number that a block of a batch can have.
pub const fn last_sequence_number(batch_id: u64) -> u32 {
    first_sequence_number(batch_id) | (filter::LANES as u32 - 1)
}

/// Returns the batch id that follows `batch_id`, skipping an id whose last sequence number would
/// equal [`SESSIONLESS_RANK`].
pub const fn next_batch_id(batch_id: u64) -> u64 {
    let next = batch_id + 1;
    if next & BATCH_ID_MASK == BATCH_ID_MASK { next + 1 } else { next }
}

/// Returns the batch id to which a sequence number belongs. A sequence number contains only the low
/// bits of the id, so several ids are possible. The result is the one nearest to the id `near`.
pub const fn nearest_batch_id(seq: u32, near: u64) -> u64 {
    const BATCH_ID_SHIFT: u32 = u64::BITS - (u32::BITS - LANE_BITS);
    let low = (seq >> LANE_BITS) as u64;
    let ahead = (low.wrapping_sub(near) << BATCH_ID_SHIFT) as i64 >> BATCH_ID_SHIFT;
    near.wrapping_add_signed(ahead)
}

/// The progress of a replica chain, shared by the dispatcher, the replicas and the join.
#[derive(Debug)]
pub struct ReplicaProgress {
    /// Lowest id of a batch that has not been dispatched yet. Written only by the dispatcher.
    undispatched: CachePaddedWord,
    replicas: Box<[ReplicaState]>,
    /// One more than the id of the batch whose output the join is waiting for. Written only by the
    /// join.
    awaited: CachePaddedWord,
    /// Nonzero once the last batch has been dispatched. Written only by the dispatcher.
    closed: CachePaddedWord,
    /// Newest block time, in nanoseconds. Valid once `closed` is nonzero. Written by the
    /// dispatcher.
    clock: CachePaddedWord,
    /// Doorbell on which the join sleeps.
    join: Arc<Doorbell>,
}

/// Batches that one replica has received and finished.
#[derive(Debug, Default)]
struct ReplicaState {
    /// One more than the id of the latest batch that was dispatched to the replica. Written only by
    /// the dispatcher.
    dispatched_end: CachePaddedWord,
    /// Lowest id of a batch that the replica has not reported as finished. Written only by the
    /// replica.
    finished_end: CachePaddedWord,
}

/// An atomic word in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CachePaddedWord(AtomicU64);

impl CachePaddedWord {
    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn store(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

impl ReplicaProgress {
    /// Creates the progress tracker for a chain of `count` replicas. The join sleeps on the
    /// doorbell `join`.
    pub fn new(count: usize, join: Arc<Doorbell>) -> Self {
        let replicas = (0..count).map(|_| ReplicaState::default()).collect();
        let [undispatched, awaited, closed, clock] =
            std::array::from_fn(|_| CachePaddedWord::default());
        Self { undispatched, replicas, awaited, closed, clock, join }
    }

    /// Announces that no more batches follow. `clock` is the newest block time, in nanoseconds.
    ///
    /// SYNC POINT *dispatch ended*: the Release store of `closed` follows the stores of
    /// `undispatched` (for the last batch) and `clock`, and pairs with the Acquire in
    /// [`ReplicaProgress::is_closed`]: a reader that sees `closed` set sees the final values of
    /// both.
    pub fn close(&self, clock: u64) {
        self.clock.store(clock);
        self.closed.store(1);
        if self.join.has_unnotified_sleeper() {
            self.join.notify();
        }
    }

    /// Returns true once the last batch has been dispatched.
    pub fn is_closed(&self) -> bool {
        self.closed.load() != 0
    }

    /// Returns the first sequence number after the last batch. Valid only after [`Self::is_closed`]
    /// has returned true.
    pub fn end_sequence_number(&self) -> u32 {
        first_sequence_number(self.next_undispatched_batch_id())
    }

    /// Returns the newest block time in nanoseconds. Valid only after [`Self::is_closed`] has
    /// returned true.
    pub fn final_block_time(&self) -> u64 {
        self.clock.load()
    }

    /// Returns the number of replicas.
    pub fn replica_count(&self) -> usize {
        self.replicas.len()
    }

    /// Announces that a batch is dispatched to the replicas `to`. Must be called before any block
    /// of the batch is put into a ring.
    ///
    /// SYNC POINT *batch dispatched*: the Release of `undispatched`, and of each `dispatched_end`
    /// before it, pairs with the Acquire in [`ReplicaProgress::next_undispatched_batch_id`] and
    /// [`ReplicaProgress::may_have_unfinished_lanes`]: a reader that sees the batch id, or a block
    /// of the batch, sees to which replicas the batch was dispatched.
    pub fn announce_batch(&self, batch_id: u64, to: impl Iterator<Item = usize>) {
        for copy in to {
            self.replicas[copy].dispatched_end.store(batch_id + 1);
        }
        self.undispatched.store(batch_id + 1);
    }

    /// Returns the lowest batch id that has not been dispatched.
    pub fn next_undispatched_batch_id(&self) -> u64 {
        self.undispatched.load()
    }

    /// Returns true if a replica may still have unfinished work in a batch. This is the case if the
    /// batch or a later one was dispatched to the replica, and the replica has not reported the
    /// batch as finished.
    ///
    /// SYNC POINT *batch finished*: see [`ReplicaProgress::finish_batches_below`]. A caller that
    /// gets `false` and then reads the replica's ring sees all output of the batch.
    pub fn may_have_unfinished_lanes(&self, copy: usize, batch_id: u64) -> bool {
        let copy = &self.replicas[copy];
        copy.finished_end.load() <= batch_id && copy.dispatched_end.load() > batch_id
    }

    /// Returns true if a replica has finished all batches dispatched to it.
    ///
    /// SYNC POINT *batch finished*: see [`ReplicaProgress::finish_batches_below`]. If a caller in
    /// the dispatcher's thread gets `true`, the replica's filters stay idle until the next
    /// dispatch.
    pub fn has_finished_all_batches(&self, copy: usize) -> bool {
        let copy = &self.replicas[copy];
        copy.finished_end.load() >= copy.dispatched_end.load()
    }

    /// Returns one more than the id of the last batch dispatched to a replica.
    pub fn dispatched_end(&self, copy: usize) -> u64 {
        self.replicas[copy].dispatched_end.load()
    }

    /// Reports that a replica has finished its lanes of all batches with ids less than `below`, and
    /// that the output of these batches is in its ring. Wakes the join if it waits for such a
    /// batch.
    ///
    /// SYNC POINT *batch finished*: the Release of `finished_end` follows the Release that
    /// published the ring entries, and pairs with the Acquire in
    /// [`ReplicaProgress::may_have_unfinished_lanes`].
    pub fn finish_batches_below(&self, copy: usize, below: u64) {
        let done = &self.replicas[copy].finished_end;
        if done.load() >= below {
            return;
        }
        done.store(below);
        // A join that falls asleep later reads `finished_end` first
        // (`Doorbell::has_unnotified_sleeper`).
        if self.join.has_unnotified_sleeper() && self.awaited.load() <= below {
            self.join.notify();
        }
    }

    /// Blocks for at most `limit` until `ready` returns true. Returns the last result of `ready`.
    /// Calls `ready` again whenever the join's doorbell is notified; a replica notifies it after
    /// every batch that the replica finishes. Valid only while no batch is dispatched.
    pub(crate) fn wait_until(&self, limit: Duration, mut ready: impl FnMut(&Self) -> bool) -> bool {
        let begin = sys::clock::monotonic_ns();
        loop {
            // A notification after this point ends the sleep. A replica notifies the join only if
            // the join waits for the finished batch or an earlier one; this holds, because the join
            // never waits for a batch after an unfinished one.
            let ticket = self.join.prepare_to_sleep();
            let passed = Duration::from_nanos(sys::clock::monotonic_ns().saturating_sub(begin));
            let left = limit.saturating_sub(passed);
            if ready(self) {
                return true;
            }
            if left.is_zero() {
                return false;
            }
            self.join.sleep_for(ticket, left);
        }
    }

    /// Records the batch for which the join waits.
    pub fn record_awaited_batch(&self, batch_id: u64) {
        self.awaited.store(batch_id + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_id_is_recovered_from_a_nearby_sequence_number() {
        let mask = BATCH_ID_MASK;
        for near in [0, 5, mask - 2, mask + 1, 7 * mask, u64::from(u32::MAX) << 9] {
            for ahead in [-5_i64, -1, 0, 1, 40_000] {
                let Some(batch_id) = near.checked_add_signed(ahead) else { continue };
                for seq in [
                    first_sequence_number(batch_id),
                    first_sequence_number(batch_id) | 17,
                    last_sequence_number(batch_id),
                ] {
                    assert_eq!(nearest_batch_id(seq, near), batch_id, "{near} {ahead}");
                }
            }
        }
        let mut batch_id = mask - 3;
        for _ in 0..8 {
            batch_id = next_batch_id(batch_id);
            assert_ne!(last_sequence_number(batch_id), SESSIONLESS_RANK);
        }
    }

    #[test]
    fn replica_has_lanes_in_a_batch_until_it_reports_finished() {
        let progress = ReplicaProgress::new(3, Arc::new(Doorbell::new()));
        assert_eq!(progress.next_undispatched_batch_id(), 0);
        progress.announce_batch(0, [1].into_iter());
        progress.announce_batch(1, [0, 2].into_iter());
        assert_eq!(progress.next_undispatched_batch_id(), 2);
        assert_eq!(
            [0, 1, 2].map(|copy| progress.may_have_unfinished_lanes(copy, 0)),
            [true, true, true]
        );
        assert_eq!(
            [0, 1, 2].map(|copy| progress.may_have_unfinished_lanes(copy, 1)),
            [true, false, true]
        );
        progress.finish_batches_below(0, 1);
        progress.finish_batches_below(1, 1);
        progress.finish_batches_below(2, 2);
        assert_eq!([0, 1, 2].map(|copy| progress.may_have_unfinished_lanes(copy, 0)), [false; 3]);
        assert_eq!(
            [0, 1, 2].map(|copy| progress.may_have_unfinished_lanes(copy, 1)),
            [true, false, false]
        );
    }
}
