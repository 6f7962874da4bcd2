//! The side of a ring of blocks that writes.
//!
//! What a block costs is decided here: one comparison says that it fits, that readers need not be
//! looked at, that the lap does not end and that nothing is due ([`Writer::limit`]); then two words
//! of header and the copy.

use super::data::Data;
use super::walk::block_max;
use crate::cursor::{Producer, Store};
use crate::{Fault, Policy, Put, Taken, foreign};
use abi::ring::RecordHeader;
use abi::{DbufId, Extent};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Bytes of a cache line, the unit that processors exchange.
const LINE: u64 = 64;
/// Spacing of blocks from which on stores are batched by line. Below it the reader touches nearly
/// every cache line of the blocks anyway, so batching gains nothing.
const APART: u64 = 8 * LINE;

/// The one writer of a ring of blocks.
#[derive(Debug)]
pub struct Writer {
    /// A record that ends here or before fits where the head is: it ends in this lap, readers need
    /// nothing there, it is no longer than half the ring, and it does not go over `stop`. 0 where
    /// the ring overwrites: there no block is written like this.
    limit: u64,
    /// The same without `stop`.
    far: u64,
    data: Data,
    side: Producer,
    /// Position at which the user of the writer wants control.
    stop: u64,
    /// So much is always left.
    reserve: u64,
    /// Another writer goes on.
    is_away: bool,
    id: DbufId,
    /// Buffer for a reservation in a ring that overwrites (D5).
    staging: Vec<u8>,
    /// The head and the number of blocks when they were last shown.
    shown: (u64, u64),
    /// The head when room was last given out: somebody may be writing there.
    lent: u64,
}

impl Writer {
    pub(crate) fn new(store: Arc<Store>, id: DbufId) -> Self {
        Self::with(Producer::new(store), id)
    }

