//! Context of filters that keep blocks in their lanes.

use super::{Counter, Counts, Gateway, Keep, Reason, Time};
use crate::contract::batch::{Batch, Block, Lane, LaneMask};
use abi::{BLOCK_MAX, Class, Marks};

/// Context of a classifier.
#[derive(Debug)]
pub struct Tell<'c> {
    /// The path's clock.
    pub now: Time,
    counts: &'c mut Counts,
}

impl<'c> Tell<'c> {
    /// A context that counts here.
    pub fn new(now: Time, counts: &'c mut Counts) -> Self {
        Self { now, counts }
    }

    /// Counts.
    #[inline]
    pub fn count(&mut self, counter: Counter, n: u64) {
        self.counts.count(counter, n);
    }

    /// Answers nothing, and says why: `None => cx.absent(NO_PORT)`.
    #[inline]
    pub fn absent(&mut self, reason: Reason) -> Class {
        self.counts.unanswered(reason, 1);
        Class::NONE
    }

    /// Says why the lanes of a mask were answered nothing.
    #[inline]
    pub fn absent_all(&mut self, reason: Reason, mask: LaneMask) {
        if mask != 0 {
            self.counts.unanswered(reason, u64::from(mask.count_ones()));
        }
    }
}

/// Context of a filter that keeps blocks in their lanes.
pub struct LaneContext<'c, 'a> {
    /// Clock and counters.
    pub tell: Tell<'c>,
    gateway: &'c mut (dyn Gateway<'a> + 'c),
}

impl std::fmt::Debug for LaneContext<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneContext").field("tell", &self.tell).finish_non_exhaustive()
    }
}

impl<'c, 'a> LaneContext<'c, 'a> {
    /// A context over this gateway.
    pub fn new(tell: Tell<'c>, gateway: &'c mut (dyn Gateway<'a> + 'c)) -> Self {
        Self { tell, gateway }
    }

    /// The block of a lane with all its bytes here. `None`, with the lane ended and counted, when
    /// they are gone.
    pub fn whole(&mut self, batch: &mut Batch<'a>, l: Lane) -> Option<Block<'a>> {
        let block = batch.block(l);
        if block.is_whole() {
            return Some(block);
        }
        match self.gateway.whole(block) {
            Some(block) => batch.set(l, block),
            None => {
                self.lost(batch, l);
                return None;
            }
        }
        Some(batch.block(l))
    }

    /// Changes the viewed bytes of a lane in place, as far as this filter can tell: the space
    /// decides whether that is the block itself or a copy, and no sibling sees the change. Answers
    /// false, with the lane ended and counted, when there is no memory for a copy.
    pub fn edit(
        &mut self,
        batch: &mut Batch<'a>,
        l: Lane,
        keep: Keep,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        let Some(block) = self.gateway.whole(batch.block(l)) else {
            return self.lost(batch, l);
        };
        let from = block.marks.view as usize;
        let to = from.saturating_add(block.length() as usize);
        let mut write = Some(write);
        let edited = self.gateway.edit(&block, keep, &mut |frame| {
            let to = to.min(frame.len());
            if let (Some(write), Some(view)) = (write.take(), frame.get_mut(from..to)) {
                write(view);
            }
        });
        let Some((pointer, frame)) = edited else { return self.lost(batch, l) };
        let pointer =
            pointer.with_class(block.pointer.class).within(block.marks.view, block.length());
        batch.set(l, Block { pointer, frame, ..block });
        true
    }

    /// The same for the whole frame: for what stands in front of the view.
    pub fn edit_frame(
        &mut self,
        batch: &mut Batch<'a>,
        l: Lane,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        let Some(block) = self.gateway.whole(batch.block(l)) else {
            return self.lost(batch, l);
        };
        let mut write = Some(write);
        let edited = self.gateway.edit(&block, Keep::Contents, &mut |frame| {
            if let Some(write) = write.take() {
                write(frame);
            }
        });
        let Some((pointer, frame)) = edited else { return self.lost(batch, l) };
        let pointer =
            pointer.with_class(block.pointer.class).within(block.marks.view, block.length());
        batch.set(l, Block { pointer, frame, ..block });
        true
    }

    /// Replaces the block of a lane by a new one of at most `room` bytes, which is no frame any
    /// more. `fill` gets the old bytes and the new room and answers how much it used; `None` leaves
    /// the lane as it was.
    pub fn replace(
        &mut self,
        batch: &mut Batch<'a>,
        l: Lane,
        room: usize,
        fill: impl FnOnce(&[u8], &mut [u8]) -> Option<usize>,
    ) -> Option<bool> {
        let Some(block) = self.gateway.whole(batch.block(l)) else {
            return Some(self.lost(batch, l));
        };
        let mut used = None;
        let mut fill = Some(fill);
        let made = self.gateway.append(room.min(BLOCK_MAX), &mut |room| {
            used = fill.take().and_then(|fill| fill(block.bytes(), room));
            used.unwrap_or(0)
        });
        let Some((pointer, frame)) = made else { return Some(self.lost(batch, l)) };
        used?;
        let length = pointer.length();
        let pointer = pointer.with_class(block.pointer.class);
        batch.set(l, Block { pointer, frame, marks: Marks::bare(length), context: block.context });
        Some(true)
    }

    /// Ends a lane, and says why.
    pub fn drop(&mut self, batch: &mut Batch<'a>, l: Lane, reason: Reason) {
        self.tell.counts.dropped(reason, batch.block(l).length());
        batch.keep(!(1 << l));
    }

    fn lost(&mut self, batch: &mut Batch<'a>, l: Lane) -> bool {
        self.tell.counts.no_room.add(batch.block(l).length());
        batch.keep(!(1 << l));
        false
    }
}
