//! A pool: the memory to which a space writes its blocks. [SL §5.2, §5.3.1]
//!
//! A pool is a dbuf of equal segments in one memfd. A source fills a segment in one pass and points
//! at the records inside it; a filter appends small blocks while other filters still read blocks of
//! the same pass. Bytes are never overwritten while a reader may access them: segments are recycled
//! only between passes, and only if they have neither pins nor leases. Deviation: the paper's dbuf
//! is one ring that laps as a whole; here segments are reused one by one, so that one held block
//! does not stall the other segments (SPIKES, pitfall 1).
//!
//! Positions are monotone: position = segment number × segment size + offset, and segment n
//! occupies slot n mod slots. Segment numbers are skipped to reuse the lowest free slot, which
//! keeps the memory in use small (a ring that exceeds the cache is three times slower, [SL §5.4],
//! BASELINES).
//!
//! `&[u8]` is sound here by these invariants, cited below:
//! - M1 The bytes of a slot below `filled` are not written while `segment` keeps its value (except
//!   bytes that no party can read: M9 in `edit`). They were written before `filled` was raised
//!   (Release; readers load it with Acquire).
//! - M2 The bytes of a slot from `filled` on are accessed only through the one open [`Draft`]. Only
//!   the thread that owns the pool can open it (the pool is not `Sync`), and only one draft can be
//!   open at a time (`drafting`).
//! - M3 A slot is assigned another segment only in [`Pool::end_pass`], which has `&mut Pool`: so no
//!   slice from [`Pool::bytes`] is alive, no draft is open, and no lease is being created through
//!   the pool.
//! - M4 A slot is assigned another segment only while its `leases` is 0. A lease is a reference
//!   count that safe code cannot forge: it is created from `&Pool` (excluded by M3), from a lease
//!   (so the count was not 0), or from a `crossing::Batch` (so the crossing's writer has a lease on
//!   the segment). A dropped lease decrements the count with Release, and `end_pass` loads the
//!   count with Acquire: the last read of the bytes happens before their reuse.
//! - M5 Pins are plain numbers for callers to store anywhere. Soundness never depends on them:
//!   after one unpin too many, [`Pool::bytes`] eventually returns `None`, and the error is counted.
//! - M6 The memory lives as long as a pool, lease, or crossing refers to it (`Arc`).
//! - M7 Lent memory ([`lent`]): a slot is open from the arrival of its segment, reported by the
//!   lender, until [`Pool::end_pass`] returns the segment. In between the lender does not access
//!   the bytes (the promise of `Lender`), and M1 to M5 hold as for the pool's own memory. The draft
//!   of an arrived segment covers the entire segment.
//! - M8 Frozen memory (`iolite::aggregate::frozen`): the file is sealed against every kind of
//!   write, for all processes and permanently; the kernel grants that seal only once no writable
//!   mapping is left, and the seal was checked before the memory was created. All bytes are filled
//!   from the start, and the memory never belongs to a pool, so no slot is assigned another
//!   segment: M1 holds, and M4 holds without M3.

use crate::Fault;
use crate::slots::FREE_SLOT;
use abi::{BLOCK_LENGTH_MAX, DbufId, Extent, RichPointer};
use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

pub mod address;
mod edit;
mod edit_flag;
mod lease;
mod lent;
mod packing;

pub use edit::EditedBlock;
pub use lease::Lease;
pub use lease::PoolMemory;
use packing::PackedSegments;
pub use packing::PackedSize;

/// The dimensions of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// Segment size in bytes: a power of two, at least a page. No block crosses a segment boundary.
    pub segment: usize,
    /// Maximum number of segments: a power of two. Memory is allocated when a segment is first
    /// used.
    pub segments: usize,
}

impl Default for PoolConfig {
    /// Returns a configuration of 16 segments of 1 MB. Two processors run fastest with 4 to 16 MB
    /// (BASELINES); a pool used from one processor stays in its first segment.
    fn default() -> Self {
        Self { segment: 1 << 20, segments: 16 }
    }
}

