//! Merged streams: one reader merges the rings of many producers. [SL §5.1], CONTRACT 16, 24
//!
//! ```text
//! producer 1 ─ ring ─┐
//! producer 2 ─ ring ─┼─ Merged ── blocks, each with the id of its producer,
//! producer 3 ─ ring ─┘             in turn, or in order of their timestamps
//! ```
//!
//! No ring has two writers, so no producer waits for another or can damage its data, and a killed
//! producer leaves no lock or partial block behind. The reader waits on all doorbells at once. A
//! producer that ends, is killed or violates the protocol is removed; [`MergedReader::departed`]
//! returns its counters and fault. The others continue. Producers may join at any time.
//!
//! **By time** ([`MergeOrder::Stamped`]). Timestamps are claimed by producers, in any unit. The
//! oldest block is returned when one of these holds: every other producer has a later block
//! waiting; the waiting blocks of some producer span the window, reach 1 MB, or number 4096; or
//! nothing has arrived within the time limit ([`TimestampMerge::new`]). Blocks that arrive later
//! with older timestamps are returned immediately and counted as late. Until it is returned, a
//! consumed block is *staged* in memory of the reader. If a producer writes timestamps in the past,
//! at most every second read returns one of its blocks, so it starves no other producer. If a
//! producer writes timestamps in the future, the reader does not wait for the other producers;
//! their blocks count as late, but none is lost.

use buffer::stream::{BlockReadResult, WaitResult};
use buffer::{Fault, ReaderCounts, WriterCounts, signal};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

mod source;
mod timestamp_merge;

pub use source::BlockSource;
use source::ProducerReader;
use timestamp_merge::StagedBlocks;
pub use timestamp_merge::TimestampMerge;

/// The order among blocks of different producers. Blocks of one producer always stay in order.
#[derive(Debug)]
pub enum MergeOrder {
    /// Round-robin order. A producer's turn ends after this many blocks, if other producers have
    /// blocks.
    Fair(usize),
    /// Order of the timestamps that the blocks contain.
    Stamped(TimestampMerge),
}

/// The id of a producer, never reused by its reader.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProducerId(u64);

/// The result of a read from a [`MergedReader`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MergedRead {
    /// A block was copied to the caller's buffer.
    Block {
        /// Producer of the block.
        from: ProducerId,
        /// Length of the block in bytes.
        length: usize,
    },
    /// No block is available yet, but the reader still has producers.
    Nothing,
    /// The reader has no producers any more, so no blocks will follow.
    End,
}

/// A producer that has been removed from a [`MergedReader`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DepartedProducer {
    /// Id of the producer.
    pub producer: ProducerId,
    /// The fault for which the producer was removed, or `None` if it closed its stream.
    pub fault: Option<Fault>,
    /// Counts of the blocks that the producer has put, as published by the producer.
    pub put: WriterCounts,
    /// Counts of the blocks that the reader has taken from the producer.
    pub taken: ReaderCounts,
}

/// A reader that merges many streams.
pub struct MergedReader {
    order: MergeOrder,
    producers: Vec<Producer>,
    departed: VecDeque<DepartedProducer>,
    next_id: u64,
    /// Index of the producer from which the next block is taken in round-robin order.
    current: usize,
    taken_in_round: usize,
    spins: u32,
}

#[derive(Debug)]
struct Producer {
    id: ProducerId,
    input: Box<dyn ProducerReader>,
    /// Blocks of this producer that were consumed but not returned yet; used only with
    /// [`MergeOrder::Stamped`].
    stage: StagedBlocks,
    /// Reason for the end of the producer. `None` while it is running, `Some(None)` after it closed
    /// its stream, and `Some(Some(fault))` after a fault.
    ended: Option<Option<Fault>>,
}

