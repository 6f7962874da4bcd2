//! The writing end of an indirect stream, which writes a pointer if the bytes are already in a
//! dbuf, and a copy otherwise. [SL §5.3.2, §5.3.3]
//!
//! A write performs up to four lookups, the cheapest first: the segment of the last *hit* (in which
//! an earlier write found its bytes), the address ranges of eight dbufs in one cache line, the
//! blocks peeked from followed inputs, and the ranges of all dbufs if there are more than eight.
//! Bytes that no lookup finds are copied into the backing dbuf. Writing a pointer instead of the
//! bytes is sound for these reasons, together with F1 to F5 of `flight`:
//! - S1 The ranges belong to memories to which this output holds references (`known_dbufs`), so
//!   nothing else can be mapped at their addresses.
//! - S2 The caller of `write` borrows the slice. At that moment the lender of the slice holds its
//!   segment (`Memory::lease_slice`), or the slice is peeked from an input, which is borrowed and
//!   cannot release the entry (F5).
//! - S3 Before the pointer is published, this output takes its own hold on the same segment or
//!   entry (F1). From then on, the borrow of the slice may end, the pool may reuse other segments,
//!   and the input may advance.
//! - S4 Bytes of an unfinished draft are unpublished and outside the filled range, so they never
//!   match, and are copied like bytes outside all dbufs.

use super::backing::{Backing, BackingHandle, WriteRefusal};
use super::held_segments::{self, HeldSegments};
use super::lent_block::{BlockHolder, LentBlock};
use super::range_table::RangeTable;
use crate::aggregate::FrozenData;
use crate::interface::StreamWriter;
use crate::view::BackOff;
use abi::ring::writer;
use abi::{BLOCK_LENGTH_MAX, RichPointer};
use buffer::doorbells::Doorbells;
use buffer::pool::{Pool, PoolMemory};
use buffer::scale::SizingState;
use buffer::wait::{Sleeper, Urgency};
use buffer::{Fault, OverflowPolicy, WriterCounts, ibuf, signal};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use sys::doorbell::SocketDoorbell;

mod hot_segment;
mod pointers;
mod room;

use hot_segment::HotSegment;

/// The only writer of an indirect stream. Dropping the writer ends the stream. Memory in flight
/// stays held until its readers have passed it
/// ([`sweep_held_segments`](super::sweep_held_segments)).
#[derive(Debug)]
pub struct Output {
    ring: ibuf::PointerWriter,
    doorbells: Doorbells,
    sleeper: Sleeper,
    spins: u32,
    policy: OverflowPolicy,
    /// Head position (number of appended entries) up to which the ring had room at the last check.
    limit: u64,
    /// Head position (number of appended entries) at which the written entries are published next.
    publish_at: u64,
    /// Head position below which a write may append without a check for room: the lesser of `limit`
    /// and `publish_at`, or 0 in a ring that overwrites.
    check_from: u64,
    /// Number of bytes in the backing dbuf that belong to unpublished pointers.
    unpublished_bytes: usize,
    every: usize,
    backing: BackingHandle,
    flights: HeldSegments,
    hot: HotSegment,
    ranges: RangeTable,
    known_dbufs: Vec<RegisteredDbuf>,
    /// Lower bound of the position that the writer announces to readers, in a ring that overwrites.
    /// The memory of entries more than a lap before this position has been freed, so readers must
    /// treat these entries as overwritten.
    announced_min: u64,
    copied_blocks: u64,
}

/// Numbers of blocks that an output has written as pointers and as copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpliceCounts {
    /// Blocks written as pointers.
    pub blocks: u64,
    /// Blocks copied into the backing dbuf.
    pub copied_blocks: u64,
}

/// A dbuf whose bytes the output can write as pointers.
#[derive(Debug)]
struct RegisteredDbuf {
    memory: Arc<PoolMemory>,
    back_off: BackOff,
}

/// Number of copied bytes after which blocks are published early, so that the reader copies them
/// while the next ones are written.
const PUBLISH_BYTES: usize = 64 << 10;

impl Output {
    pub(super) fn new(
        ring: ibuf::PointerWriter,
        doorbells: Vec<SocketDoorbell>,
        every: usize,
        policy: OverflowPolicy,
        backing: Backing,
    ) -> Self {
        held_segments::sweep_held_segments();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let every = every.max(1);
        let doorbells = Doorbells::new(doorbells);
        Self {
            flights: HeldSegments::new(&ring.cursor.store, doorbells.departed_readers()),
            ring,
            doorbells,
            sleeper: Sleeper::default(),
            spins: signal::spin_limit_for_processors(processors),
            policy,
            limit: 0,
            publish_at: every as u64,
            check_from: 0,
            unpublished_bytes: 0,
            every,
            backing: backing.into_handle(),
            hot: HotSegment::default(),
            ranges: RangeTable::default(),
            known_dbufs: Vec::new(),
            announced_min: 0,
            copied_blocks: 0,
        }
    }

