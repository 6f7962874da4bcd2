//! Streams of slots between processes: a ring of slots with doorbells. [SL §5.1, §5.2]
//!
//! The interface is that of [`crate::stream`], but blocks are not split: a read returns one block
//! as it was written, like a datagram socket. A writer notifies only sleeping readers, each side
//! detects the exit of the other process, and every index is checked at each use. Wake-ups and the
//! end of a stream work as in [`crate::stream`].

use super::{ForeignSlotReader, SlotConfig, SlotWriter};
use crate::doorbells::Doorbells;
use crate::rate::SkippingReader;
use crate::share::{self, OfferRefusal};
use crate::wait::{BlockReadResult, Notifier, Sleeper, Urgency, WaitResult};
use crate::{Fault, OverflowPolicy, ReaderCounts, WriterCounts, signal};
use abi::ring::{reader, writer};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use sys::doorbell::{PeerState, SocketDoorbell};

/// Creates a stream of slots. Returns the writing end, and an offer for each reader. The writer
/// publishes blocks in groups of `every` blocks (T_b), and at each [`SlotOutput::flush`]. Fails if
/// the kernel refuses memory or sockets.
pub fn stream(config: &SlotConfig, every: usize) -> sys::Result<(SlotOutput, Vec<SlotOffer>)> {
    let (ring, rings) = share::slot_ring(config)?;
    let (mut doorbells, mut offers) = (Vec::new(), Vec::new());
    for ring in rings {
        let (own_end, peer_end) = SocketDoorbell::pair()?;
        doorbells.push(own_end);
        offers.push(SlotOffer::new(ring, peer_end));
    }
    let (doorbells, sleeper, spins) =
        (Doorbells::new(doorbells), Sleeper::default(), default_spin_limit());
    Ok((
        SlotOutput { ring, doorbells, sleeper, unpublished: 0, every: every.max(1), spins },
        offers,
    ))
}

fn default_spin_limit() -> u32 {
    signal::spin_limit_for_processors(std::thread::available_parallelism().map_or(1, usize::from))
}

/// The type tag of offers for rings of slots.
#[derive(Debug)]
pub enum SlotTag {}

/// The four descriptors that a reader of a stream of slots receives.
pub type SlotOffer = share::DoorbellOffer<SlotTag>;

impl SlotOffer {
    /// Validates the descriptors and opens the reading end of the stream.
    pub fn open(self) -> Result<SlotInput, OfferRefusal> {
        let (ring, doorbell) = (self.ring.open_slot_reader()?, self.doorbell);
        let (sleeper, notifier) = (Sleeper::default(), Notifier::default());
        Ok(SlotInput {
            ring,
            doorbell,
            sleeper,
            notifier,
            writer_exited: false,
            spins: default_spin_limit(),
            #[cfg(any(test, feature = "testing"))]
            late_event: crate::late_event::LateEvent::default(),
        })
    }
}

/// The only writer of a stream of slots. Dropping the writer ends the stream.
#[derive(Debug)]
pub struct SlotOutput {
    ring: SlotWriter,
    doorbells: Doorbells,
    sleeper: Sleeper,
    /// Number of blocks put and not yet published.
    unpublished: usize,
    every: usize,
    spins: u32,
}

impl SlotOutput {
    /// Sets how many times the writer polls for room before it sleeps. 0 suits a writer that shares
    /// its processor with the reader.
    pub const fn set_spin_limit(&mut self, spins: u32) {
        self.spins = spins;
    }

    /// Returns the maximum length of a block in bytes.
    #[must_use]
    pub fn block_length_max(&self) -> usize {
        self.ring.block_length_max()
    }

    /// Writes one block. While all slots are in use, blocks under [`OverflowPolicy::Block`], and
    /// drops the block and returns false under [`OverflowPolicy::DropNew`]. Fails with
    /// [`Fault::Abandoned`] if all readers have left, and with [`Fault::TooLong`] if the block
    /// exceeds [`SlotOutput::block_length_max`].
    #[inline]
    pub fn write(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if self.ring.try_put(block) {
            self.count_block();
            return Ok(true);
        }
        self.write_with(block.len(), |room| {
            room.copy_from_slice(block);
            block.len()
        })
    }

