//! The writer's end of a crossing. Pushes entries, and holds leases on their segments until all
//! readers have passed. Invariants: C1 to C3 of [`crossing`](super).

use super::shared::Shared;
use super::sizing::Sizing;
use super::{Columns, Origin};
use crate::ibuf::{self, EntryColumns, PushResult};
use crate::pool::Lease;
use crate::{Fault, ReaderCounts, WriterCounts};
use abi::{BlockMetadata, DbufId, Entry, RichPointer};
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

/// The writer's end of a crossing.
#[derive(Debug)]
pub struct CrossingWriter {
    ring: ibuf::PointerWriter,
    /// Leases on the segments that unread entries point into, one or a few per segment. They are in
    /// the order in which they can be dropped.
    flight: VecDeque<InFlightSegment>,
    shared: Arc<Shared>,
    pub(super) sizing: Sizing,
}

impl CrossingWriter {
    pub(super) const fn new(ring: ibuf::PointerWriter, shared: Arc<Shared>) -> Self {
        Self { ring, flight: VecDeque::new(), shared, sizing: Sizing::Fixed }
    }

    /// Puts and publishes as many entries as the policy admits. Does not wake readers; call
    /// [`CrossingWriter::wake_readers`] for that. Every entry that is not a hole must come from one
    /// of `origins`. Fails with a [`Fault`], and puts nothing, if no origin can lease the bytes
    /// that an entry names, or if all readers have left ([`Fault::Abandoned`]).
    pub fn push(
        &mut self,
        entries: &[Entry],
        origins: &[&dyn Origin],
    ) -> Result<PushResult, Fault> {
        self.push_from_iter(&mut entries.iter().copied(), entries.len(), origins)
    }

    /// Puts up to `count` entries from an iterator, like [`CrossingWriter::push`]. Entries that are
    /// neither put nor dropped stay in the iterator.
    #[inline]
    pub fn push_from_iter(
        &mut self,
        entries: &mut impl Iterator<Item = Entry>,
        count: usize,
        origins: &[&dyn Origin],
    ) -> Result<PushResult, Fault> {
        if self.flight.len() > 1 {
            self.drop_passed_leases()?;
        }
        // Computed once, so that exactly the entries put are leased, even if a reader makes more
        // room in the meantime (C2).
        let fitting = self.ring.count_fitting_entries(count)?;
        let Self { ring, flight, shared, .. } = self;
        let framed = ring.lanes == EntryColumns::Marks;
        let pushed = ring.put(entries, fitting, |entry, after| {
            let view = entry.pointer;
            if view.is_hole() {
                return Ok(());
            }
            let frame = entry.frame();
            let has_frame = framed && frame.place != view.place;
            // The view of a description is empty.
            if view.length() > 0 || !has_frame {
                hold_block(flight, shared, view, after, origins)?;
            }
            if has_frame {
                hold_block(flight, shared, frame, after, origins)?;
            }
            Ok(())
        })?;
        self.resize_at_lap_end();
        Ok(pushed)
    }

    /// Puts and publishes all entries, like [`CrossingWriter::push`], but only in the common case:
    /// all entries fit, none is a hole, and all bytes are in one segment. One check then covers all
    /// entries (C2). In any other case puts nothing and returns false. Fails with a [`Fault`] if no
    /// origin has the last entry's segment, or if all readers have left.
    pub fn push_columns(
        &mut self,
        entries: Columns<'_>,
        origins: &[&dyn Origin],
    ) -> Result<bool, Fault> {
        let Some(last) = entries.pointers.last() else { return Ok(true) };
        if self.flight.len() > 1 {
            self.drop_passed_leases()?;
        }
        let count = entries.pointers.len();
        let Some(extent) = ByteRange::from_columns(entries, self.ring.lanes == EntryColumns::Marks)
        else {
            return Ok(false);
        };
        if self.ring.count_fitting_entries(count)? < count {
            return Ok(false);
        }
        let Self { ring, flight, shared, .. } = self;
        let after = ring.cursor.head + count as u64;
        if !flight.back().is_some_and(|last| last.covers_range(&extent)) {
            hold_segment(flight, shared, *last, after, origins)?;
        }
        match flight.back_mut().filter(|last| last.covers_range(&extent)) {
            Some(last) => last.until = last.until.max(after),
            None => return Ok(false),
        }
        ring.put_columns(entries, extent.bytes);
        self.resize_at_lap_end();
        Ok(true)
    }

