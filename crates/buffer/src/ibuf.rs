//! Rings of rich pointers and their metadata columns. [SL §5.3]
//!
//! Entries of 16 bytes (pointer), 32 (with the metadata column) or 64 (with the marks) flow from
//! one writer to several readers, each with its own position. Entries are copied as words: they
//! describe memory and grant no access to it, so this file needs no unsafe code. In a ring that
//! overwrites, a reader copies entries, then checks that the writer has not overwritten them, and
//! counts its losses exactly.
//!
//! Both sides publish their position once per call, so callers should push and read entire batches.

use crate::atomic::{AtomicU64, Ordering};
use crate::cursor::{DATA_OFFSET_WORDS, ReaderCursor, RingMemory, WriterCursor};
use crate::{Fault, OverflowPolicy, ReaderCounts, WriterCounts};
use abi::{BlockMetadata, Entry, Marks, RichPointer};
use std::sync::Arc;

#[cfg(not(loom))]
mod pointer_only;

/// The columns that a ring stores for each entry. They determine the size of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EntryColumns {
    /// The rich pointer alone: 16 bytes.
    Pointer,
    /// The rich pointer of the block and its metadata: 32 bytes.
    Metadata,
    /// The pointer, the metadata and the marks: 64 bytes, one cache line.
    #[default]
    Marks,
}

impl EntryColumns {
    /// Returns the size of an entry in bytes.
    #[must_use]
    pub const fn stride(self) -> usize {
        match self {
            Self::Pointer => 16,
            Self::Metadata => 32,
            Self::Marks => 64,
        }
    }
}

/// Dimensions and policy of a ring of rich pointers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingConfig {
    /// Capacity in entries; rounded up to a power of two.
    pub entries: usize,
    /// Columns that the ring stores for each entry.
    pub columns: EntryColumns,
    /// Policy that applies when the ring is full.
    pub policy: OverflowPolicy,
    /// Number of readers.
    pub readers: usize,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self {
            entries: 4096,
            columns: EntryColumns::Marks,
            policy: OverflowPolicy::Block,
            readers: 1,
        }
    }
}

/// Maximum number of times that a lapped reader tries to copy intact entries. If every attempt
/// fails, [`PointerReader::read`] returns only a count of losses.
const READ_ATTEMPTS_MAX: usize = 8;

/// Creates a ring for threads of this process.
#[must_use]
pub fn ring(config: &RingConfig) -> (PointerWriter, Vec<PointerReader>) {
    let entries = config.entries.max(1).next_power_of_two();
    let words = entries * config.columns.stride() / 8;
    let store = RingMemory::heap(words, entries as u64, config.policy, config.readers);
    let reader =
        |index| PointerReader::new(ReaderCursor::new(store.clone(), index), config.columns);
    let readers = (0..config.readers).map(reader).collect();
    (PointerWriter::new(store, config.columns), readers)
}

/// The result of pushing entries into a ring of rich pointers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PushResult {
    /// Number of entries put into the ring. They are the first of the pushed entries.
    pub put: usize,
    /// Number of the remaining entries that the ring dropped and counted
    /// ([`OverflowPolicy::DropNew`]). Under [`OverflowPolicy::Block`] the number is 0, and the
    /// caller waits and pushes the remaining entries again.
    pub dropped: usize,
}

/// A batch of entries as columns of equal length.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'e> {
    /// Rich pointer of each block.
    pub pointers: &'e [RichPointer],
    /// Metadata of each block.
    pub metadata: &'e [BlockMetadata],
    /// Marks of each block.
    pub marks: &'e [Marks],
}

/// The only writer of a ring of rich pointers.
#[derive(Debug)]
pub struct PointerWriter {
    /// Cursor of the writer, for streams built on this ring.
    pub cursor: WriterCursor,
    pub(crate) lanes: EntryColumns,
}

impl PointerWriter {
    pub(crate) fn new(store: Arc<RingMemory>, lanes: EntryColumns) -> Self {
        Self { cursor: WriterCursor::new(store), lanes }
    }

