//! A reader's cursor in a ring. SYNC POINTS are defined in [`cursor`](super).

use super::counts::CountsWriter;
use super::{POSITION_MAX, RingMemory};
use crate::atomic::{Ordering, fence, load_acquire};
use crate::region::Region;
use crate::{Fault, OverflowPolicy, ReaderCounts};
use abi::ring::{STATE_CLOSED, STATE_SWITCHED, reader, writer};
use std::sync::Arc;

/// A reader's cursor in a ring.
#[derive(Debug)]
pub struct ReaderCursor {
    pub store: Arc<RingMemory>,
    /// Capacity of the ring, in positions, for the next block and later blocks. Changes when the
    /// reader passes a change to the capacity.
    pub(crate) capacity: u64,
    pub(crate) policy: OverflowPolicy,
    pub index: usize,
    /// Position of the next block to read.
    pub next: u64,
    /// Position up to which the writer may reuse the memory.
    released: u64,
    /// The writer's published position when this reader last loaded it.
    commit: u64,
    poisoned: bool,
    pub taken: ReaderCounts,
    counts_writer: CountsWriter,
}

impl ReaderCursor {
    /// Creates the cursor of reader number `index` of a new ring.
    pub(crate) fn new(store: Arc<RingMemory>, index: usize) -> Self {
        Self::starting_at(store, index, 0)
    }

    /// Creates the cursor of reader number `index` at position `start`. Panics if the ring has no
    /// such reader.
    pub(crate) fn starting_at(store: Arc<RingMemory>, index: usize, start: u64) -> Self {
        assert!(index < store.readers.len(), "no page for this reader");
        Self {
            capacity: store.capacity,
            policy: store.policy,
            store,
            index,
            next: start,
            released: start,
            commit: start,
            poisoned: false,
            taken: ReaderCounts::default(),
            counts_writer: CountsWriter::default(),
        }
    }

    /// Returns the position up to which blocks can be read. If all blocks up to the last loaded
    /// position have been read, first loads the writer's position again, and follows a writer that
    /// has continued in other memory of this process.
    pub fn available_position(&mut self) -> Result<u64, Fault> {
        if self.next != self.commit {
            return Ok(self.commit);
        }
        loop {
            // Before the position: the position loaded after a switch is the last of its memory.
            let has_switched = self.store.next.get().is_some() && self.has_switched();
            let commit = self.refresh_published_position()?;
            if commit != self.next || !has_switched {
                return Ok(commit);
            }
            match self.store.next.get().cloned() {
                Some(next) => self.continue_in_memory(next),
                None => return Ok(commit),
            }
        }
    }

    /// Returns true if at least one unread block is published.
    pub fn has_more(&mut self) -> Result<bool, Fault> {
        Ok(self.available_position()? != self.next)
    }

    /// Returns the writer's published position as of the last
    /// [`ReaderCursor::refresh_published_position`].
    #[inline]
    pub(crate) const fn last_published_position(&self) -> u64 {
        self.commit
    }

    /// Returns true if all blocks up to the last loaded position of the writer have been read. Does
    /// not load the position again.
    #[inline]
    pub const fn has_read_all(&self) -> bool {
        self.next == self.commit
    }

    /// Loads and returns the writer's published position. Fails with [`Fault::Poisoned`] if that
    /// position is impossible.
    pub fn refresh_published_position(&mut self) -> Result<u64, Fault> {
        // SYNC POINT: block published; pairs with the store in `WriterCursor::publish`.
        let commit = load_acquire(self.store.writer.word(writer::COMMITTED_POSITION));
        let ahead = commit.wrapping_sub(self.commit);
        // In a lossy ring the writer may be any distance ahead, but never behind.
        let limit = match self.policy {
            OverflowPolicy::Overwrite => POSITION_MAX,
            OverflowPolicy::Block | OverflowPolicy::DropNew => {
                self.capacity.saturating_sub(self.commit.wrapping_sub(self.released))
            }
        };
        if ahead > limit || commit > POSITION_MAX || self.poisoned {
            self.poisoned = true;
            return Err(Fault::Poisoned { published: commit, own: self.next });
        }
        self.commit = commit;
        Ok(commit)
    }

    /// Returns true if the writer may have begun to overwrite the data copied from `start` (lossy
    /// rings). Call this after the copy.
    pub fn is_overtaken(&self, start: u64) -> bool {
        // SYNC POINT: writing begins; pairs with the store and fence in
        // `WriterCursor::announce_overwrite`.
        fence(Ordering::Acquire);
        let reserve = self.store.writer.word(writer::RESERVED_POSITION).load(Ordering::Relaxed);
        reserve.wrapping_sub(start) > self.capacity
    }

