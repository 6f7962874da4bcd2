//! A list of slices: up to four inline, more on the heap.
//!
//! Implemented here because it grows at both ends, which the available small-vector crates do not
//! support.

use super::Slice;
use std::collections::{VecDeque, vec_deque};
use std::iter::Flatten;
use std::slice;

/// Number of inline slices: a header, data, and the slices left and right of a change.
const INLINE_SLICES: usize = 4;

/// An ordered list of slices: either all in `few`, filled from the left, or all in `many`.
#[derive(Clone, Default)]
pub(super) struct List {
    few: [Option<Slice>; INLINE_SLICES],
    count: usize,
    many: VecDeque<Slice>,
}

impl List {
    pub(super) fn len(&self) -> usize {
        self.count + self.many.len()
    }

    pub(super) fn iter(&self) -> Slices<'_> {
        Slices { few: self.few.iter().flatten(), many: self.many.iter() }
    }

    pub(super) fn push_back(&mut self, slice: Slice) {
        if !self.fits_inline() {
            self.many.push_back(slice);
        } else if let Some(place) = self.few.get_mut(self.count) {
            *place = Some(slice);
            self.count += 1;
        }
    }

    pub(super) fn push_front(&mut self, slice: Slice) {
        if !self.fits_inline() {
            self.many.push_front(slice);
        } else {
            self.push_back(slice);
            self.few[..self.count].rotate_right(1);
        }
    }

    pub(super) fn pop_back(&mut self) -> Option<Slice> {
        if self.count > 0 {
            self.count -= 1;
            return self.few.get_mut(self.count)?.take();
        }
        self.many.pop_back()
    }

    pub(super) fn pop_front(&mut self) -> Option<Slice> {
        if self.count > 0 {
            let first = self.few[0].take();
            self.few[..self.count].rotate_left(1);
            self.count -= 1;
            return first;
        }
        self.many.pop_front()
    }

    pub(super) fn back_mut(&mut self) -> Option<&mut Slice> {
        match self.count.checked_sub(1) {
            Some(last) => self.few.get_mut(last)?.as_mut(),
            None => self.many.back_mut(),
        }
    }

    /// Returns true if one more slice fits into `few`; otherwise moves all slices to the heap.
    fn fits_inline(&mut self) -> bool {
        if self.count == INLINE_SLICES {
            self.many.reserve(2 * INLINE_SLICES);
            self.many.extend(self.few.iter_mut().filter_map(Option::take));
            self.count = 0;
        }
        self.many.is_empty()
    }
}

/// Iterator over the slices of an aggregate in order.
#[derive(Clone, Debug)]
pub struct Slices<'a> {
    few: Flatten<slice::Iter<'a, Option<Slice>>>,
    many: vec_deque::Iter<'a, Slice>,
}

impl<'a> Iterator for Slices<'a> {
    type Item = &'a Slice;

    fn next(&mut self) -> Option<&'a Slice> {
        self.few.next().or_else(|| self.many.next())
    }
}

impl DoubleEndedIterator for Slices<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.many.next_back().or_else(|| self.few.next_back())
    }
}
