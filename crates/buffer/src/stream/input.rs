//! The end of a stream that reads.

use super::config::Ready;
use super::note::{self, Note};
use crate::atomic::acquire;
use crate::dbuf::Visitor;
use crate::dbuf::walk::{FoundRecord, Walk};
use crate::share::segment::Received;
use crate::signal::Spin;
use crate::trust::Trusted;
use crate::wait::{Ringer, Sleeper, Urgency};
use crate::{Fault, Policy, Put, Taken};
use abi::ring::{Geometry, reader, writer};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use sys::doorbell::{Drained, Peer, SocketDoorbell};

mod blocks;
mod peek;
mod watch;

pub use blocks::Piece;

/// A reader of a stream. It copies, or peeks in place if it trusts the writer ([`Input::peek`]).
#[derive(Debug)]
pub struct Input {
    pub(super) ring: Visitor,
    doorbell: SocketDoorbell,
    sleeper: Sleeper,
    ringer: Ringer,
    /// Rest of a block that did not fit into the caller's buffer.
    rest: Option<FoundRecord>,
    /// The writer is gone, whether it closed the stream or not.
    gone: bool,
    /// True if the ring overwrites.
    lossy: bool,
    /// Adaptive spinning before a sleep.
    spin: Spin,
    /// Geometry of the segment that is read.
    shape: Geometry,
    /// Segments that have come and are not ours yet.
    inbox: Vec<Received>,
    /// The writer has told us that we get no more of them.
    revoked: bool,
    /// We trust, and who made the segment that we read is to be trusted.
    trusts: bool,
    trusted: Option<Trusted>,
    /// Fires in the middle of a call that finds nothing.
    #[cfg(any(test, feature = "testing"))]
    pub late: crate::late::LateEvent,
}

/// So many segments are kept until the ring comes to them; an honest writer has one on its way.
const INBOX_MAX: usize = 8;
/// So many rings are heard in one go.
const HEARD_MAX: usize = 256;

impl Input {
    pub(super) fn new((mut ring, shape): (Visitor, Geometry), doorbell: SocketDoorbell) -> Self {
        let walk = ring.walk();
        let lossy = walk.side.policy == Policy::Overwrite;
        walk.stop_at(walk.side.released() + often(walk));
        Self {
            ring,
            doorbell,
            sleeper: Sleeper::default(),
            ringer: Ringer::default(),
            rest: None,
            gone: false,
            lossy,
            spin: Spin::default(),
            shape,
            inbox: Vec::new(),
            revoked: false,
            trusts: false,
            trusted: None,
            #[cfg(any(test, feature = "testing"))]
            late: crate::late::LateEvent::default(),
        }
    }

    /// Trusts who made the ring, if it is somebody who can be trusted.
    pub(super) const fn trusting(mut self, maker: Option<Trusted>) -> Self {
        (self.trusts, self.trusted) = (true, maker);
        self
    }

    /// Sets how often to look before sleeping. By default each wait decides: never where both sides
    /// share a processor, else as long as looking has paid off.
    pub const fn spin(&mut self, spins: u32) {
        self.spin.fix(spins);
    }

