//! The writer's end of a crossing: what it pushes, and what it keeps until readers have passed.
//! Invariants: C1 to C3 of [`crossing`](super).

use super::{Columns, Origin, Shared};
use crate::ibuf::{self, Lanes, Pushed};
use crate::pool::Lease;
use crate::{Fault, Put, Taken};
use abi::{BlockMetadata, DbufId, Entry, RichPointer};
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

/// The writer's end of a crossing.
#[derive(Debug)]
pub struct Writer {
    ring: ibuf::Writer,
    /// One per segment in flight, or a few; what is given back first stands first.
    flight: VecDeque<Flight>,
    shared: Arc<Shared>,
}

impl Writer {
    pub(super) const fn new(ring: ibuf::Writer, shared: Arc<Shared>) -> Self {
        Self { ring, flight: VecDeque::new(), shared }
    }

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
        for doorbell in &self.shared.reader_bells {
            doorbell.notify();
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

    /// Returns the room in entries (see [`ibuf::Writer::room`]).
    pub fn room(&mut self, wanted: usize) -> Result<usize, Fault> {
        self.ring.room(wanted)
    }

    /// Returns the capacity in entries.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Returns true if all readers have left.
    pub fn is_abandoned(&mut self) -> bool {
        self.ring.is_abandoned()
    }

    /// Bytes of the segments that this crossing keeps from being recycled, as of the last look.
    #[must_use]
    pub fn pinned_bytes(&self) -> usize {
        self.flight.iter().map(|flight| flight.lease.segment_len()).sum()
    }

    /// Returns the counts of this side.
    #[must_use]
    pub const fn count(&self) -> Put {
        self.ring.count()
    }

    /// Returns the counts that a reader has published, for the balance of the edge.
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

/// Segments in flight that are searched for an existing lease. Where each block has a segment of
/// its own a longer search costs more than another lease.
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
            Ok(lease) if pointer.length() > 0 && !lease.covers(pointer.dbuf(), pointer.place) => {
                fault = Fault::OutOfWindow(pointer.place);
            }
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

/// A segment in flight: the lease, and the position after the last entry that needs it.
#[derive(Debug)]
pub(super) struct Flight {
    lease: Lease,
    until: u64,
    /// Start of the segment, and its filled part when last looked at: blocks in it need no other
    /// look. Filled bytes stay so as long as the lease is held.
    start: u64,
    filled: u64,
}

impl Flight {
    /// Returns true if the lease is known to keep these bytes.
    #[inline]
    fn is_known_to_cover(&self, pointer: RichPointer) -> bool {
        let from = pointer.place.position().wrapping_sub(self.start);
        let to = from.saturating_add(u64::from(pointer.length()));
        pointer.length() > 0 && pointer.dbuf() == self.lease.dbuf() && to <= self.filled
    }

    /// Returns true if the lease is known to keep all bytes of an extent.
    fn holds(&self, extent: &Extent) -> bool {
        let ends = extent.high.checked_sub(self.start);
        let within = extent.low >= self.start && ends.is_some_and(|ends| ends <= self.filled);
        within && extent.dbuf == self.lease.dbuf()
    }

    /// Returns true if the lease keeps these bytes; looks at the filled part again if needed.
    fn covers(&mut self, pointer: RichPointer) -> bool {
        let covers = self.lease.covers(pointer.dbuf(), pointer.place);
        if covers && let Some((start, filled)) = self.lease.extent(pointer) {
            (self.start, self.filled) = (start, filled);
        }
        covers
    }
}

/// The range of the bytes of several entries, none of which is empty.
#[derive(Clone, Copy, Debug)]
struct Extent {
    dbuf: DbufId,
    /// From here to there, views and frames.
    low: u64,
    high: u64,
    /// Bytes in view.
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
                add(Entry::new(*pointer, BlockMetadata::default(), *marks).frame());
            }
        }
        extent.bytes = bytes;
        (!odd).then_some(extent)
    }
}
