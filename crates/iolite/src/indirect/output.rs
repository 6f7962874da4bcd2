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

use super::backing::{Backing, Refused, Stand};
use super::flight::{self, Flights};
use super::ranges::Ranges;
use crate::aggregate::Frozen;
use crate::view::BackOff;
use abi::{BLOCK_MAX, RichPointer};
use buffer::doorbells::Doorbells;
use buffer::pool::{Memory, Pool};
use buffer::wait::{Sleeper, Urgency};
use buffer::{Fault, Policy, Put, ibuf, signal};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use sys::doorbell::SocketDoorbell;

mod hot;
mod pointers;
mod room;

use hot::Hot;

/// The one writer of an indirect stream. Dropping it ends the stream; what is in flight is kept
/// until its readers have passed ([`sweep`](super::sweep)).
#[derive(Debug)]
pub struct Output {
    ring: ibuf::Writer,
    doorbells: Doorbells,
    sleeper: Sleeper,
    spins: u32,
    policy: Policy,
    /// Entries up to here have room, as far as is known.
    limit: u64,
    /// Head position at which the next publication is due.
    show_at: u64,
    /// The nearer of the two: up to here nothing has to be looked at.
    stop: u64,
    /// Bytes that were copied and not shown.
    unshown_bytes: usize,
    every: usize,
    backing: Stand,
    flights: Flights,
    hot: Hot,
    ranges: Ranges,
    known: Vec<KnownDbuf>,
    /// Lossy rings: readers were told that all before this may be overwritten.
    floor: u64,
    copied: u64,
}

/// Counts of writes by the way they became entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spliced {
    /// Blocks of which only a pointer was written.
    pub blocks: u64,
    /// Blocks that were copied into the backing dbuf.
    pub copied: u64,
}

/// A dbuf that may be spliced from.
#[derive(Debug)]
struct KnownDbuf {
    memory: Arc<Memory>,
    back_off: BackOff,
}

/// So many bytes are shown however few blocks they are: the reader copies them while the next ones
/// are written.
const SHOWN_BYTES: usize = 64 << 10;

impl Output {
    pub(super) fn new(
        ring: ibuf::Writer,
        doorbells: Vec<SocketDoorbell>,
        every: usize,
        policy: Policy,
        backing: Backing,
    ) -> Self {
        flight::sweep();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let every = every.max(1);
        let doorbells = Doorbells::new(doorbells);
        Self {
            flights: Flights::new(&ring.side.store, doorbells.gone()),
            ring,
            doorbells,
            sleeper: Sleeper::default(),
            spins: signal::spins(processors),
            policy,
            limit: 0,
            show_at: every as u64,
            stop: 0,
            unshown_bytes: 0,
            every,
            backing: backing.stand(),
            hot: Hot::default(),
            ranges: Ranges::default(),
            known: Vec::new(),
            floor: 0,
            copied: 0,
        }
    }

