//! The reader's end of a crossing. Reads batches of entries, whose bytes stay in place while the
//! batch lives. Invariants: C4 and C5 of [`crossing`](super).

use super::shared::Shared;
use crate::ibuf;
use crate::pool::{Lease, PoolMemory, Segment};
use crate::{Fault, ReaderCounts, WriterCounts};
use abi::{BlockMetadata, Entry, Extent, Marks, RichPointer};
use std::cell::Cell;
use std::sync::Arc;

/// The reader's end of a crossing.
#[derive(Debug)]
pub struct CrossingReader {
    ring: ibuf::PointerReader,
    shared: Arc<Shared>,
    /// Extent of the last [`Batch::copy_columns`]: the position of the first copied entry, the
    /// number of copied entries, and the sum of their view lengths in bytes.
    copied: Cell<(u64, usize, u64)>,
}

impl CrossingReader {
    pub(super) fn new(ring: ibuf::PointerReader, shared: Arc<Shared>) -> Self {
        Self { ring, shared, copied: Cell::default() }
    }

    /// Loads the writer's published position, so that the next [`CrossingReader::peek`] returns all
    /// entries published before this call. Without this call, the position is loaded only after all
    /// entries up to the last loaded position have been taken.
    pub fn refresh(&mut self) -> Result<(), Fault> {
        self.ring.cursor.refresh_published_position()?;
        // Follows a writer that has resized the ring.
        self.ring.cursor.available_position().map(drop)
    }

    /// Returns a batch of up to `max` unread entries without releasing them. The batch is empty if
    /// no unread entry is published. Does not block.
    pub fn peek(&mut self, max: usize) -> Result<Batch<'_>, Fault> {
        let count = self.ring.unread_entries()?.min(max);
        Ok(Batch { reader: self, count })
    }

    /// Releases the first `count` unread entries, after which the writer may reuse their bytes. If
    /// the writer is waiting for room and at least half of the ring is free, notifies the writer.
    pub fn release(&mut self, count: usize) -> Result<(), Fault> {
        let count = self.ring.unread_entries()?.min(count);
        let first = self.ring.cursor.next;
        let bytes = match self.copied.get() {
            (from, copied, bytes) if (from, copied) == (first, count) => bytes,
            _ => {
                let slots = self.ring.slots();
                (0..count as u64).map(|i| u64::from(slots.view_length(first + i))).sum()
            }
        };
        let side = &mut self.ring.cursor;
        side.next += count as u64;
        side.taken.blocks += count as u64;
        side.taken.bytes += bytes;
        side.release();
        if side.unreleased_count() <= side.store.capacity / 2 {
            self.shared.writer_doorbell.notify_freed_room();
        }
        Ok(())
    }

    /// Returns the number of unread entries.
    pub fn unread_entries(&mut self) -> Result<usize, Fault> {
        self.ring.unread_entries()
    }

    /// Returns true if the writer has exited. No entry is added after a call that returned true.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.ring.is_closed()
    }

    /// Returns true if the writer has exited and all entries have been taken. Finished readers
    /// should be dropped, because the ring holds the writer's remaining leases until then.
    pub fn is_finished(&mut self) -> Result<bool, Fault> {
        self.ring.is_finished()
    }

    /// Returns the counts of this reader: blocks and bytes taken, blocks lost and skipped.
    #[must_use]
    pub const fn counts(&self) -> ReaderCounts {
        self.ring.counts()
    }

    /// Returns the writer's counts, as last published: blocks and bytes put, blocks and bytes
    /// dropped.
    #[must_use]
    pub fn writer_counts(&self) -> WriterCounts {
        self.ring.writer_counts()
    }
}

impl Drop for CrossingReader {
    fn drop(&mut self) {
        self.ring.cursor.leave();
        self.shared.writer_doorbell.notify();
    }
}

/// Unread entries of a crossing. While the batch lives, the entries are not released and their
/// bytes stay in place (C5).
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    reader: &'a CrossingReader,
    count: usize,
}

impl<'a> Batch<'a> {
    /// Returns the number of entries in the batch.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Returns true if the batch has no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns a copy of the entry at `index`, or an empty hole if there is no such entry.
    #[inline]
    #[must_use]
    pub fn entry(&self, index: usize) -> Entry {
        if index < self.count {
            self.reader.ring.load(self.reader.ring.cursor.next + index as u64)
        } else {
            Entry::new(RichPointer::hole(0), BlockMetadata::default(), Marks::for_plain_block(0))
        }
    }

    /// Copies the first entries of the batch into columns, as many as fit into the shortest column.
    /// Returns the number of entries copied.
    pub fn copy_columns(
        &self,
        pointers: &mut [RichPointer],
        context: &mut [BlockMetadata],
        marks: &mut [Marks],
    ) -> usize {
        let count = self.count.min(pointers.len()).min(context.len()).min(marks.len());
        let (pointers, context) = (&mut pointers[..count], &mut context[..count]);
        let first = self.reader.ring.cursor.next;
        let bytes = self.reader.ring.copy_to_columns(first, pointers, context, &mut marks[..count]);
        self.reader.copied.set((first, count, bytes));
        count
    }

