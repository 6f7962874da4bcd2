//! The writer's cursor in a ring. SYNC POINTS are defined in [`cursor`](super).

use super::counts::CountsWriter;
use super::{RingMemory, reader_counts};
use crate::atomic::{Ordering, fence, load_acquire};
use crate::join::{JoinQueue, JoiningReader, ReaderConnection, ReaderTicket};
use crate::region::Region;
use crate::{Fault, OverflowPolicy, ReaderCounts, WriterCounts};
use abi::ring::{STATE_CLOSED, STATE_SWITCHED, reader, writer};
use std::sync::Arc;

/// The writer's cursor in a ring.
#[derive(Debug)]
pub struct WriterCursor {
    /// Memory of the ring, shared with its readers.
    pub store: Arc<RingMemory>,
    /// Capacity of the ring in positions for blocks written at `head` and later.
    pub(crate) capacity: u64,
    pub(crate) policy: OverflowPolicy,
    /// Alignment of the readers' positions. A reader with a position that is not a multiple of this
    /// number is evicted.
    pub(crate) step: u64,
    /// Position after the last written block; readers see it after [`WriterCursor::publish`].
    pub head: u64,
    published: u64,
    /// Position at which a reader resumes after the writer has lapped it (lossy rings).
    resume_position: u64,
    /// Position at which the current segment begins. The segment's memory contains no older data.
    start: u64,
    /// The last in-place change to the capacity; `None` after all readers have passed its position.
    capacity_change: Option<CapacityChange>,
    /// Oldest position that a reader still needs, as of the last refresh.
    oldest: u64,
    records: Vec<ReaderRecord>,
    /// Queue through which readers join while the ring runs.
    queue: Option<Arc<JoinQueue>>,
    /// Readers that joined or left since the last [`WriterCursor::take_reader_changes`].
    changes: Vec<ReaderChange>,
    /// Number of readers evicted for an impossible position.
    evicted: u64,
    /// The writer's counts of blocks and bytes: put and dropped.
    pub counts: WriterCounts,
    counts_writer: CountsWriter,
}

/// The state that the writer keeps about one reader.
#[derive(Debug)]
struct ReaderRecord {
    cursor: u64,
    /// True if the reader has left or was evicted.
    has_left: bool,
    /// Page of the reader's control words.
    page: Arc<Region>,
    /// Ticket of a reader that joined a running ring; `None` for a reader present from the start.
    ticket: Option<ReaderTicket>,
}

/// An in-place change to the capacity that not all readers have passed yet.
#[derive(Clone, Copy, Debug)]
struct CapacityChange {
    /// Position of the change, from which the new capacity applies.
    at: u64,
    /// Capacity of the ring before the change, in positions.
    old_capacity: u64,
}

/// A reader that joined or left a running ring.
#[derive(Debug)]
pub enum ReaderChange {
    /// A reader joined under this index. The index is new, or belonged to a reader that has left.
    Joined(usize, ReaderConnection),
    /// The reader with this index has left or was evicted.
    Left(usize),
}

impl WriterCursor {
    /// Creates the writer's cursor of a new ring.
    pub(crate) fn new(store: Arc<RingMemory>) -> Self {
        let record = |page: &Arc<Region>| ReaderRecord {
            cursor: 0,
            has_left: false,
            page: page.clone(),
            ticket: None,
        };
        let records = store.readers.iter().map(record).collect();
        Self {
            capacity: store.capacity,
            policy: store.policy,
            store,
            step: 1,
            head: 0,
            published: 0,
            resume_position: 0,
            start: 0,
            capacity_change: None,
            oldest: 0,
            records,
            queue: None,
            changes: Vec::new(),
            evicted: 0,
            counts: WriterCounts::default(),
            counts_writer: CountsWriter::default(),
        }
    }

