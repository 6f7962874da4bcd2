//! A batch of up to 64 blocks, stored by property.
//!
//! A batch has one column per property, and a `u64` mask of live lanes. A block keeps its lane
//! while filters inspect it or edit it in place. Dropping a block therefore *ends* its lane: it
//! clears the lane's bit. Routing is a mask operation, and a join restores the order by lane. [SL
//! §6.2], figures in docs/book/decisions/0003-batches.md

mod answers;
mod block;
mod columns;
mod lanes;
mod segment;

pub use block::Block;
pub use columns::Columns;
pub use lanes::{LANES, Lane, LaneMask, first_lanes_mask, lanes};

use super::context::Amount;
use abi::{BlockMetadata, Class, DbufId, Entry, Marks, RichPointer};
use columns::KnownFacts;
use segment::SegmentFrames;

/// Reusable memory of a batch: the columns, and the allocation for the slices of the frames.
#[derive(Debug, Default)]
pub struct BatchMemory {
    /// Columns of the next batch, which a source fills.
    pub columns: Box<Columns>,
    frames: Vec<&'static [u8]>,
}

impl From<Box<Columns>> for BatchMemory {
    fn from(columns: Box<Columns>) -> Self {
        Self { columns, frames: Vec::new() }
    }
}

/// Up to 64 blocks with their bytes. The lifetime `'a` is that of one pass of the space, after
/// which no reference to the bytes remains.
#[derive(Debug)]
pub struct Batch<'a> {
    columns: Box<Columns>,
    /// Present bytes of the frame in each lane in use. Empty if the batch has no bytes, and while
    /// `segment` provides them.
    frames: Vec<&'a [u8]>,
    segment: Option<SegmentFrames<'a>>,
    known: KnownFacts,
    /// The lane that a per-block filter processed last. After a panic, the block in this lane is
    /// the block that caused the panic.
    last_processed: u8,
}

impl<'a> Batch<'a> {
    /// Creates a batch over these columns. `bytes` returns the present bytes of the frame in a
    /// lane.
    #[inline]
    pub fn new(memory: BatchMemory, mut bytes: impl FnMut(&Columns, Lane) -> &'a [u8]) -> Self {
        let BatchMemory { columns, mut frames } = memory;
        frames.clear();
        let mut frames: Vec<&'a [u8]> = frames;
        let len = columns.len.min(LANES);
        frames.extend((0..len).map(|l| bytes(&columns, l)));
        let known = columns.initial_facts();
        Self { columns, frames, segment: None, known, last_processed: 0 }
    }

    /// Creates a batch over the columns in `memory`, whose frames all lie in one segment of a dbuf.
    /// `segment` contains the bytes of the segment, and `start` is the dbuf position of its first
    /// byte. If a frame lies outside of the segment, returns `memory` as the error.
    #[inline]
    pub fn from_segment(
        memory: BatchMemory,
        dbuf: DbufId,
        start: u64,
        segment: &'a [u8],
    ) -> Result<Self, BatchMemory> {
        let segment = SegmentFrames::from_columns(&memory.columns, dbuf, start, segment);
        if segment.is_none() {
            return Err(memory);
        }
        Ok(Self { segment, ..Self::without_bytes(memory) })
    }

    /// Creates a batch over these columns without bytes, for filters that read only metadata.
    #[inline]
    #[must_use]
    pub fn without_bytes(memory: BatchMemory) -> Self {
        let BatchMemory { columns, mut frames } = memory;
        frames.clear();
        let known = columns.initial_facts();
        Self { columns, frames, segment: None, known, last_processed: 0 }
    }

    /// Creates a batch without blocks.
    #[must_use]
    pub fn empty() -> Self {
        Self::new(BatchMemory::default(), |_, _| &[])
    }

