//! Block and byte counts of both sides of a ring (CONTRACT 19).
//!
//! Per reader, put = taken + lost + skipped + resident. Each side keeps its own counts, and a third
//! party compares them.

/// Counts of a writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Put {
    /// Blocks put into the ring.
    pub blocks: u64,
    /// Bytes of these blocks (of their views, where the ring carries rich pointers).
    pub bytes: u64,
    /// Blocks dropped because the ring was full ([`crate::Policy::DropNew`]).
    pub dropped: u64,
    /// Bytes of the dropped blocks.
    pub dropped_bytes: u64,
}

/// Counts of one reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// Blocks taken.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Blocks overwritten before this reader reached them ([`crate::Policy::Overwrite`]).
    pub lost: u64,
    /// Blocks that this reader chose not to take: blocks put before it joined, or all but the
    /// newest ([`crate::rate`]).
    pub skipped: u64,
}

impl Put {
    /// Returns the number of blocks that `taken` leaves in the ring, or `None` if the counts
    /// contradict each other.
    #[must_use]
    pub fn resident(&self, taken: &Taken) -> Option<u64> {
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

impl Taken {
    pub(crate) const fn words(&self) -> [u64; 4] {
        [self.blocks, self.bytes, self.lost, self.skipped]
    }

    pub(crate) const fn from_words(words: [u64; 4]) -> Self {
        let [blocks, bytes, lost, skipped] = words;
        Self { blocks, bytes, lost, skipped }
    }
}
