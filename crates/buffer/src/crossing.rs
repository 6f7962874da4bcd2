//! Where blocks cross from one space to another: a ring of rich pointers whose bytes stay where
//! they are. [SL §5.3.1, §5.3.3]
//!
//! The writer pushes entries together with the *origin* of their bytes: its pool, or the batch that
//! it is reading from another crossing (so a block goes through many spaces and is never copied).
//! The readers look at the bytes in place, each at its own pace, and release what they have read.
//! Memory is bounded by the pools: the writer keeps one lease per segment in flight, and gives it
//! back when all readers have passed the last entry that points there.
//!
//! Only `block` and `drop new` make sense here: a crossing never overwrites, so it never copies.
//!
//! Why `&[u8]` is allowed. With M1 to M6 of `pool`:
//! - C1 Only the three pushes of [`Writer`] put entries into the ring: it is made here with the
//!   ring, lives in this process, and no other party can write its memory.
//! - C2 An entry is pushed only if view and frame lie, filled, in segments on which the writer
//!   holds a lease in `flight`, recorded with the position after the last entry that needs it.
//! - C3 The writer drops such a lease only after it has seen (Acquire) that the cursors of all
//!   readers that have not left passed that position. A writer that goes away leaves its leases to
//!   the ring, which keeps them until the last reader is gone.
//! - C4 A reader moves its cursor only in [`Reader::release`] and when it is dropped, both of which
//!   need the reader for themselves: so while a [`Batch`] lives, its entries are not passed.
//! - C5 From C2 to C4: while a batch lives, the writer holds a lease on each segment that the batch
//!   points into; by M4 the bytes stay as they are. The memory itself lives because the ring knows
//!   it (`known`), under the id by which the entry names it: the writer puts it there before it
//!   pushes the first entry, and never another memory under the same id.

use crate::ibuf::{self, Lanes, Pushed};
use crate::pool::{Lease, Memory, Pool, Segment};
use crate::signal::Bell;
use crate::{Fault, Policy, Put, Taken};
use abi::{ContextLane, DbufId, Entry, Marks, Place, RichPointer};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The shape of a crossing.
pub use crate::ibuf::{Columns, Config};

/// Makes a crossing. The writer's space sleeps on `writer_bell`; each reader's space on its own,
/// and there is one reader per bell (`config.readers` does not count).
pub fn crossing(
    config: &Config,
    writer_bell: Arc<Bell>,
    reader_bells: &[Arc<Bell>],
) -> Result<(Writer, Vec<Reader>), Fault> {
    if config.policy == Policy::Overwrite {
        return Err(Fault::Lossy);
    }
    let (writer, readers) = ibuf::ring(&Config { readers: reader_bells.len(), ..*config });
    let shared = Arc::new(Shared {
        known: std::array::from_fn(|_| OnceLock::new()),
        left: Mutex::new(Vec::new()),
        writer_bell,
        reader_bells: reader_bells.into(),
    });
    let reader = |ring| Reader { ring, shared: shared.clone(), copied: Cell::default() };
    let readers = readers.into_iter().map(reader).collect();
    Ok((Writer { ring: writer, flight: VecDeque::new(), shared }, readers))
}

/// What both sides of a crossing know.
#[derive(Debug)]
struct Shared {
    /// The memories that entries may point into (C5).
    known: [OnceLock<Arc<Memory>>; KNOWN],
    /// The leases that a writer left behind (C3).
    left: Mutex<Vec<Flight>>,
    writer_bell: Arc<Bell>,
    reader_bells: Box<[Arc<Bell>]>,
}

/// How many pools one crossing can carry blocks of.
const KNOWN: usize = 64;

impl Shared {
    fn memory(&self, dbuf: DbufId) -> Option<&Arc<Memory>> {
        self.known.iter().map_while(OnceLock::get).find(|memory| memory.id == dbuf)
    }

    /// Makes a memory known under its id. Only the writer calls this.
    fn introduce(&self, memory: &Arc<Memory>) -> Result<(), Fault> {
        for place in &self.known {
            let known = place.get_or_init(|| memory.clone());
            if Arc::ptr_eq(known, memory) {
                return Ok(());
            }
            if known.id == memory.id {
                break;
            }
        }
        Err(Fault::UnknownDbuf(memory.id))
    }
}

/// A segment in flight: the lease, and the position after the last entry that needs it.
#[derive(Debug)]
struct Flight {
    lease: Lease,
    until: u64,
    /// Where the segment begins, and how much of it was filled when that was last looked at: what
    /// lies there needs no other look. Filled bytes stay so as long as the lease is held.
    start: u64,
    filled: u64,
}

