//! Contexts that a space passes to filters that keep each block in its lane.

use super::{Counter, Counts, Gateway, OldBytes, Reason, Time};
use crate::contract::batch::{Batch, Block, Lane, LaneMask, lanes};
use abi::{BLOCK_LENGTH_MAX, Class, Marks};

/// Context of a classifier: clock and counters.
#[derive(Debug)]
pub struct ClassifyContext<'c> {
    /// Time on the path's clock, in ns.
    pub now: Time,
    counts: &'c mut Counts,
}

impl<'c> ClassifyContext<'c> {
    /// Creates a context with these counters for a classifier.
    pub fn new(now: Time, counts: &'c mut Counts) -> Self {
        Self { now, counts }
    }

    /// Adds `n` to a counter of the filter.
    #[inline]
    pub fn count(&mut self, counter: Counter, n: u64) {
        self.counts.add_to_counter(counter, n);
    }

    /// Counts a block without a class under this reason, and returns the absent class, as in `None
    /// => cx.answer_absent(NO_PORT)`.
    #[inline]
    pub fn answer_absent(&mut self, reason: Reason) -> Class {
        self.counts.count_unanswered(reason, 1);
        Class::NONE
    }

    /// Counts each block in the lanes of `mask` as a block without a class, under this reason.
    #[inline]
    pub fn answer_absent_lanes(&mut self, reason: Reason, mask: LaneMask) {
        if mask != 0 {
            self.counts.count_unanswered(reason, u64::from(mask.count_ones()));
        }
    }
}

/// Context of a filter that keeps each block in its lane: clock, counters, and access to the
/// services of the space.
pub struct LaneContext<'c, 'a> {
    /// The clock and the counters of the filter.
    pub common: ClassifyContext<'c>,
    gateway: &'c mut (dyn Gateway<'a> + 'c),
}

impl std::fmt::Debug for LaneContext<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneContext").field("common", &self.common).finish_non_exhaustive()
    }
}

impl<'c, 'a> LaneContext<'c, 'a> {
    /// Creates a context with this gateway to the services of the space.
    pub fn new(common: ClassifyContext<'c>, gateway: &'c mut (dyn Gateway<'a> + 'c)) -> Self {
        Self { common, gateway }
    }

