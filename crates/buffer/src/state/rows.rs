//! The rows of a table, and the protocol by which nobody reads half of a change.
//!
//! A sequence lock, once for each row and once for all: a word that its one writer makes odd before
//! it changes anything and even again behind it. Who reads takes the word, copies, and takes it
//! again; if it was even and is the same, nothing changed meanwhile.
//!
//! SYNC POINTS
//! - *change begins*: the word is stored odd, then a release fence: whoever reads any word of the
//!   change and then passes its acquire fence reads the word odd or later (`Reading::is_whole`).
//! - *change ends*: the word is stored even with Release: whoever takes it with Acquire
//!   (`Reading::begin`) reads all of the change.

use crate::atomic::{AtomicU64, Ordering, acquire, fence};

/// Words of a row before its numbers: the lock, and whether there is anything.
pub(super) const HEAD: usize = 2;

/// Begins a change under this lock.
pub(super) fn open(lock: &AtomicU64) {
    let before = lock.load(Ordering::Relaxed);
    // Whoever wrote before us may have been killed in the middle: the word is odd in any case.
    lock.store(before | 1, Ordering::Relaxed);
    // SYNC POINT: change begins.
    fence(Ordering::Release);
}

/// Ends the change.
pub(super) fn close(lock: &AtomicU64) {
    let now = lock.load(Ordering::Relaxed);
    // SYNC POINT: change ends.
    lock.store(now.wrapping_add(1), Ordering::Release);
}

/// Writes the numbers of a row, or that there is none. `row` has [`HEAD`] and as many words as
/// there are columns.
pub(super) fn put(row: &[AtomicU64], numbers: Option<&[u64]>) {
    let [lock, present, words @ ..] = row else { return };
    open(lock);
    present.store(numbers.is_some().into(), Ordering::Relaxed);
    for (word, number) in words.iter().zip(numbers.unwrap_or_default()) {
        word.store(*number, Ordering::Relaxed);
    }
    close(lock);
}

/// A look at what is behind a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reading(u64);

impl Reading {
    /// Begins to read, unless a change is under way.
    pub(super) fn begin(lock: &AtomicU64) -> Option<Self> {
        // SYNC POINT: change ends.
        let before = acquire(lock);
        before.is_multiple_of(2).then_some(Self(before))
    }

    /// Returns true if all that was read since is of one moment.
    pub(super) fn is_whole(self, lock: &AtomicU64) -> bool {
        // SYNC POINT: change begins.
        fence(Ordering::Acquire);
        lock.load(Ordering::Relaxed) == self.0
    }
}

/// The result of reading a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RowRead {
    /// `out` has its numbers.
    Numbers,
    /// There is none.
    Nothing,
    /// It is being changed.
    Torn,
}

/// Reads a row once.
pub(super) fn get(row: &[AtomicU64], out: &mut [u64]) -> RowRead {
    let [lock, present, words @ ..] = row else { return RowRead::Nothing };
    let Some(reading) = Reading::begin(lock) else { return RowRead::Torn };
    let present = present.load(Ordering::Relaxed);
    for (word, number) in words.iter().zip(out) {
        *number = word.load(Ordering::Relaxed);
    }
    match reading.is_whole(lock) {
        false => RowRead::Torn,
        true if present == 0 => RowRead::Nothing,
        true => RowRead::Numbers,
    }
}
