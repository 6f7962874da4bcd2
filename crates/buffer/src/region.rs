//! A piece of memory as words and as bytes: a mapping, or the heap (for models and small rings).
//!
//! Invariants, cited below:
//! - R1 `base` points to `words` consecutive, initialised `AtomicU64` that live as long as the
//!   region: they belong to `owner`, which the region never gives away and drops last.
//! - R2 The words are reached only as atomics ([`Region::words`]) or through [`Region::bytes`] and
//!   [`Region::bytes_mut`], whose callers promise that nobody writes these bytes meanwhile.
//! - R3 Words of memory that is mapped read-only are only loaded, and only relaxed
//!   ([`crate::atomic::acquire`]): callers keep it, a mistake ends the process and corrupts
//!   nothing.

use crate::atomic::AtomicU64;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use sys::memory::{Lender, Mapping, ReadMapping};

/// A piece of memory, owned.
pub struct Region {
    base: NonNull<AtomicU64>,
    words: usize,
    owner: Owner,
}

/// The owner of the memory.
#[expect(dead_code, reason = "held only to be dropped with the region")]
enum Owner {
    Heap(Arc<[LinePair]>),
    Mapping(Mapping),
    Reading(ReadMapping),
    Lent(Arc<dyn Lender>),
}

/// A pair of cache lines, so that words a line apart never share one.
#[repr(align(128))]
#[expect(dead_code, reason = "reached through the address of the first line")]
struct LinePair([AtomicU64; LINE_WORDS]);

const LINE_WORDS: usize = abi::ring::LINE_WORDS;

// SAFETY: a region owns its memory (R1); moving the owner to another thread moves only the duty to
// free it.
unsafe impl Send for Region {}
// SAFETY: through a shared region memory is reached as atomics, or under the promises of R2.
unsafe impl Sync for Region {}

impl Region {
    /// Zeroed words on the heap, rounded up to whole lines.
    pub fn heap(words: usize) -> Self {
        let line = || LinePair(std::array::from_fn(|_| AtomicU64::new(0)));
        let lines: Arc<[LinePair]> = (0..words.div_ceil(LINE_WORDS)).map(|_| line()).collect();
        let words = lines.len() * LINE_WORDS;
        // A line is an array of words without padding, and an Arc gives up no claim to be the only
        // one.
        const { assert!(size_of::<LinePair>() == LINE_WORDS * size_of::<AtomicU64>()) }
        let base = NonNull::from(&*lines).cast::<AtomicU64>();
        Self { base, words, owner: Owner::Heap(lines) }
    }

    /// The words of a writable mapping.
    #[cfg(not(loom))]
    pub(crate) fn mapped(mapping: Mapping) -> Self {
        let (base, words) = (mapping.base().cast::<AtomicU64>(), mapping.len() / 8);
        Self { base, words, owner: Owner::Mapping(mapping) }
    }

    /// The words of a mapping that can only be read (R3).
    #[cfg(not(loom))]
    pub fn reading(mapping: ReadMapping) -> Self {
        let (base, words) = (mapping.base().cast::<AtomicU64>(), mapping.len() / 8);
        Self { base, words, owner: Owner::Reading(mapping) }
    }

    /// The words of memory that another party fills and takes back: which bytes may be reached, and
    /// when, is argued by `pool` (M7).
    #[cfg(not(loom))]
    pub(crate) fn lent(lender: Arc<dyn Lender>) -> Self {
        let words = lender.segment() * lender.segments() / 8;
        Self { base: lender.base().cast::<AtomicU64>(), words, owner: Owner::Lent(lender) }
    }

    /// All words.
    #[inline]
    pub const fn words(&self) -> &[AtomicU64] {
        // SAFETY: R1; a page or a line is aligned for words, and any bits are a valid word.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    /// The address of a word, for who keeps the region.
    #[cfg(not(loom))]
    pub(crate) fn address(&self, word: usize) -> NonNull<AtomicU64> {
        assert!(word < self.words, "a word of the region");
        // SAFETY: R1: the word lies in the same memory as the first one.
        unsafe { self.base.add(word) }
    }

    /// One word.
    #[expect(clippy::indexing_slicing, reason = "indices are constants of the layout or masked")]
    #[inline]
    pub fn word(&self, index: usize) -> &AtomicU64 {
        &self.words()[index]
    }

    /// Size in bytes, never 0.
    #[cfg(not(loom))]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub const fn len(&self) -> usize {
        self.words * 8
    }

    /// The bytes from `at` on.
    ///
    /// # Safety
    /// 1. `at + len <= self.len()`.
    /// 2. As long as the slice lives, nobody writes these bytes.
    #[cfg(not(loom))]
    pub(crate) unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        debug_assert!(at.checked_add(len).is_some_and(|end| end <= self.len()));
        let base = self.base.as_ptr().cast::<u8>().cast_const().wrapping_add(at);
        // SAFETY: R1 and promise 1 put the range inside live, initialised memory; promise 2 is the
        // condition for a shared slice.
        unsafe { std::slice::from_raw_parts(base, len) }
    }

    /// The bytes from `at` on, for the only one who reaches them.
    ///
    /// # Safety
    /// 1. `at + len <= self.len()`, and the memory is not mapped read-only.
    /// 2. As long as the slice lives, nobody else reads or writes these bytes.
    #[cfg(not(loom))]
    #[expect(clippy::mut_from_ref, reason = "memory is shared out by position; promise 2")]
    pub(crate) unsafe fn bytes_mut(&self, at: usize, len: usize) -> &mut [u8] {
        debug_assert!(at.checked_add(len).is_some_and(|end| end <= self.len()));
        let base = self.base.as_ptr().cast::<u8>().wrapping_add(at);
        // SAFETY: R1 and promise 1 put the range inside live, initialised, writable memory (atomics
        // allow writing through a shared reference); promise 2 makes the slice the only one.
        unsafe { std::slice::from_raw_parts_mut(base, len) }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.owner {
            Owner::Heap(_) => "heap",
            Owner::Mapping(_) => "mapping",
            Owner::Reading(_) => "read-only mapping",
            Owner::Lent(_) => "lent memory",
        };
        write!(f, "Region({kind}, {} words)", self.words)
    }
}
