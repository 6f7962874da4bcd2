//! A ring of slots of equal size, for packets and samples, and for devices that write into slots
//! directly. [SL §5.2, §5.5: device-formatted rings], FEATURES D11
//!
//! ```text
//! page of control words | lengths: one word per slot | slot 0 | slot 1 | slot 2 | …
//! ```
//!
//! Blocks have no headers: every slot begins at a multiple of its size, so a device can write it
//! and a reader can access any block directly. A table in front of the slots holds the length of
//! each block. A position counts slots, and therefore blocks: a lapped reader derives its exact
//! loss from positions, and can skip directly to the newest block. The price is the unused space
//! after short blocks. The position in a rich pointer counts bytes, as in all dbufs: a slot begins
//! at its number times its size.
//!
//! Policies, readers and calls are the same as in [`dbuf`](super), and both kinds of ring pass the
//! same tests (`tests/forms`).
//!
//! `&[u8]` is sound here (rings that block or drop new, in one process) by D1 to D5 of
//! [`dbuf`](super). In D1, the writer's words are the control words, the table and the slots. A
//! slot's table word is written before the slot is published, and a reader that does not trust the
//! writer copies the word once and checks the copy.

use crate::atomic::Ordering;
use crate::cursor::{DATA_OFFSET_WORDS, ReaderCursor, RingMemory, WriterCursor};
use crate::dbuf::reserve::{BlockLayout, RingWriter};
use crate::{OverflowPolicy, foreign_memory};
use abi::ring::PAGE_SIZE;
use abi::{BLOCK_LENGTH_MAX, DbufId, Extent};
use std::sync::Arc;

mod readers;
pub mod stream;

pub use readers::{ForeignSlotReader, SlotReader};

/// Dimensions and policy of a ring of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotConfig {
    /// Id by which rich pointers refer to the ring.
    pub id: DbufId,
    /// Slot size in bytes, which is also the maximum block length. Rounded up to a power of two, at
    /// least 64.
    pub slot: usize,
    /// Number of slots. Rounded up to a power of two such that all slots together fill at least a
    /// page.
    pub slots: usize,
    /// Policy that applies when the ring is full.
    pub policy: OverflowPolicy,
    /// Number of readers.
    pub readers: usize,
}

impl SlotConfig {
    /// Returns the default configuration, for packets: a blocking ring of 512 slots of 2 KB with
    /// one reader.
    #[must_use]
    pub const fn new(id: DbufId) -> Self {
        Self { id, slot: 2048, slots: 512, policy: OverflowPolicy::Block, readers: 1 }
    }

    pub(crate) fn slot_layout(&self) -> SlotLayout {
        let slot =
            self.slot.clamp(SlotLayout::SLOT_SIZE_MIN, BLOCK_LENGTH_MAX + 1).next_power_of_two();
        let slots = self.slots.max(PAGE_SIZE / slot).max(1).next_power_of_two();
        SlotLayout { slot, slots }
    }
}

/// The layout of the slots and their length table in the writer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotLayout {
    /// Slot size in bytes: a power of two, from 64 bytes to 1 MB.
    pub(crate) slot: usize,
    /// Number of slots: a power of two such that all slots together fill at least a page.
    pub(crate) slots: usize,
}

impl SlotLayout {
    /// Minimum slot size in bytes, which ensures that no cache line contains bytes of two slots.
    pub(crate) const SLOT_SIZE_MIN: usize = 64;

    /// Returns the size of all slots in bytes.
    pub(crate) const fn slots_size(self) -> usize {
        self.slot * self.slots
    }

    /// Returns the size of the length table in bytes, padded to a page. The slots begin after the
    /// table.
    pub(crate) const fn table_size(self) -> usize {
        (self.slots * 8).next_multiple_of(PAGE_SIZE)
    }

    /// Returns the index of the slot for a position.
    #[expect(clippy::cast_possible_truncation, reason = "less than the number of slots")]
    const fn slot_index(self, position: u64) -> usize {
        (position & (self.slots as u64 - 1)) as usize
    }

    /// Returns the index of the table word, in the writer's memory, that holds the length of the
    /// block at a position.
    const fn length_word_index(self, position: u64) -> usize {
        DATA_OFFSET_WORDS + self.slot_index(position)
    }

