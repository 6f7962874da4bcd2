//! A ring of slots of one size: what a device fills, and what packets and samples travel in.
//! [SL §5.2, §5.5: device-formatted rings], FEATURES D11
//!
//! ```text
//! page of control words | lengths: one word a slot | slot 0 | slot 1 | slot 2 | …
//! ```
//!
//! No header stands between the blocks: every slot begins at a multiple of its size, so a device
//! can write it and a reader finds any block without going through those before it. How long the
//! block in a slot is says a table beside them. A position counts slots, hence blocks: a reader
//! that was lapped knows to the block what it lost, and can go to the newest at once. The price is
//! the room that short blocks leave. The position in a rich pointer counts bytes, as everywhere: a
//! slot's is its number times its size.
//!
//! Policies, readers and calls are those of [`dbuf`](super), and one exam is taken by both forms
//! (`tests/forms.rs`).
//!
//! Why `&[u8]` is allowed here (rings that block or drop new, in one process): by D1 to D5 of
//! [`dbuf`](super), where the writer's words are the control words, the table and the slots. As
//! there, the table's word of a slot is written before the slot is shown, and a reader that does
//! not trust the writer copies it once and checks it.

use crate::atomic::Ordering;
use crate::cursor::{Consumer, DATA_WORDS, Producer, Store};
use crate::{Fault, Policy, Put, Taken, foreign};
use abi::ring::PAGE;
use abi::{BLOCK_MAX, DbufId, Extent};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

mod readers;
pub mod stream;

pub use readers::{Reader, Visitor};

/// The shape of a ring of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The id by which rich pointers name it.
    pub id: DbufId,
    /// Bytes of a slot, and so of the longest block; rounded up to a power of two, at least 64.
    pub slot: usize,
    /// Number of slots; rounded up to a power of two, and so that they fill a page.
    pub slots: usize,
    /// Policy when all slots are full.
    pub policy: Policy,
    /// Number of readers.
    pub readers: usize,
}

impl Config {
    /// A blocking ring of 512 slots of 2 KB, for packets, with one reader.
    #[must_use]
    pub const fn new(id: DbufId) -> Self {
        Self { id, slot: 2048, slots: 512, policy: Policy::Block, readers: 1 }
    }

    pub(crate) fn shape(&self) -> SlotShape {
        let slot = self.slot.clamp(SlotShape::SLOT_MIN, BLOCK_MAX + 1).next_power_of_two();
        let slots = self.slots.max(PAGE / slot).max(1).next_power_of_two();
        SlotShape { slot, slots }
    }
}

/// The layout of slots in the writer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotShape {
    /// Bytes of a slot: a power of two, from 64 to 1 MB.
    pub(crate) slot: usize,
    /// Number of slots: a power of two, together at least a page.
    pub(crate) slots: usize,
}

impl SlotShape {
    /// No cache line holds bytes of two slots.
    pub(crate) const SLOT_MIN: usize = 64;

    /// Bytes of all slots.
    pub(crate) const fn data(self) -> usize {
        self.slot * self.slots
    }

    /// Bytes of the table, which end where the slots begin: at a page.
    pub(crate) const fn table(self) -> usize {
        (self.slots * 8).next_multiple_of(PAGE)
    }

    /// The longest block.
    const fn block_max(self) -> usize {
        if self.slot < BLOCK_MAX { self.slot } else { BLOCK_MAX }
    }

    /// The number of the slot in which the block of this position lies.
    #[expect(clippy::cast_possible_truncation, reason = "less than the number of slots")]
    const fn index(self, position: u64) -> usize {
        (position & (self.slots as u64 - 1)) as usize
    }

    /// Returns the index of a slot's word in the table.
    const fn word(self, position: u64) -> usize {
        DATA_WORDS + self.index(position)
    }

    /// Returns the byte offset of a slot.
    const fn offset(self, position: u64) -> usize {
        DATA_WORDS * 8 + self.table() + (self.index(position) << self.slot.trailing_zeros())
    }

    /// The place of the block in a slot.
    fn place(self, position: u64, length: usize) -> Extent {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Extent::new(position.wrapping_mul(self.slot as u64), length)
    }
}

/// Makes a ring for threads of this process.
#[must_use]
pub fn ring(config: &Config) -> (Writer, Vec<Reader>) {
    let shape = config.shape();
    let words = (shape.table() + shape.data()) / 8;
    let store = Store::heap(words, shape.slots as u64, config.policy, config.readers);
    let reader = |index| Reader::new(Consumer::new(store.clone(), index), shape);
    let readers = (0..config.readers).map(reader).collect();
    (Writer::new(store, shape, config.id), readers)
}

/// The one writer of a ring of slots.
#[derive(Debug)]
pub struct Writer {
    /// Slots before this position are free, as far as was seen. 0 where the ring overwrites: there
    /// no block is written like this.
    limit: u64,
    side: Producer,
    shape: SlotShape,
    policy: Policy,
    id: DbufId,
    /// Buffer for a reservation in a ring that overwrites (D5).
    staging: Vec<u8>,
}

impl Writer {
    pub(crate) fn new(store: Arc<Store>, shape: SlotShape, id: DbufId) -> Self {
        let policy = store.policy;
        let staging = match policy {
            Policy::Overwrite => vec![0; shape.block_max()],
            Policy::Block | Policy::DropNew => Vec::new(),
        };
        Self { limit: 0, side: Producer::new(store), shape, policy, id, staging }
    }

    /// The id by which rich pointers name this ring.
    #[must_use]
    pub const fn id(&self) -> DbufId {
        self.id
    }

