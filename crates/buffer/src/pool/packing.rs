//! Compression of segments that are pinned but not read. [SL §10, FEATURES D16]
//!
//! A filter that reassembles or reorders blocks pins segments for the duration of a session,
//! usually for a few blocks in each segment. [`Pool::compress_idle_segments`] compresses such
//! segments, unless they are leased, and returns their pages to the kernel; their slots stay
//! reserved. Any access to a block of a packed segment ([`Pool::bytes`], `resolve`, `pin`, `lease`)
//! unpacks the segment first. Unpacking takes about a third of a millisecond for 1 MB, and fails if
//! memory is short.
//!
//! No reader sees bytes change or vanish, by these invariants, which extend M1 to M8 of `pool`:
//! - K1 A segment is packed only in `compress_idle_segments`, which has `&mut Pool` (no slice of
//!   the pool lives, as in M3), only while it has no leases (M4), and never while it is open. Then
//!   `filled` is 0: no block in the segment is located any more, so no slice and no lease is
//!   created.
//! - K2 Only `unpack` writes a packed segment, in the thread that owns the pool, before `unpack`
//!   raises `filled` again (Release, as M1). Until then the bytes are unreachable (K1), also for
//!   drafts, which access only the open segment (M2).
//! - K3 Unpacking restores the same bytes at the same positions, so pointers, pins and content ids
//!   stay valid.

use super::Pool;
use crate::Fault;
use crate::compression;
use crate::slots::FREE_SLOT;
use abi::Extent;
use std::collections::{BTreeMap, BTreeSet};

/// The packed segments of a pool, and the segments that are candidates for packing.
#[derive(Debug, Default)]
pub(super) struct PackedSegments {
    packed: BTreeMap<usize, PackedSegment>,
    /// Slots of packed segments whose pages have been returned to the kernel.
    holes: BTreeSet<usize>,
    /// The segments that were pinned at the last [`Pool::compress_idle_segments`]: the number of
    /// the segment by slot.
    pinned_before: BTreeMap<usize, u64>,
}

/// The compressed bytes of one segment, with their original length.
#[derive(Debug)]
struct PackedSegment {
    bytes: Box<[u8]>,
    /// Length of the segment in bytes before compression.
    length: usize,
}

/// The total size of the packed segments, before and after compression.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PackedSize {
    /// Number of packed segments.
    pub segments: usize,
    /// Uncompressed size of the packed segments in bytes.
    pub before: usize,
    /// Compressed size of the packed segments in bytes.
    pub after: usize,
}

impl Pool {
    /// Compresses the segments that have stayed pinned since the last call without being unpacked.
    /// Call this periodically, or twice when memory is short. Skips the open segment, leased
    /// segments, segments that would shrink by less than a quarter, and memory that cannot be
    /// returned to the kernel (lent or sealed). Returns the total size of all packed segments.
    pub fn compress_idle_segments(&mut self) -> PackedSize {
        let slots = &self.memory.slots;
        let open = self.end.get().checked_sub(1).map(|last| slots.slot_of_position(last));
        let mut pinned = BTreeMap::new();
        for (slot, pins) in self.pins.iter().enumerate() {
            let number = slots.segment_number_in(slot);
            let is_pinned = number != FREE_SLOT && pins.get() > 0 && open != Some(slot);
            if is_pinned {
                pinned.insert(slot, number);
            }
        }
        let mut cold = std::mem::take(self.cold.get_mut());
        for (&slot, number) in &pinned {
            if cold.pinned_before.get(&slot) == Some(number) && !cold.packed.contains_key(&slot) {
                self.pack(&mut cold, slot);
            }
        }
        cold.pinned_before = pinned;
        *self.cold.get_mut() = cold;
        self.packed_size()
    }

    /// Returns the number and sizes of the packed segments.
    #[must_use]
    pub fn packed_size(&self) -> PackedSize {
        let cold = self.cold.borrow();
        let add = |saved: PackedSize, packed: &PackedSegment| PackedSize {
            segments: saved.segments + 1,
            before: saved.before + packed.length,
            after: saved.after + packed.bytes.len(),
        };
        cold.packed.values().fold(PackedSize::default(), add)
    }

