//! The rows of a table, and the protocol that protects readers from torn rows.
//!
//! Each row has a sequence lock, and one more lock covers all rows. A sequence lock is a word that
//! its only writer makes odd before a change and even again afterwards. A reader loads the word,
//! copies the row, and loads the word again; if the word was even and is unchanged, the row did not
//! change in between.
//!
//! SYNC POINTS
//! - *change begins*: the word is stored odd, then a Release fence is issued: a reader that loads
//!   any word of the change and then passes its Acquire fence loads the odd value or a later one
//!   (`SequenceRead::is_consistent`).
//! - *change ends*: the word is stored even with Release: a reader that loads it with Acquire
//!   (`SequenceRead::begin`) sees all of the change.

use crate::atomic::{AtomicU64, Ordering, fence, load_acquire};

/// Number of words in front of a row's numbers: the lock, and a word that is nonzero if the row is
/// present.
pub(super) const ROW_HEAD_WORDS: usize = 2;

/// Begins a change under a lock, by making the lock odd.
pub(super) fn begin_change(lock: &AtomicU64) {
    let before = lock.load(Ordering::Relaxed);
    // A previous writer may have been killed in the middle: the word becomes odd in any case.
    lock.store(before | 1, Ordering::Relaxed);
    // SYNC POINT: change begins.
    fence(Ordering::Release);
}

/// Ends a change under a lock, by making the lock even again.
pub(super) fn end_locked_change(lock: &AtomicU64) {
    let now = lock.load(Ordering::Relaxed);
    // SYNC POINT: change ends.
    lock.store(now.wrapping_add(1), Ordering::Release);
}

/// Writes the numbers of a row; `None` clears the row. `row` must have [`ROW_HEAD_WORDS`] words
/// followed by one word per column.
pub(super) fn write_row(row: &[AtomicU64], numbers: Option<&[u64]>) {
    let [lock, present, words @ ..] = row else { return };
    begin_change(lock);
    present.store(numbers.is_some().into(), Ordering::Relaxed);
    for (word, number) in words.iter().zip(numbers.unwrap_or_default()) {
        word.store(*number, Ordering::Relaxed);
    }
    end_locked_change(lock);
}

/// A read under a sequence lock, with the value that the lock had at the beginning of the read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SequenceRead(u64);

impl SequenceRead {
    /// Begins a read. Returns `None` while a change is in progress.
    pub(super) fn begin(lock: &AtomicU64) -> Option<Self> {
        // SYNC POINT: change ends.
        let before = load_acquire(lock);
        before.is_multiple_of(2).then_some(Self(before))
    }

    /// Returns true if no change has begun since [`SequenceRead::begin`], so that the data read in
    /// between is consistent.
    pub(super) fn is_consistent(self, lock: &AtomicU64) -> bool {
        // SYNC POINT: change begins.
        fence(Ordering::Acquire);
        lock.load(Ordering::Relaxed) == self.0
    }
}

/// The result of one attempt to read a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RowReadResult {
    /// `out` contains the numbers of the row.
    Numbers,
    /// The table has no such row at the moment.
    Nothing,
    /// The row is being changed.
    Torn,
}

/// Attempts once to read a row into `out`.
pub(super) fn try_read_row(row: &[AtomicU64], out: &mut [u64]) -> RowReadResult {
    let [lock, present, words @ ..] = row else { return RowReadResult::Nothing };
    let Some(reading) = SequenceRead::begin(lock) else { return RowReadResult::Torn };
    let present = present.load(Ordering::Relaxed);
    for (word, number) in words.iter().zip(out) {
        *number = word.load(Ordering::Relaxed);
    }
    match reading.is_consistent(lock) {
        false => RowReadResult::Torn,
        true if present == 0 => RowReadResult::Nothing,
        true => RowReadResult::Numbers,
    }
}