    /// Creates the writer's cursor of a segment that continues a ring begun by another writer.
    pub(crate) fn resume(store: Arc<RingMemory>, head: u64, put: WriterCounts) -> Self {
        let mut begun = Self {
            head,
            published: head,
            resume_position: head,
            start: head,
            counts: put,
            ..Self::new(store)
        };
        begun.announce_overwrite(head);
        begun.publish();
        begun
    }

    /// Registers the queue through which readers join while the ring runs.
    pub(crate) fn accept_joins_from(&mut self, queue: Arc<JoinQueue>) {
        self.queue = Some(queue);
    }

    /// Returns the queue through which readers join, or `None` if no reader can join.
    pub(crate) fn join_queue(&self) -> Option<Arc<JoinQueue>> {
        self.queue.clone()
    }

    /// Returns the control page of a reader, or `None` if there is no such reader.
    #[inline]
    pub(crate) fn page(&self, reader: usize) -> Option<&Region> {
        self.records.get(reader).map(|record| &*record.page)
    }

    /// Returns true if every reader that has not left last ran on `processor`. For a reader that
    /// has not published its processor, calls `unknown` instead.
    pub fn are_readers_on_processor(&self, processor: usize, unknown: impl Fn() -> bool) -> bool {
        let present = self.records.iter().filter(|record| !record.has_left);
        present.into_iter().all(|record| match load_acquire(record.page.word(reader::PROCESSOR)) {
            0 => unknown(),
            number => number == processor as u64 + 1,
        })
    }

    /// Returns the counts that a reader has published, or `None` if there is no such reader.
    pub(crate) fn reader_counts(&self, reader: usize) -> Option<ReaderCounts> {
        self.page(reader).map(reader_counts)
    }

    /// Returns the readers that joined or left since the last call.
    pub(crate) fn take_reader_changes(&mut self) -> Vec<ReaderChange> {
        std::mem::take(&mut self.changes)
    }

    /// Admits readers that have joined through the queue, and removes readers that have left.
    #[inline]
    pub(crate) fn poll_joins(&mut self) {
        if self.queue.as_ref().is_some_and(|queue| queue.has_pending_changes()) {
            self.admit_joined_readers();
        }
    }

    #[cold]
    fn admit_joined_readers(&mut self) {
        let Some(queue) = &self.queue else { return };
        let changes = queue.drain(self.published);
        for record in &mut self.records {
            record.has_left |= load_acquire(record.page.word(reader::STATE)) == STATE_CLOSED;
        }
        for ticket in changes.left {
            let has_ticket = |record: &ReaderRecord| record.ticket == Some(ticket);
            if let Some(at) = self.records.iter().position(has_ticket) {
                self.disconnect(at);
                self.changes.push(ReaderChange::Left(at));
            }
        }
        for joining in changes.joined {
            let start = joining.start_position_or(self.published);
            let JoiningReader { ticket, page, connection: contact, .. } = joining;
            let record =
                ReaderRecord { cursor: start, has_left: false, page, ticket: Some(ticket) };
            let at = match self.records.iter_mut().enumerate().find(|(_, record)| record.has_left) {
                Some((at, free)) => {
                    *free = record;
                    at
                }
                None => {
                    self.records.push(record);
                    self.records.len() - 1
                }
            };
            self.changes.extend(contact.map(|contact| ReaderChange::Joined(at, contact)));
        }
    }

    /// Returns the number of free positions. Reads the readers' cursors only if the cached cursors
    /// show fewer than `wanted` free positions. A ring that overwrites is always entirely free.
    pub(crate) fn free_positions(&mut self, wanted: u64) -> Result<u64, Fault> {
        if self.policy == OverflowPolicy::Overwrite {
            return Ok(self.capacity);
        }
        if self.cached_free_positions() < wanted {
            self.refresh_reader_positions()?;
        }
        Ok(self.cached_free_positions())
    }

