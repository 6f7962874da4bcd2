//! Memory services of a space for its filters: find bytes, keep blocks, make blocks, edit blocks.
//!
//! A space has pools into which its sources put blocks: one for all that bring no memory along, and
//! one for each that does (the ring of a packet socket). Beside them stands `work`, where filters
//! append, edits go and held blocks are moved to when they would keep an intake from being reused,
//! at once where it is lent (CONTRACT 12).
//! An edit in the middle of a turn always writes a copy: the filter that asks for it, and others,
//! have views of the block. Filters that edit block by block are called when nobody has any, and
//! change blocks where they lie (`space::edit`).

use abi::{Entry, RichPointer};
use buffer::pool::{Pool, Segment};
use filter::{Batch, Block, Fill, Gateway, Keep, Pin, Room};

/// The pools of a space, for one turn.
pub(crate) struct Memory<'a> {
    pub(crate) intakes: &'a [Pool],
    pub(crate) work: &'a Pool,
    /// Batches taken off rings, if the blocks of this pass came from there.
    pub(crate) imported: &'a [buffer::crossing::Batch<'a>],
}

/// Pool number in a pin: the number of the intake, or this for `work`, above what a pin of a pool
/// can be.
const WORK: u64 = 0xff;
const POOL_SHIFT: u32 = 56;
/// Pin of a hole, which keeps nothing.
const NOTHING: Pin = Pin(u64::MAX);

impl<'a> Memory<'a> {
    fn pool_of(&self, pointer: RichPointer) -> Option<&'a Pool> {
        let (intakes, work) = (self.intakes, self.work);
        intakes.iter().chain([work]).find(|pool| pool.id() == pointer.dbuf())
    }

    /// All that is filled around a frame, wherever that is.
    pub(crate) fn segment(&self, frame: RichPointer) -> Option<Segment<'a>> {
        let imported = || {
            let segments = self.imported.iter().flat_map(|imported| {
                (0..imported.len()).filter_map(|number| imported.segment(number))
            });
            segments.into_iter().find(|segment| segment.bytes(frame).is_some())
        };
        match self.pool_of(frame) {
            Some(pool) => pool.segment(frame),
            None => imported(),
        }
    }

    fn copy(&self, bytes: &[u8]) -> Option<(RichPointer, &'a [u8])> {
        let (place, copy) = self.work.append(bytes.len(), |room| {
            room.copy_from_slice(bytes);
            bytes.len()
        })?;
        Some((RichPointer::new(self.work.id(), place, abi::Class::NONE), copy))
    }

    /// A copy of a block that another space held, held here.
    pub(crate) fn adopt(&self, entry: &Entry, frame: &[u8]) -> Option<(Entry, Pin)> {
        let old = entry.frame();
        if old.is_hole() {
            return Some((*entry, NOTHING));
        }
        let (copy, _) = self.copy(frame)?;
        let pin = self.work.pin(copy.place)?;
        let pointer = copy.with_class(entry.pointer.class);
        let pointer = pointer.within(entry.marks.view, entry.pointer.length());
        Some((Entry::new(pointer, entry.context, entry.marks), pin_of(WORK, pin)))
    }

    /// The intake in which a block may stay while it is held, and its number.
    fn stays(&self, pointer: RichPointer) -> Option<(u64, &'a Pool)> {
        let stays = |pool: &Pool| !pool.is_lent() && !is_tight(pool);
        (0..WORK)
            .zip(self.intakes)
            .find(|(_, pool)| pool.id() == pointer.dbuf())
            .filter(|(_, pool)| stays(pool))
    }
}

/// Returns true if held blocks keep so much of an intake that its source would soon have no room.
fn is_tight(intake: &Pool) -> bool {
    let usage = intake.usage();
    usage.pinned * 2 >= usage.segments
}

fn pin_of(pool: u64, pin: buffer::pool::Pin) -> Pin {
    Pin(pin.to_word() | pool << POOL_SHIFT)
}

