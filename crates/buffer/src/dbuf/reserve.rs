//! The writer of a ring, generic over the kind of ring. It reserves room for a block, writes the
//! block, and commits and publishes it. [`BlockLayout`] determines the position of each block. The
//! invariants are those of `dbuf`.

use crate::cursor::WriterCursor;
use crate::{Fault, OverflowPolicy, ReaderCounts, WriterCounts};
use abi::{DbufId, Extent};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// The layout of blocks in one kind of ring. Internal to this crate.
pub trait BlockLayout: fmt::Debug + Sized {
    /// Returns the maximum length of a block in bytes.
    fn block_length_max(&self) -> usize;
    /// Returns two numbers of positions for a block of `length` bytes at position `head`: the
    /// padding that must precede the block, and the sum of the padding and the block itself.
    fn needed_room(&self, head: u64, length: u32) -> (u64, u64);
    /// Returns `length` as a `u32` if a block of this length, placed at the head, ends at or before
    /// `RingWriter::limit`; otherwise returns `None`. Does not load the readers' cursors.
    fn fitting_length(writer: &RingWriter<Self>, length: usize) -> Option<u32>;
    /// Sets `RingWriter::limit`, the end of the positions that the writer may fill without further
    /// checks. `pad` is the padding at the head, and `room` the free room, both in positions.
    fn set_limit(writer: &mut RingWriter<Self>, pad: u64, room: u64);
    /// Copies a block into the ring if the block ends at or before `RingWriter::limit`. Otherwise
    /// does nothing and returns false.
    fn try_put(writer: &mut RingWriter<Self>, block: &[u8]) -> bool;
    /// Returns the address of the first byte of a block that follows `pad` positions of padding at
    /// the head.
    fn block_address(writer: &RingWriter<Self>, pad: u64) -> *mut u8;
    /// Commits the block at the head, after `pad` positions of padding, and advances the head.
    /// Returns the extent of the block. In a ring that overwrites, first copies the block from the
    /// staging buffer into the ring.
    fn commit(writer: &mut RingWriter<Self>, pad: u64, length: u32) -> Extent;
    /// Records that the writer has reserved a block at the head and may be writing it. Does nothing
    /// by default.
    #[inline]
    fn record_reservation(&mut self, _head: u64) {}
    /// Prepares the memory after the head for the next blocks. Called after each publication. Does
    /// nothing by default.
    #[inline]
    fn prepare_after_publish(_writer: &mut RingWriter<Self>) {}
    /// Returns true if another writer has taken over the ring.
    fn is_handed_over(&self) -> bool {
        false
    }
}

/// The only writer of a ring. `L` is the layout of blocks in the ring.
#[derive(Debug)]
pub struct RingWriter<L: BlockLayout> {
    /// Position up to which the writer may fill the ring without further checks: a block that ends
    /// at or before it fits at the head, and overwrites no data that a reader needs. Always 0 in a
    /// ring that overwrites, so that every block takes the slow path.
    pub(super) limit: u64,
    pub(super) layout: L,
    pub(super) side: WriterCursor,
    /// Number of positions that the writer always keeps free for a switch record, so that a full
    /// ring can continue in another segment. 0 in a ring that cannot switch.
    pub(super) reserve: u64,
    id: DbufId,
    /// Buffer for the reserved block in a ring that overwrites (D5).
    pub(super) staging: Vec<u8>,
}

impl<L: BlockLayout> RingWriter<L> {
    pub(super) fn with_layout(side: WriterCursor, layout: L, id: DbufId) -> Self {
        let mut writer = Self { limit: 0, layout, side, reserve: 0, id, staging: Vec::new() };
        writer.resize_staging();
        writer
    }

    /// Sizes the staging buffer for the longest block if the ring overwrites.
    pub(super) fn resize_staging(&mut self) {
        if self.side.policy == OverflowPolicy::Overwrite {
            self.staging.resize(self.block_length_max(), 0);
        }
    }

    /// Returns the id by which rich pointers refer to this ring.
    #[must_use]
    pub const fn id(&self) -> DbufId {
        self.id
    }

    /// Returns the maximum length of a block in bytes: a slot, or half the ring, so that a block
    /// fits at any head position.
    #[inline]
    #[must_use]
    pub fn block_length_max(&self) -> usize {
        self.layout.block_length_max()
    }

    /// Copies a block into the ring if the block ends at or before `limit`. Otherwise does nothing
    /// and returns false. This is the fast path of [`RingWriter::write`], with a minimum of
    /// instructions.
    // Inlined: saving registers for a call would cost as much as copying 64 bytes (`bench pipe`).
    #[inline(always)]
    pub(crate) fn try_put(&mut self, block: &[u8]) -> bool {
        L::try_put(self, block)
    }

    /// Returns `length` as a `u32` if a block of this length, placed at the head, ends at or before
    /// `limit`; otherwise returns `None`. Does not load the readers' cursors.
    #[inline]
    pub(crate) fn fitting_length(&self, length: usize) -> Option<u32> {
        L::fitting_length(self, length)
    }

