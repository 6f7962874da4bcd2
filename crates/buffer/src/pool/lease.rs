//! The memory of a pool, and leases on its segments: what crosses threads. The invariants M1 to M8
//! are those of `pool`.

use super::mark::Mark;
use crate::Fault;
use crate::pages::Choice;
use crate::region::Region;
use crate::slots::Slots;
use abi::{DbufId, Extent, RichPointer};
use std::fmt;
use std::sync::Arc;
use sys::memory::{Lender, Memfd, Seals};

/// Having one keeps one segment of a pool as it is, in any thread, until it is dropped.
pub struct Lease {
    memory: Arc<Memory>,
    slot: usize,
}

impl Lease {
    /// The caller keeps M4.
    pub(crate) fn new(memory: &Arc<Memory>, slot: usize) -> Self {
        memory.slots.lease(slot);
        Self { memory: memory.clone(), slot }
    }

    /// The pool that the segment belongs to.
    #[must_use]
    pub fn dbuf(&self) -> DbufId {
        self.memory.id
    }

    /// The bytes of a block in this segment.
    #[inline]
    pub fn bytes(&self, place: Extent) -> Result<&[u8], Fault> {
        let at = self.offset(place)?;
        // SAFETY: `locate` found the bytes inside the region and below `filled`; they stay as they
        // are (M1) because the lease keeps the segment in its slot (M4) as long as `self` is
        // borrowed.
        Ok(unsafe { self.memory.bytes(at, place.length() as usize) })
    }

    /// Returns true if this is the only lease on its segment now.
    pub fn is_only(&self) -> bool {
        self.memory.slots.leases(self.slot) == 1
    }

    /// Returns the offset of a block of this segment.
    #[inline]
    fn offset(&self, place: Extent) -> Result<usize, Fault> {
        let (slot, at) = self.memory.locate(place)?;
        if slot == self.slot { Ok(at) } else { Err(Fault::OutOfWindow(place)) }
    }

    /// Returns true if a block lies in this segment.
    #[must_use]
    pub fn covers(&self, dbuf: DbufId, place: Extent) -> bool {
        self.memory.id == dbuf && self.offset(place).is_ok()
    }

    /// Returns the position at which the segment of a block begins, and its filled bytes. The
    /// caller knows that the lease covers the block.
    pub(crate) fn extent(&self, pointer: RichPointer) -> Option<(u64, u64)> {
        let (slot, start) = self.memory.around(pointer)?;
        Some((start.position, self.memory.slots.filled(slot) as u64))
    }

    /// The position of a block of this segment, with the high bits that a place leaves out.
    #[must_use]
    pub fn position(&self, place: Extent) -> u64 {
        let slots = &self.memory.slots;
        let slot = slots.slot_of_position(place.position());
        // The segment is kept in its slot, so its number tells the high bits.
        place.complete(slots.resident(slot) * slots.segment() as u64)
    }

    /// The memory that the segment belongs to.
    #[must_use]
    pub const fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Bytes of the segment.
    #[must_use]
    pub fn segment_len(&self) -> usize {
        self.memory.segment()
    }
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        // M4: made from a lease.
        Self::new(&self.memory, self.slot)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.memory.slots.give_back(self.slot);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease(dbuf {}, slot {})", self.memory.id.number(), self.slot)
    }
}

/// The segments themselves, shared with whoever has a lease.
#[derive(Debug)]
pub struct Memory {
    pub(crate) id: DbufId,
    pub(super) region: Region,
    pub(crate) slots: Slots,
    backing: Backing,
    /// Set while a block is changed where it lies (M9).
    pub(super) editing: Mark,
}

/// The origin of the segments.
#[derive(Debug)]
enum Backing {
    /// The heap, where nothing can be mapped.
    Heap,
    /// A file of our own, kept so that the memory can be handed to another process.
    File(Memfd),
    /// Another party, which fills them and takes them back (M7).
    Lent(Arc<dyn Lender>),
    /// A file that nobody can write any more (M8).
    Frozen(Memfd),
}

/// Bytes of a segment of frozen memory, which are fewer where the file is shorter: the reader and
/// the maker of the file come to the same segments by its size alone.
const FROZEN_SEGMENT: usize = 1 << 19;

/// EPERM.
const NOT_ALLOWED: i32 = 1;

/// The start of a segment, in the region and as a position.
#[derive(Clone, Copy)]
pub(crate) struct SegmentStart {
    pub(crate) at: usize,
    pub(crate) position: u64,
}

