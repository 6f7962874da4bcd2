//! Pools over memory that another party fills: a packet ring whose blocks the kernel writes. [SL
//! §5.5: the driver's own ring as a dbuf]
//!
//! In: a [`Lender`], whose segments arrive one after the other, in order. Out: an arrived segment
//! as a draft over all its bytes, so that whoever knows its form can put right what must not stay
//! (a tag that the device took out); once committed it is a segment like any other: rich pointers
//! name it, leases keep it, nothing is copied. It goes back to the lender at the end of the first
//! turn in which nobody keeps it. Where segments come in order, one that is kept for long stops the
//! lender when it comes round to it: spaces copy what they hold (CONTRACT 12). Where they come in
//! any order (frames of AF_XDP), whoever hears of one names it ([`Pool::arrived_at`]); its number
//! is then that of the lap of its own slot, so that positions are never used twice.

use super::{Draft, Memory, Pool};
use crate::slots::FREE;
use abi::{BLOCK_MAX, DbufId};
use std::cell::Cell;
use std::sync::Arc;
use sys::memory::Lender;

impl Pool {
    /// A pool with id `id` over what a lender lends. Refused for segments that a rich pointer
    /// cannot describe, or that are no power of two.
    pub fn lent(id: DbufId, lender: Arc<dyn Lender>) -> sys::Result<Self> {
        let (segment, segments) = (lender.segment(), lender.segments());
        let fits = segment.is_power_of_two() && (abi::ring::PAGE..=BLOCK_MAX).contains(&segment);
        if !fits || !segments.is_power_of_two() || segments < 2 {
            let target = format!("{segments} segments of {segment} bytes");
            return Err(sys::Error::new("lend", target, INVALID));
        }
        let laps = vec![Cell::new(0); segments].into();
        Ok(Self { laps, ..Self::over(Memory::lent(id, lender), segments) })
    }

    /// Returns true if another party fills this pool: nothing can be appended to it, and what is
    /// held must soon be copied.
    #[inline]
    #[must_use]
    pub fn is_lent(&self) -> bool {
        self.memory.lender().is_some()
    }

    /// The next segment that has arrived, all of it open for writing. `None`: none has, or the next
    /// is still kept by somebody since it was here the last time.
    pub fn arrived(&self) -> Option<Draft<'_>> {
        let lender = self.memory.lender()?;
        let slots = &self.memory.slots;
        let number = self.fresh.get();
        let slot = slots.slot_of(number);
        if self.drafting.get() || slots.resident(slot) != FREE || !lender.arrived(slot) {
            return None;
        }
        // M3: free since a turn, or since the pool was made. M7: arrived.
        slots.open(slot, number);
        self.fresh.set(number + 1);
        self.drafting.set(true);
        let len = self.memory.segment();
        let position = number * len as u64;
        Some(Draft { pool: self, position, at: slots.offset(position), len })
    }

    /// The segment in this slot, which has arrived, all of it open for writing: of a lender whose
    /// segments come in any order, all of which are taken by this call. `None`: it has not arrived,
    /// or is here already.
    pub fn arrived_at(&self, slot: usize) -> Option<Draft<'_>> {
        let lender = self.memory.lender()?;
        let slots = &self.memory.slots;
        let lap = self.laps.get(slot)?;
        if self.drafting.get() || slots.resident(slot) != FREE || !lender.arrived(slot) {
            return None;
        }
        // M3: free since a turn, or since the pool was made. M7: arrived.
        let number = lap.get() * slots.len() as u64 + slot as u64;
        lap.set(lap.get() + 1);
        slots.open(slot, number);
        self.out.borrow_mut().push(slot);
        self.drafting.set(true);
        let len = self.memory.segment();
        let position = number * len as u64;
        Some(Draft { pool: self, position, at: slots.offset(position), len })
    }

    /// Returns the segments that came by [`Pool::arrived_at`] and have not been given back.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.out.borrow().len()
    }

    /// Returns true if the slot of the next segment is still leased: the lender waits for it.
    #[must_use]
    pub fn next_is_kept(&self) -> bool {
        let slots = &self.memory.slots;
        self.is_lent() && slots.resident(slots.slot_of(self.fresh.get())) != FREE
    }

    /// Gives back to the lender what nobody keeps.
    pub(super) fn return_lent(&mut self) {
        let Some(lender) = self.memory.lender() else { return };
        let slots = &self.memory.slots;
        let pins = &self.pins;
        self.out.get_mut().retain(|&slot| {
            let is_pinned = pins.get(slot).is_some_and(|pins| pins.get() > 0);
            // M3: `&mut self`. M4: `recycle` refuses while there are leases.
            let goes = !is_pinned && slots.recycle(slot);
            if goes {
                lender.give_back(slot);
            }
            !goes
        });
        let oldest = self.oldest.get();
        let mut kept = self.fresh.get();
        for number in (oldest..self.fresh.get()).rev() {
            let slot = slots.slot_of(number);
            if slots.resident(slot) != number {
                continue;
            }
            let is_pinned = self.pins.get(slot).is_some_and(|pins| pins.get() > 0);
            // M3: `&mut self`. M4: `recycle` refuses while there are leases.
            if !is_pinned && slots.recycle(slot) {
                lender.give_back(slot);
            } else {
                kept = number;
            }
        }
        self.oldest.set(kept);
    }
}

