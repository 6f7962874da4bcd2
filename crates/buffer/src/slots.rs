//! Slots of a pool: the segment in each of them, its filled part, and its leases.
//!
//! The part of a pool that several threads touch; `pool` argues with it (M1 to M4) why bytes may be
//! lent.
//!
//! SYNC POINTS:
//! - *bytes filled*: [`Slots::fill`] stores `filled` with Release, [`Slots::locate`] loads it with
//!   Acquire: who finds a place sees its bytes.
//! - *lease given back*: [`Slots::give_back`] subtracts with Release, [`Slots::recycle`] loads with
//!   Acquire: the last look at the bytes comes before their reuse.

use crate::Fault;
use crate::atomic::{AtomicU64, Ordering};
use abi::Extent;

/// The slots of one pool.
#[derive(Debug)]
pub(crate) struct Slots {
    shift: u32,
    slots: Box<[Slot]>,
}

/// The state of a slot. On a line of its own: leases are given back by other threads.
#[derive(Debug)]
#[repr(align(128))]
struct Slot {
    segment: AtomicU64,
    filled: AtomicU64,
    leases: AtomicU64,
}

/// No segment.
pub(crate) const FREE: u64 = u64::MAX;

impl Slots {
    /// Free slots for segments of this many bytes; both are powers of two.
    pub(crate) fn new(segment: usize, slots: usize) -> Self {
        let slot = |_| Slot {
            segment: AtomicU64::new(FREE),
            filled: AtomicU64::new(0),
            leases: AtomicU64::new(0),
        };
        Self { shift: segment.trailing_zeros(), slots: (0..slots).map(slot).collect() }
    }

    pub(crate) const fn len(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of a segment.
    pub(crate) const fn segment(&self) -> usize {
        1 << self.shift
    }

    /// Number of the segment that lies in a slot, or [`FREE`].
    pub(crate) fn resident(&self, slot: usize) -> u64 {
        self.slot(slot).segment.load(Ordering::Relaxed)
    }

    /// Returns the leases on a slot.
    pub(crate) fn leases(&self, slot: usize) -> u64 {
        self.slot(slot).leases.load(Ordering::Relaxed)
    }

    /// Puts a fresh segment into a free slot. `filled` is 0 since the slot was recycled.
    pub(crate) fn open(&self, slot: usize, segment: u64) {
        debug_assert!(self.resident(slot) == FREE && self.slot_of(segment) == slot);
        self.slot(slot).segment.store(segment, Ordering::Release);
    }

    /// Shows the bytes of the segment before `filled`.
    pub(crate) fn fill(&self, slot: usize, filled: u64) {
        // SYNC POINT: bytes filled; pairs with the load in `find`.
        self.slot(slot).filled.store(filled, Ordering::Release);
    }

    /// Returns the published bytes of the segment in a slot.
    pub(crate) fn filled(&self, slot: usize) -> usize {
        // SYNC POINT: bytes filled; pairs with the store in `fill`. Never more than a segment.
        usize::try_from(self.slot(slot).filled.load(Ordering::Acquire)).unwrap_or(0)
    }

    /// Keeps the segment in its slot. The caller proves that it is kept already (M4).
    pub(crate) fn lease(&self, slot: usize) {
        self.slot(slot).leases.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a lease.
    pub(crate) fn give_back(&self, slot: usize) {
        // SYNC POINT: lease given back; pairs with the load in `recycle`.
        self.slot(slot).leases.fetch_sub(1, Ordering::Release);
    }

    /// Returns true if there is no lease on a slot; its last holder has looked for the last time.
    /// The caller proves that none is being made (M4).
    pub(crate) fn is_unleased(&self, slot: usize) -> bool {
        // SYNC POINT: lease given back; pairs with the subtraction in `give_back`.
        self.slot(slot).leases.load(Ordering::Acquire) == 0
    }

    /// Returns true if a place lies in the segment of a slot.
    pub(crate) fn is_named(&self, slot: usize, place: Extent) -> bool {
        let resident = self.resident(slot);
        let low_bits = (1 << (Extent::POSITION_BITS - self.shift)) - 1;
        resident != FREE && resident & low_bits == place.position() >> self.shift
    }

    /// Makes a slot free if there is no lease on it. The caller proves that none is being made
    /// (M4).
    pub(crate) fn recycle(&self, slot: usize) -> bool {
        let slot = self.slot(slot);
        // SYNC POINT: lease given back; pairs with the subtraction in `give_back`.
        if slot.leases.load(Ordering::Acquire) > 0 {
            return false;
        }
        slot.filled.store(0, Ordering::Relaxed);
        slot.segment.store(FREE, Ordering::Relaxed);
        true
    }

    /// The slot of a block and where its bytes lie in the region, if all of it is there: every
    /// allegation that a place makes is checked here. Two live segments never have the same low
    /// bits, because those name the slot; a stale place is recognised by the rest.
    #[inline]
    pub(crate) fn locate(&self, place: Extent) -> Result<(usize, usize), Fault> {
        match self.find(place, place.position()) {
            // An empty view at the very end of a segment seems to lie in the next one.
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
        if resident & low_bits != number || resident == FREE {
            return Err(Fault::OutOfWindow(place));
        }
        let from = position & (self.segment() as u64 - 1);
        let end = from + u64::from(place.length());
        if end > self.segment() as u64 {
            return Err(Fault::CrossesSegment(place));
        }
        // SYNC POINT: bytes filled; pairs with the store in `fill`.
        if end > slot.filled.load(Ordering::Acquire) {
            return Err(Fault::OutOfWindow(place));
        }
        Ok((index, self.offset(position)))
    }

    /// The slot of a segment.
    pub(crate) fn slot_of(&self, segment: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "less than the number of slots")]
        let slot = (segment & (self.slots.len() as u64 - 1)) as usize;
        slot
    }

    /// The slot of the segment that a position lies in.
    pub(crate) fn slot_of_position(&self, position: u64) -> usize {
        self.slot_of(position >> self.shift)
    }

    /// Returns the offset of a position in the region.
    pub(crate) fn offset(&self, position: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "less than the size of the region")]
        let at = (position & (((self.slots.len() as u64) << self.shift) - 1)) as usize;
        at
    }

    fn slot(&self, index: usize) -> &Slot {
        // All indices come from `slot_of` or from counting.
        #[expect(clippy::indexing_slicing, reason = "masked by the number of slots")]
        &self.slots[index & (self.slots.len() - 1)]
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models;
