//! Pools over memory that another party fills, such as a packet ring written by the kernel. [SL
//! §5.5: the driver's own ring as a dbuf]
//!
//! A [`SegmentLender`] owns the memory. An arrived segment is offered as a draft of all its bytes,
//! so that a source can first repair them (for example, reinsert a tag that the device removed). A
//! committed segment is a segment like any other: rich pointers refer to it, leases keep it, and
//! nothing is copied. The pool returns the segment to the lender at the end of the first pass in
//! which it has neither pins nor leases. If segments arrive in order, a segment that is held for a
//! long time stalls the lender after a lap, so spaces copy the blocks that they hold (CONTRACT 12).
//! If segments arrive in any order (AF_XDP frames), the source names the slot
//! ([`Pool::draft_arrived_slot`]), and the segment number counts the laps of that slot, so that no
//! position is used twice.

use super::{Draft, Pool, PoolMemory};
use crate::slots::FREE_SLOT;
use abi::{BLOCK_LENGTH_MAX, DbufId};
use std::cell::Cell;
use std::sync::Arc;
use sys::memory::SegmentLender;

impl Pool {
    /// Creates a pool over a lender's memory. Fails with EINVAL unless the segment size is a power
    /// of two that a rich pointer can describe, and the number of segments is a power of two, at
    /// least 2.
    pub fn lent(id: DbufId, lender: Arc<dyn SegmentLender>) -> sys::Result<Self> {
        let (segment, segments) = (lender.segment_size(), lender.segment_count());
        let fits = segment.is_power_of_two()
            && (abi::ring::PAGE_SIZE..=BLOCK_LENGTH_MAX).contains(&segment);
        if !fits || !segments.is_power_of_two() || segments < 2 {
            let target = format!("{segments} segments of {segment} bytes");
            return Err(sys::Error::new("lend", target, EINVAL));
        }
        let laps = vec![Cell::new(0); segments].into();
        Ok(Self { laps, ..Self::from_memory(PoolMemory::lent(id, lender), segments) })
    }

    /// Returns true if another party fills this pool. In that case nothing can be appended, and
    /// holders of blocks should soon copy them.
    #[inline]
    #[must_use]
    pub fn is_lent(&self) -> bool {
        self.memory.lender().is_some()
    }

    /// Opens the entire next segment for writing. Returns `None` if the segment has not arrived,
    /// its slot is still held from the previous lap, or another draft is open.
    pub fn draft_arrived_segment(&self) -> Option<Draft<'_>> {
        let number = self.next_number_min.get();
        let draft = self.open_arrived_slot(self.memory.slots.slot_of_segment(number), number)?;
        self.next_number_min.set(number + 1);
        Some(draft)
    }

    /// Opens the entire arrived segment in `slot` for writing. Replaces
    /// [`Pool::draft_arrived_segment`] for a lender whose segments arrive in any order. Returns
    /// `None` if the segment has not arrived, its slot is still in use, or another draft is open.
    pub fn draft_arrived_slot(&self, slot: usize) -> Option<Draft<'_>> {
        let lap = self.laps.get(slot)?;
        let number = lap.get() * self.memory.slots.len() as u64 + slot as u64;
        let draft = self.open_arrived_slot(slot, number)?;
        lap.set(lap.get() + 1);
        self.opened_slots.borrow_mut().push(slot);
        Some(draft)
    }

    /// Opens a slot under this segment number. Returns `None` unless the segment has arrived, the
    /// slot is free and no draft is open.
    fn open_arrived_slot(&self, slot: usize, number: u64) -> Option<Draft<'_>> {
        let slots = &self.memory.slots;
        let has_arrived = self.memory.lender()?.has_arrived(slot);
        if self.drafting.get() || slots.segment_number_in(slot) != FREE_SLOT || !has_arrived {
            return None;
        }
        // M3: free since the end of a pass, or since the pool was created. M7: arrived.
        slots.assign_segment(slot, number);
        self.drafting.set(true);
        let len = self.memory.segment_size();
        let position = number * len as u64;
        Some(Draft { pool: self, position, at: slots.offset(position), len })
    }

    /// Returns the number of segments that have been opened by [`Pool::draft_arrived_slot`] but not
    /// yet returned to the lender.
    #[must_use]
    pub fn outstanding_segments(&self) -> usize {
        self.opened_slots.borrow().len()
    }

    /// Returns true if the slot of the next segment is still in use, which stalls the lender.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        let slots = &self.memory.slots;
        self.is_lent()
            && slots.segment_number_in(slots.slot_of_segment(self.next_number_min.get()))
                != FREE_SLOT
    }

    /// Returns to the lender all segments that have neither pins nor leases. Does nothing if the
    /// memory is not lent.
    pub(super) fn return_lent_segments(&mut self) {
        let Some(lender) = self.memory.lender() else { return };
        let slots = &self.memory.slots;
        let pins = &self.pins;
        let give_back = |slot: usize| {
            let is_pinned = pins.get(slot).is_some_and(|pins| pins.get() > 0);
            // M3: `&mut self`. M4: `recycle` refuses while there are leases.
            let is_returned = !is_pinned && slots.recycle(slot);
            if is_returned {
                lender.give_back(slot);
            }
            is_returned
        };
        self.opened_slots.get_mut().retain(|&slot| !give_back(slot));
        let mut oldest_held = self.next_number_min.get();
        for number in (self.oldest.get()..self.next_number_min.get()).rev() {
            let slot = slots.slot_of_segment(number);
            if slots.segment_number_in(slot) == number && !give_back(slot) {
                oldest_held = number;
            }
        }
        self.oldest.set(oldest_held);
    }
}