    /// Puts and publishes as many entries as the policy admits. Fails with [`Fault::Abandoned`] if
    /// all readers have left, unless the policy is [`OverflowPolicy::Overwrite`].
    pub fn push(&mut self, entries: &[Entry]) -> Result<PushResult, Fault> {
        if self.cursor.store.policy == OverflowPolicy::Overwrite {
            for chunk in entries.chunks(self.capacity().div_ceil(2)) {
                self.cursor.announce_overwrite(self.cursor.head + chunk.len() as u64);
                self.write(chunk.iter().copied(), |_, _| Ok(()))?;
                self.cursor.publish();
            }
            return Ok(PushResult { put: entries.len(), dropped: 0 });
        }
        let fitting = self.count_fitting_entries(entries.len())?;
        self.put(&mut entries.iter().copied(), fitting, |_, _| Ok(()))
    }

    /// Puts and publishes the first `fitting` entries, where `fitting` is a result of
    /// [`PointerWriter::count_fitting_entries`]. First calls `check` for each of these entries,
    /// with the position after the entry; if a check fails, puts nothing and fails with the same
    /// fault. The remaining entries are dropped and counted, or left in the iterator, depending on
    /// the policy.
    #[inline]
    pub(crate) fn put(
        &mut self,
        entries: &mut impl Iterator<Item = Entry>,
        fitting: usize,
        check: impl FnMut(&Entry, u64) -> Result<(), Fault>,
    ) -> Result<PushResult, Fault> {
        let put = self.write(entries.by_ref().take(fitting), check)?;
        let mut pushed = PushResult { put, dropped: 0 };
        if self.cursor.store.policy == OverflowPolicy::DropNew {
            for dropped in entries {
                pushed.dropped += 1;
                self.cursor.counts.dropped_bytes += u64::from(dropped.pointer.length());
            }
            self.cursor.counts.dropped += pushed.dropped as u64;
        }
        self.cursor.publish();
        Ok(pushed)
    }

    /// Puts and publishes all entries. [`PointerWriter::count_fitting_entries`] must have found
    /// room for them. `bytes` is the sum of the entries' view lengths.
    pub(crate) fn put_columns(&mut self, entries: Columns<'_>, bytes: u64) {
        let slots = EntrySlots::new(&self.cursor.store, self.lanes);
        let Columns { pointers, metadata: context, marks } = entries;
        let both = pointers.iter().zip(context);
        let head = self.cursor.head;
        match self.lanes {
            EntryColumns::Marks => slots.store_entries::<8>(
                head,
                both.zip(marks).map(|((pointer, context), marks)| {
                    zerocopy::transmute!(Entry::new(*pointer, *context, *marks))
                }),
            ),
            EntryColumns::Metadata => slots.store_entries::<4>(
                head,
                both.map(|(pointer, context)| {
                    let [[p0, p1], [c0, c1]]: [[u64; 2]; 2] =
                        [zerocopy::transmute!(*pointer), zerocopy::transmute!(*context)];
                    [p0, p1, c0, c1]
                }),
            ),
            EntryColumns::Pointer => slots.store_entries::<2>(
                head,
                pointers.iter().map(|pointer| zerocopy::transmute!(*pointer)),
            ),
        }
        self.cursor.head += pointers.len() as u64;
        self.cursor.counts.blocks += pointers.len() as u64;
        self.cursor.counts.bytes += bytes;
        self.cursor.publish();
    }

    /// Returns how many entries, up to `wanted`, fit into the ring now. Fails with
    /// [`Fault::Abandoned`] if all readers have left.
    pub(crate) fn count_fitting_entries(&mut self, wanted: usize) -> Result<usize, Fault> {
        let room = self.free_entries(wanted)?;
        if self.cursor.is_abandoned() { Err(Fault::Abandoned) } else { Ok(room.min(wanted)) }
    }

    /// Returns the capacity of the ring in entries.
    #[must_use]
    pub fn capacity(&self) -> usize {
        usize::try_from(self.cursor.store.capacity).unwrap_or(usize::MAX)
    }

    /// Continues in new memory of this process, with room for `entries` entries, rounded up to a
    /// power of two. Entries put earlier stay in the old memory until they are read; the call does
    /// not wait for readers. Allocates. Does nothing and returns false if a reader has not yet
    /// followed the last change.
    pub(crate) fn resize(&mut self, entries: usize) -> bool {
        let entries = entries.max(1).next_power_of_two();
        self.cursor.continue_in_new_memory(entries * self.lanes.stride() / 8, entries as u64)
    }

    /// Returns the number of entries that the slowest reader has not released yet.
    pub(crate) fn unreleased_entries(&mut self) -> usize {
        // The refresh evicts a lying reader; the next check for room reports the eviction.
        let _ = self.cursor.refresh_reader_positions();
        usize::try_from(self.cursor.head.saturating_sub(self.cursor.oldest_needed_position()))
            .unwrap_or(usize::MAX)
    }

