//! The writing end of a stream.

use super::Config;
use super::segment_switch::Segments;
use super::waking::{LatencyState, WakingOverrides};
use crate::atomic::Ordering;
use crate::cursor::{ReaderChange, WriterCursor};
use crate::join::ReaderConnection;
use crate::scale::{Scaler, SidePlacement};
use crate::signal::SpinState;
use crate::signal::wakeup_moderation::WakeupCounts;
use crate::wait::{Notifier, Sleeper, Urgency, WaitResult};
use crate::{Fault, OverflowPolicy, WriterCounts, dbuf};
use abi::ring::{reader, writer};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::doorbell::{PeerState, SocketDoorbell};

/// Number of bytes after which blocks are published, even if there are fewer blocks than
/// [`Output::every`]. The reader then copies them while the next blocks are written. In a ring of
/// less than 1 MB, a sixteenth of the capacity applies instead.
const PUBLISH_THRESHOLD_BYTES: u64 = 64 << 10;

/// The only writer of a stream. Dropping the writer ends the stream.
#[derive(Debug)]
pub struct Output {
    pub(super) ring: dbuf::BlockWriter,
    pub(super) reader_records: Vec<StreamReaderRecord>,
    sleeper: Sleeper,
    /// Number of blocks between two publications (T_b).
    pub(super) every: u64,
    /// Total number of blocks put at which the writer must publish.
    publish_at_block: u64,
    /// Head position at which the next publication is due, even if fewer blocks than `every` are
    /// unpublished.
    publish_at: u64,
    pub(super) segments: Segments,
    /// Sizing of the ring, or `None` if the size is fixed.
    pub(super) scaler: Option<Scaler>,
    /// State of the adaptive spinning before a sleep.
    pub(super) spin: SpinState,
    /// State that bounds the latency of wake-ups, or `None` if the configuration sets no bound.
    latency: Option<LatencyState>,
    waking: WakingOverrides,
}

/// The state that the writer keeps about one reader.
#[derive(Debug)]
pub(super) struct StreamReaderRecord {
    pub(super) doorbell: SocketDoorbell,
    notifier: Notifier,
    pub(super) has_left: bool,
    /// Descriptor of the reader's page, for a hand-over.
    pub(super) page: OwnedFd,
    /// Number of notifications that the reader has sent since the writer last found room in the
    /// ring. After a switch of segments, the number starts below zero, because the new segment
    /// causes further notifications.
    pub(super) false_alarms: i64,
}

impl StreamReaderRecord {
    pub(super) fn new(doorbell: SocketDoorbell, page: OwnedFd) -> Self {
        Self { doorbell, notifier: Notifier::default(), has_left: false, page, false_alarms: 0 }
    }
}

/// Number of false notifications after which a reader is disconnected, because the reader keeps the
/// writer busy. An honest reader notifies once per sleep of the writer, and only after making
/// enough room.
const FALSE_ALARMS_MAX: i64 = 64;

impl Output {
    pub(super) fn new(
        mut ring: dbuf::BlockWriter,
        ends: Vec<(SocketDoorbell, OwnedFd)>,
        config: &Config,
        segments: Segments,
    ) -> Self {
        let publish_at = PUBLISH_THRESHOLD_BYTES.min(ring.cursor_mut().capacity / 16);
        // A bounded latency requires every block to be published at once.
        let every = if config.latency.is_some() { 1 } else { config.every.max(1) as u64 };
        let entries = config.ring.capacity / abi::ring::LINE_WORDS;
        let latency =
            config.latency.map(|ns| LatencyState::new(config.every.max(1) as u64, ns, entries));
        ring.stop_at(publish_at);
        ring.reserve_switch_record();
        let ends: Vec<StreamReaderRecord> = ends
            .into_iter()
            .map(|(doorbell, page)| StreamReaderRecord::new(doorbell, page))
            .collect();
        let scaler = config.scaling.map(Scaler::new);
        let (sleeper, spin) = (Sleeper::default(), SpinState::default());
        let (publish_at_block, waking) = (every, WakingOverrides::default());
        let mut output = Self {
            ring,
            reader_records: ends,
            sleeper,
            every,
            publish_at_block,
            publish_at,
            segments,
            scaler,
            spin,
            latency,
            waking,
        };
        output.update_timer();
        output
    }

