//! A stream of slots between processes: a ring of slots, and doorbells. [SL §5.1, §5.2]
//!
//! The calls of [`crate::stream`], with blocks that stay whole: a read gives one block as it was
//! written, as a datagram socket does. Who sleeps says so and is rung for, and nobody else; a
//! process that is gone is heard; each index is checked at each use. What is said there about
//! waking and about the end holds here.

use super::{Config, Visitor, Writer};
use crate::doorbells::Doorbells;
use crate::pace::Skip;
use crate::share::{self, Refusal};
use crate::stream::{Piece, Ready};
use crate::wait::{Ringer, Sleeper, Urgency};
use crate::{Fault, Policy, Put, Taken, signal};
use abi::ring::{reader, writer};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use sys::doorbell::{Peer, SocketDoorbell};

/// Makes a stream of slots: the end that writes, and an offer for each reader. What was written is
/// shown after `every` blocks (T_b).
pub fn stream(config: &Config, every: usize) -> sys::Result<(Output, Vec<Offer>)> {
    let (ring, rings) = share::slots(config)?;
    let (mut doorbells, mut offers) = (Vec::new(), Vec::new());
    for ring in rings {
        let (here, there) = SocketDoorbell::pair()?;
        doorbells.push(here);
        offers.push(Offer::new(ring, there));
    }
    let (doorbells, sleeper, spins) = (Doorbells::new(doorbells), Sleeper::default(), spins());
    Ok((Output { ring, doorbells, sleeper, unshown: 0, every: every.max(1), spins }, offers))
}

fn spins() -> u32 {
    signal::spins(std::thread::available_parallelism().map_or(1, usize::from))
}

/// Says that slots of one size lie in a ring.
#[derive(Debug)]
pub enum Slots {}

/// The four descriptors that a reader gets.
pub type Offer = share::DoorbellOffer<Slots>;

impl Offer {
    /// Opens the reading end, after everything was checked.
    pub fn open(self) -> Result<Input, Refusal> {
        let (ring, doorbell) = (self.ring.read_slots()?, self.doorbell);
        let (sleeper, ringer) = (Sleeper::default(), Ringer::default());
        Ok(Input {
            ring,
            doorbell,
            sleeper,
            ringer,
            gone: false,
            spins: spins(),
            #[cfg(any(test, feature = "testing"))]
            late: crate::late::LateEvent::default(),
        })
    }
}

/// The one writer. Dropping it ends the stream.
#[derive(Debug)]
pub struct Output {
    ring: Writer,
    doorbells: Doorbells,
    sleeper: Sleeper,
    /// Blocks that were put and not shown.
    unshown: usize,
    every: usize,
    spins: u32,
}

impl Output {
    /// Sets how often to look before sleeping; 0 where both sides share a processor.
    pub const fn spin(&mut self, spins: u32) {
        self.spins = spins;
    }

    /// The longest block that can be written.
    #[must_use]
    pub const fn block_max(&self) -> usize {
        self.ring.block_max()
    }

    /// Writes one block; waits while all slots are taken and the policy is to block. Answers false
    /// if the block was dropped, as the policy says. [`Fault::Abandoned`]: nobody reads any more.
    #[inline]
    pub fn write(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if self.ring.put(block) {
            self.count_in();
            return Ok(true);
        }
        self.write_with(block.len(), |room| {
            room.copy_from_slice(block);
            block.len()
        })
    }

