//! Rings that carry rich pointers alone, 16 bytes per entry, written and read one by one or in
//! batches.

use super::{EntryColumns, EntrySlots, PointerReader, PointerWriter, slot_index};
use crate::atomic::Ordering;
use crate::foreign_memory;
use abi::RichPointer;
use zerocopy::IntoBytes;

impl PointerWriter {
    /// Puts a pointer at the head. Neither publishes nor counts the pointer;
    /// [`PointerWriter::count_put_pointers`] counts it later. The caller must have checked that
    /// there is room, and that the ring carries pointers alone.
    #[inline]
    pub fn put_uncounted_pointer(&mut self, pointer: RichPointer) {
        let slots = EntrySlots::new(&self.cursor.store, self.lanes);
        let slot = slots.words.as_chunks::<2>().0.get(slot_index(self.cursor.head, slots.capacity));
        if let Some([place, rest]) = slot {
            let words = pointer.words();
            place.store(words[0], Ordering::Relaxed);
            rest.store(words[1], Ordering::Relaxed);
        }
        self.cursor.head += 1;
        self.cursor.counts.bytes += u64::from(pointer.length());
    }

    /// Makes the writer's block count equal to the head position. Call this after calls to
    /// [`PointerWriter::put_uncounted_pointer`], which do not count their blocks.
    pub const fn count_put_pointers(&mut self) {
        self.cursor.counts.blocks = self.cursor.head;
    }

    /// Puts several pointers at the head, like [`PointerWriter::put_uncounted_pointer`]. The caller
    /// must have checked that there is room. `bytes` is the sum of the pointers' view lengths.
    #[inline]
    pub fn put_uncounted_pointers(&mut self, pointers: &[RichPointer], bytes: u64) {
        let slots = EntrySlots::new(&self.cursor.store, self.lanes);
        let first = slot_index(self.cursor.head, slots.capacity);
        let (first_part, rest) = pointers.split_at(pointers.len().min(slots.entries_to_end(first)));
        foreign_memory::copy_in(slots.words, 2 * first, first_part.as_bytes());
        foreign_memory::copy_in(slots.words, 0, rest.as_bytes());
        self.cursor.head += pointers.len() as u64;
        self.cursor.counts.bytes += bytes;
    }
}

impl PointerReader {
    /// Returns the columns that the ring stores for each entry.
    pub const fn columns(&self) -> EntryColumns {
        self.lanes
    }

    /// Returns the pointer at a published position of a ring that carries pointers alone.
    #[inline]
    pub fn pointer_at_position(&self, position: u64) -> RichPointer {
        RichPointer::from_words(self.slots().slot_words::<2>(position))
    }

    /// Copies published pointers into `out`, beginning at position `from`.
    #[inline]
    pub fn copy_published_pointers(&self, from: u64, out: &mut [RichPointer]) {
        let slots = self.slots();
        let first = slot_index(from, slots.capacity);
        let (first_part, rest) = out.split_at_mut(out.len().min(slots.entries_to_end(first)));
        foreign_memory::copy_out(slots.words, 16 * first, first_part.as_mut_bytes());
        foreign_memory::copy_out(slots.words, 0, rest.as_mut_bytes());
    }
}

impl EntrySlots<'_> {
    /// Returns the number of entries from index `first` to the end of the ring's memory.
    #[inline]
    fn entries_to_end(&self, first: usize) -> usize {
        usize::try_from(self.capacity).unwrap_or(usize::MAX).saturating_sub(first)
    }
}
