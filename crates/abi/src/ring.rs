//! Layout of a ring in memory shared by two spaces. [SL §5.2]
//!
//! ```text
//! writer's memory   one page of control words, then the data        written by the writer alone
//! reader's memory   one page of control words per reader            written by that reader alone
//! geometry          one sealed page                                 fixed before the first access
//! ```
//!
//! Positions are 64-bit and monotone: bytes in a dbuf, entries in an ibuf. The item at position p
//! is stored at p mod capacity, so a position also implies the lap. Control words are two cache
//! lines apart, because CPUs prefetch lines in pairs (BASELINES, padding). Unless stated otherwise,
//! offsets in this file count 8-byte words from the start of the page.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size in bytes of a page of control words.
pub const PAGE_SIZE: usize = 4096;
/// Size in 8-byte words of a page of control words.
pub const PAGE_WORDS: usize = PAGE_SIZE / 8;
/// Distance in 8-byte words from one control word in a page to the next.
pub const LINE_WORDS: usize = 16;
/// Distance in words between the two copies of a party's counters. The first word of a copy is the
/// position at which the copy was made. The valid copy is the one whose position equals the
/// published position.
pub const COPY_STRIDE_WORDS: usize = LINE_WORDS / 2;

/// Offsets of the control words in the writer's page.
pub mod writer {
    use super::LINE_WORDS;

    /// Offset of the position up to which the writer may already be overwriting old data. Only
    /// rings that overwrite use this word.
    pub const RESERVED_POSITION: usize = 0;
    /// Offset of the position up to which all blocks are published to the readers.
    pub const COMMITTED_POSITION: usize = LINE_WORDS;
    /// Offset of the position of a record in the newer half of the ring, at which a lapped reader
    /// resumes.
    pub const RESUME_POSITION: usize = 2 * LINE_WORDS;
    /// Offset of the state of the writer: [`super::STATE_OPEN`], [`super::STATE_CLOSED`] after the
    /// last block, or [`super::STATE_SWITCHED`].
    pub const STATE: usize = 3 * LINE_WORDS;
    /// Offset of the first word of the writer's counters, which are stored twice
    /// ([`super::COPY_STRIDE_WORDS`]): blocks put, bytes put, blocks dropped, bytes dropped.
    pub const LEDGER: usize = 4 * LINE_WORDS;
    /// Offset of the words with which the writer announces that it sleeps until readers reach a
    /// position ([`super::wait`]).
    pub const WAIT: usize = 5 * LINE_WORDS;
    /// Offset of the number of the CPU, plus 1, on which the writer last checked for room; 0 if the
    /// CPU is unknown.
    pub const PROCESSOR: usize = 6 * LINE_WORDS;
    /// Offset of the number of blocks that were lost in the writer's program before they could be
    /// put into the ring; 0 if the program does not count them.
    pub const LOST_BEFORE_RING: usize = 7 * LINE_WORDS;
}

/// Offsets of the control words in a reader's page.
pub mod reader {
    use super::LINE_WORDS;

    /// Offset of the position up to which the reader has released all bytes.
    pub const RELEASED_POSITION: usize = 0;
    /// Offset of the state of the reader: [`super::STATE_OPEN`], or [`super::STATE_CLOSED`] after
    /// it has left.
    pub const STATE: usize = LINE_WORDS;
    /// Offset of the first word of the reader's counters, which are stored twice
    /// ([`super::COPY_STRIDE_WORDS`]): blocks taken, bytes taken, blocks lost, blocks skipped.
    pub const LEDGER: usize = 2 * LINE_WORDS;
    /// Offset of the words with which the reader announces that it sleeps until the writer reaches
    /// a position ([`super::wait`]).
    pub const WAIT: usize = 3 * LINE_WORDS;
    /// Offset of the number of the CPU, plus 1, on which the reader last released data; 0 if the
    /// CPU is unknown.
    pub const PROCESSOR: usize = 4 * LINE_WORDS;
}

/// Offsets of the two words with which a party announces that it sleeps, relative to
/// [`writer::WAIT`] or [`reader::WAIT`].
pub mod wait {
    /// Offset of a counter that a party increments when it goes to sleep and when it wakes up. The
    /// counter is odd while the party sleeps.
    pub const SLEEP_COUNT: usize = 0;
    /// Offset of the position that the other party must reach before it wakes a sleeping party.
    pub const WAKE_POSITION: usize = 1;
    /// Flag in the word at [`WAKE_POSITION`], set for a sleep with a time limit. The other party
    /// must not wake the sleeper before it reaches this position, not even when it flushes the
    /// ring. No position has this bit set.
    pub const THRESHOLD_ONLY: u64 = 1 << 63;
}

/// State of a party that is attached to the ring.
pub const STATE_OPEN: u64 = 0;
/// State of a party that has left the ring permanently.
pub const STATE_CLOSED: u64 = 1;
/// State of a writer that continues in another segment. The last record is then a switch.
pub const STATE_SWITCHED: u64 = 2;

