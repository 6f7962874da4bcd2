//! Wake-ups between processes that do not trust each other. A sleeper publishes two words in its
//! own page: a sleep count, and its *threshold*, the position at which it must be woken.
//!
//! Each word has a single writer, so no peer can clear another party's flag, as it could in a
//! `signal::Doorbell`. The sleep count is odd while the party is asleep. A peer notifies once when
//! it finds an odd count for which it has not yet notified, and has reached the threshold.
//!
//! SYNC POINT *falling asleep*: the sleeper stores its count, issues a fence, and checks its
//! condition once more; the peer stores its position, issues a fence, and reads the count. The
//! fences are sequentially consistent: at least one party sees the other's store, so no wake-up is
//! lost. A bogus value in these words costs the peer at most one notification, which does not
//! block.

use crate::atomic::{Ordering, fence, load_acquire};
use crate::region::Region;
use abi::ring::wait::{SLEEP_COUNT, THRESHOLD_ONLY, WAKE_POSITION};

/// The state of a party that sleeps until its peer wakes it.
#[derive(Debug, Default)]
pub struct Sleeper {
    count: u64,
}

impl Sleeper {
    /// Publishes in `page`, in the words from index `at` on, that the caller is about to sleep
    /// until the other party reaches position `until`. The caller must then check its condition
    /// again, sleep if the condition does not hold, and finally call [`Sleeper::announce_wake`].
    pub fn announce_sleep(&mut self, page: &Region, at: usize, until: u64) {
        self.count += 1;
        page.word(at + WAKE_POSITION).store(until, Ordering::Relaxed);
        page.word(at + SLEEP_COUNT).store(self.count, Ordering::Release);
        // SYNC POINT: falling asleep; pairs with the fence in `is_due`.
        fence(Ordering::SeqCst);
    }

    /// Publishes in `page`, in the words from index `at` on, that the caller is awake.
    pub fn announce_wake(&mut self, page: &Region, at: usize) {
        self.count += 1;
        page.word(at + SLEEP_COUNT).store(self.count, Ordering::Release);
    }
}

/// The urgency of waking a sleeper after a publication. It is lower if more publications follow
/// soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// More publications follow immediately, and the last of them has the urgency `More` or `Last`.
    /// Wakes a sleeper whose threshold is reached. Omits the fence, which would stall the writer
    /// until it owns all cache lines just written. A party that falls asleep at this moment may
    /// therefore go unnoticed until the next notification.
    Flow,
    /// More publications may follow. Wakes a sleeper whose threshold is reached.
    More,
    /// No publication may follow for a while. Wakes a sleeper regardless of its threshold.
    Last,
}

/// The result of a read that stops at *marks*, which are empty blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadUntilMarkResult {
    /// Number of bytes copied, from one block or several.
    Bytes(usize),
    /// An empty block, which has been taken.
    Mark,
    /// There is nothing to read yet.
    Nothing,
    /// The stream has ended.
    End,
}

/// The result of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitResult {
    /// There is something to read, the stream has ended, or there is room to write.
    Ready,
    /// The wait ended for another reason: the time limit, a spurious wake-up, or the readiness of
    /// another descriptor. A wait that does not distinguish signals also returns this after one.
    NotReady,
    /// A signal handler ended the wait. Only the ends of a stream of bytes return this.
    Interrupted,
}

/// The result of reading one block of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockReadResult {
    /// A block of this length in bytes, which may be 0.
    Block(usize),
    /// No block is published yet.
    Nothing,
    /// The stream has ended.
    End,
}

/// The state of a party that wakes a sleeper: the sleep count of the sleeper for which this party
/// has last sent a notification.
#[derive(Debug, Default)]
pub struct Notifier {
    notified: u64,
}

impl Notifier {
    /// Returns true if the party whose sleep words begin at index `at` of `page` is asleep and has
    /// not been notified. Call this after a publication.
    pub(crate) fn has_unnotified_sleeper(&self, page: &Region, at: usize) -> bool {
        // SYNC POINT: falling asleep; pairs with the fence in `announce_sleep`.
        fence(Ordering::SeqCst);
        let count = load_acquire(page.word(at + SLEEP_COUNT));
        !count.is_multiple_of(2) && count != self.notified
    }

    /// Returns true if the party whose sleep words begin at index `at` of `page` must be notified
    /// now, and then records the notification. This is the case if the party is asleep and has not
    /// been notified, and either `position` has reached that party's threshold, or `urgency` is
    /// `Last` and [`THRESHOLD_ONLY`] is not set. Call this after `position` has been published.
    pub fn is_due(&mut self, page: &Region, at: usize, position: u64, urgency: Urgency) -> bool {
        if urgency != Urgency::Flow {
            // SYNC POINT: falling asleep; pairs with the fence in `announce_sleep`.
            fence(Ordering::SeqCst);
        }
        let count = load_acquire(page.word(at + SLEEP_COUNT));
        if count.is_multiple_of(2) || count == self.notified {
            return false;
        }
        let until = page.word(at + WAKE_POSITION).load(Ordering::Relaxed);
        let is_flushed = urgency == Urgency::Last && until & THRESHOLD_ONLY == 0;
        let due = is_flushed || position >= until & !THRESHOLD_ONLY;
        if due {
            self.notified = count;
        }
        due
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models;