/// A pool: the memory to which one space writes its blocks. Used only by the thread that owns it.
#[derive(Debug)]
pub struct Pool {
    memory: Arc<PoolMemory>,
    /// Position of the next block; equal to `end` if no segment is open.
    next: Cell<u64>,
    /// Position after the last byte of the open segment.
    end: Cell<u64>,
    /// Smallest number that the next opened segment may have.
    next_number_min: Cell<u64>,
    /// Number of slots that have memory. Slots with higher indices have never been used.
    populated: Cell<usize>,
    /// Number of the oldest segment of lent memory that has not been returned to the lender.
    oldest: Cell<u64>,
    /// For each slot of lent memory, the number of segments that [`Pool::draft_arrived_slot`] has
    /// opened in the slot so far.
    laps: Box<[Cell<u64>]>,
    /// Slots that [`Pool::draft_arrived_slot`] has opened and that have not been returned to the
    /// lender.
    opened_slots: RefCell<Vec<usize>>,
    /// True while a draft exists.
    drafting: Cell<bool>,
    /// Number of pins on the segment in each slot.
    pins: Box<[Cell<u32>]>,
    /// For each slot, the offset in the region of the first byte that the slot's only pin still
    /// needs ([`Pool::set_needed_start`]); 0 if the pin needs the entire segment.
    needed: Box<[Cell<usize>]>,
    cold: RefCell<PackedSegments>,
    /// True if other parties may have access to the memory without a lease, so blocks cannot be
    /// edited in place.
    is_exposed: Cell<bool>,
    /// Number of unpin calls without a matching pin.
    invalid_unpins: Cell<u64>,
}

/// A pin, which keeps a segment in its pool. A plain number, which callers can store in any table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SegmentPin(u64);

impl SegmentPin {
    /// Returns the pin as a number.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        self.0
    }

    /// Wraps an unchecked number as a pin. [`Pool::unpin`] rejects the result if the number is not
    /// a pin.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }
}

/// The occupancy of a pool, in segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolUsage {
    /// Number of segments that can be opened.
    pub free: usize,
    /// Number of segments that have pins.
    pub pinned: usize,
    /// Number of segments that are leased, usually by crossings.
    pub leased: usize,
    /// Total number of segments in the pool.
    pub segments: usize,
}

impl Pool {
    /// Creates a pool and allocates its first segment. Fails if the kernel refuses the memory.
    pub fn new(id: DbufId, config: PoolConfig) -> sys::Result<Self> {
        let segment = config.segment.next_power_of_two().max(abi::ring::PAGE_SIZE);
        let slots = config.segments.next_power_of_two().max(2);
        let memory = PoolMemory::new(id, segment, slots)?;
        memory.populate(0)?;
        Ok(Self::from_memory(memory, 1))
    }

    /// Creates a pool for a process that will lose the permission to call fallocate(2). The first
    /// segment is allocated now, and each page of the other segments when it is first written. If
    /// memory is short then, SIGBUS ends the process.
    pub fn without_allocation(id: DbufId, config: PoolConfig) -> sys::Result<Self> {
        let pool = Self::new(id, config)?;
        pool.populated.set(pool.memory.slots.len());
        Ok(pool)
    }

    /// Wraps memory whose first `populated` slots are allocated.
    fn from_memory(memory: PoolMemory, populated: usize) -> Self {
        let pins = vec![Cell::new(0); memory.slots.len()].into();
        let needed = vec![Cell::new(0); memory.slots.len()].into();
        Self {
            memory: Arc::new(memory),
            next: Cell::new(0),
            end: Cell::new(0),
            next_number_min: Cell::new(0),
            populated: Cell::new(populated),
            oldest: Cell::new(0),
            laps: Box::default(),
            opened_slots: RefCell::default(),
            drafting: Cell::new(false),
            pins,
            needed,
            cold: RefCell::default(),
            is_exposed: Cell::new(false),
            invalid_unpins: Cell::new(0),
        }
    }

    /// Returns the id by which rich pointers refer to this pool.
    #[must_use]
    pub fn id(&self) -> DbufId {
        self.memory.id
    }

