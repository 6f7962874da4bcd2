//! Positions of a ring's writer and readers. [SL §5.2]
//!
//! A position is monotone and 64 bits wide; it counts bytes in a dbuf and entries in an ibuf. Each
//! party writes only its own page of control words, keeps its own position in private memory, and
//! caches the other party's position, so that it loads the other party's cache line only when the
//! cached position shows a full or empty ring. Positions are published once per batch.
//!
//! SYNC POINTS (each Release names its Acquire):
//! - *block published*: [`WriterCursor::publish`] stores `COMMIT` with Release,
//!   [`ReaderCursor::refresh_published_position`] loads it with Acquire: a reader that sees the
//!   position sees the blocks before it.
//! - *block released*: [`ReaderCursor::release`] stores `CURSOR` with Release,
//!   [`WriterCursor::refresh_reader_positions`] loads it with Acquire: a writer that sees the
//!   position may overwrite the data that the reader has released.
//! - *writing begins* (lossy rings): [`WriterCursor::announce_overwrite`] stores `RESERVE`, then
//!   issues a Release fence, then writes the data; [`ReaderCursor::is_overtaken`] issues an Acquire
//!   fence after copying the data, then loads `RESERVE`: a reader that has seen a new byte sees the
//!   new position.
//! - *closed*: `STATE` is stored with Release after the last publication; a party that sees the end
//!   also sees the final positions.
//!
//! A party stores its counts ([`counts`]) before it publishes the position to which they belong.
//! The counts are therefore correct for the published position even if the party is killed between
//! the two stores.
//!
//! Each position read from the other party is checked: it must not decrease, and must be within one
//! capacity of the local position. An impossible position is never clamped: it poisons the link to
//! that party, and other parties of the ring are not affected (RELIABILITY T3). After that, a
//! reader's calls fail with a fault. A writer instead evicts and counts the lying reader, and
//! continues for the other readers; its calls fail only if no reader remains and none can join.

mod counts;

use crate::atomic::Ordering;
use crate::region::Region;
use crate::{OverflowPolicy, ReaderCounts, WriterCounts};
use abi::ring::{PAGE_WORDS, reader, writer};
use std::sync::{Arc, OnceLock};

mod consumer;
mod producer;

pub(crate) use consumer::ReaderCursor;
pub use producer::{ReaderChange, WriterCursor};

/// Largest valid position in bytes or entries. At 10 GB/s, 2⁶³ bytes take 29 years, so positions
/// never overflow.
pub(crate) const POSITION_MAX: u64 = u64::MAX >> 1;

/// Offset of the data in the writer's memory, in words. In models the offset is smaller, because
/// each word slows loom down.
pub(crate) const DATA_OFFSET_WORDS: usize =
    if cfg!(loom) { writer::WAIT + abi::ring::LINE_WORDS } else { PAGE_WORDS };

/// The shared memory of one ring.
#[derive(Debug)]
pub struct RingMemory {
    /// The writer's control words, followed by the data, which begins at word
    /// [`DATA_OFFSET_WORDS`].
    pub writer: Region,
    /// The control words of each reader. A reader in an untrusted process maps only its own.
    pub readers: Box<[Arc<Region>]>,
    /// Length of a lap in positions, a power of two.
    pub capacity: u64,
    /// Policy that applies when the ring is full.
    pub policy: OverflowPolicy,
    /// The memory in which the ring continues after a resize within one process
    /// ([`WriterCursor::continue_in_new_memory`]). Empty before such a resize.
    next: OnceLock<Arc<Self>>,
}

impl RingMemory {
    /// Creates a ring from memory that its parties share.
    pub(crate) fn new(
        writer: Region,
        readers: Box<[Arc<Region>]>,
        capacity: u64,
        policy: OverflowPolicy,
    ) -> Arc<Self> {
        Arc::new(Self { writer, readers, capacity, policy, next: OnceLock::new() })
    }

    /// Allocates a ring on the heap, for threads of one process. Panics if `capacity` is not a
    /// power of two.
    pub(crate) fn heap(
        data_words: usize,
        capacity: u64,
        policy: OverflowPolicy,
        readers: usize,
    ) -> Arc<Self> {
        let words = reader::WAIT + abi::ring::LINE_WORDS;
        let readers = (0..readers).map(|_| Arc::new(Region::heap(words))).collect();
        Self::heap_with_readers(readers, data_words, capacity, policy)
    }

    /// Allocates the writer's part of a ring on the heap, for readers whose control words already
    /// exist.
    fn heap_with_readers(
        readers: Box<[Arc<Region>]>,
        data_words: usize,
        capacity: u64,
        policy: OverflowPolicy,
    ) -> Arc<Self> {
        assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two");
        Self::new(Region::heap(DATA_OFFSET_WORDS + data_words), readers, capacity, policy)
    }

    /// Returns the writer's published counts of blocks put and dropped.
    pub(crate) fn writer_counts(&self) -> WriterCounts {
        WriterCounts::from_words(counts::read_counts(
            &self.writer,
            writer::COMMITTED_POSITION,
            writer::LEDGER,
        ))
    }

    /// Returns the number of blocks that the writer's program has reported as lost before it could
    /// put them into the ring.
    pub(crate) fn lost_before_ring(&self) -> u64 {
        self.writer.word(writer::LOST_BEFORE_RING).load(Ordering::Relaxed)
    }

    /// Returns the counts that a reader has published, or `None` if there is no such reader.
    pub(crate) fn reader_counts(&self, index: usize) -> Option<ReaderCounts> {
        self.readers.get(index).map(|page| reader_counts(page))
    }
}

fn reader_counts(page: &Region) -> ReaderCounts {
    ReaderCounts::from_words(counts::read_counts(page, reader::RELEASED_POSITION, reader::LEDGER))
}

#[cfg(test)]
#[cfg(loom)]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