    /// Registers a pool, after which writes of bytes in the pool produce pointers. Readers must be
    /// able to request the pool, so share it through the grant server. `threshold` is the number of
    /// blocks after which blocks in the pool are published (T_b). Written blocks are published at
    /// the lowest threshold of the stream and of all registered dbufs. [SL §6.2] Returns false if
    /// the pool's memory is not a file and so cannot be granted.
    pub fn register_pool(&mut self, pool: &Pool, threshold: usize) -> bool {
        self.register_memory(pool.memory(), threshold)
    }

    /// Registers frozen data, after which writes of its bytes produce pointers, like
    /// [`Output::register_pool`] for a pool. Returns false if the memory of the data cannot be
    /// granted.
    pub fn register_frozen(&mut self, frozen: &FrozenData, threshold: usize) -> bool {
        self.register_memory(frozen.memory(), threshold)
    }

    fn register_memory(&mut self, memory: &Arc<PoolMemory>, threshold: usize) -> bool {
        if !memory.can_be_granted() {
            return false;
        }
        self.every = self.every.min(threshold.max(1));
        self.publish_at = self.publish_at.min(self.ring.cursor.head + self.every as u64);
        self.update_stop_position();
        let known = self.known_dbufs.iter().position(|known| Arc::ptr_eq(&known.memory, memory));
        let index = known.unwrap_or(self.known_dbufs.len());
        if known.is_none() {
            self.known_dbufs
                .push(RegisteredDbuf { memory: memory.clone(), back_off: BackOff::default() });
        }
        let (address, length) = memory.address_and_size();
        self.ranges.insert(address, length, index);
        true
    }

    /// Follows an input, after which writes of bytes peeked in place from the input (`peek`)
    /// produce pointers. The input holds such entries until the readers of this output have passed
    /// them, so their memory is returned to the input's writer later. A caller that waits for input
    /// must therefore wait for both streams
    /// ([`splice::wait`](crate::splice::wait_for_input_or_release)). Returns false if the input has
    /// the maximum number of followers.
    pub fn follow_input(&mut self, input: &super::Input) -> bool {
        self.flights.follow_input(input.followed_state()).is_some()
    }

    /// Returns the number of written blocks after which they are published (T_b): the lowest
    /// threshold of the stream and of all registered dbufs.
    #[must_use]
    pub const fn publish_threshold(&self) -> usize {
        self.every
    }

    /// Sets the number of times that a waiting writer polls for room before it sleeps. 0 suits a
    /// writer that shares its processor with the reader.
    pub const fn set_spin_limit(&mut self, spins: u32) {
        self.spins = spins;
    }

    #[inline(never)]
    fn write_checked(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if self.ring.cursor.head >= self.limit && !self.make_room()? {
            return Ok(self.count_dropped(block.len()));
        }
        if block.len() > BLOCK_LENGTH_MAX {
            return Err(Fault::TooLong { length: block.len(), limit: BLOCK_LENGTH_MAX });
        }
        let from = block.as_ptr().addr().wrapping_sub(self.hot.address);
        if from.saturating_add(block.len()) > self.hot.filled || block.is_empty() {
            return self.write_outside_hot_segment(block);
        }
        self.append_pointer(self.hot.pointer(from, block.len()));
        Ok(true)
    }