    /// Returns the number of free entries in the ring. Reads the readers' cursors only if the
    /// cached cursors show fewer than `wanted` free entries.
    pub fn free_entries(&mut self, wanted: usize) -> Result<usize, Fault> {
        Ok(usize::try_from(self.cursor.free_positions(wanted as u64)?).unwrap_or(usize::MAX))
    }

    /// Returns true if all readers have left.
    pub fn is_abandoned(&mut self) -> bool {
        // The refresh evicts a lying reader; only the remaining readers matter here.
        let _ = self.cursor.refresh_reader_positions();
        self.cursor.is_abandoned()
    }

    /// Returns the number of readers evicted for an impossible position.
    #[must_use]
    pub const fn evicted_readers(&self) -> u64 {
        self.cursor.evicted_readers()
    }

    /// Returns the counts of this writer: blocks and bytes put, blocks and bytes dropped.
    #[must_use]
    pub const fn counts(&self) -> WriterCounts {
        self.cursor.counts
    }

    /// Returns the counts that a reader has published, or `None` if there is no such reader.
    #[must_use]
    pub fn reader_counts(&self, reader: usize) -> Option<ReaderCounts> {
        self.cursor.store.reader_counts(reader)
    }

    #[inline]
    fn write(
        &mut self,
        entries: impl Iterator<Item = Entry>,
        mut check: impl FnMut(&Entry, u64) -> Result<(), Fault>,
    ) -> Result<usize, Fault> {
        let slots = EntrySlots::new(&self.cursor.store, self.lanes);
        let (start, mut head, mut bytes) = (self.cursor.head, self.cursor.head, 0);
        for entry in entries {
            check(&entry, head + 1)?;
            bytes += u64::from(entry.pointer.length());
            slots.store(head, entry);
            head += 1;
        }
        let count = head - start;
        self.cursor.head = head;
        self.cursor.counts.blocks += count;
        self.cursor.counts.bytes += bytes;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }
}

impl Drop for PointerWriter {
    fn drop(&mut self) {
        self.cursor.close();
    }
}

/// The result of reading entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadResult {
    /// Number of entries copied.
    pub count: usize,
    /// Number of entries overwritten before they could be read ([`OverflowPolicy::Overwrite`]).
    pub lost: u64,
}

/// One reader of a ring of rich pointers.
#[derive(Debug)]
pub struct PointerReader {
    /// Cursor of the reader, for streams built on this ring.
    pub cursor: ReaderCursor,
    lanes: EntryColumns,
}

impl PointerReader {
    pub(crate) const fn new(side: ReaderCursor, lanes: EntryColumns) -> Self {
        Self { cursor: side, lanes }
    }

    /// Copies up to `out.len()` entries and releases them to the writer.
    pub fn read(&mut self, out: &mut [Entry]) -> Result<ReadResult, Fault> {
        let read = match self.cursor.store.policy {
            OverflowPolicy::Overwrite => self.read_lossy(out)?,
            OverflowPolicy::Block | OverflowPolicy::DropNew => {
                let count = self.unread_entries()?.min(out.len());
                for (to, i) in out.iter_mut().zip(0..count as u64) {
                    *to = self.load(self.cursor.next + i);
                }
                self.take_entries(out.get(..count).unwrap_or_default());
                ReadResult { count, lost: 0 }
            }
        };
        self.cursor.release();
        Ok(read)
    }

    /// Returns the number of unread entries.
    pub fn unread_entries(&mut self) -> Result<usize, Fault> {
        let ahead = self.cursor.available_position()?.wrapping_sub(self.cursor.next);
        Ok(usize::try_from(ahead).unwrap_or(usize::MAX))
    }

