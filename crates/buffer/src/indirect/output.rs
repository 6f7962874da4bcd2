//! The end of an indirect stream that writes: write-through, or a pointer where the bytes lie in a
//! dbuf already. [SL §5.3.2, §5.3.3]
//!
//! A write looks at three things, the cheapest first: the segment that was hit last, the ranges of
//! eight dbufs in one cache line, what the inputs that it follows are looking at. What lies in none
//! of them is copied into the backing dbuf. Why a pointer is enough, with F1 to F5 of `flight`:
//! - S1 The ranges are those of memories that this output holds (`known`), so nothing else lies at
//!   their addresses.
//! - S2 Whoever calls `write` has the slice at hand: the segment is kept at that moment, by
//!   whatever lends the slice (`Memory::around_slice`); or it is what an input shows, which is
//!   borrowed then and releases nothing (F5).
//! - S3 Before the pointer is put, this output keeps the same segment or entry itself (F1): the
//!   slice may end, the pool may turn, the input may go on.
//! - S4 Bytes that are still being written are not shown, so their range is no hit: they are
//!   copied, like all that lies outside.

use super::backing::{Backing, Refused};
use super::bells::Bells;
use super::flight::{self, Flights};
use super::ranges::Ranges;
use super::{Home, Lent};
use crate::aggregate::Frozen;
use crate::pool::{Memory, Pool};
use crate::view::BackOff;
use crate::wait::{Sleeper, Urgency};
use crate::{Fault, Policy, Put, ibuf, signal};
use abi::{Class, Place, RichPointer};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use sys::doorbell::Doorbell;

mod room;

/// The one writer of an indirect stream. Dropping it ends the stream; what is in flight is kept
/// until its readers have passed ([`sweep`](super::sweep)).
#[derive(Debug)]
pub struct Output {
    ring: ibuf::Writer,
    bells: Bells,
    sleeper: Sleeper,
    spins: u32,
    policy: Policy,
    /// Entries up to here have room, as far as is known.
    limit: u64,
    /// Entries that were put and not shown, and their bytes.
    unshown: usize,
    unshown_bytes: usize,
    every: usize,
    backing: Backing,
    flights: Flights,
    hot: Hot,
    ranges: Ranges,
    known: Vec<Known>,
    /// Lossy rings: readers were told that all before this may be overwritten.
    floor: u64,
    spliced: Spliced,
}

/// How writes became entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spliced {
    /// Blocks of which only a pointer was written.
    pub blocks: u64,
    /// Blocks that were copied into the backing dbuf.
    pub copied: u64,
}

/// The segment that was hit last: the last one in `flights`. By default nothing lies in it.
#[derive(Debug, Default)]
struct Hot {
    address: usize,
    filled: usize,
    /// Bytes that it can have.
    segment: usize,
    /// Where it begins, as a place tells it.
    position: u64,
    /// A pointer into its dbuf.
    home: RichPointer,
    /// Readers must have passed this.
    until: u64,
}

/// A dbuf that may be spliced from.
#[derive(Debug)]
struct Known {
    memory: Arc<Memory>,
    back_off: BackOff,
}

/// So many bytes are shown however few blocks they are.
const SHOWN_BYTES: usize = 64 << 10;

impl Output {
    pub(super) fn new(
        ring: ibuf::Writer,
        bells: Vec<Doorbell>,
        every: usize,
        policy: Policy,
        backing: Backing,
    ) -> Self {
        flight::sweep();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let every = every.max(1);
        let bells = Bells::new(bells);
        Self {
            flights: Flights::new(&ring.side.store, bells.gone()),
            ring,
            bells,
            sleeper: Sleeper::default(),
            spins: signal::spins(processors),
            policy,
            limit: 0,
            unshown: 0,
            unshown_bytes: 0,
            every,
            backing,
            hot: Hot::default(),
            ranges: Ranges::default(),
            known: Vec::new(),
            floor: 0,
            spliced: Spliced::default(),
        }
    }

