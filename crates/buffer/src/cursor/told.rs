//! Published counts of a party, true of what the party has published even if it is killed between
//! the two. (CONTRACT 19; RELIABILITY, kill -9)
//!
//! There are two copies, each with the position that it belongs to. The one that does not belong to
//! what is shown is written, then the position is shown; who looks takes the copy that belongs to
//! the position that it sees. Counts only grow, so that of two copies for one position the greater
//! is the newer: a block that was dropped moves no position.

use crate::atomic::{Ordering, acquire, fence};
use crate::region::Region;
use abi::ring::COPY_WORDS;

/// Four counts, as they lie in a page.
type Counts = [u64; 4];

/// Tells counts, each time in the copy that was not written last.
#[derive(Debug, Default)]
pub(super) struct Teller {
    second: bool,
}

impl Teller {
    /// Writes the counts of what will be shown next, up to this position.
    #[inline]
    pub(super) fn tell(&mut self, page: &Region, ledger: usize, position: u64, counts: Counts) {
        let copy = ledger + if self.second { COPY_WORDS } else { 0 };
        self.second = !self.second;
        // What was shown last is shown before its other copy is written over.
        fence(Ordering::Release);
        page.word(copy).store(position, Ordering::Relaxed);
        for (i, count) in counts.into_iter().enumerate() {
            page.word(copy + 1 + i).store(count, Ordering::Relaxed);
        }
    }
}

/// The counts that belong to what a page shows. Of a party that is just telling others, the newest.
pub(super) fn told(page: &Region, shown: usize, ledger: usize) -> Counts {
    let position = acquire(page.word(shown));
    let copy = |first: usize| {
        let belongs = acquire(page.word(first)) == position;
        let counts: Counts = std::array::from_fn(|i| acquire(page.word(first + 1 + i)));
        (belongs, counts)
    };
    copy(ledger).max(copy(ledger + COPY_WORDS)).1
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use abi::ring::writer::{COMMIT, LEDGER};

    #[test]
    fn what_was_counted_and_not_shown_is_not_told() {
        let page = Region::heap(abi::ring::PAGE_WORDS);
        let mut teller = Teller::default();
        let show = |position| page.word(COMMIT).store(position, Ordering::Release);
        let told = || told(&page, COMMIT, LEDGER);
        assert_eq!(told(), [0; 4]);
        for block in 1..6 {
            teller.tell(&page, LEDGER, block * 32, [block, block * 10, 0, 0]);
            assert_eq!(told(), [block - 1, (block - 1) * 10, 0, 0], "killed before it was shown");
            show(block * 32);
            assert_eq!(told(), [block, block * 10, 0, 0]);
        }
        teller.tell(&page, LEDGER, 160, [5, 50, 1, 7]);
        assert_eq!(told(), [5, 50, 1, 7], "what is dropped moves no position");
        teller.tell(&page, LEDGER, 192, [6, 60, 1, 7]);
        assert_eq!(told(), [5, 50, 1, 7]);
    }
}
