//! Segments that are kept and not looked at, compressed meanwhile. [SL §10, FEATURES D16]
//!
//! A filter that reassembles or reorders pins segments for as long as a session takes, mostly for a
//! few blocks in each. [`Pool::cool`] compresses those that nobody has a lease on and gives their
//! pages back to the machine; the slot stays theirs. Whoever asks for one of their blocks, by
//! whatever way, finds it where it was: [`Pool::bytes`], `resolve`, `pin` and `lease` bring the
//! segment back first. That takes the time of unpacking a segment (1 MB: about a third of a
//! millisecond), and may answer that there is no memory.
//!
//! Why nobody sees bytes change or vanish. Invariants, which add to M1 to M8 of `pool`:
//! - K1 A segment is packed only in `cool`, which has `&mut Pool` (no slice of the pool lives, as
//!   in M3) and only while there are no leases on it (M4), and never the open one. Then `filled`
//!   is 0: from there on no place in it is found, so no slice and no lease is made.
//! - K2 Only `thaw` writes a packed segment, in the one thread that has the pool, before it raises
//!   `filled` again (Release, as M1): until then nobody reaches the bytes (K1), and no draft does,
//!   because drafts reach the open segment alone (M2).
//! - K3 The bytes are the same ones in the same place as before: pointers, pins and content ids
//!   stay what they were.

use super::Pool;
use crate::Fault;
use crate::slots::FREE;
use abi::Extent;
use std::collections::{BTreeMap, BTreeSet};

/// The packed segments, and the others observed at the last look.
#[derive(Debug, Default)]
pub(super) struct Cold {
    packed: BTreeMap<usize, Packed>,
    /// Slots whose pages were given back.
    holes: BTreeSet<usize>,
    /// Number of the segment that was kept in each slot at the last call.
    seen: BTreeMap<usize, u64>,
}

#[derive(Debug)]
struct Packed {
    bytes: Box<[u8]>,
    /// Bytes that it has when it is unpacked.
    length: usize,
}

/// The amount of packed memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Saved {
    /// Segments.
    pub segments: usize,
    /// Bytes that they have when they are unpacked.
    pub before: usize,
    /// Bytes that they have now.
    pub after: usize,
}

impl Pool {
    /// Compresses the segments that have been pinned since the last call, and not asked for since
    /// they were last brought back. To be called from time to time, or twice when memory is short.
    /// A segment is left as it is where somebody has a lease on it, where compressing saves less
    /// than a quarter, and where the memory is not ours to give back (lent, or shared with others).
    /// Answers all that is packed.
    pub fn cool(&mut self) -> Saved {
        let slots = &self.memory.slots;
        let open = self.end.get().checked_sub(1).map(|last| slots.slot_of_position(last));
        let mut seen = BTreeMap::new();
        for (slot, pins) in self.pins.iter().enumerate() {
            let number = slots.resident(slot);
            let is_kept = number != FREE && pins.get() > 0 && open != Some(slot);
            if is_kept {
                seen.insert(slot, number);
            }
        }
        let mut cold = std::mem::take(self.cold.get_mut());
        for (&slot, number) in &seen {
            if cold.seen.get(&slot) == Some(number) && !cold.packed.contains_key(&slot) {
                self.pack(&mut cold, slot);
            }
        }
        cold.seen = seen;
        *self.cold.get_mut() = cold;
        self.saved()
    }

    /// Returns the amount of memory that is packed now.
    #[must_use]
    pub fn saved(&self) -> Saved {
        let cold = self.cold.borrow();
        let add = |saved: Saved, packed: &Packed| Saved {
            segments: saved.segments + 1,
            before: saved.before + packed.length,
            after: saved.after + packed.bytes.len(),
        };
        cold.packed.values().fold(Saved::default(), add)
    }

