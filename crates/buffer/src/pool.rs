//! The memory that a space writes, and that its rich pointers point into. [SL §5.2, §5.3.1]
//!
//! A pool is a dbuf made of equal segments in one memfd. A source fills a segment in one go and
//! names the records inside it; a filter appends small blocks while others still look at the blocks
//! of the same turn; nothing is ever overwritten as long as somebody may look. Segments are
//! recycled only between turns, and only if nobody has pinned or leased them. Deviation: the
//! source's dbuf is one ring that laps as a whole; here single segments lap, so that one held block
//! does not stop the rest (SPIKES, pitfall 1).
//!
//! Positions are monotone: position = segment number × segment size + offset, and segment n lies in
//! slot n mod slots. Segment numbers are skipped to reuse the lowest free slot, so that the memory
//! in use stays as small as it can be (a ring that leaves the cache is three times slower, [SL
//! §5.4], BASELINES).
//!
//! Why `&[u8]` is allowed here. Invariants, cited below:
//! - M1 The bytes of a slot below `filled` are written by nobody while `segment` names the same
//!   segment (but for what nobody sees: M9 in `edit`). They were written before `filled` was raised
//!   (Release; readers load it with Acquire).
//! - M2 The bytes of a slot from `filled` on are reached only through the one open [`Draft`], which
//!   only the thread that has the pool can open (the pool is not `Sync`), and only one at a time
//!   (`drafting`).
//! - M3 A slot is given another segment only in [`Pool::turn`], which has `&mut Pool`: so no slice
//!   that [`Pool::bytes`] gave out is alive, no draft is open, and nobody is taking a lease through
//!   the pool.
//! - M4 ... and only while its `leases` are 0. A lease is a reference count that safe code cannot
//!   forge: it is made from `&Pool` (excluded by M3), from a lease (then the count was not 0), or
//!   from a `crossing::Batch` (then the crossing's writer has a lease on it). It is given back with
//!   Release, and `turn` loads with Acquire: the last look at the bytes comes before their reuse.
//! - M5 Pins are for callers, plain numbers that can be stored anywhere. Soundness never rests on
//!   them: who unpins too often gets `None` from [`Pool::bytes`] some time later, and a count of
//!   mistakes.
//! - M6 The memory lives as long as the pool, a lease, or a crossing knows it (`Arc`).
//! - M7 Lent memory ([`lent`]): a slot is open only from the moment at which its lender said that
//!   the segment has arrived until it is told, in [`Pool::turn`], that it may have it back. In
//!   between the lender leaves the bytes alone (the promise of `Lender`), and M1 to M5 hold as they
//!   do for memory of our own, the draft of an arrived segment being all of it.
//! - M8 Frozen memory (`aggregate::frozen`): the file is sealed against every way to write, by
//!   anybody and for ever; the kernel puts that seal on only when no writable mapping is left, and
//!   was asked for it before the memory was made. All of it is filled from the beginning, and no
//!   pool is made over it, so no slot is given another segment: M1, and M4 without M3.

use crate::Fault;
use crate::slots::FREE;
use abi::{BLOCK_MAX, DbufId, Extent, RichPointer};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

pub mod address;
mod cold;
mod edit;
mod lease;
mod lent;
mod mark;

use cold::Cold;
pub use cold::Saved;
pub use edit::Editing;
pub use lease::Lease;
pub use lease::Memory;

/// The shape of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Bytes of a segment: a power of two, at least a page. No block crosses the end of one.
    pub segment: usize,
    /// Segments at most: a power of two. Memory is taken when a segment is first used.
    pub segments: usize,
}

impl Default for Config {
    /// 16 segments of 1 MB: two processors are fastest with 4 to 16 MB (BASELINES), and one pool
    /// used from one processor stays in its first segment.
    fn default() -> Self {
        Self { segment: 1 << 20, segments: 16 }
    }
}

impl Config {
    /// The default shape, smaller on a machine with little memory: a pool may grow to a 64th of it.
    #[must_use]
    pub fn for_memory(total: u64) -> Self {
        let full = Self::default();
        let affordable = usize::try_from(total / 64).unwrap_or(usize::MAX) / full.segment;
        let segments = affordable.clamp(4, full.segments);
        Self { segments: (segments / 2 + 1).next_power_of_two(), ..full }
    }
}

