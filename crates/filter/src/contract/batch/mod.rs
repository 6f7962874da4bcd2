//! A batch: up to 64 blocks side by side.
//!
//! One column per property and one `u64` whose bits say which lanes live. A block keeps its lane as
//! long as filters only look at it or edit it in place, so dropping is clearing a bit, routing is a
//! mask, and the order at a join is the order of the lanes. [SL §6.2], figures in
//! docs/book/decisions/0003-batches.md

mod answers;
mod block;
mod columns;
mod lanes;
mod near;

pub use block::Block;
pub use columns::Columns;
pub use lanes::{LANES, Lane, LaneMask, lanes, mask_of};

use super::turn::Amount;
use abi::{BlockMetadata, Class, DbufId, Entry, Marks, RichPointer};
use columns::Known;
use near::Near;

/// The memory of a batch between two turns: columns that a source fills, and room for the frames.
#[derive(Debug, Default)]
pub struct Room {
    /// The columns.
    pub columns: Box<Columns>,
    frames: Vec<&'static [u8]>,
}

impl From<Box<Columns>> for Room {
    fn from(columns: Box<Columns>) -> Self {
        Self { columns, frames: Vec::new() }
    }
}

/// Up to 64 blocks with their bytes. `'a` is the turn: nothing of a batch outlives it.
#[derive(Debug)]
pub struct Batch<'a> {
    columns: Box<Columns>,
    /// One per lane in use, or none yet: then they lie near each other.
    frames: Vec<&'a [u8]>,
    near: Option<Near<'a>>,
    known: Known,
    /// The lane that a per-block filter is looking at: what a panic leaves behind.
    at: u8,
}

impl<'a> Batch<'a> {
    /// A batch over these columns; `bytes` finds the frame of each block (its captured bytes, as
    /// far as they are here).
    #[inline]
    pub fn new(room: Room, mut bytes: impl FnMut(&Columns, Lane) -> &'a [u8]) -> Self {
        let Room { columns, mut frames } = room;
        frames.clear();
        let mut frames: Vec<&'a [u8]> = frames;
        let len = columns.len.min(LANES);
        frames.extend((0..len).map(|l| bytes(&columns, l)));
        let known = columns.known();
        Self { columns, frames, near: None, known, at: 0 }
    }

    /// A batch over these columns, all of whose frames lie in these bytes of a dbuf, the first of
    /// which has the position `start`. Otherwise the room comes back.
    #[inline]
    pub fn of_segment(
        room: Room,
        dbuf: DbufId,
        start: u64,
        segment: &'a [u8],
    ) -> Result<Self, Room> {
        let near = Near::of(&room.columns, dbuf, start, segment);
        if near.is_none() {
            return Err(room);
        }
        Ok(Self { near, ..Self::unseen(room) })
    }

    /// A batch over these columns whose frames nobody will look at.
    #[inline]
    #[must_use]
    pub fn unseen(room: Room) -> Self {
        let Room { columns, mut frames } = room;
        frames.clear();
        let known = columns.known();
        Self { columns, frames, near: None, known, at: 0 }
    }

    /// An empty batch.
    #[must_use]
    pub fn empty() -> Self {
        Self::new(Room::default(), |_, _| &[])
    }

    /// The live blocks without their bytes, close together: what is left of a batch when a turn is
    /// interrupted so that nobody has a view.
    #[must_use]
    pub fn at_rest(mut self) -> Room {
        let all = self.columns.live == mask_of(self.columns.len);
        if all {
            // What filters did to the lanes is not known to the columns.
            let columns = &mut *self.columns;
            let pointers = columns.pointers.iter().take(columns.len);
            columns.bytes = pointers.clone().map(|pointer| u64::from(pointer.length())).sum();
            columns.unanswered = !pointers.clone().all(|pointer| pointer.class.answered());
            return emptied(self.columns, self.frames);
        }
        let mut close = Box::<Columns>::default();
        for l in lanes(self.columns.live) {
            close.push_caused(self.columns.entry(l), self.columns.order[l]);
        }
        emptied(close, self.frames)
    }

    /// The memory of the batch, to be used for the next turn.
    #[must_use]
    pub fn into_room(mut self) -> Room {
        self.columns.clear();
        emptied(self.columns, self.frames)
    }

    /// The columns.
    #[must_use]
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// The number of lanes in use, live or not.
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

