//! One slice of an aggregate, and the number by which its content is known. [IOL §2.3, §2.9]

use abi::{DbufId, RichPointer};
use buffer::Fault;
use buffer::pool::Lease;
use std::fmt;
use std::sync::Arc;

/// Immutable bytes in a pool, and the lease that keeps them.
///
/// Invariant: the lease keeps the segment in which the pointed-to bytes lie, filled. It was looked
/// at when the slice was made; a slice is only ever narrowed, or made longer by bytes of the same
/// segment. The lease is shared by the slices of a segment as far as they come from each other, so
/// that one more costs one count and not two.
#[derive(Clone)]
pub struct Slice {
    lease: Arc<Lease>,
    pointer: RichPointer,
}

/// Names content: whoever meets the same id and length again meets the same bytes, as long as the
/// broker lives that gave the dbuf its id. [IOL §2.9, generation number and address]
///
/// Positions are never used twice and ids of dbufs neither, so the position is address and
/// generation in one (CONTRACT 7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ContentId {
    /// The dbuf that the first byte lies in.
    pub dbuf: DbufId,
    /// Its position, all 64 bits.
    pub position: u64,
}

impl Slice {
    /// The block that a pointer alleges to lie in the segment that the lease keeps.
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

    /// The bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let bytes = self.lease.bytes(self.pointer.place);
        debug_assert!(bytes.is_ok(), "a lease keeps what it kept");
        bytes.unwrap_or_default()
    }

    /// The number of bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a slice of an aggregate is never empty")]
    pub const fn len(&self) -> usize {
        self.pointer.length() as usize
    }

    /// The rich pointer by which other spaces name these bytes.
    #[must_use]
    #[inline]
    pub const fn pointer(&self) -> RichPointer {
        self.pointer
    }

    /// The lease that keeps the bytes.
    #[must_use]
    #[inline]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Returns the identity of the content.
    #[must_use]
    pub fn content(&self) -> ContentId {
        let position = self.lease.position(self.pointer.place);
        ContentId { dbuf: self.lease.dbuf(), position }
    }

    /// Returns the position at which the slice's segment begins.
    pub(super) fn segment(&self) -> u64 {
        self.pointer.place.position() & !(self.lease.segment_len() as u64 - 1)
    }

    /// Keeps `length` bytes from `from` on; the caller knows that there are so many.
    pub(super) fn narrow(&mut self, from: usize, length: usize) {
        debug_assert!(length > 0 && from + length <= self.len());
        let small = |number| u32::try_from(number).unwrap_or(u32::MAX);
        self.pointer = self.pointer.within(small(from), small(length));
    }

    /// Takes in the bytes of a slice that follows in the same segment, if it does.
    pub(super) fn join(&mut self, next: &Self) -> bool {
        let length = self.len() + next.len();
        let end = self.pointer.place.position() + self.len() as u64;
        let follows = Arc::ptr_eq(self.lease.memory(), next.lease.memory())
            && self.segment() == next.segment()
            && end == next.pointer.place.position()
            && length <= abi::BLOCK_MAX;
        if follows && let Ok(length) = u32::try_from(length) {
            self.pointer = self.pointer.within(0, length);
        }
        follows
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ContentId { dbuf, position } = self.content();
        write!(f, "Slice({} bytes at {position} of dbuf {})", self.len(), dbuf.number())
    }
}