/// The parameters of a ring, which are fixed before the first access. They are stored in a separate
/// memfd, which is sealed against every change.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RingGeometry {
    /// Magic number and version of the format: [`RingGeometry::MAGIC`] or
    /// [`RingGeometry::SLOTS_MAGIC`].
    pub magic: u64,
    /// Size of the ring's data area in bytes: a power of two.
    pub capacity: u64,
    /// Id of the dbuf or ibuf to which the ring belongs.
    pub id: u32,
    /// Distance between entries in bytes: 16, 32 or 64 in an ibuf, the slot size in a ring of
    /// slots, 0 in a dbuf of variable blocks.
    pub stride: u32,
    /// Behavior when the ring is full: 0 blocks the writer, 1 drops the newest block, 2 overwrites
    /// the oldest blocks.
    pub policy: u32,
    /// Number of reader pages of the ring, one per possible reader.
    pub readers: u32,
    /// Segment number. A ring that grows, shrinks or changes owners continues in a segment with a
    /// higher number.
    pub segment: u64,
    /// Position at which this segment of the ring begins.
    pub start: u64,
    /// Size in bytes of the data area that readers map, for a ring whose capacity may change in
    /// place; otherwise 0.
    pub extent: u64,
}

const _: () = assert!(size_of::<RingGeometry>() == 56);

impl RingGeometry {
    /// Magic number of a ring of blocks or rich pointers, with the version of its format.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"SL ring3");
    /// Magic number of a ring of slots, with the version of its format. In such a ring the writer's
    /// page is followed by a table of the slots' block lengths (one word each, padded to a page),
    /// then by the slots.
    pub const SLOTS_MAGIC: u64 = u64::from_le_bytes(*b"SL slot2");
}

/// The header of a record in a dbuf of variable blocks: 16 bytes, aligned to 16 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RecordHeader {
    /// Length of the block in bytes; in a pad, the number of bytes from the end of the header to
    /// the end of the ring.
    pub length: u32,
    /// Kind of the record: [`RecordHeader::KIND_BLOCK`], [`RecordHeader::KIND_PAD`],
    /// [`RecordHeader::KIND_SWITCH`] or [`RecordHeader::KIND_CUT`].
    pub kind: u32,
    /// A number whose meaning depends on the kind of the record. In a block, it is the number of
    /// blocks put before this block, from which a lapped reader computes its loss. In a switch, it
    /// is the number of the next segment; in a cut, the new capacity in bytes.
    pub sequence: u64,
}

const _: () = assert!(size_of::<RecordHeader>() == RecordHeader::SIZE);

impl RecordHeader {
    /// Size of the header in bytes, and the alignment of records.
    pub const SIZE: usize = 16;
    /// Kind of a record that contains a block.
    pub const KIND_BLOCK: u32 = 0xb10c;
    /// Kind of a pad, which fills the ring up to its end; the next record is at the start of the
    /// ring.
    pub const KIND_PAD: u32 = 0xfad5;
    /// Kind of a switch: the ring continues in another segment, at the position after this record.
    pub const KIND_SWITCH: u32 = 0x5e9d;
    /// Kind of a cut: the ring continues in the same memory with another capacity.
    pub const KIND_CUT: u32 = 0xc07d;

    /// Returns the number of bytes that the record of a block of `length` bytes occupies in the
    /// ring, including its header and padding.
    #[inline]
    #[must_use]
    pub const fn span(length: u32) -> u64 {
        Self::span_for_length(length as usize)
    }

    /// Returns the number of bytes that the record of a block of `length` bytes occupies, like
    /// [`RecordHeader::span`].
    #[inline]
    #[must_use]
    pub const fn span_for_length(length: usize) -> u64 {
        (length as u64 + 2 * Self::SIZE as u64 - 1) & !(Self::SIZE as u64 - 1)
    }

    /// Returns the record header of a block of `length` bytes, as the two words that are stored in
    /// the ring. A `length` of more than 32 bits yields an invalid header.
    #[inline]
    #[must_use]
    pub const fn block_words(length: usize, sequence: u64) -> [u64; 2] {
        [((Self::KIND_BLOCK as u64) << 32).wrapping_add(length as u64), sequence]
    }

    /// Returns the two 64-bit words of the header, as stored in the ring.
    #[must_use]
    pub const fn words(self) -> [u64; 2] {
        [self.length as u64 | (self.kind as u64) << 32, self.sequence]
    }

    /// Decodes a header from two untrusted 64-bit words; any value is accepted.
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
    fn record_header_survives_a_round_trip() {
        let record =
            RecordHeader { length: 1500, kind: RecordHeader::KIND_BLOCK, sequence: 1 << 40 };
        assert_eq!(RecordHeader::from_words(record.words()), record);
        assert_eq!(RecordHeader::span(0), 16);
        assert_eq!(RecordHeader::span(1), 32);
        assert_eq!(RecordHeader::span(16), 32);
        for length in [0, 1, 15, 16, 17, 1500] {
            let record = RecordHeader { length, kind: RecordHeader::KIND_BLOCK, sequence: 9 };
            assert_eq!(RecordHeader::block_words(length as usize, 9), record.words());
            assert_eq!(RecordHeader::span_for_length(length as usize), RecordHeader::span(length));
        }
        assert_ne!(
            RecordHeader::from_words(RecordHeader::block_words(1 << 32, 0)).kind,
            RecordHeader::KIND_BLOCK
        );
    }
}