    /// Fixes the number of polls before a sleep. By default the number is adaptive: none if the
    /// writer and the reader share a processor, otherwise as many as past polls have justified.
    pub const fn set_spin_limit(&mut self, spins: u32) {
        self.spin.fix_polls(spins);
    }

    /// Sets how the writer wakes readers and waits for room. Used only for measurements.
    pub const fn set_waking_overrides(&mut self, waking: WakingOverrides) {
        self.waking = waking;
    }

    /// Returns the number of wake-ups for each cause. Returns `None` if the stream has no latency
    /// bound, because wake-ups are then not counted.
    #[must_use]
    pub fn wakeup_counts(&self) -> Option<WakeupCounts> {
        self.latency.as_ref().map(LatencyState::wakeup_counts)
    }

    /// Passes the doorbells of all present readers to the timer that wakes readers in time, if
    /// there is a latency bound.
    fn update_timer(&mut self) {
        if let Some(latency) = &mut self.latency {
            let present = self.reader_records.iter().filter(|end| !end.has_left);
            latency.set_readers(present.map(|end| &end.doorbell));
        }
    }

    /// Returns the maximum length of a block in bytes.
    #[must_use]
    pub fn block_length_max(&self) -> usize {
        self.ring.block_length_max()
    }

    /// Writes one block. Blocks while the stream is full, if the policy is to block; returns false
    /// if the policy drops the block. Fails with [`Fault::Abandoned`] if all readers have left, and
    /// with [`Fault::TooLong`] if the block exceeds [`Output::block_length_max`].
    // Without inlining: 7.2 instead of 10.2 GB/s for 64 bytes on one core.
    #[inline(always)]
    pub fn write(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if self.ring.try_put(block) {
            self.publish_if_due();
            return Ok(true);
        }
        self.write_checked(block)
    }

    #[cold]
    fn write_checked(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if let Some(scaler) = &mut self.scaler {
            scaler.measure_lap(self.ring.head());
        }
        self.write_with(block.len(), |room| {
            room.copy_from_slice(block);
            block.len()
        })
    }