/// EINVAL: the dimensions of the lent memory are unsuitable.
const EINVAL: i32 = 22;

#[cfg(test)]
mod tests {
    use super::*;
    use abi::Extent;
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use sys::memory::Mapping;

    const SEGMENT_SIZE: usize = 4096;
    const SEGMENT_COUNT: usize = 4;

    /// A lender that fills segments on request.
    #[derive(Debug)]
    struct TestLender {
        memory: Mapping,
        /// One bit per slot, set while its segment is filled but not returned.
        arrived: AtomicUsize,
        /// Number of segments filled so far.
        filled: AtomicUsize,
        /// Number of segments returned so far.
        returned: AtomicUsize,
    }

    // SAFETY: the mapping lives as long as the value; it is written only by `fill`, which the tests
    // call for segments that are not lent out.
    #[expect(unsafe_code, reason = "plays the role of the kernel")]
    unsafe impl SegmentLender for TestLender {
        fn base(&self) -> NonNull<u8> {
            self.memory.base()
        }

        fn segment_size(&self) -> usize {
            SEGMENT_SIZE
        }

        fn segment_count(&self) -> usize {
            SEGMENT_COUNT
        }

        fn has_arrived(&self, slot: usize) -> bool {
            self.arrived.load(Ordering::Acquire) & (1 << slot) != 0
        }

        fn give_back(&self, slot: usize) {
            self.arrived.fetch_and(!(1 << slot), Ordering::Release);
            self.returned.fetch_add(1, Ordering::Release);
        }
    }

    impl TestLender {
        fn fill(&self, byte: u8) {
            let number = self.filled.load(Ordering::Relaxed);
            let slot = number % SEGMENT_COUNT;
            assert!(!self.has_arrived(slot), "no segment free");
            let at = self.memory.base().as_ptr().wrapping_add(slot * SEGMENT_SIZE);
            #[expect(unsafe_code, reason = "plays the role of the kernel")]
            // SAFETY: the segment is in the mapping and is not lent out (asserted).
            unsafe {
                at.write_bytes(byte, SEGMENT_SIZE);
            }
            self.arrived.fetch_or(1 << slot, Ordering::Release);
            self.filled.store(number + 1, Ordering::Relaxed);
        }

        fn returned_count(&self) -> usize {
            self.returned.load(Ordering::Acquire)
        }
    }

    fn create_lent_pool() -> (Arc<TestLender>, Pool) {
        let memory = Mapping::anonymous(SEGMENT_SIZE * SEGMENT_COUNT).unwrap();
        let zero = || AtomicUsize::new(0);
        let filler =
            Arc::new(TestLender { memory, arrived: zero(), filled: zero(), returned: zero() });
        let pool = Pool::lent(DbufId::new(9).unwrap(), filler.clone()).unwrap();
        (filler, pool)
    }

    #[test]
    fn arrived_segment_is_read_in_place_and_returned() {
        let (filler, mut pool) = create_lent_pool();
        assert!(pool.is_lent() && pool.draft_arrived_segment().is_none());
        assert!(pool.draft(1, 1).is_none(), "only the lender fills it");
        for round in 0..3 * SEGMENT_COUNT {
            let byte = u8::try_from(round).unwrap();
            filler.fill(byte);
            let mut draft = pool.draft_arrived_segment().unwrap();
            draft[0] = 99;
            let place = draft.commit(SEGMENT_SIZE);
            assert!(pool.draft_arrived_segment().is_none());
            assert_eq!(pool.bytes(place.subrange(1, 9)).unwrap(), [byte; 9]);
            assert_eq!(pool.bytes(place.subrange(0, 2)).unwrap(), [99, byte]);
            assert_eq!(filler.returned_count(), round);
            pool.end_pass();
            assert_eq!(filler.returned_count(), round + 1);
            assert!(pool.bytes(place).is_none(), "gone");
        }
    }