    /// Returns true if the writer has closed the ring. No entry is added after a call that returned
    /// true.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.cursor.is_closed()
    }

    /// Returns true if the writer has closed the ring and all entries have been read.
    pub fn is_finished(&mut self) -> Result<bool, Fault> {
        self.cursor.is_finished()
    }

    /// Returns the counts of this reader: blocks and bytes taken, blocks lost and skipped.
    #[must_use]
    pub const fn counts(&self) -> ReaderCounts {
        self.cursor.taken
    }

    /// Returns the counts that the writer has published.
    #[must_use]
    pub fn writer_counts(&self) -> WriterCounts {
        self.cursor.store.writer_counts()
    }

    fn read_lossy(&mut self, out: &mut [Entry]) -> Result<ReadResult, Fault> {
        let capacity = self.cursor.store.capacity;
        let mut lost = 0;
        for _ in 0..READ_ATTEMPTS_MAX {
            let commit = self.cursor.refresh_published_position()?;
            let start = self.cursor.next;
            let count = commit.wrapping_sub(start).min(out.len() as u64);
            for (to, i) in out.iter_mut().zip(0..count) {
                *to = self.load(start + i);
            }
            if !self.cursor.is_overtaken(start) {
                let count = usize::try_from(count).unwrap_or(0);
                self.take_entries(out.get(..count).unwrap_or_default());
                return Ok(ReadResult { count, lost });
            }
            // Half a lap of distance makes the next attempt likely to succeed.
            let restart = self.cursor.refresh_published_position()?.saturating_sub(capacity / 2);
            if restart <= start {
                // The writer is overwriting all that it has published.
                break;
            }
            lost += restart - start;
            self.cursor.taken.lost += restart - start;
            self.cursor.next = restart;
        }
        Ok(ReadResult { count: 0, lost })
    }

    pub(crate) fn take_entries(&mut self, entries: &[Entry]) {
        self.cursor.next += entries.len() as u64;
        self.cursor.taken.blocks += entries.len() as u64;
        self.cursor.taken.bytes += total_view_length(entries);
    }

    /// Returns the entry at a published position.
    #[inline]
    pub(crate) fn load(&self, position: u64) -> Entry {
        self.slots().load(position)
    }

    /// Copies published entries into columns of equal length, beginning at position `from`. Returns
    /// the sum of the entries' view lengths in bytes.
    pub(crate) fn copy_to_columns(
        &self,
        from: u64,
        pointers: &mut [RichPointer],
        context: &mut [BlockMetadata],
        marks: &mut [Marks],
    ) -> u64 {
        let mut bytes = 0;
        let mut add_length = |pointer: RichPointer| {
            bytes += u64::from(pointer.length());
            pointer
        };
        let columns = pointers.iter_mut().zip(context).zip(marks);
        match self.lanes {
            EntryColumns::Marks => {
                self.slots().load_entries(from, columns, |((pointer, context), marks), words| {
                    let [p0, p1, c0, c1, m @ ..]: [u64; 8] = words;
                    *pointer = add_length(RichPointer::from_words([p0, p1]));
                    *context = zerocopy::transmute!([c0, c1]);
                    *marks = zerocopy::transmute!(m);
                });
            }
            EntryColumns::Metadata => {
                self.slots().load_entries(from, columns, |((pointer, context), marks), words| {
                    let [p0, p1, c0, c1]: [u64; 4] = words;
                    *pointer = add_length(RichPointer::from_words([p0, p1]));
                    *context = zerocopy::transmute!([c0, c1]);
                    *marks = Marks::for_plain_block(pointer.length());
                });
            }
            EntryColumns::Pointer => {
                self.slots().load_entries(from, columns, |((pointer, context), marks), words| {
                    *pointer = add_length(RichPointer::from_words(words));
                    *context = BlockMetadata::default();
                    *marks = Marks::for_plain_block(pointer.length());
                });
            }
        }
        bytes
    }

    /// Returns the slots of all entries, for callers that load many of them.
    #[inline]
    pub(crate) fn slots(&self) -> EntrySlots<'_> {
        EntrySlots::new(&self.cursor.store, self.lanes)
    }
}

/// The data of a ring, as slots of one entry each.
#[derive(Clone, Copy)]
pub(crate) struct EntrySlots<'s> {
    words: &'s [AtomicU64],
    capacity: u64,
    lanes: EntryColumns,
}

impl<'s> EntrySlots<'s> {
    fn new(store: &'s RingMemory, lanes: EntryColumns) -> Self {
        let words = store.writer.words().get(DATA_OFFSET_WORDS..).unwrap_or_default();
        Self { words, capacity: store.capacity, lanes }
    }

    /// Stores the columns of an entry. The ring must have room for the entry.
    ///
    /// In a loop over entries, the compiler moves the match on the columns out of the loop, so that
    /// the loop body becomes straight-line code. The same holds for [`EntrySlots::load`].
    #[inline(always)]
    fn store(self, position: u64, entry: Entry) {
        let words: [u64; 8] = zerocopy::transmute!(entry);
        match self.lanes {
            EntryColumns::Marks => self.store_entry_words::<8>(position, words),
            EntryColumns::Metadata => self.store_entry_words::<4>(position, words),
            EntryColumns::Pointer => self.store_entry_words::<2>(position, words),
        }
    }

