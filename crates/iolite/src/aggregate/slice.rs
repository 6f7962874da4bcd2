//! One slice of an aggregate, and the id of its content. [IOL §2.3, §2.9]

use abi::{DbufId, RichPointer};
use buffer::Fault;
use buffer::pool::Lease;
use std::fmt;
use std::sync::Arc;

/// Immutable bytes in a pool, with the lease that holds them.
///
/// Invariant: the lease holds the filled segment that contains the bytes. This is checked at
/// creation; afterwards a slice is only shortened, or extended by bytes of the same segment. Slices
/// derived from each other share the lease, so a clone increments only one counter.
#[derive(Clone)]
pub struct Slice {
    lease: Arc<Lease>,
    pointer: RichPointer,
}

/// The id of a slice's content. Slices with equal ids and lengths have equal bytes, provided that
/// dbuf ids are unique. [IOL §2.9, generation number and address]
///
/// Positions and dbuf ids are never reused, so the position serves both as address and as
/// generation number (CONTRACT 7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ContentId {
    /// The dbuf that contains the first byte.
    pub dbuf: DbufId,
    /// Full 64-bit position of the content's first byte in the dbuf.
    pub position: u64,
}

impl Slice {
    /// Creates a slice of the block named by a pointer. Fails if the pointer is a hole, or if the
    /// block is not in the leased segment.
    pub(super) fn new(lease: Arc<Lease>, pointer: RichPointer) -> Result<Self, Fault> {
        if pointer.is_hole() {
            return Err(Fault::Hole);
        }
        if pointer.dbuf() != lease.dbuf() {
            return Err(Fault::UnknownDbuf(pointer.dbuf()));
        }
        lease.bytes(pointer.place)?;
        Ok(Self { lease, pointer })
    }

    /// Returns the bytes of the slice.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let bytes = self.lease.bytes(self.pointer.place);
        debug_assert!(bytes.is_ok(), "a lease keeps what it kept");
        bytes.unwrap_or_default()
    }

    /// Returns the number of bytes in the slice, which is never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a slice of an aggregate is never empty")]
    pub const fn len(&self) -> usize {
        self.pointer.length() as usize
    }

    /// Returns the rich pointer by which other spaces refer to the bytes of the slice.
    #[must_use]
    #[inline]
    pub const fn pointer(&self) -> RichPointer {
        self.pointer
    }

    /// Returns the lease that holds the bytes.
    #[must_use]
    #[inline]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Returns the id of the slice's content, under which properties of the bytes can be cached.
    #[must_use]
    pub fn content_id(&self) -> ContentId {
        let position = self.lease.full_position(self.pointer.place);
        ContentId { dbuf: self.lease.dbuf(), position }
    }

    /// Returns the position of the first byte of the slice's segment.
    pub(super) fn segment_position(&self) -> u64 {
        self.pointer.place.position() & !(self.lease.segment_len() as u64 - 1)
    }

    /// Narrows the slice to `length` bytes, beginning at offset `from`. The range must be within
    /// the slice.
    pub(super) fn narrow(&mut self, from: usize, length: usize) {
        debug_assert!(length > 0 && from + length <= self.len());
        let small = |number| u32::try_from(number).unwrap_or(u32::MAX);
        self.pointer = self.pointer.subrange(small(from), small(length));
    }

    /// Extends the slice by `next` if `next` directly follows it in the same segment and the result
    /// is not longer than [`abi::BLOCK_LENGTH_MAX`]. Returns true on success.
    pub(super) fn join(&mut self, next: &Self) -> bool {
        let length = self.len() + next.len();
        let end = self.pointer.place.position() + self.len() as u64;
        let follows = Arc::ptr_eq(self.lease.memory(), next.lease.memory())
            && self.segment_position() == next.segment_position()
            && end == next.pointer.place.position()
            && length <= abi::BLOCK_LENGTH_MAX;
        if follows && let Ok(length) = u32::try_from(length) {
            self.pointer = self.pointer.subrange(0, length);
        }
        follows
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ContentId { dbuf, position } = self.content_id();
        write!(f, "Slice({} bytes at {position} of dbuf {})", self.len(), dbuf.number())
    }
}