    /// Has a block of up to `length` bytes written in its slot, with no copy: `fill` answers how
    /// many bytes it wrote.
    pub fn write_with(
        &mut self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<bool, Fault> {
        if !self.ring.fits() && !self.has_room()? {
            self.wait_for_room()?;
        }
        let Some(mut room) = self.ring.reserve(length)? else { return Ok(false) };
        let used = fill(&mut room);
        room.commit(used);
        self.count_in();
        Ok(true)
    }

    #[inline]
    fn count_in(&mut self) {
        self.unshown += 1;
        if self.unshown >= self.every {
            self.show(Urgency::Flow);
        }
    }

    /// Shows readers all that was written, and wakes those that wait for anything.
    pub fn flush(&mut self) {
        self.show(Urgency::Last);
    }

    /// Readers that were evicted because they showed a position that they cannot have.
    #[must_use]
    pub const fn evicted(&self) -> u64 {
        self.ring.evicted()
    }

    /// Returns the counts of this side.
    #[must_use]
    pub const fn count(&self) -> Put {
        self.ring.count()
    }

    /// Returns the counts that a reader has published.
    #[must_use]
    pub fn taken(&self, reader: usize) -> Option<Taken> {
        self.ring.taken(reader)
    }

    /// Stops waiting for a reader.
    pub fn shut_out(&mut self, reader: usize) {
        self.doorbells.shut_out(&mut self.ring.side, reader);
    }

    /// Returns the descriptors to poll: the doorbells of present readers.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.doorbells.all()
    }

    fn show(&mut self, urgency: Urgency) {
        self.unshown = 0;
        self.ring.publish();
        self.doorbells.ring_due(&mut self.ring.side, urgency);
    }

    /// Returns true if a block need not wait.
    fn has_room(&mut self) -> Result<bool, Fault> {
        if self.ring.policy != Policy::Block {
            return Ok(true);
        }
        let room = self.ring.side.room(1)?;
        if self.ring.side.abandoned() { Err(Fault::Abandoned) } else { Ok(room > 0) }
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
            let (head, slots) = (self.ring.side.head, self.ring.shape.slots as u64);
            // A lap costs two events, and not one for each block.
            let left = if self.spins == 0 { slots / 8 } else { slots / 2 };
            let until = (head + 1).saturating_sub(slots).max(head.saturating_sub(left));
            self.sleeper.falls_asleep(&self.ring.side.store.writer, writer::WAIT, until);
            let has_room = self.has_room();
            let is_read = match has_room {
                Ok(false) => self.doorbells.sleep(&mut self.ring.side, None),
                _ => true,
            };
            self.sleeper.wakes(&self.ring.side.store.writer, writer::WAIT);
            if !is_read {
                return Err(Fault::Abandoned);
            }
            if has_room? || self.has_room()? {
                self.doorbells.progressed();
                return Ok(());
            }
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl Output {
    /// Ends as a process does that is killed: nothing is closed but descriptors.
    pub fn die(mut self) {
        self.doorbells.die();
        std::mem::forget(self);
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.ring.side.close();
        self.flush();
    }
}

/// A reader. All that it gets are copies: the writer may be a untrusted peer.
#[derive(Debug)]
pub struct Input {
    ring: Visitor,
    doorbell: SocketDoorbell,
    sleeper: Sleeper,
    ringer: Ringer,
    /// The writer is gone, whether it closed the stream or not.
    gone: bool,
    spins: u32,
    /// Fires in the middle of a call that finds nothing.
    #[cfg(any(test, feature = "testing"))]
    pub late: crate::late::LateEvent,
}

impl Input {
    /// Sets how often to look before sleeping; 0 where both sides share a processor.
    pub const fn spin(&mut self, spins: u32) {
        self.spins = spins;
    }

    /// Copies the next block into `out` and takes it; waits for it. `None`: the stream has ended.
    /// Where `out` is too short the answer is [`Fault::TooLong`], and the block stays.
    pub fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        loop {
            match self.try_read(out)? {
                Piece::Block(length) => return Ok(Some(length)),
                Piece::End => return Ok(None),
                Piece::Nothing => self.wait(None)?,
            };
        }
    }

    /// As [`Input::read`], without waiting.
    #[inline]
    pub fn try_read(&mut self, out: &mut [u8]) -> Result<Piece, Fault> {
        if let Some(length) = self.ring.take(out)? {
            if self.ring.held() >= self.ring.slots() / 8 {
                self.give_back();
            }
            return Ok(Piece::Block(length));
        }
        self.nothing()
    }

    #[cold]
    fn nothing(&mut self) -> Result<Piece, Fault> {
        self.give_back();
        #[cfg(any(test, feature = "testing"))]
        if self.late.fire() {
            self.gone |= self.doorbell.clear() == Peer::Gone;
        }
        if self.ring.is_finished()? {
            return Ok(Piece::End);
        }
        // What a writer showed after we had looked, and before we heard that it is gone, is read.
        let shown = self.ring.side().has_more()?;
        if self.gone && !shown { Err(Fault::Abandoned) } else { Ok(Piece::Nothing) }
    }

    /// Waits until there is something to read, or the end, for at most `limit`.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<Ready, Fault> {
        for _ in 0..self.spins {
            if self.has_something()? {
                return Ok(Ready::Something);
            }
            std::hint::spin_loop();
        }
        let has_something = self.fall_asleep(self.ring.slots() / 4);
        let mut rang = false;
        if matches!(has_something, Ok(false)) {
            rang = sys::poll::readable(&[self.doorbell.as_fd()], limit) == [true];
        }
        self.wake(rang);
        let something = has_something? || self.has_something()?;
        Ok(if something { Ready::Something } else { Ready::Nothing })
    }

