//! Copying from and to memory that another party may write at the same moment. [SL §5.2, lossy
//! rings]
//!
//! No reference to bytes is ever created: words are loaded and stored one by one as relaxed
//! atomics. The copy may be torn, which the caller detects afterwards (`cursor`, *writing begins*).
//! Above 1 KB a word loop is 25 to 40 % slower than a plain copy (SPIKES 1 d), so copies of at
//! least `COPY_LENGTH_MIN` bytes use instructions that copy more than a word at once, if the
//! processor has them. These are written as inline assembly, which Rust permits to access memory
//! that other parties write. Wide stores also stall less on lines owned by another processor: more
//! of them are in flight at a time, and fewer are needed per line.

use crate::atomic::{AtomicU64, Ordering};
#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
use sys::memory::foreign::{COPY_LENGTH_MIN, LIBC_COPY_LENGTH_MIN, copy_bytes, copy_into_words};

const WORD_SIZE: usize = size_of::<u64>();

/// Copies bytes into `out`, beginning at byte `at` of `words`. If the words end before `out` is
/// full, the rest of `out` is unchanged.
#[inline]
pub fn copy_out(words: &[AtomicU64], at: usize, out: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    if out.len() >= COPY_LENGTH_MIN
        && at.checked_add(out.len()).is_some_and(|end| end <= size_of_val(words))
    {
        return copy_out_by_instruction(words, at, out);
    }
    copy_out_by_words(words, at, out);
}

/// Copies all of `from` into `to`. Short blocks are copied inline, where a call to memcpy would
/// cost more than the copy. Panics if the lengths differ.
#[inline]
pub fn copy(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "source and destination lengths differ");
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    if (COPY_LENGTH_MIN..LIBC_COPY_LENGTH_MIN).contains(&from.len()) {
        // SAFETY: `from` is borrowed, and as long as `to` (asserted).
        return unsafe { copy_bytes(from.as_ptr(), to.as_mut_ptr(), to.len()) };
    }
    to.copy_from_slice(from);
}

/// Implements [`copy_out`] one word at a time.
fn copy_out_by_words(words: &[AtomicU64], at: usize, out: &mut [u8]) {
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed).to_ne_bytes();
    let (first, skip) = (at / WORD_SIZE, at % WORD_SIZE);
    let mut words = words.get(first..).unwrap_or_default().iter();
    let mut rest = out;
    if skip > 0 {
        let Some(bytes) = words.next().map(load) else { return };
        let head = bytes.get(skip..).unwrap_or_default();
        let (to, left) = rest.split_at_mut(head.len().min(rest.len()));
        to.copy_from_slice(head.get(..to.len()).unwrap_or_default());
        rest = left;
    }
    let (chunks, tail) = rest.as_chunks_mut::<WORD_SIZE>();
    for (chunk, word) in chunks.iter_mut().zip(words.by_ref()) {
        *chunk = load(word);
    }
    if let Some(bytes) = words.next().map(load) {
        tail.copy_from_slice(bytes.get(..tail.len()).unwrap_or_default());
    }
}

/// Fills `to` with the bytes that begin at byte `at` of `words`, using instructions that copy more
/// than a word at once. Panics if `to` has fewer than [`COPY_LENGTH_MIN`] bytes, or if the words
/// end before `to` is full.
#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
#[inline]
fn copy_out_by_instruction(words: &[AtomicU64], at: usize, to: &mut [u8]) {
    assert!(
        to.len() >= COPY_LENGTH_MIN && at + to.len() <= size_of_val(words),
        "range out of bounds"
    );
    let from = words.as_ptr().cast::<u8>().wrapping_add(at);
    // SAFETY: the range is in the words (asserted), which are mapped and readable while borrowed;
    // the caller expects torn bytes.
    unsafe { copy_bytes(from, to.as_mut_ptr(), to.len()) }
}

