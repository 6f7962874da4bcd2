//! The segment of the last hit, in which a write searches first. [SL §5.3.3]

use crate::view::count_leading_inside;
use abi::{Class, Extent, RichPointer};
use buffer::pool::Lease;
use buffer::pool::address::EnclosingSegment;

/// The segment in which the last write found its bytes. It is also the last segment in the output's
/// list of held segments. The default contains no bytes.
#[derive(Debug, Default)]
pub(super) struct HotSegment {
    pub(super) address: usize,
    pub(super) filled: usize,
    /// Size in bytes of the segment, including the part that is not filled yet.
    pub(super) segment: usize,
    /// Position of the segment's first byte.
    pub(super) position: u64,
    /// An empty pointer into the dbuf of the segment. Only its dbuf id is used.
    pub(super) dbuf_pointer: RichPointer,
}

impl HotSegment {
    #[inline]
    pub(super) fn pointer(&self, from: usize, length: usize) -> RichPointer {
        // Both are smaller than a segment, which is below 4 GB.
        #[expect(clippy::cast_possible_truncation, reason = "checked by the caller, see above")]
        let place = Extent::new(self.position + from as u64, length as u32);
        let mut pointer = self.dbuf_pointer;
        pointer.place = place;
        pointer
    }

    /// Returns true if the bytes of `pointer` are in the filled part of the hot segment.
    #[inline]
    pub(super) fn covers(&self, pointer: RichPointer) -> bool {
        let from = pointer.place.position().wrapping_sub(self.position);
        let end = from.saturating_add(u64::from(pointer.length()));
        self.address != 0 && pointer.dbuf() == self.dbuf_pointer.dbuf() && end <= self.filled as u64
    }

    /// Replaces this segment by the segment of `pointer`, which `lease` holds.
    pub(super) fn advance_to(&mut self, pointer: RichPointer, lease: &Lease) {
        *self = match lease.enclosing_segment(pointer) {
            Some(enclosing) => {
                let home = RichPointer::new(pointer.dbuf(), Extent::default(), Class::YES);
                let EnclosingSegment { address, filled, segment, position, .. } = enclosing;
                Self { address, filled, segment, position, dbuf_pointer: home }
            }
            None => Self::default(),
        };
    }

    /// Extends the filled part of the hot segment to the end of a newly written block. Returns
    /// false, without a change, if the block is in another segment.
    #[inline]
    pub(super) fn extend_to(&mut self, pointer: RichPointer) -> bool {
        let from = pointer.place.position().wrapping_sub(self.position);
        let end = from.saturating_add(u64::from(pointer.length()));
        let same = end <= self.segment as u64 && pointer.dbuf() == self.dbuf_pointer.dbuf();
        if same && self.address != 0 {
            // `end` is at most a segment.
            self.filled = self.filled.max(usize::try_from(end).unwrap_or(0));
        }
        same && self.address != 0
    }

    /// Returns the number of pointers at the beginning of `pointers` whose bytes are in this
    /// segment, and the sum of their view lengths in bytes.
    #[inline]
    pub(super) fn count_covered(&self, pointers: &[RichPointer]) -> (usize, u64) {
        if self.address == 0 {
            return (0, 0);
        }
        count_leading_inside(pointers, |pointer| self.outside_bits(pointer))
    }

    /// Returns 0 if the bytes of a pointer are inside the filled part of this segment, and another
    /// value if not.
    #[inline(always)]
    pub(super) const fn outside_bits(&self, pointer: RichPointer) -> u64 {
        let other = pointer.dbuf().number() ^ self.dbuf_pointer.dbuf().number();
        let from = pointer.place.position().wrapping_sub(self.position);
        let left = (self.filled as u64).wrapping_sub(from.wrapping_add(pointer.length() as u64));
        // All values are far below 2^63: the sign bit is the comparison.
        other as u64 | (from | left) >> 63
    }
}
