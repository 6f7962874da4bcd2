//! Context for filters that hold and emit blocks.

use super::{Counter, Counts, Gateway, Reason, Time};
use crate::contract::batch::{Batch, Block, LANES, Lane, LaneMask, first_lanes_mask};
use crate::contract::holds::{BlockFate, HeldList, HoldTable};
use abi::{BLOCK_LENGTH_MAX, BlockMetadata, Class, Entry, Marks};

/// Output of a stream filter, as batches in the order of emission.
#[derive(Debug, Default)]
pub struct Output<'a> {
    batches: Vec<Batch<'a>>,
    /// Log of the sessions that have begun. An entry contains a session number, and the sequence
    /// number of the session's first block. `None` while the log is disabled.
    session_log: Option<Vec<(u32, u32)>>,
}

impl<'a> Output<'a> {
    /// Appends a block with sequence number `order` to the output.
    pub fn push(&mut self, block: Block<'a>, order: u32) {
        if self.batches.last().is_none_or(Batch::is_full) {
            self.batches.push(Batch::empty());
        }
        if let Some(last) = self.batches.last_mut() {
            let added = last.push(block, order);
            debug_assert!(added.is_ok(), "a batch that is not full takes a block");
        }
    }

    /// Enables the log of the sessions that begin.
    pub fn enable_session_log(&mut self) {
        self.session_log.get_or_insert_default();
    }

    /// Empties the log of sessions, and returns its entries in order: each is a session number, and
    /// the sequence number of the session's first block.
    pub fn take_session_log(&mut self) -> Vec<(u32, u32)> {
        self.session_log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns true if the output contains no batch. Output blocks in the lanes of the input batch
    /// do not count.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Inserts a batch before all others in the output.
    pub fn insert_first_batch(&mut self, batch: Batch<'a>) {
        self.batches.insert(0, batch);
    }

    /// Removes all batches from the output and returns them.
    pub fn take_batches(&mut self) -> Vec<Batch<'a>> {
        std::mem::take(&mut self.batches)
    }
}

/// Context of a filter that holds and emits blocks.
///
/// The filter must pass, consume, hold or drop every incoming block. The ledger reports a block for
/// which it does none of these.
pub struct StreamContext<'c, 'a> {
    /// Time on the path's clock, in ns.
    pub now: Time,
    counts: &'c mut Counts,
    holds: &'c mut HoldTable,
    gateway: &'c mut (dyn Gateway<'a> + 'c),
    output: &'c mut Output<'a>,
    wake: &'c mut Option<Time>,
    order: u32,
    buffer: BlockOutput<'a>,
}

/// The blocks emitted for the incoming block that is being processed: usually only that block.
#[derive(Default)]
struct BlockOutput<'a> {
    /// True while an incoming block is being processed. At any other time, emitted blocks go
    /// directly to the output of the filter, not to this buffer.
    is_active: bool,
    first: Option<Block<'a>>,
    others: Vec<Block<'a>>,
}

impl std::fmt::Debug for StreamContext<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamContext").field("now", &self.now).finish_non_exhaustive()
    }
}

impl<'c, 'a> StreamContext<'c, 'a> {
    /// Creates a context with the counters, held blocks and output of a node.
    pub fn new(
        now: Time,
        counts: &'c mut Counts,
        holds: &'c mut HoldTable,
        gateway: &'c mut (dyn Gateway<'a> + 'c),
        output: &'c mut Output<'a>,
        wake: &'c mut Option<Time>,
    ) -> Self {
        Self { now, counts, holds, gateway, output, wake, order: 0, buffer: BlockOutput::default() }
    }

