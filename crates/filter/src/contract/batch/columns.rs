//! The columns of a batch: one array for each property of its blocks.

use super::lanes::{LANES, Lane, LaneMask, first_lanes_mask};
use abi::{BlockMetadata, Class, Entry, Marks, RichPointer};

/// The columns of a batch. They describe the blocks of the batch, but do not contain their bytes. A
/// source fills the columns, or the engine reads them from a ring.
#[derive(Clone, Debug)]
pub struct Columns {
    pub(super) len: usize,
    pub(super) live: LaneMask,
    /// Sum of the view lengths of all lanes when they were filled, in bytes.
    pub(super) bytes: u64,
    /// True if any lane was filled with a block that has no class.
    pub(super) has_unanswered: bool,
    pub(super) pointers: [RichPointer; LANES],
    pub(super) marks: [Marks; LANES],
    pub(super) context: [BlockMetadata; LANES],
    /// The sequence number of the block in each lane. It was assigned at the last fork: the last
    /// node with several outgoing arcs (CONTRACT 16). A block made by a filter has the number of
    /// the block from which it was made.
    pub(super) sequence_numbers: [u32; LANES],
    /// The byte of each lane's view at the offset [`KnownFacts::byte_column_offset`]. Valid only if
    /// that offset is set.
    pub(super) byte_column: [u8; LANES],
}

impl Default for Columns {
    fn default() -> Self {
        Self {
            len: 0,
            live: 0,
            bytes: 0,
            has_unanswered: false,
            pointers: [RichPointer::default(); LANES],
            marks: [Marks::default(); LANES],
            context: [BlockMetadata::default(); LANES],
            sequence_numbers: [0; LANES],
            byte_column: [0; LANES],
        }
    }
}

impl Columns {
    /// Adds a block. Returns false, without adding it, if all lanes are in use.
    #[inline]
    pub fn push(&mut self, entry: Entry) -> bool {
        let l = self.len;
        if l >= LANES {
            return false;
        }
        self.pointers[l] = entry.pointer;
        self.marks[l] = entry.marks;
        self.context[l] = entry.context;
        self.sequence_numbers[l] = l as u32;
        self.live |= 1 << l;
        self.len = l + 1;
        self.bytes += u64::from(entry.pointer.length());
        self.has_unanswered |= !entry.pointer.class.is_answered();
        true
    }

    /// Adds a block with sequence number `order`. Returns false, without adding the block, if all
    /// lanes are in use.
    #[inline]
    pub fn push_with_sequence_number(&mut self, entry: Entry, order: u32) -> bool {
        let l = self.len;
        let added = self.push(entry);
        if added {
            self.sequence_numbers[l] = order;
        }
        added
    }

    /// Loads the sequence numbers that another space has stored in the marks with
    /// [`Batch::store_sequence_numbers`](super::Batch::store_sequence_numbers).
    #[inline]
    pub fn load_sequence_numbers(&mut self) {
        for (order, marks) in self.sequence_numbers.iter_mut().zip(&self.marks).take(self.len) {
            *order = marks.seq().0;
        }
    }

    /// Returns the sequence number of this lane's block. A block made by a filter has the number of
    /// the block from which it was made.
    #[inline]
    #[must_use]
    pub fn sequence_number(&self, l: Lane) -> u32 {
        self.sequence_numbers[l]
    }

    /// Returns the mask of live lanes in these columns.
    #[inline]
    #[must_use]
    pub fn live_lanes(&self) -> LaneMask {
        self.live
    }

    /// Adds blocks until all lanes are in use or the iterator is empty. Returns the number of
    /// blocks added. Entries that were not added stay in the iterator.
    #[inline]
    pub fn extend(&mut self, entries: &mut impl Iterator<Item = Entry>) -> usize {
        let first = self.len.min(LANES);
        let pointers = self.pointers[first..].iter_mut();
        let others = self.marks[first..].iter_mut().zip(&mut self.context[first..]);
        let (mut added, mut bytes, mut unanswered) = (0, 0, false);
        for ((pointer, (marks, context)), entry) in pointers.zip(others).zip(entries) {
            (*pointer, *marks, *context) = (entry.pointer, entry.marks, entry.context);
            bytes += u64::from(entry.pointer.length());
            unanswered |= !entry.pointer.class.is_answered();
            added += 1;
        }
        self.bytes += bytes;
        self.has_unanswered |= unanswered;
        self.mark_lanes_used(first, added);
        added
    }

