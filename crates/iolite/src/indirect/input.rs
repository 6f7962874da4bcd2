//! The end of an indirect stream that reads: read-through. [SL §5.3.2]
//!
//! Each pointer is copied out of the ring once, translated, and checked (`view`); then its bytes
//! are copied, or looked at in place where that is sound. Until when they are good (D10, *weak
//! move*):
//!
//! | what | ring that blocks or drops new | ring that overwrites |
//! |---|---|---|
//! | frozen dbuf | in place, for ever as it is; the slice until the next call | the same |
//! | dbuf and ring of trusted processes | in place until [`Input::take`] | copied |
//! | any other, and files | copied; the copy until the next call | the same |
//!
//! Why `&[u8]` in place, with V1 to V4 of `view`:
//! - I1 The entry that is looked at is at `next`, and the cursor that we show is not beyond it: it
//!   moves only in methods that take `&mut self`, and never beyond `next`.
//! - I2 A trusted writer keeps an entry's bytes until our cursor is beyond it (F1, F2 of `flight`,
//!   in its process); so, by I1, as long as the slice borrows us.
//! - I3 The view of a current entry that is looked at in place is in our table as long as the entry
//!   is current: a line of the table is filled only where a pointer is checked, and then either
//!   nothing is current yet or it is not looked at in place.

use super::flight::Keeper;
use super::{Home, Lent, Offer};
use crate::view::{InPlace, Space, Translation, View};
use abi::RichPointer;
use abi::ring::{reader, writer};
use buffer::ibuf::{self, Lanes};
use buffer::share::Refusal;
use buffer::signal::Spin;
use buffer::stream::Ready;
use buffer::wait::{Ringer, Sleeper, Urgency};
use buffer::{Fault, Policy, Put, Taken};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use sys::doorbell::{Peer, SocketDoorbell};

mod entry;

/// A reader of an indirect stream.
#[derive(Debug)]
pub struct Input {
    ring: ibuf::Reader,
    doorbell: SocketDoorbell,
    sleeper: Sleeper,
    ringer: Ringer,
    translation: Translation,
    /// True if the writer of the ring is trusted (V3).
    trusted: bool,
    policy: Policy,
    current: Option<Current>,
    /// The entry at `next`, if it was lent and not looked at.
    lent: Option<RichPointer>,
    /// Copied bytes of `current`.
    staging: Vec<u8>,
    staged: bool,
    /// Bytes of entries that were passed and not given back; at most an eighth of the ring.
    often: u64,
    owed_bytes: u64,
    gone: bool,
    spin: Spin,
    /// True if the writer shares our only processor.
    alone: bool,
    keeper: Arc<Keeper>,
    #[cfg(test)]
    pub(crate) late: buffer::late::LateEvent,
}

/// The entry at `next`, once it was looked at and found to be good.
#[derive(Clone, Copy, Debug)]
struct Current {
    pointer: RichPointer,
    /// Offset of its bytes in its view.
    at: usize,
    /// Bytes of it that were taken.
    done: usize,
    /// Address of that offset, if it is read in place.
    first: Option<InPlace>,
}

/// Offset of an entry that was only passed on, and not looked at.
const UNMAPPED: usize = usize::MAX;
/// Bytes that were read are given back after as many as these.
const OWED_BYTES: u64 = 64 << 10;

impl Input {
    /// Opens an offer in a space, after everything was checked.
    pub fn open(offer: Offer, space: &Space) -> Result<Self, Refusal> {
        let ring = offer.ring.read_pointers()?;
        match ring.lanes() {
            Lanes::Pointer => Ok(Self::new(ring, offer.doorbell, space)),
            Lanes::Context | Lanes::Marks => Err(Refusal::Descriptors(Offer::DESCRIPTORS)),
        }
    }