impl Flight {
    /// Whether the lease keeps these bytes, as far as is known.
    #[inline]
    fn is_known_to_cover(&self, pointer: RichPointer) -> bool {
        let from = pointer.place.position().wrapping_sub(self.start);
        let to = from.saturating_add(u64::from(pointer.length()));
        pointer.length() > 0 && pointer.dbuf() == self.lease.dbuf() && to <= self.filled
    }

    /// Whether the lease keeps all bytes of an extent, as far as is known.
    fn holds(&self, extent: &Extent) -> bool {
        let ends = extent.high.checked_sub(self.start);
        let within = extent.low >= self.start && ends.is_some_and(|ends| ends <= self.filled);
        within && extent.dbuf == self.lease.dbuf()
    }

    /// Whether the lease keeps these bytes; what is known is brought up to date.
    fn covers(&mut self, pointer: RichPointer) -> bool {
        let covers = self.lease.covers(pointer.dbuf(), pointer.place);
        if covers && let Some((start, filled)) = self.lease.extent(pointer) {
            (self.start, self.filled) = (start, filled);
        }
        covers
    }
}

/// Where the bytes of several entries lie, each of which has some.
#[derive(Clone, Copy, Debug)]
struct Extent {
    dbuf: DbufId,
    /// From here to there, views and frames.
    low: u64,
    high: u64,
    /// How many are in view.
    bytes: u64,
}

impl Extent {
    /// `None`: they lie in several dbufs, one of them has no bytes, or the columns are not equally
    /// long.
    #[inline]
    fn of(entries: Columns<'_>, framed: bool) -> Option<Self> {
        let count = entries.pointers.len();
        if entries.context.len() != count || entries.marks.len() != count {
            return None;
        }
        let dbuf = entries.pointers.first()?.dbuf();
        let mut extent = Self { dbuf, low: u64::MAX, high: 0, bytes: 0 };
        let mut odd = dbuf == DbufId::HOLE;
        let mut add = |pointer: RichPointer| {
            let (from, length) = (pointer.place.position(), u64::from(pointer.length()));
            extent.low = extent.low.min(from);
            extent.high = extent.high.max(from + length);
            odd |= length == 0 || pointer.dbuf() != dbuf;
            length
        };
        let bytes = entries.pointers.iter().map(|pointer| add(*pointer)).sum();
        if framed {
            for (pointer, marks) in entries.pointers.iter().zip(entries.marks) {
                add(Entry::new(*pointer, ContextLane::default(), *marks).frame());
            }
        }
        extent.bytes = bytes;
        (!odd).then_some(extent)
    }
}

/// Proof that blocks are kept right now: what a writer needs to send them on.
pub trait Origin: sealed::Origin {}

impl Origin for Pool {}
impl Origin for Pools<'_> {}
impl Origin for Batch<'_> {}

/// Several pools that stand for one origin.
#[derive(Clone, Copy, Debug)]
pub struct Pools<'a>(pub &'a [Pool]);

pub(crate) mod sealed {
    use super::{Fault, Lease, RichPointer};

    /// Gives a lease on the segment that a pointer names, if it can prove that the segment is kept.
    pub trait Origin {
        fn lease(&self, pointer: RichPointer) -> Result<Lease, Fault>;
    }
}

impl sealed::Origin for Pool {
    fn lease(&self, pointer: RichPointer) -> Result<Lease, Fault> {
        if pointer.dbuf() == self.id() {
            self.lease(pointer.place)
        } else {
            Err(Fault::UnknownDbuf(pointer.dbuf()))
        }
    }
}

impl sealed::Origin for Pools<'_> {
    fn lease(&self, pointer: RichPointer) -> Result<Lease, Fault> {
        let pool = self.0.iter().find(|pool| pool.id() == pointer.dbuf());
        pool.ok_or_else(|| Fault::UnknownDbuf(pointer.dbuf()))?.lease(pointer.place)
    }
}

/// The writer's end of a crossing.
#[derive(Debug)]
pub struct Writer {
    ring: ibuf::Writer,
    /// One per segment in flight, or a few; what is given back first stands first.
    flight: VecDeque<Flight>,
    shared: Arc<Shared>,
}

impl Writer {
    /// Puts as many entries as the policy lets in and publishes them; wakes nobody
    /// ([`Writer::signal`]). Every entry that is not a hole must come from one of `origins`. A
    /// fault says that an entry is not what it alleges: then nothing was put.
    pub fn push(&mut self, entries: &[Entry], origins: &[&dyn Origin]) -> Result<Pushed, Fault> {
        self.push_each(&mut entries.iter().copied(), entries.len(), origins)
    }

