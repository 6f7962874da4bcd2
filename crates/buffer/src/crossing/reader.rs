//! A reader's end of a crossing: batches of entries, whose bytes stay as long as one looks.
//! Invariants: C4 and C5 of [`crossing`](super).

use super::Shared;
use crate::ibuf;
use crate::pool::{Lease, Memory, Segment};
use crate::{Fault, Put, Taken};
use abi::{BlockMetadata, Entry, Extent, Marks, RichPointer};
use std::cell::Cell;
use std::sync::Arc;

/// A reader's end of a crossing.
#[derive(Debug)]
pub struct Reader {
    ring: ibuf::Reader,
    shared: Arc<Shared>,
    /// The last copy: its first position, its entries, and the bytes that they view.
    copied: Cell<(u64, usize, u64)>,
}

impl Reader {
    pub(super) fn new(ring: ibuf::Reader, shared: Arc<Shared>) -> Self {
        Self { ring, shared, copied: Cell::default() }
    }

    /// Looks how far the writer has published by now: for who must know of all that was put before
    /// something else was said. Otherwise it is looked only when all that was seen has been taken.
    pub fn refresh(&mut self) -> Result<(), Fault> {
        self.ring.side.refresh().map(drop)
    }

    /// Looks at up to `max` entries in place, without taking them.
    pub fn peek(&mut self, max: usize) -> Result<Batch<'_>, Fault> {
        let count = self.ring.waiting()?.min(max);
        Ok(Batch { reader: self, count })
    }

    /// Takes the first `count` of the entries that are there: their bytes may be reused from now
    /// on. Wakes the writer if it sleeps, half of the ring is free, and it heeds room.
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
            self.shared.writer_doorbell.notify_room();
        }
        Ok(())
    }

    /// Returns the number of entries to be read.
    pub fn waiting(&mut self) -> Result<usize, Fault> {
        self.ring.waiting()
    }

    /// Returns true if the writer is gone: what is there after this call is all.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.ring.is_closed()
    }

    /// Returns true if the writer is gone and everything has been read. Drop a reader that has
    /// finished: what the writer left behind is kept until then.
    pub fn is_finished(&mut self) -> Result<bool, Fault> {
        self.ring.is_finished()
    }

    /// Returns the counts of this side.
    #[must_use]
    pub const fn count(&self) -> Taken {
        self.ring.count()
    }

    /// Returns the counts that the writer has published, for the balance of the edge.
    #[must_use]
    pub fn written(&self) -> Put {
        self.ring.written()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.ring.side.leave();
        self.shared.writer_doorbell.notify();
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
    /// Returns the number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Returns true if there are no entries.
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
            Entry::new(RichPointer::hole(0), BlockMetadata::default(), Marks::bare(0))
        }
    }

    /// Copies the entries into these columns, as many as they have room for; answers how many.
    pub fn copy(
        &self,
        pointers: &mut [RichPointer],
        context: &mut [BlockMetadata],
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

    /// Returns true if an entry of this batch points into this slot.
    fn keeps(&self, memory: &Arc<Memory>, slot: usize) -> bool {
        self.entries().any(|entry| {
            let there = |place: Extent| memory.locate(place).is_ok_and(|(found, _)| found == slot);
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

impl super::Origin for Batch<'_> {
    fn lease(&self, pointer: RichPointer) -> Result<Lease, Fault> {
        Batch::lease(self, pointer)
    }
}
