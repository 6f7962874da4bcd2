//! A ring of blocks of any length: what an IPC stream between spaces is made of. [SL §5.1, §5.2]
//!
//! One writer, several readers, each at its own pace. A block never wraps: where it would, a pad
//! record fills the end of the ring, so `peek` always gives one piece. Three policies: block (the
//! writer waits for the slowest reader), drop new, overwrite oldest. Deviation from the source:
//! `read` is not `peek` plus memcpy where the memory is foreign or lossy; it copies word by word
//! and looks at the lap again.
//!
//! Two kinds of reader. [`Reader`] lives in the writer's process: it trusts the writer and may
//! peek. [`Visitor`] attached to a ring of another process ([`crate::share`]): to it all bytes are
//! foreign, it only copies, and it takes nothing for granted that the ring says.
//!
//! Why `&[u8]` is allowed here (rings that block or drop new, in one process). Invariants, cited
//! below:
//! - D1 The words of a ring made by [`ring`] are written only by this crate: the writer's and the
//!   data by the one [`Writer`], each reader's by its one [`Reader`].
//! - D2 The writer writes data only between its head and the oldest cursor of all readers that have
//!   not left plus the capacity, and shows blocks (Release) when they are written.
//! - D3 A reader looks only at blocks that are shown (Acquire) and not yet behind its published
//!   cursor.
//! - D4 A reader publishes its cursor only in methods that take `&mut self` and in `drop`: so while
//!   a slice lives, the writer, who has not seen the cursor pass, does not write there (D2).
//! - D5 In a ring that overwrites nobody gets a slice of the ring: reservations are private memory
//!   that commit copies in, word by word, and readers copy out.

use crate::cursor::{Consumer, Producer, Store};
use crate::{Fault, Policy, Put, Taken, foreign};
use abi::ring::{PAGE, Record};
use abi::{DbufId, Place};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use walk::{Found, Walk, block_max, offset, put_header};

pub(crate) mod walk;

/// The shape of a ring of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The id by which rich pointers name it.
    pub id: DbufId,
    /// Bytes that it holds, headers included; rounded up to a power of two, at least a page.
    pub capacity: usize,
    /// What happens when it is full.
    pub policy: Policy,
    /// How many readers it has.
    pub readers: usize,
}

impl Config {
    /// A blocking ring of 1 MB with one reader: 512 KB to 1 MB is best on one processor
    /// (BASELINES).
    #[must_use]
    pub const fn new(id: DbufId) -> Self {
        Self { id, capacity: 1 << 20, policy: Policy::Block, readers: 1 }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.capacity.max(PAGE).next_power_of_two()
    }
}

/// Makes a ring for threads of this process.
#[must_use]
pub fn ring(config: &Config) -> (Writer, Vec<Reader>) {
    let bytes = config.bytes();
    let store = Store::heap(bytes / 8, bytes as u64, config.policy, config.readers);
    let reader = |index| Reader(Walk::new(Consumer::new(store.clone(), index)));
    let readers = (0..config.readers).map(reader).collect();
    (Writer::new(store, config.id), readers)
}

/// The one writer of a ring of blocks.
#[derive(Debug)]
pub struct Writer {
    side: Producer,
    /// The sequence number of the next block.
    sequence: u64,
    id: DbufId,
    /// The longest block.
    longest: usize,
    /// Records that end here or before fit where the head is: known without looking at readers.
    limit: u64,
    /// What a reservation is written into where the ring overwrites (D5).
    staging: Vec<u8>,
}

impl Writer {
    pub(crate) fn new(store: Arc<Store>, id: DbufId) -> Self {
        let staging = match store.policy {
            Policy::Overwrite => vec![0; block_max(&store)],
            Policy::Block | Policy::DropNew => Vec::new(),
        };
        let longest = block_max(&store);
        Self { side: Producer::new(store), sequence: 0, id, longest, limit: 0, staging }
    }

    /// The position behind the last block that was put.
    #[inline]
    pub(crate) const fn head(&self) -> u64 {
        self.side.head
    }

    /// Our side of the ring, for who waits on it.
    pub(crate) const fn side(&mut self) -> &mut Producer {
        &mut self.side
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
    pub const fn block_max(&self) -> usize {
        self.longest
    }

    /// Opens room for a block of up to `length` bytes. `None`: the ring is full; a ring that blocks
    /// will have room when readers release, one that drops has counted the block as dropped.
    #[inline]
    pub fn reserve(&mut self, length: usize) -> Result<Option<Reservation<'_>>, Fault> {
        match self.fits(length) {
            Some(length) => Ok(Some(self.reservation(0, length))),
            None => self.look_and_reserve(length),
        }
    }

