//! The layout of a ring in memory that two spaces share. [SL §5.2]
//!
//! ```text
//! writer's memory   one page of control words, then the data        written by the writer alone
//! reader's memory   one page of control words per reader            written by that reader alone
//! geometry          one page that nobody can write any more         what both must agree on
//! ```
//!
//! Positions are 64-bit and monotone: bytes in a dbuf, entries in an ibuf; what lies at position p
//! is at p mod capacity, so a position also tells the lap. Every control word has a cache line pair
//! of its own, because processors fetch lines in pairs (BASELINES, padding). A number in this file
//! counts words of 8 bytes from the start of the page, unless it says bytes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a page of control words.
pub const PAGE: usize = 4096;
/// Words of a page of control words.
pub const PAGE_WORDS: usize = PAGE / 8;
/// Words from one control word to the next.
pub const LINE_WORDS: usize = 16;
/// Words from one copy of a ledger to the other. Each begins with the position that it belongs to:
/// the one whose position is shown counts.
pub const COPY_WORDS: usize = LINE_WORDS / 2;

/// Control words of the writer's page.
pub mod writer {
    use super::LINE_WORDS;

    /// The position up to which the writer may be writing; only lossy rings use it.
    pub const RESERVE: usize = 0;
    /// The position up to which everything is published.
    pub const COMMIT: usize = LINE_WORDS;
    /// A position in the younger half of the ring at which a record begins: where a reader that was
    /// lapped goes on.
    pub const MARK: usize = 2 * LINE_WORDS;
    /// Whether more will come: [`super::OPEN`] or [`super::CLOSED`].
    pub const STATE: usize = 3 * LINE_WORDS;
    /// First word of the writer's ledger, twice ([`super::COPY_WORDS`]): blocks put, bytes put,
    /// blocks dropped, bytes dropped.
    pub const LEDGER: usize = 4 * LINE_WORDS;
    /// Whether the writer sleeps, and until where readers must have come ([`super::wait`]).
    pub const WAIT: usize = 5 * LINE_WORDS;
    /// On which processor the writer was when it last looked for room, plus 1; 0: nobody knows.
    pub const PROCESSOR: usize = 6 * LINE_WORDS;
}

/// Control words of a reader's page.
pub mod reader {
    use super::LINE_WORDS;

    /// The position before which the reader needs nothing any more.
    pub const CURSOR: usize = 0;
    /// Whether the reader still reads: [`super::OPEN`] or [`super::CLOSED`].
    pub const STATE: usize = LINE_WORDS;
    /// First word of the reader's ledger, twice ([`super::COPY_WORDS`]): blocks taken, bytes taken,
    /// blocks lost, blocks skipped.
    pub const LEDGER: usize = 2 * LINE_WORDS;
    /// Whether the reader sleeps, and until where the writer must have come ([`super::wait`]).
    pub const WAIT: usize = 3 * LINE_WORDS;
    /// On which processor the reader was when it last gave something back, plus 1; 0: nobody knows.
    pub const PROCESSOR: usize = 4 * LINE_WORDS;
}

/// The two words by which a party says that it sleeps.
pub mod wait {
    /// Counts up when the party goes to sleep and when it is awake again: odd while it sleeps.
    pub const TURN: usize = 0;
    /// The position of the other party from which on the sleeper wants to be woken.
    pub const UNTIL: usize = 1;
}

/// A party is there.
pub const OPEN: u64 = 0;
/// A party has left for ever.
pub const CLOSED: u64 = 1;
/// The writer has left this segment for another one: the last record is a switch.
pub const SWITCHED: u64 = 2;

