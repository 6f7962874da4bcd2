//! The end of a stream that writes.

use super::scaler::Scaler;
use super::switch::Segments;
use super::waking::{Latency, Waking};
use super::{Config, Ready};
use crate::atomic::Ordering;
use crate::cursor::{Change, Producer};
use crate::join::Contact;
use crate::scale::Sides;
use crate::signal::Spin;
use crate::signal::moderate::Events;
use crate::wait::{Ringer, Sleeper, Urgency};
use crate::{Fault, Policy, Put, dbuf};
use abi::ring::{reader, writer};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::doorbell::{Peer, SocketDoorbell};

/// So many bytes are shown however few blocks they are: the reader copies them while the next ones
/// are written.
const SHOWN_BYTES: u64 = 64 << 10;

/// The one writer of a stream. Dropping it ends the stream.
#[derive(Debug)]
pub struct Output {
    pub(super) ring: dbuf::Writer,
    pub(super) ends: Vec<End>,
    sleeper: Sleeper,
    /// After how many blocks what was written is shown.
    pub(super) every: u64,
    /// Count of blocks at which the next publication is due.
    show_after: u64,
    /// Head position at which a publication is due, however few blocks there are.
    show_at: u64,
    pub(super) segments: Segments,
    /// Sizing of the ring, if it sizes itself.
    pub(super) scaler: Option<Scaler>,
    /// Adaptive spinning before a sleep.
    pub(super) spin: Spin,
    /// The bound on the latency, if there is one.
    latency: Option<Latency>,
    waking: Waking,
}

/// The writer's record of a reader.
#[derive(Debug)]
pub(super) struct End {
    pub(super) doorbell: SocketDoorbell,
    ringer: Ringer,
    pub(super) gone: bool,
    /// Its page, for a writer that takes the stream over.
    pub(super) page: OwnedFd,
    /// Notifications in vain since the last progress; below 0, those owed to a new segment.
    pub(super) false_alarms: i64,
}

impl End {
    pub(super) fn new(doorbell: SocketDoorbell, page: OwnedFd) -> Self {
        Self { doorbell, ringer: Ringer::default(), gone: false, page, false_alarms: 0 }
    }
}

/// A reader rings once for each sleep, and only when it has come far enough. One that has rung so
/// often while nothing came of it wants to keep the writer busy: nobody waits for it any more.
const FALSE_ALARMS_MAX: i64 = 64;

impl Output {
    pub(super) fn new(
        mut ring: dbuf::Writer,
        ends: Vec<(SocketDoorbell, OwnedFd)>,
        config: &Config,
        segments: Segments,
    ) -> Self {
        let show_at = SHOWN_BYTES.min(ring.side().capacity / 16);
        // Who must not wait long is shown every block.
        let every = if config.latency.is_some() { 1 } else { config.every.max(1) as u64 };
        let entries = config.ring.capacity / abi::ring::LINE_WORDS;
        let latency =
            config.latency.map(|ns| Latency::new(config.every.max(1) as u64, ns, entries));
        ring.stop_at(show_at);
        ring.keep_room_to_switch();
        let ends: Vec<End> =
            ends.into_iter().map(|(doorbell, page)| End::new(doorbell, page)).collect();
        let scaler = config.scaling.map(Scaler::new);
        let (sleeper, spin) = (Sleeper::default(), Spin::default());
        let (show_after, waking) = (every, Waking::default());
        let mut output = Self {
            ring,
            ends,
            sleeper,
            every,
            show_after,
            show_at,
            segments,
            scaler,
            spin,
            latency,
            waking,
        };
        output.tell_timer();
        output
    }

    /// Sets how often to look before sleeping. By default each wait decides: never where both sides
    /// share a processor, else as long as looking has paid off.
    pub const fn spin(&mut self, spins: u32) {
        self.spin.fix(spins);
    }

    /// Wakes and waits in another way, where that is what is measured.
    pub const fn waking(&mut self, waking: Waking) {
        self.waking = waking;
    }

    /// Returns the counts of wake-ups because of the bound on the latency; `None`: there is no
    /// bound.
    #[must_use]
    pub fn events(&self) -> Option<Events> {
        self.latency.as_ref().map(Latency::events)
    }

    /// Has the timer know who reads.
    fn tell_timer(&mut self) {
        if let Some(latency) = &mut self.latency {
            let there = self.ends.iter().filter(|end| !end.gone);
            latency.knows(there.map(|end| &end.doorbell));
        }
    }

    /// The longest block that can be written.
    #[must_use]
    pub fn block_max(&self) -> usize {
        self.ring.block_max()
    }