    /// Lets writes of bytes that lie in this pool become pointers. Readers must be able to ask for
    /// it: share it at the desk. `threshold` is its T_b: what is written is shown after as many
    /// blocks as the smallest that is referenced says. [SL §6.2] `false`: the memory of this pool
    /// is no file of ours, and cannot be handed to anybody.
    pub fn know_pool(&mut self, pool: &Pool, threshold: usize) -> bool {
        self.know(pool.memory(), threshold)
    }

    /// Lets writes of bytes that lie in frozen data become pointers, as [`Output::know_pool`].
    pub fn know_frozen(&mut self, frozen: &Frozen, threshold: usize) -> bool {
        self.know(frozen.memory(), threshold)
    }

    fn know(&mut self, memory: &Arc<Memory>, threshold: usize) -> bool {
        if !memory.can_be_granted() {
            return false;
        }
        self.every = self.every.min(threshold.max(1));
        let known = self.known.iter().position(|known| Arc::ptr_eq(&known.memory, memory));
        let name = known.unwrap_or(self.known.len());
        if known.is_none() {
            self.known.push(Known { memory: memory.clone(), back_off: BackOff::default() });
        }
        let (address, length) = memory.extent();
        self.ranges.insert(address, length, name);
        true
    }

    /// Lets writes of bytes that this input shows in place ([`Input::peek`](super::Input::peek))
    /// become pointers. What is in flight the input keeps. `false`: it is followed by as many as
    /// can.
    pub fn follow(&mut self, input: &super::Input) -> bool {
        self.flights.follow(input.keeper()).is_some()
    }

    /// After how many blocks what was written is shown: the smallest T_b of all dbufs known here.
    #[must_use]
    pub const fn threshold(&self) -> usize {
        self.every
    }

    /// How often to look before sleeping; 0 where both sides share a processor.
    pub const fn spin(&mut self, spins: u32) {
        self.spins = spins;
    }

    /// The longest block that can be copied; one that is spliced may be longer.
    #[must_use]
    pub fn block_max(&self) -> usize {
        self.backing.block_max()
    }

    /// Writes one block: as a pointer where its bytes lie in a dbuf that is known here, or else as
    /// a copy in the backing dbuf. Waits while there is no room and the policy is to block. Answers
    /// false if the block was dropped, as the policy says. [`Fault::Abandoned`]: nobody reads any
    /// more.
    #[inline]
    pub fn write(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if self.ring.side.head >= self.limit && !self.make_room()? {
            return Ok(self.drop_one(block.len()));
        }
        let from = block.as_ptr().addr().wrapping_sub(self.hot.address);
        let end = from.saturating_add(block.len());
        if end > self.hot.filled || block.is_empty() {
            return self.write_elsewhere(block);
        }
        let pointer = self.hot.pointer(from, block.len());
        self.hot.until = self.ring.side.head + 1;
        self.spliced.blocks += 1;
        self.put(pointer);
        Ok(true)
    }

    /// A block that does not lie in the segment that was hit last.
    fn write_elsewhere(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if let Some(name) = self.ranges.find(block.as_ptr().addr())
            && self.splice_from(name, block)
        {
            return Ok(true);
        }
        if let Some((upstream, pointer)) = self.flights.looked_at(block)
            && !block.is_empty()
            && self.flights.claim(upstream, pointer, self.ring.side.head + 1)
        {
            self.spliced.blocks += 1;
            self.put(pointer);
            return Ok(true);
        }
        if let Some(name) = self.beyond_the_line(block)
            && self.splice_from(name, block)
        {
            return Ok(true);
        }
        self.write_through(block.len(), |room| {
            room.copy_from_slice(block);
            block.len()
        })
    }

