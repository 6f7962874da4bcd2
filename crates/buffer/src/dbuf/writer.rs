//! The writing side of a ring of blocks.
//!
//! The cost of a block is determined here. One comparison ([`BlockWriter::limit`]) establishes that
//! it fits, that cursors need not be read, that the lap does not end and that no work is due; then
//! follow two header words and the copy.

use super::data::Data;
use super::walk::block_max;
use crate::cursor::{Producer, Store};
use crate::{Fault, Policy, Put, Taken, foreign};
use abi::ring::RecordHeader;
use abi::{DbufId, Extent};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Size of a cache line in bytes.
const LINE: u64 = 64;
/// Block spacing in bytes from which header lines are reclaimed in advance. Below this spacing the
/// reader touches nearly every cache line of the blocks anyway, so reclaiming gains nothing.
const RECLAIM_MIN: u64 = 8 * LINE;

/// The only writer of a ring of blocks.
#[derive(Debug)]
pub struct BlockWriter {
    /// Limit of the fast path: a record that ends here or before fits at the head. It ends in this
    /// lap, overwrites nothing that readers need, is at most half a ring long, and does not cross
    /// `stop`. Always 0 where the ring overwrites, which disables the fast path.
    limit: u64,
    /// The limit without `stop`.
    free_until: u64,
    data: Data,
    side: Producer,
    /// Position that [`BlockWriter::put`] does not cross, because the caller has work due there.
    stop: u64,
    /// Number of bytes that always stay free, for a switch record.
    reserve: u64,
    /// True once another writer has taken over the ring.
    is_away: bool,
    id: DbufId,
    /// Buffer of a reservation in a ring that overwrites (D5).
    staging: Vec<u8>,
    /// Head and number of blocks at the last publication.
    published: (u64, u64),
    /// Head at the last reservation, where the caller may still be writing.
    reserved_at: u64,
}

impl BlockWriter {
    pub(crate) fn new(store: Arc<Store>, id: DbufId) -> Self {
        Self::with(Producer::new(store), id)
    }

    /// Creates the writer of a segment that continues a ring begun by another writer.
    pub(crate) fn resume(store: Arc<Store>, id: DbufId, head: u64, put: Put) -> Self {
        Self::with(Producer::resume(store, head, put), id)
    }

    fn with(mut side: Producer, id: DbufId) -> Self {
        side.step = RecordHeader::SIZE as u64;
        let store = side.store.clone();
        let staging = match store.policy {
            Policy::Overwrite => vec![0; block_max(store.capacity)],
            Policy::Block | Policy::DropNew => Vec::new(),
        };
        let data = Data::new(store);
        Self {
            limit: 0,
            free_until: 0,
            data,
            side,
            stop: u64::MAX,
            reserve: 0,
            is_away: false,
            id,
            staging,
            published: (0, 0),
            reserved_at: u64::MAX,
        }
    }

    /// Returns the position after the last block put.
    #[inline]
    pub(crate) const fn head(&self) -> u64 {
        self.side.head
    }

    /// Returns the number of blocks put.
    #[inline]
    pub(crate) const fn blocks(&self) -> u64 {
        self.side.put.blocks
    }

    /// Returns true if another writer has taken over the ring.
    pub(crate) const fn is_away(&self) -> bool {
        self.is_away
    }

    /// Returns the cursor, for streams that add waiting to the ring.
    pub(crate) const fn side(&mut self) -> &mut Producer {
        &mut self.side
    }

    /// Reserves room for a switch record, so that a full ring can continue in another segment.
    pub(crate) const fn keep_room_to_switch(&mut self) {
        self.reserve = RecordHeader::SIZE as u64;
    }

    /// Returns true if a block of this length would begin a new lap.
    pub(crate) fn wraps(&self, length: usize) -> bool {
        let left = self.data.left(self.side.head);
        left == self.data.capacity() || RecordHeader::spans(length) > left
    }

    /// Returns the start position of a segment switched to now.
    pub(crate) const fn next_start(&self) -> u64 {
        self.side.head + RecordHeader::SIZE as u64
    }

    /// Writes a switch record that names segment `number`, and continues in that segment's memory.
    pub(crate) fn switch(&mut self, number: u64, store: Arc<Store>) {
        self.mark(RecordHeader { length: 0, kind: RecordHeader::SWITCH, sequence: number });
        self.data = Data::new(store.clone());
        self.side.continue_in(store);
        (self.free_until, self.limit) = (0, 0);
        if self.side.policy == Policy::Overwrite {
            self.staging.resize(self.block_max(), 0);
        }
    }

    /// Writes a switch record that sends the reader to segment `number` of another writer, then
    /// closes this writer's segment.
    pub(crate) fn switch_away(&mut self, number: u64) {
        self.mark(RecordHeader { length: 0, kind: RecordHeader::SWITCH, sequence: number });
        self.side.leave_segment();
        (self.free_until, self.limit, self.is_away) = (0, 0, true);
    }