    /// Returns, as columns, the live blocks of a batch whose pass was interrupted. The blocks
    /// occupy the first lanes of the columns.
    #[must_use]
    pub fn into_compact_memory(mut self) -> BatchMemory {
        let all = self.columns.live == first_lanes_mask(self.columns.len);
        if all {
            // Filters have changed views and classes, so the sums of the columns are stale.
            let columns = &mut *self.columns;
            let pointers = columns.pointers.iter().take(columns.len);
            columns.bytes = pointers.clone().map(|pointer| u64::from(pointer.length())).sum();
            columns.has_unanswered = !pointers.clone().all(|pointer| pointer.class.is_answered());
            return into_batch_memory(self.columns, self.frames);
        }
        let mut compact = Box::<Columns>::default();
        for l in lanes(self.columns.live) {
            compact
                .push_with_sequence_number(self.columns.entry(l), self.columns.sequence_numbers[l]);
        }
        into_batch_memory(compact, self.frames)
    }

    /// Empties the batch, and returns its memory for reuse.
    #[must_use]
    pub fn into_memory(mut self) -> BatchMemory {
        self.columns.clear();
        into_batch_memory(self.columns, self.frames)
    }

    /// Returns the columns of the batch.
    #[must_use]
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Returns the number of lanes in use, live or not.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.columns.len
    }

    /// Returns true if no lane is in use.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.columns.len == 0
    }

    /// Returns true if all lanes are in use.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.columns.len == LANES
    }

    /// Returns the mask of live lanes in the batch.
    #[inline]
    #[must_use]
    pub fn live_lanes(&self) -> LaneMask {
        self.columns.live
    }

    /// Ends all live lanes that are not in `mask`: clears their bits in the mask of live lanes.
    #[inline]
    pub fn retain_lanes(&mut self, mask: LaneMask) {
        self.columns.live &= mask;
    }

    /// Sets the mask of live lanes; unused lanes stay unused. The engine calls this to restore
    /// lanes that an operand of a section has ended.
    #[inline]
    pub fn set_live_lanes(&mut self, mask: LaneMask) {
        self.columns.live = mask & first_lanes_mask(self.columns.len);
        self.known.answered_lanes = None;
    }

    /// Returns the block in this lane.
    #[inline]
    #[must_use]
    pub fn block(&self, l: Lane) -> Block<'a> {
        let c = &self.columns;
        Block {
            pointer: c.pointers[l],
            frame: match &self.segment {
                Some(segment) => segment.frame(&c.pointers[l], &c.marks[l]),
                None => self.frames.get(l).copied().unwrap_or_default(),
            },
            marks: c.marks[l],
            context: c.context[l],
        }
    }

    /// Replaces the block in this lane.
    #[inline]
    pub fn set_block(&mut self, l: Lane, block: Block<'a>) {
        self.begin_rewrite();
        self.rewrite_lane(l, block);
    }

    /// Prepares the batch for calls of [`Batch::rewrite_lane`]: stores the frame slices of all
    /// lanes in `frames`, and discards cached facts about the batch.
    #[inline]
    pub(super) fn begin_rewrite(&mut self) {
        self.resolve_frames();
        self.known = KnownFacts::default();
    }

    /// Replaces the block in this lane, like [`Batch::set_block`]. The caller must first call
    /// [`Batch::begin_rewrite`]. Between the two calls, it must not call a function that caches
    /// facts about the batch.
    #[inline]
    fn rewrite_lane(&mut self, l: Lane, block: Block<'a>) {
        self.columns.pointers[l] = block.pointer;
        self.columns.marks[l] = block.marks;
        self.columns.context[l] = block.context;
        if let Some(frame) = self.frames.get_mut(l) {
            *frame = block.frame;
        }
    }

    /// Replaces the marks of the block in this lane.
    #[inline]
    pub fn set_marks(&mut self, l: Lane, marks: Marks) {
        self.resolve_frames();
        self.columns.marks[l] = marks;
    }

    /// Returns the present bytes of the frame in this lane, its marks for modification, and its
    /// metadata.
    #[inline]
    pub fn frame_and_marks(&mut self, l: Lane) -> (&'a [u8], &mut Marks, BlockMetadata) {
        self.resolve_frames();
        let frame = self.frames.get(l).copied().unwrap_or_default();
        (frame, &mut self.columns.marks[l], self.columns.context[l])
    }

    /// Adds a block with sequence number `order`. Returns the block if all lanes are in use.
    #[inline]
    pub fn push(&mut self, block: Block<'a>, order: u32) -> Result<(), Block<'a>> {
        let l = self.columns.len;
        if l >= LANES {
            return Err(block);
        }
        self.resolve_frames();
        self.columns.len = l + 1;
        self.columns.live |= 1 << l;
        self.columns.sequence_numbers[l] = order;
        self.frames.push(block.frame);
        self.set_block(l, block);
        Ok(())
    }

    /// Returns the sequence number of this lane's block, assigned by
    /// [`Batch::renumber_live_blocks`] at the last fork. A block made by a filter has the number of
    /// the block from which it was made.
    #[inline]
    #[must_use]
    pub fn sequence_number(&self, l: Lane) -> u32 {
        self.columns.sequence_numbers[l]
    }

    /// Assigns consecutive sequence numbers, from `next` on, to the live blocks, and advances
    /// `next` past them. Called at a fork: a node with several outgoing arcs.
    pub fn renumber_live_blocks(&mut self, next: &mut u32) {
        for l in lanes(self.columns.live) {
            self.columns.sequence_numbers[l] = *next;
            *next = next.wrapping_add(1);
        }
    }

    /// Sets the sequence number of each lane to `from | lane`. `from` must be a multiple of
    /// [`LANES`].
    #[inline]
    pub fn number_lanes(&mut self, from: u32) {
        for (l, order) in
            self.columns.sequence_numbers.iter_mut().enumerate().take(self.columns.len)
        {
            *order = from | l as u32;
        }
    }

    /// Sets the sequence numbers of all lanes to `number`.
    pub fn set_all_sequence_numbers(&mut self, number: u32) {
        self.columns.sequence_numbers[..self.columns.len].fill(number);
    }

    /// Copies the sequence numbers of the lanes in `mask` to their marks, before the blocks cross
    /// to another space. Marks lane `last` as the last of the batch.
    #[inline]
    pub fn store_sequence_numbers(&mut self, mask: LaneMask, last: Option<Lane>) {
        for l in lanes(mask) {
            let marks = &mut self.columns.marks[l];
            *marks = marks.with_seq(self.columns.sequence_numbers[l], last == Some(l));
        }
    }

    /// Stores the sequence number of each lane in `mask` in the lane's marks, together with `step`:
    /// the shutdown step of the replica that emits the blocks, or 0 before the shutdown
    /// ([`abi::Marks::with_end_step`]).
    #[inline]
    pub fn store_end_step(&mut self, mask: LaneMask, step: u32) {
        for l in lanes(mask) {
            let marks = &mut self.columns.marks[l];
            *marks = marks.with_end_step(self.columns.sequence_numbers[l], step);
        }
    }

    /// Returns the class of the block in this lane.
    #[inline]
    #[must_use]
    pub fn class(&self, l: Lane) -> Class {
        self.columns.pointers[l].class
    }

    /// Sets the class of the block in this lane.
    #[inline]
    pub fn set_class(&mut self, l: Lane, class: Class) {
        (self.known.answered_lanes, self.known.class) = (None, None);
        self.columns.pointers[l].class = class;
    }

    /// Returns the live blocks, in lane order.
    #[inline]
    pub fn blocks(&self) -> impl Iterator<Item = (Lane, Block<'a>)> + '_ {
        lanes(self.columns.live).map(|l| (l, self.block(l)))
    }

    /// Calls `visit` for each live block, in lane order, with the present bytes of its view.
    #[inline]
    pub fn for_each_view(&self, mut visit: impl FnMut(&'a [u8])) {
        let c = &*self.columns;
        if let Some(segment) = self.segment {
            let (live, lanes) = (c.live, c.pointers.get(..c.len).unwrap_or_default());
            if live == first_lanes_mask(c.len) {
                lanes.iter().for_each(|pointer| visit(segment.view(pointer)));
                return;
            }
            for (l, pointer) in lanes.iter().enumerate() {
                if live >> l & 1 == 1 {
                    visit(segment.view(pointer));
                }
            }
            return;
        }
        let mut one = |(pointer, marks, frame): (&RichPointer, &Marks, &&'a [u8])| {
            let from = marks.view as usize;
            let to = frame.len().min(from + pointer.length() as usize);
            visit(frame.get(from..to).unwrap_or_default());
        };
        let all = c.pointers.iter().zip(&c.marks).zip(&self.frames);
        let all = all.map(|((pointer, marks), frame)| (pointer, marks, frame)).take(c.len);
        if c.live == first_lanes_mask(c.len) {
            all.for_each(one);
        } else {
            for (l, lane) in all.enumerate() {
                if c.live >> l & 1 == 1 {
                    one(lane);
                }
            }
        }
    }

    /// Returns the blocks in the lanes of `mask` as ring entries, in lane order.
    #[inline]
    pub fn entries(&self, mask: LaneMask) -> impl Iterator<Item = Entry> + '_ {
        lanes(mask).map(|l| self.columns.entry(l))
    }

    /// Returns the pointers, metadata and marks of all lanes in use, or `None` if any of these
    /// lanes is not live.
    #[inline]
    #[must_use]
    pub fn dense_columns(&self) -> Option<(&[RichPointer], &[BlockMetadata], &[Marks])> {
        let Columns { len, pointers, context, marks, .. } = &*self.columns;
        let all = self.columns.live == first_lanes_mask(*len);
        all.then_some((pointers.get(..*len)?, context.get(..*len)?, marks.get(..*len)?))
    }

    /// Returns the columns of the batch that a statistics filter may read.
    #[must_use]
    pub fn metadata_view(&self) -> MetadataView<'_> {
        let c = &*self.columns;
        MetadataView {
            pointers: &c.pointers[..c.len],
            context: &c.context[..c.len],
            marks: &c.marks[..c.len],
            live: c.live,
        }
    }

    /// Stores the frame slices of all lanes in `frames`, unless they are there already, and then
    /// clears `segment`.
    #[inline]
    fn resolve_frames(&mut self) {
        if self.segment.is_some() {
            self.resolve_segment();
        }
    }

    #[inline(never)]
    fn resolve_segment(&mut self) {
        if let Some(segment) = self.segment.take() {
            self.known.byte_column_offset = None;
            let lanes = self.columns.pointers.iter().zip(&self.columns.marks);
            let frames = lanes.map(move |(pointer, marks)| segment.frame(pointer, marks));
            self.frames.extend(frames.take(self.columns.len));
        }
    }

    /// Returns the block in this lane, and its sequence number. Records this lane as the one that a
    /// per-block filter processed last ([`Batch::last_processed_lane`]).
    #[inline]
    pub(super) fn block_and_sequence_number(&mut self, l: Lane) -> (Block<'a>, u32) {
        self.last_processed = l as u8;
        (self.block(l), self.columns.sequence_numbers[l])
    }

    /// Moves the blocks in the lanes of `mask` to the highest lanes of the batch, and preserves
    /// their order. Returns the mask of their new lanes.
    pub(super) fn move_lanes_to_end(&mut self, mut mask: LaneMask) -> LaneMask {
        let from = LANES - mask.count_ones() as usize;
        self.ensure_lanes_in_use(LANES);
        for to in (from..LANES).rev() {
            let Some(l) = mask.checked_ilog2() else { break };
            mask &= !(1 << l);
            let (block, order) = (self.block(l as Lane), self.columns.sequence_numbers[l as Lane]);
            self.put_block(to, block, order);
        }
        !first_lanes_mask(from)
    }

    /// Ensures that at least `len` lanes of the batch are in use.
    fn ensure_lanes_in_use(&mut self, len: usize) {
        if len > self.columns.len {
            self.resolve_frames();
            self.columns.len = len;
            self.frames.resize(len, &[]);
        }
    }

    /// Stores a block and its sequence number in a lane that is in use. The caller must first call
    /// [`Batch::begin_rewrite`]. Between the two calls, it must not call a function that caches
    /// facts about the batch.
    #[inline]
    pub(super) fn rewrite_block(&mut self, l: Lane, block: Block<'a>, order: u32) {
        self.columns.sequence_numbers[l] = order;
        self.rewrite_lane(l, block);
    }

    /// Stores a block and its sequence number in a lane. Marks the lane as used if it is unused.
    #[inline]
    pub(super) fn put_block(&mut self, l: Lane, block: Block<'a>, order: u32) {
        self.ensure_lanes_in_use(l + 1);
        self.columns.sequence_numbers[l] = order;
        self.set_block(l, block);
    }

    /// Returns the lane that a per-block filter processed last.
    #[must_use]
    pub fn last_processed_lane(&self) -> Lane {
        usize::from(self.last_processed)
    }

    /// Returns the number of blocks in the lanes of `mask`, and the number of bytes in their views.
    /// Caches the result.
    #[inline]
    pub fn cache_amount_in_lanes(&mut self, mask: LaneMask) -> Amount {
        let amount = self.amount_in_lanes(mask);
        self.known.bytes = Some((mask, amount.bytes));
        amount
    }

    /// Returns the number of blocks in the lanes of `mask`, and the number of bytes in their views.
    #[inline]
    #[must_use]
    pub fn amount_in_lanes(&self, mask: LaneMask) -> Amount {
        let bytes = match self.known.bytes {
            Some((known, bytes)) if known == mask => bytes,
            _ => lanes(mask).map(|l| u64::from(self.columns.pointers[l].length())).sum(),
        };
        Amount { blocks: u64::from(mask.count_ones()), bytes }
    }

    /// Copies the batch, so that another branch of a fork can process it. Copies about 90 bytes per
    /// lane; the bytes of the frames are shared.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let Self { columns, frames, segment, known, last_processed: at } = self;
        let (columns, frames) = (columns.clone(), frames.clone());
        Self { columns, frames, segment: *segment, known: *known, last_processed: *at }
    }
}