/// What the parties of a ring agree on before the first access. Lies in a memfd of its own that is
/// sealed against everything.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Geometry {
    /// [`Geometry::MAGIC`] or [`Geometry::SLOTS`].
    pub magic: u64,
    /// Bytes of data in the writer's memory: a power of two.
    pub capacity: u64,
    /// Number of the dbuf or ibuf.
    pub id: u32,
    /// Bytes from one entry of an ibuf to the next: 16, 32 or 64; of a slot in a ring of slots; 0
    /// in a dbuf of blocks of any length.
    pub stride: u32,
    /// What happens when the ring is full: 0 block, 1 drop new, 2 overwrite oldest.
    pub policy: u32,
    /// How many reader's pages there are.
    pub readers: u32,
    /// Which piece of the ring's life this is: a ring that grows, shrinks or changes hands goes on
    /// in another one, with a greater number.
    pub segment: u64,
    /// The position at which it begins.
    pub start: u64,
    /// Bytes of data that are mapped, where the capacity may change in place; 0 where it may not.
    pub extent: u64,
}

const _: () = assert!(size_of::<Geometry>() == 56);

impl Geometry {
    /// Says that this is a ring of this version.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"SL ring3");
    /// Says that this is a ring of slots: after the writer's page comes a table of one word for
    /// each slot, the length of the block in it, filled up to a page; then the slots.
    pub const SLOTS: u64 = u64::from_le_bytes(*b"SL slot2");
}

/// What stands before each block in a dbuf: 16 bytes, aligned to 16.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Record {
    /// Bytes of the block; of a pad: bytes to the end of the ring, without this header.
    pub length: u32,
    /// [`Record::BLOCK`], [`Record::PAD`], [`Record::SWITCH`] or [`Record::CUT`].
    pub kind: u32,
    /// How many blocks were put before this one. So a reader that was lapped knows how many it
    /// lost. Of a switch: the number of the next segment; of a cut: the capacity from here on.
    pub sequence: u64,
}

const _: () = assert!(size_of::<Record>() == Record::SIZE);

impl Record {
    /// Bytes of the header, and the alignment of records.
    pub const SIZE: usize = 16;
    /// A block follows.
    pub const BLOCK: u32 = 0xb10c;
    /// Nothing follows up to the end of the ring: the next record is at its start.
    pub const PAD: u32 = 0xfad5;
    /// The ring goes on in another segment, at the position behind this record.
    pub const SWITCH: u32 = 0x5e9d;
    /// The ring goes on in the same memory with another capacity.
    pub const CUT: u32 = 0xc07d;

    /// Bytes that a block of `length` takes in the ring.
    #[inline]
    #[must_use]
    pub const fn span(length: u32) -> u64 {
        Self::spans(length as usize)
    }

    /// As [`Record::span`], of a block that is as long as a slice.
    #[inline]
    #[must_use]
    pub const fn spans(length: usize) -> u64 {
        (length as u64 + 2 * Self::SIZE as u64 - 1) & !(Self::SIZE as u64 - 1)
    }

    /// The two words of the header of a block. Where the length has more than 32 bits they are
    /// those of no block.
    #[inline]
    #[must_use]
    pub const fn block_words(length: usize, sequence: u64) -> [u64; 2] {
        [((Self::BLOCK as u64) << 32).wrapping_add(length as u64), sequence]
    }

    /// The two words as they lie in the ring.
    #[must_use]
    pub const fn words(self) -> [u64; 2] {
        [self.length as u64 | (self.kind as u64) << 32, self.sequence]
    }

    /// The header that these two words allege.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self { length: words[0] as u32, kind: (words[0] >> 32) as u32, sequence: words[1] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_gives_back_what_it_was_given() {
        let record = Record { length: 1500, kind: Record::BLOCK, sequence: 1 << 40 };
        assert_eq!(Record::from_words(record.words()), record);
        assert_eq!(Record::span(0), 16);
        assert_eq!(Record::span(1), 32);
        assert_eq!(Record::span(16), 32);
        for length in [0, 1, 15, 16, 17, 1500] {
            let record = Record { length, kind: Record::BLOCK, sequence: 9 };
            assert_eq!(Record::block_words(length as usize, 9), record.words());
            assert_eq!(Record::spans(length as usize), Record::span(length));
        }
        assert_ne!(Record::from_words(Record::block_words(1 << 32, 0)).kind, Record::BLOCK);
    }
}
