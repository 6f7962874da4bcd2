//! The reading end of a stream.

use super::writer_message::{self, WriterMessage};
use crate::atomic::load_acquire;
use crate::dbuf::ForeignBlockReader;
use crate::dbuf::walk::{CheckedRecord, RecordWalk};
use crate::share::segment::ReceivedSegment;
use crate::signal::SpinState;
use crate::trust::TrustProof;
use crate::wait::{Notifier, Sleeper, Urgency, WaitResult};
use crate::{Fault, OverflowPolicy, ReaderCounts, WriterCounts};
use abi::ring::{RingGeometry, reader, writer};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use sys::doorbell::{DrainResult, PeerState, SocketDoorbell};

mod blocks;
mod peek;
mod watch;

/// A reader of a stream. The reader copies blocks, or reads them in place if the writer is trusted
/// ([`Input::peek`]).
#[derive(Debug)]
pub struct Input {
    pub(super) ring: ForeignBlockReader,
    doorbell: SocketDoorbell,
    sleeper: Sleeper,
    notifier: Notifier,
    /// Unread rest of a block that did not fit into the caller's buffer, if any.
    unread_rest: Option<CheckedRecord>,
    /// Block that [`Input::open_block`] has taken. `None` after this end has entered another
    /// segment.
    opened_block: Option<CheckedRecord>,
    /// True once the writer's process has exited, with or without closing the stream.
    writer_exited: bool,
    /// True if the ring overwrites its oldest blocks.
    is_lossy: bool,
    /// State of the adaptive spinning before a sleep.
    spin: SpinState,
    /// Geometry of the segment that this end reads.
    geometry: RingGeometry,
    /// Segments received from the writer but not entered yet.
    received_segments: Vec<ReceivedSegment>,
    /// True after the writer has revoked access to further segments.
    is_revoked: bool,
    /// True if the stream was opened by [`Offer::open_trusting`](super::Offer::open_trusting).
    is_trusting: bool,
    /// Proof that the creator of the current segment can be trusted, or `None` if it cannot.
    trust_proof: Option<TrustProof>,
    /// Event that a test injects into a call that finds no block.
    #[cfg(any(test, feature = "testing"))]
    pub late_event: crate::late_event::LateEvent,
}

/// Maximum number of segments in the inbox; an honest writer sends one at a time.
const RECEIVED_SEGMENTS_MAX: usize = 8;
/// Maximum number of notifications drained in one call.
const DRAINED_NOTIFICATIONS_MAX: usize = 256;

impl Input {
    /// Returns the capacity in bytes of the segment that this end reads.
    #[must_use]
    pub fn capacity(&self) -> usize {
        usize::try_from(self.geometry.capacity).unwrap_or(usize::MAX)
    }

    pub(super) fn new(
        (mut ring, shape): (ForeignBlockReader, RingGeometry),
        doorbell: SocketDoorbell,
    ) -> Self {
        let walk = ring.walk();
        let is_lossy = walk.side.policy == OverflowPolicy::Overwrite;
        walk.stop_at(walk.side.released_position() + release_interval(walk));
        Self {
            ring,
            doorbell,
            sleeper: Sleeper::default(),
            notifier: Notifier::default(),
            unread_rest: None,
            opened_block: None,
            writer_exited: false,
            is_lossy,
            spin: SpinState::default(),
            geometry: shape,
            received_segments: Vec::new(),
            is_revoked: false,
            is_trusting: false,
            trust_proof: None,
            #[cfg(any(test, feature = "testing"))]
            late_event: crate::late_event::LateEvent::default(),
        }
    }

    /// Marks the stream as opened by [`Offer::open_trusting`](super::Offer::open_trusting).
    /// `creator` is the proof of trust for the first segment.
    pub(super) const fn trusting(mut self, creator: Option<TrustProof>) -> Self {
        (self.is_trusting, self.trust_proof) = (true, creator);
        self
    }

    /// Fixes the number of polls before a sleep. By default the number is adaptive: none if the
    /// writer and the reader share a processor, otherwise as many as past polls have justified.
    pub const fn set_spin_limit(&mut self, spins: u32) {
        self.spin.fix_polls(spins);
    }