    /// Returns the position at which a reader resumes after it was lapped at `start`. It is the
    /// start of a record that the writer has stored for this purpose
    /// ([`WriterCursor::mark_resume_position`](super::WriterCursor::mark_resume_position)), at most
    /// half a lap and one record before the head, so the next attempt is likely to succeed. Returns
    /// `None` if the writer is overwriting all blocks at this moment; the reader then stays at
    /// `start`.
    pub(crate) fn resume_position(&mut self, start: u64) -> Result<Option<u64>, Fault> {
        let mark = load_acquire(self.store.writer.word(writer::RESUME_POSITION));
        let commit = self.refresh_published_position()?;
        if mark > commit {
            self.poisoned = true;
            return Err(Fault::Poisoned { published: mark, own: start });
        }
        self.next = start;
        Ok(Some(mark).filter(|&mark| mark > start))
    }

    /// Continues reading in the segment with memory `store`, from position `next` on. Call this
    /// after all blocks of the old segment have been read.
    pub(crate) fn continue_in_memory(&mut self, store: Arc<RingMemory>) {
        self.release();
        self.commit = self.next;
        self.capacity = store.capacity;
        self.store = store;
    }

    /// Changes the capacity of the ring, which stays in the same memory. The new capacity applies
    /// from position `next` on.
    pub(crate) fn change_capacity(&mut self, capacity: u64) {
        self.release();
        self.capacity = capacity;
    }

    /// Returns the position up to which the writer may reuse the memory.
    #[inline]
    pub const fn released_position(&self) -> u64 {
        self.released
    }

    /// Releases all blocks before `next` to the writer.
    pub fn release(&mut self) {
        let mut counts_writer = std::mem::take(&mut self.counts_writer);
        let page = self.page();
        counts_writer.write(page, reader::LEDGER, self.next, self.taken.words());
        // SYNC POINT: block released; pairs with the load in `WriterCursor::refresh`.
        page.word(reader::RELEASED_POSITION).store(self.next, Ordering::Release);
        self.released = self.next;
        self.counts_writer = counts_writer;
    }

    /// Stores the number of the reader's processor in the reader's control page. The writer sees
    /// the number after the next release.
    #[cfg(not(loom))]
    pub fn set_processor(&self, processor: u64) {
        self.page().word(reader::PROCESSOR).store(processor + 1, Ordering::Relaxed);
    }

    /// Returns the distance in positions between the last loaded position of the writer and the
    /// position up to which this reader has released.
    pub(crate) fn unreleased_count(&self) -> u64 {
        self.commit.wrapping_sub(self.released)
    }

    /// Returns true if the writer has left this segment and continues in another one. Call this
    /// before loading the writer's position. If the result is true, the position loaded afterwards
    /// is the end of the segment, right after its switch record.
    pub(crate) fn has_switched(&self) -> bool {
        // SYNC POINT: switched; pairs with the store in `WriterCursor::leave_segment`.
        load_acquire(self.store.writer.word(writer::STATE)) == STATE_SWITCHED
    }

    /// Returns true if the writer has closed the ring. A position loaded afterwards is final.
    /// Returns false until the reader has followed the writer into its current memory.
    pub(crate) fn is_closed(&self) -> bool {
        // SYNC POINT: closed; pairs with the store in `WriterCursor::close`.
        load_acquire(self.store.writer.word(writer::STATE)) == STATE_CLOSED
    }

    /// Returns true if the writer has closed the ring and all blocks have been read.
    pub fn is_finished(&mut self) -> Result<bool, Fault> {
        Ok(self.is_closed() && self.refresh_published_position()? == self.next)
    }

    /// Leaves the ring. Releases all blocks, so that the writer no longer waits for this reader.
    pub fn leave(&mut self) {
        self.release();
        // SYNC POINT: closed; pairs with the load in `WriterCursor::refresh`.
        self.page().word(reader::STATE).store(STATE_CLOSED, Ordering::Release);
    }

    /// Makes every later [`ReaderCursor::refresh_published_position`] fail, because the writer has
    /// put invalid data into the ring. Returns `fault`.
    pub(crate) fn poison(&mut self, fault: Fault) -> Fault {
        self.poisoned = true;
        fault
    }

    fn page(&self) -> &Region {
        // The index was checked at creation.
        self.store.readers.get(self.index).map_or(&self.store.writer, |page| &**page)
    }
}