    /// Calls `answer` for each live lane to set the class and view of its block. If `answer`
    /// returns a reason instead, the block gets no class and is counted under that reason.
    #[inline]
    pub fn answer_each_lane<F>(&mut self, batch: &mut Batch<'a>, mut answer: F)
    where
        F: FnMut(&mut Block<'a>, &mut ClassifyContext<'c>) -> Result<(), Reason>,
    {
        for l in lanes(batch.live_lanes()) {
            let mut block = batch.block(l);
            if let Err(why) = answer(&mut block, &mut self.common) {
                block = block.with_class(self.common.answer_absent(why));
            }
            batch.set_block(l, block);
        }
    }

    /// Returns the block of a lane with all bytes in view present. If some of them are not present,
    /// obtains all captured bytes from the space. If they have been overwritten, clears the lane,
    /// counts the loss and returns `None`.
    pub fn complete_block(&mut self, batch: &mut Batch<'a>, l: Lane) -> Option<Block<'a>> {
        let block = batch.block(l);
        if block.has_all_bytes() {
            return Some(block);
        }
        match self.gateway.complete_block(block) {
            Some(block) => batch.set_block(l, block),
            None => {
                self.end_lost_lane(batch, l);
                return None;
            }
        }
        Some(batch.block(l))
    }

    /// Calls `write` to change the bytes in view of a lane's block. The space passes either the
    /// bytes of the block or a copy, so that other branches that receive the block never observe
    /// the change. If the block was overwritten, or if there is no memory for a copy, clears the
    /// lane, counts the loss and returns false.
    pub fn edit(
        &mut self,
        batch: &mut Batch<'a>,
        l: Lane,
        keep: OldBytes,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        let (from, length) = (batch.block(l).marks.view as usize, batch.block(l).length() as usize);
        self.edit_frame(batch, l, keep, |frame| {
            let to = from.saturating_add(length).min(frame.len());
            if let Some(view) = frame.get_mut(from..to) {
                write(view);
            }
        })
    }

    /// Calls `write` to change the entire frame of a lane's block, including the headers before the
    /// view. Fails in the same cases as [`LaneContext::edit`].
    pub fn edit_frame(
        &mut self,
        batch: &mut Batch<'a>,
        l: Lane,
        keep: OldBytes,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        let Some(block) = self.gateway.complete_block(batch.block(l)) else {
            return self.end_lost_lane(batch, l);
        };
        let mut write = Some(write);
        let edited = self.gateway.edit(&block, keep, &mut |frame| {
            if let Some(write) = write.take() {
                write(frame);
            }
        });
        let Some((pointer, frame)) = edited else { return self.end_lost_lane(batch, l) };
        let pointer =
            pointer.with_class(block.pointer.class).subrange(block.marks.view, block.length());
        batch.set_block(l, Block { pointer, frame, ..block });
        true
    }

    /// Replaces the block of a lane with a new block of at most `room` bytes, all of them in view.
    /// `fill` receives the old bytes and the new memory, and returns the number of bytes written.
    /// `fill` returns `None` to keep the old block; this function then returns `None` too.
    /// Otherwise, returns true if the block was replaced, and false in the cases in which
    /// [`LaneContext::edit`] returns false.
    pub fn replace(
        &mut self,
        batch: &mut Batch<'a>,
        l: Lane,
        room: usize,
        fill: impl FnOnce(&[u8], &mut [u8]) -> Option<usize>,
    ) -> Option<bool> {
        let Some(block) = self.gateway.complete_block(batch.block(l)) else {
            return Some(self.end_lost_lane(batch, l));
        };
        let mut used = None;
        let mut fill = Some(fill);
        let made = self.gateway.append(room.min(BLOCK_LENGTH_MAX), &mut |room| {
            used = fill.take().and_then(|fill| fill(block.bytes(), room));
            used.unwrap_or(0)
        });
        let Some((pointer, frame)) = made else { return Some(self.end_lost_lane(batch, l)) };
        used?;
        let length = pointer.length();
        let pointer = pointer.with_class(block.pointer.class);
        batch.set_block(
            l,
            Block { pointer, frame, marks: Marks::for_plain_block(length), context: block.context },
        );
        Some(true)
    }

    /// Replaces the block of a lane with a new block. The new block consists of a copy of the
    /// headers that identify the flow ([`Block::headers`]) and of `bytes`, which are in view. Fails
    /// in the same cases as [`LaneContext::edit`].
    pub fn replace_view(&mut self, batch: &mut Batch<'a>, l: Lane, bytes: &[u8]) -> bool {
        let Some(block) = self.gateway.complete_block(batch.block(l)) else {
            return self.end_lost_lane(batch, l);
        };
        match append_after_headers(self.gateway, &block, &[bytes]) {
            Some(made) => batch.set_block(l, made),
            None => return self.end_lost_lane(batch, l),
        }
        true
    }

    /// Drops the block of a lane and counts it under `reason`.
    pub fn drop(&mut self, batch: &mut Batch<'a>, l: Lane, reason: Reason) {
        self.common.counts.count_dropped(reason, batch.block(l).length());
        batch.retain_lanes(!(1 << l));
    }

    fn end_lost_lane(&mut self, batch: &mut Batch<'a>, l: Lane) -> bool {
        self.common.counts.no_room.add_block(batch.block(l).length());
        batch.retain_lanes(!(1 << l));
        false
    }
}

/// Creates a block with the class and the metadata of `block`. It consists of a copy of the headers
/// of `block`, and of the concatenation of `parts`, which is in view. The headers are omitted if
/// the block would otherwise be too long. Returns `None` if memory runs out.
pub(super) fn append_after_headers<'a>(
    gateway: &mut (dyn Gateway<'a> + '_),
    block: &Block<'a>,
    parts: &[&[u8]],
) -> Option<Block<'a>> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let fits = block.headers().len() + length <= BLOCK_LENGTH_MAX;
    let block = if fits { *block } else { Block { marks: Marks::for_plain_block(0), ..*block } };
    let headers = block.headers();
    let (pointer, frame) =
        gateway.append((headers.len() + length).min(BLOCK_LENGTH_MAX), &mut |room| {
            let mut used = 0;
            for part in std::iter::once(&headers).chain(parts) {
                let Some(to) = room.get_mut(used..used + part.len()) else { return used };
                to.copy_from_slice(part);
                used += part.len();
            }
            used
        })?;
    let made = pointer.length().checked_sub(headers.len() as u32)?;
    let marks = block.marks_after_headers(made);
    let pointer = pointer.with_class(block.pointer.class).subrange(marks.view, made);
    Some(Block { pointer, frame, marks, context: block.context })
}