    /// Returns true if no more block fits.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.columns.len == LANES
    }

    /// Returns the mask of live lanes.
    #[inline]
    #[must_use]
    pub fn live(&self) -> LaneMask {
        self.columns.live
    }

    /// Ends all lanes that are not in `mask`.
    #[inline]
    pub fn keep(&mut self, mask: LaneMask) {
        self.columns.live &= mask;
    }

    /// Makes exactly these lanes live, of those in use. The engine's: it restores what an operand
    /// of a Boolean section ended.
    #[inline]
    pub fn set_live(&mut self, mask: LaneMask) {
        self.columns.live = mask & mask_of(self.columns.len);
        self.known.answered = None;
    }

    /// The block in this lane.
    #[inline]
    #[must_use]
    pub fn block(&self, l: Lane) -> Block<'a> {
        let c = &self.columns;
        Block {
            pointer: c.pointers[l],
            frame: match &self.near {
                Some(near) => near.frame(&c.pointers[l], &c.marks[l]),
                None => self.frames.get(l).copied().unwrap_or_default(),
            },
            marks: c.marks[l],
            context: c.context[l],
        }
    }

    /// Puts a changed block into its lane.
    #[inline]
    pub fn set(&mut self, l: Lane, block: Block<'a>) {
        self.find_frames();
        self.known = Known::default();
        self.columns.pointers[l] = block.pointer;
        self.columns.marks[l] = block.marks;
        self.columns.context[l] = block.context;
        if let Some(frame) = self.frames.get_mut(l) {
            *frame = block.frame;
        }
    }

    /// Says what was found of the layers of the block in this lane.
    #[inline]
    pub fn set_marks(&mut self, l: Lane, marks: Marks) {
        self.find_frames();
        self.columns.marks[l] = marks;
    }

    /// Adds a block caused by the block with this number; gives it back when all lanes are taken.
    #[inline]
    pub fn push(&mut self, block: Block<'a>, order: u32) -> Result<(), Block<'a>> {
        let l = self.columns.len;
        if l >= LANES {
            return Err(block);
        }
        self.find_frames();
        self.columns.len = l + 1;
        self.columns.live |= 1 << l;
        self.columns.order[l] = order;
        self.frames.push(block.frame);
        self.set(l, block);
        Ok(())
    }

    /// The number of the block that caused this one where its paths last parted.
    #[inline]
    #[must_use]
    pub fn order(&self, l: Lane) -> u32 {
        self.columns.order[l]
    }

    /// Numbers the live blocks anew from `next` on: paths part here.
    pub fn renumber(&mut self, next: &mut u32) {
        for l in lanes(self.columns.live) {
            self.columns.order[l] = *next;
            *next = next.wrapping_add(1);
        }
    }

    /// Numbers the blocks by their lanes, from a multiple of [`LANES`] on.
    #[inline]
    pub fn number_lanes(&mut self, from: u32) {
        for (l, order) in self.columns.order.iter_mut().enumerate().take(self.columns.len) {
            *order = from | l as u32;
        }
    }

    /// Numbers all blocks alike.
    pub fn number_all(&mut self, number: u32) {
        self.columns.order[..self.columns.len].fill(number);
    }

    /// Puts the numbers of the causing blocks into the marks of these lanes, so that they cross to
    /// another space, and marks the last of those that are handed over together as such.
    #[inline]
    pub fn tell_turns(&mut self, mask: LaneMask, last: Option<Lane>) {
        for l in lanes(mask) {
            let marks = &mut self.columns.marks[l];
            *marks = marks.with_seq(self.columns.order[l], last == Some(l));
        }
    }

    /// The same for what leaves a replica in a step of its end ([`abi::Marks::with_end_step`]).
    #[inline]
    pub fn tell_steps(&mut self, mask: LaneMask, step: u32) {
        for l in lanes(mask) {
            let marks = &mut self.columns.marks[l];
            *marks = marks.with_end_step(self.columns.order[l], step);
        }
    }

    /// The class in this lane.
    #[inline]
    #[must_use]
    pub fn class(&self, l: Lane) -> Class {
        self.columns.pointers[l].class
    }

    /// Answers a class for this lane.
    #[inline]
    pub fn set_class(&mut self, l: Lane, class: Class) {
        (self.known.answered, self.known.class) = (None, None);
        self.columns.pointers[l].class = class;
    }

    /// The live blocks, in order.
    #[inline]
    pub fn blocks(&self) -> impl Iterator<Item = (Lane, Block<'a>)> + '_ {
        lanes(self.columns.live).map(|l| (l, self.block(l)))
    }

    /// Shows `look` the bytes in view of the live blocks, as far as they are here, in order.
    #[inline]
    pub fn views(&self, mut look: impl FnMut(&'a [u8])) {
        let c = &*self.columns;
        if let Some(near) = self.near {
            let (live, lanes) = (c.live, c.pointers.get(..c.len).unwrap_or_default());
            if live == mask_of(c.len) {
                lanes.iter().for_each(|pointer| look(near.view(pointer)));
                return;
            }
            for (l, pointer) in lanes.iter().enumerate() {
                if live >> l & 1 == 1 {
                    look(near.view(pointer));
                }
            }
            return;
        }
        let mut one = |(pointer, marks, frame): (&RichPointer, &Marks, &&'a [u8])| {
            let from = marks.view as usize;
            let to = frame.len().min(from + pointer.length() as usize);
            look(frame.get(from..to).unwrap_or_default());
        };
        let all = c.pointers.iter().zip(&c.marks).zip(&self.frames);
        let all = all.map(|((pointer, marks), frame)| (pointer, marks, frame)).take(c.len);
        if c.live == mask_of(c.len) {
            all.for_each(one);
        } else {
            for (l, lane) in all.enumerate() {
                if c.live >> l & 1 == 1 {
                    one(lane);
                }
            }
        }
    }

    /// The blocks in the lanes of `mask` as they cross a border, in order.
    #[inline]
    pub fn entries(&self, mask: LaneMask) -> impl Iterator<Item = Entry> + '_ {
        lanes(mask).map(|l| self.columns.entry(l))
    }

    /// The columns, if all lanes in use live: rich pointers, context lanes and marks.
    #[inline]
    #[must_use]
    pub fn dense(&self) -> Option<(&[RichPointer], &[BlockMetadata], &[Marks])> {
        let Columns { len, pointers, context, marks, .. } = &*self.columns;
        let all = self.columns.live == mask_of(*len);
        all.then_some((pointers.get(..*len)?, context.get(..*len)?, marks.get(..*len)?))
    }

    /// Returns the view of a statistics filter.
    #[must_use]
    pub fn tags(&self) -> Tags<'_> {
        let c = &*self.columns;
        Tags { pointers: &c.pointers[..c.len], context: &c.context[..c.len], live: c.live }
    }

    /// From now on each lane has its frame beside it.
    #[inline]
    fn find_frames(&mut self) {
        if let Some(near) = self.near.take() {
            self.known.column = None;
            let lanes = self.columns.pointers.iter().zip(&self.columns.marks);
            let frames = lanes.map(move |(pointer, marks)| near.frame(pointer, marks));
            self.frames.extend(frames.take(self.columns.len));
        }
    }

    /// The block in this lane and its number, which a per-block filter looks at now.
    #[inline]
    pub(super) fn look_at(&mut self, l: Lane) -> (Block<'a>, u32) {
        self.at = l as u8;
        (self.block(l), self.columns.order[l])
    }

    /// Moves the blocks in these lanes to the last lanes there are; answers which those are.
    pub(super) fn move_up(&mut self, mut mask: LaneMask) -> LaneMask {
        let from = LANES - mask.count_ones() as usize;
        self.open(LANES);
        for to in (from..LANES).rev() {
            let Some(l) = mask.checked_ilog2() else { break };
            mask &= !(1 << l);
            let (block, order) = (self.block(l as Lane), self.columns.order[l as Lane]);
            self.put(to, block, order);
        }
        !mask_of(from)
    }

    /// Takes lanes into use, so that there are at least this many.
    fn open(&mut self, len: usize) {
        if len > self.columns.len {
            self.find_frames();
            self.columns.len = len;
            self.frames.resize(len, &[]);
        }
    }

    /// Puts a block caused by the block with this number into a lane.
    #[inline]
    pub(super) fn put(&mut self, l: Lane, block: Block<'a>, order: u32) {
        self.open(l + 1);
        self.columns.order[l] = order;
        self.set(l, block);
    }

    /// The lane that a per-block filter looked at last.
    #[must_use]
    pub fn at(&self) -> Lane {
        usize::from(self.at)
    }

    /// Blocks and viewed bytes in the lanes of `mask`; remembered for the next time.
    #[inline]
    pub fn amount(&mut self, mask: LaneMask) -> Amount {
        let amount = self.amount_in(mask);
        self.known.bytes = Some((mask, amount.bytes));
        amount
    }

    /// Blocks and viewed bytes in the lanes of `mask`.
    #[inline]
    #[must_use]
    pub fn amount_in(&self, mask: LaneMask) -> Amount {
        let bytes = match self.known.bytes {
            Some((known, bytes)) if known == mask => bytes,
            _ => lanes(mask).map(|l| u64::from(self.columns.pointers[l].length())).sum(),
        };
        Amount { blocks: u64::from(mask.count_ones()), bytes }
    }

    /// A copy for a sibling branch: 90 bytes a lane.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let Self { columns, frames, near, known, at } = self;
        let (columns, frames) = (columns.clone(), frames.clone());
        Self { columns, frames, near: *near, known: *known, at: *at }
    }
}

/// A room with these columns and the memory of these frames.
fn emptied(columns: Box<Columns>, mut frames: Vec<&[u8]>) -> Room {
    frames.clear();
    // No slice is left in it, so this only changes the lifetime; the allocation stays.
    let frames = frames.into_iter().map(|_| -> &'static [u8] { Default::default() }).collect();
    Room { columns, frames }
}

/// View of a statistics filter: rich pointers and metadata, no bytes.
#[derive(Clone, Copy, Debug)]
pub struct Tags<'b> {
    /// The rich pointers, live or not.
    pub pointers: &'b [RichPointer],
    /// The context lanes beside them.
    pub context: &'b [BlockMetadata],
    /// Mask of live lanes.
    pub live: LaneMask,
}

impl Tags<'_> {
    /// The live blocks, in order.
    pub fn blocks(&self) -> impl Iterator<Item = (RichPointer, BlockMetadata)> + '_ {
        lanes(self.live).filter_map(|l| Some((*self.pointers.get(l)?, *self.context.get(l)?)))
    }
}