impl Memory {
    pub(super) fn new(id: DbufId, segment: usize, slots: usize) -> sys::Result<Self> {
        let len = segment * slots;
        let (backing, region) = if cfg!(miri) {
            (Backing::Heap, Region::heap(len / 8))
        } else {
            // Pages come with the segments that are opened, and not all at once.
            let choice = Choice { populate: false, ..Choice::here(len) };
            let (file, mapping) = choice.memory("streamline-pool", len)?;
            (Backing::File(file), Region::mapped(mapping))
        };
        Ok(Self {
            id,
            region,
            slots: Slots::new(segment, slots),
            backing,
            editing: Mark::default(),
        })
    }

    /// Memory that another party fills.
    pub(super) fn lent(id: DbufId, lender: Arc<dyn Lender>) -> Self {
        let slots = Slots::new(lender.segment(), lender.segments());
        let region = Region::lent(lender.clone());
        Self { id, region, slots, backing: Backing::Lent(lender), editing: Mark::default() }
    }

    /// Memory that nobody can write any more, every byte of it shown. Refused for a file that is
    /// not sealed so.
    pub fn frozen(id: DbufId, file: Memfd) -> sys::Result<Self> {
        if !file.seals()?.has(Seals::FROZEN) {
            return Err(sys::Error::new(
                "fcntl",
                "F_GET_SEALS: it can still be written",
                NOT_ALLOWED,
            ));
        }
        // M8: sealed. Only from here on is its size what it will be.
        let file = Memfd::from_fd(file.into())?;
        let segment = file.len().next_power_of_two().min(FROZEN_SEGMENT);
        let count = file.len().div_ceil(segment);
        let region = Region::reading(file.map_read()?);
        let slots = Slots::new(segment, count.next_power_of_two());
        for slot in 0..count {
            slots.open(slot, slot as u64);
            // As much as can be reached as words, which is all of a file of whole pages.
            let filled = segment.min(region.len().saturating_sub(slot * segment));
            slots.fill(slot, filled as u64);
        }
        Ok(Self { id, region, slots, backing: Backing::Frozen(file), editing: Mark::default() })
    }

    /// Leases a segment of frozen memory, of which no slot is ever given another one (M4, M8).
    #[must_use]
    pub fn lease_frozen(self: &Arc<Self>, slot: usize) -> Option<Lease> {
        let is_there = self.is_frozen() && slot < self.region.len().div_ceil(self.segment());
        is_there.then(|| Lease::new(self, slot))
    }

    /// The dbuf that this memory belongs to.
    #[must_use]
    pub const fn id(&self) -> DbufId {
        self.id
    }

    /// Returns the party that fills the segments, if it is another one.
    pub(super) fn lender(&self) -> Option<&dyn Lender> {
        match &self.backing {
            Backing::Lent(lender) => Some(&**lender),
            Backing::Heap | Backing::File(_) | Backing::Frozen(_) => None,
        }
    }

    /// The file that was made for this memory, to be sealed and handed to other processes.
    pub const fn file(&self) -> Option<&Memfd> {
        match &self.backing {
            Backing::File(file) | Backing::Frozen(file) => Some(file),
            Backing::Heap | Backing::Lent(_) => None,
        }
    }

    /// Returns true if it can never be written again (M8).
    pub(crate) const fn is_frozen(&self) -> bool {
        matches!(self.backing, Backing::Frozen(_))
    }

    /// Takes the memory of a slot, so that a lack of it is an error here and no SIGBUS later (T12).
    pub(super) fn populate(&self, slot: usize) -> sys::Result<()> {
        let Backing::File(file) = &self.backing else { return Ok(()) };
        file.allocate(slot * self.segment(), self.segment())
    }

    /// Bytes of a segment.
    #[must_use]
    pub const fn segment(&self) -> usize {
        self.slots.segment()
    }

    /// The bytes at an offset that [`Memory::locate`] has found.
    ///
    /// # Safety
    /// 1. `locate` has answered `at` for a place of `len` bytes, and
    /// 2. as long as the slice lives the segment is kept in its slot (M3 or M4).
    pub(crate) unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: promise 1 puts the bytes inside the region; by promise 2 and M1 nobody writes
        // them.
        unsafe { self.region.bytes(at, len) }
    }

    /// The slot of a block that has bytes, and where its segment begins.
    pub(crate) fn around(&self, pointer: RichPointer) -> Option<(usize, SegmentStart)> {
        if pointer.dbuf() != self.id || pointer.length() == 0 {
            return None;
        }
        let (slot, at) = self.locate(pointer.place).ok()?;
        let inside = at & (self.segment() - 1);
        let position = pointer.place.position() - inside as u64;
        Some((slot, SegmentStart { at: at - inside, position }))
    }

    /// See [`Slots::locate`].
    #[inline]
    pub(crate) fn locate(&self, place: Extent) -> Result<(usize, usize), Fault> {
        self.slots.locate(place)
    }
}