    /// Puts a pointer to a slice of a known dbuf, if the bytes are shown there.
    fn splice_from(&mut self, name: usize, block: &[u8]) -> bool {
        let Some(known) = self.known.get_mut(name) else { return false };
        // What was no hit where one was expected is not tried again at once. [SL §5.3.3]
        if !known.back_off.is_over() {
            return false;
        }
        let Some(around) = known.memory.around_slice(block) else {
            known.back_off.failed();
            return false;
        };
        known.back_off.succeeded();
        let home = RichPointer::new(around.lease.dbuf(), Place::default(), Class::YES);
        let (before, until) = (self.hot.until, self.ring.side.head + 1);
        self.hot = Hot {
            address: around.address,
            filled: around.filled,
            segment: around.lease.segment_len(),
            position: around.position,
            home,
            until,
        };
        let from = block.as_ptr().addr().wrapping_sub(around.address);
        let pointer = self.hot.pointer(from, block.len());
        // F1, S3: kept before it is put.
        if self.flights.turn_to(pointer, before, until, || Ok(around.lease)).is_err() {
            return false;
        }
        self.spliced.blocks += 1;
        self.put(pointer);
        true
    }

    /// More dbufs are known than the line has room for: whoever is hit takes a place in it.
    fn beyond_the_line(&mut self, block: &[u8]) -> Option<usize> {
        if self.known.len() <= super::ranges::RANGES {
            return None;
        }
        let at = block.as_ptr().addr();
        let extents = self.known.iter().map(|known| known.memory.extent());
        let is_in = |(from, length): (usize, usize)| at.wrapping_sub(from) < length;
        let (name, (from, length)) = extents.enumerate().find(|(_, extent)| is_in(*extent))?;
        self.ranges.insert(from, length, name);
        Some(name)
    }

    /// Has a block of up to `length` bytes written in place in the backing dbuf, with no copy:
    /// `fill` answers how many bytes it wrote. [SL §5.1, reserve and commit]
    pub fn write_with(
        &mut self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<bool, Fault> {
        if self.ring.side.head >= self.limit && !self.make_room()? {
            return Ok(self.drop_one(length));
        }
        self.write_through(length, fill)
    }

    fn write_through(
        &mut self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<bool, Fault> {
        let mut fill = Some(fill);
        loop {
            let until = self.ring.side.head + 1;
            let Self { backing, flights, hot, .. } = self;
            let put = backing.write(length, &mut fill, |pointer, lease| {
                // F1: kept before it is put. Mostly it is the segment of the block before.
                if !hot.grows_by(pointer) {
                    let kept = flights.turn_to(pointer, hot.until, until, || Ok(lease.clone()));
                    hot.turn_to(pointer, kept.as_ref().unwrap_or(lease));
                }
                hot.until = until;
            });
            match put {
                Ok(pointer) => {
                    self.spliced.copied += 1;
                    self.put(pointer);
                    return Ok(true);
                }
                Err(Refused::Fault(fault)) => return Err(fault),
                // Whatever the policy of the ring: what is full here is the memory behind it.
                Err(Refused::Full) if self.make_memory()? => {}
                Err(Refused::Full) => return Ok(self.drop_one(length)),
            }
        }
    }

    /// Puts a pointer to what another stream lent, which stays there until our readers have passed.
    /// `None`: so much of it is kept already that its writer might have to wait for us; copy, or
    /// wait until readers have passed ([`Output::settle_some`]).
    pub(crate) fn put_lent(&mut self, lent: &Lent<'_>) -> Result<Option<bool>, Fault> {
        if self.ring.side.head >= self.limit && !self.make_room()? {
            return Ok(Some(self.drop_one(lent.pointer.length() as usize)));
        }
        let until = self.ring.side.head + 1;
        match lent.home {
            Home::Input(keeper) => {
                let Some(upstream) = self.flights.follow(keeper) else { return Ok(None) };
                if !self.flights.claim(upstream, lent.pointer, until) {
                    return Ok(None);
                }
            }
            Home::Lease(lease) if self.hot.covers(lent.pointer) => {
                debug_assert!(lease.covers(lent.pointer.dbuf(), lent.pointer.place));
                self.hot.until = until;
            }
            Home::Lease(lease) => {
                let before = self.hot.until;
                self.flights.turn_to(lent.pointer, before, until, || Ok(lease.clone()))?;
                self.hot.turn_to(lent.pointer, lease);
                self.hot.until = until;
            }
        }
        self.spliced.blocks += 1;
        self.put(lent.pointer);
        Ok(Some(true))
    }

    /// The flight of the segment that was hit last is told how long it is needed.
    fn settle(&self) {
        self.flights.extend(self.hot.until);
    }

    /// Puts one pointer for which there is room.
    #[inline]
    fn put(&mut self, pointer: RichPointer) {
        if self.policy == Policy::Overwrite {
            self.begin(1);
        }
        self.ring.put_bare(pointer);
        self.unshown += 1;
        self.unshown_bytes += pointer.length() as usize;
        if self.unshown >= self.every || self.unshown_bytes >= SHOWN_BYTES {
            self.show(Urgency::More);
        }
    }

    /// Shows readers all that was written, and wakes those that wait for anything. To be called
    /// before the writer turns to something else.
    pub fn flush(&mut self) {
        self.show(Urgency::Last);
    }

    fn show(&mut self, urgency: Urgency) {
        (self.unshown, self.unshown_bytes) = (0, 0);
        self.ring.side.publish();
        self.bells.ring_due(&mut self.ring.side, urgency);
    }

    /// What this side has counted.
    #[must_use]
    pub const fn count(&self) -> Put {
        self.ring.count()
    }

    /// How many blocks were spliced, and how many copied.
    #[must_use]
    pub const fn spliced(&self) -> Spliced {
        self.spliced
    }

    /// What a reader has published about its count.
    #[must_use]
    pub fn taken(&self, reader: usize) -> Option<crate::Taken> {
        self.ring.taken(reader)
    }

    /// Stops waiting for a reader, and keeps nothing for it.
    pub fn shut_out(&mut self, reader: usize) {
        self.bells.shut_out(&mut self.ring.side, reader);
    }

    /// What to poll: the bells of the readers that are there.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.bells.all()
    }

    /// The bell of the first reader: all there is to poll where there is one.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.bells.first()
    }

