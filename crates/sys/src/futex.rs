//! Waits on a word in memory, and wake-ups of the waiting threads.
//!
//! Suitable only for parties that trust each other (CONTRACT 24), because any party that can write
//! the word can keep a waiter asleep. A wake-up costs about 7 µs once the other CPU has halted, and
//! arming a timeout about 5 µs (BASELINES). Callers should therefore wake only if a flag shows that
//! a thread is waiting, and should wait without a timeout.

use crate::poll::timespec;
use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// The processes whose threads may wait on a futex.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FutexScope {
    /// Only threads of this process. This scope is cheaper, because the kernel need not resolve the
    /// mapping.
    Private,
    /// Threads of all processes that map the memory.
    Shared,
}

impl FutexScope {
    const fn flags(self) -> Flags {
        match self {
            Self::Private => Flags::PRIVATE,
            Self::Shared => Flags::empty(),
        }
    }
}

/// Blocks until the word is woken if it equals `expected`; otherwise returns at once. The call may
/// also return early or spuriously, so callers check the word again.
pub fn wait(word: &AtomicU32, expected: u32, reach: FutexScope) {
    let woken = futex::wait(word, reach.flags(), expected, None);
    debug_assert!(matches!(woken, Ok(()) | Err(Errno::AGAIN | Errno::INTR)), "{woken:?}");
}

/// Waits like [`wait`], but for at most `limit`. Returns true if `limit` passed.
pub fn wait_for(word: &AtomicU32, expected: u32, reach: FutexScope, limit: Duration) -> bool {
    let limit = timespec(limit);
    futex::wait(word, reach.flags(), expected, Some(&limit)) == Err(Errno::TIMEDOUT)
}

/// Wakes up to `count` waiters. Returns the number of waiters woken.
pub fn wake(word: &AtomicU32, count: u32, reach: FutexScope) -> usize {
    // The kernel's argument is signed.
    futex::wake(word, reach.flags(), count.min(i32::MAX as u32)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn futex_waiter_wakes_or_reads_the_changed_word() {
        for reach in [FutexScope::Private, FutexScope::Shared] {
            let word = AtomicU32::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while word.load(Ordering::Acquire) == 0 {
                        wait(&word, 0, reach);
                    }
                });
                word.store(1, Ordering::Release);
                wake(&word, u32::MAX, reach);
            });
        }
    }

    #[test]
    fn futex_wait_ends_at_its_limit() {
        let word = AtomicU32::new(0);
        assert!(wait_for(&word, 0, FutexScope::Private, Duration::from_millis(1)));
        assert!(!wait_for(&word, 1, FutexScope::Private, Duration::from_secs(60)));
        assert_eq!(wake(&word, 1, FutexScope::Private), 0);
    }
}