    /// Packs a segment if it may be and if that saves memory.
    fn pack(&mut self, cold: &mut Cold, slot: usize) {
        let memory = &self.memory;
        let (Some(file), length) = (memory.file(), memory.slots.filled(slot)) else { return };
        let at = slot * memory.segment();
        if !memory.slots.is_unleased(slot) || length == 0 || memory.lender().is_some() {
            return;
        }
        // SAFETY: `filled` bytes from the first of the slot lie in the region and are written by
        // nobody (M1) as long as the pool is borrowed (M3).
        let bytes = unsafe { memory.region.bytes(at, length) };
        let bytes = lz4_flex::block::compress(bytes);
        // K1: hidden only when the pages are gone, which may be refused.
        if bytes.len() <= length / 4 * 3 && file.punch(at, memory.segment()).is_ok() {
            memory.slots.fill(slot, 0);
            cold.holes.insert(slot);
            cold.packed.insert(slot, Packed { bytes: bytes.into(), length });
        }
    }

    /// Brings back the segment that a place lies in, if it was packed, and finds the place.
    #[cold]
    pub(super) fn thaw(&self, place: Extent, fault: Fault) -> Result<(usize, usize), Fault> {
        let memory = &self.memory;
        let slot = memory.slots.slot_of_position(place.position());
        let Ok(mut cold) = self.cold.try_borrow_mut() else { return Err(fault) };
        if !cold.packed.contains_key(&slot) || !memory.slots.is_named(slot, place) {
            return Err(fault);
        }
        // A lack of memory is an answer, and no SIGBUS (T12).
        memory.populate(slot).map_err(|_| fault)?;
        cold.holes.remove(&slot);
        let Some(packed) = cold.packed.remove(&slot) else { return Err(fault) };
        cold.seen.remove(&slot);
        // SAFETY: the slot lies in the region, which is writable (it was punched), and `length` is
        // what was filled of it; nobody else reaches these bytes (K2).
        let room = unsafe { memory.region.bytes_mut(slot * memory.segment(), packed.length) };
        let unpacked = lz4_flex::block::decompress_into(&packed.bytes, room);
        if !unpacked.is_ok_and(|length| length == packed.length) {
            debug_assert!(false, "what was packed can be unpacked");
            return Err(fault);
        }
        memory.slots.fill(slot, packed.length as u64);
        memory.locate(place)
    }

    /// Returns true if the pages of this free slot have been given back.
    pub(super) fn is_hole(&self, slot: usize) -> bool {
        self.cold.borrow().holes.contains(&slot)
    }

    /// The pages of this slot are there again.
    pub(super) fn is_hole_no_more(&self, slot: usize) {
        self.cold.borrow_mut().holes.remove(&slot);
    }
}