/// The memory of one space, written by the thread that has it.
#[derive(Debug)]
pub struct Pool {
    memory: Arc<Memory>,
    /// Position of the next block, and the end of the segment; equal: no segment is open.
    next: Cell<u64>,
    end: Cell<u64>,
    /// Number for the next segment, at least.
    fresh: Cell<u64>,
    /// Slots from here on have never been used and have no memory yet.
    populated: Cell<usize>,
    /// Number of the oldest segment that a lender has not got back.
    oldest: Cell<u64>,
    /// Times that each slot of lent memory was opened out of order, with a mark on those that are
    /// open so.
    laps: Box<[Cell<u64>]>,
    out: RefCell<Vec<usize>>,
    drafting: Cell<bool>,
    pins: Box<[Cell<u32>]>,
    /// From where on the only one who pinned a slot needs it ([`Pool::needs_from`]), as an offset
    /// in the region; 0: all of it.
    needed: Box<[Cell<usize>]>,
    cold: RefCell<Cold>,
    /// True if other parties may know the memory by other ways than leases.
    given: Cell<bool>,
    mistakes: Cell<u64>,
}

/// A pinned block, as a number that can lie in any table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pin(u64);

impl Pin {
    /// The pin as a number.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        self.0
    }

    /// The pin that a number alleges; [`Pool::unpin`] refuses it if it is none.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }
}

/// The fill of a pool, in segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Segments that can still be opened.
    pub free: usize,
    /// Segments that a pin keeps.
    pub pinned: usize,
    /// Segments that a lease (a crossing, mostly) keeps.
    pub leased: usize,
    /// All segments.
    pub segments: usize,
}

impl Pool {
    /// Makes a pool with id `id`, and takes the memory of its first segment.
    pub fn new(id: DbufId, config: Config) -> sys::Result<Self> {
        let segment = config.segment.next_power_of_two().max(abi::ring::PAGE);
        let slots = config.segments.next_power_of_two().max(2);
        let memory = Memory::new(id, segment, slots)?;
        memory.populate(0)?;
        Ok(Self::over(memory, 1))
    }

    /// Makes a pool whose segments take their memory when they are written, without asking for it:
    /// for a process that may not ask the kernel for any. A lack of memory is then no answer, but
    /// ends the process (SIGBUS).
    pub fn unasked(id: DbufId, config: Config) -> sys::Result<Self> {
        let pool = Self::new(id, config)?;
        pool.populated.set(pool.memory.slots.len());
        Ok(pool)
    }

    /// A pool over this memory, of which the first slots have pages.
    fn over(memory: Memory, populated: usize) -> Self {
        let pins = vec![Cell::new(0); memory.slots.len()].into();
        let needed = vec![Cell::new(0); memory.slots.len()].into();
        Self {
            memory: Arc::new(memory),
            next: Cell::new(0),
            end: Cell::new(0),
            fresh: Cell::new(0),
            populated: Cell::new(populated),
            oldest: Cell::new(0),
            laps: Box::default(),
            out: RefCell::default(),
            drafting: Cell::new(false),
            pins,
            needed,
            cold: RefCell::default(),
            given: Cell::new(false),
            mistakes: Cell::new(0),
        }
    }

    /// The id by which rich pointers name this pool.
    #[must_use]
    pub fn id(&self) -> DbufId {
        self.memory.id
    }

    /// The memory itself, which leases and pointers outlive the pool in.
    pub fn memory(&self) -> &Arc<Memory> {
        self.given.set(true);
        &self.memory
    }

    /// The file that the memory lies in, where it is one of our own.
    pub fn file(&self) -> Option<&sys::memory::Memfd> {
        self.given.set(true);
        self.memory.file()
    }

    /// Bytes of it that have memory.
    #[must_use]
    pub fn backed(&self) -> u64 {
        (self.populated.get() * self.memory.segment()) as u64
    }

    /// The longest block that fits.
    #[must_use]
    pub fn block_max(&self) -> usize {
        self.memory.segment().min(BLOCK_MAX)
    }