    /// Writes a block of up to `length` bytes in place: `fill` writes into the slot and returns the
    /// number of bytes written. Blocks, returns and fails like [`SlotOutput::write`].
    pub fn write_with(
        &mut self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<bool, Fault> {
        if self.ring.fitting_length(length).is_none() && !self.has_room()? {
            self.wait_for_room()?;
        }
        let Some(mut room) = self.ring.reserve(length)? else { return Ok(false) };
        let used = fill(&mut room);
        room.commit(used);
        self.count_block();
        Ok(true)
    }

    #[inline]
    fn count_block(&mut self) {
        self.unpublished += 1;
        if self.unpublished >= self.every {
            self.publish(Urgency::Flow);
        }
    }

    /// Publishes all written blocks and wakes all sleeping readers.
    pub fn flush(&mut self) {
        self.publish(Urgency::Last);
    }

    /// Returns the number of readers evicted for an impossible position.
    #[must_use]
    pub const fn evicted_readers(&self) -> u64 {
        self.ring.evicted_readers()
    }

    /// Returns the counts of this writer: blocks and bytes put, blocks and bytes dropped.
    #[must_use]
    pub const fn counts(&self) -> WriterCounts {
        self.ring.counts()
    }

    /// Returns the counts that a reader has published, or `None` if there is no such reader.
    #[must_use]
    pub fn reader_counts(&self, reader: usize) -> Option<ReaderCounts> {
        self.ring.reader_counts(reader)
    }

    /// Excludes a reader from flow control, and stops notifying the reader.
    pub fn disconnect(&mut self, reader: usize) {
        self.doorbells.disconnect(&mut self.ring.side, reader);
    }

    /// Returns the doorbells of present readers, to be polled with other descriptors.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.doorbells.all_present_doorbells()
    }

    fn publish(&mut self, urgency: Urgency) {
        self.unpublished = 0;
        self.ring.publish();
        self.doorbells.notify_due_readers(&mut self.ring.side, urgency);
    }

    /// Returns true if a block can be written without waiting.
    fn has_room(&mut self) -> Result<bool, Fault> {
        if self.ring.side.policy != OverflowPolicy::Block {
            return Ok(true);
        }
        let room = self.ring.side.free_positions(1)?;
        if self.ring.side.is_abandoned() { Err(Fault::Abandoned) } else { Ok(room > 0) }
    }

