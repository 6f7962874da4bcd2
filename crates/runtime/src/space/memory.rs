//! The memory services that a space provides to its filters for reading bytes, and for holding,
//! creating and editing blocks.
//!
//! A space has intake pools, which its sources fill: one that is shared by all sources without
//! memory of their own, and one for each other source (for example, the ring of a packet socket).
//! The pool `work` receives the output of filters, edited copies, and copies of held blocks that
//! would prevent the reuse of an intake. Held blocks in lent intakes are copied to `work` at once
//! (CONTRACT 12).
//!
//! An edit in the middle of a walk always writes a copy, because the block is borrowed. Filters
//! that edit block by block run while no block is borrowed, and change blocks in place
//! (`space::edit`).

use abi::{Entry, RichPointer};
use buffer::pool::{Pool, Segment};
use filter::{Batch, BatchMemory, Block, FillFn, Gateway, OldBytes, PinId};

/// The memory that a walk can access: the pools of the space, and the ring batches that the walk
/// reads.
pub(crate) struct Memory<'a> {
    pub(crate) intakes: &'a [Pool],
    pub(crate) work: &'a Pool,
    /// Ring batches whose blocks this walk reads.
    pub(crate) imported: &'a [buffer::crossing::Batch<'a>],
}

/// Number that stands for the pool `work` in the top byte of a [`PinId`]; greater than the index of
/// any intake. The pools themselves leave this byte unused.
const WORK_POOL_NUMBER: u64 = 0xff;
const PIN_POOL_SHIFT: u32 = 56;
/// The [`PinId`] of a held block without bytes (a hole), for which no memory is pinned.
const HOLE_PIN: PinId = PinId(u64::MAX);

impl<'a> Memory<'a> {
    fn local_pool(&self, pointer: RichPointer) -> Option<&'a Pool> {
        let (intakes, work) = (self.intakes, self.work);
        intakes.iter().chain([work]).find(|pool| pool.id() == pointer.dbuf())
    }

    /// Returns the segment that contains a frame, from any pool or ring batch of the walk, or
    /// `None` if the space has no access to the frame.
    pub(crate) fn find_frame_segment(&self, frame: RichPointer) -> Option<Segment<'a>> {
        let imported = || {
            let segments = self.imported.iter().flat_map(|imported| {
                (0..imported.len()).filter_map(|number| imported.segment(number))
            });
            segments.into_iter().find(|segment| segment.bytes(frame).is_some())
        };
        match self.local_pool(frame) {
            Some(pool) => pool.segment(frame),
            None => imported(),
        }
    }

    fn copy_to_work_pool(&self, bytes: &[u8]) -> Option<(RichPointer, &'a [u8])> {
        let (place, copy) = self.work.append(bytes.len(), |room| {
            room.copy_from_slice(bytes);
            bytes.len()
        })?;
        Some((RichPointer::new(self.work.id(), place, abi::Class::NONE), copy))
    }

    /// Copies a block that belongs to another space into the pool `work`, and pins the copy.
    /// Returns a hole unchanged. Returns `None` if the pool has no memory.
    pub(crate) fn copy_foreign_block(&self, entry: &Entry, frame: &[u8]) -> Option<(Entry, PinId)> {
        let old = entry.frame();
        if old.is_hole() {
            return Some((*entry, HOLE_PIN));
        }
        let (copy, _) = self.copy_to_work_pool(frame)?;
        let pin = self.work.pin(copy.place)?;
        let pointer = copy.with_class(entry.pointer.class);
        let pointer = pointer.subrange(entry.marks.view, entry.pointer.length());
        Some((Entry::new(pointer, entry.context, entry.marks), encode_pin(WORK_POOL_NUMBER, pin)))
    }

    /// Finds the intake that contains a block, if a filter can hold the block there without a copy.
    /// Returns the index of the intake and its pool. Returns `None` if the block must be copied to
    /// the pool `work`.
    fn pinnable_intake(&self, pointer: RichPointer) -> Option<(u64, &'a Pool)> {
        let stays = |pool: &Pool| !pool.is_lent() && !is_mostly_pinned(pool);
        (0..WORK_POOL_NUMBER)
            .zip(self.intakes)
            .find(|(_, pool)| pool.id() == pointer.dbuf())
            .filter(|(_, pool)| stays(pool))
    }
}

/// Returns true if at least half of the intake's segments are pinned by held blocks. A block that a
/// filter holds must then be copied to another pool; otherwise the source would run out of memory.
fn is_mostly_pinned(intake: &Pool) -> bool {
    let usage = intake.usage();
    usage.pinned * 2 >= usage.segments
}

fn encode_pin(pool: u64, pin: buffer::pool::SegmentPin) -> PinId {
    PinId(pin.to_word() | pool << PIN_POOL_SHIFT)
}