    /// The longest block: a slot.
    #[must_use]
    pub const fn block_max(&self) -> usize {
        self.shape.block_max()
    }

    /// Opens the next slot for a block of up to `length` bytes. `None`: the ring is full; a ring
    /// that blocks will have room when readers release, one that drops has counted the block as
    /// dropped.
    #[inline]
    pub fn reserve(&mut self, length: usize) -> Result<Option<Reservation<'_>>, Fault> {
        if self.side.head >= self.limit || length > self.block_max() {
            return self.look_and_reserve(length);
        }
        let at = self.shape.offset(self.side.head);
        Ok(Some(Reservation { writer: self, at, length }))
    }

    /// Returns true if a slot is known to be free.
    #[inline]
    const fn fits(&self) -> bool {
        self.side.head < self.limit
    }

    /// Puts a copy of a block, if that needs no look at anybody.
    #[inline]
    fn put(&mut self, block: &[u8]) -> bool {
        let head = self.side.head;
        if head >= self.limit || block.len() > self.block_max() {
            return false;
        }
        let at = self.shape.offset(head);
        // SAFETY: the slot of the head lies in the ring and is free (D2, `limit`); no reader looks
        // at it (D3), and the one writer is borrowed.
        let room = unsafe { self.side.store.writer.bytes_mut(at, block.len()) };
        foreign::copy(block, room);
        self.written(block.len());
        true
    }

    #[cold]
    fn look_and_reserve(&mut self, length: usize) -> Result<Option<Reservation<'_>>, Fault> {
        let limit = self.block_max();
        if length > limit {
            return Err(Fault::TooLong { length, limit });
        }
        let room = self.side.room(1)?;
        if self.side.abandoned() {
            return Err(Fault::Abandoned);
        }
        if room == 0 {
            if self.policy == Policy::DropNew {
                self.side.put.dropped += 1;
                self.side.put.dropped_bytes += length as u64;
            }
            return Ok(None);
        }
        if self.policy != Policy::Overwrite {
            self.limit = self.side.head + room;
        }
        let at = self.shape.offset(self.side.head);
        Ok(Some(Reservation { writer: self, at, length }))
    }

    /// Puts a copy of a block. `false`: the ring is full (see [`Writer::reserve`]).
    #[inline]
    pub fn write(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if self.put(block) {
            return Ok(true);
        }
        let Some(mut room) = self.reserve(block.len())? else { return Ok(false) };
        room.copy_from_slice(block);
        room.commit(block.len());
        Ok(true)
    }

    /// Shows the readers all blocks that were committed. Once per batch.
    pub fn publish(&mut self) {
        self.side.publish();
    }

    /// Stops waiting for a reader that does not keep its promise; it is told nothing and lapped.
    pub fn shut_out(&mut self, reader: usize) {
        self.side.shut_out(reader);
    }

    /// Readers that were evicted because they showed a position that they cannot have.
    #[must_use]
    pub const fn evicted(&self) -> u64 {
        self.side.evicted()
    }

    /// Returns the counts of this side.
    #[must_use]
    pub const fn count(&self) -> Put {
        self.side.put
    }

    /// Returns the counts that a reader has published, for the balance of the edge.
    #[must_use]
    pub fn taken(&self, reader: usize) -> Option<Taken> {
        self.side.store.taken(reader)
    }

    /// Copies the block in where it was staged, writes its length, and moves the head.
    #[inline]
    fn commit(&mut self, length: usize) -> Extent {
        let (position, shape) = (self.side.head, self.shape);
        if self.policy == Policy::Overwrite {
            self.side.begin(position + 1);
            let block = self.staging.get(..length).unwrap_or_default();
            let words = self.side.store.writer.words();
            foreign::copy_in(words, shape.offset(position) / 8, block);
        }
        self.written(length);
        shape.place(position, length)
    }

    /// Writes the length of the block of the head, and moves the head.
    #[inline]
    fn written(&mut self, length: usize) {
        let word = self.side.store.writer.word(self.shape.word(self.side.head));
        word.store(length as u64, Ordering::Relaxed);
        self.side.head += 1;
        self.side.put.blocks += 1;
        self.side.put.bytes += length as u64;
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.side.close();
    }
}

/// Room for one block. Dropped without [`Reservation::commit`]: nothing was written.
#[must_use]
pub struct Reservation<'a> {
    writer: &'a mut Writer,
    /// Offset of the slot in the writer's memory.
    at: usize,
    length: usize,
}

impl Reservation<'_> {
    /// Puts the first `used` bytes into the ring as one block, and answers their place.
    pub fn commit(self, used: usize) -> Extent {
        self.writer.commit(used.min(self.length))
    }
}

impl Deref for Reservation<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let writer = &*self.writer;
        if writer.policy == Policy::Overwrite {
            return writer.staging.get(..self.length).unwrap_or_default();
        }
        // SAFETY: the slot of the head lies in the ring and is free (`reserve` found the room, D2):
        // no reader looks at it (D3), and the one writer is borrowed.
        unsafe { writer.side.store.writer.bytes(self.at, self.length) }
    }
}

impl DerefMut for Reservation<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        if self.writer.policy == Policy::Overwrite {
            return self.writer.staging.get_mut(..self.length).unwrap_or_default();
        }
        // SAFETY: as in `deref`; and the one writer is borrowed for this slice alone.
        unsafe { self.writer.side.store.writer.bytes_mut(self.at, self.length) }
    }
}

impl fmt::Debug for Reservation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests;
