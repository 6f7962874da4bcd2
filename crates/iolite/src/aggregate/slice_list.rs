//! A list of slices, up to four of which are stored inline.
//!
//! The list grows at both ends, which the available small-vector crates do not support.

use super::Slice;
use std::collections::{VecDeque, vec_deque};
use std::iter::Flatten;
use std::slice;

/// Number of inline slices: enough for a header, data, and the slices to the left and right of a
/// change.
const INLINE_SLICE_COUNT: usize = 4;

/// An ordered list of slices. Either all slices are inline, in the first elements of the array, or
/// all are on the heap.
#[derive(Clone, Default)]
pub(super) struct SliceList {
    inline: [Option<Slice>; INLINE_SLICE_COUNT],
    count: usize,
    heap: VecDeque<Slice>,
}

impl SliceList {
    pub(super) fn len(&self) -> usize {
        self.count + self.heap.len()
    }

    pub(super) fn iter(&self) -> Slices<'_> {
        Slices { inline: self.inline.iter().flatten(), heap: self.heap.iter() }
    }

    pub(super) fn push_back(&mut self, slice: Slice) {
        if !self.spill_unless_fits_inline() {
            self.heap.push_back(slice);
        } else if let Some(place) = self.inline.get_mut(self.count) {
            *place = Some(slice);
            self.count += 1;
        }
    }

    pub(super) fn push_front(&mut self, slice: Slice) {
        if !self.spill_unless_fits_inline() {
            self.heap.push_front(slice);
        } else {
            self.push_back(slice);
            self.inline[..self.count].rotate_right(1);
        }
    }

    pub(super) fn pop_back(&mut self) -> Option<Slice> {
        if self.count > 0 {
            self.count -= 1;
            return self.inline.get_mut(self.count)?.take();
        }
        self.heap.pop_back()
    }

    pub(super) fn pop_front(&mut self) -> Option<Slice> {
        if self.count > 0 {
            let first = self.inline[0].take();
            self.inline[..self.count].rotate_left(1);
            self.count -= 1;
            return first;
        }
        self.heap.pop_front()
    }

    pub(super) fn back_mut(&mut self) -> Option<&mut Slice> {
        match self.count.checked_sub(1) {
            Some(last) => self.inline.get_mut(last)?.as_mut(),
            None => self.heap.back_mut(),
        }
    }

    /// Returns true if one more slice fits inline. Otherwise moves all slices to the heap, unless
    /// they are there already, and returns false.
    fn spill_unless_fits_inline(&mut self) -> bool {
        if self.count == INLINE_SLICE_COUNT {
            self.heap.reserve(2 * INLINE_SLICE_COUNT);
            self.heap.extend(self.inline.iter_mut().filter_map(Option::take));
            self.count = 0;
        }
        self.heap.is_empty()
    }
}

/// An iterator over the slices of an aggregate, in order.
#[derive(Clone, Debug)]
pub struct Slices<'a> {
    inline: Flatten<slice::Iter<'a, Option<Slice>>>,
    heap: vec_deque::Iter<'a, Slice>,
}

impl<'a> Iterator for Slices<'a> {
    type Item = &'a Slice;

    fn next(&mut self) -> Option<&'a Slice> {
        self.inline.next().or_else(|| self.heap.next())
    }
}

impl DoubleEndedIterator for Slices<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.heap.next_back().or_else(|| self.inline.next_back())
    }
}