impl MergedReader {
    /// Creates a reader without producers.
    #[must_use]
    pub fn new(order: MergeOrder) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            order,
            producers: Vec::new(),
            departed: VecDeque::new(),
            next_id: 0,
            current: 0,
            taken_in_round: 0,
            spins: signal::spin_limit_for_processors(processors),
        }
    }

    /// Sets how many times the reader polls all producers before it sleeps. 0 suits a reader that
    /// shares its processor with the producers.
    pub const fn set_spin_limit(&mut self, spins: u32) {
        self.spins = spins;
    }

    /// Adds a producer: the reading end of a stream of blocks or slots. Returns the id of the
    /// producer.
    pub fn add_producer(&mut self, input: impl BlockSource + 'static) -> ProducerId {
        let input = Box::new(input);
        let id = ProducerId(self.next_id);
        self.next_id += 1;
        self.producers.push(Producer { id, input, stage: StagedBlocks::default(), ended: None });
        id
    }

    /// Removes a producer after the blocks already consumed from it have been returned, and then
    /// closes its stream. Returns false if there is no such producer.
    pub fn remove_producer(&mut self, producer: ProducerId) -> bool {
        let Some(at) = self.producers.iter().position(|known| known.id == producer) else {
            return false;
        };
        self.producers[at].ended.get_or_insert(None);
        self.remove_ended_producers();
        true
    }

    /// Returns the number of producers that have not been removed.
    #[must_use]
    pub fn producer_count(&self) -> usize {
        self.producers.len()
    }

    /// Returns the next removed producer that has not been reported yet. Returns `None` if there is
    /// none.
    pub fn next_departed_producer(&mut self) -> Option<DepartedProducer> {
        self.departed.pop_front()
    }

    /// Returns the number of late blocks, which the reader returned after a block with a later
    /// timestamp.
    #[must_use]
    pub const fn late_block_count(&self) -> u64 {
        match &self.order {
            MergeOrder::Fair(_) => 0,
            MergeOrder::Stamped(stamped) => stamped.late_block_count,
        }
    }

    /// Returns the counts of blocks consumed from a producer, including blocks not returned yet.
    /// Returns `None` if there is no such producer.
    #[must_use]
    pub fn reader_counts(&self, producer: ProducerId) -> Option<ReaderCounts> {
        self.producers.iter().find(|known| known.id == producer).map(|known| known.input.counts())
    }

    /// Copies the next block into `out`. Blocks until there is one or no producer is left. Fails
    /// with [`Fault::TooLong`] if `out` is too short; the block then remains unread.
    pub fn read(&mut self, out: &mut [u8]) -> Result<MergedRead, Fault> {
        loop {
            match self.try_read(out)? {
                MergedRead::Nothing => {}
                found => return Ok(found),
            }
            let patience = match &self.order {
                MergeOrder::Stamped(stamped) if self.has_staged_blocks() => Some(stamped.patience),
                _ => None,
            };
            let ready = self.wait(patience);
            if ready == WaitResult::NotReady
                && patience.is_some()
                && let Some(found) = self.take_oldest_staged(out, false)?
            {
                return Ok(found);
            }
        }
    }

    /// Reads like [`MergedReader::read`], but returns [`MergedRead::Nothing`] instead of blocking.
    pub fn try_read(&mut self, out: &mut [u8]) -> Result<MergedRead, Fault> {
        let found = match self.order {
            MergeOrder::Fair(most) => self.take_block_round_robin(most.max(1), out)?,
            MergeOrder::Stamped(_) => {
                self.stage_blocks();
                self.take_oldest_staged(out, true)?
            }
        };
        self.remove_ended_producers();
        Ok(match found {
            Some(found) => found,
            None if self.producers.is_empty() => MergedRead::End,
            None => MergedRead::Nothing,
        })
    }

    /// Waits until a producer without staged blocks has a new block or has ended, for at most
    /// `limit` (`None` means no limit). Returns immediately if every producer has staged blocks.
    pub fn wait(&mut self, limit: Option<Duration>) -> WaitResult {
        for _ in 0..self.spins {
            if self.is_readable() {
                return WaitResult::Ready;
            }
            std::hint::spin_loop();
        }
        let mut found = false;
        let mut waited: Vec<_> = self.producers.iter_mut().filter(|p| p.is_waited_for()).collect();
        for producer in &mut waited {
            match producer.input.announce_sleep() {
                Ok(has) => found |= has,
                Err(fault) => {
                    producer.ended = Some(Some(fault));
                    found = true;
                }
            }
        }
        let notified = if found || waited.is_empty() {
            vec![false; waited.len()]
        } else {
            let doorbells: Vec<_> = waited.iter().map(|producer| producer.input.as_fd()).collect();
            sys::poll::wait_until_readable(&doorbells, limit)
        };
        for (producer, notified) in waited.into_iter().zip(notified) {
            producer.input.wake(notified);
        }
        if found || self.is_readable() { WaitResult::Ready } else { WaitResult::NotReady }
    }

    /// Returns the doorbells of all producers, for polling with other descriptors. A doorbell
    /// becomes readable if its producer notifies after [`MergedReader::wait`] has found nothing.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.producers.iter().map(|producer| producer.input.as_fd())
    }

    fn is_readable(&mut self) -> bool {
        let mut waited = self.producers.iter_mut().filter(|producer| producer.is_waited_for());
        // A fault counts as input: the next read reports it.
        waited.any(|producer| producer.input.is_readable().unwrap_or(true))
    }

    /// Copies the next block of the current producer, or of the next producer that has a block,
    /// into `out`. After `most` blocks of one producer in a row, the next producer becomes the
    /// current one. Returns `None` if no producer has a block.
    fn take_block_round_robin(
        &mut self,
        most: usize,
        out: &mut [u8],
    ) -> Result<Option<MergedRead>, Fault> {
        for _ in 0..=self.producers.len() {
            if self.taken_in_round >= most || self.current >= self.producers.len() {
                self.current =
                    if self.current + 1 < self.producers.len() { self.current + 1 } else { 0 };
                self.taken_in_round = 0;
            }
            let Some(producer) = self.producers.get_mut(self.current) else { return Ok(None) };
            match producer.take_block(out)? {
                Some(length) => {
                    self.taken_in_round += 1;
                    return Ok(Some(MergedRead::Block { from: producer.id, length }));
                }
                None => self.taken_in_round = most,
            }
        }
        Ok(None)
    }

    /// Removes the producers that have ended and have no staged blocks, and records each as
    /// departed.
    fn remove_ended_producers(&mut self) {
        let mut at = 0;
        while let Some(producer) = self.producers.get_mut(at) {
            match producer.ended {
                Some(fault) if producer.stage.is_empty() => {
                    let gone = self.producers.remove(at);
                    let (put, taken) = (gone.input.writer_counts(), gone.input.counts());
                    self.departed.push_back(DepartedProducer {
                        producer: gone.id,
                        fault,
                        put,
                        taken,
                    });
                    if at < self.current {
                        self.current -= 1;
                    } else if at == self.current {
                        self.taken_in_round = 0;
                    }
                }
                _ => at += 1,
            }
        }
    }
}

impl Producer {
    /// Returns true if the merge must wait for this producer: it has no staged block and has not
    /// ended.
    fn is_waited_for(&self) -> bool {
        self.ended.is_none() && self.stage.is_empty()
    }

    /// Consumes the producer's next block. Records the end or the fault of the producer. Returns
    /// the length of the block in bytes, or `None` if there is no block. Fails only if `out` is too
    /// short.
    fn take_block(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        if self.ended.is_some() {
            return Ok(None);
        }
        match self.input.read_block(out) {
            Ok(BlockReadResult::Block(length)) => return Ok(Some(length)),
            Ok(BlockReadResult::Nothing) => {}
            Ok(BlockReadResult::End) => self.ended = Some(None),
            Err(fault @ Fault::TooLong { .. }) => return Err(fault),
            Err(fault) => self.ended = Some(Some(fault)),
        }
        Ok(None)
    }
}

impl fmt::Debug for MergedReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Merged")
            .field("order", &self.order)
            .field("producers", &self.producers)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