    #[inline(always)]
    fn store_entry_words<const N: usize>(self, position: u64, words: [u64; 8]) {
        if let Some(slot) = self.words.as_chunks::<N>().0.get(slot_index(position, self.capacity)) {
            for (word, value) in slot.iter().zip(words) {
                word.store(value, Ordering::Relaxed);
            }
        }
    }

    /// Stores at most one lap of entries in consecutive slots, beginning at position `from`.
    #[inline]
    fn store_entries<const N: usize>(self, from: u64, mut entries: impl Iterator<Item = [u64; N]>) {
        for part in self.slots_from::<N>(from) {
            // `part` ends first and is polled first, so no entry is lost between the two parts.
            for (slot, words) in part.iter().zip(&mut entries) {
                for (word, value) in slot.iter().zip(words) {
                    word.store(value, Ordering::Relaxed);
                }
            }
        }
    }

    /// Loads the words of consecutive entries, beginning with the entry at position `from`, and
    /// calls `put` for each entry. Each call also gets the next element of `places`. Ends when
    /// `places` has no more elements, or after one lap.
    #[inline]
    fn load_entries<const N: usize, P>(
        self,
        from: u64,
        mut places: impl Iterator<Item = P>,
        mut put: impl FnMut(P, [u64; N]),
    ) {
        for part in self.slots_from::<N>(from) {
            for (slot, place) in part.iter().zip(&mut places) {
                put(place, slot.each_ref().map(|word| word.load(Ordering::Relaxed)));
            }
        }
    }

    /// Returns all slots of the ring in position order, beginning at position `from`. The order
    /// wraps around, so there are two slices.
    #[inline]
    fn slots_from<const N: usize>(self, from: u64) -> [&'s [[AtomicU64; N]]; 2] {
        let slots = self.words.as_chunks::<N>().0;
        let (before, after) = slots.split_at(slot_index(from, self.capacity).min(slots.len()));
        [after, before]
    }

    /// Returns the entry at a published position.
    #[inline(always)]
    pub(crate) fn load(self, position: u64) -> Entry {
        match self.lanes {
            EntryColumns::Marks => zerocopy::transmute!(self.slot_words::<8>(position)),
            EntryColumns::Metadata => {
                let [p0, p1, c0, c1] = self.slot_words(position);
                entry_without_marks([p0, p1], zerocopy::transmute!([c0, c1]))
            }
            EntryColumns::Pointer => {
                entry_without_marks(self.slot_words(position), BlockMetadata::default())
            }
        }
    }

    /// Returns the view length in bytes of the entry at a position. Loads only the first word of
    /// the entry.
    #[inline]
    pub(crate) fn view_length(self, position: u64) -> u32 {
        let word = self.words.get(self.lanes.stride() / 8 * slot_index(position, self.capacity));
        let place = word.map_or(0, |word| word.load(Ordering::Relaxed));
        RichPointer::from_words([place, 0]).length()
    }

    #[inline(always)]
    fn slot_words<const N: usize>(self, position: u64) -> [u64; N] {
        let slot = self.words.as_chunks::<N>().0.get(slot_index(position, self.capacity));
        slot.map_or([0; N], |slot| slot.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }
}

/// Returns an entry from the words of a ring without a marks column. The block then counts as not
/// being a frame, and its view covers all of its bytes.
#[inline]
fn entry_without_marks(pointer: [u64; 2], context: BlockMetadata) -> Entry {
    let pointer = RichPointer::from_words(pointer);
    Entry::new(pointer, context, Marks::for_plain_block(pointer.length()))
}

impl Drop for PointerReader {
    fn drop(&mut self) {
        self.cursor.leave();
    }
}

/// Returns the total view length of these entries, in bytes.
pub(crate) fn total_view_length(entries: &[Entry]) -> u64 {
    entries.iter().map(|entry| u64::from(entry.pointer.length())).sum()
}

#[expect(clippy::cast_possible_truncation, reason = "less than the capacity, which fits in memory")]
const fn slot_index(position: u64, capacity: u64) -> usize {
    (position & (capacity - 1)) as usize
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