    /// Returns the number of positions that are free for writing, as of the last refresh. Data in
    /// an older segment occupies no room in the current one. Data written before an in-place change
    /// to the capacity is in the same memory, so the smaller of the two capacities applies
    /// (`segment`, invariant S4).
    fn cached_free_positions(&self) -> u64 {
        let end = match &self.capacity_change {
            Some(cut) if self.oldest < cut.at => self.oldest + cut.old_capacity.min(self.capacity),
            _ => self.oldest.max(self.start) + self.capacity,
        };
        end.saturating_sub(self.head)
    }

    /// Returns the oldest position that a reader needed at the last refresh.
    pub(crate) const fn oldest_needed_position(&self) -> u64 {
        self.oldest
    }

    /// Continues writing in another segment, from the head on.
    pub(crate) fn continue_in_memory(&mut self, store: Arc<RingMemory>) {
        let marked = self.resume_position;
        self.resume_position = self.head;
        // Prepared first: a reader that sees the switch in the old segment must see these words.
        store.writer.word(writer::RESERVED_POSITION).store(self.head, Ordering::Relaxed);
        let mut counts_writer = CountsWriter::default();
        self.publish_in(&store.writer, &mut counts_writer);
        self.resume_position = marked;
        self.leave_segment();
        self.counts_writer = counts_writer;
        self.capacity = store.capacity;
        (self.start, self.resume_position, self.capacity_change) = (self.head, self.head, None);
        self.store = store;
    }

    /// Continues in new memory of this process from the head on. The new memory has `data_words`
    /// words for a lap of `capacity` positions. Readers read the old memory to the end and then
    /// follow ([`available`](super::ReaderCursor::available_position)). Does nothing and returns
    /// false if, as of the last refresh, a reader had not yet followed the previous change.
    pub(crate) fn continue_in_new_memory(&mut self, data_words: usize, capacity: u64) -> bool {
        // A reader that has released exactly up to `start` may still be in the previous memory,
        // from which it finds the whole chain of memories in order.
        if self.is_change_pending() {
            return false;
        }
        let readers = self.store.readers.clone();
        let next = RingMemory::heap_with_readers(readers, data_words, capacity, self.policy);
        // Set before the switch is published: a reader that sees the switch also sees the new
        // memory.
        if self.store.next.set(next.clone()).is_err() {
            return false;
        }
        self.continue_in_memory(next);
        true
    }

    /// Publishes all blocks, and marks the segment as left, so that readers continue in the next
    /// segment after reading them.
    pub(crate) fn leave_segment(&mut self) {
        self.publish();
        // SYNC POINT: switched; pairs with the load in `ReaderCursor::has_switched`.
        self.store.writer.word(writer::STATE).store(STATE_SWITCHED, Ordering::Release);
    }

    /// Changes the capacity within the same memory. The change applies from the head on.
    pub(crate) fn change_capacity(&mut self, capacity: u64) {
        self.publish();
        self.capacity_change = Some(CapacityChange { at: self.head, old_capacity: self.capacity });
        self.capacity = capacity;
    }

    /// Returns the capacity that the ring had before its last in-place change, once all readers
    /// have passed the change. Returns `None` before that, and after the capacity has been returned
    /// once.
    pub(crate) fn take_passed_capacity(&mut self) -> Option<u64> {
        let oldest = self.oldest;
        self.capacity_change.take_if(|cut| oldest >= cut.at).map(|cut| cut.old_capacity)
    }

    /// Returns true if a reader has not yet passed the last change of segment or capacity.
    pub(crate) const fn is_change_pending(&self) -> bool {
        self.oldest < self.start || self.capacity_change.is_some()
    }

