//! Memory of a pool, and leases on its segments. Threads share both. M1 to M8 are the invariants of
//! `pool`.

use super::edit_flag::EditFlag;
use crate::Fault;
use crate::pages::PageChoice;
use crate::region::Region;
use crate::slots::Slots;
use abi::{DbufId, Extent, RichPointer};
use std::fmt;
use std::sync::Arc;
use sys::memory::{Memfd, Seals, SegmentLender};

/// A reference to one segment of a pool. Keeps the bytes of the segment unchanged, in any thread,
/// until dropped.
pub struct Lease {
    memory: Arc<PoolMemory>,
    slot: usize,
}

impl Lease {
    /// Creates a lease. The caller must ensure that the segment is not recycled concurrently (M4).
    pub(crate) fn new(memory: &Arc<PoolMemory>, slot: usize) -> Self {
        memory.slots.lease(slot);
        Self { memory: memory.clone(), slot }
    }

    /// Returns the dbuf of the segment.
    #[must_use]
    pub fn dbuf(&self) -> DbufId {
        self.memory.id
    }

    /// Returns the bytes of a block. Fails with a [`Fault`] if the block is not in the leased
    /// segment.
    #[inline]
    pub fn bytes(&self, place: Extent) -> Result<&[u8], Fault> {
        let at = self.offset(place)?;
        // SAFETY: `locate` found the bytes inside the region and below `filled`; they are not
        // written (M1) because the lease keeps the segment in its slot (M4) while `self` is
        // borrowed.
        Ok(unsafe { self.memory.bytes(at, place.length() as usize) })
    }

    /// Returns true if the segment has no other lease at the moment.
    pub fn is_only_lease(&self) -> bool {
        self.memory.slots.lease_count(self.slot) == 1
    }

    /// Returns the byte offset of a block in the memory region. Fails with a [`Fault`] if the block
    /// is not in the leased segment.
    #[inline]
    fn offset(&self, place: Extent) -> Result<usize, Fault> {
        let (slot, at) = self.memory.locate(place)?;
        if slot == self.slot { Ok(at) } else { Err(Fault::OutOfWindow(place)) }
    }

    /// Returns true if a block is in the leased segment.
    #[must_use]
    pub fn covers(&self, dbuf: DbufId, place: Extent) -> bool {
        self.memory.id == dbuf && self.offset(place).is_ok()
    }

    /// Returns the position of the first byte of the leased segment, and its filled length in
    /// bytes. The caller must ensure that the lease covers the block. Returns `None` if the block
    /// has no bytes.
    pub(crate) fn filled_extent(&self, pointer: RichPointer) -> Option<(u64, u64)> {
        let (slot, start) = self.memory.enclosing_segment(pointer)?;
        Some((start.position, self.memory.slots.filled_len(slot) as u64))
    }

    /// Returns the full position of a block in the leased segment, including the high bits that an
    /// extent omits.
    #[must_use]
    pub fn full_position(&self, place: Extent) -> u64 {
        let slots = &self.memory.slots;
        let slot = slots.slot_of_position(place.position());
        // The lease keeps the segment in its slot, so the segment number supplies the high bits.
        place.position_near(slots.segment_number_in(slot) * slots.segment_size() as u64)
    }

    /// Returns the memory that contains the segment.
    #[must_use]
    pub const fn memory(&self) -> &Arc<PoolMemory> {
        &self.memory
    }

    /// Returns the size of the segment in bytes.
    #[must_use]
    pub fn segment_len(&self) -> usize {
        self.memory.segment_size()
    }
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        // M4: created from a lease.
        Self::new(&self.memory, self.slot)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.memory.slots.return_lease(self.slot);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease(dbuf {}, slot {})", self.memory.id.number(), self.slot)
    }
}

/// The segments of a pool, shared with all holders of leases.
#[derive(Debug)]
pub struct PoolMemory {
    pub(crate) id: DbufId,
    pub(super) region: Region,
    pub(crate) slots: Slots,
    backing: Backing,
    /// Set while a block is edited in place (M9).
    pub(super) editing: EditFlag,
}

/// The kind of memory behind the segments.
#[derive(Debug)]
enum Backing {
    /// The heap, where mmap is not available.
    Heap,
    /// A file that belongs to the pool, kept open so that the memory can be shared with other
    /// processes.
    File(Memfd),
    /// Another party, which fills the segments and to which they are returned (M7).
    Lent(Arc<dyn SegmentLender>),
    /// A file that is sealed against all writes (M8).
    Frozen(Memfd),
}

/// Segment size of frozen memory in bytes. A smaller file consists of a single segment. The reader
/// and the creator of a file derive the same segments from the file size alone.
const FROZEN_SEGMENT_SIZE: usize = 1 << 19;

/// EPERM: the file lacks the seal.
const EPERM: i32 = 1;

/// The start of a segment, as an offset and as a position.
#[derive(Clone, Copy)]
pub(crate) struct SegmentStart {
    /// Byte offset of the segment's first byte in the memory region.
    pub(crate) at: usize,
    /// Position of the segment's first byte, truncated to the width of an extent's position.
    pub(crate) position: u64,
}

