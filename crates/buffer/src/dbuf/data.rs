//! The data area of a ring. The writer and the readers access it for each block, without the
//! indirection through [`RingMemory`].
//!
//! Invariants, cited below:
//! - A1 `base` is the address of the first data word in the writer's memory of `store`, which keeps
//!   the memory mapped while this value lives.
//! - A2 `mask + 1` is the capacity: a power of two, at least a page, and at most the number of
//!   bytes after `base` (asserted in `new`, checked in `set_capacity`).
//! - A3 From A1 and A2: 16 bytes of data follow each masked position that is rounded down to a
//!   multiple of 16.

use crate::atomic::{AtomicU64, Ordering};
use crate::cursor::{DATA_OFFSET_WORDS, RingMemory};
use crate::foreign_memory;
use abi::ring::{PAGE_SIZE, RecordHeader};
use std::ptr::NonNull;
use std::sync::Arc;

/// The data area of a ring.
#[derive(Debug)]
pub(crate) struct DataArea {
    base: NonNull<AtomicU64>,
    mask: u64,
    /// Memory of the ring. Holding the reference keeps the memory mapped (A1).
    store: Arc<RingMemory>,
}

// SAFETY: the address belongs to the store (A1), which may be sent and shared; each function states
// which accesses it allows, and when.
unsafe impl Send for DataArea {}
// SAFETY: as above.
unsafe impl Sync for DataArea {}

impl DataArea {
    pub(crate) fn new(store: Arc<RingMemory>) -> Self {
        let base = store.writer.address(DATA_OFFSET_WORDS);
        let capacity = store.capacity;
        let fits = (store.writer.len() - DATA_OFFSET_WORDS * 8) as u64 >= capacity;
        assert!(
            fits && capacity.is_power_of_two() && capacity >= PAGE_SIZE as u64,
            "invalid ring dimensions (A2)"
        );
        Self { base, mask: capacity - 1, store }
    }

    /// Changes the capacity within the same memory. Returns `None`, and changes nothing, if
    /// `capacity` is not a power of two, is less than a page, or exceeds the memory.
    pub(crate) fn set_capacity(&mut self, capacity: u64) -> Option<()> {
        let available = (self.store.writer.len() - DATA_OFFSET_WORDS * 8) as u64;
        let is_valid =
            capacity.is_power_of_two() && (PAGE_SIZE as u64..=available).contains(&capacity);
        // A2 is preserved.
        is_valid.then(|| self.mask = capacity - 1)
    }

    #[inline]
    pub(crate) const fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// Returns the number of bytes from a position to the end of the lap that contains it.
    #[inline]
    pub(crate) const fn bytes_to_lap_end(&self, position: u64) -> u64 {
        self.mask + 1 - (position & self.mask)
    }

    /// Returns the byte offset of a position in the data area.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "less than the capacity, which is mapped")]
    pub(super) const fn offset(&self, position: u64) -> usize {
        (position & self.mask) as usize
    }

    /// Returns the two words of the record header at a position.
    #[inline]
    fn header_words(&self, position: u64) -> &[AtomicU64; 2] {
        let first = self.offset(position & !(RecordHeader::SIZE as u64 - 1));
        let at = self.base.as_ptr().wrapping_byte_add(first).cast::<[AtomicU64; 2]>();
        // SAFETY: two aligned words of the data (A3), alive as long as the store (A1), accessed
        // only as atomics here; any bits are a valid word.
        unsafe { &*at }
    }

    /// Returns a copy of the record header at a position. Loads each word exactly once.
    #[inline]
    pub(crate) fn header(&self, position: u64) -> [u64; 2] {
        let [first, second] = self.header_words(position);
        [first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)]
    }

    #[inline]
    pub(crate) fn write_record_header(&self, position: u64, words: [u64; 2]) {
        let [first, second] = self.header_words(position);
        first.store(words[0], Ordering::Relaxed);
        second.store(words[1], Ordering::Relaxed);
    }

    /// Returns all words of the data area.
    #[inline]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: A1 and A2; accessed only as atomics, or by instructions outside Rust's memory
        // model.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.offset(self.mask) / 8 + 1) }
    }

    /// Copies bytes from a position into `out`, while another party may overwrite them. If the
    /// ring's memory ends before `out` is full, the rest of `out` is unchanged.
    #[inline]
    pub(crate) fn copy_out(&self, position: u64, out: &mut [u8]) {
        foreign_memory::copy_out(self.words(), self.offset(position), out);
    }

    /// Copies bytes to a word-aligned position with atomic stores.
    pub(crate) fn copy_in(&self, position: u64, bytes: &[u8]) {
        foreign_memory::copy_in(self.words(), self.offset(position) / 8, bytes);
    }

    /// Returns the address of the byte at a position.
    #[inline]
    pub(super) fn address(&self, position: u64) -> *const u8 {
        self.base.cast::<u8>().as_ptr().wrapping_add(self.offset(position)).cast_const()
    }

    /// Returns `length` bytes at a position for exclusive access.
    ///
    /// # Safety
    ///
    /// 1. The range must not extend past the end of the lap, and the memory must not be mapped
    ///    read-only.
    /// 2. No other code may read or write these bytes while the slice lives.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "callers get disjoint ranges (promise 2)")]
    pub(crate) unsafe fn bytes_mut(&self, position: u64, length: usize) -> &mut [u8] {
        debug_assert!(length as u64 <= self.bytes_to_lap_end(position));
        let first = self.base.cast::<u8>().as_ptr().wrapping_add(self.offset(position));
        // SAFETY: A1, A2 and promise 1 put the range inside live, writable memory; promise 2 makes
        // the slice the only one.
        unsafe { std::slice::from_raw_parts_mut(first, length) }
    }
}