    /// Ends as a process does that is killed: nothing is closed but descriptors.
    #[cfg(test)]
    pub(super) fn die(mut self) {
        self.bells.die();
        std::mem::forget(self);
    }
}

impl Hot {
    #[inline]
    fn pointer(&self, from: usize, length: usize) -> RichPointer {
        // Both lie in a segment, which is shorter than 4 GB.
        #[expect(clippy::cast_possible_truncation, reason = "checked by the caller, see above")]
        let place = Place::new(self.position + from as u64, length as u32);
        let mut pointer = self.home;
        pointer.place = place;
        pointer
    }

    /// Whether the flight that was hit last keeps these bytes.
    #[inline]
    fn covers(&self, pointer: RichPointer) -> bool {
        let from = pointer.place.position().wrapping_sub(self.position);
        let end = from.saturating_add(u64::from(pointer.length()));
        self.address != 0 && pointer.dbuf() == self.home.dbuf() && end <= self.filled as u64
    }

    /// Another segment was hit.
    fn turn_to(&mut self, pointer: RichPointer, lease: &crate::pool::Lease) {
        *self = match lease.around(pointer) {
            Some((address, position, filled)) => {
                let home = RichPointer::new(pointer.dbuf(), Place::default(), Class::YES);
                Self { address, filled, segment: lease.segment_len(), position, home, until: 0 }
            }
            None => Self::default(),
        };
    }

    /// Whether this block, which has just been filled, lies in the same segment; so much more of it
    /// is filled then.
    #[inline]
    fn grows_by(&mut self, pointer: RichPointer) -> bool {
        let from = pointer.place.position().wrapping_sub(self.position);
        let end = from.saturating_add(u64::from(pointer.length()));
        let same = end <= self.segment as u64 && pointer.dbuf() == self.home.dbuf();
        if same && self.address != 0 {
            // Less than a segment.
            self.filled = self.filled.max(usize::try_from(end).unwrap_or(0));
        }
        same && self.address != 0
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.settle();
        self.ring.side.close();
        self.flush();
        let empty = Flights::new(&self.ring.side.store, self.bells.gone());
        let flights = std::mem::replace(&mut self.flights, empty);
        // F3.
        flight::leave(flights, self.bells.take());
    }
}