    /// The writer of a segment in which a ring goes on that another writer began.
    pub(crate) fn going_on(store: Arc<Store>, id: DbufId, head: u64, put: Put) -> Self {
        Self::with(Producer::going_on(store, head, put), id)
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
            far: 0,
            data,
            side,
            stop: u64::MAX,
            reserve: 0,
            is_away: false,
            id,
            staging,
            shown: (0, 0),
            lent: u64::MAX,
        }
    }

    /// The position behind the last block that was put.
    #[inline]
    pub(crate) const fn head(&self) -> u64 {
        self.side.head
    }

    /// Returns the number of blocks put.
    #[inline]
    pub(crate) const fn blocks(&self) -> u64 {
        self.side.put.blocks
    }

    /// Returns true if another writer has taken the ring over.
    pub(crate) const fn is_away(&self) -> bool {
        self.is_away
    }

    /// Our side of the ring, for who waits on it.
    pub(crate) const fn side(&mut self) -> &mut Producer {
        &mut self.side
    }

    /// Always leaves room for the record of a switch, so that a ring that is full can go on
    /// elsewhere.
    pub(crate) const fn keep_room_to_switch(&mut self) {
        self.reserve = RecordHeader::SIZE as u64;
    }

    /// Returns true if a block of this length begins a new lap.
    pub(crate) fn wraps(&self, length: usize) -> bool {
        let left = self.data.left(self.side.head);
        left == self.data.capacity() || RecordHeader::spans(length) > left
    }

    /// The position at which a segment would begin that begins now.
    pub(crate) const fn next_start(&self) -> u64 {
        self.side.head + RecordHeader::SIZE as u64
    }

    /// Says that the ring goes on in the segment of this number, which is in `store`, and goes on
    /// there.
    pub(crate) fn switch(&mut self, number: u64, store: Arc<Store>) {
        self.mark(RecordHeader { length: 0, kind: RecordHeader::SWITCH, sequence: number });
        self.data = Data::new(store.clone());
        self.side.go_on_in(store);
        (self.far, self.limit) = (0, 0);
        if self.side.policy == Policy::Overwrite {
            self.staging.resize(self.block_max(), 0);
        }
    }

    /// Says that the ring goes on in another one of a process of its own, and goes on nowhere.
    pub(crate) fn switch_away(&mut self, number: u64) {
        self.mark(RecordHeader { length: 0, kind: RecordHeader::SWITCH, sequence: number });
        self.side.leave_segment();
        (self.far, self.limit, self.is_away) = (0, 0, true);
    }

    /// Goes on with another capacity in the same memory. `None`: there is not so much.
    pub(crate) fn cut(&mut self, capacity: u64) -> Option<()> {
        let before = self.data.capacity();
        self.data.cut(capacity)?;
        let after = self.data.capacity();
        // The record is still at its place by the old capacity.
        self.data.cut(before)?;
        self.mark(RecordHeader { length: 0, kind: RecordHeader::CUT, sequence: after });
        self.data.cut(after)?;
        self.side.cut(after);
        (self.far, self.limit) = (0, 0);
        Some(())
    }

    /// Puts a record without content where the head is.
    fn mark(&mut self, record: RecordHeader) {
        let end = self.next_start();
        if self.side.policy == Policy::Overwrite {
            self.side.begin(end);
        }
        self.data.put_header(self.side.head, record.words());
        self.side.head = end;
    }

    /// Blocks that would go over this position are not put by [`Writer::put`].
    #[inline]
    pub(crate) fn stop_at(&mut self, position: u64) {
        self.stop = position;
        self.limit = self.far.min(position);
    }

    /// The id by which rich pointers name this ring.
    #[must_use]
    pub const fn id(&self) -> DbufId {
        self.id
    }

    /// The longest block that this ring takes: half of it, so that a block fits wherever the head
    /// is.
    #[inline]
    #[must_use]
    pub fn block_max(&self) -> usize {
        block_max(self.data.capacity())
    }

    /// Puts a copy of a block, if that needs no look at anybody. The same as [`Writer::write`], in
    /// as few instructions as there can be.
    // A call with its registers saved costs as much as the copy of 64 bytes (`bench pipe`).
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
        // SAFETY: the range ends before `limit`: in this lap, between head and what readers still
        // need (D2); no reader looks at it (D3), and the one writer is borrowed.
        let room = unsafe { self.data.bytes_mut(head + RecordHeader::SIZE as u64, block.len()) };
        foreign::copy(block, room);
        self.side.head = end;
        self.side.put.blocks += 1;
        self.side.put.bytes += block.len() as u64;
        true
    }

    /// Opens room for a block of up to `length` bytes. `None`: the ring is full; a ring that blocks
    /// will have room when readers release, one that drops has counted the block as dropped.
    #[inline]
    pub fn reserve(&mut self, length: usize) -> Result<Option<Reservation<'_>>, Fault> {
        self.lent = self.side.head;
        match self.fits(length) {
            Some(length) => Ok(Some(Reservation { writer: self, pad: 0, length })),
            None => self.look_and_reserve(length),
        }
    }

    /// The length, if such a block fits where the head is, as far as is known without looking at
    /// anybody.
    #[inline]
    pub(crate) fn fits(&self, length: usize) -> Option<u32> {
        let short = u32::try_from(length).ok()?;
        (self.side.head + RecordHeader::span(short) <= self.limit).then_some(short)
    }

    #[cold]
    fn look_and_reserve(&mut self, length: usize) -> Result<Option<Reservation<'_>>, Fault> {
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
        self.far = self.limit(pad, room);
        self.limit = self.far.min(self.stop);
        Ok(Some(Reservation { writer: self, pad, length }))
    }

    /// Returns the position up to which blocks fit without another look, given this much room.
    fn limit(&self, pad: u64, room: u64) -> u64 {
        // The lap ends with the padding, which is not written yet.
        if pad > 0 || self.side.policy == Policy::Overwrite {
            return 0;
        }
        let (head, capacity) = (self.side.head, self.data.capacity());
        let longest = (capacity / 2).min(RecordHeader::spans(abi::BLOCK_MAX));
        (head + self.data.left(head)).min(head + room).min(head + longest)
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
        let (head, blocks) = (self.side.head, self.side.put.blocks);
        let (before, had) = std::mem::replace(&mut self.shown, (head, blocks));
        if let Some(span) = (head - before).checked_div(blocks - had)
            && span >= APART
            && self.lent != head
        {
            self.take_back(span, blocks - had);
        }
    }

    /// Takes the lines on which the headers of the next blocks will lie back from the readers, if
    /// they come as far apart as those before.
    ///
    /// Who looks at the first word of each block takes one line of many to its processor. A store
    /// to such a line waits until it is back, stores are done in order, and so the copies of whole
    /// blocks wait with it, once for each block. Stores to such lines alone wait together. (A
    /// prefetch for writing does not: `bench peek`, two cores.)
    fn take_back(&self, span: u64, blocks: u64) {
        let mut at = self.side.head;
        for _ in 0..blocks {
            // Up to `far` there is room, where nobody looks (D3).
            if at + LINE > self.far {
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
        self.side.taken(reader)
    }

    /// Returns the positions that must be free for a block of this length at the present head.
    #[inline]
    pub(crate) fn needs(&self, length: usize) -> Result<u64, Fault> {
        let limit = self.block_max();
        match u32::try_from(length) {
            Ok(short) if length <= limit => Ok(self.need(short).1 + self.reserve),
            _ => Err(Fault::TooLong { length, limit }),
        }
    }

    /// Returns the bytes of padding before a block of this length, and all bytes that it needs.
    #[inline]
    fn need(&self, length: u32) -> (u64, u64) {
        let (left, span) = (self.data.left(self.side.head), RecordHeader::span(length));
        let pad = if span > left { left } else { 0 };
        (pad, pad + span)
    }

    /// Writes the headers of the pad and of the block, copies the block in where it was staged, and
    /// moves the head.
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

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.is_away {
            self.side.close();
        }
    }
}

/// Room for one block. Dropped without [`Reservation::commit`]: nothing was written.
#[must_use]
pub struct Reservation<'a> {
    writer: &'a mut Writer,
    /// Bytes of padding before it.
    pad: u64,
    length: u32,
}

impl Reservation<'_> {
    /// Puts the first `used` bytes into the ring as one block, and answers their place.
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
        // SAFETY: the bytes lie in the ring (`reserve` found the room), between head and what
        // readers still need (D2): no reader looks at them (D3), and the one writer is borrowed.
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
        // SAFETY: as in `deref`; and the one writer is borrowed for this slice alone.
        unsafe { self.writer.data.bytes_mut(position, length) }
    }
}

impl fmt::Debug for Reservation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} bytes)", self.length)
    }
}
