//! The writer's operations common to all kinds of ring: reserve room for a block, write it, commit
//! and publish it. The position of a block depends on the kind of ring ([`BlockLayout`]); the
//! invariants are those of `dbuf`.

use crate::cursor::Producer;
use crate::{Fault, Policy, Put, Taken};
use abi::{DbufId, Extent};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// The layout of blocks in one kind of ring; internal to this crate.
pub trait BlockLayout: fmt::Debug + Sized {
    /// Returns the maximum length of a block in bytes.
    fn block_max(&self) -> usize;
    /// Returns the padding before a block of this length at the head, and the length of padding and
    /// block together, both in positions.
    fn need(&self, head: u64, length: u32) -> (u64, u64);
    /// Returns the length if such a block fits at the head below the limit; reads no cursors.
    fn fits(writer: &RingWriter<Self>, length: usize) -> Option<u32>;
    /// Sets the limit of the fast path, given the padding at the head and the free room.
    fn set_limit(writer: &mut RingWriter<Self>, pad: u64, room: u64);
    /// Puts a copy of a block if it fits below the limit.
    fn put(writer: &mut RingWriter<Self>, block: &[u8]) -> bool;
    /// Returns the address of the first byte of a block that follows `pad` positions of padding at
    /// the head.
    fn address(writer: &RingWriter<Self>, pad: u64) -> *mut u8;
    /// Completes the block that follows `pad` positions of padding at the head, copies a staged
    /// block into the ring, and advances the head.
    fn commit(writer: &mut RingWriter<Self>, pad: u64, length: u32) -> Extent;
    /// Notes a reservation at the head.
    #[inline]
    fn reserved(&mut self, _head: u64) {}
    /// Prepares the memory beyond the head after a publication.
    #[inline]
    fn published(_writer: &mut RingWriter<Self>) {}
    /// Returns true if another writer has taken over the ring.
    fn is_away(&self) -> bool {
        false
    }
}

/// The only writer of a ring.
#[derive(Debug)]
pub struct RingWriter<L: BlockLayout> {
    /// Limit of the fast path: a block that ends here or before fits at the head, and overwrites
    /// nothing that readers need. Always 0 where the ring overwrites, which disables the fast path.
    pub(super) limit: u64,
    pub(super) layout: L,
    pub(super) side: Producer,
    /// Number of positions that always stay free, for a switch record.
    pub(super) reserve: u64,
    id: DbufId,
    /// Buffer of a reservation in a ring that overwrites (D5).
    pub(super) staging: Vec<u8>,
}

impl<L: BlockLayout> RingWriter<L> {
    pub(super) fn with(side: Producer, layout: L, id: DbufId) -> Self {
        let mut writer = Self { limit: 0, layout, side, reserve: 0, id, staging: Vec::new() };
        writer.resize_staging();
        writer
    }

    /// Makes room for the longest block in the buffer of a ring that overwrites.
    pub(super) fn resize_staging(&mut self) {
        if self.side.policy == Policy::Overwrite {
            self.staging.resize(self.block_max(), 0);
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
    pub fn block_max(&self) -> usize {
        self.layout.block_max()
    }

    /// Puts a copy of a block if it fits below the limit. The fast path of [`RingWriter::write`],
    /// with a minimum of instructions.
    // Not a call: saving its registers would cost as much as copying 64 bytes (`bench pipe`).
    #[inline(always)]
    pub(crate) fn put(&mut self, block: &[u8]) -> bool {
        L::put(self, block)
    }

    /// Returns the length if such a block fits at the head below the limit; reads no cursors.
    #[inline]
    pub(crate) fn fits(&self, length: usize) -> Option<u32> {
        L::fits(self, length)
    }

    /// Opens room for a block of up to `length` bytes. Returns `None` if the ring is full; a ring
    /// that drops has then counted the block. Fails with [`Fault::TooLong`] or
    /// [`Fault::Abandoned`].
    #[inline]
    pub fn reserve(&mut self, length: usize) -> Result<Option<Reservation<'_, L>>, Fault> {
        self.layout.reserved(self.side.head);
        match self.fits(length) {
            Some(length) => Ok(Some(Reservation { writer: self, pad: 0, length })),
            None => self.reserve_checked(length),
        }
    }

    #[cold]
    fn reserve_checked(&mut self, length: usize) -> Result<Option<Reservation<'_, L>>, Fault> {
        let limit = self.block_max();
        let Some(length) = u32::try_from(length).ok().filter(|&l| l as usize <= limit) else {
            return Err(Fault::TooLong { length, limit });
        };
        let (pad, need) = self.layout.need(self.side.head, length);
        let room = self.side.room(need + self.reserve)?.saturating_sub(self.reserve);
        if self.side.is_abandoned() {
            return Err(Fault::Abandoned);
        }
        if room < need {
            if self.side.policy == Policy::DropNew {
                self.side.put.dropped += 1;
                self.side.put.dropped_bytes += u64::from(length);
            }
            return Ok(None);
        }
        L::set_limit(self, pad, room);
        Ok(Some(Reservation { writer: self, pad, length }))
    }

    /// Puts a copy of a block. Returns false if the ring is full (see [`RingWriter::reserve`]).
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
        L::published(self);
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
        self.side.taken(reader)
    }
}

impl<L: BlockLayout> Drop for RingWriter<L> {
    fn drop(&mut self) {
        if !self.layout.is_away() {
            self.side.close();
        }
    }
}

/// Room for one block. A reservation dropped without [`Reservation::commit`] writes nothing.
#[derive(Debug)]
#[must_use]
pub struct Reservation<'a, L: BlockLayout> {
    writer: &'a mut RingWriter<L>,
    /// Positions of padding before the block.
    pad: u64,
    length: u32,
}

impl<L: BlockLayout> Reservation<'_, L> {
    /// Puts the first `used` bytes into the ring as one block. Returns its extent.
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
        if self.writer.side.policy == Policy::Overwrite {
            return self.writer.staging.get(..length).unwrap_or_default();
        }
        let first = L::address(self.writer, self.pad).cast_const();
        // SAFETY: the bytes lie in the ring, in one piece (`reserve` found the room), between head
        // and the data that readers still need (D2): no reader accesses them (D3), and the only
        // writer is borrowed.
        unsafe { std::slice::from_raw_parts(first, length) }
    }
}

impl<L: BlockLayout> DerefMut for Reservation<'_, L> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let length = self.length as usize;
        if self.writer.side.policy == Policy::Overwrite {
            return self.writer.staging.get_mut(..length).unwrap_or_default();
        }
        let first = L::address(self.writer, self.pad);
        // SAFETY: as in `deref`; and the only writer is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(first, length) }
    }
}