    /// Calls `take` with each live block of the batch. Stores the output blocks in the lanes of
    /// blocks that were already processed, beginning with the first lane, so that output that fits
    /// into these lanes needs no allocation. Further output follows in new batches.
    ///
    /// A block that `take` returns is emitted after all blocks that `take` emits through the
    /// context. If the returned block is the only output, returning it is faster than
    /// [passing](Self::pass) it, because it is written to its lane at once.
    #[inline]
    pub fn for_each_block(
        &mut self,
        batch: &mut Batch<'a>,
        mut take: impl FnMut(&mut Self, Block<'a>) -> Option<Block<'a>>,
    ) {
        let (mut used, mut ahead) = (0, batch.live_lanes());
        batch.begin_rewrite();
        self.buffer.is_active = true;
        while ahead != 0 {
            let l = ahead.trailing_zeros() as Lane;
            ahead &= ahead - 1;
            let (block, order) = batch.block_and_sequence_number(l);
            self.order = order;
            match take(self, block) {
                Some(only) if self.buffer.first.is_none() => {
                    if used <= l && self.output.is_empty() {
                        batch.rewrite_block(used, only, order);
                        used += 1;
                    } else {
                        self.output.push(only, order);
                    }
                    continue;
                }
                Some(last) => self.emit_block(last),
                None => {}
            }
            let Some(first) = self.buffer.first.take() else { continue };
            if used <= l && self.output.is_empty() {
                batch.rewrite_block(used, first, order);
                used += 1;
            } else {
                self.output.push(first, order);
            }
            if !self.buffer.others.is_empty() {
                (used, ahead) = self.store_remaining_output(batch, used, ahead);
            }
        }
        self.buffer.is_active = false;
        batch.set_live_lanes(first_lanes_mask(used));
    }

    /// Stores the output blocks for the current incoming block, except the first one, in the free
    /// lanes before the unprocessed blocks. `ahead` is the mask of the lanes of the unprocessed
    /// blocks. If too few lanes are free, moves the unprocessed blocks to higher lanes, if
    /// possible. Output blocks for which no lane is free follow in new batches. Returns the number
    /// of lanes used, and the new value of `ahead`.
    #[cold]
    fn store_remaining_output(
        &mut self,
        batch: &mut Batch<'a>,
        mut used: Lane,
        mut ahead: LaneMask,
    ) -> (Lane, LaneMask) {
        let others = self.buffer.others.len();
        let full = used + others + ahead.count_ones() as usize > LANES;
        if !full && self.output.is_empty() && used + others > ahead.trailing_zeros() as usize {
            ahead = batch.move_lanes_to_end(ahead);
        }
        let end = ahead.trailing_zeros() as Lane;
        for block in self.buffer.others.drain(..) {
            if used < end && self.output.is_empty() {
                batch.put_block(used, block, self.order);
                used += 1;
            } else {
                self.output.push(block, self.order);
            }
        }
        (used, ahead)
    }

    /// Adds a block to the output for the incoming block that is being processed. If no block is
    /// being processed, for example during a tick, appends the block to the filter's output.
    #[inline]
    fn emit_block(&mut self, block: Block<'a>) {
        match &mut self.buffer {
            buffer if !buffer.is_active => self.output.push(block, self.order),
            buffer if buffer.first.is_none() => buffer.first = Some(block),
            buffer => buffer.others.push(block),
        }
    }

    /// Adds `n` to a counter of the filter.
    pub fn count(&mut self, counter: Counter, n: u64) {
        self.counts.add_to_counter(counter, n);
    }

    /// Emits the incoming block. Its view may have been narrowed, and its class or session changed.
    pub fn pass(&mut self, block: Block<'a>) {
        self.emit_block(block);
    }

    /// Emits a block that the filter created.
    pub fn emit_created_block(&mut self, block: Block<'a>) {
        self.counts.made.add_block(block.length());
        self.emit_block(block);
    }

    /// Counts a block without a class under this reason, and returns the absent class.
    pub fn answer_absent(&mut self, reason: Reason) -> Class {
        self.counts.count_unanswered(reason, 1);
        Class::NONE
    }

    /// Counts an incoming block as consumed, that is, used up without being emitted.
    pub fn consume(&mut self, block: &Block<'a>) {
        self.counts.consumed.add_block(block.length());
    }

    /// Drops an incoming block and counts it under this reason.
    pub fn drop(&mut self, block: &Block<'a>, reason: Reason) {
        self.holds.record_fate(block.marks.section_ticket(), BlockFate::Dropped);
        self.counts.count_dropped(reason, block.length());
    }

    /// Counts the block of a lane as consumed, and stores the new block `made` in the lane. Called
    /// by filters that implement [`HoldingLanes`](crate::contract::traits::HoldingLanes).
    pub fn replace(&mut self, batch: &mut Batch<'a>, l: Lane, made: Block<'a>) {
        self.consume(&batch.block(l));
        self.counts.made.add_block(made.length());
        batch.set_block(l, made);
    }

    /// Creates a block of at most `room` bytes and emits it. `fill` writes the bytes and returns
    /// the number of bytes written. Returns false if memory runs out.
    pub fn append(
        &mut self,
        room: usize,
        class: Class,
        context: BlockMetadata,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> bool {
        let made = self.append_block(room, class, context, fill);
        made.map(|block| self.emit_created_block(block)).is_some()
    }

    /// Creates a block like [`StreamContext::append`], without emitting it. The caller may
    /// [emit](Self::emit_created_block) or [hold](Self::hold_created_block) the block; otherwise
    /// the block is discarded and not counted. If memory runs out, counts the missing block and
    /// returns `None`.
    pub fn append_block(
        &mut self,
        room: usize,
        class: Class,
        context: BlockMetadata,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Option<Block<'a>> {
        let mut fill = Some(fill);
        let made = self.gateway.append(room.min(BLOCK_LENGTH_MAX), &mut |room| {
            fill.take().map_or(0, |fill| fill(room))
        });
        let Some((pointer, frame)) = made else {
            self.counts.made.add_block(0);
            self.counts.no_room.add_block(0);
            return None;
        };
        let marks = Marks::for_plain_block(pointer.length());
        Some(Block { pointer: pointer.with_class(class), frame, marks, context })
    }

    /// Creates and emits a block that replaces `block`. The new block has the class of `block` and
    /// a copy of the headers that identify the flow ([`Block::headers`]). Its view is the
    /// concatenation of `parts`. If memory runs out, counts the loss and returns false.
    pub fn append_replacement(
        &mut self,
        block: &Block<'a>,
        context: BlockMetadata,
        parts: &[&[u8]],
    ) -> bool {
        match super::lane::append_after_headers(self.gateway, block, parts) {
            Some(made) => {
                self.emit_created_block(Block { context, ..made });
                true
            }
            None => {
                self.counts.made.add_block(0);
                self.counts.no_room.add_block(0);
                false
            }
        }
    }

    /// Creates the description of a message: a block with an empty view whose frame is a
    /// `wire::record` of at most `room` bytes, written by `fill`. The caller
    /// [emits](Self::emit_created_block) it before the blocks of the message,
    /// [holds](Self::hold_created_block) it, or both. Returns `None` if memory runs out.
    pub fn append_description(
        &mut self,
        room: usize,
        class: Class,
        context: BlockMetadata,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Option<Block<'a>> {
        let block = self.append_block(room, class, context, fill)?;
        let marks = Marks::for_description(block.length());
        Some(Block { pointer: block.pointer.subrange(0, 0), marks, ..block })
    }

    /// Holds a block that this filter has created, and counts it as made. Otherwise equivalent to
    /// [`StreamContext::hold`], which is for incoming blocks.
    pub fn hold_created_block(&mut self, list: &mut HeldList, block: &Block<'a>, key: u32) -> bool {
        self.counts.made.add_block(block.length());
        self.hold(list, block, key)
    }

    /// Emits a part of the incoming block. The first part counts as the incoming block, each later
    /// part as a new block. The caller sets `has_emitted` to false before it emits the first part.
    /// This function sets `has_emitted` to true.
    pub fn emit_block_part(&mut self, part: Block<'a>, has_emitted: &mut bool) {
        if std::mem::replace(has_emitted, true) {
            self.emit_created_block(part)
        } else {
            self.pass(part)
        }
    }

    /// Appends a part of the incoming block to the held blocks of `list`. Counts the part in the
    /// same way as [`StreamContext::emit_block_part`]. Returns false if the part cannot be held.
    pub fn hold_block_part(
        &mut self,
        list: &mut HeldList,
        part: &Block<'a>,
        has_emitted: &mut bool,
    ) -> bool {
        let key = list.len();
        match std::mem::replace(has_emitted, true) {
            true => self.hold_created_block(list, part, key),
            false => self.hold(list, part, key),
        }
    }

    /// Removes the front block of `list`, if any, and counts it as consumed.
    pub fn consume_front_block(&mut self, list: &mut HeldList) {
        if let Some((_, entry, pin)) = self.holds.pop(list) {
            let bytes = entry.pointer.length();
            self.counts.held.subtract_block(bytes);
            self.counts.consumed.add_block(bytes);
            self.gateway.unpin(pin);
        }
    }

    /// Removes the front block of `list`, if any, and counts it as consumed. The caller must
    /// already have merged this block into another block, whose marks are `whole`. In a Boolean
    /// section, the result for the other block then applies to the removed block too.
    pub fn consume_merged_block(&mut self, list: &mut HeldList, whole: &Marks) {
        if let Some((_, entry)) = self.holds.front(list) {
            self.consume_front_block(list);
            let into = whole.section_ticket();
            self.holds.record_fate(entry.marks.section_ticket(), |ticket| {
                BlockFate::Merged(ticket, into)
            });
        }
    }

    /// Returns the blocks of `list` with their keys, from front to back.
    pub fn held_blocks<'s>(
        &'s self,
        list: &HeldList,
    ) -> impl Iterator<Item = (u32, Block<'a>)> + 's {
        self.holds.blocks(list).map(|(key, entry, _)| (key, self.block(&entry)))
    }

    /// Returns the block with all bytes in view present. If some of them are not present, obtains
    /// all captured bytes from the space. Returns `None` if they have been overwritten; the caller
    /// must then drop the block.
    pub fn complete_block(&mut self, block: Block<'a>) -> Option<Block<'a>> {
        if block.has_all_bytes() { Some(block) } else { self.gateway.complete_block(block) }
    }

    /// Holds the block beyond the pass, in `list`, sorted by `key`. Keys are 32-bit sequence
    /// numbers that wrap around. If a limit is reached or memory runs out, counts the block as
    /// evicted and returns false.
    pub fn hold(&mut self, list: &mut HeldList, block: &Block<'a>, key: u32) -> bool {
        let bytes = block.length();
        let kept = match self.holds.has_room(bytes) {
            true => self.gateway.pin(block),
            false => None,
        };
        match kept {
            Some((entry, pin)) => {
                self.holds.insert(list, key, entry, pin);
                self.counts.held.add_block(bytes);
                true
            }
            None => {
                self.holds.record_fate(block.marks.section_ticket(), BlockFate::Dropped);
                self.counts.evicted.add_block(bytes);
                false
            }
        }
    }

    /// Returns the key and the block at the front of `list`, or `None` if it is empty.
    #[must_use]
    pub fn front_block(&self, list: &HeldList) -> Option<(u32, Block<'a>)> {
        let (key, entry) = self.holds.front(list)?;
        Some((key, self.block(&entry)))
    }

    /// Returns the key and the block at the back of `list`, or `None` if it is empty.
    #[must_use]
    pub fn back_block(&self, list: &HeldList) -> Option<(u32, Block<'a>)> {
        let (key, entry) = self.holds.back(list)?;
        Some((key, self.block(&entry)))
    }

    /// Replaces the contents of `into` with the concatenated views of the blocks in `list`.
    pub fn gather_views(&self, list: &HeldList, into: &mut Vec<u8>) {
        into.clear();
        self.held_blocks(list).for_each(|(_, block)| into.extend_from_slice(block.bytes()));
    }

    /// Removes the front block of `list`, if any, passes it to `change`, and emits the result.
    pub fn release_front_block(
        &mut self,
        list: &mut HeldList,
        change: impl FnOnce(Block<'a>) -> Block<'a>,
    ) {
        if let Some((_, entry, pin)) = self.holds.pop(list) {
            let block = self.block(&entry);
            self.counts.held.subtract_block(block.length());
            self.emit_block(change(block));
            self.gateway.unpin(pin);
        }
    }

    /// Drops the front block of `list`, if any, and counts it under this reason.
    pub fn drop_front_block(&mut self, list: &mut HeldList, reason: Reason) {
        self.drop_held_block(list, 0, reason);
    }

    /// Drops the block at `index` of `list`, if any, and counts it under this reason.
    pub fn drop_held_block(&mut self, list: &mut HeldList, index: u32, reason: Reason) {
        if let Some((_, entry, pin)) = self.holds.remove(list, index) {
            let bytes = entry.pointer.length();
            self.holds.record_fate(entry.marks.section_ticket(), BlockFate::Dropped);
            self.counts.held.subtract_block(bytes);
            self.counts.count_dropped(reason, bytes);
            self.gateway.unpin(pin);
        }
    }

    /// Logs the start of session `session`, whose first block is the current one. At shutdown, the
    /// replicas of a filter end their sessions in the order of this log.
    pub fn log_session_start(&mut self, session: u32) {
        if let Some(begun) = &mut self.output.session_log {
            begun.push((session, self.order));
        }
    }

    /// Requests a call of `tick` when the path's clock reaches `time`. If there are several
    /// requests, the earliest applies.
    pub fn wake_at(&mut self, time: Time) {
        *self.wake = Some(self.wake.map_or(time, |earlier| earlier.min(time)));
    }

    fn block(&self, entry: &Entry) -> Block<'a> {
        Block {
            pointer: entry.pointer,
            frame: self.gateway.frame(entry),
            marks: entry.marks,
            context: entry.context,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Filter, Stream};
    use crate::testing::{Arena, ETHERNET, Frame, Space};
    use abi::RichPointer;

    /// A test filter. The first byte of an incoming block is the number of blocks to emit for it:
    /// the block itself, then holes. If the number is 0, the block is consumed.
    struct Repeater;

    impl Stream for Repeater {
        fn process_block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
            match block.bytes().first().copied().unwrap_or(0) {
                0 => cx.consume(&block),
                times => {
                    cx.pass(block);
                    let marks = Marks::for_plain_block(1);
                    let hole = Block { pointer: RichPointer::hole(1), frame: &[], marks, ..block };
                    (1..times).for_each(|_| cx.emit_created_block(hole));
                }
            }
        }
    }

    /// Runs [`Repeater`] over a batch whose blocks have these first bytes. Returns three things:
    /// the number of output blocks in the lanes of the batch, the number of blocks in each further
    /// batch, and a pair for each output block. The pair is true for a hole, and the index of the
    /// incoming block.
    fn run_repeater(times: &[u8]) -> (u32, Vec<usize>, Vec<(bool, u32)>) {
        let arena = Arena::new(64);
        let mut space = Space::new(&arena);
        let frames: Vec<Frame> =
            times.iter().map(|times| Frame::new(ETHERNET, &[*times])).collect();
        let mut batch = space.batch(&frames);
        let Filter::Stream(mut filter) = Filter::stream(Repeater) else { panic!("a stream") };
        let (mut counts, mut holds) = (Counts::new(0, 0), HoldTable::new(0, 0));
        let (mut output, mut wake) = (Output::default(), None);
        let mut cx =
            StreamContext::new(0, &mut counts, &mut holds, &mut space, &mut output, &mut wake);
        filter.process(&mut batch, &mut cx);
        let stayed = batch.live_lanes().count_ones();
        let behind = output.take_batches();
        let lengths = behind.iter().map(Batch::len).collect();
        let all = std::iter::once(&batch).chain(&behind);
        let left = all.flat_map(|batch| {
            let blocks = batch.blocks().collect::<Vec<_>>();
            blocks.into_iter().map(|(l, block)| (block.pointer.is_hole(), batch.sequence_number(l)))
        });
        (stayed, lengths, left.collect())
    }

    #[test]
    fn output_reuses_the_lanes_of_the_batch() {
        let (block, hole) = (false, true);
        assert_eq!(run_repeater(&[1, 1]), (2, vec![], vec![(block, 0), (block, 1)]));
        assert_eq!(run_repeater(&[0, 0, 1]), (1, vec![], vec![(block, 2)]));
        let fits = vec![(block, 0), (block, 2), (hole, 2), (block, 3)];
        assert_eq!(run_repeater(&[1, 0, 2, 1]), (4, vec![], fits));
        let moved = vec![(block, 0), (hole, 0), (hole, 0), (block, 2), (block, 3)];
        assert_eq!(run_repeater(&[3, 0, 1, 1]), (5, vec![], moved), "those ahead move up");
        let (stayed, lengths, left) = run_repeater(&[62, 1, 0, 1]);
        assert_eq!((stayed, lengths, left.len()), (1, vec![63], 64), "all three ahead may stay");
        assert_eq!(
            [left[0], left[1], left[61], left[62]],
            [(block, 0), (hole, 0), (hole, 0), (block, 1)]
        );
        let (stayed, lengths, left) = run_repeater(&[61, 1, 0, 1]);
        assert_eq!((stayed, lengths, left.len()), (63, vec![], 63));
        assert_eq!(left[60..], [(hole, 0), (block, 1), (block, 3)]);
        let (stayed, lengths, left) = run_repeater(&[0, 0, 200, 1]);
        assert_eq!((stayed, lengths, left.len()), (3, vec![64, 64, 64, 6], 201));
        assert!(left[1..200].iter().all(|left| *left == (hole, 2)) && left[200] == (block, 3));
    }
}