    /// Opens at least `min` and at most `max` bytes for writing, next to each other. `None`: the
    /// pool is full until leases and pins are given back and [`Pool::turn`] is called; or another
    /// draft is open; or `min` is longer than [`Pool::block_max`].
    pub fn draft(&self, min: usize, max: usize) -> Option<Draft<'_>> {
        let min = min.max(1);
        if self.drafting.get() || min > self.block_max() || self.is_lent() {
            return None;
        }
        if self.end.get() - self.next.get() < min as u64 {
            self.open_segment()?;
        }
        let position = self.next.get();
        let room = usize::try_from(self.end.get() - position).unwrap_or(0);
        let len = room.min(max.max(min)).min(BLOCK_MAX);
        // M2: the bytes are at or beyond `filled`, and no other draft is open from here on.
        self.drafting.set(true);
        Some(Draft { pool: self, position, at: self.memory.slots.offset(position), len })
    }

    /// Appends one block: `fill` writes up to `length` bytes and answers how many. The place is
    /// valid from then on, while slices of other blocks stay valid too. `None` as in
    /// [`Pool::draft`].
    pub fn append(
        &self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Option<(Extent, &[u8])> {
        let mut draft = self.draft(length, length)?;
        let used = fill(&mut draft);
        let place = draft.commit(used);
        Some((place, self.bytes(place)?))
    }

    /// The bytes of a block, if it is (still) here.
    #[must_use]
    pub fn bytes(&self, place: Extent) -> Option<&[u8]> {
        let (_, at) = self.locate(place).ok()?;
        // SAFETY: `locate` found the bytes inside the region and below `filled`; they stay as they
        // are (M1) as long as `self` is borrowed (M3).
        Some(unsafe { self.memory.bytes(at, place.length() as usize) })
    }

    /// All that is filled of the segment that a block lies in: blocks that follow each other mostly
    /// lie in one, and are then found without another look at the slots. `None` for a block that is
    /// not here or has no bytes.
    #[must_use]
    pub fn segment(&self, pointer: RichPointer) -> Option<Segment<'_>> {
        let (slot, start) = self.memory.around(pointer).or_else(|| {
            self.locate(pointer.place).ok()?;
            self.memory.around(pointer)
        })?;
        // SAFETY: `around` found the slot resident and `filled` bytes from its first in the region;
        // they stay as they are (M1) as long as `self` is borrowed (M3).
        let bytes = unsafe { self.memory.bytes(start.at, self.memory.slots.filled(slot)) };
        Some(Segment { dbuf: self.id(), start: start.position, bytes })
    }

    /// Returns the bytes that a pointer names, or the fault.
    pub fn resolve(&self, pointer: RichPointer) -> Result<&[u8], Fault> {
        if pointer.is_hole() {
            return Err(Fault::Hole);
        }
        if pointer.dbuf() != self.id() {
            return Err(Fault::UnknownDbuf(pointer.dbuf()));
        }
        self.locate(pointer.place)?;
        self.bytes(pointer.place).ok_or(Fault::OutOfWindow(pointer.place))
    }

    /// Keeps the segment of this block until it is unpinned. `None`: the block is not here.
    #[must_use]
    pub fn pin(&self, place: Extent) -> Option<Pin> {
        let (slot, _) = self.locate(place).ok()?;
        let count = self.pins.get(slot)?;
        count.set(count.get().checked_add(1)?);
        // This one may need all of it.
        self.needed.get(slot)?.set(0);
        Some(Pin(self.memory.slots.resident(slot)))
    }

    /// Gives a pin back. The bytes stay at least until the next [`Pool::turn`], so a block can be
    /// released and unpinned while filters behind still look at it (SPIKES, pitfall 2). `false`:
    /// this pin is not (any more) one of ours; the mistake is counted and changes nothing.
    pub fn unpin(&self, pin: Pin) -> bool {
        let slot = self.memory.slots.slot_of(pin.0);
        let resident = self.memory.slots.resident(slot) == pin.0;
        let count = self.pins.get(slot).filter(|count| resident && count.get() > 0);
        match count {
            Some(count) => count.set(count.get() - 1),
            None => self.mistakes.set(self.mistakes.get() + 1),
        }
        count.is_some()
    }

    /// Returns the unpins that named no pin: a bug of the caller if not 0.
    #[must_use]
    pub const fn mistakes(&self) -> u64 {
        self.mistakes.get()
    }

    /// A lease on the segment of this block: keeps it, whatever becomes of the pool, until it is
    /// dropped.
    pub fn lease(&self, place: Extent) -> Result<Lease, Fault> {
        let (slot, _) = self.locate(place)?;
        // M4: made from `&Pool`.
        Ok(Lease::new(&self.memory, slot))
    }

    /// Ends a turn: no slice and no draft is left, so segments that nobody keeps can be recycled.
    /// The open segment is given up too once it is half full, so that a space without backlog stays
    /// in one.
    pub fn turn(&mut self) {
        self.drafting.set(false);
        if self.is_lent() {
            return self.return_lent();
        }
        let slots = &self.memory.slots;
        let open = self.end.get().checked_sub(1).map(|last| slots.slot_of_position(last));
        let half = self.memory.segment() as u64 / 2;
        for (index, pins) in self.pins.iter().take(self.populated.get()).enumerate() {
            let young = open == Some(index) && self.end.get() - self.next.get() > half;
            if young || pins.get() > 0 || slots.resident(index) == FREE {
                continue;
            }
            // M3: `&mut self`. M4: `recycle` refuses while there are leases.
            if slots.recycle(index) {
                self.cold.get_mut().forget(index);
                if open == Some(index) {
                    self.next.set(0);
                    self.end.set(0);
                }
            }
        }
    }

    /// Returns the fill of the pool. A space under pressure copies what it holds, pushes back, or
    /// drops.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let slots = &self.memory.slots;
        let mut usage = Usage { segments: slots.len(), ..Usage::default() };
        for (index, pins) in self.pins.iter().enumerate() {
            usage.free += usize::from(slots.resident(index) == FREE);
            usage.pinned += usize::from(pins.get() > 0);
            usage.leased += usize::from(slots.leases(index) > 0);
        }
        usage
    }

    /// See [`Slots::locate`](crate::slots::Slots::locate); a segment that was packed comes back.
    #[inline]
    fn locate(&self, place: Extent) -> Result<(usize, usize), Fault> {
        self.memory.locate(place).or_else(|fault| self.thaw(place, fault))
    }

    /// Opens the lowest free slot under the next number that belongs there.
    fn open_segment(&self) -> Option<()> {
        let slots = &self.memory.slots;
        let index = (0..slots.len()).find(|&index| slots.resident(index) == FREE)?;
        if index >= self.populated.get() || self.is_hole(index) {
            // No memory for another segment: as full as a pool whose limit is lower.
            self.memory.populate(index).ok()?;
            self.populated.set(self.populated.get().max(index + 1));
            self.is_hole_no_more(index);
        }
        let (fresh, count) = (self.fresh.get(), slots.len() as u64);
        let number = fresh + (index as u64).wrapping_sub(fresh) % count;
        self.fresh.set(number + 1);
        // Free since a turn (M3): nobody has a slice of it.
        slots.open(index, number);
        let length = self.memory.segment() as u64;
        self.next.set(number * length);
        self.end.set((number + 1) * length);
        Some(())
    }
}