    /// Reads like `read(2)`: blocks until there is something to read, then copies up to `out.len()`
    /// bytes. The rest of a block is left for the next call. Returns the number of bytes, or 0 at
    /// the end of the stream.
    ///
    /// A ring that overwrites returns whole blocks, one at a time, so that two laps are never
    /// mixed. The read then fails with [`Fault::TooLong`] if `out` is too short.
    // Inlined for the same reason as `Output::write`.
    #[inline(always)]
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        if self.ring.walk().take_block(out) {
            return Ok(out.len());
        }
        loop {
            match self.try_read_slowly(out)? {
                Some(count) => return Ok(count),
                None => self.wait(None)?,
            };
        }
    }

    /// Reads like [`Input::read`], but without blocking. Returns `None` if there is nothing to
    /// read.
    #[inline]
    pub fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        match self.ring.walk().take_block(out) {
            true => Ok(Some(out.len())),
            false => self.try_read_slowly(out),
        }
    }

    /// Implements [`Input::try_read`] without the fast path.
    #[cold]
    fn try_read_slowly(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        if out.is_empty() {
            return Ok(Some(0));
        }
        loop {
            let count = match self.is_lossy {
                true => self.ring.read(out)?.unwrap_or(0),
                false => self.fill(out)?,
            };
            if count > 0 {
                return Ok(Some(count));
            }
            self.release();
            if !self.follow_switch()? {
                break;
            }
        }
        Ok(self.is_at_end()?.then_some(0))
    }

    /// Returns true if the stream has ended. Call this when there is nothing to read. Fails if the
    /// stream cannot continue.
    fn is_at_end(&mut self) -> Result<bool, Fault> {
        #[cfg(any(test, feature = "testing"))]
        if self.late_event.fire() {
            while self.drain_doorbell() {}
        }
        let is_switching = self.ring.walk().next_segment_number().is_some();
        if is_switching && self.is_revoked {
            return Err(Fault::Revoked { position: self.ring.walk().side.next });
        }
        if !is_switching && self.ring.is_finished()? {
            return Ok(true);
        }
        // Blocks published between the last check and the exit of the writer are still read.
        let side = &mut self.ring.walk().side;
        let has_more = !is_switching && side.has_more()?;
        if self.writer_exited && !has_more { Err(Fault::Abandoned) } else { Ok(false) }
    }

    /// Waits until there is something to read or the stream has ended, for at most `limit` (`None`
    /// means no limit). May return earlier: [`WaitResult::NotReady`] after another notification,
    /// and [`WaitResult::Interrupted`] after a signal handler.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<WaitResult, Fault> {
        self.wait_with_descriptors(&[], limit)
    }

    /// Waits like [`Input::wait`], but also returns when one of the descriptors `others` becomes
    /// readable.
    pub fn wait_with_descriptors(
        &mut self,
        others: &[BorrowedFd<'_>],
        limit: Option<Duration>,
    ) -> Result<WaitResult, Fault> {
        // The next segment takes long to create, so polling for it does not pay.
        let is_switching = self.ring.walk().next_segment_number().is_some();
        let shares_processor = self.shares_processor();
        if !is_switching && self.poll(shares_processor)? {
            return Ok(WaitResult::Ready);
        }
        let side = &mut self.ring.walk().side;
        // On the writer's processor, waking early only interrupts the writer: each time costs two
        // task switches. A writer that blocks notifies when it cannot continue or turns to other
        // work; other writers never wait, so there the reader must keep the ring from filling up.
        let all = shares_processor && side.policy == OverflowPolicy::Block;
        let enough = if all { side.capacity } else { side.capacity / 4 };
        let until = side.next.saturating_add(enough);
        let index = side.index;
        let Some(page) = side.store.readers.get(index) else { return Err(Fault::Abandoned) };
        self.sleeper.announce_sleep(page, reader::WAIT, until);
        let slept = match self.is_readable() {
            Ok(false) => {
                let all: Vec<BorrowedFd<'_>> =
                    std::iter::once(self.doorbell.as_fd()).chain(others.iter().copied()).collect();
                let ready = sys::poll::wait_until_readable_or_signal(&all, limit);
                self.drain_doorbell();
                Ok(if ready.is_some() { WaitResult::NotReady } else { WaitResult::Interrupted })
            }
            Ok(true) => Ok(WaitResult::NotReady),
            Err(fault) => Err(fault),
        };
        if let Some(page) = self.ring.walk().side.store.readers.get(index) {
            self.sleeper.announce_wake(page, reader::WAIT);
        }
        let slept = slept?;
        Ok(if self.is_readable()? { WaitResult::Ready } else { slept })
    }

    /// Polls for something to read, as often as past polls justify ([`SpinState`]). Returns true if
    /// there is something to read.
    fn poll(&mut self, shares_processor: bool) -> Result<bool, Fault> {
        let taken = self.ring.walk().counts().blocks;
        let mut spin = self.spin;
        let found = spin.poll(shares_processor, taken, || self.is_readable());
        self.spin = spin;
        found
    }

    /// Returns true if the reader should leave the processor to the writer, because both probably
    /// share one. If the user has set the number of spins, returns true for 0 spins. Otherwise
    /// returns true if the writer last ran on this processor. An unknown processor counts as this
    /// one if this process may run on one processor only.
    fn shares_processor(&mut self) -> bool {
        let own = sys::machine::current_processor() as u64 + 1;
        let writers = load_acquire(self.ring.walk().side.store.writer.word(writer::PROCESSOR));
        let is_shared = || writers == own || writers == 0 && super::has_single_processor();
        self.spin.is_fixed_to_zero().unwrap_or_else(is_shared)
    }

    /// Releases everything read so far, and wakes a writer that is waiting for room.
    /// [`Input::read`] calls this before it waits and after each eighth of the ring.
    pub fn release(&mut self) {
        let walk = self.ring.walk();
        let (is_released, cut) =
            (walk.side.next == walk.side.released_position(), walk.take_capacity_change());
        if is_released && !cut {
            return;
        }
        walk.publish_processor();
        walk.release();
        self.notify_writer();
    }

    /// Wakes the writer if it is waiting for the released room.
    fn notify_writer(&mut self) {
        let walk = self.ring.walk();
        let released = walk.side.released_position();
        walk.stop_at(released + release_interval(walk));
        let side = &walk.side;
        if self.notifier.is_due(&side.store.writer, writer::WAIT, released, Urgency::More) {
            self.writer_exited |= self.doorbell.notify() == PeerState::Gone;
        }
    }

    /// Returns the counts of this reader: blocks and bytes taken, blocks lost and skipped.
    #[must_use]
    pub fn counts(&self) -> ReaderCounts {
        self.ring.counts()
    }

    /// Returns the counts that the writer has published. They are not validated.
    #[must_use]
    pub fn writer_counts(&self) -> WriterCounts {
        self.ring.writer_counts()
    }

    /// Returns the number of blocks that the writer's program lost before it could write them to
    /// the current segment, as reported by
    /// [`Output::report_lost_before_ring`](super::Output::report_lost_before_ring). The number is
    /// not validated.
    #[must_use]
    pub fn lost_before_ring(&self) -> u64 {
        self.ring.lost_before_ring()
    }

    /// Returns an estimate of how many bytes can be read now. The estimate includes the record
    /// headers in the ring, and is at least 1 if there is something to read. Returns 0 if there is
    /// nothing to read, and always in a ring that overwrites.
    pub fn readable_bytes_estimate(&mut self) -> Result<usize, Fault> {
        if self.is_lossy {
            return Ok(0);
        }
        loop {
            let walk = self.ring.walk();
            if self.unread_rest.is_some() {
                let available = walk.side.last_published_position() - walk.side.next;
                return Ok(usize::try_from(available).unwrap_or(usize::MAX));
            }
            match walk.find()? {
                Some(found) if found.unread_length() > 0 => {
                    walk.disable_fast_path();
                    self.unread_rest = Some(found);
                }
                Some(empty) => walk.pass_record(&empty),
                None => return Ok(0),
            }
        }
    }

    /// Returns true if a read would not block: there is something to read, or the stream has ended
    /// or cannot continue.
    pub fn is_readable(&mut self) -> Result<bool, Fault> {
        if self.unread_rest.is_some() || self.writer_exited {
            return Ok(true);
        }
        if self.ring.walk().next_segment_number().is_some() && !self.follow_switch()? {
            return Ok(self.writer_exited || self.is_revoked);
        }
        let side = &mut self.ring.walk().side;
        Ok(side.has_more()? || side.is_finished()?)
    }

    /// Enters the next segment if the ring has switched and the segment has arrived. Returns true
    /// if a segment was entered.
    fn follow_switch(&mut self) -> Result<bool, Fault> {
        let Some(number) = self.ring.walk().next_segment_number() else { return Ok(false) };
        for _ in 0..DRAINED_NOTIFICATIONS_MAX {
            self.received_segments.retain(|segment| segment.number >= number);
            if let Some(at) =
                self.received_segments.iter().position(|segment| segment.number == number)
            {
                let segment = self.received_segments.swap_remove(at);
                return self.enter_segment(&segment).map(|()| true);
            }
            if self.is_revoked || !self.drain_doorbell() {
                break;
            }
        }
        Ok(false)
    }

    /// Validates and enters a segment. Fails with [`Fault::Segment`] if the segment is invalid.
    #[cold]
    fn enter_segment(&mut self, segment: &ReceivedSegment) -> Result<(), Fault> {
        let walk = self.ring.walk();
        let (position, page) = (walk.side.next, walk.side.store.readers.first().cloned());
        let attached = page.map(|page| segment.attach(&self.geometry, position, page));
        let Some(Ok((store, shape))) = attached else {
            return Err(walk.side.poison(Fault::Segment { position }));
        };
        walk.continue_in_memory(store);
        walk.stop_at(position + release_interval(walk));
        self.opened_block = None;
        self.trust_proof = if self.is_trusting { segment.creator_trust() } else { None };
        self.geometry = shape;
        // The writer's page has changed, and perhaps the writer.
        self.notifier = Notifier::default();
        self.writer_exited |= self.doorbell.notify() == PeerState::Gone;
        Ok(())
    }

    /// Drains one notification and handles the note sent with it, if any. Returns false if there
    /// was no notification, or if the writer's process has exited.
    fn drain_doorbell(&mut self) -> bool {
        match self.doorbell.drain() {
            DrainResult::Nothing => return false,
            DrainResult::Gone => {
                self.writer_exited = true;
                return false;
            }
            DrainResult::Notification(note, descriptors) => match writer_message::decode(&note) {
                Some(WriterMessage::Segment(number)) => {
                    if self.received_segments.len() == RECEIVED_SEGMENTS_MAX {
                        self.received_segments.remove(0);
                    }
                    self.received_segments.extend(ReceivedSegment::new(number, descriptors));
                }
                Some(WriterMessage::Revoked) => self.is_revoked = true,
                None => {}
            },
        }
        true
    }

    /// Copies blocks into `out` until `out` is full or all blocks up to the last loaded position of
    /// the writer have been copied. Returns the number of bytes copied.
    fn fill(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        self.fill_until_mark(out, false).map(|(count, _)| count)
    }

    /// Copies blocks like [`Input::fill`], and returns the number of bytes copied. If `marks` is
    /// true, an empty block is a mark, at which copying stops. If the mark is the first block,
    /// advances past it and also returns true.
    fn fill_until_mark(&mut self, out: &mut [u8], marks: bool) -> Result<(usize, bool), Fault> {
        let mut count = 0;
        while count < out.len() {
            let walk = self.ring.walk();
            // One call copies only blocks that were known at its start.
            if count > 0 && walk.side.has_read_all() && self.unread_rest.is_none() {
                break;
            }
            let found = match self.unread_rest.take() {
                Some(found) => found,
                None => match walk.find()? {
                    Some(found) => found,
                    None => break,
                },
            };
            if marks && found.unread_length() == 0 {
                if count == 0 {
                    walk.pass_record(&found);
                    return Ok((0, true));
                }
                break;
            }
            let to = out.get_mut(count..).unwrap_or_default();
            let length = to.len().min(found.unread_length());
            let (to, _) = to.split_at_mut(length);
            walk.data().copy_out(found.unread_position(), to);
            count += length;
            match found.advanced_by(length) {
                Some(rest) => {
                    self.unread_rest = Some(rest);
                    walk.disable_fast_path();
                }
                None => walk.pass_record(&found),
            }
            // A reader of bytes passes an empty block without returning.
        }
        let walk = self.ring.walk();
        if walk.side.next - walk.side.released_position() >= release_interval(walk) {
            self.release();
        }
        Ok((count, false))
    }
}

/// Returns the number of bytes read after which room is released: an eighth of the ring.
const fn release_interval(walk: &RecordWalk) -> u64 {
    walk.side.capacity / 8
}

impl AsFd for Input {
    /// Returns the doorbell, for polling with other descriptors. It becomes readable when the
    /// writer notifies a reader that has announced its sleep.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        // Wakes a sleeping writer, so that it notices the reader's exit.
        self.ring.walk().side.leave();
        let _ = self.doorbell.notify();
    }
}
