//! Rings of pointers alone: 16 bytes an entry, moved one by one or in batches.

use super::{EntrySlots, Lanes, Reader, Writer, index};
use crate::atomic::Ordering;
use crate::foreign;
use abi::RichPointer;
use zerocopy::IntoBytes;

impl Writer {
    /// Puts a pointer where the head is; it is not shown yet, and counted by
    /// [`Writer::count_bare`]. The caller has looked for room, and the ring carries pointers alone.
    #[inline]
    pub fn put_bare(&mut self, pointer: RichPointer) {
        let slots = EntrySlots::of(&self.side.store, self.lanes);
        let slot = slots.words.as_chunks::<2>().0.get(index(self.side.head, slots.capacity));
        if let Some([place, rest]) = slot {
            let words = pointer.words();
            place.store(words[0], Ordering::Relaxed);
            rest.store(words[1], Ordering::Relaxed);
        }
        self.side.head += 1;
        self.side.put.bytes += u64::from(pointer.length());
    }

    /// Counts the blocks that were put: as many as positions were passed.
    pub const fn count_bare(&mut self) {
        self.side.put.blocks = self.side.head;
    }

    /// As [`Writer::put_bare`], for as many pointers as there is room for, with so many bytes in
    /// view.
    #[inline]
    pub fn put_all_bare(&mut self, pointers: &[RichPointer], bytes: u64) {
        let slots = EntrySlots::of(&self.side.store, self.lanes);
        let first = index(self.side.head, slots.capacity);
        let (here, rest) = pointers.split_at(pointers.len().min(slots.before_the_end(first)));
        foreign::copy_in(slots.words, 2 * first, here.as_bytes());
        foreign::copy_in(slots.words, 0, rest.as_bytes());
        self.side.head += pointers.len() as u64;
        self.side.put.bytes += bytes;
    }
}

impl Reader {
    /// Returns the columns of an entry.
    pub const fn lanes(&self) -> Lanes {
        self.lanes
    }

    /// The pointer at a position that is published, of a ring of pointers alone.
    #[inline]
    pub fn bare_at(&self, position: u64) -> RichPointer {
        RichPointer::from_words(self.slots().words::<2>(position))
    }

    /// Copies the pointers from a position on, all of them published.
    #[inline]
    pub fn copy_bare(&self, from: u64, out: &mut [RichPointer]) {
        let slots = self.slots();
        let first = index(from, slots.capacity);
        let (here, rest) = out.split_at_mut(out.len().min(slots.before_the_end(first)));
        foreign::copy_out(slots.words, 16 * first, here.as_mut_bytes());
        foreign::copy_out(slots.words, 0, rest.as_mut_bytes());
    }
}

impl EntrySlots<'_> {
    /// Returns the entries from this one to the end of the ring's memory.
    #[inline]
    fn before_the_end(&self, first: usize) -> usize {
        usize::try_from(self.capacity).unwrap_or(usize::MAX).saturating_sub(first)
    }
}
