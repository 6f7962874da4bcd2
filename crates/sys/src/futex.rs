//! Sleeping on a word, and waking who sleeps on it.
//!
//! Only among parties that trust each other (CONTRACT 24): who can write the word can keep a
//! sleeper asleep. Waking costs about 7 µs once the other processor has halted, and arming a
//! time-out about 5 µs (BASELINES): look at a waiter flag first, and sleep without a time-out.

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Who may sleep on the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Threads of this process. Cheaper: the kernel need not look at what is mapped.
    Private,
    /// Every process that maps the memory.
    Shared,
}

impl Reach {
    const fn flags(self) -> Flags {
        match self {
            Self::Private => Flags::PRIVATE,
            Self::Shared => Flags::empty(),
        }
    }
}

/// Sleeps as long as the word is `expected` and nobody wakes it. Comes back early for a signal or
/// for no reason at all: the caller looks again.
pub fn wait(word: &AtomicU32, expected: u32, reach: Reach) {
    let woken = futex::wait(word, reach.flags(), expected, None);
    debug_assert!(matches!(woken, Ok(()) | Err(Errno::AGAIN | Errno::INTR)), "{woken:?}");
}

/// As [`wait`], for at most `limit`. Answers whether the time was up.
pub fn wait_for(word: &AtomicU32, expected: u32, reach: Reach, limit: Duration) -> bool {
    let limit = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    futex::wait(word, reach.flags(), expected, Some(&limit)) == Err(Errno::TIMEDOUT)
}

/// Wakes up to `count` sleepers and answers how many there were.
pub fn wake(word: &AtomicU32, count: u32, reach: Reach) -> usize {
    // The kernel takes a signed number.
    futex::wake(word, reach.flags(), count.min(i32::MAX as u32)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_sleeper_is_woken_or_sees_that_the_word_has_changed() {
        for reach in [Reach::Private, Reach::Shared] {
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
    fn a_wait_with_a_limit_ends() {
        let word = AtomicU32::new(0);
        assert!(wait_for(&word, 0, Reach::Private, Duration::from_millis(1)));
        assert!(!wait_for(&word, 1, Reach::Private, Duration::from_secs(60)));
        assert_eq!(wake(&word, 1, Reach::Private), 0);
    }
}