    /// As [`Writer::push`], for `count` entries that come one by one. What is not put and not
    /// dropped is left in the iterator.
    #[inline]
    pub fn push_each(
        &mut self,
        entries: &mut impl Iterator<Item = Entry>,
        count: usize,
        origins: &[&dyn Origin],
    ) -> Result<Pushed, Fault> {
        if self.flight.len() > 1 {
            self.reap()?;
        }
        // Asked once: what goes in is what is kept, even if a reader makes more room meanwhile
        // (C2).
        let fitting = self.ring.fitting(count)?;
        let Self { ring, flight, shared } = self;
        let framed = ring.lanes == Lanes::Marks;
        ring.put(entries, fitting, |entry, after| {
            let view = entry.pointer;
            if view.is_hole() {
                return Ok(());
            }
            let frame = entry.frame();
            let around = framed && frame.place != view.place;
            // A description shows nothing of its frame.
            if view.length() > 0 || !around {
                keep(flight, shared, view, after, origins)?;
            }
            if around {
                keep(flight, shared, frame, after, origins)?;
            }
            Ok(())
        })
    }

    /// Puts and publishes all these entries, as [`Writer::push`] does, if they are of the kind that
    /// most batches are: all fit, all have bytes, and all of these lie in one segment. Otherwise it
    /// puts nothing and answers false. That their bytes are kept (C2) is checked once for all.
    pub fn push_columns(
        &mut self,
        entries: Columns<'_>,
        origins: &[&dyn Origin],
    ) -> Result<bool, Fault> {
        let Some(last) = entries.pointers.last() else { return Ok(true) };
        if self.flight.len() > 1 {
            self.reap()?;
        }
        let count = entries.pointers.len();
        let Some(extent) = Extent::of(entries, self.ring.lanes == Lanes::Marks) else {
            return Ok(false);
        };
        if self.ring.fitting(count)? < count {
            return Ok(false);
        }
        let Self { ring, flight, shared } = self;
        let after = ring.side.head + count as u64;
        if !flight.back().is_some_and(|last| last.holds(&extent)) {
            keep_elsewhere(flight, shared, *last, after, origins)?;
        }
        match flight.back_mut().filter(|last| last.holds(&extent)) {
            Some(last) => last.until = last.until.max(after),
            None => return Ok(false),
        }
        ring.put_columns(entries, extent.bytes);
        Ok(true)
    }

    /// Wakes the readers that sleep. Call it after T_b blocks or T_t time, and before the space
    /// sleeps.
    pub fn signal(&self) {
        for bell in &self.shared.reader_bells {
            bell.ring();
        }
    }

    /// Gives back the leases of segments that all readers have passed; answers how many remain. For
    /// a space whose pool is short, and before it sleeps.
    pub fn reap(&mut self) -> Result<usize, Fault> {
        let passed = self.ring.side.refresh()?;
        // C3: every reader that has not left is at `passed` or beyond.
        let gone = self.flight.partition_point(|flight| flight.until <= passed);
        self.flight.drain(..gone);
        Ok(self.flight.len())
    }

    /// How many entries would go in now (see [`ibuf::Writer::room`]).
    pub fn room(&mut self, wanted: usize) -> Result<usize, Fault> {
        self.ring.room(wanted)
    }

    /// How many entries the ring holds.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Whether all readers have left.
    pub fn is_abandoned(&mut self) -> bool {
        self.ring.is_abandoned()
    }

    /// Bytes of the segments that this crossing keeps from being recycled, as of the last look.
    #[must_use]
    pub fn pinned_bytes(&self) -> usize {
        self.flight.iter().map(|flight| flight.lease.segment_len()).sum()
    }

    /// What this side has counted.
    #[must_use]
    pub const fn count(&self) -> Put {
        self.ring.count()
    }

    /// What a reader has published about its count, for whoever balances the edge.
    #[must_use]
    pub fn taken(&self, reader: usize) -> Option<Taken> {
        self.ring.taken(reader)
    }
}

/// Makes sure that a lease keeps these bytes until all readers have passed `after` (C2). Most often
/// they lie in the segment of the block before, which is the last one that was leased.
#[inline]
fn keep(
    flight: &mut VecDeque<Flight>,
    shared: &Shared,
    pointer: RichPointer,
    after: u64,
    origins: &[&dyn Origin],
) -> Result<(), Fault> {
    match flight.back_mut() {
        Some(last) if last.is_known_to_cover(pointer) => {
            last.until = last.until.max(after);
            Ok(())
        }
        _ => keep_elsewhere(flight, shared, pointer, after, origins),
    }
}

