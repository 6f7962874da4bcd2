//! In-place edits of blocks that no other party can read. [SL §6.1], [Th §5.3.1]
//!
//! M1 to M8 are the invariants of `pool`. M9 is the one exception to M1:
//! - M9 Bytes below `filled` are written only through an [`EditedBlock`], which borrows the pool
//!   mutably, and is created only while the slot's `leases` is 0 (loaded with Acquire: the last
//!   read by a former lease holder happens before the write). While an `EditedBlock` lives, 1. no
//!   slice of [`Pool::bytes`] or [`Pool::segment`], no draft and no other `EditedBlock` is alive,
//!   and none can be created, because all borrow the pool; 2. no lease exists, hence no thread has
//!   a batch of a crossing that points there (C5). No lease can be created either: not from the
//!   pool (1), not from a lease or a batch (there is none), and not from the slice itself, which
//!   `PoolMemory::lease_slice` refuses while `editing` is set; 3. no other process reads: memory
//!   whose file was ever exposed is refused, as is lent memory, and frozen memory has no pool.
//!
//! Soundness does not depend on whether a party *expects* the old bytes later. A pin promises the
//! old bytes to a caller (M5), so pinned blocks are refused as well, except the part of a segment
//! that a source has already emitted ([`Pool::set_needed_start`]). The pool cannot detect blocks
//! that are queued on an arc; its caller checks for them (`space::edit` in the crate `runtime`).

use super::{Pool, SegmentPin};
use abi::Extent;
use std::ops::{Deref, DerefMut};

/// A block open for in-place editing, which no other party can read. Later readers see the new
/// bytes.
#[derive(Debug)]
#[must_use]
pub struct EditedBlock<'p> {
    pool: &'p mut Pool,
    at: usize,
    len: usize,
}

impl Pool {
    /// Opens a block for in-place editing. Returns `None` if the block is not in the pool, its
    /// segment is leased or pinned, or other parties may read the memory.
    pub fn edit(&mut self, place: Extent) -> Option<EditedBlock<'_>> {
        let at = self.editable_offset(place)?;
        self.memory.editing.set(true);
        Some(EditedBlock { pool: self, at, len: place.length() as usize })
    }

    /// Declares that the holder of `pin` no longer needs the bytes of the pinned segment before
    /// this block. A source calls this after it has emitted those bytes. Has no effect if the
    /// segment has other pins, and stops applying when another pin is added.
    pub fn set_needed_start(&self, pin: SegmentPin, place: Extent) {
        let Ok((slot, at)) = self.memory.locate(place) else { return };
        let only = self.pins.get(slot).is_some_and(|pins| pins.get() == 1);
        if let (true, true, Some(needed)) =
            (only, self.memory.slots.segment_number_in(slot) == pin.0, self.needed.get(slot))
        {
            needed.set(at);
        }
    }

    /// Returns the offset in the region of a block that may be edited in place (M9), or `None` if
    /// the block may not be edited.
    fn editable_offset(&self, place: Extent) -> Option<usize> {
        let (slot, at) = self.memory.locate(place).ok()?;
        let end = at + place.length() as usize;
        let is_pinned = match self.pins.get(slot)?.get() {
            0 => false,
            1 => end > self.needed.get(slot)?.get(),
            _ => true,
        };
        let is_private = !self.is_exposed.get() && self.memory.lender().is_none();
        // M9: `is_unleased` loads with Acquire.
        (is_private && !is_pinned && self.memory.slots.is_unleased(slot)).then_some(at)
    }
}

impl Deref for EditedBlock<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `locate` found the bytes inside the region and below `filled`; no other code
        // writes or reads them (M9), and this slice borrows the only owner.
        unsafe { self.pool.memory.bytes(self.at, self.len) }
    }
}

impl DerefMut for EditedBlock<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the region of a pool that is not lent is mapped writable, and this
        // slice borrows the only owner mutably.
        unsafe { self.pool.memory.region.bytes_mut(self.at, self.len) }
    }
}

impl Drop for EditedBlock<'_> {
    fn drop(&mut self) {
        self.pool.memory.editing.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::super::PoolConfig;
    use super::*;
    use abi::DbufId;

    fn create_pool_with_block() -> (Pool, Extent) {
        let config = PoolConfig { segment: 1 << 13, segments: 4 };
        let pool = Pool::new(DbufId::new(7).unwrap(), config).unwrap();
        let fill = |room: &mut [u8]| {
            room.copy_from_slice(b"abcd");
            4
        };
        let place = pool.append(4, fill).unwrap().0;
        (pool, place)
    }

    #[test]
    fn d15_unshared_block_is_edited_in_place() {
        let (mut pool, place) = create_pool_with_block();
        pool.edit(place.subrange(1, 2)).unwrap().copy_from_slice(b"BC");
        assert_eq!(pool.bytes(place), Some(&b"aBCd"[..]));
    }

    #[test]
    fn d15_leased_pinned_or_exposed_block_is_not_edited() {
        let (mut pool, place) = create_pool_with_block();
        let lease = pool.lease(place).unwrap();
        assert!(pool.edit(place).is_none(), "leased");
        assert_eq!(lease.bytes(place), Ok(&b"abcd"[..]));
        drop(lease);
        let pin = pool.pin(place).unwrap();
        assert!(pool.edit(place).is_none(), "pinned");
        pool.set_needed_start(pin, place.subrange(2, 2));
        assert!(pool.edit(place.subrange(0, 2)).is_some(), "before what is needed");
        assert!(pool.edit(place.subrange(1, 2)).is_none(), "some of it is needed");
        let held = pool.pin(place).unwrap();
        assert!(pool.edit(place.subrange(0, 2)).is_none(), "somebody else pinned it");
        pool.unpin(held);
        assert!(pool.edit(place.subrange(0, 2)).is_none(), "until that is said again");
        pool.unpin(pin);
        assert!(pool.edit(place).is_some());
        assert!(pool.edit(Extent::new(1 << 20, 4)).is_none(), "not here");
        if !cfg!(miri) {
            assert!(pool.file().is_some());
            assert!(pool.edit(place).is_none(), "its file was given away");
        }
    }

    #[test]
    fn block_being_edited_yields_no_lease() {
        let (mut pool, place) = create_pool_with_block();
        let memory = pool.memory.clone();
        let editing = pool.edit(place).unwrap();
        assert!(memory.lease_slice(&editing).is_none());
        drop(editing);
        assert!(memory.lease_slice(pool.bytes(place).unwrap()).is_some());
    }
}