    /// Writes a block of up to `length` bytes in place in the backing dbuf: `fill` writes into the
    /// block and returns the number of bytes written. Blocks, returns and fails like
    /// [`Output::write`]. [SL §5.1, reserve and commit]
    pub fn write_with(
        &mut self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<bool, Fault> {
        if self.ring.cursor.head >= self.limit && !self.make_room()? {
            return Ok(self.count_dropped(length));
        }
        self.write_into_backing(length, fill)
    }

    fn write_into_backing(
        &mut self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<bool, Fault> {
        let mut fill = Some(fill);
        loop {
            let until = self.ring.cursor.head + 1;
            let Self { backing, flights, hot, .. } = self;
            let put = backing.write(length, &mut fill, |pointer, pool| {
                // F1: held before the pointer is published, in most cases by the segment of the
                // previous block.
                if !hot.extend_to(pointer) {
                    let lease = || pool.lease(pointer.place);
                    hot.advance_to(pointer, &flights.hold_segment(pointer, until, lease)?);
                }
                Ok(())
            });
            match put {
                Ok(pointer) => {
                    self.copied_blocks += 1;
                    self.unpublished_bytes += pointer.length() as usize;
                    self.append_pointer(pointer);
                    return Ok(true);
                }
                Err(WriteRefusal::Fault(fault)) => return Err(fault),
                // The policy of the ring does not matter here: the backing memory is full.
                Err(WriteRefusal::RoundOver) => {
                    self.refresh_passed_position()?;
                    self.end_round();
                }
                Err(WriteRefusal::Full) if self.free_memory()? => {}
                Err(WriteRefusal::Full) => return Ok(self.count_dropped(length)),
            }
        }
    }

    /// Extends the hold on the hot segment until readers have passed the current head position. The
    /// hot segment is the one in which the last write found its bytes.
    fn extend_hot_segment_hold(&self) {
        self.flights.extend_last_hold(self.ring.cursor.head);
    }

    /// Appends one pointer, and publishes if a threshold has been reached. The caller must ensure
    /// that there is room.
    #[inline]
    fn append_pointer(&mut self, pointer: RichPointer) {
        if self.policy == OverflowPolicy::Overwrite {
            self.announce_overwrite(1);
        }
        self.ring.put_uncounted_pointer(pointer);
        self.publish_if_due();
    }

    /// Publishes the appended entries if a threshold has been reached.
    fn publish_if_due(&mut self) {
        if self.ring.cursor.head >= self.publish_at || self.unpublished_bytes >= PUBLISH_BYTES {
            self.publish(Urgency::Flow);
        }
    }

    /// Updates `stop`, the ring position below which a write may append without a check for room.
    /// It is 0 in a ring that overwrites.
    fn update_stop_position(&mut self) {
        let is_plain = self.policy != OverflowPolicy::Overwrite;
        self.check_from = if is_plain { self.limit.min(self.publish_at) } else { 0 };
    }

    fn publish(&mut self, urgency: Urgency) {
        self.unpublished_bytes = 0;
        self.publish_at = self.ring.cursor.head + self.every as u64;
        self.update_stop_position();
        self.ring.count_put_pointers();
        self.ring.cursor.publish();
        self.doorbells.notify_due_readers(&mut self.ring.cursor, urgency);
    }

    /// Returns the counts of this writer: blocks and bytes put, blocks and bytes dropped.
    #[must_use]
    pub const fn counts(&self) -> WriterCounts {
        WriterCounts { blocks: self.ring.cursor.head, ..self.ring.counts() }
    }

    /// Returns the size in bytes of the memory for copied bytes, and the state of its automatic
    /// sizing (`None` if the size is fixed).
    #[must_use]
    pub fn memory_size(&self) -> (usize, Option<&SizingState>) {
        self.backing.memory_size()
    }

    /// Returns the number of readers evicted for publishing an impossible position.
    #[must_use]
    pub const fn evicted_reader_count(&self) -> u64 {
        self.ring.evicted_readers()
    }

    /// Returns the number of blocks written as pointers, and the number of blocks copied.
    #[must_use]
    pub const fn splice_counts(&self) -> SpliceCounts {
        SpliceCounts {
            blocks: self.ring.cursor.head - self.copied_blocks,
            copied_blocks: self.copied_blocks,
        }
    }

    /// Returns the numbers of taken and lost blocks that a reader has published, or `None` if there
    /// is no such reader.
    #[must_use]
    pub fn reader_counts(&self, reader: usize) -> Option<buffer::ReaderCounts> {
        self.ring.reader_counts(reader)
    }

    /// Disconnects a reader. The memory held for that reader alone is released by the next
    /// [`Output::reclaim_passed_memory`], or when a write needs room.
    pub fn evict(&mut self, reader: usize) {
        self.doorbells.disconnect(&mut self.ring.cursor, reader);
    }

    /// Returns the doorbell of the first present reader, or of the first reader if none is present.
    /// This suffices to poll a stream with one reader. Returns `None` if there are no readers.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.doorbells.first_present_doorbell()
    }

    /// Simulates a kill of the process: only descriptors are closed.
    #[cfg(test)]
    pub(crate) fn simulate_kill(mut self) {
        self.doorbells.simulate_kill();
        std::mem::forget(self);
    }
}

impl StreamWriter for Output {
    /// Writes one block: as a pointer if its bytes are in a registered dbuf, otherwise as a copy in
    /// the backing dbuf. Fails with [`Fault::Abandoned`] if no reader is left. Blocks and returns
    /// false like [`StreamWriter::write`].
    #[inline]
    fn write(&mut self, block: &[u8]) -> Result<bool, Fault> {
        let from = block.as_ptr().addr().wrapping_sub(self.hot.address);
        let has_bytes = block.len().wrapping_sub(1) < BLOCK_LENGTH_MAX;
        let end = from.wrapping_add(block.len());
        let hit = from < self.hot.filled && end <= self.hot.filled && has_bytes;
        if !hit || self.ring.cursor.head >= self.check_from {
            return self.write_checked(block);
        }
        let pointer = self.hot.pointer(from, block.len());
        self.ring.put_uncounted_pointer(pointer);
        if self.ring.cursor.head == self.check_from {
            self.publish_if_due();
        }
        Ok(true)
    }