    /// Iterates over all entries of the batch.
    #[inline]
    pub fn entries(&self) -> impl Iterator<Item = Entry> + use<'a> {
        let ring = &self.reader.ring;
        let (slots, first) = (ring.slots(), ring.cursor.next);
        (first..first + self.count as u64).map(move |position| slots.load(position))
    }

    /// Returns the view of one entry. Fails with [`Fault::Hole`] if the entry is a hole or does not
    /// exist.
    pub fn bytes(&self, index: usize) -> Result<&'a [u8], Fault> {
        self.block_bytes(self.entry(index).pointer)
    }

    /// Returns the frame of one entry: the view and the bytes around it. Fails with [`Fault::Hole`]
    /// if the entry is a hole or does not exist.
    pub fn frame(&self, index: usize) -> Result<&'a [u8], Fault> {
        self.block_bytes(self.entry(index).frame())
    }

    /// Returns the filled part of the segment that contains an entry's frame, like
    /// [`Pool::segment`](crate::pool::Pool::segment). Returns `None` if the entry is a hole or does
    /// not exist.
    #[must_use]
    pub fn segment(&self, index: usize) -> Option<Segment<'a>> {
        let frame = self.entry(index).frame();
        let memory = self.find_memory(frame).ok()?;
        let (slot, start) = memory.enclosing_segment(frame)?;
        // SAFETY: `enclosing_segment` found the slot resident, with `filled` bytes from its start
        // inside the region. The frame belongs to an entry of this batch, so its segment is leased
        // while the reader is borrowed (C5), hence the bytes are not written (M1, M4).
        let bytes = unsafe { memory.bytes(start.at, memory.slots.filled_len(slot)) };
        Some(Segment { dbuf: memory.id, start: start.position, bytes })
    }

    /// Returns the bytes of a block in a segment that an entry of this batch points into, such as
    /// the entry's view or a part of it. Fails with a [`Fault`] for a block outside the batch's
    /// segments.
    pub fn resolve(&self, pointer: RichPointer) -> Result<&'a [u8], Fault> {
        if pointer.is_hole() {
            return Err(Fault::Hole);
        }
        let memory = self.find_memory(pointer)?;
        let (slot, _) = memory.locate(pointer.place)?;
        if self.has_entry_in(memory, slot) {
            self.block_bytes(pointer)
        } else {
            Err(Fault::OutOfWindow(pointer.place))
        }
    }

    /// Leases the segment that contains a block of this batch, so that the block can outlive the
    /// batch. Fails with a [`Fault`] for a block outside the batch's segments.
    pub fn lease(&self, pointer: RichPointer) -> Result<Lease, Fault> {
        let memory = self.find_memory(pointer)?;
        let (slot, _) = memory.locate(pointer.place)?;
        if self.has_entry_in(memory, slot) {
            // M4: created from a batch, whose writer has a lease on this very segment (C5).
            Ok(Lease::new(memory, slot))
        } else {
            Err(Fault::OutOfWindow(pointer.place))
        }
    }

    /// Returns true if an entry of this batch points into slot `slot` of `memory`.
    fn has_entry_in(&self, memory: &Arc<PoolMemory>, slot: usize) -> bool {
        self.entries().any(|entry| {
            let is_in_slot =
                |place: Extent| memory.locate(place).is_ok_and(|(found, _)| found == slot);
            entry.pointer.dbuf() == memory.id
                && (is_in_slot(entry.pointer.place) || is_in_slot(entry.frame().place))
        })
    }

    fn find_memory(&self, pointer: RichPointer) -> Result<&'a Arc<PoolMemory>, Fault> {
        let shared: &'a Shared = &self.reader.shared;
        shared.find_memory(pointer.dbuf()).ok_or_else(|| Fault::UnknownDbuf(pointer.dbuf()))
    }

    /// Returns the bytes of a block. The caller must ensure that an entry of this batch points into
    /// the block's segment; the block may be that entry's view or frame. Fails with a [`Fault`] if
    /// the block is a hole or not published.
    fn block_bytes(&self, pointer: RichPointer) -> Result<&'a [u8], Fault> {
        if pointer.is_hole() {
            return Err(Fault::Hole);
        }
        let memory = self.find_memory(pointer)?;
        let (_, at) = memory.locate(pointer.place)?;
        // SAFETY: `locate` found the bytes inside the region and below `filled`. The pointer is the
        // view or the frame of an entry of this batch, or is in the same segment as one of them, so
        // the segment is leased while the reader is borrowed (C5), hence the bytes are not written
        // (M4).
        Ok(unsafe { memory.bytes(at, pointer.length() as usize) })
    }
}

impl super::Origin for Batch<'_> {
    fn lease(&self, pointer: RichPointer) -> Result<Lease, Fault> {
        Batch::lease(self, pointer)
    }
}
