//! Word-wise access to memory that another party writes concurrently. Uses atomics and copies,
//! never references. Values read from such memory are allegations.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::foreign;
use super::{Mapping, ReadMapping, Span};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

impl ReadMapping {
    /// Loads the u64 at `offset` with Acquire ordering. Returns `None` if `offset` is out of range
    /// or misaligned.
    #[must_use]
    #[inline]
    pub fn word(&self, offset: usize) -> Option<u64> {
        Some(self.0.word(offset)?.load(Ordering::Acquire))
    }

    /// Loads the u32 at `offset`; otherwise like [`ReadMapping::word`].
    #[must_use]
    #[inline]
    pub fn word32(&self, offset: usize) -> Option<u32> {
        Some(self.0.word32(offset)?.load(Ordering::Acquire))
    }

    /// Fills `to` with the bytes at `offset`. The copy may be torn if another party writes
    /// concurrently. Returns false, and copies nothing, if the range is not inside the mapping.
    #[must_use]
    #[inline]
    pub fn copy(&self, offset: usize, to: &mut [u8]) -> bool {
        self.0.copy(offset, to).is_some()
    }
}

impl Mapping {
    /// Stores a u64 at `offset` with Release ordering. Returns false if `offset` is out of range or
    /// misaligned.
    pub fn set_word(&self, offset: usize, value: u64) -> bool {
        self.0.0.word(offset).map(|word| word.store(value, Ordering::Release)).is_some()
    }

    /// Atomically adds `value` to the u64 at `offset` and returns the previous value; `None` if
    /// `offset` is out of range or misaligned.
    #[must_use]
    pub fn add_word(&self, offset: usize, value: u64) -> Option<u64> {
        self.0.0.word(offset).map(|word| word.fetch_add(value, Ordering::AcqRel))
    }

    /// Stores a u32 at `offset`; otherwise like [`Mapping::set_word`].
    pub fn set_word32(&self, offset: usize, value: u32) -> bool {
        self.0.0.word32(offset).map(|word| word.store(value, Ordering::Release)).is_some()
    }

    /// Writes `from` at `offset`, while other parties may read or write. Returns false, and writes
    /// nothing, if the range is not inside the mapping.
    #[must_use]
    pub fn store_bytes(&self, offset: usize, from: &[u8]) -> bool {
        self.0.0.store_bytes(offset, from).is_some()
    }
}

impl Span {
    #[inline]
    fn checked_address(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| self.base.as_ptr().wrapping_add(offset))
    }

    #[inline]
    fn word(&self, offset: usize) -> Option<&AtomicU64> {
        self.atomic(offset)
    }

    fn word32(&self, offset: usize) -> Option<&AtomicU32> {
        self.atomic(offset)
    }

    fn byte(&self, offset: usize) -> Option<&AtomicU8> {
        self.atomic(offset)
    }

    /// Returns the atomic integer of type `A` at an offset; `None` if the offset is misaligned or
    /// not inside the mapping.
    #[inline]
    fn atomic<A>(&self, offset: usize) -> Option<&A> {
        let at = self.checked_address(offset, size_of::<A>());
        let at = at.filter(|_| offset.is_multiple_of(align_of::<A>()))?;
        // SAFETY: the integer is in the mapping, which lives as long as `self` and begins at a
        // page, so the integer is aligned. `A` is an atomic type, of which all bytes are valid;
        // only atomics touch it here, and only loads where the mapping is read-only.
        Some(unsafe { &*at.cast::<A>() })
    }

    /// On x86-64, copies [`foreign::COPY_LENGTH_MIN`] bytes or more with wide instructions. Copies
    /// shorter ranges word by word where aligned, and byte by byte elsewhere. Returns `None` if the
    /// range exceeds the mapping.
    fn copy(&self, offset: usize, to: &mut [u8]) -> Option<()> {
        let from = self.checked_address(offset, to.len())?;
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if to.len() >= foreign::COPY_LENGTH_MIN {
            // SAFETY: the range is in the mapping, which lives as long as `self`; callers of this
            // function expect torn bytes.
            unsafe { foreign::copy_bytes(from, to.as_mut_ptr(), to.len()) };
            return Some(());
        }
        let head = (offset.next_multiple_of(8) - offset).min(to.len());
        let (head, rest) = to.split_at_mut(head);
        let (words, tail) = rest.as_chunks_mut::<8>();
        let mut at = offset;
        for byte in head {
            *byte = self.byte(at)?.load(Ordering::Relaxed);
            at += 1;
        }
        for word in words {
            *word = self.word(at)?.load(Ordering::Relaxed).to_ne_bytes();
            at += 8;
        }
        for byte in tail {
            *byte = self.byte(at)?.load(Ordering::Relaxed);
            at += 1;
        }
        Some(())
    }

    /// Stores bytes with the same instructions as [`Self::copy`]. Returns `None` if the range
    /// exceeds the mapping.
    fn store_bytes(&self, offset: usize, from: &[u8]) -> Option<()> {
        let to = self.checked_address(offset, from.len())?;
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if from.len() >= foreign::COPY_LENGTH_MIN {
            // SAFETY: the range is in the mapping, which lives as long as `self` and to whose bytes
            // no reference exists, so `from` is elsewhere.
            unsafe { foreign::copy_bytes(from.as_ptr(), to, from.len()) };
            return Some(());
        }
        let head = (offset.next_multiple_of(8) - offset).min(from.len());
        let (head, rest) = from.split_at(head);
        let (words, tail) = rest.as_chunks::<8>();
        let mut at = offset;
        for byte in head {
            self.byte(at)?.store(*byte, Ordering::Relaxed);
            at += 1;
        }
        for word in words {
            self.word(at)?.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            at += 8;
        }
        for byte in tail {
            self.byte(at)?.store(*byte, Ordering::Relaxed);
            at += 1;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use crate::memory::Memfd;

    #[test]
    fn mapped_words_and_copies_stay_in_range() {
        let file = Memfd::create("sys-test", 4096).unwrap();
        let (writable, readable) = (file.map().unwrap(), file.map_read().unwrap());
        assert!(
            writable.set_word(8, 0x0807_0605_0403_0201) && writable.set_word32(16, 0x0c0b_0a09)
        );
        let mut copied = [0; 9];
        assert!(readable.copy(9, &mut copied));
        assert_eq!(copied, [2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert!(
            writable.store_bytes(4087, &[7; 9])
                && writable.store_bytes(1, b"some bytes, neither at a word")
        );
        let mut copied = [0; 29];
        assert!(readable.copy(1, &mut copied));
        assert_eq!(&copied, b"some bytes, neither at a word");
        assert_eq!(
            (readable.word(4088), readable.word32(4092)),
            (Some(0x0707_0707_0707_0707), writable.word32(4092))
        );
        for outside in [4089, 4096, usize::MAX - 3, usize::MAX] {
            assert!(
                !readable.copy(outside, &mut [0; 8]) && !writable.store_bytes(outside, &[0; 8])
            );
            assert_eq!((readable.word(outside), readable.word32(outside)), (None, None));
        }
        assert_eq!((readable.word(4), readable.word32(2)), (None, None), "not aligned");
        assert!(!writable.set_word(4096, 0) && readable.copy(4096, &mut []));
    }
}