/// EINVAL.
const INVALID: i32 = 22;

#[cfg(test)]
mod tests {
    use super::*;
    use abi::Extent;
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use sys::memory::Mapping;

    const SEGMENT: usize = 4096;
    const SEGMENTS: usize = 4;

    /// A party that fills segments when it is told to.
    #[derive(Debug)]
    struct Filler {
        memory: Mapping,
        /// A bit for each segment that is filled.
        there: AtomicUsize,
        /// Segments that it has filled, then those that it got back.
        filled: AtomicUsize,
        returned: AtomicUsize,
    }

    // SAFETY: the mapping lives as long as the value; it is written only by `fill`, which the tests
    // call for segments that are not out.
    #[expect(unsafe_code, reason = "stands for the kernel")]
    unsafe impl Lender for Filler {
        fn base(&self) -> NonNull<u8> {
            self.memory.base()
        }

        fn segment(&self) -> usize {
            SEGMENT
        }

        fn segments(&self) -> usize {
            SEGMENTS
        }

        fn arrived(&self, slot: usize) -> bool {
            self.there.load(Ordering::Acquire) & (1 << slot) != 0
        }

        fn give_back(&self, slot: usize) {
            self.there.fetch_and(!(1 << slot), Ordering::Release);
            self.returned.fetch_add(1, Ordering::Release);
        }
    }

    impl Filler {
        fn fill(&self, byte: u8) {
            let number = self.filled.load(Ordering::Relaxed);
            let slot = number % SEGMENTS;
            assert!(!self.arrived(slot), "no segment free");
            let at = self.memory.base().as_ptr().wrapping_add(slot * SEGMENT);
            #[expect(unsafe_code, reason = "stands for the kernel")]
            // SAFETY: the segment lies in the mapping and is not out (asserted).
            unsafe {
                at.write_bytes(byte, SEGMENT);
            }
            self.there.fetch_or(1 << slot, Ordering::Release);
            self.filled.store(number + 1, Ordering::Relaxed);
        }

        fn returned(&self) -> usize {
            self.returned.load(Ordering::Acquire)
        }
    }

    fn lent() -> (Arc<Filler>, Pool) {
        let memory = Mapping::anonymous(SEGMENT * SEGMENTS).unwrap();
        let zero = || AtomicUsize::new(0);
        let filler = Arc::new(Filler { memory, there: zero(), filled: zero(), returned: zero() });
        let pool = Pool::lent(DbufId::new(9).unwrap(), filler.clone()).unwrap();
        (filler, pool)
    }

    #[test]
    fn what_arrives_lies_where_it_was_written_and_goes_back() {
        let (filler, mut pool) = lent();
        assert!(pool.is_lent() && pool.arrived().is_none());
        assert!(pool.draft(1, 1).is_none(), "nobody but the lender fills it");
        for round in 0..3 * SEGMENTS {
            let byte = u8::try_from(round).unwrap();
            filler.fill(byte);
            let mut draft = pool.arrived().unwrap();
            draft[0] = 99;
            let place = draft.commit(SEGMENT);
            assert!(pool.arrived().is_none());
            assert_eq!(pool.bytes(place.within(1, 9)).unwrap(), [byte; 9]);
            assert_eq!(pool.bytes(place.within(0, 2)).unwrap(), [99, byte]);
            assert_eq!(filler.returned(), round);
            pool.turn();
            assert_eq!(filler.returned(), round + 1);
            assert!(pool.bytes(place).is_none(), "gone");
        }
    }

