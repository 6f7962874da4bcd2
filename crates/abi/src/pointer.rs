//! The rich pointer: 16 bytes that identify a block anywhere in the system. [SL §5.3.1]
//!
//! ```text
//! word 0   position:44 | length:20        first byte of the view, and its length
//! word 1   class:32 | dbuf:24 | flags:8   a filter's answer, the dbuf, flags
//! ```
//!
//! `position` is the low 44 bits of the view's 64-bit byte position in the dbuf's stream. A
//! position implies the lap, and is suitable for fixed slots as well as for variable records (a
//! slot's position is its number times its size). [`Extent::position_near`] restores all 64 bits: a
//! ring's window is far smaller than the 16 TB that 44 bits distinguish. The sources list dbuf,
//! block, offset, length and class; docs/book/decisions/0001-rich-pointer.md explains why block and
//! offset are merged into one position.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The id of a dbuf. Ids are never reused, so an id needs no generation number. Id 0 belongs to no
/// dbuf: a rich pointer with this id is a *hole* (a length without bytes).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DbufId(u32);

impl DbufId {
    /// The id 0, which marks holes.
    pub const HOLE: Self = Self(0);
    /// Largest id of a dbuf (24 bits).
    pub const MAX: Self = Self((1 << 24) - 1);

    /// Returns the id with this number, or `None` if the number exceeds 24 bits.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number <= Self::MAX.0 { Some(Self(number)) } else { None }
    }

    /// Returns the id as a number, at most 2²⁴−1.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// The value with which a filter answers a block, and by which arcs select blocks (CONTRACT 9).
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(transparent)]
pub struct Class(pub u32);

impl Class {
    /// No answer. An arc without a selector (`|`) passes every class except this one.
    pub const NONE: Self = Self(0);
    /// The class that sources assign, and the positive answer of a filter with no other classes.
    pub const YES: Self = Self(1);
    /// Class that represents the value 0 (port 0, protocol 0), because class 0 means no answer.
    /// Requests call this class `zero`.
    pub const ZERO: Self = Self(u32::MAX - 1);
    /// Class of a block that a filter holds beyond its batch. Never leaves the space.
    pub const HELD: Self = Self(u32::MAX);

    /// Returns the class for a natural number; [`Class::ZERO`] for 0, because class 0 means no
    /// answer.
    #[must_use]
    pub const fn from_natural(value: u32) -> Self {
        if value == 0 { Self::ZERO } else { Self(value) }
    }

    /// Returns true unless the class is [`Class::NONE`].
    #[must_use]
    pub const fn is_answered(self) -> bool {
        self.0 != 0
    }
}

/// Word 0 of a rich pointer: the position of a view, truncated to its low 44 bits, in the upper
/// bits, and the length of the view in the lower 20 bits.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Extent(u64);

impl Extent {
    const LENGTH_BITS: u32 = 20;
    const LENGTH_MASK: u64 = (1 << Self::LENGTH_BITS) - 1;
    /// Number of low position bits that a rich pointer carries.
    pub const POSITION_BITS: u32 = 44;
    const POSITION_MASK: u64 = (1 << Self::POSITION_BITS) - 1;

    /// Creates an extent. A `length` of more than [`crate::BLOCK_LENGTH_MAX`] is clamped, so the
    /// caller must split longer blocks first.
    #[must_use]
    pub const fn new(position: u64, length: u32) -> Self {
        let length =
            if length as u64 > Self::LENGTH_MASK { Self::LENGTH_MASK } else { length as u64 };
        Self((position & Self::POSITION_MASK) << Self::LENGTH_BITS | length)
    }

    /// Returns the low 44 bits of the position.
    #[must_use]
    pub const fn position(self) -> u64 {
        self.0 >> Self::LENGTH_BITS
    }

    /// Returns the length of the view in bytes.
    #[must_use]
    pub const fn length(self) -> u32 {
        (self.0 & Self::LENGTH_MASK) as u32
    }

    /// Returns the 64-bit position nearest to `near` whose low 44 bits are the position of this
    /// extent. The result is the position given to [`Extent::new`] if that position is less than
    /// 2⁴³ bytes from `near`. Positions within the window of a ring are always that close.
    #[must_use]
    pub const fn position_near(self, near: u64) -> u64 {
        let half = 1u64 << (Self::POSITION_BITS - 1);
        let distance = self.position().wrapping_sub(near) & Self::POSITION_MASK;
        if distance < half {
            near.wrapping_add(distance)
        } else {
            near.wrapping_sub((Self::POSITION_MASK + 1) - distance)
        }
    }