/// How many segments in flight are looked at for one that is leased already. Where each block has
/// one of its own there are as many as blocks, and another lease costs less than a longer look.
const NEAR: usize = 8;

#[cold]
fn keep_elsewhere(
    flights: &mut VecDeque<Flight>,
    shared: &Shared,
    pointer: RichPointer,
    after: u64,
    origins: &[&dyn Origin],
) -> Result<(), Fault> {
    let near = flights.len().saturating_sub(NEAR)..flights.len();
    let held = |flight: &mut Flight| flight.is_known_to_cover(pointer) || flight.covers(pointer);
    if let Some(found) = near.rev().find(|at| flights.get_mut(*at).is_some_and(held)) {
        // Nothing that stands behind it is given back later now.
        if let Some(mut flight) = flights.remove(found) {
            flight.until = flight.until.max(after);
            flights.push_back(flight);
        }
        return Ok(());
    }
    let mut fault = Fault::UnknownDbuf(pointer.dbuf());
    for origin in origins {
        match origin.lease(pointer) {
            Ok(lease) => {
                shared.introduce(lease.memory())?;
                let (start, filled) = lease.extent(pointer).unwrap_or_default();
                flights.push_back(Flight { lease, until: after, start, filled });
                return Ok(());
            }
            Err(Fault::UnknownDbuf(_)) => {}
            Err(other) => fault = other,
        }
    }
    Err(fault)
}

impl Drop for Writer {
    fn drop(&mut self) {
        // C3: what is in flight belongs to the ring now. Then the end is shown, then the readers
        // woken.
        let flight = std::mem::take(&mut self.flight);
        self.shared.left.lock().unwrap_or_else(PoisonError::into_inner).extend(flight);
        self.ring.side.close();
        self.signal();
    }
}

/// A reader's end of a crossing.
#[derive(Debug)]
pub struct Reader {
    ring: ibuf::Reader,
    shared: Arc<Shared>,
    /// What was copied last: from which position on, how many entries, how many bytes they view.
    copied: Cell<(u64, usize, u64)>,
}

impl Reader {
    /// Looks at up to `max` entries in place, without taking them.
    pub fn peek(&mut self, max: usize) -> Result<Batch<'_>, Fault> {
        let count = self.ring.waiting()?.min(max);
        Ok(Batch { reader: self, count })
    }

    /// Takes the first `count` of the entries that are there: their bytes may be reused from now
    /// on. Wakes the writer if it sleeps and half of the ring is free.
    pub fn release(&mut self, count: usize) -> Result<(), Fault> {
        let count = self.ring.waiting()?.min(count);
        let first = self.ring.side.next;
        let bytes = match self.copied.get() {
            (from, copied, bytes) if (from, copied) == (first, count) => bytes,
            _ => {
                let slots = self.ring.slots();
                (0..count as u64).map(|i| u64::from(slots.length(first + i))).sum()
            }
        };
        let side = &mut self.ring.side;
        side.next += count as u64;
        side.taken.blocks += count as u64;
        side.taken.bytes += bytes;
        side.release();
        if side.resident() <= side.store.capacity / 2 {
            self.shared.writer_bell.ring();
        }
        Ok(())
    }

    /// How many entries are there to be read.
    pub fn waiting(&mut self) -> Result<usize, Fault> {
        self.ring.waiting()
    }

    /// Whether the writer is gone and everything has been read. Drop a reader that has finished:
    /// what the writer left behind is kept until then.
    pub fn is_finished(&mut self) -> Result<bool, Fault> {
        self.ring.is_finished()
    }

    /// What this side has counted.
    #[must_use]
    pub const fn count(&self) -> Taken {
        self.ring.count()
    }

    /// What the writer has published about its count, for whoever balances the edge.
    #[must_use]
    pub fn written(&self) -> Put {
        self.ring.written()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.ring.side.leave();
        self.shared.writer_bell.ring();
    }
}

/// Entries that a reader looks at. As long as it lives they are not released, and their bytes stay
/// (C5).
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    reader: &'a Reader,
    count: usize,
}

impl<'a> Batch<'a> {
    /// How many entries there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// One entry, copied out of the ring. Beyond the last: a hole of no bytes.
    #[inline]
    #[must_use]
    pub fn entry(&self, index: usize) -> Entry {
        if index < self.count {
            self.reader.ring.load(self.reader.ring.side.next + index as u64)
        } else {
            Entry::new(RichPointer::hole(0), ContextLane::default(), Marks::bare(0))
        }
    }