/// Copies `bytes` into the elements of `words` from index `first` on. Pads the last word with
/// zeros, and drops bytes beyond the end of `words`.
#[inline]
pub(crate) fn copy_in(words: &[AtomicU64], first: usize, bytes: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    if bytes.len() >= COPY_LENGTH_MIN
        && bytes.len().is_multiple_of(WORD_SIZE)
        && let Some(room) = words.get(first..).and_then(|to| to.get(..bytes.len() / WORD_SIZE))
    {
        return copy_into_words(bytes, room);
    }
    copy_in_by_words(words, first, bytes);
}

/// Implements [`copy_in`] one word at a time.
fn copy_in_by_words(words: &[AtomicU64], first: usize, bytes: &[u8]) {
    let mut words = words.get(first..).unwrap_or_default().iter();
    let (chunks, tail) = bytes.as_chunks::<WORD_SIZE>();
    for (chunk, word) in chunks.iter().zip(words.by_ref()) {
        word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
    }
    if let (Some(word), false) = (words.next(), tail.is_empty()) {
        let mut value = [0; WORD_SIZE];
        if let Some(to) = value.get_mut(..tail.len()) {
            to.copy_from_slice(tail);
        }
        word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn every_offset_and_length_round_trips() {
        let words: Vec<_> = (0..8).map(|_| AtomicU64::new(u64::MAX)).collect();
        let bytes: Vec<u8> = (0..48).collect();
        copy_in(&words, 1, &bytes);
        for at in 0..48 {
            for length in 0..=48 - at {
                let mut out = vec![0xee; length + 1];
                copy_out(&words, 8 + at, &mut out[..length]);
                assert_eq!(out[..length], bytes[at..at + length], "{at} {length}");
                assert_eq!(out[length], 0xee);
            }
        }
        copy_in(&words, 1, b"abc");
        let mut out = [9; 8];
        copy_out(&words, 8, &mut out);
        assert_eq!(out, *b"abc\0\0\0\0\0");
    }

    #[test]
    fn copy_of_private_memory_is_complete() {
        let bytes: Vec<u8> = (0..20_000).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
        for length in (0..600).chain([1023, 1024, 1025, 4000, 8191, 8192, 20_000]) {
            for at in [0, 1, 16, 31, 33, 64] {
                let mut out = vec![0xee; length + 128];
                copy(&bytes[..length], &mut out[at..at + length]);
                assert_eq!(out[at..at + length], bytes[..length], "{length} at {at}");
                assert!(out[..at].iter().chain(&out[at + length..]).all(|byte| *byte == 0xee));
            }
        }
    }

    #[test]
    fn copy_out_of_long_ranges_round_trips() {
        let words: Vec<_> = (0..2600).map(|_| AtomicU64::new(0)).collect();
        let bytes: Vec<u8> =
            (0..2600 * WORD_SIZE).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
        copy_in(&words, 0, &bytes);
        for length in (1..600).chain([1023, 1024, 1025, 1400, 4000, 8191, 8192, 20_000]) {
            for at in [0, 1, 7, 8, 13, 16, 250] {
                let mut out = vec![0xee; length + 16];
                copy_out(&words, at, &mut out[..length]);
                assert_eq!(out[..length], bytes[at..at + length], "{at} {length}");
                assert_eq!(out[length..], [0xee; 16], "{at} {length}");
            }
        }
        let mut out = vec![0xee; 5000];
        copy_out(&words, 2600 * WORD_SIZE - 20, &mut out);
        assert_eq!(out[..20], bytes[2600 * WORD_SIZE - 20..]);
        assert_eq!(out[20..], [0xee; 4980]);
    }

    #[test]
    fn copies_stop_at_the_end_of_the_words() {
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        copy_in(&words, 1, &[7; 100]);
        copy_in(&words, 9, &[7; 100]);
        let mut out = [1; 32];
        copy_out(&words, 5, &mut out);
        assert_eq!(out[..3], [0; 3]);
        assert_eq!(out[3..11], [7; 8]);
        assert_eq!(out[11..], [1; 21]);
        copy_out(&words, 1000, &mut out);
    }
}