    /// The length, if such a block fits where the head is, as far as is known without looking at
    /// readers.
    #[inline]
    pub(crate) fn fits(&self, length: usize) -> Option<u32> {
        let short = u32::try_from(length).ok().filter(|_| length <= self.longest)?;
        (self.side.head + Record::span(short) <= self.limit).then_some(short)
    }

    #[inline]
    fn reservation(&mut self, pad: u64, length: u32) -> Reservation<'_> {
        let at = offset(&self.side.store, self.side.head + pad) + Record::SIZE;
        Reservation { writer: self, at, pad, length }
    }

    #[cold]
    fn look_and_reserve(&mut self, length: usize) -> Result<Option<Reservation<'_>>, Fault> {
        let limit = self.block_max();
        let Some(length) = u32::try_from(length).ok().filter(|&l| l as usize <= limit) else {
            return Err(Fault::TooLong { length, limit });
        };
        let (pad, need) = self.need(length);
        let room = self.side.room(need)?;
        if self.side.abandoned() {
            return Err(Fault::Abandoned);
        }
        if room < need {
            if self.side.store.policy == Policy::DropNew {
                self.side.put.dropped += 1;
                self.side.put.dropped_bytes += u64::from(length);
            }
            return Ok(None);
        }
        let start = self.side.head + pad;
        let lap = (start | (self.side.store.capacity - 1)) + 1;
        self.limit = lap.min(self.side.head + room);
        Ok(Some(self.reservation(pad, length)))
    }

    /// Puts a copy of a block. `false`: the ring is full (see [`Writer::reserve`]).
    #[inline]
    pub fn write(&mut self, block: &[u8]) -> Result<bool, Fault> {
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

    /// What this side has counted.
    #[must_use]
    pub const fn count(&self) -> Put {
        self.side.put
    }

    /// What a reader has published about its count: a look over the fence, for whoever balances.
    #[must_use]
    pub fn taken(&self, reader: usize) -> Option<Taken> {
        self.side.taken(reader)
    }

    /// How many positions a block of this length needs where the head is now.
    #[inline]
    pub(crate) fn needs(&self, length: usize) -> Result<u64, Fault> {
        let limit = self.block_max();
        match u32::try_from(length) {
            Ok(short) if length <= limit => Ok(self.need(short).1),
            _ => Err(Fault::TooLong { length, limit }),
        }
    }

    /// How many bytes of padding stand before a block of this length, and how many it needs in all.
    #[inline]
    fn need(&self, length: u32) -> (u64, u64) {
        let (capacity, span) = (self.side.store.capacity, Record::span(length));
        let left = capacity - (self.side.head & (capacity - 1));
        let pad = if span > left { left } else { 0 };
        (pad, pad + span)
    }

    /// Writes the headers of the pad and of the block, copies the block in where it was staged, and
    /// moves the head.
    #[inline]
    fn commit(&mut self, pad: u64, length: u32) -> Place {
        let start = self.side.head + pad;
        let end = start + Record::span(length);
        let lossy = self.side.store.policy == Policy::Overwrite;
        if lossy {
            self.side.begin(end);
        }
        let store = &self.side.store;
        if pad > 0 {
            let length = u32::try_from(pad - Record::SIZE as u64).unwrap_or(u32::MAX);
            put_header(store, self.side.head, Record { length, kind: Record::PAD, sequence: 0 });
        }
        put_header(store, start, Record { length, kind: Record::BLOCK, sequence: self.sequence });
        if lossy {
            let block = self.staging.get(..length as usize).unwrap_or_default();
            let first = (offset(store, start) + Record::SIZE) / 8;
            foreign::copy_in(store.writer.words(), first, block);
            self.side.mark(start);
        }
        self.sequence += 1;
        self.side.head = end;
        self.side.put.blocks += 1;
        self.side.put.bytes += u64::from(length);
        Place::new(start + Record::SIZE as u64, length)
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
    /// Where the block will lie in the writer's memory.
    at: usize,
    /// Bytes of padding before it.
    pad: u64,
    length: u32,
}

impl Reservation<'_> {
    /// Puts the first `used` bytes into the ring as one block, and answers their place.
    #[inline]
    pub fn commit(self, used: usize) -> Place {
        let used = u32::try_from(used).unwrap_or(u32::MAX).min(self.length);
        self.writer.commit(self.pad, used)
    }
}

impl Deref for Reservation<'_> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        let writer = &*self.writer;
        if writer.side.store.policy == Policy::Overwrite {
            return writer.staging.get(..self.length as usize).unwrap_or_default();
        }
        // SAFETY: the bytes lie in the ring (`reserve` found the room), between head and what
        // readers still need (D2): no reader looks at them (D3), and the one writer is borrowed.
        unsafe { writer.side.store.writer.bytes(self.at, self.length as usize) }
    }
}

