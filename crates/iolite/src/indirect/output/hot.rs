//! The segment that was hit last: what a write looks at first. [SL §5.3.3]

use abi::{Class, Extent, RichPointer};
use buffer::pool::Lease;
use buffer::pool::address::Around;

/// The segment that was hit last: the last one in `flights`. By default nothing lies in it.
#[derive(Debug, Default)]
pub(super) struct Hot {
    pub(super) address: usize,
    pub(super) filled: usize,
    /// Bytes that it can have.
    pub(super) segment: usize,
    /// Position at which it begins.
    pub(super) position: u64,
    /// A pointer into its dbuf.
    pub(super) home: RichPointer,
}

impl Hot {
    #[inline]
    pub(super) fn pointer(&self, from: usize, length: usize) -> RichPointer {
        // Both lie in a segment, which is shorter than 4 GB.
        #[expect(clippy::cast_possible_truncation, reason = "checked by the caller, see above")]
        let place = Extent::new(self.position + from as u64, length as u32);
        let mut pointer = self.home;
        pointer.place = place;
        pointer
    }

    /// Returns true if the flight that was hit last keeps these bytes.
    #[inline]
    pub(super) fn covers(&self, pointer: RichPointer) -> bool {
        let from = pointer.place.position().wrapping_sub(self.position);
        let end = from.saturating_add(u64::from(pointer.length()));
        self.address != 0 && pointer.dbuf() == self.home.dbuf() && end <= self.filled as u64
    }

    /// Another segment was hit.
    pub(super) fn advance_to(&mut self, pointer: RichPointer, lease: &Lease) {
        *self = match lease.around(pointer) {
            Some(around) => {
                let home = RichPointer::new(pointer.dbuf(), Extent::default(), Class::YES);
                let Around { address, filled, segment, position, .. } = around;
                Self { address, filled, segment, position, home }
            }
            None => Self::default(),
        };
    }

    /// Returns true if this block, just filled, lies in the same segment, and extends the filled
    /// part by it.
    #[inline]
    pub(super) fn grows_by(&mut self, pointer: RichPointer) -> bool {
        let from = pointer.place.position().wrapping_sub(self.position);
        let end = from.saturating_add(u64::from(pointer.length()));
        let same = end <= self.segment as u64 && pointer.dbuf() == self.home.dbuf();
        if same && self.address != 0 {
            // Less than a segment.
            self.filled = self.filled.max(usize::try_from(end).unwrap_or(0));
        }
        same && self.address != 0
    }

    /// Returns how many leading pointers lie in this segment, and how many bytes they view.
    #[inline]
    pub(super) fn covers_first(&self, pointers: &[RichPointer]) -> (usize, u64) {
        let (mut any, mut bytes) = (0, 0);
        if self.address == 0 {
            return (0, 0);
        }
        // All are looked at with no branch between them; that one is not here is rare.
        for pointer in pointers {
            any |= self.is_out(*pointer);
            bytes += u64::from(pointer.length());
        }
        if any == 0 {
            return (pointers.len(), bytes);
        }
        let good = pointers.iter().take_while(|pointer| self.is_out(**pointer) == 0);
        good.fold((0, 0), |(count, bytes), p| (count + 1, bytes + u64::from(p.length())))
    }

    /// Not 0, if the bytes do not lie in this segment, as far as it is filled.
    #[inline(always)]
    pub(super) const fn is_out(&self, pointer: RichPointer) -> u64 {
        let other = pointer.dbuf().number() ^ self.home.dbuf().number();
        let from = pointer.place.position().wrapping_sub(self.position);
        let left = (self.filled as u64).wrapping_sub(from.wrapping_add(pointer.length() as u64));
        // All are far less than half of what a word counts: the sign tells what lies outside.
        other as u64 | (from | left) >> 63
    }
}