    #[test]
    fn pinned_or_leased_segments_are_not_returned() {
        let (filler, mut pool) = create_lent_pool();
        let mut places = Vec::new();
        for byte in 0..3 {
            filler.fill(byte);
            places.push(pool.draft_arrived_segment().unwrap().commit(SEGMENT_SIZE));
        }
        let pin = pool.pin(places[0]).unwrap();
        let lease = pool.lease(places[2]).unwrap();
        assert!(!pool.is_stalled());
        filler.fill(3);
        places.push(pool.draft_arrived_segment().unwrap().commit(SEGMENT_SIZE));
        assert!(pool.is_stalled(), "all are out");
        pool.end_pass();
        assert_eq!(filler.returned_count(), 2, "the one between, and the last");
        assert_eq!(pool.bytes(places[0].subrange(0, 1)).unwrap(), [0]);
        assert_eq!(lease.bytes(places[2].subrange(0, 1)).unwrap(), [2]);
        assert!(pool.unpin(pin));
        pool.end_pass();
        assert_eq!(filler.returned_count(), 3);
        drop(lease);
        pool.end_pass();
        pool.end_pass();
        assert_eq!(filler.returned_count(), 4);
        filler.fill(7);
        assert_eq!(pool.draft_arrived_segment().unwrap()[5], 7, "and on it goes");
    }

    #[test]
    fn segments_arriving_out_of_order_are_opened_by_slot() {
        let (filler, mut pool) = create_lent_pool();
        assert!(
            pool.draft_arrived_slot(2).is_none()
                && pool.draft_arrived_slot(SEGMENT_COUNT).is_none()
        );
        let mut places = Vec::new();
        for byte in 0..4 {
            filler.fill(byte);
        }
        for slot in [2, 0, 3] {
            places.push(pool.draft_arrived_slot(slot).unwrap().commit(SEGMENT_SIZE));
            assert!(pool.draft_arrived_slot(slot).is_none(), "it is here already");
        }
        assert_eq!(places.first_bytes(&pool), [Some(2), Some(0), Some(3)]);
        let lease = pool.lease(places[1]).unwrap();
        pool.end_pass();
        assert_eq!((filler.returned_count(), pool.outstanding_segments()), (2, 1));
        assert_eq!(places.first_bytes(&pool), [None, Some(0), None]);
        drop(lease);
        drop(pool.draft_arrived_slot(1).unwrap());
        pool.end_pass();
        assert_eq!(
            (filler.returned_count(), pool.outstanding_segments()),
            (4, 0),
            "an uncommitted draft, too"
        );
        filler.fill(9);
        let again = pool.draft_arrived_slot(0).unwrap().commit(SEGMENT_SIZE);
        assert!(again != places[1] && pool.bytes(places[1]).is_none(), "of another lap");
    }

    trait FirstBytes {
        fn first_bytes(&self, pool: &Pool) -> Vec<Option<u8>>;
    }

    impl FirstBytes for Vec<Extent> {
        /// Returns the first byte of each block, or `None` for a block that is no longer in the
        /// pool.
        fn first_bytes(&self, pool: &Pool) -> Vec<Option<u8>> {
            let first = |place: &Extent| pool.bytes(*place)?.first().copied();
            self.iter().map(first).collect()
        }
    }

    #[test]
    fn lender_of_unsuitable_dimensions_is_rejected() {
        #[derive(Debug)]
        struct UnsuitableLender(usize, usize);
        // SAFETY: this memory is never accessed: it is rejected for its dimensions.
        #[expect(unsafe_code, reason = "dimensions without memory")]
        unsafe impl SegmentLender for UnsuitableLender {
            fn base(&self) -> NonNull<u8> {
                NonNull::dangling()
            }
            fn segment_size(&self) -> usize {
                self.0
            }
            fn segment_count(&self) -> usize {
                self.1
            }
            fn has_arrived(&self, _: usize) -> bool {
                false
            }
            fn give_back(&self, _: usize) {}
        }
        let id = DbufId::new(9).unwrap();
        for (segment, segments) in [(5000, 4), (1 << 20, 4), (4096, 3), (4096, 1), (2048, 4)] {
            assert!(
                Pool::lent(id, Arc::new(UnsuitableLender(segment, segments))).is_err(),
                "{segment}"
            );
        }
    }
}