    /// Compresses the segment in a slot, if the invariants permit it and compression saves memory.
    fn pack(&mut self, cold: &mut PackedSegments, slot: usize) {
        let memory = &self.memory;
        let (Some(file), length) = (memory.file(), memory.slots.filled_len(slot)) else { return };
        let at = slot * memory.segment_size();
        if !memory.slots.is_unleased(slot) || length == 0 || memory.lender().is_some() {
            return;
        }
        // SAFETY: `filled` bytes from the start of the slot are in the region and are not written
        // (M1) while the pool is borrowed (M3).
        let bytes = unsafe { memory.region.bytes(at, length) };
        let Some(bytes) = compression::compress(bytes) else { return };
        // K1: unpublished only after the pages are returned, because the kernel may refuse to take
        // them.
        if file.punch_hole(at, memory.segment_size()).is_ok() {
            memory.slots.set_filled_len(slot, 0);
            cold.holes.insert(slot);
            cold.packed.insert(slot, PackedSegment { bytes, length });
        }
    }

    /// Unpacks the segment that contains a block, and returns the block's slot and offset. Fails
    /// with `fault` if the segment is not packed, cannot be unpacked now, or does not contain the
    /// block.
    #[cold]
    pub(super) fn unpack(&self, place: Extent, fault: Fault) -> Result<(usize, usize), Fault> {
        let memory = &self.memory;
        let slot = memory.slots.slot_of_position(place.position());
        let Ok(mut cold) = self.cold.try_borrow_mut() else { return Err(fault) };
        if !cold.packed.contains_key(&slot) || !memory.slots.contains_position(slot, place) {
            return Err(fault);
        }
        // A lack of memory is an error here, and not SIGBUS later (T12).
        memory.populate(slot).map_err(|_| fault)?;
        cold.holes.remove(&slot);
        let Some(packed) = cold.packed.remove(&slot) else { return Err(fault) };
        cold.pinned_before.remove(&slot);
        // SAFETY: the slot is in the region, which is writable (its file was punched), and `length`
        // is its filled length; no other code accesses these bytes (K2).
        let room = unsafe { memory.region.bytes_mut(slot * memory.segment_size(), packed.length) };
        if !compression::decompress(&packed.bytes, room) {
            debug_assert!(false, "a packed segment does not unpack");
            return Err(fault);
        }
        memory.slots.set_filled_len(slot, packed.length as u64);
        memory.locate(place)
    }

    /// Returns true if this slot has no pages, because they have been returned to the kernel.
    pub(super) fn has_no_pages(&self, slot: usize) -> bool {
        self.cold.borrow().holes.contains(&slot)
    }

    /// Records that the slot has pages again.
    pub(super) fn record_backed_slot(&self, slot: usize) {
        self.cold.borrow_mut().holes.remove(&slot);
    }
}