/// Clears `frames`, and returns `columns` and the allocation of `frames` as memory for another
/// batch.
fn into_batch_memory(columns: Box<Columns>, mut frames: Vec<&[u8]>) -> BatchMemory {
    frames.clear();
    // The vector is empty, so this only changes the lifetime; the allocation is reused.
    let frames = frames.into_iter().map(|_| -> &'static [u8] { Default::default() }).collect();
    BatchMemory { columns, frames }
}

/// The part of a batch that a statistics filter may read: rich pointers, metadata and marks.
#[derive(Clone, Copy, Debug)]
pub struct MetadataView<'b> {
    /// Rich pointers of the lanes in use, live or not.
    pub pointers: &'b [RichPointer],
    /// Metadata of the lanes in use, live or not.
    pub context: &'b [BlockMetadata],
    /// Marks of the lanes in use, live or not.
    pub marks: &'b [Marks],
    /// Mask of live lanes.
    pub live: LaneMask,
}

impl MetadataView<'_> {
    /// Returns the pointers and metadata of the live blocks, in lane order.
    pub fn blocks(&self) -> impl Iterator<Item = (RichPointer, BlockMetadata)> + '_ {
        lanes(self.live).filter_map(|l| Some((*self.pointers.get(l)?, *self.context.get(l)?)))
    }

    /// Returns the pointers, metadata and marks of the live blocks, in lane order.
    pub fn marked_blocks(&self) -> impl Iterator<Item = (RichPointer, BlockMetadata, &Marks)> + '_ {
        lanes(self.live).filter_map(|l| {
            Some((*self.pointers.get(l)?, *self.context.get(l)?, self.marks.get(l)?))
        })
    }
}