    /// Writes one block; waits while the stream is full and its policy is to block. Answers false
    /// if the block was dropped, as the policy says. [`Fault::Abandoned`]: nobody reads any more.
    // Left to the compiler it was a call: 64 bytes at 7.2 and not 10.2 GB/s on one core.
    #[inline(always)]
    pub fn write(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if self.ring.put(block) {
            self.show_if_due();
            return Ok(true);
        }
        self.look_and_write(block)
    }

    #[cold]
    fn look_and_write(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if let Some(scaler) = &mut self.scaler {
            scaler.goes_on(self.ring.head());
        }
        self.write_with(block.len(), |room| {
            room.copy_from_slice(block);
            block.len()
        })
    }

    /// Lets `fill` write up to `length` bytes in place and return their number. [SL §5.1]
    #[inline]
    pub fn write_with(
        &mut self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<bool, Fault> {
        if self.ring.fits(length).is_none() && !self.make_room(length)? {
            return Ok(false);
        }
        let Some(mut room) = self.ring.reserve(length)? else { return Ok(false) };
        let used = fill(&mut room);
        room.commit(used);
        if self.ring.head() >= self.show_at {
            self.show(Urgency::Flow);
        }
        self.show_if_due();
        Ok(true)
    }

    /// Shows what was written if it is enough blocks.
    #[inline]
    fn show_if_due(&mut self) {
        if self.ring.blocks() >= self.show_after {
            self.show(Urgency::Flow);
        }
    }

    /// Shows readers all that was written, and wakes those that wait for anything. To be called
    /// before the writer turns to something else.
    pub fn flush(&mut self) {
        self.show(Urgency::Last);
    }

    /// Shows readers all that was written, and wakes those that wait for it.
    pub(super) fn show(&mut self, urgency: Urgency) {
        self.ring.publish();
        if self.segments.is_cut() {
            self.give_memory_back();
        }
        self.ring.side().look_at_door();
        self.settle();
        let side = self.ring.side();
        let head = side.head;
        self.show_at = head + SHOWN_BYTES.min(side.capacity / 16);
        self.show_after = side.put.blocks + self.every;
        let mut urgency = urgency;
        if let Some(latency) = &mut self.latency {
            let asleep = |(at, end): (usize, &End)| {
                let page = side.page(at).filter(|_| !end.gone);
                page.is_some_and(|page| end.ringer.is_awaited(page, reader::WAIT))
            };
            if urgency == Urgency::Last {
                latency.flushes(side.put.blocks);
            } else if latency.shows(side.put.blocks, self.ends.iter().enumerate().any(asleep)) {
                urgency = Urgency::Last;
            }
        }
        let always = self.waking.always && urgency == Urgency::Last;
        let mut gone = Vec::new();
        for (at, end) in self.ends.iter_mut().enumerate() {
            let Some(page) = side.page(at) else { continue };
            let due = end.ringer.is_due(page, reader::WAIT, head, urgency) || always;
            let due = due && !end.gone;
            if due && end.doorbell.notify() == Peer::Gone {
                gone.push(at);
            }
        }
        gone.into_iter().for_each(|at| self.shut_out(at));
        self.ring.stop_at(self.show_at);
    }

    /// Returns the counts of this side.
    #[must_use]
    pub const fn count(&self) -> Put {
        self.ring.count()
    }

    /// Readers that were evicted because they showed a position that they cannot have. What is
    /// written after that is not theirs; the others get every byte.
    #[must_use]
    pub const fn evicted(&self) -> u64 {
        self.ring.evicted()
    }

    /// Returns the counts that a reader has published.
    #[must_use]
    pub fn taken(&self, reader: usize) -> Option<crate::Taken> {
        self.ring.taken(reader)
    }

    /// Returns the number of places for readers; those of departed readers are used again.
    #[must_use]
    pub const fn readers(&self) -> usize {
        self.ends.len()
    }

    /// Stops waiting for a reader.
    pub fn shut_out(&mut self, reader: usize) {
        if let Some(end) = self.ends.get_mut(reader) {
            end.gone = true;
        }
        self.ring.shut_out(reader);
    }

    /// Looks for room, and waits for it. Answers false where the policy is not to wait and there is
    /// none; the block is then counted as dropped.
    #[cold]
    pub(super) fn make_room(&mut self, length: usize) -> Result<bool, Fault> {
        let here = sys::machine::current_processor() as u64 + 1;
        let page = &self.ring.side().store.writer;
        page.word(writer::PROCESSOR).store(here, Ordering::Relaxed);
        if self.scaler.is_some() && self.ring.wraps(length) {
            self.end_round();
        }
        if self.has_room(length)? { Ok(true) } else { self.wait_for(length) }
    }

    fn has_room(&mut self, length: usize) -> Result<bool, Fault> {
        if self.ring.side().policy != Policy::Block {
            return Ok(true);
        }
        let need = self.ring.needs(length)?;
        Ok(self.ring.side().room(need)? >= need)
    }

    /// Waits until a block of this length fits.
    fn wait_for(&mut self, length: usize) -> Result<bool, Fault> {
        loop {
            if self.wait(length)? == Ready::Something {
                return Ok(true);
            }
        }
    }

    /// Returns true if a block of this length can be written without waiting.
    #[inline]
    pub fn is_ready(&mut self, length: usize) -> Result<bool, Fault> {
        Ok(self.ring.fits(length).is_some() || self.has_room(length)?)
    }

    /// Shows all that was written and waits once until a block of this length can be written; comes
    /// back with nothing where a signal or a reader that rang in vain was what ended the sleep. For
    /// who has something to look at in between, such as the signals of a program.
    pub fn wait(&mut self, length: usize) -> Result<Ready, Fault> {
        if let Some(scaler) = &mut self.scaler {
            scaler.waits();
        }
        self.flush();
        let together = self.sides() == Sides::Together;
        for _ in 0..self.spin.looks(together) {
            if self.has_room(length)? {
                self.spin.has_found();
                return Ok(Ready::Something);
            }
            std::hint::spin_loop();
        }
        self.spin.was_vain();
        let need = self.ring.needs(length)?;
        let side = self.ring.side();
        let (capacity, head) = (side.capacity, side.head);
        // A lap costs two events, and not one for each block. Where both sides share a processor
        // the reader may as well go on until little is left.
        let left = if self.spin.yields().unwrap_or(together) { capacity / 8 } else { capacity / 2 };
        let until = (head + need).saturating_sub(capacity).max(head.saturating_sub(left));
        self.sleeper.falls_asleep(&side.store.writer, writer::WAIT, until);
        let slept = self.sleep(length);
        self.sleeper.wakes(&self.ring.side().store.writer, writer::WAIT);
        slept?;
        if !self.has_room(length)? {
            return Ok(Ready::Nothing);
        }
        self.ends.iter_mut().for_each(|end| end.false_alarms = end.false_alarms.min(0));
        Ok(Ready::Something)
    }

    fn sleep(&mut self, length: usize) -> Result<(), Fault> {
        if self.has_room(length)? {
            return Ok(());
        }
        self.settle();
        let present = || self.ends.iter().enumerate().filter(|(_, end)| !end.gone);
        let doorbells: Vec<BorrowedFd<'_>> =
            present().map(|(_, end)| end.doorbell.as_fd()).collect();
        if doorbells.is_empty() {
            return Err(Fault::Abandoned);
        }
        let ready = sys::poll::readable(&doorbells, self.waking.limit);
        let rang: Vec<usize> =
            present().zip(ready).filter(|(_, ready)| *ready).map(|((at, _), _)| at).collect();
        for at in rang {
            let end = &mut self.ends[at];
            end.false_alarms += 1;
            if end.doorbell.clear() == Peer::Gone || end.false_alarms > FALSE_ALARMS_MAX {
                self.shut_out(at);
            }
        }
        if self.side().abandoned() { Err(Fault::Abandoned) } else { Ok(()) }
    }

    /// Has a doorbell for each reader that has come.
    pub(super) fn settle(&mut self) {
        let changes = self.ring.side().changes();
        if changes.is_empty() {
            return;
        }
        for change in changes {
            match change {
                Change::Came(at, Contact { doorbell, page }) => {
                    let came = End::new(doorbell, page);
                    match self.ends.get_mut(at) {
                        Some(end) => *end = came,
                        None => self.ends.push(came),
                    }
                }
                // The ring knows; another one may have its place there already.
                Change::Left(at) => {
                    if let Some(end) = self.ends.get_mut(at) {
                        end.gone = true;
                    }
                }
            }
        }
        self.tell_timer();
    }

    /// Returns true if a reader sleeps and was not notified.
    #[cfg(test)]
    pub(super) fn is_awaited(&mut self) -> bool {
        let side = self.ring.side();
        let mut ends = self.ends.iter().enumerate();
        ends.any(|(at, end)| {
            side.page(at).is_some_and(|page| end.ringer.is_awaited(page, reader::WAIT))
        })
    }

    /// Ends as a process does that is killed: nothing is closed but descriptors.
    #[cfg(any(test, feature = "testing"))]
    pub fn die(mut self) {
        self.ends.clear();
        std::mem::forget(self);
    }

    pub(super) const fn side(&mut self) -> &mut Producer {
        self.ring.side()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.ring.is_away() {
            return;
        }
        self.ring.side().close();
        self.flush();
    }
}
