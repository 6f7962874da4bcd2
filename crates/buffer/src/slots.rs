//! The slots of a pool. Each slot stores the number of its segment, the filled length, and the
//! number of leases.
//!
//! Slots are the only state of a pool that several threads modify. The invariants M1 to M4 of
//! `pool` depend on them.
//!
//! SYNC POINTS:
//! - *bytes filled*: [`Slots::set_filled_len`] stores `filled` with Release, [`Slots::locate`]
//!   loads it with Acquire: a thread that locates a block sees its bytes.
//! - *lease returned*: [`Slots::return_lease`] subtracts with Release, [`Slots::recycle`] loads
//!   with Acquire: the last read of the bytes happens before their reuse.

use crate::Fault;
use crate::atomic::{AtomicU64, Ordering};
use abi::Extent;

/// Slots of one pool.
#[derive(Debug)]
pub(crate) struct Slots {
    shift: u32,
    slots: Box<[Slot]>,
}

/// State of one slot. Each slot has its own cache lines, because other threads return leases.
#[derive(Debug)]
#[repr(align(128))]
struct Slot {
    segment: AtomicU64,
    filled: AtomicU64,
    leases: AtomicU64,
}

/// Value that a free slot contains instead of a segment number.
pub(crate) const FREE_SLOT: u64 = u64::MAX;

impl Slots {
    /// Creates empty slots for segments of `segment` bytes. `segment` and `slots` must be powers of
    /// two.
    pub(crate) fn new(segment: usize, slots: usize) -> Self {
        let slot = |_| Slot {
            segment: AtomicU64::new(FREE_SLOT),
            filled: AtomicU64::new(0),
            leases: AtomicU64::new(0),
        };
        Self { shift: segment.trailing_zeros(), slots: (0..slots).map(slot).collect() }
    }

    pub(crate) const fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the size of a segment in bytes.
    pub(crate) const fn segment_size(&self) -> usize {
        1 << self.shift
    }

    /// Returns the number of the segment in a slot, or [`FREE_SLOT`] if there is none.
    pub(crate) fn segment_number_in(&self, slot: usize) -> u64 {
        self.slot(slot).segment.load(Ordering::Relaxed)
    }

    /// Returns the number of leases on a slot.
    pub(crate) fn lease_count(&self, slot: usize) -> u64 {
        self.slot(slot).leases.load(Ordering::Relaxed)
    }

    /// Assigns segment number `segment` to a slot, which must be free.
    pub(crate) fn assign_segment(&self, slot: usize, segment: u64) {
        debug_assert!(
            self.segment_number_in(slot) == FREE_SLOT && self.slot_of_segment(segment) == slot
        );
        self.slot(slot).segment.store(segment, Ordering::Release);
    }

    /// Publishes the first `filled` bytes of a slot's segment.
    pub(crate) fn set_filled_len(&self, slot: usize, filled: u64) {
        // SYNC POINT: bytes filled; pairs with the load in `locate`.
        self.slot(slot).filled.store(filled, Ordering::Release);
    }

    /// Returns the number of published bytes in a slot's segment.
    pub(crate) fn filled_len(&self, slot: usize) -> usize {
        // SYNC POINT: bytes filled; pairs with the store in `fill`. At most a segment.
        usize::try_from(self.slot(slot).filled.load(Ordering::Acquire)).unwrap_or(0)
    }

    /// Adds a lease, which keeps the segment in its slot. The caller must ensure that the segment
    /// is not recycled concurrently (M4).
    pub(crate) fn lease(&self, slot: usize) {
        self.slot(slot).leases.fetch_add(1, Ordering::Relaxed);
    }

    /// Releases a lease: decrements the lease count of a slot.
    pub(crate) fn return_lease(&self, slot: usize) {
        // SYNC POINT: lease returned; pairs with the load in `recycle`.
        self.slot(slot).leases.fetch_sub(1, Ordering::Release);
    }