    /// Says that we are about to sleep until so many more blocks are there, or the writer turns
    /// away, and answers whether there is something after all. [`Input::wake`] follows.
    pub fn fall_asleep(&mut self, blocks: u64) -> Result<bool, Fault> {
        let side = self.ring.side();
        let until = side.next.saturating_add(blocks);
        let Some(page) = side.store.readers.first() else { return Err(Fault::Abandoned) };
        self.sleeper.falls_asleep(page, reader::WAIT, until);
        self.has_something()
    }

    /// Says that we are awake; takes a ring back if there was one.
    pub fn wake(&mut self, rang: bool) {
        if rang {
            self.gone |= self.doorbell.clear() == Peer::Gone;
        }
        if let Some(page) = self.ring.side().store.readers.first() {
            self.sleeper.wakes(page, reader::WAIT);
        }
    }

    /// Gives back all that was read, and wakes a writer that waits for the slots.
    pub fn give_back(&mut self) {
        if self.ring.held() > 0 {
            self.ring.side().release();
            self.tell();
        }
    }

    /// Returns the counts that the writer claims.
    #[must_use]
    pub fn written(&self) -> Put {
        self.ring.written()
    }

    /// Returns true if there is a block to read, or the end.
    pub fn has_something(&mut self) -> Result<bool, Fault> {
        let side = self.ring.side();
        Ok(side.has_more()? || side.ended()? || self.gone)
    }

    fn skip(
        &mut self,
        skip: impl FnOnce(&mut Visitor) -> Result<u64, Fault>,
    ) -> Result<u64, Fault> {
        let skipped = skip(&mut self.ring)?;
        self.tell();
        Ok(skipped)
    }

    /// Wakes a writer that waits for what was given back.
    fn tell(&mut self) {
        let side = self.ring.side();
        let released = side.released();
        if self.ringer.is_due(&side.store.writer, writer::WAIT, released, Urgency::More) {
            self.gone |= self.doorbell.notify() == Peer::Gone;
        }
    }
}

impl Skip for Input {
    fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        Ok(match self.try_read(out)? {
            Piece::Block(length) => Some(length),
            Piece::Nothing | Piece::End => None,
        })
    }

    fn skip_to_latest(&mut self) -> Result<u64, Fault> {
        self.skip(Visitor::skip_to_latest)
    }

    fn skip_to_now(&mut self) -> Result<u64, Fault> {
        self.skip(Visitor::skip_to_now)
    }

    fn count(&self) -> Taken {
        self.ring.count()
    }
}

impl AsFd for Input {
    /// Readable when the writer has rung, which it does when [`Input::wait`] has been called with
    /// nothing there.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        // The writer may sleep: it is told that nobody reads here any more.
        self.ring.side().leave();
        let _heard = self.doorbell.notify();
    }
}