    fn write_with(
        &mut self,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<bool, Fault> {
        Self::write_with(self, length, fill)
    }

    fn flush(&mut self) {
        self.publish(Urgency::Last);
    }

    fn block_length_max(&self) -> usize {
        self.backing.block_length_max()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.doorbells.all_present_doorbells()
    }

    fn accept(&mut self, lent: &LentBlock<'_>) -> Result<Option<bool>, Fault> {
        if self.ring.cursor.head >= self.limit && !self.make_room()? {
            return Ok(Some(self.count_dropped(lent.pointer.length() as usize)));
        }
        let until = self.ring.cursor.head + 1;
        match lent.holder {
            BlockHolder::Entry(keeper) => {
                let Some(upstream) = self.flights.follow_input(keeper) else { return Ok(None) };
                if !self.flights.claim_entry(upstream, lent.pointer, until) {
                    return Ok(None);
                }
            }
            BlockHolder::File => {}
            BlockHolder::Lease(lease) if self.hot.covers(lent.pointer) => {
                debug_assert!(lease.keeps_in_place(lent.pointer));
            }
            BlockHolder::Lease(lease) => {
                self.flights.hold_segment(lent.pointer, until, || Ok(lease.clone()))?;
                self.hot.advance_to(lent.pointer, lease);
            }
        }
        self.append_pointer(lent.pointer);
        Ok(Some(true))
    }

    #[inline]
    fn accept_adjacent_blocks(
        &mut self,
        lent: &LentBlock<'_>,
        block: usize,
    ) -> Result<usize, Fault> {
        let is_held = matches!(lent.holder, BlockHolder::Lease(_)) && self.hot.covers(lent.pointer);
        if !is_held || self.policy == OverflowPolicy::Overwrite {
            return Ok(0);
        }
        // Both are less than a segment.
        let (length, block) = (lent.pointer.length(), u32::try_from(block).unwrap_or(u32::MAX));
        let mut done = 0;
        while done < length && self.ring.cursor.head < self.limit {
            let part = (length - done).min(block);
            self.ring.put_uncounted_pointer(lent.pointer.subrange(done, part));
            done += part;
            if self.ring.cursor.head >= self.check_from {
                self.publish_if_due();
            }
        }
        Ok(done as usize)
    }

    fn wait_for_released_blocks(&mut self) -> Result<bool, Fault> {
        self.extend_hot_segment_hold();
        let Some(oldest) = self.flights.first_release_position() else { return Ok(false) };
        if self.policy != OverflowPolicy::Block {
            return Ok(false);
        }
        self.wait_until_passed(oldest, |output| {
            output.refresh_passed_position()?;
            Ok(output.flights.first_release_position() != Some(oldest))
        })?;
        Ok(true)
    }

    fn announce_sleep(&mut self) -> Result<bool, Fault> {
        self.extend_hot_segment_hold();
        let Some(oldest) = self.flights.first_release_position() else { return Ok(false) };
        self.sleeper.announce_sleep(&self.ring.cursor.store.writer, writer::WAIT, oldest);
        let looked = self.refresh_passed_position();
        let asleep = self.flights.first_release_position() == Some(oldest) && looked.is_ok();
        if !asleep {
            self.sleeper.announce_wake(&self.ring.cursor.store.writer, writer::WAIT);
        }
        looked.map(|_| asleep)
    }

    fn withdraw_sleep(&mut self) -> Result<(), Fault> {
        self.sleeper.announce_wake(&self.ring.cursor.store.writer, writer::WAIT);
        let before = self.flights.len();
        self.doorbells.sleep(&mut self.ring.cursor, Some(Duration::ZERO));
        self.refresh_passed_position()?;
        if self.flights.len() < before {
            self.doorbells.reset_false_alarms();
        }
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.extend_hot_segment_hold();
        self.ring.count_put_pointers();
        self.ring.cursor.close();
        self.flush();
        let empty = HeldSegments::new(&self.ring.cursor.store, self.doorbells.departed_readers());
        let flights = std::mem::replace(&mut self.flights, empty);
        // F3.
        held_segments::leave_segments_to_sweep(flights, self.doorbells.take());
    }
}