    /// Writes a block of up to `length` bytes in place: `fill` writes into the ring and returns the
    /// number of bytes written. Blocks, returns and fails like [`Output::write`]. [SL §5.1]
    #[inline]
    pub fn write_with(
        &mut self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<bool, Fault> {
        if self.ring.fitting_length(length).is_none() && !self.wait_for_room_if_blocking(length)? {
            return Ok(false);
        }
        let Some(mut room) = self.ring.reserve(length)? else { return Ok(false) };
        let used = fill(&mut room);
        room.commit(used);
        if self.ring.head() >= self.publish_at {
            self.publish(Urgency::Flow);
        }
        self.publish_if_due();
        Ok(true)
    }

    /// Publishes all blocks if `publish_at_block` has been reached.
    #[inline]
    fn publish_if_due(&mut self) {
        if self.ring.block_count() >= self.publish_at_block {
            self.publish(Urgency::Flow);
        }
    }

    /// Publishes all written blocks and wakes all sleeping readers. Call this before turning to
    /// other work.
    pub fn flush(&mut self) {
        self.publish(Urgency::Last);
    }

    /// Publishes all written blocks and wakes readers according to `urgency`.
    pub(super) fn publish(&mut self, urgency: Urgency) {
        self.ring.publish();
        if self.segments.can_change_in_place() {
            self.release_excess_memory();
        }
        self.ring.cursor_mut().poll_joins();
        self.update_readers();
        let side = self.ring.cursor_mut();
        let head = side.head;
        self.publish_at = head + PUBLISH_THRESHOLD_BYTES.min(side.capacity / 16);
        self.publish_at_block = side.counts.blocks.saturating_add(self.every);
        let mut urgency = urgency;
        if let Some(latency) = &mut self.latency {
            let asleep = |(at, end): (usize, &StreamReaderRecord)| {
                let page = side.page(at).filter(|_| !end.has_left);
                page.is_some_and(|page| end.notifier.has_unnotified_sleeper(page, reader::WAIT))
            };
            if urgency == Urgency::Last {
                latency.record_flush(side.counts.blocks);
            } else if latency.record_publication(
                side.counts.blocks,
                self.reader_records.iter().enumerate().any(asleep),
            ) {
                urgency = Urgency::Last;
            }
        }
        let always = self.waking.notifies_always && urgency == Urgency::Last;
        let mut gone = Vec::new();
        for (at, end) in self.reader_records.iter_mut().enumerate() {
            let Some(page) = side.page(at) else { continue };
            let is_due = end.notifier.is_due(page, reader::WAIT, head, urgency) || always;
            let is_due = is_due && !end.has_left;
            if is_due && end.doorbell.notify() == PeerState::Gone {
                gone.push(at);
            }
        }
        gone.into_iter().for_each(|at| self.disconnect(at));
        self.ring.stop_at(self.publish_at);
    }

    /// Returns the counts of this writer: blocks and bytes put, blocks and bytes dropped.
    #[must_use]
    pub const fn counts(&self) -> WriterCounts {
        self.ring.counts()
    }

    /// Returns the number of readers evicted for an impossible position. An evicted reader receives
    /// no later blocks; the other readers receive every byte.
    #[must_use]
    pub const fn evicted_readers(&self) -> u64 {
        self.ring.evicted_readers()
    }

    /// Returns the counts that a reader has published, or `None` if there is no such reader.
    #[must_use]
    pub fn reader_counts(&self, reader: usize) -> Option<crate::ReaderCounts> {
        self.ring.reader_counts(reader)
    }

    /// Returns the number of reader indices in use. Indices of departed readers are reused.
    #[must_use]
    pub const fn reader_count(&self) -> usize {
        self.reader_records.len()
    }

    /// Excludes a reader from flow control and notifications.
    pub fn disconnect(&mut self, reader: usize) {
        if let Some(end) = self.reader_records.get_mut(reader) {
            end.has_left = true;
        }
        self.ring.disconnect(reader);
    }

    /// Waits until a block of this length fits, if the policy is [`OverflowPolicy::Block`], and
    /// returns true. Under any other policy returns true immediately, because
    /// [`dbuf::BlockWriter::reserve`] then drops or overwrites.
    #[cold]
    pub(super) fn wait_for_room_if_blocking(&mut self, length: usize) -> Result<bool, Fault> {
        let processor = sys::machine::current_processor() as u64 + 1;
        let page = &self.ring.cursor_mut().store.writer;
        page.word(writer::PROCESSOR).store(processor, Ordering::Relaxed);
        if self.scaler.is_some() && self.ring.would_wrap(length) {
            self.resize_at_lap_end();
        }
        if self.has_room(length)? { Ok(true) } else { self.wait_for_room(length) }
    }

    fn has_room(&mut self, length: usize) -> Result<bool, Fault> {
        if self.ring.cursor_mut().policy != OverflowPolicy::Block {
            return Ok(true);
        }
        let need = self.ring.needed_positions(length)?;
        Ok(self.ring.cursor_mut().free_positions(need)? >= need)
    }

    /// Waits until a block of this length fits, and returns true.
    fn wait_for_room(&mut self, length: usize) -> Result<bool, Fault> {
        loop {
            if self.wait(length)? == WaitResult::Ready {
                return Ok(true);
            }
        }
    }

    /// Returns true if a block of this length can be written without waiting.
    #[inline]
    pub fn is_ready(&mut self, length: usize) -> Result<bool, Fault> {
        Ok(self.ring.fitting_length(length).is_some() || self.has_room(length)?)
    }

    /// Publishes all blocks, and sleeps at most once until a block of this length can be written.
    /// Returns [`WaitResult::Interrupted`] after a signal handler, and [`WaitResult::NotReady`]
    /// after a spurious wake-up, so that the caller can handle other events.
    pub fn wait(&mut self, length: usize) -> Result<WaitResult, Fault> {
        if let Some(scaler) = &mut self.scaler {
            scaler.record_wait();
        }
        self.flush();
        let shares_processor = self.side_placement() == SidePlacement::SameProcessor;
        for _ in 0..self.spin.poll_count(shares_processor) {
            if self.has_room(length)? {
                self.spin.record_success();
                return Ok(WaitResult::Ready);
            }
            std::hint::spin_loop();
        }
        self.spin.record_failure();
        let need = self.ring.needed_positions(length)?;
        let side = self.ring.cursor_mut();
        let (capacity, head) = (side.capacity, side.head);
        // Allows two wake-ups per lap instead of one per block. If both sides share a processor,
        // the reader continues until little data is left.
        let left = if self.spin.is_fixed_to_zero().unwrap_or(shares_processor) {
            capacity / 8
        } else {
            capacity / 2
        };
        let until = (head + need).saturating_sub(capacity).max(head.saturating_sub(left));
        self.sleeper.announce_sleep(&side.store.writer, writer::WAIT, until);
        let slept = self.sleep(length);
        self.sleeper.announce_wake(&self.ring.cursor_mut().store.writer, writer::WAIT);
        let slept = slept?;
        if !self.has_room(length)? {
            return Ok(slept);
        }
        self.reader_records.iter_mut().for_each(|end| end.false_alarms = end.false_alarms.min(0));
        Ok(WaitResult::Ready)
    }

    /// Sleeps once until a reader notifies. Returns [`WaitResult::Interrupted`] if a signal handler
    /// ended the sleep, and [`WaitResult::NotReady`] otherwise.
    fn sleep(&mut self, length: usize) -> Result<WaitResult, Fault> {
        if self.has_room(length)? {
            return Ok(WaitResult::NotReady);
        }
        self.update_readers();
        let present = || self.reader_records.iter().enumerate().filter(|(_, end)| !end.has_left);
        let doorbells: Vec<BorrowedFd<'_>> =
            present().map(|(_, end)| end.doorbell.as_fd()).collect();
        if doorbells.is_empty() {
            return Err(Fault::Abandoned);
        }
        let ready = sys::poll::wait_until_readable_or_signal(&doorbells, self.waking.sleep_limit);
        let slept = if ready.is_some() { WaitResult::NotReady } else { WaitResult::Interrupted };
        let notifying: Vec<usize> = present()
            .zip(ready.unwrap_or_default())
            .filter(|(_, ready)| *ready)
            .map(|((at, _), _)| at)
            .collect();
        for at in notifying {
            let end = &mut self.reader_records[at];
            end.false_alarms += 1;
            if end.doorbell.clear() == PeerState::Gone || end.false_alarms > FALSE_ALARMS_MAX {
                self.disconnect(at);
            }
        }
        if self.cursor_mut().is_abandoned() { Err(Fault::Abandoned) } else { Ok(slept) }
    }

    /// Updates the list of doorbells with the readers that have joined or left.
    pub(super) fn update_readers(&mut self) {
        let changes = self.ring.cursor_mut().take_reader_changes();
        if changes.is_empty() {
            return;
        }
        for change in changes {
            match change {
                ReaderChange::Joined(at, ReaderConnection { doorbell, page }) => {
                    let joined = StreamReaderRecord::new(doorbell, page);
                    match self.reader_records.get_mut(at) {
                        Some(end) => *end = joined,
                        None => self.reader_records.push(joined),
                    }
                }
                // The ring has handled the departure; another reader may have the index already.
                ReaderChange::Left(at) => {
                    if let Some(end) = self.reader_records.get_mut(at) {
                        end.has_left = true;
                    }
                }
            }
        }
        self.update_timer();
    }

    /// Returns true if a reader is asleep and has not been notified.
    #[cfg(test)]
    pub(super) fn has_unnotified_sleeper(&mut self) -> bool {
        let side = self.ring.cursor_mut();
        let mut ends = self.reader_records.iter().enumerate();
        ends.any(|(at, end)| {
            side.page(at)
                .is_some_and(|page| end.notifier.has_unnotified_sleeper(page, reader::WAIT))
        })
    }

    /// Closes the descriptors without closing the stream, as the kernel does for a killed process.
    #[cfg(any(test, feature = "testing"))]
    pub fn simulate_kill(mut self) {
        self.reader_records.clear();
        std::mem::forget(self);
    }

    pub(super) const fn cursor_mut(&mut self) -> &mut WriterCursor {
        self.ring.cursor_mut()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.ring.is_handed_over() {
            return;
        }
        self.ring.cursor_mut().close();
        self.flush();
    }
}
