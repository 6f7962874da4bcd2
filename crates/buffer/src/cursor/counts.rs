//! The counts that a party publishes together with its position. The counts match the position even
//! if the party is killed between the two stores. (CONTRACT 19; RELIABILITY, kill -9)
//!
//! The page holds two copies of the counts, each tagged with a position. A party overwrites the
//! copy that does not match its published position, then publishes the new position. An observer
//! uses the copy whose tag equals the published position. Both copies may have the same tag,
//! because dropping a block does not advance the position. Since counts only grow, the copy with
//! the greater counts is then the newer one.

use crate::atomic::{Ordering, fence, load_acquire};
use crate::region::Region;
use abi::ring::COPY_STRIDE_WORDS;

/// The four counts of a writer or reader, in the order in which they are stored in its control
/// page.
type Counts = [u64; 4];

/// Writer of the counts of one party (the writer or a reader of a ring) into its control page.
/// Alternates between the two copies of the counts in this page.
#[derive(Debug, Default)]
pub(super) struct CountsWriter {
    writes_second: bool,
}

impl CountsWriter {
    /// Writes the counts that belong to `position` into the control page. The caller publishes
    /// `position` afterwards. `ledger` is the index of the word at which the first of the two
    /// copies of the counts begins.
    #[inline]
    pub(super) fn write(&mut self, page: &Region, ledger: usize, position: u64, counts: Counts) {
        let copy = ledger + if self.writes_second { COPY_STRIDE_WORDS } else { 0 };
        self.writes_second = !self.writes_second;
        // Orders the last publication before the stores to the other copy.
        fence(Ordering::Release);
        page.word(copy).store(position, Ordering::Relaxed);
        for (i, count) in counts.into_iter().enumerate() {
            page.word(copy + 1 + i).store(count, Ordering::Relaxed);
        }
    }
}

/// Returns the counts that belong to a party's published position. `published` is the index of the
/// word with this position in the party's control page, and `ledger` that of the first copy of the
/// counts. If the party is writing new counts at this moment, returns the newest counts that match
/// the position.
pub(super) fn read_counts(page: &Region, published: usize, ledger: usize) -> Counts {
    let position = load_acquire(page.word(published));
    let copy = |first: usize| {
        let belongs = load_acquire(page.word(first)) == position;
        let counts: Counts = std::array::from_fn(|i| load_acquire(page.word(first + 1 + i)));
        (belongs, counts)
    };
    copy(ledger).max(copy(ledger + COPY_STRIDE_WORDS)).1
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use abi::ring::writer::{COMMITTED_POSITION, LEDGER};

    #[test]
    fn counts_become_visible_with_their_position() {
        let page = Region::heap(abi::ring::PAGE_WORDS);
        let mut counts_writer = CountsWriter::default();
        let publish = |position| page.word(COMMITTED_POSITION).store(position, Ordering::Release);
        let counts = || read_counts(&page, COMMITTED_POSITION, LEDGER);
        assert_eq!(counts(), [0; 4]);
        for block in 1..6 {
            counts_writer.write(&page, LEDGER, block * 32, [block, block * 10, 0, 0]);
            assert_eq!(counts(), [block - 1, (block - 1) * 10, 0, 0], "killed before publication");
            publish(block * 32);
            assert_eq!(counts(), [block, block * 10, 0, 0]);
        }
        counts_writer.write(&page, LEDGER, 160, [5, 50, 1, 7]);
        assert_eq!(counts(), [5, 50, 1, 7], "dropping a block advances no position");
        counts_writer.write(&page, LEDGER, 192, [6, 60, 1, 7]);
        assert_eq!(counts(), [5, 50, 1, 7]);
    }
}