    /// Returns the memory, which leases may keep alive longer than the pool. Permanently disables
    /// [`Pool::edit`], because other parties may then read the memory.
    pub fn memory(&self) -> &Arc<PoolMemory> {
        self.is_exposed.set(true);
        &self.memory
    }

    /// Returns the file of the memory, or `None` if the memory is lent or on the heap. Permanently
    /// disables [`Pool::edit`], because other parties may then read the memory.
    pub fn file(&self) -> Option<&sys::memory::Memfd> {
        self.is_exposed.set(true);
        self.memory.file()
    }

    /// Returns the total size in bytes of all slots that have memory, including unused ones.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        (self.populated.get() * self.memory.segment_size()) as u64
    }

    /// Returns the size in bytes of all slots, with or without memory.
    #[must_use]
    pub fn size(&self) -> usize {
        self.memory.slots.len() * self.memory.segment_size()
    }

    /// Returns the maximum length of a block in bytes.
    #[must_use]
    pub fn block_length_max(&self) -> usize {
        self.memory.segment_size().min(BLOCK_LENGTH_MAX)
    }

    /// Opens between `min` and `max` contiguous bytes for writing. Returns `None` if no segment is
    /// free (until pins and leases are returned and [`Pool::end_pass`] is called), if another draft
    /// is open, if `min` exceeds [`Pool::block_length_max`], if the memory is lent, or if the
    /// kernel refuses memory for a new segment.
    pub fn draft(&self, min: usize, max: usize) -> Option<Draft<'_>> {
        if self.drafting.get() || min > self.block_length_max() || self.is_lent() {
            return None;
        }
        if !self.fits_open_segment(min) {
            self.open_segment()?;
        }
        let position = self.next.get();
        let room = usize::try_from(self.end.get() - position).unwrap_or(0);
        let len = room.min(max.max(min)).min(BLOCK_LENGTH_MAX);
        // M2: the bytes are at or beyond `filled`, and no other draft can be opened now.
        self.drafting.set(true);
        Some(Draft { pool: self, position, at: self.memory.slots.offset(position), len })
    }

    /// Returns true if a block of `length` bytes fits into the rest of the open segment. An empty
    /// block needs one byte too, because its address must be inside the segment.
    #[inline]
    #[must_use]
    pub const fn fits_open_segment(&self, length: usize) -> bool {
        self.end.get() - self.next.get() >= if length == 0 { 1 } else { length as u64 }
    }

    /// Appends one block: `fill` receives room for `length` bytes and returns the number of bytes
    /// written. Slices of other blocks stay valid. Returns `None` in the same cases as
    /// [`Pool::draft`].
    pub fn append(
        &self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Option<(Extent, &[u8])> {
        let mut draft = self.draft(length, length)?;
        let used = fill(&mut draft);
        let place = draft.commit(used);
        Some((place, self.bytes(place)?))
    }

    /// Returns the bytes of a block, or `None` if its segment is no longer in the pool.
    #[must_use]
    pub fn bytes(&self, place: Extent) -> Option<&[u8]> {
        let (_, at) = self.locate(place).ok()?;
        // SAFETY: `locate` found the bytes inside the region and below `filled`; they are not
        // written (M1) while `self` is borrowed (M3).
        Some(unsafe { self.memory.bytes(at, place.length() as usize) })
    }

    /// Returns the filled part of the segment that contains a block. Consecutive blocks usually
    /// share a segment, so a caller finds them there without another slot lookup. Returns `None` if
    /// the block has no bytes, is a hole or is not in the pool.
    #[must_use]
    pub fn segment(&self, pointer: RichPointer) -> Option<Segment<'_>> {
        let (slot, start) = self.memory.enclosing_segment(pointer).or_else(|| {
            self.locate(pointer.place).ok()?;
            self.memory.enclosing_segment(pointer)
        })?;
        // SAFETY: `enclosing_segment` found the slot resident, with `filled` bytes from its start
        // inside the region; they are not written (M1) while `self` is borrowed (M3).
        let bytes = unsafe { self.memory.bytes(start.at, self.memory.slots.filled_len(slot)) };
        Some(Segment { dbuf: self.id(), start: start.position, bytes })
    }

    /// Returns the bytes that a rich pointer refers to. Fails with a [`Fault`] if the pointer is a
    /// hole, names another dbuf, or refers to a block that is not in the pool.
    pub fn resolve(&self, pointer: RichPointer) -> Result<&[u8], Fault> {
        if pointer.is_hole() {
            return Err(Fault::Hole);
        }
        if pointer.dbuf() != self.id() {
            return Err(Fault::UnknownDbuf(pointer.dbuf()));
        }
        self.locate(pointer.place)?;
        self.bytes(pointer.place).ok_or(Fault::OutOfWindow(pointer.place))
    }

    /// Pins the segment of a block: keeps it in the pool until the pin is removed. Returns `None`
    /// if the block is not in the pool.
    #[must_use]
    pub fn pin(&self, place: Extent) -> Option<SegmentPin> {
        let (slot, _) = self.locate(place).ok()?;
        let count = self.pins.get(slot)?;
        count.set(count.get().checked_add(1)?);
        // The new pin may need all of the segment.
        self.needed.get(slot)?.set(0);
        Some(SegmentPin(self.memory.slots.segment_number_in(slot)))
    }

    /// Removes a pin. The bytes stay at least until the next [`Pool::end_pass`], so a block can be
    /// released and unpinned while later filters of the pass still read it (SPIKES, pitfall 2). If
    /// the pin is not valid, only counts the mistake and returns false.
    pub fn unpin(&self, pin: SegmentPin) -> bool {
        let slot = self.memory.slots.slot_of_segment(pin.0);
        let resident = self.memory.slots.segment_number_in(slot) == pin.0;
        let count = self.pins.get(slot).filter(|count| resident && count.get() > 0);
        match count {
            Some(count) => count.set(count.get() - 1),
            None => self.invalid_unpins.set(self.invalid_unpins.get() + 1),
        }
        count.is_some()
    }

    /// Returns the number of unpin calls without a matching pin; nonzero only because of a bug in a
    /// caller.
    #[must_use]
    pub const fn invalid_unpin_count(&self) -> u64 {
        self.invalid_unpins.get()
    }

    /// Leases the segment of a block: keeps its bytes unchanged until the lease is dropped, even
    /// after the pool is dropped. Fails with a [`Fault`] if the block is not in the pool.
    pub fn lease(&self, place: Extent) -> Result<Lease, Fault> {
        let (slot, _) = self.locate(place)?;
        // M4: made from `&Pool`.
        Ok(Lease::new(&self.memory, slot))
    }

    /// Ends a pass: recycles all segments that have neither pins nor leases. Recycles the open
    /// segment only if it is at least half full; otherwise the segment stays open and is filled
    /// further.
    pub fn end_pass(&mut self) {
        self.drafting.set(false);
        if self.is_lent() {
            return self.return_lent_segments();
        }
        let slots = &self.memory.slots;
        let open = self.end.get().checked_sub(1).map(|last| slots.slot_of_position(last));
        let half = self.memory.segment_size() as u64 / 2;
        for (index, pins) in self.pins.iter().take(self.populated.get()).enumerate() {
            let is_mostly_unused = open == Some(index) && self.end.get() - self.next.get() > half;
            if is_mostly_unused || pins.get() > 0 || slots.segment_number_in(index) == FREE_SLOT {
                continue;
            }
            // M3: `&mut self`. M4: `recycle` refuses while there are leases.
            if slots.recycle(index) {
                self.cold.get_mut().drop_packed_bytes(index);
                if open == Some(index) {
                    self.next.set(0);
                    self.end.set(0);
                }
            }
        }
    }

    /// Returns the occupancy of the pool in segments.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        let slots = &self.memory.slots;
        let mut usage = PoolUsage { segments: slots.len(), ..PoolUsage::default() };
        for (index, pins) in self.pins.iter().enumerate() {
            usage.free += usize::from(slots.segment_number_in(index) == FREE_SLOT);
            usage.pinned += usize::from(pins.get() > 0);
            usage.leased += usize::from(slots.lease_count(index) > 0);
        }
        usage
    }

    /// Returns the slot and offset of a block, like [`Slots::locate`](crate::slots::Slots::locate).
    /// First unpacks the block's segment if it is compressed.
    #[inline]
    fn locate(&self, place: Extent) -> Result<(usize, usize), Fault> {
        self.memory.locate(place).or_else(|fault| self.unpack(place, fault))
    }

    /// Opens the lowest free slot, with the next segment number that maps to the slot. Returns
    /// `None` if no slot is free or there is not enough memory.
    fn open_segment(&self) -> Option<()> {
        let slots = &self.memory.slots;
        let index = (0..slots.len()).find(|&index| slots.segment_number_in(index) == FREE_SLOT)?;
        if index >= self.populated.get() || self.has_no_pages(index) {
            // Out of memory: same as a pool with fewer segments.
            self.memory.populate(index).ok()?;
            self.populated.set(self.populated.get().max(index + 1));
            self.record_backed_slot(index);
        }
        let (fresh, count) = (self.next_number_min.get(), slots.len() as u64);
        let number = fresh + (index as u64).wrapping_sub(fresh) % count;
        self.next_number_min.set(number + 1);
        // The slot has been free since the end of a pass (M3): no slice of it exists.
        slots.assign_segment(index, number);
        let length = self.memory.segment_size() as u64;
        self.next.set(number * length);
        self.end.set((number + 1) * length);
        Some(())
    }
}