    #[cold]
    fn wait_for_room(&mut self) -> Result<(), Fault> {
        self.flush();
        for _ in 0..self.spins {
            if self.has_room()? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        loop {
            let (head, slots) = (self.ring.side.head, self.ring.layout.slots as u64);
            // Allows two wake-ups per lap instead of one per block.
            let left = if self.spins == 0 { slots / 8 } else { slots / 2 };
            let until = (head + 1).saturating_sub(slots).max(head.saturating_sub(left));
            self.sleeper.announce_sleep(&self.ring.side.store.writer, writer::WAIT, until);
            let has_room = self.has_room();
            let is_read = match has_room {
                Ok(false) => self.doorbells.sleep(&mut self.ring.side, None),
                _ => true,
            };
            self.sleeper.announce_wake(&self.ring.side.store.writer, writer::WAIT);
            if !is_read {
                return Err(Fault::Abandoned);
            }
            if has_room? || self.has_room()? {
                self.doorbells.reset_false_alarms();
                return Ok(());
            }
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl SlotOutput {
    /// Closes the descriptors without closing the stream, as the kernel does for a killed process.
    pub fn simulate_kill(mut self) {
        self.doorbells.simulate_kill();
        std::mem::forget(self);
    }
}

impl Drop for SlotOutput {
    fn drop(&mut self) {
        self.ring.side.close();
        self.flush();
    }
}

/// The reading end of a stream of slots. Blocks can only be copied out, not read in place, because
/// the writer may be an untrusted peer.
#[derive(Debug)]
pub struct SlotInput {
    ring: ForeignSlotReader,
    doorbell: SocketDoorbell,
    sleeper: Sleeper,
    notifier: Notifier,
    /// True once the writer's process has exited, with or without closing the stream.
    writer_exited: bool,
    spins: u32,
    /// Event that a test arms, and that fires within the next call that finds no block.
    #[cfg(any(test, feature = "testing"))]
    pub late_event: crate::late_event::LateEvent,
}

impl SlotInput {
    /// Sets how many times the reader polls for a block before it sleeps. 0 suits a reader that
    /// shares its processor with the writer.
    pub const fn set_spin_limit(&mut self, spins: u32) {
        self.spins = spins;
    }

    /// Copies the next block into `out` and advances past it. Blocks until a block is published.
    /// Returns the length in bytes, or `None` at the end of the stream. Fails with
    /// [`Fault::TooLong`] if `out` is too short (the block then remains unread), and with
    /// [`Fault::Abandoned`] if the writer was killed and all its blocks have been read.
    pub fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        loop {
            match self.try_read(out)? {
                BlockReadResult::Block(length) => return Ok(Some(length)),
                BlockReadResult::End => return Ok(None),
                BlockReadResult::Nothing => self.wait(None)?,
            };
        }
    }

    /// Copies the next block like [`SlotInput::read`], but without blocking.
    #[inline]
    pub fn try_read(&mut self, out: &mut [u8]) -> Result<BlockReadResult, Fault> {
        if let Some(length) = self.ring.take_block(out)? {
            if self.ring.unreleased_slots() >= self.ring.slots() / 8 {
                self.release();
            }
            return Ok(BlockReadResult::Block(length));
        }
        self.report_empty()
    }

    #[cold]
    fn report_empty(&mut self) -> Result<BlockReadResult, Fault> {
        self.release();
        #[cfg(any(test, feature = "testing"))]
        if self.late_event.fire() {
            self.writer_exited |= self.doorbell.clear() == PeerState::Gone;
        }
        if self.ring.is_finished()? {
            return Ok(BlockReadResult::End);
        }
        // Blocks published between the last check and the exit of the writer are still read.
        let has_more = self.ring.cursor_mut().has_more()?;
        if self.writer_exited && !has_more {
            Err(Fault::Abandoned)
        } else {
            Ok(BlockReadResult::Nothing)
        }
    }

    /// Waits until a block is published or the stream ends, for at most `limit` (`None` means no
    /// limit). May return [`WaitResult::NotReady`] earlier, after a signal or another notification.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<WaitResult, Fault> {
        for _ in 0..self.spins {
            if self.is_readable()? {
                return Ok(WaitResult::Ready);
            }
            std::hint::spin_loop();
        }
        let readable = self.announce_sleep(self.ring.slots() / 4);
        let mut notified = false;
        if matches!(readable, Ok(false)) {
            notified = sys::poll::wait_until_readable(&[self.doorbell.as_fd()], limit) == [true];
        }
        self.announce_wake(notified);
        let readable = readable? || self.is_readable()?;
        Ok(if readable { WaitResult::Ready } else { WaitResult::NotReady })
    }

    /// Announces that the caller is about to sleep until `blocks` more blocks are published or the
    /// writer flushes. Returns true if there is already something to read. In either case the
    /// caller must call [`SlotInput::announce_wake`] afterwards.
    pub fn announce_sleep(&mut self, blocks: u64) -> Result<bool, Fault> {
        let side = self.ring.cursor_mut();
        let until = side.next.saturating_add(blocks);
        let Some(page) = side.store.readers.first() else { return Err(Fault::Abandoned) };
        self.sleeper.announce_sleep(page, reader::WAIT, until);
        self.is_readable()
    }

    /// Announces that the caller is awake. If `notified` is true, because the doorbell is readable,
    /// also drains the doorbell.
    pub fn announce_wake(&mut self, notified: bool) {
        if notified {
            self.writer_exited |= self.doorbell.clear() == PeerState::Gone;
        }
        if let Some(page) = self.ring.cursor_mut().store.readers.first() {
            self.sleeper.announce_wake(page, reader::WAIT);
        }
    }

    /// Releases all blocks read so far, and wakes a writer that is waiting for slots.
    pub fn release(&mut self) {
        if self.ring.unreleased_slots() > 0 {
            self.ring.cursor_mut().release();
            self.notify_writer();
        }
    }

    /// Returns the counts that the writer has published. They are not validated.
    #[must_use]
    pub fn writer_counts(&self) -> WriterCounts {
        self.ring.writer_counts()
    }

    /// Returns true if a read would not block: a block is published, the stream has ended, or the
    /// writer was killed.
    pub fn is_readable(&mut self) -> Result<bool, Fault> {
        let side = self.ring.cursor_mut();
        Ok(side.has_more()? || side.is_finished()? || self.writer_exited)
    }

    fn skip(
        &mut self,
        skip: impl FnOnce(&mut ForeignSlotReader) -> Result<u64, Fault>,
    ) -> Result<u64, Fault> {
        let skipped = skip(&mut self.ring)?;
        self.notify_writer();
        Ok(skipped)
    }

    /// Wakes the writer if it is waiting for the released slots.
    fn notify_writer(&mut self) {
        let side = self.ring.cursor_mut();
        let released = side.released_position();
        if self.notifier.is_due(&side.store.writer, writer::WAIT, released, Urgency::More) {
            self.writer_exited |= self.doorbell.notify() == PeerState::Gone;
        }
    }
}

impl SkippingReader for SlotInput {
    fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        Ok(match self.try_read(out)? {
            BlockReadResult::Block(length) => Some(length),
            BlockReadResult::Nothing | BlockReadResult::End => None,
        })
    }

    fn skip_to_latest(&mut self) -> Result<u64, Fault> {
        self.skip(ForeignSlotReader::skip_to_latest)
    }

    fn skip_to_now(&mut self) -> Result<u64, Fault> {
        self.skip(ForeignSlotReader::skip_to_now)
    }

    fn counts(&self) -> ReaderCounts {
        self.ring.counts()
    }
}

impl AsFd for SlotInput {
    /// Returns the doorbell. It becomes readable when the writer notifies this reader, which the
    /// writer does only after [`SlotInput::announce_sleep`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

impl Drop for SlotInput {
    fn drop(&mut self) {
        // Wakes a sleeping writer, so that it notices the reader's exit.
        self.ring.cursor_mut().leave();
        let _peer = self.doorbell.notify();
    }
}