    /// Returns the byte offset of the slot for a position in the writer's memory.
    const fn slot_offset(self, position: u64) -> usize {
        DATA_OFFSET_WORDS * 8
            + self.table_size()
            + (self.slot_index(position) << self.slot.trailing_zeros())
    }

    /// Returns the extent, in bytes of the dbuf, of the block of `length` bytes in the slot at
    /// `position`.
    fn block_extent(self, position: u64, length: usize) -> Extent {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Extent::new(position.wrapping_mul(self.slot as u64), length)
    }
}

/// Creates a ring of slots for threads of this process.
#[must_use]
pub fn ring(config: &SlotConfig) -> (SlotWriter, Vec<SlotReader>) {
    let shape = config.slot_layout();
    let words = (shape.table_size() + shape.slots_size()) / 8;
    let store = RingMemory::heap(words, shape.slots as u64, config.policy, config.readers);
    let reader = |index| SlotReader::new(ReaderCursor::new(store.clone(), index), shape);
    let readers = (0..config.readers).map(reader).collect();
    (SlotWriter::new(store, shape, config.id), readers)
}

/// The only writer of a ring of slots.
pub type SlotWriter = RingWriter<SlotLayout>;

impl SlotWriter {
    pub(crate) fn new(store: Arc<RingMemory>, shape: SlotLayout, id: DbufId) -> Self {
        Self::with_layout(WriterCursor::new(store), shape, id)
    }

    /// Finishes the block in the slot at the head: stores the block's length in the table, counts
    /// the block, and advances the head.
    #[inline]
    fn finish_block(&mut self, length: usize) {
        let word = self.side.store.writer.word(self.layout.length_word_index(self.side.head));
        word.store(length as u64, Ordering::Relaxed);
        self.side.head += 1;
        self.side.counts.blocks += 1;
        self.side.counts.bytes += length as u64;
    }
}

impl BlockLayout for SlotLayout {
    #[inline]
    fn block_length_max(&self) -> usize {
        self.slot.min(BLOCK_LENGTH_MAX)
    }

    fn needed_room(&self, _head: u64, _length: u32) -> (u64, u64) {
        (0, 1)
    }

    #[inline]
    fn fitting_length(writer: &SlotWriter, length: usize) -> Option<u32> {
        let fits = writer.side.head < writer.limit && length <= writer.block_length_max();
        u32::try_from(length).ok().filter(|_| fits)
    }

    fn set_limit(writer: &mut SlotWriter, _pad: u64, room: u64) {
        if writer.side.policy != OverflowPolicy::Overwrite {
            writer.limit = writer.side.head + room;
        }
    }

    #[inline]
    fn try_put(writer: &mut SlotWriter, block: &[u8]) -> bool {
        if writer.fitting_length(block.len()).is_none() {
            return false;
        }
        let at = writer.layout.slot_offset(writer.side.head);
        // SAFETY: the slot of the head is in the ring and is free (D2, `limit`); no reader accesses
        // it (D3), and the only writer is borrowed.
        let room = unsafe { writer.side.store.writer.bytes_mut(at, block.len()) };
        foreign_memory::copy(block, room);
        writer.finish_block(block.len());
        true
    }

    #[inline]
    fn block_address(writer: &SlotWriter, _pad: u64) -> *mut u8 {
        let at = writer.layout.slot_offset(writer.side.head);
        writer.side.store.writer.address(at / 8).cast().as_ptr()
    }

    #[inline]
    fn commit(writer: &mut SlotWriter, _pad: u64, length: u32) -> Extent {
        let (position, shape, length) = (writer.side.head, writer.layout, length as usize);
        if writer.side.policy == OverflowPolicy::Overwrite {
            writer.side.announce_overwrite(position + 1);
            let block = writer.staging.get(..length).unwrap_or_default();
            let words = writer.side.store.writer.words();
            foreign_memory::copy_in(words, shape.slot_offset(position) / 8, block);
        }
        writer.finish_block(length);
        shape.block_extent(position, length)
    }
}

#[cfg(test)]
mod tests;