impl<'a> Gateway<'a> for Memory<'a> {
    fn frame(&self, entry: &Entry) -> &'a [u8] {
        let frame = entry.frame();
        match self.local_pool(frame) {
            Some(pool) => pool.bytes(frame.place),
            None => self.imported.iter().find_map(|imported| imported.resolve(frame).ok()),
        }
        .unwrap_or_default()
    }

    fn complete_block(&mut self, block: Block<'a>) -> Option<Block<'a>> {
        if block.has_all_bytes() {
            return Some(block);
        }
        let frame = self.frame(&block.entry());
        let whole = Block { frame, ..block };
        whole.has_all_bytes().then_some(whole)
    }

    fn pin(&mut self, block: &Block<'a>) -> Option<(Entry, PinId)> {
        let entry = block.entry();
        let frame = entry.frame();
        if frame.is_hole() {
            return Some((entry, HOLE_PIN));
        }
        if frame.dbuf() == self.work.id() {
            return Some((entry, encode_pin(WORK_POOL_NUMBER, self.work.pin(frame.place)?)));
        }
        if let Some((number, pool)) = self.pinnable_intake(frame) {
            return Some((entry, encode_pin(number, pool.pin(frame.place)?)));
        }
        let (copy, _) = self.copy_to_work_pool(block.frame)?;
        let pin = self.work.pin(copy.place)?;
        let pointer =
            copy.with_class(block.pointer.class).subrange(block.marks.view, block.length());
        Some((Entry::new(pointer, entry.context, entry.marks), encode_pin(WORK_POOL_NUMBER, pin)))
    }

    fn unpin(&mut self, pin: PinId) {
        if pin == HOLE_PIN {
            return;
        }
        let number = pin.0 >> PIN_POOL_SHIFT;
        let intake = usize::try_from(number).ok().and_then(|number| self.intakes.get(number));
        let word = pin.0 & !(WORK_POOL_NUMBER << PIN_POOL_SHIFT);
        intake.unwrap_or(self.work).unpin(buffer::pool::SegmentPin::from_word(word));
    }

    fn append(&mut self, room: usize, fill: &mut FillFn<'_>) -> Option<(RichPointer, &'a [u8])> {
        let (place, bytes) = self.work.append(room, |room| fill(room))?;
        Some((RichPointer::new(self.work.id(), place, abi::Class::YES), bytes))
    }

    fn edit(
        &mut self,
        block: &Block<'a>,
        keep: OldBytes,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> Option<(RichPointer, &'a [u8])> {
        let old = block.frame;
        let (place, bytes) = self.work.append(old.len(), |room| {
            match keep {
                OldBytes::Keep => room.copy_from_slice(old),
                OldBytes::Discard => copy_around_view(block, room, old),
            }
            write(room);
            old.len()
        })?;
        Some((RichPointer::new(self.work.id(), place, block.pointer.class), bytes))
    }
}

/// A resolver of rich pointers to frame bytes. It caches the segment of the last frame.
pub(crate) struct Frames<'a, F> {
    last_segment: Segment<'a>,
    /// Function that returns the segment that contains a frame. Its arguments are the block's index
    /// in the batch and the frame's rich pointer.
    segment: F,
}

impl<'a, F: Fn(usize, RichPointer) -> Option<Segment<'a>>> Frames<'a, F> {
    pub(crate) fn new(segment: F) -> Self {
        Self { last_segment: Segment::default(), segment }
    }

    /// Creates a batch from the columns in `room`. Resolves all frames with a single lookup if one
    /// segment contains them, as is usual.
    pub(crate) fn into_batch(mut self, room: BatchMemory) -> Batch<'a> {
        let first = (!room.columns.is_empty()).then(|| room.columns.frame(0));
        self.last_segment = first.and_then(|frame| (self.segment)(0, frame)).unwrap_or_default();
        let near = self.last_segment;
        match Batch::from_segment(room, near.dbuf(), near.start(), near.filled_bytes()) {
            Ok(batch) => batch,
            Err(room) => Batch::new(room, |columns, l| self.frame_bytes(l, columns.frame(l))),
        }
    }

    /// Returns the bytes of a frame, or an empty slice if the space has no access to them.
    #[inline(always)]
    fn frame_bytes(&mut self, number: usize, frame: RichPointer) -> &'a [u8] {
        match self.last_segment.bytes(frame) {
            Some(bytes) => bytes,
            None => self.find_frame_bytes(number, frame),
        }
    }

    #[cold]
    fn find_frame_bytes(&mut self, number: usize, frame: RichPointer) -> &'a [u8] {
        self.last_segment = (self.segment)(number, frame).unwrap_or_default();
        self.last_segment.bytes(frame).unwrap_or_default()
    }
}

/// Copies the bytes before and after a block's view from the block's old frame to its new frame,
/// `room`. The offsets in the marks thus stay valid. Fills the range of the view with zeros.
fn copy_around_view(block: &Block<'_>, room: &mut [u8], old: &[u8]) {
    let from = (block.marks.view as usize).min(old.len());
    let to = from.saturating_add(block.length() as usize).min(old.len());
    for part in [0..from, to..old.len()] {
        if let (Some(room), Some(old)) = (room.get_mut(part.clone()), old.get(part)) {
            room.copy_from_slice(old);
        }
    }
    // The memory is reused: bytes of an earlier block must not remain where `write` leaves gaps.
    if let Some(view) = room.get_mut(from..to) {
        view.fill(0);
    }
}
