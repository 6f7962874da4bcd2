//! A ring of slots of equal size, for packets and samples, and for devices that write into slots
//! directly. [SL §5.2, §5.5: device-formatted rings], FEATURES D11
//!
//! ```text
//! page of control words | lengths: one word a slot | slot 0 | slot 1 | slot 2 | …
//! ```
//!
//! Blocks have no headers: every slot begins at a multiple of its size, so a device can write it
//! and a reader can access any block directly. A table in front of the slots holds the length of
//! each block. A position counts slots, hence blocks: a lapped reader derives its exact loss, and
//! can skip to the newest block at once. The price is the unused space of short blocks. The
//! position in a rich pointer counts bytes, as everywhere: that of a slot is its number times its
//! size.
//!
//! Policies, readers and calls are those of [`dbuf`](super), and both kinds of ring pass the same
//! tests (`tests/forms`).
//!
//! `&[u8]` is sound here (rings that block or drop new, in one process) by D1 to D5 of
//! [`dbuf`](super), where the writer's words are the control words, the table and the slots. A
//! slot's table word is written before the slot is published, and a reader that does not trust the
//! writer copies it once and checks it.

use crate::atomic::Ordering;
use crate::cursor::{Consumer, DATA_WORDS, Producer, Store};
use crate::{Fault, Policy, Put, Taken, foreign};
use abi::ring::PAGE;
use abi::{BLOCK_MAX, DbufId, Extent};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

mod readers;
pub mod stream;

pub use readers::{SlotReader, SlotVisitor};

/// Dimensions and policy of a ring of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotConfig {
    /// Id by which rich pointers refer to the ring.
    pub id: DbufId,
    /// Slot size in bytes, and so the maximum block length; rounded up to a power of two, at least
    /// 64.
    pub slot: usize,
    /// Number of slots; rounded up to a power of two, and until all slots together fill a page.
    pub slots: usize,
    /// Policy of a full ring.
    pub policy: Policy,
    /// Number of readers.
    pub readers: usize,
}

impl SlotConfig {
    /// Returns the default configuration, for packets: a blocking ring of 512 slots of 2 KB with
    /// one reader.
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

/// Layout of the slots in the writer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotShape {
    /// Slot size in bytes: a power of two, from 64 to 1 MB.
    pub(crate) slot: usize,
    /// Number of slots: a power of two; all slots together fill at least a page.
    pub(crate) slots: usize,
}

impl SlotShape {
    /// Minimum slot size: no cache line holds bytes of two slots.
    pub(crate) const SLOT_MIN: usize = 64;

    /// Returns the size of all slots in bytes.
    pub(crate) const fn data(self) -> usize {
        self.slot * self.slots
    }

    /// Returns the size of the table in bytes, padded to a page, where the slots begin.
    pub(crate) const fn table(self) -> usize {
        (self.slots * 8).next_multiple_of(PAGE)
    }

    /// Returns the maximum length of a block in bytes.
    const fn block_max(self) -> usize {
        if self.slot < BLOCK_MAX { self.slot } else { BLOCK_MAX }
    }

    /// Returns the index of the slot of a position.
    #[expect(clippy::cast_possible_truncation, reason = "less than the number of slots")]
    const fn index(self, position: u64) -> usize {
        (position & (self.slots as u64 - 1)) as usize
    }

    /// Returns the word index of a slot's table entry in the writer's memory.
    const fn word(self, position: u64) -> usize {
        DATA_WORDS + self.index(position)
    }

    /// Returns the byte offset of a slot in the writer's memory.
    const fn offset(self, position: u64) -> usize {
        DATA_WORDS * 8 + self.table() + (self.index(position) << self.slot.trailing_zeros())
    }

    /// Returns the extent of the block in a slot.
    fn place(self, position: u64, length: usize) -> Extent {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Extent::new(position.wrapping_mul(self.slot as u64), length)
    }
}

/// Creates a ring for threads of this process.
#[must_use]
pub fn ring(config: &SlotConfig) -> (SlotWriter, Vec<SlotReader>) {
    let shape = config.shape();
    let words = (shape.table() + shape.data()) / 8;
    let store = Store::heap(words, shape.slots as u64, config.policy, config.readers);
    let reader = |index| SlotReader::new(Consumer::new(store.clone(), index), shape);
    let readers = (0..config.readers).map(reader).collect();
    (SlotWriter::new(store, shape, config.id), readers)
}

/// The only writer of a ring of slots.
#[derive(Debug)]
pub struct SlotWriter {
    /// Slots before this position are free, as of the last refresh. Always 0 in a ring that
    /// overwrites, which disables the fast path.
    limit: u64,
    side: Producer,
    shape: SlotShape,
    policy: Policy,
    id: DbufId,
    /// Buffer of a reservation in a ring that overwrites (D5).
    staging: Vec<u8>,
}