    #[test]
    fn what_is_kept_does_not_go_back() {
        let (filler, mut pool) = lent();
        let mut places = Vec::new();
        for byte in 0..3 {
            filler.fill(byte);
            places.push(pool.arrived().unwrap().commit(SEGMENT));
        }
        let pin = pool.pin(places[0]).unwrap();
        let lease = pool.lease(places[2]).unwrap();
        assert!(!pool.next_is_kept());
        filler.fill(3);
        places.push(pool.arrived().unwrap().commit(SEGMENT));
        assert!(pool.next_is_kept(), "all are out");
        pool.turn();
        assert_eq!(filler.returned(), 2, "the one between, and the last");
        assert_eq!(pool.bytes(places[0].within(0, 1)).unwrap(), [0]);
        assert_eq!(lease.bytes(places[2].within(0, 1)).unwrap(), [2]);
        assert!(pool.unpin(pin));
        pool.turn();
        assert_eq!(filler.returned(), 3);
        drop(lease);
        pool.turn();
        pool.turn();
        assert_eq!(filler.returned(), 4);
        filler.fill(7);
        assert_eq!(pool.arrived().unwrap()[5], 7, "and on it goes");
    }

    #[test]
    fn segments_that_come_in_any_order_are_named_by_who_hears_of_them() {
        let (filler, mut pool) = lent();
        assert!(pool.arrived_at(2).is_none() && pool.arrived_at(SEGMENTS).is_none());
        let mut places = Vec::new();
        for byte in 0..4 {
            filler.fill(byte);
        }
        for slot in [2, 0, 3] {
            places.push(pool.arrived_at(slot).unwrap().commit(SEGMENT));
            assert!(pool.arrived_at(slot).is_none(), "it is here already");
        }
        assert_eq!(places.each_bytes(&pool), [Some(2), Some(0), Some(3)]);
        let lease = pool.lease(places[1]).unwrap();
        pool.turn();
        assert_eq!((filler.returned(), pool.kept()), (2, 1));
        assert_eq!(places.each_bytes(&pool), [None, Some(0), None]);
        drop(lease);
        drop(pool.arrived_at(1).unwrap());
        pool.turn();
        assert_eq!((filler.returned(), pool.kept()), (4, 0), "what was looked at, too");
        filler.fill(9);
        let again = pool.arrived_at(0).unwrap().commit(SEGMENT);
        assert!(again != places[1] && pool.bytes(places[1]).is_none(), "of another lap");
    }

    trait EachBytes {
        fn each_bytes(&self, pool: &Pool) -> Vec<Option<u8>>;
    }

    impl EachBytes for Vec<Extent> {
        /// The first byte of each that is here.
        fn each_bytes(&self, pool: &Pool) -> Vec<Option<u8>> {
            let first = |place: &Extent| pool.bytes(*place)?.first().copied();
            self.iter().map(first).collect()
        }
    }

    #[test]
    fn memory_of_a_strange_shape_is_refused() {
        #[derive(Debug)]
        struct Strange(usize, usize);
        // SAFETY: nobody ever reaches this memory: it is refused for its shape.
        #[expect(unsafe_code, reason = "a shape without memory")]
        unsafe impl Lender for Strange {
            fn base(&self) -> NonNull<u8> {
                NonNull::dangling()
            }
            fn segment(&self) -> usize {
                self.0
            }
            fn segments(&self) -> usize {
                self.1
            }
            fn arrived(&self, _: usize) -> bool {
                false
            }
            fn give_back(&self, _: usize) {}
        }
        let id = DbufId::new(9).unwrap();
        for (segment, segments) in [(5000, 4), (1 << 20, 4), (4096, 3), (4096, 1), (2048, 4)] {
            assert!(Pool::lent(id, Arc::new(Strange(segment, segments))).is_err(), "{segment}");
        }
    }
}