    /// Reserves room for a block of up to `length` bytes. Returns `None` if the ring is full; if
    /// the policy is to drop, the block is then counted as dropped. Fails with [`Fault::TooLong`]
    /// if the block exceeds [`RingWriter::block_length_max`], and with [`Fault::Abandoned`] if all
    /// readers have left.
    #[inline]
    pub fn reserve(&mut self, length: usize) -> Result<Option<Reservation<'_, L>>, Fault> {
        self.layout.record_reservation(self.side.head);
        match self.fitting_length(length) {
            Some(length) => Ok(Some(Reservation { writer: self, pad: 0, length })),
            None => self.reserve_checked(length),
        }
    }

    #[cold]
    fn reserve_checked(&mut self, length: usize) -> Result<Option<Reservation<'_, L>>, Fault> {
        let limit = self.block_length_max();
        let Some(length) = u32::try_from(length).ok().filter(|&l| l as usize <= limit) else {
            return Err(Fault::TooLong { length, limit });
        };
        let (pad, need) = self.layout.needed_room(self.side.head, length);
        let room = self.side.free_positions(need + self.reserve)?.saturating_sub(self.reserve);
        if self.side.is_abandoned() {
            return Err(Fault::Abandoned);
        }
        if room < need {
            if self.side.policy == OverflowPolicy::DropNew {
                self.side.counts.dropped += 1;
                self.side.counts.dropped_bytes += u64::from(length);
            }
            return Ok(None);
        }
        L::set_limit(self, pad, room);
        Ok(Some(Reservation { writer: self, pad, length }))
    }

    /// Copies a block into the ring. Returns false if the ring is full. Fails in the same cases as
    /// [`RingWriter::reserve`].
    #[inline]
    pub fn write(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if self.try_put(block) {
            return Ok(true);
        }
        let Some(mut room) = self.reserve(block.len())? else { return Ok(false) };
        room.copy_from_slice(block);
        room.commit(block.len());
        Ok(true)
    }

    /// Publishes all committed blocks to the readers. Call this once per batch.
    pub fn publish(&mut self) {
        self.side.publish();
        L::prepare_after_publish(self);
    }

    /// Excludes a slow reader from flow control: the writer no longer waits for the reader, and may
    /// lap it without notice.
    pub fn disconnect(&mut self, reader: usize) {
        self.side.disconnect(reader);
    }

    /// Returns the number of readers evicted for an impossible position.
    #[must_use]
    pub const fn evicted_readers(&self) -> u64 {
        self.side.evicted_readers()
    }

    /// Returns the counts of this writer: blocks and bytes put, blocks and bytes dropped.
    #[must_use]
    pub const fn counts(&self) -> WriterCounts {
        self.side.counts
    }

    /// Returns the counts that a reader has published, or `None` if there is no such reader.
    #[must_use]
    pub fn reader_counts(&self, reader: usize) -> Option<ReaderCounts> {
        self.side.reader_counts(reader)
    }
}

impl<L: BlockLayout> Drop for RingWriter<L> {
    fn drop(&mut self) {
        if !self.layout.is_handed_over() {
            self.side.close();
        }
    }
}

/// Reserved room for one block, as a byte slice. Dropping a reservation without
/// [`Reservation::commit`] writes nothing.
#[derive(Debug)]
#[must_use]
pub struct Reservation<'a, L: BlockLayout> {
    writer: &'a mut RingWriter<L>,
    /// Number of positions of padding that precede the reserved block.
    pad: u64,
    length: u32,
}

impl<L: BlockLayout> Reservation<'_, L> {
    /// Commits the first `used` bytes as one block. Returns the extent of the block.
    #[inline]
    pub fn commit(self, used: usize) -> Extent {
        let used = u32::try_from(used).unwrap_or(u32::MAX).min(self.length);
        L::commit(self.writer, self.pad, used)
    }
}

impl<L: BlockLayout> Deref for Reservation<'_, L> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        let length = self.length as usize;
        if self.writer.side.policy == OverflowPolicy::Overwrite {
            return self.writer.staging.get(..length).unwrap_or_default();
        }
        let first = L::block_address(self.writer, self.pad).cast_const();
        // SAFETY: the bytes are in the ring, in one piece (`reserve` found the room), between head
        // and the data that readers still need (D2): no reader accesses them (D3), and the only
        // writer is borrowed.
        unsafe { std::slice::from_raw_parts(first, length) }
    }
}

impl<L: BlockLayout> DerefMut for Reservation<'_, L> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let length = self.length as usize;
        if self.writer.side.policy == OverflowPolicy::Overwrite {
            return self.writer.staging.get_mut(..length).unwrap_or_default();
        }
        let first = L::block_address(self.writer, self.pad);
        // SAFETY: as in `deref`; and the only writer is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(first, length) }
    }
}
