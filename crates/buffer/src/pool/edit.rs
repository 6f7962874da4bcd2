//! Bytes that are changed where they lie, because nobody else has them. [SL §6.1], [Th §5.3.1]
//!
//! The invariants M1 to M8 are those of `pool`. M1 has one exception, and this is it:
//! - M9 Bytes below `filled` are written only through an [`Editing`], which borrows the pool
//!   mutably, and is made only while `leases` of their slot are 0 (loaded with Acquire: the last
//!   look of who had one comes before the write). So while it lives
//!   1. no slice of [`Pool::bytes`] or [`Pool::segment`], no draft and no other `Editing` is alive,
//!      and none can come into being: all of them borrow the pool;
//!   2. no lease exists, hence no batch of a crossing that points there (C5), in whatever thread;
//!      and none can be made: not from the pool (1), not from a lease or a batch (there is none),
//!      not from the slice itself, which `Memory::around_slice` refuses while `editing` is set;
//!   3. no other process looks: memory whose file was ever handed out is refused, as is memory that
//!      is lent, and frozen memory has no pool.
//!
//! Whether somebody *expects* the old bytes later is another matter than whether somebody has them
//! now: a pin is a promise to a caller (M5), so what is pinned is refused as well, but for what a
//! source has given out of the segment that it still reads ([`Pool::needs_from`]); of blocks that
//! lie on an arc only the caller knows (`space::edit` in the engine).

use super::{Pin, Pool};
use abi::Extent;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A block that nobody else sees, to be changed where it lies. Readers find what was written.
#[must_use]
pub struct Editing<'p> {
    pool: &'p mut Pool,
    at: usize,
    len: usize,
}

impl Pool {
    /// Returns true if [`Pool::edit`] would admit this block now.
    #[must_use]
    pub fn is_unshared(&self, place: Extent) -> bool {
        self.unshared(place).is_some()
    }

    /// The bytes of a block, to be changed where they lie. `None`: it is not here, its segment is
    /// leased or pinned, or the memory is not ours alone.
    pub fn edit(&mut self, place: Extent) -> Option<Editing<'_>> {
        let at = self.unshared(place)?;
        self.memory.editing.set(true);
        Some(Editing { pool: self, at, len: place.length() as usize })
    }

    /// Says that of a pinned segment nothing before this place is needed any more: of a source that
    /// has given out what lies there, and reads on. Holds until somebody else pins the segment.
    pub fn needs_from(&self, pin: Pin, place: Extent) {
        let Ok((slot, at)) = self.memory.locate(place) else { return };
        let only = self.pins.get(slot).is_some_and(|pins| pins.get() == 1);
        if let (true, true, Some(needed)) =
            (only, self.memory.slots.resident(slot) == pin.0, self.needed.get(slot))
        {
            needed.set(at);
        }
    }

    /// Returns the offset of a block that the pool's holder may change by M9.
    fn unshared(&self, place: Extent) -> Option<usize> {
        let (slot, at) = self.memory.locate(place).ok()?;
        let end = at + place.length() as usize;
        let pinned = match self.pins.get(slot)?.get() {
            0 => false,
            1 => end > self.needed.get(slot)?.get(),
            _ => true,
        };
        let ours = !self.given.get() && self.memory.lender().is_none();
        // M9: the Acquire is in there.
        (ours && !pinned && self.memory.slots.is_unleased(slot)).then_some(at)
    }
}

impl Deref for Editing<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `locate` found the bytes inside the region and below `filled`; nobody else writes
        // or has them (M9), and this slice borrows the only one who does.
        unsafe { self.pool.memory.bytes(self.at, self.len) }
    }
}

impl DerefMut for Editing<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the region of a pool that is not lent is mapped writable, and this
        // slice borrows the only one who reaches the bytes mutably.
        unsafe { self.pool.memory.region.bytes_mut(self.at, self.len) }
    }
}

impl Drop for Editing<'_> {
    fn drop(&mut self) {
        self.pool.memory.editing.set(false);
    }
}

impl fmt::Debug for Editing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Editing({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;
    use abi::DbufId;

    fn pool() -> (Pool, Extent) {
        let config = Config { segment: 1 << 13, segments: 4 };
        let pool = Pool::new(DbufId::new(7).unwrap(), config).unwrap();
        let fill = |room: &mut [u8]| {
            room.copy_from_slice(b"abcd");
            4
        };
        let place = pool.append(4, fill).unwrap().0;
        (pool, place)
    }

    #[test]
    fn d15_what_nobody_else_sees_is_changed_where_it_lies() {
        let (mut pool, place) = pool();
        pool.edit(place.within(1, 2)).unwrap().copy_from_slice(b"BC");
        assert_eq!(pool.bytes(place), Some(&b"aBCd"[..]));
    }

    #[test]
    fn d15_what_somebody_sees_is_not() {
        let (mut pool, place) = pool();
        let lease = pool.lease(place).unwrap();
        assert!(!pool.is_unshared(place) && pool.edit(place).is_none(), "leased");
        assert_eq!(lease.bytes(place), Ok(&b"abcd"[..]));
        drop(lease);
        let pin = pool.pin(place).unwrap();
        assert!(pool.edit(place).is_none(), "pinned");
        pool.needs_from(pin, place.within(2, 2));
        assert!(pool.edit(place.within(0, 2)).is_some(), "before what is needed");
        assert!(pool.edit(place.within(1, 2)).is_none(), "some of it is needed");
        let held = pool.pin(place).unwrap();
        assert!(pool.edit(place.within(0, 2)).is_none(), "somebody else pinned it");
        pool.unpin(held);
        assert!(pool.edit(place.within(0, 2)).is_none(), "until that is said again");
        pool.unpin(pin);
        assert!(pool.edit(place).is_some());
        assert!(pool.edit(Extent::new(1 << 20, 4)).is_none(), "not here");
        if !cfg!(miri) {
            assert!(pool.file().is_some());
            assert!(pool.edit(place).is_none(), "its file was given away");
        }
    }

    #[test]
    fn no_lease_is_made_from_what_is_being_changed() {
        let (mut pool, place) = pool();
        let memory = pool.memory.clone();
        let editing = pool.edit(place).unwrap();
        assert!(memory.around_slice(&editing).is_none());
        drop(editing);
        assert!(memory.around_slice(pool.bytes(place).unwrap()).is_some());
    }
}