impl PoolMemory {
    pub(super) fn new(id: DbufId, segment: usize, slots: usize) -> sys::Result<Self> {
        let len = segment * slots;
        let (backing, region) = if cfg!(miri) {
            (Backing::Heap, Region::heap(len / 8))
        } else {
            // Pages are allocated segment by segment as they are opened.
            let choice = PageChoice { populate: false, ..PageChoice::for_this_machine(len) };
            let (file, mapping) = choice.create_memory("streamline-pool", len)?;
            (Backing::File(file), Region::mapped(mapping))
        };
        Ok(Self {
            id,
            region,
            slots: Slots::new(segment, slots),
            backing,
            editing: EditFlag::default(),
        })
    }

    /// Creates the memory of a pool whose segments a lender fills.
    pub(super) fn lent(id: DbufId, lender: Arc<dyn SegmentLender>) -> Self {
        let slots = Slots::new(lender.segment_size(), lender.segment_count());
        let region = Region::lent(lender.clone());
        Self { id, region, slots, backing: Backing::Lent(lender), editing: EditFlag::default() }
    }

    /// Maps a file that is sealed against all writes. All of its bytes count as published. Fails
    /// with EPERM if the seal is missing.
    pub fn frozen(id: DbufId, file: Memfd) -> sys::Result<Self> {
        if !file.seals()?.contains(Seals::FROZEN) {
            return Err(sys::Error::new("fcntl", "F_GET_SEALS: it can still be written", EPERM));
        }
        // M8: sealed. The size read before the check was not final, so it is read again.
        let file = Memfd::from_fd(file.into())?;
        let segment = file.len().next_power_of_two().min(FROZEN_SEGMENT_SIZE);
        let count = file.len().div_ceil(segment);
        let region = Region::read_only(file.map_read()?);
        let slots = Slots::new(segment, count.next_power_of_two());
        for slot in 0..count {
            slots.assign_segment(slot, slot as u64);
            // Only whole words are accessible. A file of whole pages has no other bytes.
            let filled = segment.min(region.len().saturating_sub(slot * segment));
            slots.set_filled_len(slot, filled as u64);
        }
        Ok(Self { id, region, slots, backing: Backing::Frozen(file), editing: EditFlag::default() })
    }

    /// Leases a segment of frozen memory, whose slots never change (M4, M8). Returns `None` if the
    /// memory is not frozen or has no such slot.
    #[must_use]
    pub fn lease_frozen(self: &Arc<Self>, slot: usize) -> Option<Lease> {
        let exists = self.is_frozen() && slot < self.region.len().div_ceil(self.segment_size());
        exists.then(|| Lease::new(self, slot))
    }

    /// Returns the dbuf of this memory.
    #[must_use]
    pub const fn id(&self) -> DbufId {
        self.id
    }

    /// Returns the party that fills the segments, or `None` if the pool itself fills them.
    pub(super) fn lender(&self) -> Option<&dyn SegmentLender> {
        match &self.backing {
            Backing::Lent(lender) => Some(&**lender),
            Backing::Heap | Backing::File(_) | Backing::Frozen(_) => None,
        }
    }

    /// Returns the file of this memory, to be sealed and shared with other processes, or `None` if
    /// the memory is lent or on the heap.
    pub const fn file(&self) -> Option<&Memfd> {
        match &self.backing {
            Backing::File(file) | Backing::Frozen(file) => Some(file),
            Backing::Heap | Backing::Lent(_) => None,
        }
    }

    /// Returns true if the memory can never be written again (M8).
    pub(crate) const fn is_frozen(&self) -> bool {
        matches!(self.backing, Backing::Frozen(_))
    }

    /// Allocates the memory of a slot, so that a lack of memory is an error here rather than SIGBUS
    /// later (T12). Does nothing unless the memory is a file of the pool.
    pub(super) fn populate(&self, slot: usize) -> sys::Result<()> {
        let Backing::File(file) = &self.backing else { return Ok(()) };
        file.allocate(slot * self.segment_size(), self.segment_size())
    }

    /// Returns the segment size in bytes.
    #[must_use]
    pub const fn segment_size(&self) -> usize {
        self.slots.segment_size()
    }

    /// Returns the bytes of a block, given the offset found by [`PoolMemory::locate`].
    ///
    /// # Safety
    ///
    /// 1. `locate` must have returned `at` for an extent of `len` bytes, and
    /// 2. the segment must stay in its slot (M3 or M4) while the slice lives.
    pub(crate) unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: promise 1 puts the bytes inside the region; by promise 2 and M1 no party writes
        // them.
        unsafe { self.region.bytes(at, len) }
    }

    /// Returns the slot that contains a block, and the start of the segment in this slot. Returns
    /// `None` if the block has no bytes or is not in this memory.
    pub(crate) fn enclosing_segment(&self, pointer: RichPointer) -> Option<(usize, SegmentStart)> {
        if pointer.dbuf() != self.id || pointer.length() == 0 {
            return None;
        }
        let (slot, at) = self.locate(pointer.place).ok()?;
        let inside = at & (self.segment_size() - 1);
        let position = pointer.place.position() - inside as u64;
        Some((slot, SegmentStart { at: at - inside, position }))
    }

    /// Returns the slot and offset of a block, like [`Slots::locate`].
    #[inline]
    pub(crate) fn locate(&self, place: Extent) -> Result<(usize, usize), Fault> {
        self.slots.locate(place)
    }
}