    /// Wakes all sleeping readers. The writer calls this before its space sleeps, and otherwise
    /// after a number of blocks (T_b) or a time (T_t), whichever comes first (see
    /// [`Moderator`](crate::signal::wakeup_moderation::WakeupModerator)).
    pub fn wake_readers(&self) {
        for doorbell in &self.shared.reader_doorbells {
            doorbell.notify();
        }
    }

    /// Drops the leases on segments that all readers have passed. Call this when the pool runs out
    /// of segments and before the space sleeps. Returns the number of remaining leases.
    pub fn drop_passed_leases(&mut self) -> Result<usize, Fault> {
        let passed = self.ring.cursor.refresh_reader_positions()?;
        // C3: every reader that has not left is at `passed` or beyond.
        let gone = self.flight.partition_point(|flight| flight.until <= passed);
        self.flight.drain(..gone);
        Ok(self.flight.len())
    }

    pub(super) const fn ring(&mut self) -> &mut ibuf::PointerWriter {
        &mut self.ring
    }

    /// Returns the number of entries that the slowest reader has not released yet.
    pub fn unreleased_entries(&mut self) -> usize {
        self.ring.unreleased_entries()
    }

    /// Returns the number of free entries in the ring. Reads the readers' positions only if the
    /// cached positions show fewer than `wanted` free entries.
    pub fn free_entries(&mut self, wanted: usize) -> Result<usize, Fault> {
        self.ring.free_entries(wanted)
    }

    /// Returns the capacity of the ring in entries.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Returns true if all readers have left.
    pub fn is_abandoned(&mut self) -> bool {
        self.ring.is_abandoned()
    }

    /// Returns the counts of this writer: blocks and bytes put, blocks and bytes dropped.
    #[must_use]
    pub const fn counts(&self) -> WriterCounts {
        self.ring.counts()
    }

    /// Returns the counts that a reader has published, or `None` if there is no such reader.
    #[must_use]
    pub fn reader_counts(&self, reader: usize) -> Option<ReaderCounts> {
        self.ring.reader_counts(reader)
    }
}

/// Ensures that the writer holds a lease on a block's segment until all readers have passed
/// position `after` (C2). Usually the block is in the segment leased last, which is checked first.
#[inline]
fn hold_block(
    flight: &mut VecDeque<InFlightSegment>,
    shared: &Shared,
    pointer: RichPointer,
    after: u64,
    origins: &[&dyn Origin],
) -> Result<(), Fault> {
    match flight.back_mut() {
        Some(last) if last.covers_by_cached_bounds(pointer) => {
            last.until = last.until.max(after);
            Ok(())
        }
        _ => hold_segment(flight, shared, pointer, after, origins),
    }
}

/// Number of recent leases that the writer searches for one that covers a block, before it takes
/// another lease. If every block has its own segment, a longer search costs more than another
/// lease.
const LEASE_SEARCH_MAX: usize = 8;

#[cold]
fn hold_segment(
    flights: &mut VecDeque<InFlightSegment>,
    shared: &Shared,
    pointer: RichPointer,
    after: u64,
    origins: &[&dyn Origin],
) -> Result<(), Fault> {
    let recent = flights.len().saturating_sub(LEASE_SEARCH_MAX)..flights.len();
    let is_held = |flight: &mut InFlightSegment| {
        flight.covers_by_cached_bounds(pointer) || flight.covers(pointer)
    };
    if let Some(found) = recent.rev().find(|at| flights.get_mut(*at).is_some_and(is_held)) {
        // Moved to the back: the queue stays ordered by release position.
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
                shared.register(lease.memory())?;
                let (start, filled) = lease.filled_extent(pointer).unwrap_or_default();
                flights.push_back(InFlightSegment { lease, until: after, start, filled });
                return Ok(());
            }
            Err(Fault::UnknownDbuf(_)) => {}
            Err(other) => fault = other,
        }
    }
    Err(fault)
}

