//! Stopping a path, and asking how far it is: two words that all spaces look at, and everything
//! that must be woken to see them.
//!
//! Asking costs a space one load of a shared word per pass, and nothing is written while nobody
//! asks. An answer is what a source has seen so far; a space that is busy answers when it looks
//! again, so whoever asks takes what was answered last and never waits.

use buffer::signal::Doorbell;
use endpoint::Seen;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Control state that all spaces of a path poll.
#[derive(Debug)]
pub struct Control {
    stopped: AtomicBool,
    /// Number of position requests so far.
    asked: AtomicU32,
    answers: Mutex<Vec<Answer>>,
    bells: Mutex<Vec<Arc<Doorbell>>>,
    wake: sys::eventfd::EventFd,
}

/// Position of a source at the time it was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Index of the source's node in the plan.
    pub planned: usize,
    /// Its name.
    pub name: String,
    /// Counts of the source at that time.
    pub seen: Seen,
    /// True if the source has answered the latest request, or has ended. Otherwise it is blocked by
    /// the readers of its blocks.
    pub fresh: bool,
    /// True if the source has ended.
    pub last: bool,
}

impl Control {
    /// Control over a path that is not stopped.
    pub fn new() -> sys::Result<Self> {
        Ok(Self {
            stopped: AtomicBool::new(false),
            asked: AtomicU32::new(0),
            answers: Mutex::new(Vec::new()),
            bells: Mutex::new(Vec::new()),
            wake: sys::eventfd::EventFd::new()?,
        })
    }

    /// Has this bell rung when the path is stopped and when it is asked.
    pub fn ring_too(&self, bell: &Arc<Doorbell>) {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(bell));
    }

    /// Has these bells rung, and no others.
    pub fn ring_only(&self, bells: impl Iterator<Item = Arc<Doorbell>>) {
        *self.bells.lock().unwrap_or_else(PoisonError::into_inner) = bells.collect();
    }

    /// Lets the sources end: what is under way drains.
    pub fn stop(&self) {
        // SYNC POINT: stop; pairs with the Acquire in `is_stopped`.
        self.stopped.store(true, Ordering::Release);
        self.ring();
        self.wake.notify();
    }

    /// Returns true if the sources are to end.
    #[inline]
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        // SYNC POINT: stop; pairs with the Release in `stop`.
        self.stopped.load(Ordering::Acquire)
    }

    /// Asks all spaces what their sources have seen.
    pub fn ask(&self) {
        for answer in self.answered().iter_mut() {
            answer.fresh = answer.last;
        }
        // Only the number travels by this word, and a sleeper hears of it through its bell.
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.ring();
    }

    /// Returns the number of position requests so far; a space that observes a new number answers.
    #[inline]
    #[must_use]
    pub fn asked(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Says what a source has seen, in the place of what it said before, and whether that is all.
    pub fn answer(&self, planned: usize, name: &str, seen: Seen, last: bool) {
        let mut answers = self.answered();
        answers.retain(|answer| answer.planned != planned);
        answers.push(Answer { planned, name: name.to_owned(), seen, fresh: true, last });
    }

    /// Returns the latest answers of the sources, in plan order.
    #[must_use]
    pub fn answers(&self) -> Vec<Answer> {
        let mut answers = self.answered().clone();
        answers.sort_by_key(|answer| answer.planned);
        answers
    }

    fn answered(&self) -> MutexGuard<'_, Vec<Answer>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has every space of the path look again.
    pub fn ring(&self) {
        for bell in self.bells.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            bell.notify();
        }
    }
}

impl AsFd for Control {
    /// A descriptor that is readable once the path is stopped.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