/// The filled part of one segment. The default value has no bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment<'a> {
    pub(crate) dbuf: DbufId,
    /// Position of the segment's first byte, truncated to the width of an extent's position.
    pub(crate) start: u64,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Returns the dbuf of the segment.
    #[must_use]
    pub const fn dbuf(&self) -> DbufId {
        self.dbuf
    }

    /// Returns the position of the segment's first byte, truncated to the width of an extent's
    /// position.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// Returns all filled bytes of the segment.
    #[must_use]
    pub const fn filled_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the bytes of a block, or `None` if the block is not in this segment.
    #[inline]
    #[must_use]
    pub fn bytes(&self, pointer: RichPointer) -> Option<&'a [u8]> {
        if pointer.dbuf() != self.dbuf {
            return None;
        }
        let from = usize::try_from(pointer.place.position().checked_sub(self.start)?).ok()?;
        self.bytes.get(from..from.checked_add(pointer.length() as usize)?)
    }
}

/// A range of a pool that is open for writing.
#[derive(Debug)]
#[must_use]
pub struct Draft<'a> {
    pool: &'a Pool,
    position: u64,
    /// Offset in the region of the draft's first byte.
    at: usize,
    len: usize,
}

impl Draft<'_> {
    /// Publishes the first `used` bytes as a block, and returns the extent of the block. `used` is
    /// limited to the length of the draft. [`Extent::subrange`] returns parts of the block.
    pub fn commit(self, used: usize) -> Extent {
        let used = used.min(self.len);
        let memory = &self.pool.memory;
        let end = self.position + used as u64;
        let filled = end - (self.position & !(memory.segment_size() as u64 - 1));
        // M1: the bytes were written before this store, and are not written again.
        memory.slots.set_filled_len(memory.slots.slot_of_position(self.position), filled);
        // No gap: every byte below `filled` was written since the slot was recycled. A segment that
        // arrived from a lender has no room left.
        if !self.pool.is_lent() {
            self.pool.next.set(end);
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a draft has at most BLOCK_LENGTH_MAX bytes"
        )]
        Extent::new(self.position, used as u32)
    }

    /// Returns the position of the draft's first byte.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        self.pool.drafting.set(false);
    }
}

impl Deref for Draft<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are in the open segment, hence in the region; only this draft accesses
        // them (M2), and it is borrowed.
        unsafe { self.pool.memory.region.bytes(self.at, self.len) }
    }
}

impl DerefMut for Draft<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes are in the open segment, hence in the writable region; only this draft
        // accesses them (M2), and it is borrowed mutably.
        unsafe { self.pool.memory.region.bytes_mut(self.at, self.len) }
    }
}

#[cfg(test)]
mod tests;