impl Drop for CrossingWriter {
    fn drop(&mut self) {
        // C3: the leases in flight pass to the ring. Then the end is published, then the readers
        // are woken.
        let flight = std::mem::take(&mut self.flight);
        self.shared.orphaned.lock().unwrap_or_else(PoisonError::into_inner).extend(flight);
        self.ring.cursor.close();
        self.wake_readers();
    }
}

/// A segment in flight: the lease on the segment, and the position after the last entry that needs
/// the lease.
#[derive(Debug)]
pub(super) struct InFlightSegment {
    lease: Lease,
    until: u64,
    /// Position of the segment's first byte when the writer last looked the segment up. Filled
    /// bytes stay filled while the lease is held, so blocks between `start` and `start + filled`
    /// need no further lookup.
    start: u64,
    filled: u64,
}

impl InFlightSegment {
    /// Returns true if a block is within the part of the segment that was filled when the writer
    /// last looked the segment up. Does not look it up again, so the result may be false although
    /// the lease covers the block.
    #[inline]
    fn covers_by_cached_bounds(&self, pointer: RichPointer) -> bool {
        let from = pointer.place.position().wrapping_sub(self.start);
        let to = from.saturating_add(u64::from(pointer.length()));
        pointer.length() > 0 && pointer.dbuf() == self.lease.dbuf() && to <= self.filled
    }

    /// Returns true if a byte range is within the part of the segment that was filled when the
    /// writer last looked the segment up.
    fn covers_range(&self, range: &ByteRange) -> bool {
        let ends = range.high.checked_sub(self.start);
        let within = range.low >= self.start && ends.is_some_and(|ends| ends <= self.filled);
        within && range.dbuf == self.lease.dbuf()
    }

    /// Returns true if the lease covers a block. In that case, also stores the current start and
    /// filled length of the leased segment in `start` and `filled`.
    fn covers(&mut self, pointer: RichPointer) -> bool {
        let covers = self.lease.covers(pointer.dbuf(), pointer.place);
        if covers && let Some((start, filled)) = self.lease.filled_extent(pointer) {
            (self.start, self.filled) = (start, filled);
        }
        covers
    }
}

/// The byte range that encloses the views and frames of several nonempty entries.
#[derive(Clone, Copy, Debug)]
struct ByteRange {
    dbuf: DbufId,
    /// Start of the range: the lowest position of a byte of any view or frame.
    low: u64,
    /// End of the range: the position after the last byte of any view or frame.
    high: u64,
    /// Sum of the view lengths in bytes.
    bytes: u64,
}

impl ByteRange {
    /// Returns the byte range that encloses all views and frames of a batch of entries. Returns
    /// `None` if there are no entries, the entries are in several dbufs, an entry is empty or a
    /// hole, or the columns differ in length.
    #[inline]
    fn from_columns(entries: Columns<'_>, framed: bool) -> Option<Self> {
        let count = entries.pointers.len();
        if entries.metadata.len() != count || entries.marks.len() != count {
            return None;
        }
        let dbuf = entries.pointers.first()?.dbuf();
        let mut extent = Self { dbuf, low: u64::MAX, high: 0, bytes: 0 };
        let mut is_mixed = dbuf == DbufId::HOLE;
        let mut add = |pointer: RichPointer| {
            let (from, length) = (pointer.place.position(), u64::from(pointer.length()));
            extent.low = extent.low.min(from);
            extent.high = extent.high.max(from + length);
            is_mixed |= length == 0 || pointer.dbuf() != dbuf;
            length
        };
        let bytes = entries.pointers.iter().map(|pointer| add(*pointer)).sum();
        if framed {
            for (pointer, marks) in entries.pointers.iter().zip(entries.marks) {
                add(Entry::new(*pointer, BlockMetadata::default(), *marks).frame());
            }
        }
        extent.bytes = bytes;
        (!is_mixed).then_some(extent)
    }
}