    /// Adds the blocks that `fill` writes into the free lanes. `fill` returns the number of blocks
    /// that it has written.
    #[inline]
    pub fn fill(
        &mut self,
        fill: impl FnOnce(&mut [RichPointer], &mut [BlockMetadata], &mut [Marks]) -> usize,
    ) {
        let first = self.len.min(LANES);
        let (pointers, context) = (&mut self.pointers[first..], &mut self.context[first..]);
        let count = fill(pointers, context, &mut self.marks[first..]);
        let (mut bytes, mut unanswered) = (0, false);
        for pointer in self.pointers[first..].iter().take(count) {
            bytes += u64::from(pointer.length());
            unanswered |= !pointer.class.is_answered();
        }
        self.bytes += bytes;
        self.has_unanswered |= unanswered;
        self.mark_lanes_used(first, count.min(LANES - first));
    }

    /// Marks `count` lanes as used and live, beginning with lane `first`. Sets the sequence number
    /// of each of these lanes to the index of the lane.
    #[inline]
    fn mark_lanes_used(&mut self, first: Lane, count: usize) {
        for (l, order) in self.sequence_numbers.iter_mut().enumerate().skip(first).take(count) {
            *order = l as u32;
        }
        self.len = first + count;
        self.live |= first_lanes_mask(self.len) & !first_lanes_mask(first);
    }

    /// Returns the facts that are known about columns as soon as they are filled: the lengths of
    /// the views in bytes, in total, and whether every block has a class.
    #[inline]
    pub(super) fn initial_facts(&self) -> KnownFacts {
        let answered = (!self.has_unanswered).then_some(self.live);
        KnownFacts {
            answered_lanes: answered,
            bytes: Some((self.live, self.bytes)),
            ..KnownFacts::default()
        }
    }

    /// Removes all blocks from the columns.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
        self.live = 0;
        self.bytes = 0;
        self.has_unanswered = false;
    }

    /// Returns the number of lanes in use, live or not.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no lane is in use.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the block in this lane as an entry of a ring.
    #[inline]
    #[must_use]
    pub fn entry(&self, l: Lane) -> Entry {
        Entry::new(self.pointers[l], self.context[l], self.marks[l])
    }

    /// Returns the timestamp of the newest block in ns, or `None` if there is no block.
    #[must_use]
    pub fn newest_timestamp(&self) -> Option<u64> {
        self.context[..self.len.min(LANES)].iter().map(|c| c.time).max()
    }

    /// Returns the rich pointer to the entire frame of the block in this lane.
    #[inline]
    #[must_use]
    pub fn frame(&self, l: Lane) -> RichPointer {
        let Marks { view, captured, .. } = self.marks[l];
        self.pointers[l].extended_back(view, captured)
    }

    /// Returns the rich pointer of the block in this lane.
    #[inline]
    #[must_use]
    pub fn pointer(&self, l: Lane) -> RichPointer {
        self.pointers[l]
    }
}

/// Facts about the columns, cached for the ledger and for filters. `None` stands for an unknown
/// fact.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownFacts {
    /// Lanes whose blocks have a class; `None` if unknown.
    pub(super) answered_lanes: Option<LaneMask>,
    /// A set of lanes, and the sum of the lengths in bytes of the views in these lanes. `None` if
    /// no sum is known.
    pub(super) bytes: Option<(LaneMask, u64)>,
    /// Offset in each view of the bytes in [`Columns::byte_column`]; `None` if these bytes are not
    /// loaded.
    pub(super) byte_column_offset: Option<usize>,
    /// The class that all lanes in use have. `None` if their classes differ or are unknown.
    pub(super) class: Option<Class>,
}
