//! Merging in timestamp order. Consumed blocks are *staged*: they wait in memory of the reader
//! until no older block can arrive.

use super::{MergeOrder, MergedRead, MergedReader, ProducerId};
use buffer::Fault;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

type TimestampFn = dyn FnMut(&[u8]) -> u64 + Send;

/// Parameters of a merge by timestamp.
pub struct TimestampMerge {
    /// Function that extracts the timestamp of a block, in any unit.
    stamp: Box<TimestampFn>,
    /// Maximum expected difference between the timestamps that different producers write at the
    /// same moment, in the unit of the timestamps.
    window: u64,
    /// Maximum time to wait for a silent producer while others have blocks.
    pub(super) patience: Duration,
    /// Latest timestamp of any block returned so far.
    last_stamp: u64,
    /// Producer of the block that was returned last, if the block was late: the next read skips
    /// this producer once, so that another one is served in between.
    skipped_producer: Option<ProducerId>,
    /// Number of blocks that were returned after a block with a later timestamp.
    pub(super) late_block_count: u64,
}

impl TimestampMerge {
    /// Creates the parameters. `stamp` extracts the timestamp of a block. `window` is the maximum
    /// expected difference between timestamps of concurrent producers. The reader waits for a
    /// silent producer for at most `patience`.
    pub fn new(
        window: u64,
        patience: Duration,
        stamp: impl FnMut(&[u8]) -> u64 + Send + 'static,
    ) -> Self {
        Self {
            stamp: Box::new(stamp),
            window,
            patience,
            last_stamp: 0,
            skipped_producer: None,
            late_block_count: 0,
        }
    }
}

impl fmt::Debug for TimestampMerge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stamped(window {}, patience {:?})", self.window, self.patience)
    }
}

/// The staged blocks of one producer: blocks that the reader has consumed but not returned yet.
#[derive(Debug, Default)]
pub(super) struct StagedBlocks {
    blocks: VecDeque<(u64, Vec<u8>)>,
    bytes: usize,
    /// Buffers of returned blocks, for reuse by later blocks.
    spare: Vec<Vec<u8>>,
}

/// Maximum number of staged blocks of one producer. When the maximum is reached, the oldest staged
/// block is returned.
const STAGED_BLOCKS_MAX: usize = 4096;
/// Maximum total size in bytes of the staged blocks of one producer.
const STAGED_BYTES_MAX: usize = 1 << 20;
/// Initial size in bytes of the buffer for a staged block; longer blocks are rare.
const INITIAL_BUFFER_SIZE: usize = 2048;

impl StagedBlocks {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns true if the first staged block need not wait for other producers. This is the case
    /// if the timestamp of a later block exceeds its timestamp by the window, or if too many blocks
    /// or bytes are staged.
    fn is_due(&self, window: u64) -> bool {
        let (first, last) = (self.blocks.front(), self.blocks.back());
        let passed = first.zip(last).is_some_and(|((first, _), (last, _))| {
            first.checked_add(window).is_some_and(|end| end <= *last)
        });
        passed || self.blocks.len() >= STAGED_BLOCKS_MAX || self.bytes >= STAGED_BYTES_MAX
    }
}

impl MergedReader {
    pub(super) fn has_staged_blocks(&self) -> bool {
        self.producers.iter().any(|producer| !producer.stage.is_empty())
    }

    /// Consumes available blocks of every producer into its stage, but no more than the merge needs
    /// to determine which staged block is the oldest.
    pub(super) fn stage_blocks(&mut self) {
        let MergeOrder::Stamped(stamped) = &mut self.order else { return };
        for producer in &mut self.producers {
            while !producer.stage.is_due(stamped.window) {
                let mut room = producer.stage.spare.pop().unwrap_or_default();
                room.resize(room.capacity().max(INITIAL_BUFFER_SIZE), 0);
                let taken = match producer.take_block(&mut room) {
                    // The ring has already validated this length.
                    Err(Fault::TooLong { length, .. }) => {
                        room.resize(length, 0);
                        producer.take_block(&mut room)
                    }
                    taken => taken,
                };
                let Ok(Some(length)) = taken else {
                    producer.stage.spare.push(room);
                    break;
                };
                room.truncate(length);
                let stamp = (stamped.stamp)(&room);
                producer.stage.bytes += length;
                producer.stage.blocks.push_back((stamp, room));
            }
        }
    }

    /// Copies the oldest staged block of all producers into `out`. If `must_be_final` is true, does
    /// so only if no older block can arrive, or if [`StagedBlocks::is_due`] is true for a producer.
    /// Returns `None` if no block was copied. Fails with [`Fault::TooLong`] if `out` is shorter
    /// than the block, which then stays staged.
    pub(super) fn take_oldest_staged(
        &mut self,
        out: &mut [u8],
        must_be_final: bool,
    ) -> Result<Option<MergedRead>, Fault> {
        let all_have = self.producers.iter().all(|p| p.ended.is_some() || !p.stage.is_empty());
        let MergeOrder::Stamped(stamped) = &mut self.order else { return Ok(None) };
        let heads = self.producers.iter().enumerate().filter_map(|(at, producer)| {
            let (stamp, _) = producer.stage.blocks.front()?;
            Some((stamped.skipped_producer == Some(producer.id), *stamp, at))
        });
        let Some((_, stamp, at)) = heads.min() else { return Ok(None) };
        let is_due = self.producers.iter().any(|p| p.stage.is_due(stamped.window));
        if must_be_final && !all_have && !is_due {
            return Ok(None);
        }
        let Some(producer) = self.producers.get_mut(at) else { return Ok(None) };
        let Some((_, block)) = producer.stage.blocks.front() else { return Ok(None) };
        let (length, limit) = (block.len(), out.len());
        let Some(to) = out.get_mut(..length) else {
            return Err(Fault::TooLong { length, limit });
        };
        to.copy_from_slice(block);
        let is_late = stamp < stamped.last_stamp;
        stamped.late_block_count += u64::from(is_late);
        stamped.skipped_producer = is_late.then_some(producer.id);
        stamped.last_stamp = stamped.last_stamp.max(stamp);
        if let Some((_, block)) = producer.stage.blocks.pop_front() {
            producer.stage.bytes -= block.len();
            producer.stage.spare.push(block);
        }
        let from = producer.id;
        self.remove_ended_producers();
        Ok(Some(MergedRead::Block { from, length }))
    }
}
