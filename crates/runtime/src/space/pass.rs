//! The state of a pass over the inputs of a space, and its result.

use super::count_limit::{ClaimPolicy, CountLimit};
use super::observe::Observers;
use super::sessions::SessionBirths;
use crate::control::SinkStall;
use crate::failure::PathFailure;
use filter::{BatchMemory, Time};
use std::sync::Arc;

/// The state of one pass over the inputs of a space. Some of its fields keep their values for the
/// next pass.
#[derive(Debug, Default)]
pub(crate) struct PassState {
    /// The path's limit on delivered blocks (`-c`); `None` for no limit.
    pub(crate) count_limit: Option<Arc<CountLimit>>,
    /// Policy by which the sinks of this space claim their share of the path's limit on delivered
    /// blocks (`-c`).
    pub(crate) claims: ClaimPolicy,
    /// Observers of the space's walks.
    pub(crate) observers: Observers,
    /// Failure that ended the path, if any.
    pub(crate) failure: Option<PathFailure>,
    /// The latest write of a sink that took long. `None` if there is none, or if the source has
    /// since been read up to the blocks that arrived during the write.
    pub(crate) stall: Option<SinkStall>,
    /// True if filters always edit a copy of a block, never the block in place.
    pub(crate) edits_in_copies: bool,
    /// True if the blocks of the current walk carry no bytes, because the sinks use the frames in
    /// the intake directly.
    pub(crate) in_place: bool,
    /// True if the space will sleep after this walk, unless more input arrives.
    pub(crate) sleeps_next: bool,
    /// Memory of earlier batches that is not in use. A walk takes it to store a batch whose edit is
    /// deferred.
    pub(crate) spare_memories: Vec<BatchMemory>,
    /// Sequence number that a replica gives to blocks without an input block, such as those that it
    /// creates on a timer ([`crate::replicas`]).
    pub(crate) order: u32,
    /// Births of the sessions of the replica in this space: for each session, the sequence number
    /// of its first block.
    pub(crate) births: SessionBirths,
    /// Number, counted from 1, of the filter that the replica in this space is ending during its
    /// shutdown ([`super::replica_shutdown`]); 0 before the shutdown.
    pub(crate) finishing_filter: u32,
    /// End of the sequence numbers of the replica chain: the first number after the last dispatched
    /// batch. Valid once the dispatcher has dispatched all batches.
    pub(crate) end_sequence_number: u32,
}

/// Maximum number of unused batch memories that a space keeps for reuse. One editing filter uses
/// this number.
const SPARE_MEMORIES_MAX: usize = 4;

/// Minimum duration, in nanoseconds, for a sink's write to count as blocking the thread. In 20 ms,
/// a source with 100,000 blocks per second fills half of a kernel ring of 4096 pointers. Shorter
/// waits also occur in any write to the page cache, and in any thread that shares its processor.
const STALL_NS_MIN: u64 = 20_000_000;
/// Minimum number of blocks that must wait at the source after a long write for the write to count
/// as a stall: half of a kernel ring.
const STALL_BLOCKS_MIN: u64 = 2048;

impl PassState {
    /// Stores the latest long write of a sink: one that took at least [`STALL_NS_MIN`].
    #[inline]
    pub(crate) fn store_long_write(&mut self, node: usize, write_ns: u64) {
        if write_ns >= STALL_NS_MIN {
            self.stall = Some(SinkStall { node, write_ns, waiting_blocks: 0 });
        }
    }

    /// Counts the blocks that a source emitted after a long write of a sink. `arrived` is their
    /// number, and `drained` is true if reading them has emptied the source. Returns the stall once
    /// at least [`STALL_BLOCKS_MIN`] blocks have been counted. Forgets the write when it returns
    /// the stall, when no blocks arrive, or when the source is empty.
    #[cold]
    pub(crate) fn check_stall(&mut self, arrived: usize, drained: bool) -> Option<SinkStall> {
        let stall = self.stall.as_mut()?;
        stall.waiting_blocks += arrived as u64;
        let stall = *stall;
        let held_up = stall.waiting_blocks >= STALL_BLOCKS_MIN;
        if held_up || drained || arrived == 0 {
            self.stall = None;
        }
        held_up.then_some(stall)
    }

    /// Stores the memory of a batch for reuse, unless [`SPARE_MEMORIES_MAX`] are already stored.
    pub(crate) fn store_spare_memory(&mut self, room: BatchMemory) {
        if self.spare_memories.len() < SPARE_MEMORIES_MAX {
            self.spare_memories.push(room);
        }
    }
}

/// The result of one pass over the inputs of a space.
#[derive(Clone, Copy, Default)]
pub(super) struct PassResult {
    /// True if an input of the space supplied blocks in this pass. The space then starts the next
    /// pass without sleeping.
    pub(super) moved: bool,
    /// True if at least one input of the space has not ended, so that more blocks may arrive.
    pub(super) expects_input: bool,
    /// Time of day, in nanoseconds, at which the next event at a source is due; `None` if unknown.
    pub(super) next_event_time: Option<Time>,
    /// True if a source or writer has a descriptor on which the space can wait for input.
    pub(super) has_descriptor: bool,
}

pub(super) fn earlier_time(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
