//! Address ranges of up to eight dbufs in one cache line, in which every write looks up the dbuf
//! that contains the bytes. [SL §5.3.3]
//!
//! Input: the address of the bytes. Output: the registered dbuf that contains the bytes. Each range
//! is one word, with the first page and the number of pages. A write checks the segment of the last
//! hit before this cache line (`output`). If there are more than eight dbufs, their ranges replace
//! each other in turn.

/// Number of address ranges in a [`RangeTable`], which together fill one cache line.
pub(super) const RANGE_COUNT: usize = 8;

/// A table of the address ranges of registered dbufs. All ranges are in one cache line.
#[derive(Debug, Default)]
pub(super) struct RangeTable {
    line: RangeCacheLine,
    /// Index of the registered dbuf to which each range belongs.
    indices: [usize; RANGE_COUNT],
    /// Index of the range that the next insertion into a full table will replace.
    next: usize,
}

/// Eight address ranges, each encoded as `first page << 28 | number of pages`.
#[derive(Debug, Default)]
#[repr(align(64))]
struct RangeCacheLine([u64; RANGE_COUNT]);

const _: () = assert!(size_of::<RangeCacheLine>() == 64);

const PAGE_BITS: u32 = 12;
const PAGE_COUNT_BITS: u32 = 28;
const PAGE_COUNT_MASK: u64 = (1 << PAGE_COUNT_BITS) - 1;

impl RangeTable {
    /// Returns the index of the registered dbuf that may contain an address. Returns `None` if no
    /// range contains the address. The caller must verify the result, because ranges are rounded to
    /// pages.
    #[inline]
    pub(super) fn find(&self, address: usize) -> Option<usize> {
        let page = address as u64 >> PAGE_BITS;
        let is_in =
            |range: u64| page.wrapping_sub(range >> PAGE_COUNT_BITS) < range & PAGE_COUNT_MASK;
        // All eight are compared without a branch between them.
        let mut hits = 0_u32;
        for (at, range) in self.line.0.iter().enumerate() {
            hits |= u32::from(is_in(*range)) << at;
        }
        self.indices.get(hits.trailing_zeros() as usize).copied()
    }

    /// Adds the address range of a registered dbuf. Replaces another range if all [`RANGE_COUNT`]
    /// are in use.
    pub(super) fn insert(&mut self, address: usize, length: usize, index: usize) {
        let first = address as u64 >> PAGE_BITS;
        let end = (address as u64).saturating_add(length as u64).div_ceil(1 << PAGE_BITS);
        let range = first << PAGE_COUNT_BITS | (end - first).min(PAGE_COUNT_MASK);
        let known = self.line.0.iter().position(|other| *other == range);
        let at = known.unwrap_or(self.next % RANGE_COUNT);
        if known.is_none() {
            self.next = self.next.wrapping_add(1);
        }
        if let (Some(word), Some(known)) = (self.line.0.get_mut(at), self.indices.get_mut(at)) {
            (*word, *known) = (range, index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e1_address_lookup_matches_only_its_range() {
        let mut ranges = RangeTable::default();
        assert_eq!(ranges.find(0), None, "empty ranges hold nothing, not even address 0");
        let start = |index: usize| 0x7f00_0000_0000 + index * 0x10_0000;
        for index in 0..RANGE_COUNT {
            ranges.insert(start(index), 0x4000, index);
        }
        for index in 0..RANGE_COUNT {
            assert_eq!(ranges.find(start(index)), Some(index));
            assert_eq!(ranges.find(start(index) + 0x3fff), Some(index));
            assert_eq!(ranges.find(start(index) + 0x4000), None);
            assert_eq!(ranges.find(start(index) - 1), None);
        }
        ranges.insert(start(2), 0x4000, 2);
        assert_eq!(ranges.find(start(0)), Some(0), "what is there takes no other place");
        ranges.insert(start(9), 0x1000, 9);
        assert_eq!((ranges.find(start(9)), ranges.find(start(0))), (Some(9), None), "a ninth");
    }
}