    /// Writes a cut record and continues with another capacity in the same memory. Returns `None`
    /// if that capacity is invalid or exceeds the memory.
    pub(crate) fn cut(&mut self, capacity: u64) -> Option<()> {
        let before = self.data.capacity();
        self.data.cut(capacity)?;
        let after = self.data.capacity();
        // The record itself is placed by the old capacity.
        self.data.cut(before)?;
        self.mark(RecordHeader { length: 0, kind: RecordHeader::CUT, sequence: after });
        self.data.cut(after)?;
        self.side.cut(after);
        (self.free_until, self.limit) = (0, 0);
        Some(())
    }

    /// Puts a record without content at the head.
    fn mark(&mut self, record: RecordHeader) {
        let end = self.next_start();
        if self.side.policy == Policy::Overwrite {
            self.side.begin(end);
        }
        self.data.put_header(self.side.head, record.words());
        self.side.head = end;
    }

    /// Sets the position that [`BlockWriter::put`] does not cross.
    #[inline]
    pub(crate) fn stop_at(&mut self, position: u64) {
        self.stop = position;
        self.limit = self.free_until.min(position);
    }

    /// Returns the id by which rich pointers refer to this ring.
    #[must_use]
    pub const fn id(&self) -> DbufId {
        self.id
    }

    /// Returns the maximum length of a block in bytes: half the ring, so that a block fits at any
    /// head position.
    #[inline]
    #[must_use]
    pub fn block_max(&self) -> usize {
        block_max(self.data.capacity())
    }

    /// Puts a copy of a block if it fits below the limit. The fast path of [`BlockWriter::write`],
    /// with a minimum of instructions.
    // Not a call: saving its registers would cost as much as copying 64 bytes (`bench pipe`).
    #[inline(always)]
    pub(crate) fn put(&mut self, block: &[u8]) -> bool {
        let head = self.side.head;
        let end = head + RecordHeader::spans(block.len());
        if end > self.limit {
            return false;
        }
        // Less than half a ring, hence less than 32 bits.
        let words = RecordHeader::block_words(block.len(), self.side.put.blocks);
        self.data.put_header(head, words);
        // SAFETY: the range ends before `limit`: in this lap, between head and the data that
        // readers still need (D2); no reader accesses it (D3), and the only writer is borrowed.
        let room = unsafe { self.data.bytes_mut(head + RecordHeader::SIZE as u64, block.len()) };
        foreign::copy(block, room);
        self.side.head = end;
        self.side.put.blocks += 1;
        self.side.put.bytes += block.len() as u64;
        true
    }