impl PackedSegments {
    /// Drops the packed bytes of a recycled slot.
    pub(super) fn drop_packed_bytes(&mut self, slot: usize) {
        self.packed.remove(&slot);
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::super::PoolConfig;
    use super::*;
    use crate::pool::SegmentPin;
    use abi::{Class, DbufId, RichPointer};
    use testkit::Random;

    const SEGMENT_SIZE: usize = 1 << 16;
    const SEGMENT_COUNT: usize = 16;

    fn create_pool() -> Pool {
        let config = PoolConfig { segment: SEGMENT_SIZE, segments: SEGMENT_COUNT };
        Pool::new(DbufId::new(4).unwrap(), config).unwrap()
    }

    /// Fills an entire segment with text and pins it.
    fn pin_full_segment(pool: &Pool, random: &mut Random) -> (Extent, SegmentPin, Vec<u8>) {
        let words: Vec<Vec<u8>> = (0..50).map(|_| random.bytes(24)).collect();
        let mut text = Vec::new();
        while text.len() < SEGMENT_SIZE {
            text.extend_from_slice(random.pick::<Vec<u8>>(&words));
        }
        text.truncate(SEGMENT_SIZE);
        let mut draft = pool.draft(SEGMENT_SIZE, SEGMENT_SIZE).unwrap();
        draft.copy_from_slice(&text);
        let place = draft.commit(SEGMENT_SIZE);
        (place, pool.pin(place).unwrap(), text)
    }

    fn resident_bytes(pool: &Pool) -> usize {
        usize::try_from(pool.file().unwrap().allocated_bytes().unwrap()).unwrap()
    }

    #[test]
    fn d16_pinned_cold_segments_shrink_and_unpack_on_access() {
        let mut random = Random::with_replayable_seed();
        let mut pool = create_pool();
        let kept: Vec<_> = (0..8).map(|_| pin_full_segment(&pool, &mut random)).collect();
        pool.end_pass();
        let before = resident_bytes(&pool);
        assert_eq!(
            pool.compress_idle_segments(),
            PackedSize::default(),
            "first call only remembers"
        );
        let saved = pool.compress_idle_segments();
        // The last segment is still open.
        assert_eq!((saved.segments, saved.before), (7, 7 * SEGMENT_SIZE));
        let after = resident_bytes(&pool) + saved.after;
        println!("8 segments: {before} bytes before, {after} after ({} packed)", saved.after);
        assert!(after < before / 2, "{before} {after}");
        assert_eq!(
            resident_bytes(&pool),
            before - 7 * SEGMENT_SIZE,
            "the pages are with the machine again"
        );
        for (number, (place, _, text)) in kept.iter().enumerate() {
            let (from, count) = (random.within(0..SEGMENT_SIZE - 100), random.within(1..100));
            let part = place.subrange(from as u32, count as u32);
            let pointer = RichPointer::new(pool.id(), part, Class::YES);
            let bytes = match number % 4 {
                0 => pool.bytes(part).unwrap().to_vec(),
                1 => pool.resolve(pointer).unwrap().to_vec(),
                2 => pool.segment(pointer).unwrap().bytes(pointer).unwrap().to_vec(),
                _ => pool.lease(part).unwrap().bytes(part).unwrap().to_vec(),
            };
            assert_eq!(bytes, text[from..from + count], "segment {number}");
            assert_eq!(pool.bytes(*place).unwrap(), text, "all of it");
        }
        assert_eq!(pool.packed_size(), PackedSize::default());
        assert_eq!(resident_bytes(&pool), before);
        for (_, pin, _) in kept {
            assert!(pool.unpin(pin));
        }
        assert_eq!(pool.invalid_unpin_count(), 0);
    }

    #[test]
    fn leased_incompressible_and_sealed_segments_stay_unpacked() {
        let mut random = Random::new(2);
        let mut pool = create_pool();
        let leased = pin_full_segment(&pool, &mut random);
        let lease = pool.lease(leased.0).unwrap();
        let mut noise = pool.draft(SEGMENT_SIZE, SEGMENT_SIZE).unwrap();
        noise.copy_from_slice(&random.bytes(SEGMENT_SIZE));
        let noise = noise.commit(SEGMENT_SIZE);
        let _pin = pool.pin(noise).unwrap();
        let text = pin_full_segment(&pool, &mut random);
        let _open = pin_full_segment(&pool, &mut random);
        assert_eq!(
            (pool.compress_idle_segments().segments, pool.compress_idle_segments().segments),
            (0, 1),
            "the text alone"
        );
        assert_eq!(lease.bytes(leased.0).unwrap(), leased.2);
        assert!(pool.bytes(noise).is_some());
        // An accessed segment stays unpacked for one more call.
        assert_eq!(pool.bytes(text.0).unwrap(), text.2);
        assert_eq!(
            (pool.compress_idle_segments().segments, pool.compress_idle_segments().segments),
            (0, 1)
        );
        // Sealed memory, which other processes may read, cannot be punched.
        let mut shared = create_pool();
        let kept = [pin_full_segment(&shared, &mut random), pin_full_segment(&shared, &mut random)];
        shared.file().unwrap().seal(sys::memory::Seals::READER).unwrap();
        assert_eq!(
            (shared.compress_idle_segments().segments, shared.compress_idle_segments().segments),
            (0, 0)
        );
        assert_eq!(shared.bytes(kept[0].0).unwrap(), kept[0].2);
    }

    /// In a random order of operations, pinned blocks keep their bytes, and unpinned blocks are no
    /// longer found once their segment is reused.
    #[test]
    fn random_operations_keep_exactly_the_pinned_blocks() {
        let mut random = Random::with_replayable_seed();
        let mut pool = create_pool();
        let mut kept: Vec<(Extent, SegmentPin, Vec<u8>)> = Vec::new();
        let mut gone: Vec<Extent> = Vec::new();
        let mut packed = 0;
        for _ in 0..1000 {
            match random.below(6) {
                0 if pool.usage().free > 0 => kept.push(pin_full_segment(&pool, &mut random)),
                1 if !kept.is_empty() => {
                    let (place, pin, _) = kept.swap_remove(random.within(0..kept.len()));
                    assert!(pool.unpin(pin));
                    gone.push(place);
                }
                2 | 3 => packed += pool.compress_idle_segments().segments,
                4 => {
                    pool.end_pass();
                    let still = |place: &&Extent| pool.bytes(**place).is_some();
                    // An unpinned block may still be found if it is in the open segment.
                    assert!(gone.iter().filter(still).count() <= 1);
                    gone.retain(|place| pool.bytes(*place).is_some());
                }
                _ if !kept.is_empty() => {
                    let (place, _, text) = random.pick(&kept);
                    assert_eq!(pool.bytes(*place), Some(&text[..]));
                }
                _ => {}
            }
        }
        assert!(packed > 100, "{packed}");
        for (place, _, text) in &kept {
            assert_eq!(pool.bytes(*place), Some(&text[..]));
        }
    }
}
