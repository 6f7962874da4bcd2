//! Batch methods that classify all blocks in one call.

use super::lanes::lanes_with_byte;
use super::{Batch, Block, LANES, LaneMask, first_lanes_mask, lanes};
use abi::Class;

impl<'a> Batch<'a> {
    /// Sets the class of each live block to the result of `answer`. `answer` may also change the
    /// marks of a block; these changes are stored only if `MARKS` is true.
    #[inline]
    pub fn classify<const MARKS: bool>(&mut self, mut answer: impl FnMut(&mut Block<'a>) -> Class) {
        self.resolve_frames();
        let (c, frames, at) =
            (&mut *self.columns, self.frames.as_slice(), &mut self.last_processed);
        let mut answered = 0;
        let mut one = |l: usize, frame| {
            *at = l as u8;
            let mut block =
                Block { pointer: c.pointers[l], frame, marks: c.marks[l], context: c.context[l] };
            let class = answer(&mut block);
            c.pointers[l].class = class;
            if MARKS {
                c.marks[l] = block.marks;
            }
            answered |= LaneMask::from(class.is_answered()) << l;
        };
        let len = c.len.min(LANES);
        match frames.get(..len) {
            Some(frames) if c.live == first_lanes_mask(len) =>
            {
                #[expect(clippy::needless_range_loop, reason = "of a range the bounds are known")]
                for l in 0..len {
                    one(l, frames[l]);
                }
            }
            _ => {
                for l in lanes(c.live) {
                    one(l, frames.get(l).copied().unwrap_or_default());
                }
            }
        }
        (self.known.answered_lanes, self.known.class) = (Some(answered), None);
    }

    /// Sets the class of each live block, depending on the byte at offset `at` of its view. The
    /// class is 1 if `wanted` returns true for the byte. It is 0 (absent) if `wanted` returns
    /// false, or if the byte is not present. Returns the live lanes whose class is now 0.
    #[inline]
    pub fn classify_byte(&mut self, at: usize, wanted: impl Fn(u8) -> bool) -> LaneMask {
        let c = &mut *self.columns;
        let (len, live) = (c.len.min(LANES), c.live);
        let all = live == first_lanes_mask(len);
        let known = self.known.byte_column_offset == Some(at);
        let fetched =
            all && (known || self.segment.is_some_and(|segment| segment.read_byte_column(at, c)));
        if !fetched {
            self.classify::<false>(|block| Class(block.byte(at).is_some_and(&wanted).into()));
            return live & !self.answered_lanes();
        }
        self.known.byte_column_offset = Some(at);
        let answered = lanes_with_byte(&c.byte_column, wanted) & live;
        // Usually all blocks match, as in the previous call; then all classes are already correct.
        let all = (answered == live).then_some(Class::YES);
        if all.is_none() || self.known.class != all {
            for (l, pointer) in c.pointers.iter_mut().enumerate().take(len) {
                pointer.class = Class((answered >> l & 1) as u32);
            }
        }
        self.known.answered_lanes = Some(answered);
        self.known.class = all;
        live & !answered
    }

    /// Sets the class of each live block to 1 if `wanted` returns true for the bytes of its view
    /// that are present, and otherwise to 0 (absent). Returns the live lanes whose class is now 0.
    #[inline]
    pub fn classify_view(&mut self, wanted: impl Fn(&'a [u8]) -> bool) -> LaneMask {
        let c = &mut *self.columns;
        let (len, live) = (c.len.min(LANES), c.live);
        let Some(segment) = self.segment.filter(|_| live == first_lanes_mask(len)) else {
            self.classify::<false>(|block| Class(wanted(block.bytes()).into()));
            return live & !self.answered_lanes();
        };
        let mut answered = 0;
        for (l, pointer) in c.pointers.iter_mut().enumerate().take(len) {
            pointer.class = Class(wanted(segment.view(pointer)).into());
            answered |= LaneMask::from(pointer.class.0) << l;
        }
        (self.known.answered_lanes, self.known.class) = (Some(answered), None);
        live & !answered
    }

    /// Returns the live lanes whose block has a class.
    #[inline]
    pub fn answered_lanes(&mut self) -> LaneMask {
        match self.known.answered_lanes {
            Some(mask) => mask & self.columns.live,
            None => {
                let mask = self.lanes_with_class(Class::is_answered);
                self.known.answered_lanes = Some(mask);
                mask
            }
        }
    }

    /// Returns the live lanes whose class satisfies `wanted`.
    #[inline]
    #[must_use]
    pub fn lanes_with_class(&self, mut wanted: impl FnMut(Class) -> bool) -> LaneMask {
        let c = &*self.columns;
        let mut mask = 0;
        for l in 0..c.len.min(LANES) {
            mask |= LaneMask::from(wanted(c.pointers[l].class)) << l;
        }
        mask & c.live
    }
}