impl<'a> Gateway<'a> for Memory<'a> {
    fn frame(&self, entry: &Entry) -> &'a [u8] {
        let frame = entry.frame();
        match self.pool_of(frame) {
            Some(pool) => pool.bytes(frame.place),
            None => self.imported.iter().find_map(|imported| imported.resolve(frame).ok()),
        }
        .unwrap_or_default()
    }

    fn whole(&mut self, block: Block<'a>) -> Option<Block<'a>> {
        if block.is_whole() {
            return Some(block);
        }
        let frame = self.frame(&block.entry());
        let whole = Block { frame, ..block };
        whole.is_whole().then_some(whole)
    }

    fn pin(&mut self, block: &Block<'a>) -> Option<(Entry, Pin)> {
        let entry = block.entry();
        let frame = entry.frame();
        if frame.is_hole() {
            return Some((entry, NOTHING));
        }
        if frame.dbuf() == self.work.id() {
            return Some((entry, pin_of(WORK, self.work.pin(frame.place)?)));
        }
        if let Some((number, pool)) = self.stays(frame) {
            return Some((entry, pin_of(number, pool.pin(frame.place)?)));
        }
        let (copy, _) = self.copy(block.frame)?;
        let pin = self.work.pin(copy.place)?;
        let pointer = copy.with_class(block.pointer.class).within(block.marks.view, block.length());
        Some((Entry::new(pointer, entry.context, entry.marks), pin_of(WORK, pin)))
    }

    fn unpin(&mut self, pin: Pin) {
        if pin == NOTHING {
            return;
        }
        let number = pin.0 >> POOL_SHIFT;
        let intake = usize::try_from(number).ok().and_then(|number| self.intakes.get(number));
        let word = pin.0 & !(WORK << POOL_SHIFT);
        intake.unwrap_or(self.work).unpin(buffer::pool::Pin::from_word(word));
    }

    fn append(&mut self, room: usize, fill: &mut Fill<'_>) -> Option<(RichPointer, &'a [u8])> {
        let (place, bytes) = self.work.append(room, |room| fill(room))?;
        Some((RichPointer::new(self.work.id(), place, abi::Class::YES), bytes))
    }

    fn edit(
        &mut self,
        block: &Block<'a>,
        keep: Keep,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> Option<(RichPointer, &'a [u8])> {
        let old = block.frame;
        let (place, bytes) = self.work.append(old.len(), |room| {
            match keep {
                Keep::Contents => room.copy_from_slice(old),
                Keep::Nothing => around(block, room, old),
            }
            write(room);
            old.len()
        })?;
        Some((RichPointer::new(self.work.id(), place, block.pointer.class), bytes))
    }
}

/// Finds the frames of blocks: mostly in the segment of the block before.
pub(crate) struct Frames<'a, F> {
    near: Segment<'a>,
    /// Finds the segment of a frame by the block's number and the frame.
    segment: F,
}

impl<'a, F: Fn(usize, RichPointer) -> Option<Segment<'a>>> Frames<'a, F> {
    pub(crate) fn new(segment: F) -> Self {
        Self { near: Segment::default(), segment }
    }

    /// The batch over these columns. Mostly all frames lie in one segment.
    pub(crate) fn batch(mut self, room: Room) -> Batch<'a> {
        let first = (!room.columns.is_empty()).then(|| room.columns.frame(0));
        self.near = first.and_then(|frame| (self.segment)(0, frame)).unwrap_or_default();
        let near = self.near;
        match Batch::of_segment(room, near.dbuf(), near.start(), near.all()) {
            Ok(batch) => batch,
            Err(room) => Batch::new(room, |columns, l| self.find(l, columns.frame(l))),
        }
    }

    /// The bytes of a frame; none if they are not here.
    #[inline(always)]
    fn find(&mut self, number: usize, frame: RichPointer) -> &'a [u8] {
        match self.near.bytes(frame) {
            Some(bytes) => bytes,
            None => self.elsewhere(number, frame),
        }
    }

    #[cold]
    fn elsewhere(&mut self, number: usize, frame: RichPointer) -> &'a [u8] {
        self.near = (self.segment)(number, frame).unwrap_or_default();
        self.near.bytes(frame).unwrap_or_default()
    }
}

/// Copies what lies around the view: the marks must go on meaning the same.
fn around(block: &Block<'_>, room: &mut [u8], old: &[u8]) {
    let from = (block.marks.view as usize).min(old.len());
    let to = from.saturating_add(block.length() as usize).min(old.len());
    for part in [0..from, to..old.len()] {
        if let (Some(room), Some(old)) = (room.get_mut(part.clone()), old.get(part)) {
            room.copy_from_slice(old);
        }
    }
    // Memory that is used again: nothing of an earlier block may show where `write` leaves it
    // alone.
    if let Some(view) = room.get_mut(from..to) {
        view.fill(0);
    }
}
