//! An owned range of memory, accessed as words or as bytes. The memory is a mapping, or on the heap
//! (for models and small rings).
//!
//! Invariants, cited below:
//! - R1 `base` points to `words` consecutive, initialized `AtomicU64` values that live as long as
//!   the region: they belong to `owner`, which the region never moves out and drops last.
//! - R2 The words are accessed only as atomics ([`Region::words`]) or through [`Region::bytes`] and
//!   [`Region::bytes_mut`], whose callers promise that no other party writes these bytes during the
//!   borrow.
//! - R3 Words of memory mapped read-only are only loaded, with relaxed ordering
//!   ([`crate::atomic::load_acquire`]). Callers ensure this; a store crashes the process and
//!   corrupts nothing.

use crate::atomic::AtomicU64;
use std::ptr::NonNull;
use std::sync::Arc;
use sys::memory::{Mapping, ReadMapping, SegmentLender};

/// An owned range of memory.
#[derive(Debug)]
pub struct Region {
    base: NonNull<AtomicU64>,
    words: usize,
    #[expect(dead_code, reason = "held only to be dropped with the region")]
    owner: Owner,
}

/// The owner of a region's memory.
#[derive(Debug)]
#[expect(dead_code, reason = "held only to be dropped with the region")]
enum Owner {
    Heap(Arc<[CacheLinePair]>),
    Mapping(Mapping),
    ReadOnlyMapping(ReadMapping),
    Lent(Arc<dyn SegmentLender>),
}

/// A pair of cache lines. Words in different pairs are never in the same line, nor in two lines
/// that the processor prefetches together.
#[repr(align(128))]
#[expect(dead_code, reason = "reached through the address of the first line")]
#[derive(Debug)]
struct CacheLinePair([AtomicU64; LINE_WORDS]);

const LINE_WORDS: usize = abi::ring::LINE_WORDS;

// SAFETY: a region owns its memory (R1); moving the owner to another thread moves only the
// obligation to free it.
unsafe impl Send for Region {}
// SAFETY: a shared region is accessed as atomics, or under the promises of R2.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates zeroed words on the heap, rounded up to whole line pairs.
    pub fn heap(words: usize) -> Self {
        let line = || CacheLinePair(std::array::from_fn(|_| AtomicU64::new(0)));
        let lines: Arc<[CacheLinePair]> = (0..words.div_ceil(LINE_WORDS)).map(|_| line()).collect();
        let words = lines.len() * LINE_WORDS;
        // A line pair is an array of words without padding, and an Arc makes no claim to exclusive
        // access.
        const { assert!(size_of::<CacheLinePair>() == LINE_WORDS * size_of::<AtomicU64>()) }
        let base = NonNull::from(&*lines).cast::<AtomicU64>();
        Self { base, words, owner: Owner::Heap(lines) }
    }

    /// Creates a region over a writable mapping.
    #[cfg(not(loom))]
    pub(crate) fn mapped(mapping: Mapping) -> Self {
        let (base, words) = (mapping.base().cast::<AtomicU64>(), mapping.len() / 8);
        Self { base, words, owner: Owner::Mapping(mapping) }
    }

    /// Creates a region over a read-only mapping, whose words must only be loaded (R3).
    #[cfg(not(loom))]
    pub fn read_only(mapping: ReadMapping) -> Self {
        let (base, words) = (mapping.base().cast::<AtomicU64>(), mapping.len() / 8);
        Self { base, words, owner: Owner::ReadOnlyMapping(mapping) }
    }

    /// Wraps memory that a lender fills and takes back. Invariant M7 of `pool` determines when each
    /// byte may be accessed.
    #[cfg(not(loom))]
    pub(crate) fn lent(lender: Arc<dyn SegmentLender>) -> Self {
        let words = lender.segment_size() * lender.segment_count() / 8;
        Self { base: lender.base().cast::<AtomicU64>(), words, owner: Owner::Lent(lender) }
    }

    /// Returns the whole region as words.
    #[inline]
    pub const fn words(&self) -> &[AtomicU64] {
        // SAFETY: R1; a page or a line is aligned for words, and any bits are a valid word.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    /// Returns the address of a word; valid as long as the region lives. Panics if `word` is out of
    /// range.
    #[cfg(not(loom))]
    pub(crate) fn address(&self, word: usize) -> NonNull<AtomicU64> {
        assert!(word < self.words, "word index out of range");
        // SAFETY: R1: the word lies in the same memory as the first one.
        unsafe { self.base.add(word) }
    }

    /// Returns the word at `index`. Panics if `index` is out of range.
    #[expect(clippy::indexing_slicing, reason = "indices are constants of the layout or masked")]
    #[inline]
    pub fn word(&self, index: usize) -> &AtomicU64 {
        &self.words()[index]
    }

    /// Returns the size in bytes, never 0.
    #[cfg(not(loom))]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub const fn len(&self) -> usize {
        self.words * 8
    }

    /// Returns `len` bytes at offset `at`.
    ///
    /// # Safety
    ///
    /// 1. `at + len` must not exceed `self.len()`.
    /// 2. No other party may write these bytes while the slice lives.
    #[cfg(not(loom))]
    pub(crate) unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        debug_assert!(at.checked_add(len).is_some_and(|end| end <= self.len()));
        let base = self.base.as_ptr().cast::<u8>().cast_const().wrapping_add(at);
        // SAFETY: R1 and promise 1 put the range inside live, initialized memory; promise 2 is the
        // condition for a shared slice.
        unsafe { std::slice::from_raw_parts(base, len) }
    }

    /// Returns `len` bytes at offset `at` for exclusive access.
    ///
    /// # Safety
    ///
    /// 1. `at + len` must not exceed `self.len()`, and the memory must not be mapped read-only.
    /// 2. No other party may read or write these bytes while the slice lives.
    #[cfg(not(loom))]
    #[expect(clippy::mut_from_ref, reason = "callers get disjoint ranges (promise 2)")]
    pub(crate) unsafe fn bytes_mut(&self, at: usize, len: usize) -> &mut [u8] {
        debug_assert!(at.checked_add(len).is_some_and(|end| end <= self.len()));
        let base = self.base.as_ptr().cast::<u8>().wrapping_add(at);
        // SAFETY: R1 and promise 1 put the range inside live, initialized, writable memory (atomics
        // allow writing through a shared reference); promise 2 makes the slice the only one.
        unsafe { std::slice::from_raw_parts_mut(base, len) }
    }
}