    /// Returns the extent of `length` bytes that begins `from` bytes after the start of this
    /// extent.
    #[must_use]
    pub const fn subrange(self, from: u32, length: u32) -> Self {
        Self::new(self.position().wrapping_add(from as u64), length)
    }
}

/// A rich pointer: the dbuf, extent and class of a view.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, align(16))]
pub struct RichPointer {
    /// Position and length of the view in the dbuf.
    pub place: Extent,
    /// Answer of the last filter that classified the block.
    pub class: Class,
    dbuf_and_flags: u32,
}

const _: () = assert!(size_of::<RichPointer>() == 16);

impl RichPointer {
    /// Creates a rich pointer without flags.
    #[must_use]
    pub const fn new(dbuf: DbufId, place: Extent, class: Class) -> Self {
        Self { place, class, dbuf_and_flags: dbuf.0 << 8 }
    }

    /// Creates a hole, which stands for `length` bytes of the stream that were never received.
    #[must_use]
    pub const fn hole(length: u32) -> Self {
        Self::new(DbufId::HOLE, Extent::new(0, length), Class::YES)
    }

    /// Returns the id of the dbuf.
    #[must_use]
    pub const fn dbuf(self) -> DbufId {
        DbufId(self.dbuf_and_flags >> 8)
    }

    /// Returns the 8 flag bits, which are reserved: a reader rejects a pointer in which they are
    /// not 0.
    #[must_use]
    pub const fn flags(self) -> u8 {
        (self.dbuf_and_flags & 0xff) as u8
    }

    /// Returns true if the pointer is a hole: it has a length but no bytes.
    #[must_use]
    pub const fn is_hole(self) -> bool {
        self.dbuf().0 == 0
    }

    /// Returns the length of the view in bytes.
    #[must_use]
    pub const fn length(self) -> u32 {
        self.place.length()
    }

    /// Returns the pointer with its class replaced by `class`.
    #[must_use]
    pub const fn with_class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// Returns a pointer to the `length` bytes that begin `from` bytes after the start of the view.
    #[must_use]
    pub const fn subrange(self, from: u32, length: u32) -> Self {
        Self { place: self.place.subrange(from, length), ..self }
    }

    /// Returns a pointer to the `length` bytes that begin `before` bytes before the start of the
    /// view.
    #[inline]
    #[must_use]
    pub const fn extended_back(self, before: u32, length: u32) -> Self {
        let start = self.place.position().wrapping_sub(before as u64);
        Self { place: Extent::new(start, length), ..self }
    }

    /// Returns the two 64-bit words of the pointer, as stored in shared memory.
    #[must_use]
    pub const fn words(self) -> [u64; 2] {
        [self.place.0, self.class.0 as u64 | (self.dbuf_and_flags as u64) << 32]
    }

    /// Decodes a pointer from two untrusted 64-bit words; any value is accepted.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self {
            place: Extent(words[0]),
            class: Class(words[1] as u32),
            dbuf_and_flags: (words[1] >> 32) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d3_rich_pointer_has_16_bytes_and_survives_a_round_trip() {
        assert_eq!(size_of::<RichPointer>(), 16);
        let dbuf = DbufId::new(0xab_cdef).unwrap();
        let p = RichPointer::new(dbuf, Extent::new(0x0fff_1234_5678, 65_549), Class(793));
        assert_eq!(p.dbuf(), dbuf);
        assert_eq!(p.place.position(), 0x0fff_1234_5678);
        assert_eq!(p.length(), 65_549);
        assert_eq!(p.class, Class(793));
        assert_eq!(RichPointer::from_words(p.words()), p);
        assert_eq!(p.subrange(14, 100).place.position(), 0x0fff_1234_5686);
    }

    #[test]
    fn truncated_position_is_completed_across_laps() {
        for near in [0u64, 1 << 43, (1 << 44) - 3, 1 << 44, (7 << 44) + 5, u64::MAX >> 1] {
            for offset in [-4096i64, -1, 0, 1, 1 << 30] {
                let Some(position) = near.checked_add_signed(offset) else { continue };
                assert_eq!(
                    Extent::new(position, 1).position_near(near),
                    position,
                    "near {near} {offset}"
                );
            }
        }
    }

    #[test]
    fn class_of_zero_is_a_valid_answer() {
        assert_eq!(Class::from_natural(0), Class::ZERO);
        assert_eq!(Class::from_natural(80), Class(80));
        assert!(Class::ZERO.is_answered());
    }
}