impl SlotWriter {
    pub(crate) fn new(store: Arc<Store>, shape: SlotShape, id: DbufId) -> Self {
        let policy = store.policy;
        let staging = match policy {
            Policy::Overwrite => vec![0; shape.block_max()],
            Policy::Block | Policy::DropNew => Vec::new(),
        };
        Self { limit: 0, side: Producer::new(store), shape, policy, id, staging }
    }

    /// Returns the id by which rich pointers refer to this ring.
    #[must_use]
    pub const fn id(&self) -> DbufId {
        self.id
    }

    /// Returns the maximum length of a block in bytes: a slot.
    #[must_use]
    pub const fn block_max(&self) -> usize {
        self.shape.block_max()
    }

    /// Reserves the next slot for a block of up to `length` bytes. Returns `None` if the ring is
    /// full; under `DropNew` the block is counted as dropped. Fails with [`Fault::TooLong`] or
    /// [`Fault::Abandoned`].
    #[inline]
    pub fn reserve(&mut self, length: usize) -> Result<Option<SlotReservation<'_>>, Fault> {
        if self.side.head >= self.limit || length > self.block_max() {
            return self.reserve_checked(length);
        }
        let at = self.shape.offset(self.side.head);
        Ok(Some(SlotReservation { writer: self, at, length }))
    }

    /// Returns true if a slot is known to be free.
    #[inline]
    const fn fits(&self) -> bool {
        self.side.head < self.limit
    }

    /// Puts a copy of a block if a slot is known to be free.
    #[inline]
    fn put(&mut self, block: &[u8]) -> bool {
        let head = self.side.head;
        if head >= self.limit || block.len() > self.block_max() {
            return false;
        }
        let at = self.shape.offset(head);
        // SAFETY: the slot of the head lies in the ring and is free (D2, `limit`); no reader
        // accesses it (D3), and the only writer is borrowed.
        let room = unsafe { self.side.store.writer.bytes_mut(at, block.len()) };
        foreign::copy(block, room);
        self.written(block.len());
        true
    }

    #[cold]
    fn reserve_checked(&mut self, length: usize) -> Result<Option<SlotReservation<'_>>, Fault> {
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
        Ok(Some(SlotReservation { writer: self, at, length }))
    }

    /// Puts a copy of a block. Returns false if the ring is full (see [`SlotWriter::reserve`]).
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

    /// Publishes all committed blocks to the readers. To be called once per batch.
    pub fn publish(&mut self) {
        self.side.publish();
    }

    /// Excludes a slow reader from flow control. It is not notified, and may be lapped.
    pub fn disconnect(&mut self, reader: usize) {
        self.side.disconnect(reader);
    }

    /// Returns the number of readers evicted for an impossible position.
    #[must_use]
    pub const fn evicted(&self) -> u64 {
        self.side.evicted()
    }

    /// Returns the counts of this writer: blocks and bytes put, blocks and bytes dropped.
    #[must_use]
    pub const fn count(&self) -> Put {
        self.side.put
    }

    /// Returns the counts that a reader has published, or `None` if there is no
    /// such reader.
    #[must_use]
    pub fn taken(&self, reader: usize) -> Option<Taken> {
        self.side.store.taken(reader)
    }

    /// Copies a staged block into its slot, writes its length, and advances the head.
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

    /// Writes the length of the block at the head, and advances the head.
    #[inline]
    fn written(&mut self, length: usize) {
        let word = self.side.store.writer.word(self.shape.word(self.side.head));
        word.store(length as u64, Ordering::Relaxed);
        self.side.head += 1;
        self.side.put.blocks += 1;
        self.side.put.bytes += length as u64;
    }
}

impl Drop for SlotWriter {
    fn drop(&mut self) {
        self.side.close();
    }
}

/// Room for one block. A reservation dropped without [`SlotReservation::commit`] writes nothing.
#[derive(Debug)]
#[must_use]
pub struct SlotReservation<'a> {
    writer: &'a mut SlotWriter,
    /// Offset of the slot in the writer's memory.
    at: usize,
    length: usize,
}

impl SlotReservation<'_> {
    /// Puts the first `used` bytes into the ring as one block. Returns its extent.
    pub fn commit(self, used: usize) -> Extent {
        self.writer.commit(used.min(self.length))
    }
}

impl Deref for SlotReservation<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let writer = &*self.writer;
        if writer.policy == Policy::Overwrite {
            return writer.staging.get(..self.length).unwrap_or_default();
        }
        // SAFETY: the slot of the head lies in the ring and is free (`reserve` found the room,
        // D2): no reader accesses it (D3), and the only writer is borrowed.
        unsafe { writer.side.store.writer.bytes(self.at, self.length) }
    }
}

impl DerefMut for SlotReservation<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        if self.writer.policy == Policy::Overwrite {
            return self.writer.staging.get_mut(..self.length).unwrap_or_default();
        }
        // SAFETY: as in `deref`; and the only writer is borrowed mutably.
        unsafe { self.writer.side.store.writer.bytes_mut(self.at, self.length) }
    }
}

#[cfg(test)]
mod tests;