impl DerefMut for Reservation<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let length = self.length as usize;
        if self.writer.side.store.policy == Policy::Overwrite {
            return self.writer.staging.get_mut(..length).unwrap_or_default();
        }
        // SAFETY: as in `deref`; and the one writer is borrowed for this slice alone.
        unsafe { self.writer.side.store.writer.bytes_mut(self.at, length) }
    }
}

impl fmt::Debug for Reservation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} bytes)", self.length)
    }
}

/// A reader in the writer's process.
#[derive(Debug)]
pub struct Reader(Walk);

impl Reader {
    /// The next block, in place, without taking it; `None`: nothing is there. Not in a ring that
    /// overwrites ([`Fault::Lossy`]).
    pub fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        let Some(record) = self.held()? else { return Ok(None) };
        Ok(Some(self.look(record)))
    }

    /// The next block, in place, and past it: [`Reader::release`] gives it back. For a batch: call
    /// it as often as wanted, with the reader borrowed for each block.
    pub fn next_block(&mut self) -> Result<Option<&[u8]>, Fault> {
        let Some(record) = self.held()? else { return Ok(None) };
        self.0.pass(&record);
        Ok(Some(self.look(record)))
    }

    /// Passes over the next block without looking at it; answers whether there was one.
    pub fn skip(&mut self) -> Result<bool, Fault> {
        let record = self.held()?;
        if let Some(record) = &record {
            self.0.pass(record);
        }
        Ok(record.is_some())
    }

    /// Gives everything back that was passed: the writer may use the room.
    pub fn release(&mut self) {
        self.0.side.release();
    }

    /// Copies the next block into `out`, takes it, and gives it back. `None`: nothing is there.
    /// Where `out` is too short the block stays.
    pub fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.0.read(out)
    }

    /// Whether the writer has closed the ring and everything has been read.
    pub fn is_finished(&mut self) -> Result<bool, Fault> {
        self.0.side.ended()
    }

    /// What this side has counted.
    #[must_use]
    pub const fn count(&self) -> Taken {
        self.0.side.taken
    }

    /// What the writer has published about its count.
    #[must_use]
    pub fn written(&self) -> Put {
        self.0.side.store.put()
    }

    fn held(&mut self) -> Result<Option<Found>, Fault> {
        if self.0.side.store.policy == Policy::Overwrite {
            return Err(Fault::Lossy);
        }
        self.0.find()
    }

    fn look(&self, found: Found) -> &[u8] {
        // SAFETY: `find` checked that the record lies in the ring and is shown (D3); it is not
        // behind our published cursor, which cannot move while `self` is borrowed (D4), and the
        // ring does not overwrite (`held`).
        unsafe { self.0.side.store.writer.bytes(found.at, found.length as usize) }
    }
}

/// A reader in another process than the writer's. All it gets are copies.
#[derive(Debug)]
pub struct Visitor(Walk);

impl Visitor {
    pub(crate) fn new(side: Consumer) -> Self {
        Self(Walk::new(side))
    }

    /// How it goes from record to record, for who waits on the ring.
    pub(crate) const fn walk(&mut self) -> &mut Walk {
        &mut self.0
    }

    /// Copies the next block into `out`, takes it, and gives it back. `None`: nothing is there.
    /// Where `out` is too short the block stays.
    pub fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.0.read(out)
    }

    /// Copies the bytes that a rich pointer names into `out`, which must be as long. They must lie
    /// in what this reader has not released, or, where the ring overwrites, not have been lapped.
    pub fn copy(&mut self, place: Place, out: &mut [u8]) -> Result<(), Fault> {
        self.0.copy(place, out)
    }

    /// Goes on with what is written from now on, and counts nothing that came before.
    pub fn join_now(&mut self) -> Result<(), Fault> {
        self.0.side.next = self.0.side.refresh()?;
        self.0.expected = None;
        self.0.side.release();
        Ok(())
    }

    /// The longest block that the ring can hold.
    #[must_use]
    pub fn block_max(&self) -> usize {
        block_max(&self.0.side.store)
    }

    /// Whether the writer has closed the ring and everything has been read. A writer that was
    /// killed closes nothing: its control socket tells (RELIABILITY T10).
    pub fn is_finished(&mut self) -> Result<bool, Fault> {
        self.0.side.ended()
    }

    /// What this side has counted.
    #[must_use]
    pub const fn count(&self) -> Taken {
        self.0.side.taken
    }

    /// What the writer alleges about its count.
    #[must_use]
    pub fn written(&self) -> Put {
        self.0.side.store.put()
    }
}

#[cfg(test)]
mod tests;