    /// Reads the positions of all readers, and returns the oldest position that a reader still
    /// needs. If all readers have left, returns the head or, if readers can still join, the
    /// published position. Evicts and counts each reader with an impossible position, and continues
    /// for the other readers. Fails with [`Fault::Poisoned`] if an evicted reader was the last and
    /// no other can join.
    pub fn refresh_reader_positions(&mut self) -> Result<u64, Fault> {
        self.poll_joins();
        // A reader that joins later starts at the published position, so the writer stays within
        // one lap of that position (`join`, SYNC POINT joining).
        let newest = if self.queue.is_some() { self.published } else { self.head };
        let (mut oldest, mut lie) = (newest, None);
        for (at, record) in self.records.iter_mut().enumerate() {
            if record.has_left {
                continue;
            }
            let closed = load_acquire(record.page.word(reader::STATE)) == STATE_CLOSED;
            // SYNC POINT: block released; pairs with the store in `ReaderCursor::release`.
            let cursor = load_acquire(record.page.word(reader::RELEASED_POSITION));
            if closed {
                record.has_left = true;
            } else if cursor.wrapping_sub(record.cursor) > self.published - record.cursor
                || !cursor.is_multiple_of(self.step)
            {
                record.has_left = true;
                self.evicted += 1;
                self.changes.push(ReaderChange::Left(at));
                lie = Some(Fault::Poisoned { published: cursor, own: self.published });
            } else {
                record.cursor = cursor;
                oldest = oldest.min(cursor);
            }
        }
        self.oldest = oldest;
        lie.filter(|_| self.is_abandoned()).map_or(Ok(oldest), Err)
    }

    /// Returns the number of readers evicted for an impossible position.
    pub(crate) const fn evicted_readers(&self) -> u64 {
        self.evicted
    }

    /// Returns true if every reader has left or was evicted, as of the last refresh, and none can
    /// join. A ring that never had a reader, and that no reader can join, is not abandoned.
    pub fn is_abandoned(&self) -> bool {
        let all_gone = self.records.iter().all(|record| record.has_left);
        all_gone && self.queue.as_ref().map_or(!self.records.is_empty(), |queue| queue.is_closed())
    }

    /// Excludes a reader from flow control from now on, so that the writer no longer waits for it.
    pub(crate) fn disconnect(&mut self, reader: usize) {
        if let Some(record) = self.records.get_mut(reader) {
            record.has_left = true;
        }
    }

    /// Announces that the writer may write up to `position` from now on, which overwrites
    /// everything more than a lap before it (lossy rings).
    pub fn announce_overwrite(&self, position: u64) {
        // SYNC POINT: writing begins; pairs with the fence and load in
        // `ReaderCursor::is_overtaken`.
        self.store.writer.word(writer::RESERVED_POSITION).store(position, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Stores the start of a record as the position at which lapped readers resume, if the last
    /// stored position is at least half a lap older (lossy rings).
    pub(crate) fn mark_resume_position(&mut self, position: u64) {
        if position - self.resume_position >= self.capacity / 2 {
            self.resume_position = position;
        }
    }

    /// Publishes all written blocks to the readers.
    pub fn publish(&mut self) {
        self.published = self.head;
        let mut counts_writer = std::mem::take(&mut self.counts_writer);
        self.publish_in(&self.store.writer, &mut counts_writer);
        self.counts_writer = counts_writer;
    }

    /// Publishes all written blocks. Stores the position and the counts in `page`, the writer's
    /// control page of a segment.
    fn publish_in(&self, page: &Region, counts_writer: &mut CountsWriter) {
        counts_writer.write(page, writer::LEDGER, self.head, self.counts.words());
        // SYNC POINT: block published; pairs with the load in `ReaderCursor::refresh`.
        page.word(writer::COMMITTED_POSITION).store(self.head, Ordering::Release);
        // After the position, so that a reader that sees the mark sees a position at or beyond it.
        page.word(writer::RESUME_POSITION).store(self.resume_position, Ordering::Release);
    }

    /// Publishes all written blocks and closes the ring permanently.
    pub fn close(&mut self) {
        self.publish();
        // SYNC POINT: closed; pairs with the load in `ReaderCursor::is_finished`.
        self.store.writer.word(writer::STATE).store(STATE_CLOSED, Ordering::Release);
        if let Some(queue) = &self.queue {
            queue.announce_writer_exit();
            // So that a reader that has just joined is notified, too.
            self.poll_joins();
        }
    }
}