/// The filled part of one segment; empty by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment<'a> {
    pub(crate) dbuf: DbufId,
    /// The position of the first byte, as a place tells it.
    pub(crate) start: u64,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Segment<'a> {
    /// The dbuf that it is of.
    #[must_use]
    pub const fn dbuf(&self) -> DbufId {
        self.dbuf
    }

    /// The position of the first byte, as a place tells it.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// All that is filled.
    #[must_use]
    pub const fn all(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes of a block, if it lies in this segment.
    #[inline]
    #[must_use]
    pub fn bytes(&self, pointer: RichPointer) -> Option<&'a [u8]> {
        if pointer.dbuf() != self.dbuf {
            return None;
        }
        let from = usize::try_from(pointer.place.position().checked_sub(self.start)?).ok()?;
        self.bytes.get(from..from.checked_add(pointer.length() as usize)?)
    }
}

/// Bytes of a pool that are being written. Dropped without [`Draft::commit`]: nothing was written.
#[must_use]
pub struct Draft<'a> {
    pool: &'a Pool,
    position: u64,
    /// Offset of the bytes in the region.
    at: usize,
    len: usize,
}

impl Draft<'_> {
    /// Keeps the first `used` bytes: they are a block from now on, and parts of it are named with
    /// [`Extent::within`].
    pub fn commit(self, used: usize) -> Extent {
        let used = used.min(self.len);
        let memory = &self.pool.memory;
        let end = self.position + used as u64;
        let filled = end - (self.position & !(memory.segment() as u64 - 1));
        // M1: written before, and from here on by nobody.
        memory.slots.fill(memory.slots.slot_of_position(self.position), filled);
        // No gap: every byte below `filled` was written since the slot was recycled. Of a segment
        // that has arrived nothing is left to write.
        if !self.pool.is_lent() {
            self.pool.next.set(end);
        }
        #[expect(clippy::cast_possible_truncation, reason = "a draft has at most BLOCK_MAX bytes")]
        Extent::new(self.position, used as u32)
    }

    /// Returns the position of the first byte.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        self.pool.drafting.set(false);
    }
}

impl Deref for Draft<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie in the open segment, hence in the region; only this draft reaches
        // them (M2), and it is borrowed.
        unsafe { self.pool.memory.region.bytes(self.at, self.len) }
    }
}

impl DerefMut for Draft<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes lie in the open segment, hence in the writable region; only this draft
        // reaches them (M2), and it is borrowed for this slice alone.
        unsafe { self.pool.memory.region.bytes_mut(self.at, self.len) }
    }
}

impl fmt::Debug for Draft<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Draft({} bytes at {})", self.len, self.position)
    }
}

#[cfg(test)]
mod tests;