    /// Reads as `read(2)` does: waits until there is something, then copies what is there, at most
    /// `out.len()` bytes; the rest of a block stays for the next call. 0: the stream has ended.
    ///
    /// A ring that overwrites gives whole blocks, one at a time, so that a lap is never mixed with
    /// another one: where `out` is too short the answer is [`Fault::TooLong`].
    // As `Output::write`.
    #[inline(always)]
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        if self.ring.walk().take(out) {
            return Ok(out.len());
        }
        loop {
            match self.look_and_read(out)? {
                Some(count) => return Ok(count),
                None => self.wait(None)?,
            };
        }
    }

    /// As [`Input::read`], without waiting: `None` where nothing is there.
    #[inline]
    pub fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        match self.ring.walk().take(out) {
            true => Ok(Some(out.len())),
            false => self.look_and_read(out),
        }
    }

    /// As [`Input::try_read`], whatever is there.
    #[cold]
    fn look_and_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        if out.is_empty() {
            return Ok(Some(0));
        }
        loop {
            let count = match self.lossy {
                true => self.ring.read(out)?.unwrap_or(0),
                false => self.fill(out)?,
            };
            if count > 0 {
                return Ok(Some(count));
            }
            self.give_back();
            if !self.go_on()? {
                break;
            }
        }
        Ok(self.is_at_end()?.then_some(0))
    }

    /// Returns true if the stream has ended, given that nothing is there; a fault if it cannot go
    /// on.
    fn is_at_end(&mut self) -> Result<bool, Fault> {
        #[cfg(any(test, feature = "testing"))]
        if self.late.fire() {
            while self.hear() {}
        }
        let awaits = self.ring.walk().awaited().is_some();
        if awaits && self.revoked {
            return Err(Fault::Revoked { position: self.ring.walk().side.next });
        }
        if !awaits && self.ring.is_finished()? {
            return Ok(true);
        }
        // What a writer showed after we had looked, and before we heard that it is gone, is read.
        let side = &mut self.ring.walk().side;
        let shown = !awaits && side.has_more()?;
        if self.gone && !shown { Err(Fault::Abandoned) } else { Ok(false) }
    }

    /// Waits until there is something to read, for at most `limit`.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<Ready, Fault> {
        self.wait_beside(&[], limit)
    }

    /// As [`Input::wait`], and comes back with nothing when one of these descriptors can be read,
    /// or a signal came.
    pub fn wait_beside(
        &mut self,
        others: &[BorrowedFd<'_>],
        limit: Option<Duration>,
    ) -> Result<Ready, Fault> {
        // Whoever makes a segment takes long.
        let awaits = self.ring.walk().awaited().is_some();
        let together = self.is_together();
        if !awaits && self.looks(together)? {
            return Ok(Ready::Something);
        }
        let side = &mut self.ring.walk().side;
        // Who shares a processor with the writer only keeps it from writing: whenever it is
        // interrupted there are two task switches. One that blocks rings when it cannot go on, or
        // turns to something else; others never wait, so that the ring stays full.
        let all = together && side.policy == Policy::Block;
        let enough = if all { side.capacity } else { side.capacity / 4 };
        let until = side.next.saturating_add(enough);
        let index = side.index;
        let Some(page) = side.store.readers.get(index) else { return Err(Fault::Abandoned) };
        self.sleeper.falls_asleep(page, reader::WAIT, until);
        let slept = match self.has_something() {
            Ok(false) => {
                let all: Vec<BorrowedFd<'_>> =
                    std::iter::once(self.doorbell.as_fd()).chain(others.iter().copied()).collect();
                sys::poll::readable(&all, limit);
                self.hear();
                Ok(())
            }
            Ok(true) => Ok(()),
            Err(fault) => Err(fault),
        };
        if let Some(page) = self.ring.walk().side.store.readers.get(index) {
            self.sleeper.wakes(page, reader::WAIT);
        }
        slept?;
        Ok(if self.has_something()? { Ready::Something } else { Ready::Nothing })
    }

    /// Looks as often as that has been worth it; answers whether something came.
    fn looks(&mut self, together: bool) -> Result<bool, Fault> {
        let taken = self.ring.walk().count().blocks;
        let mut spin = self.spin;
        let found = spin.look(together, taken, || self.has_something());
        self.spin = spin;
        found
    }

    /// Returns true if the writer is known to run on our processor, so that we yield to it.
    fn is_together(&mut self) -> bool {
        let here = sys::machine::current_processor() as u64 + 1;
        let there = acquire(self.ring.walk().side.store.writer.word(writer::PROCESSOR));
        let seen = || there == here || there == 0 && super::is_alone();
        self.spin.yields().unwrap_or_else(seen)
    }

    /// Gives back all that was read, and wakes a writer that waits for the room. [`Input::read`]
    /// does so by itself before it waits, and after each eighth of the ring.
    pub fn give_back(&mut self) {
        let walk = self.ring.walk();
        if walk.side.next == walk.side.released() {
            return;
        }
        walk.here();
        walk.release();
        self.tell();
    }

    /// Wakes a writer that waits for the room that was given back.
    fn tell(&mut self) {
        let walk = self.ring.walk();
        let released = walk.side.released();
        walk.stop_at(released + often(walk));
        let side = &walk.side;
        if self.ringer.is_due(&side.store.writer, writer::WAIT, released, Urgency::More) {
            self.gone |= self.doorbell.notify() == Peer::Gone;
        }
    }

    /// Returns the counts of this side.
    #[must_use]
    pub fn count(&self) -> Taken {
        self.ring.count()
    }

    /// Returns the counts that the writer claims.
    #[must_use]
    pub fn written(&self) -> Put {
        self.ring.written()
    }

    /// Returns the bytes that a read would copy now, at least one and at most this many. 0: nothing
    /// is there, or the ring overwrites and nothing is certain.
    pub fn readable(&mut self) -> Result<usize, Fault> {
        if self.lossy {
            return Ok(0);
        }
        loop {
            let walk = self.ring.walk();
            if self.rest.is_some() {
                let seen = walk.side.seen() - walk.side.next;
                return Ok(usize::try_from(seen).unwrap_or(usize::MAX));
            }
            match walk.find()? {
                Some(found) if found.left() > 0 => {
                    walk.doubt();
                    self.rest = Some(found);
                }
                Some(empty) => walk.pass(&empty),
                None => return Ok(0),
            }
        }
    }

    /// Returns true if there is something to read, or the end.
    pub fn has_something(&mut self) -> Result<bool, Fault> {
        if self.rest.is_some() || self.gone {
            return Ok(true);
        }
        if self.ring.walk().awaited().is_some() && !self.go_on()? {
            return Ok(self.gone || self.revoked);
        }
        let side = &mut self.ring.walk().side;
        Ok(side.has_more()? || side.ended()?)
    }

    /// Goes on in the next segment, if the ring does and it has come; answers whether we did.
    fn go_on(&mut self) -> Result<bool, Fault> {
        let Some(number) = self.ring.walk().awaited() else { return Ok(false) };
        for _ in 0..HEARD_MAX {
            self.inbox.retain(|segment| segment.number >= number);
            if let Some(at) = self.inbox.iter().position(|segment| segment.number == number) {
                let segment = self.inbox.swap_remove(at);
                return self.enter(&segment).map(|()| true);
            }
            if self.revoked || !self.hear() {
                break;
            }
        }
        Ok(false)
    }

    /// Goes on in this segment, if it is what it must be.
    #[cold]
    fn enter(&mut self, segment: &Received) -> Result<(), Fault> {
        let walk = self.ring.walk();
        let (position, page) = (walk.side.next, walk.side.store.readers.first().cloned());
        let attached = page.map(|page| segment.attach(&self.shape, position, page));
        let Some(Ok((store, shape))) = attached else {
            return Err(walk.side.poison(Fault::Segment { position }));
        };
        walk.go_on_in(store);
        walk.stop_at(position + often(walk));
        self.trusted = if self.trusts { segment.maker() } else { None };
        self.shape = shape;
        // The page of the writer is another one, and so may be the writer.
        self.ringer = Ringer::default();
        self.gone |= self.doorbell.notify() == Peer::Gone;
        Ok(())
    }

    /// Hears one ring and what is told by it; answers whether there was one.
    fn hear(&mut self) -> bool {
        match self.doorbell.drain() {
            Drained::Nothing => return false,
            Drained::Gone => {
                self.gone = true;
                return false;
            }
            Drained::Notification(note, descriptors) => match note::read(&note) {
                Some(Note::Segment(number)) => {
                    if self.inbox.len() == INBOX_MAX {
                        self.inbox.remove(0);
                    }
                    self.inbox.extend(Received::new(number, descriptors));
                }
                Some(Note::Revoked) => self.revoked = true,
                None => {}
            },
        }
        true
    }

    /// Copies blocks as long as there is room and something is known to be there.
    fn fill(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        let mut count = 0;
        while count < out.len() {
            let walk = self.ring.walk();
            // What was seen to be there is enough for one call.
            if count > 0 && walk.side.is_read() && self.rest.is_none() {
                break;
            }
            let found = match self.rest.take() {
                Some(found) => found,
                None => match walk.find()? {
                    Some(found) => found,
                    None => break,
                },
            };
            let to = out.get_mut(count..).unwrap_or_default();
            let length = to.len().min(found.left());
            let (to, _) = to.split_at_mut(length);
            walk.data().copy_out(found.at(), to);
            count += length;
            match found.behind(length) {
                Some(rest) => {
                    self.rest = Some(rest);
                    walk.doubt();
                }
                None => walk.pass(&found),
            }
            // An empty block is passed, and is nothing to a reader of bytes.
        }
        let walk = self.ring.walk();
        if walk.side.next - walk.side.released() >= often(walk) {
            self.give_back();
        }
        Ok(count)
    }
}

/// After how much that was read the writer is told: an eighth of the ring.
const fn often(walk: &Walk) -> u64 {
    walk.side.capacity / 8
}

impl AsFd for Input {
    /// Readable when the writer has rung, which it does when [`Input::wait`] has been called with
    /// nothing there; for who waits among several descriptors.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        // The writer may sleep: it is told that nobody reads here any more.
        self.ring.walk().side.leave();
        let _ = self.doorbell.notify();
    }
}