    /// Copies the entries into these columns, as many as they have room for; answers how many.
    pub fn copy(
        &self,
        pointers: &mut [RichPointer],
        context: &mut [ContextLane],
        marks: &mut [Marks],
    ) -> usize {
        let count = self.count.min(pointers.len()).min(context.len()).min(marks.len());
        let (pointers, context) = (&mut pointers[..count], &mut context[..count]);
        let first = self.reader.ring.side.next;
        let bytes = self.reader.ring.copy(first, pointers, context, &mut marks[..count]);
        self.reader.copied.set((first, count, bytes));
        count
    }

    /// All entries.
    #[inline]
    pub fn entries(&self) -> impl Iterator<Item = Entry> + use<'a> {
        let ring = &self.reader.ring;
        let (slots, first) = (ring.slots(), ring.side.next);
        (first..first + self.count as u64).map(move |position| slots.load(position))
    }

    /// The viewed bytes of one entry.
    pub fn bytes(&self, index: usize) -> Result<&'a [u8], Fault> {
        self.look(self.entry(index).pointer)
    }

    /// The bytes of the frame around the view of one entry.
    pub fn frame(&self, index: usize) -> Result<&'a [u8], Fault> {
        self.look(self.entry(index).frame())
    }

    /// All that is filled of the segment that one entry's frame lies in, as [`Pool::segment`].
    #[must_use]
    pub fn segment(&self, index: usize) -> Option<Segment<'a>> {
        let frame = self.entry(index).frame();
        let memory = self.memory(frame).ok()?;
        let (slot, start) = memory.around(frame)?;
        // SAFETY: `around` found the slot resident and `filled` bytes from its first in the region.
        // The frame is that of an entry of this batch, so its segment is leased as long as the
        // reader is borrowed (C5), hence the bytes stay as they are (M1, M4).
        let bytes = unsafe { memory.bytes(start.at, memory.slots.filled(slot)) };
        Some(Segment { dbuf: memory.id, start: start.position, bytes })
    }

    /// The bytes behind a pointer into a segment that this batch keeps: one of its entries, or a
    /// part of one. Where many bytes of one entry are looked at, this is the way of
    /// [`Batch::bytes`] without loading the entry again.
    pub fn resolve(&self, pointer: RichPointer) -> Result<&'a [u8], Fault> {
        if pointer.is_hole() {
            return Err(Fault::Hole);
        }
        let memory = self.memory(pointer)?;
        let (slot, _) = memory.locate(pointer.place)?;
        if self.keeps(memory, slot) {
            self.look(pointer)
        } else {
            Err(Fault::OutOfWindow(pointer.place))
        }
    }

    /// A lease on the segment of a block of this batch, to keep it longer than the batch.
    pub fn lease(&self, pointer: RichPointer) -> Result<Lease, Fault> {
        let memory = self.memory(pointer)?;
        let (slot, _) = memory.locate(pointer.place)?;
        if self.keeps(memory, slot) {
            // M4: made from a batch, whose writer has a lease on this very segment (C5).
            Ok(Lease::new(memory, slot))
        } else {
            Err(Fault::OutOfWindow(pointer.place))
        }
    }

    /// Whether an entry of this batch points into this slot.
    fn keeps(&self, memory: &Arc<Memory>, slot: usize) -> bool {
        self.entries().any(|entry| {
            let there = |place: Place| memory.locate(place).is_ok_and(|(found, _)| found == slot);
            entry.pointer.dbuf() == memory.id
                && (there(entry.pointer.place) || there(entry.frame().place))
        })
    }

    fn memory(&self, pointer: RichPointer) -> Result<&'a Arc<Memory>, Fault> {
        let shared: &'a Shared = &self.reader.shared;
        shared.memory(pointer.dbuf()).ok_or_else(|| Fault::UnknownDbuf(pointer.dbuf()))
    }

    /// The bytes behind a pointer that lies in a segment of this batch: view or frame of an entry.
    fn look(&self, pointer: RichPointer) -> Result<&'a [u8], Fault> {
        if pointer.is_hole() {
            return Err(Fault::Hole);
        }
        let memory = self.memory(pointer)?;
        let (_, at) = memory.locate(pointer.place)?;
        // SAFETY: `locate` found the bytes inside the region and below `filled`. The pointer is the
        // view or the frame of an entry of this batch, or lies in a segment that one of them lies
        // in, so the segment is leased as long as the reader is borrowed (C5), hence the bytes stay
        // as they are (M4).
        Ok(unsafe { memory.bytes(at, pointer.length() as usize) })
    }
}

impl sealed::Origin for Batch<'_> {
    fn lease(&self, pointer: RichPointer) -> Result<Lease, Fault> {
        Batch::lease(self, pointer)
    }
}

#[cfg(test)]
mod tests;