impl Cold {
    /// A slot has been recycled: what was packed of it is needed no longer.
    pub(super) fn forget(&mut self, slot: usize) {
        self.packed.remove(&slot);
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::super::Config;
    use super::*;
    use crate::pool::Pin;
    use abi::{Class, DbufId, RichPointer};
    use testkit::Random;

    const SEGMENT: usize = 1 << 16;
    const SEGMENTS: usize = 16;

    fn pool() -> Pool {
        let config = Config { segment: SEGMENT, segments: SEGMENTS };
        Pool::new(DbufId::new(4).unwrap(), config).unwrap()
    }

    /// A whole segment of text, pinned.
    fn keep(pool: &Pool, random: &mut Random) -> (Extent, Pin, Vec<u8>) {
        let words: Vec<Vec<u8>> = (0..50).map(|_| random.bytes(24)).collect();
        let mut text = Vec::new();
        while text.len() < SEGMENT {
            text.extend_from_slice(random.pick::<Vec<u8>>(&words));
        }
        text.truncate(SEGMENT);
        let mut draft = pool.draft(SEGMENT, SEGMENT).unwrap();
        draft.copy_from_slice(&text);
        let place = draft.commit(SEGMENT);
        (place, pool.pin(place).unwrap(), text)
    }

    fn resident(pool: &Pool) -> usize {
        usize::try_from(pool.file().unwrap().resident().unwrap()).unwrap()
    }

    #[test]
    fn d16_what_is_kept_and_cold_takes_less_memory_and_comes_back_when_it_is_asked_for() {
        let mut random = Random::replayable();
        let mut pool = pool();
        let kept: Vec<_> = (0..8).map(|_| keep(&pool, &mut random)).collect();
        pool.turn();
        let before = resident(&pool);
        assert_eq!(pool.cool(), Saved::default(), "kept for no time yet");
        let saved = pool.cool();
        // The last one is open still.
        assert_eq!((saved.segments, saved.before), (7, 7 * SEGMENT));
        let after = resident(&pool) + saved.after;
        println!("8 segments: {before} bytes before, {after} after ({} packed)", saved.after);
        assert!(after < before / 2, "{before} {after}");
        assert_eq!(resident(&pool), before - 7 * SEGMENT, "the pages are with the machine again");
        for (number, (place, _, text)) in kept.iter().enumerate() {
            let (from, count) = (random.within(0..SEGMENT - 100), random.within(1..100));
            let part = place.within(from as u32, count as u32);
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
        assert_eq!(pool.saved(), Saved::default());
        assert_eq!(resident(&pool), before);
        for (_, pin, _) in kept {
            assert!(pool.unpin(pin));
        }
        assert_eq!(pool.mistakes(), 0);
    }

    #[test]
    fn what_somebody_looks_at_or_cannot_be_given_back_is_left() {
        let mut random = Random::new(2);
        let mut pool = pool();
        let leased = keep(&pool, &mut random);
        let lease = pool.lease(leased.0).unwrap();
        let mut noise = pool.draft(SEGMENT, SEGMENT).unwrap();
        noise.copy_from_slice(&random.bytes(SEGMENT));
        let noise = noise.commit(SEGMENT);
        let _pin = pool.pin(noise).unwrap();
        let text = keep(&pool, &mut random);
        let _open = keep(&pool, &mut random);
        assert_eq!((pool.cool().segments, pool.cool().segments), (0, 1), "the text alone");
        assert_eq!(lease.bytes(leased.0).unwrap(), leased.2);
        assert!(pool.bytes(noise).is_some());
        // Asked for: kept warm for one call more.
        assert_eq!(pool.bytes(text.0).unwrap(), text.2);
        assert_eq!((pool.cool().segments, pool.cool().segments), (0, 1));
        // Sealed memory, which others read, cannot be punched.
        let mut shared = self::pool();
        let kept = [keep(&shared, &mut random), keep(&shared, &mut random)];
        shared.file().unwrap().seal(sys::memory::Seals::READER).unwrap();
        assert_eq!((shared.cool().segments, shared.cool().segments), (0, 0));
        assert_eq!(shared.bytes(kept[0].0).unwrap(), kept[0].2);
    }

    /// The model is a table of what was written: whatever is kept is found, whatever is not kept
    /// is not, in any order of all that one can do.
    #[test]
    fn in_any_order_what_is_kept_is_found_and_nothing_else() {
        let mut random = Random::replayable();
        let mut pool = pool();
        let mut kept: Vec<(Extent, Pin, Vec<u8>)> = Vec::new();
        let mut gone: Vec<Extent> = Vec::new();
        let mut packed = 0;
        for _ in 0..1000 {
            match random.below(6) {
                0 if pool.usage().free > 0 => kept.push(keep(&pool, &mut random)),
                1 if !kept.is_empty() => {
                    let (place, pin, _) = kept.swap_remove(random.within(0..kept.len()));
                    assert!(pool.unpin(pin));
                    gone.push(place);
                }
                2 | 3 => packed += pool.cool().segments,
                4 => {
                    pool.turn();
                    let still = |place: &&Extent| pool.bytes(**place).is_some();
                    // What was unpinned may lie in the open segment.
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