    /// Lets writes of bytes that lie in this pool become pointers. Readers must be able to ask for
    /// it: share it at the grant server. `threshold` is its T_b: what is written is shown after as
    /// many blocks as the smallest that is referenced says. [SL §6.2] `false`: the memory of this
    /// pool is no file of ours, and cannot be handed to anybody.
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
        self.show_at = self.show_at.min(self.ring.side.head + self.every as u64);
        self.set_stop();
        let known = self.known.iter().position(|known| Arc::ptr_eq(&known.memory, memory));
        let name = known.unwrap_or(self.known.len());
        if known.is_none() {
            self.known.push(KnownDbuf { memory: memory.clone(), back_off: BackOff::default() });
        }
        let (address, length) = memory.extent();
        self.ranges.insert(address, length, name);
        true
    }

    /// Lets writes of bytes that this input shows in place ([`Input::peek`](super::Input::peek))
    /// become pointers. What is in flight the input keeps, so its writer gets it back when our
    /// readers have passed it: who waits for the input waits for both
    /// ([`splice::wait`](crate::splice::wait)). `false`: it is followed by as many as can.
    pub fn follow(&mut self, input: &super::Input) -> bool {
        self.flights.follow(input.keeper()).is_some()
    }

    /// After how many blocks what was written is shown: the smallest T_b of all dbufs known here.
    #[must_use]
    pub const fn threshold(&self) -> usize {
        self.every
    }

    /// Sets how often to look before sleeping; 0 where both sides share a processor.
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
        let from = block.as_ptr().addr().wrapping_sub(self.hot.address);
        let has_bytes = block.len().wrapping_sub(1) < BLOCK_MAX;
        let end = from.wrapping_add(block.len());
        let hit = from < self.hot.filled && end <= self.hot.filled && has_bytes;
        if !hit || self.ring.side.head >= self.stop {
            return self.write_slowly(block);
        }
        let pointer = self.hot.pointer(from, block.len());
        self.ring.put_bare(pointer);
        if self.ring.side.head == self.stop {
            self.pause();
        }
        Ok(true)
    }

    #[inline(never)]
    fn write_slowly(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if self.ring.side.head >= self.limit && !self.make_room()? {
            return Ok(self.drop_one(block.len()));
        }
        if block.len() > BLOCK_MAX {
            return Err(Fault::TooLong { length: block.len(), limit: BLOCK_MAX });
        }
        let from = block.as_ptr().addr().wrapping_sub(self.hot.address);
        if from.saturating_add(block.len()) > self.hot.filled || block.is_empty() {
            return self.write_elsewhere(block);
        }
        self.put(self.hot.pointer(from, block.len()));
        Ok(true)
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
            let put = backing.write(length, &mut fill, |pointer, pool| {
                // F1: kept before it is put. Mostly it is the segment of the block before.
                if !hot.grows_by(pointer) {
                    let lease = || pool.lease(pointer.place);
                    hot.advance_to(pointer, &flights.advance_to(pointer, until, lease)?);
                }
                Ok(())
            });
            match put {
                Ok(pointer) => {
                    self.copied += 1;
                    self.unshown_bytes += pointer.length() as usize;
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

    /// The flight of the segment that was hit last is told how long it is needed: no longer than
    /// what is put now.
    fn settle(&self) {
        self.flights.extend(self.ring.side.head);
    }

    /// Puts one pointer for which there is room.
    #[inline]
    fn put(&mut self, pointer: RichPointer) {
        if self.policy == Policy::Overwrite {
            self.begin(1);
        }
        self.ring.put_bare(pointer);
        self.pause();
    }

    /// Something was put: shows it if it is time.
    fn pause(&mut self) {
        if self.ring.side.head >= self.show_at || self.unshown_bytes >= SHOWN_BYTES {
            self.show(Urgency::Flow);
        }
    }

    /// Up to where a write has nothing to look at: none in a ring that overwrites.
    fn set_stop(&mut self) {
        let is_plain = self.policy != Policy::Overwrite;
        self.stop = if is_plain { self.limit.min(self.show_at) } else { 0 };
    }

    /// Shows readers all that was written, and wakes those that wait for anything. To be called
    /// before the writer turns to something else.
    pub fn flush(&mut self) {
        self.show(Urgency::Last);
    }

    fn show(&mut self, urgency: Urgency) {
        self.unshown_bytes = 0;
        self.show_at = self.ring.side.head + self.every as u64;
        self.set_stop();
        self.ring.count_bare();
        self.ring.side.publish();
        self.doorbells.ring_due(&mut self.ring.side, urgency);
    }

    /// Returns the counts of this side.
    #[must_use]
    pub const fn count(&self) -> Put {
        Put { blocks: self.ring.side.head, ..self.ring.count() }
    }

    /// Readers that were evicted because they showed a position that they cannot have.
    #[must_use]
    pub const fn evicted(&self) -> u64 {
        self.ring.evicted()
    }

    /// Returns the number of blocks spliced and copied.
    #[must_use]
    pub const fn spliced(&self) -> Spliced {
        Spliced { blocks: self.ring.side.head - self.copied, copied: self.copied }
    }

    /// Returns the counts that a reader has published.
    #[must_use]
    pub fn taken(&self, reader: usize) -> Option<buffer::Taken> {
        self.ring.taken(reader)
    }

    /// Stops waiting for a reader, and keeps nothing for it.
    pub fn shut_out(&mut self, reader: usize) {
        self.doorbells.shut_out(&mut self.ring.side, reader);
    }

    /// Returns the descriptors to poll: the doorbells of present readers.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.doorbells.all()
    }

    /// The doorbell of the first reader: all there is to poll where there is one.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.doorbells.first()
    }

    /// Ends as a process does that is killed: nothing is closed but descriptors.
    #[cfg(test)]
    pub(crate) fn die(mut self) {
        self.doorbells.die();
        std::mem::forget(self);
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.settle();
        self.ring.count_bare();
        self.ring.side.close();
        self.flush();
        let empty = Flights::new(&self.ring.side.store, self.doorbells.gone());
        let flights = std::mem::replace(&mut self.flights, empty);
        // F3.
        flight::leave(flights, self.doorbells.take());
    }
}
