//! Counts of each side of an edge (CONTRACT 19).
//!
//! put = taken + lost + skipped + resident, per reader. The two sides never count for each other:
//! the writer's figures come from the writer, the reader's from the reader, and a third party
//! compares them.

/// The counts of a writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Put {
    /// Blocks put into the ring.
    pub blocks: u64,
    /// Bytes of these blocks (their views, where the ring carries rich pointers).
    pub bytes: u64,
    /// Blocks refused because the ring was full ([`crate::Policy::DropNew`]).
    pub dropped: u64,
    /// Bytes of the refused blocks.
    pub dropped_bytes: u64,
}

/// The counts of one reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// Blocks taken.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Blocks overwritten before this reader came ([`crate::Policy::Overwrite`]).
    pub lost: u64,
    /// Blocks that this reader did not want: they came before it did, or were not the newest
    /// ([`crate::pace`]).
    pub skipped: u64,
}

impl Put {
    /// Blocks that are still in the ring, if this reader and the writer have counted right: `None`
    /// says that the edge is unbalanced.
    #[must_use]
    pub const fn resident(&self, taken: &Taken) -> Option<u64> {
        match self.blocks.checked_sub(taken.blocks) {
            Some(left) => match left.checked_sub(taken.lost) {
                Some(left) => left.checked_sub(taken.skipped),
                None => None,
            },
            None => None,
        }
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