    /// Returns true if a slot has no lease, in which case all reads by former holders have
    /// completed. The caller must ensure that no lease is being created concurrently (M4).
    pub(crate) fn is_unleased(&self, slot: usize) -> bool {
        // SYNC POINT: lease returned; pairs with the subtraction in `return_lease`.
        self.slot(slot).leases.load(Ordering::Acquire) == 0
    }

    /// Returns true if a block's position belongs to the segment in a slot.
    pub(crate) fn contains_position(&self, slot: usize, place: Extent) -> bool {
        let resident = self.segment_number_in(slot);
        let low_bits = (1 << (Extent::POSITION_BITS - self.shift)) - 1;
        resident != FREE_SLOT && resident & low_bits == place.position() >> self.shift
    }

    /// Frees a slot unless it is leased. Returns true if the slot was freed. The caller must ensure
    /// that no lease is being created concurrently (M4).
    pub(crate) fn recycle(&self, slot: usize) -> bool {
        let slot = self.slot(slot);
        // SYNC POINT: lease returned; pairs with the subtraction in `return_lease`.
        if slot.leases.load(Ordering::Acquire) > 0 {
            return false;
        }
        slot.filled.store(0, Ordering::Relaxed);
        slot.segment.store(FREE_SLOT, Ordering::Relaxed);
        true
    }

    /// Returns the slot of a block and the offset of its bytes in the region. Validates the
    /// untrusted extent completely: fails if the segment is not in its slot, or the block exceeds
    /// the segment or its filled part.
    ///
    /// The low bits of a segment number select the slot, so no two segments in the pool share their
    /// low bits. The remaining bits reveal a stale extent.
    #[inline]
    pub(crate) fn locate(&self, place: Extent) -> Result<(usize, usize), Fault> {
        match self.find(place, place.position()) {
            // An empty block at the very end of a segment has the position of the next one.
            Err(_) if place.length() == 0 && place.position() > 0 => {
                self.find(place, place.position() - 1)
            }
            found => found,
        }
    }

    #[inline]
    fn find(&self, place: Extent, position: u64) -> Result<(usize, usize), Fault> {
        let (index, number) = (self.slot_of_position(position), position >> self.shift);
        let slot = self.slot(index);
        let resident = slot.segment.load(Ordering::Acquire);
        let low_bits = (1 << (Extent::POSITION_BITS - self.shift)) - 1;
        if resident & low_bits != number || resident == FREE_SLOT {
            return Err(Fault::OutOfWindow(place));
        }
        let from = position & (self.segment_size() as u64 - 1);
        let end = from + u64::from(place.length());
        if end > self.segment_size() as u64 {
            return Err(Fault::CrossesSegment(place));
        }
        // SYNC POINT: bytes filled; pairs with the store in `fill`.
        if end > slot.filled.load(Ordering::Acquire) {
            return Err(Fault::OutOfWindow(place));
        }
        Ok((index, self.offset(position)))
    }

    /// Returns the slot to which a segment number maps.
    pub(crate) fn slot_of_segment(&self, segment: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "less than the number of slots")]
        let slot = (segment & (self.slots.len() as u64 - 1)) as usize;
        slot
    }

    /// Returns the slot to which the segment of a position maps.
    pub(crate) fn slot_of_position(&self, position: u64) -> usize {
        self.slot_of_segment(position >> self.shift)
    }

    /// Returns the offset in the region at which a position is stored.
    pub(crate) fn offset(&self, position: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "less than the size of the region")]
        let at = (position & (((self.slots.len() as u64) << self.shift) - 1)) as usize;
        at
    }

    fn slot(&self, index: usize) -> &Slot {
        // All indices come from `slot_of_segment` or from iteration over the slots.
        #[expect(clippy::indexing_slicing, reason = "masked by the number of slots")]
        &self.slots[index & (self.slots.len() - 1)]
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models;
