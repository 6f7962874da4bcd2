//! A ring of blocks of any length, on which IPC streams between spaces are built. [SL §5.1, §5.2]
//!
//! The ring has one writer and several readers, each with its own position. A block never wraps
//! around: a pad record fills the end of the ring if the block does not fit there, so `peek` always
//! returns one slice. A full ring has one of three policies: block (the writer waits for the
//! slowest reader), drop new, or overwrite oldest. Deviation from the paper: `read` is `peek` plus
//! memcpy only in the trusted memory of a ring that does not overwrite. In all other cases `read`
//! copies word by word and then checks the lap again.
//!
//! There are two kinds of reader. [`BlockReader`] is in the writer's process, trusts the writer,
//! and may read blocks in place. [`ForeignBlockReader`] is attached to a ring of another process
//! ([`crate::share`]). This reader treats all bytes as foreign: it only copies (except under D6),
//! and validates everything in the ring.
//!
//! `&[u8]` is sound here (rings that block or drop new, in one process) by these invariants, cited
//! below:
//! - D1 The words of a ring made by [`ring`] are written only by this crate: the writer's page and
//!   the data by the one [`BlockWriter`], each reader's page by its one [`BlockReader`].
//! - D2 The writer writes data only between its head and the oldest cursor of all remaining readers
//!   plus the capacity, and publishes blocks (Release) after they are written.
//! - D3 A reader accesses only blocks that are published (Acquire) and at or beyond its own
//!   published cursor.
//! - D4 A reader publishes its cursor only in methods with `&mut self` and in `drop`. While a slice
//!   lives, the writer has therefore not seen the cursor pass it, and does not write there (D2).
//! - D5 In a ring that overwrites, no slice of the ring is ever returned: reservations are private
//!   memory that commit copies in word by word, and readers copy out.
//! - D6 A [`ForeignBlockReader`] returns slices only if there is a `TrustProof` for the creator of
//!   the memory. Such a creator could write all memory of this process anyway (V3 of
//!   `iolite::view`), and is relied on to maintain D2.

use crate::cursor::{ReaderCursor, RingMemory};
use crate::{Fault, OverflowPolicy};
use abi::DbufId;
use abi::ring::PAGE_SIZE;
use walk::{RecordWalk, block_length_max};

#[expect(unsafe_code, reason = "turns positions into addresses; numbered invariants in the file")]
mod data;
pub mod fixed_size;
pub(crate) mod readers;
mod reserve;
pub(crate) mod walk;
mod writer;

pub use reserve::Reservation;
pub use writer::BlockWriter;

/// Dimensions and policy of a ring of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockConfig {
    /// Id by which rich pointers refer to the ring.
    pub id: DbufId,
    /// Capacity in bytes, including record headers; rounded up to a power of two, at least a page.
    pub capacity: usize,
    /// Policy that applies when the ring is full.
    pub policy: OverflowPolicy,
    /// Number of readers.
    pub readers: usize,
}

impl BlockConfig {
    /// Returns the default configuration: a blocking ring of 1 MB with one reader. If the writer
    /// and the reader share a processor, 512 KB to 1 MB performs best (BASELINES).
    #[must_use]
    pub const fn new(id: DbufId) -> Self {
        Self { id, capacity: 1 << 20, policy: OverflowPolicy::Block, readers: 1 }
    }

    pub(crate) fn capacity_bytes(&self) -> usize {
        self.capacity.max(PAGE_SIZE).next_power_of_two()
    }
}

/// Creates a ring for threads of this process.
#[must_use]
pub fn ring(config: &BlockConfig) -> (BlockWriter, Vec<BlockReader>) {
    let bytes = config.capacity_bytes();
    let store = RingMemory::heap(bytes / 8, bytes as u64, config.policy, config.readers);
    let reader =
        |index| BlockReader::from_walk(RecordWalk::new(ReaderCursor::new(store.clone(), index)));
    let readers = (0..config.readers).map(reader).collect();
    (BlockWriter::new(store, config.id), readers)
}

/// A reader in the writer's process, which may read blocks in place.
pub type BlockReader = readers::RingReader<RecordWalk, readers::Local>;

/// A reader outside the writer's process, which copies blocks. Reads them in place only if the
/// creator of the memory is trusted (D6).
pub type ForeignBlockReader = readers::RingReader<RecordWalk, readers::Foreign>;

impl ForeignBlockReader {
    pub(crate) fn new(side: ReaderCursor) -> Self {
        Self::from_walk(RecordWalk::new(side))
    }

    /// Returns the internal state of this reader, with which a stream that wraps the ring reads
    /// blocks.
    pub(crate) const fn walk(&mut self) -> &mut RecordWalk {
        &mut self.0
    }

    /// Skips to the writer's current position. The skipped blocks are counted later, when the
    /// reader takes its next block.
    pub fn join_at_current_position(&mut self) -> Result<(), Fault> {
        self.0.join_at_current_position()
    }

    /// Returns the maximum length of a block in bytes.
    #[must_use]
    pub fn block_length_max(&self) -> usize {
        block_length_max(self.0.data.capacity())
    }
}

#[cfg(test)]
mod tests;