    fn new(ring: ibuf::Reader, doorbell: SocketDoorbell, space: &Space) -> Self {
        let store = &ring.side.store;
        let (policy, capacity) = (store.policy, store.capacity);
        let trusted =
            sys::descriptor::peer_identity(&doorbell).is_ok_and(|(user, _)| space.trusts(user));
        Self {
            ring,
            doorbell,
            sleeper: Sleeper::default(),
            ringer: Ringer::default(),
            translation: Translation::new(space.clone()),
            trusted,
            policy,
            current: None,
            lent: None,
            staging: Vec::new(),
            staged: false,
            often: (capacity / 8).max(1),
            owed_bytes: 0,
            gone: false,
            spin: Spin::default(),
            alone: buffer::stream::is_alone(),
            keeper: Keeper::new(capacity),
            #[cfg(test)]
            late: buffer::late::LateEvent::default(),
        }
    }

    /// Sets how often to look before sleeping; 0 where both sides share a processor. By default it
    /// adapts to what looking yielded.
    pub const fn spin(&mut self, spins: u32) {
        self.spin.fix(spins);
    }

    /// Reads as `read(2)` does: waits until there is something, then copies what is there, at most
    /// `out.len()` bytes; the rest of a block stays for the next call. 0: the stream has ended.
    ///
    /// A pointer that cannot be followed is a fault, passed, and counted as lost; the next call
    /// goes on behind it. A ring that overwrites gives whole blocks, one at a time: where `out` is
    /// too short the answer is [`Fault::TooLong`].
    #[inline]
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        loop {
            match self.try_read(out)? {
                Some(count) => return Ok(count),
                None => self.wait(None)?,
            };
        }
    }

    /// As [`Input::read`], without waiting: `None` where nothing is there.
    pub fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        if out.is_empty() {
            return Ok(Some(0));
        }
        if self.policy == Policy::Overwrite {
            return self.read_lossy(out);
        }
        let mut count = 0;
        while count < out.len() {
            // What was seen to be there is enough for one call.
            if count > 0 && self.current.is_none() && self.ring.side.is_read() {
                break;
            }
            let current = match self.look() {
                Ok(Some(current)) => current,
                Ok(None) => break,
                // What was read first is answered first; the fault comes again.
                Err(_) if count > 0 => break,
                Err(fault) => return Err(self.pass_by(fault)),
            };
            let to = out.get_mut(count..).unwrap_or_default();
            let length = to.len().min(current.left());
            let (to, _) = to.split_at_mut(length);
            if let Some(view) = self.translation.view(current.pointer.dbuf()) {
                match view.copy(current.at + current.done, to) {
                    Ok(()) => {}
                    Err(_) if count > 0 => break,
                    Err(fault) => return Err(self.pass_by(fault)),
                }
            }
            count += length;
            self.advance(current, length);
        }
        self.give_back_often();
        if count > 0 { Ok(Some(count)) } else { self.nothing().map(|end| end.then_some(0)) }
    }

    /// Returns the rest of the next block without taking it; `None`: not yet; no bytes: the end.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        match &self.current {
            Some(current) if current.first.is_some() && !self.keeper.is_followed() => {
                Ok(self.in_place())
            }
            _ => self.look_and_peek(),
        }
    }

    /// As [`Input::peek`], whatever is there.
    fn look_and_peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        if self.policy == Policy::Overwrite {
            return self.peek_lossy();
        }
        let current = match self.look() {
            Ok(Some(current)) => current,
            Ok(None) => return Ok(self.nothing()?.then_some(&[])),
            Err(fault) => return Err(self.pass_by(fault)),
        };
        if self.keeper.is_followed() {
            self.show_followers(current);
        }
        if current.first.is_some() {
            return Ok(self.in_place());
        }
        if let Err(fault) = self.stage(current) {
            return Err(self.pass_by(fault));
        }
        Ok(Some(self.staging.get(current.done..).unwrap_or_default()))
    }

    /// The rest of the current entry, if it is looked at in place.
    #[inline]
    fn in_place(&self) -> Option<&[u8]> {
        let current = self.current.as_ref()?;
        let first = current.first?;
        // SAFETY: `look` has located the pointer in a view that is in our table (I3). It is frozen,
        // or its owner and the ring's writer are trusted and the ring does not overwrite
        // (`direct`): then the entry is at `next` and not released as long as we are borrowed (I1,
        // I2).
        Some(unsafe { first.bytes(current.done, current.left()) })
    }

    /// Returns the bytes of the next block that a peek would copy as well as a read.
    pub(crate) fn copies(&mut self) -> Result<usize, Fault> {
        if self.policy == Policy::Overwrite || self.staged {
            return Ok(0);
        }
        match self.look() {
            Ok(Some(current)) if current.first.is_none() => Ok(current.left()),
            // Whatever it is, the peek says so.
            _ => Ok(0),
        }
    }

    /// Returns the address of an entry that may be read in place, checked to be at this offset.
    fn direct(&self, pointer: RichPointer, at: usize) -> Option<InPlace> {
        let view = self.translation.view(pointer.dbuf())?;
        let keeps = self.policy != Policy::Overwrite && (view.is_frozen() || self.trusted);
        if keeps { view.in_place(at) } else { None }
    }

    /// Takes so many bytes of what was peeked at; all of it: the next peek shows the next block.
    #[inline]
    pub fn take(&mut self, count: usize) {
        match (self.current, self.lent) {
            (Some(current), _) => self.advance(current, count.min(current.left())),
            (None, Some(lent)) if count >= lent.length() as usize => self.pass(lent),
            (None, Some(pointer)) => {
                let (at, done, first) = (UNMAPPED, count, None);
                self.current = Some(Current { pointer, at, done, first });
            }
            (None, None) => return,
        }
        self.give_back_often();
    }

    /// Copies the pointers of blocks that are there, each checked to lead into what is mapped here;
    /// they are taken, and given back by the next call of any method. Empty: nothing is there.
    /// Ends before a pointer that cannot be followed, which the next call answers as a fault.
    pub fn pointers(&mut self, out: &mut [RichPointer]) -> Result<usize, Fault> {
        if self.policy == Policy::Overwrite {
            return Err(Fault::Lossy);
        }
        self.give_back_often();
        if let (Some(current), Some(first)) = (self.current, out.first_mut()) {
            *first = current.rest();
            self.pass(current.pointer);
            return Ok(1);
        }
        self.copy_pointers(out)
    }

    /// Up to `max` bytes of the next block as a pointer that can be passed on; it is not taken yet.
    pub(crate) fn lend(&mut self, max: usize) -> Result<Option<Lent<'_>>, Fault> {
        if self.policy == Policy::Overwrite {
            return Ok(None);
        }
        let Some((whole, view)) = self.look_unmapped()? else { return Ok(None) };
        let short = whole.length().min(u32::try_from(max).unwrap_or(u32::MAX));
        let pointer = whole.within(0, short);
        self.lent = Some(whole);
        self.keeper.look(self.ring.side.next, pointer, 0, view);
        Ok(Some(Lent { pointer, home: Home::Entry(&self.keeper) }))
    }

    /// Returns true if all was lent and the stream has ended; `None`: this ring does not lend.
    pub(crate) fn is_lent_out(&mut self) -> Result<Option<bool>, Fault> {
        if self.policy == Policy::Overwrite {
            return Ok(None);
        }
        if self.current.is_some() || self.ring.side.has_more()? {
            return Ok(Some(false));
        }
        self.nothing().map(Some)
    }

    /// Waits until there is something to read, or the end, for at most `limit`.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<Ready, Fault> {
        let (mut spin, taken) = (self.spin, self.ring.side.next);
        let found = spin.look(self.alone, taken, || self.has_something());
        self.spin = spin;
        if found? {
            return Ok(Ready::Something);
        }
        self.give_back();
        self.wait_among(&[], limit)
    }

    /// Sleeps until there is something to read, or one of the others is ready.
    pub(crate) fn wait_among(
        &mut self,
        others: &[BorrowedFd<'_>],
        limit: Option<Duration>,
    ) -> Result<Ready, Fault> {
        let slept = match self.listen() {
            Ok(Ready::Nothing) => {
                let doorbell = std::iter::once(self.doorbell.as_fd());
                let all: Vec<_> = doorbell.chain(others.iter().copied()).collect();
                sys::poll::readable(&all, limit);
                Ok(())
            }
            Ok(Ready::Something) => Ok(()),
            Err(fault) => Err(fault),
        };
        self.drain();
        slept?;
        Ok(if self.has_something()? { Ready::Something } else { Ready::Nothing })
    }

    /// Says that we are about to sleep on the descriptor, with others maybe: the writer rings when
    /// there is something. Where there is already, do not sleep. Then [`Input::heard`].
    pub fn listen(&mut self) -> Result<Ready, Fault> {
        let side = &self.ring.side;
        let until = side.next.saturating_add(side.store.capacity / 4);
        if let Some(page) = side.store.readers.get(side.index) {
            self.sleeper.falls_asleep(page, reader::WAIT, until);
        }
        Ok(if self.has_something()? { Ready::Something } else { Ready::Nothing })
    }

    /// Says that we are awake, and takes the ring back.
    pub fn drain(&mut self) {
        self.gone |= self.doorbell.clear() == Peer::Gone;
        let side = &self.ring.side;
        if let Some(page) = side.store.readers.get(side.index) {
            self.sleeper.wakes(page, reader::WAIT);
        }
    }

    /// Gives back all that was taken and that no output keeps, and wakes a writer that waits for
    /// it. [`Input::read`] does so by itself before it waits, and after each eighth of the ring or
    /// 64 KB.
    pub fn give_back(&mut self) {
        self.owed_bytes = 0;
        let side = &mut self.ring.side;
        let next = side.next;
        // F5: not what an output still needs.
        let limit = if self.keeper.is_followed() { next.min(self.keeper.needed()) } else { next };
        if limit <= side.released() {
            return;
        }
        side.next = limit;
        side.release();
        side.next = next;
        if self.ringer.is_due(&side.store.writer, writer::WAIT, limit, Urgency::More) {
            self.gone |= self.doorbell.notify() == Peer::Gone;
        }
    }

    /// Returns the counts of this side.
    #[must_use]
    pub const fn count(&self) -> Taken {
        self.ring.count()
    }

    /// Returns the counts that the writer claims.
    #[must_use]
    pub fn written(&self) -> Put {
        self.ring.written()
    }

    /// Counts blocks that were taken and not given back.
    #[must_use]
    pub const fn kept(&self) -> u64 {
        self.ring.side.next - self.ring.side.released()
    }

    pub(super) const fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }

    /// Returns the space, with its mappings and owners.
    #[must_use]
    pub const fn space(&self) -> &Space {
        self.translation.space()
    }

    /// Returns true if there is something to read, or the end.
    fn has_something(&mut self) -> Result<bool, Fault> {
        if self.current.is_some() || self.gone {
            return Ok(true);
        }
        let side = &mut self.ring.side;
        Ok(side.has_more()? || side.ended()?)
    }

    /// Nothing is there: whether that is the end, or why there will be none.
    fn nothing(&mut self) -> Result<bool, Fault> {
        self.give_back();
        #[cfg(test)]
        if self.late.fire() {
            self.gone |= self.doorbell.clear() == Peer::Gone;
        }
        if self.ring.is_finished()? {
            return Ok(true);
        }
        // What a writer showed after we had looked, and before we heard that it is gone, is read.
        let shown = self.ring.side.has_more()?;
        if self.gone && !shown { Err(Fault::Abandoned) } else { Ok(false) }
    }

    #[inline]
    fn give_back_often(&mut self) {
        if self.owed_bytes >= OWED_BYTES || self.kept() >= self.often {
            self.give_back();
        }
    }
}

impl AsFd for Input {
    /// Readable when the writer has rung, which it does after [`Input::listen`] has found nothing;
    /// for who waits among several descriptors.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        // The writer may sleep: it is told that nobody reads here any more.
        self.ring.side.leave();
        let _ = self.doorbell.notify();
    }
}
