//! Block and byte counts, which both sides of a ring keep (CONTRACT 19).
//!
//! Each reader's counts satisfy: put = taken + lost + skipped + resident. Each side keeps its own
//! counts, so that a third party can compare them.

/// Counts kept by a ring's writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriterCounts {
    /// Blocks put into the ring.
    pub blocks: u64,
    /// Bytes of the blocks put. In a ring of rich pointers, the sum of their view lengths.
    pub bytes: u64,
    /// Blocks dropped because the ring was full ([`crate::OverflowPolicy::DropNew`]).
    pub dropped: u64,
    /// Number of bytes in the dropped blocks.
    pub dropped_bytes: u64,
}

/// Counts kept by one reader of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReaderCounts {
    /// Number of blocks that this reader has read from the ring.
    pub blocks: u64,
    /// Number of bytes in the blocks read.
    pub bytes: u64,
    /// Blocks overwritten before this reader reached them ([`crate::OverflowPolicy::Overwrite`]).
    pub lost: u64,
    /// Blocks that this reader chose not to take: blocks put before the reader joined, or blocks
    /// that a newer block superseded ([`crate::rate`]).
    pub skipped: u64,
}

impl WriterCounts {
    /// Returns the number of blocks that one reader has not passed yet and that are still in the
    /// ring. `taken` contains the reader's counts. Returns `None` if they contradict the writer's
    /// counts.
    #[must_use]
    pub fn resident_blocks(&self, taken: &ReaderCounts) -> Option<u64> {
        self.blocks.checked_sub(taken.blocks)?.checked_sub(taken.lost)?.checked_sub(taken.skipped)
    }

    pub(crate) const fn words(&self) -> [u64; 4] {
        [self.blocks, self.bytes, self.dropped, self.dropped_bytes]
    }

    pub(crate) const fn from_words(words: [u64; 4]) -> Self {
        let [blocks, bytes, dropped, dropped_bytes] = words;
        Self { blocks, bytes, dropped, dropped_bytes }
    }
}

impl ReaderCounts {
    pub(crate) const fn words(&self) -> [u64; 4] {
        [self.blocks, self.bytes, self.lost, self.skipped]
    }

    pub(crate) const fn from_words(words: [u64; 4]) -> Self {
        let [blocks, bytes, lost, skipped] = words;
        Self { blocks, bytes, lost, skipped }
    }
}