    /// Opens room for a block of up to `length` bytes. Returns `None` if the ring is full; a ring
    /// that drops has then counted the block. Fails with [`Fault::TooLong`] or
    /// [`Fault::Abandoned`].
    #[inline]
    pub fn reserve(&mut self, length: usize) -> Result<Option<Reservation<'_>>, Fault> {
        self.reserved_at = self.side.head;
        match self.fits(length) {
            Some(length) => Ok(Some(Reservation { writer: self, pad: 0, length })),
            None => self.reserve_checked(length),
        }
    }

    /// Returns the length if such a block fits at the head below the limit; reads no cursors.
    #[inline]
    pub(crate) fn fits(&self, length: usize) -> Option<u32> {
        let short = u32::try_from(length).ok()?;
        (self.side.head + RecordHeader::span(short) <= self.limit).then_some(short)
    }

    #[cold]
    fn reserve_checked(&mut self, length: usize) -> Result<Option<Reservation<'_>>, Fault> {
        let limit = self.block_max();
        let Some(length) = u32::try_from(length).ok().filter(|&l| l as usize <= limit) else {
            return Err(Fault::TooLong { length, limit });
        };
        let (pad, need) = self.need(length);
        let room = self.side.room(need + self.reserve)?.saturating_sub(self.reserve);
        if self.side.abandoned() {
            return Err(Fault::Abandoned);
        }
        if room < need {
            if self.side.policy == Policy::DropNew {
                self.side.put.dropped += 1;
                self.side.put.dropped_bytes += u64::from(length);
            }
            return Ok(None);
        }
        self.free_until = self.limit(pad, room);
        self.limit = self.free_until.min(self.stop);
        Ok(Some(Reservation { writer: self, pad, length }))
    }

    /// Computes the limit of the fast path, given the padding due and the free room.
    fn limit(&self, pad: u64, room: u64) -> u64 {
        // The lap ends with the padding, which is not written yet.
        if pad > 0 || self.side.policy == Policy::Overwrite {
            return 0;
        }
        let (head, capacity) = (self.side.head, self.data.capacity());
        let longest = (capacity / 2).min(RecordHeader::spans(abi::BLOCK_MAX));
        (head + self.data.left(head)).min(head + room).min(head + longest)
    }

    /// Puts a copy of a block. Returns false if the ring is full (see [`BlockWriter::reserve`]).
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
        let (head, blocks) = (self.side.head, self.side.put.blocks);
        let (before, had) = std::mem::replace(&mut self.published, (head, blocks));
        if let Some(span) = (head - before).checked_div(blocks - had)
            && span >= RECLAIM_MIN
            && self.reserved_at != head
        {
            self.reclaim_lines(span, blocks - had);
        }
    }

    /// Reclaims the cache lines of the next headers from the readers' processors, assuming that the
    /// next blocks have the same spacing as the last ones.
    ///
    /// A reader that inspects the first word of each block moves one line per block into its cache.
    /// A store to such a line waits for it to come back, stores are performed in order, and so the
    /// copies of whole blocks stall with it, once per block. Stores to such lines alone overlap
    /// their waits. (A prefetch for writing does not: `bench peek`, two cores.)
    fn reclaim_lines(&self, span: u64, blocks: u64) {
        let mut at = self.side.head;
        for _ in 0..blocks {
            // Up to `free_until` the memory is free, and no reader accesses it (D3).
            if at + LINE > self.free_until {
                return;
            }
            self.data.put_header(at, [0; 2]);
            let first = at + RecordHeader::SIZE as u64;
            if first.is_multiple_of(LINE) {
                self.data.put_header(first, [0; 2]);
            }
            at += span;
        }
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

    /// Returns the number of positions that must be free for a block of this length at the current
    /// head. Fails with [`Fault::TooLong`] if it can never fit.
    #[inline]
    pub(crate) fn needs(&self, length: usize) -> Result<u64, Fault> {
        let limit = self.block_max();
        match u32::try_from(length) {
            Ok(short) if length <= limit => Ok(self.need(short).1 + self.reserve),
            _ => Err(Fault::TooLong { length, limit }),
        }
    }

    /// Returns the padding in front of a block of this length, and its total need, in bytes.
    #[inline]
    fn need(&self, length: u32) -> (u64, u64) {
        let (left, span) = (self.data.left(self.side.head), RecordHeader::span(length));
        let pad = if span > left { left } else { 0 };
        (pad, pad + span)
    }

    /// Writes the headers of the pad and of the block, copies a staged block into the ring, and
    /// advances the head.
    #[inline]
    fn commit(&mut self, pad: u64, length: u32) -> Extent {
        let start = self.side.head + pad;
        let end = start + RecordHeader::span(length);
        let bytes = start + RecordHeader::SIZE as u64;
        let lossy = self.side.policy == Policy::Overwrite;
        if lossy {
            self.side.begin(end);
        }
        if pad > 0 {
            let length = u32::try_from(pad - RecordHeader::SIZE as u64).unwrap_or(u32::MAX);
            let record = RecordHeader { length, kind: RecordHeader::PAD, sequence: 0 };
            self.data.put_header(self.side.head, record.words());
        }
        self.data
            .put_header(start, RecordHeader::block_words(length as usize, self.side.put.blocks));
        if lossy {
            self.data.copy_in(bytes, self.staging.get(..length as usize).unwrap_or_default());
            self.side.mark(start);
        }
        self.side.head = end;
        self.side.put.blocks += 1;
        self.side.put.bytes += u64::from(length);
        Extent::new(bytes, length)
    }
}

impl Drop for BlockWriter {
    fn drop(&mut self) {
        if !self.is_away {
            self.side.close();
        }
    }
}

/// Room for one block. A reservation dropped without [`Reservation::commit`] writes nothing.
#[derive(Debug)]
#[must_use]
pub struct Reservation<'a> {
    writer: &'a mut BlockWriter,
    /// Bytes of padding in front of the block.
    pad: u64,
    length: u32,
}

impl Reservation<'_> {
    /// Puts the first `used` bytes into the ring as one block. Returns its extent.
    #[inline]
    pub fn commit(self, used: usize) -> Extent {
        let used = u32::try_from(used).unwrap_or(u32::MAX).min(self.length);
        self.writer.commit(self.pad, used)
    }

    /// Returns the position of the block.
    #[inline]
    const fn position(&self) -> u64 {
        self.writer.side.head + self.pad + RecordHeader::SIZE as u64
    }
}

impl Deref for Reservation<'_> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        let writer = &*self.writer;
        if writer.side.policy == Policy::Overwrite {
            return writer.staging.get(..self.length as usize).unwrap_or_default();
        }
        // SAFETY: the bytes lie in the ring (`reserve` found the room), between head and the data
        // that readers still need (D2): no reader accesses them (D3), and the only writer is
        // borrowed.
        unsafe { writer.data.bytes(self.position(), self.length as usize) }
    }
}

impl DerefMut for Reservation<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let (position, length) = (self.position(), self.length as usize);
        if self.writer.side.policy == Policy::Overwrite {
            return self.writer.staging.get_mut(..length).unwrap_or_default();
        }
        // SAFETY: as in `deref`; and the only writer is borrowed mutably.
        unsafe { self.writer.data.bytes_mut(position, length) }
    }
}
