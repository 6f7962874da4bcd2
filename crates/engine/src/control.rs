//! Stopping a path: one flag, and everything that must be woken to see it.

use buffer::signal::Bell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What all spaces of a path look at.
#[derive(Debug)]
pub struct Control {
    stopped: AtomicBool,
    bells: Mutex<Vec<Arc<Bell>>>,
    wake: sys::eventfd::EventFd,
}

impl Control {
    /// Control over a path that is not stopped.
    pub fn new() -> sys::Result<Self> {
        Ok(Self {
            stopped: AtomicBool::new(false),
            bells: Mutex::new(Vec::new()),
            wake: sys::eventfd::EventFd::new()?,
        })
    }

    /// Has this bell rung when the path is stopped.
    pub fn ring_too(&self, bell: &Arc<Bell>) {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(bell));
    }

    /// Lets the sources end: what is under way drains.
    pub fn stop(&self) {
        // SYNC POINT: stop; pairs with the Acquire in `is_stopped`.
        self.stopped.store(true, Ordering::Release);
        for bell in self.bells.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            bell.ring();
        }
        self.wake.notify();
    }

    /// Whether the sources are to end.
    #[inline]
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        // SYNC POINT: stop; pairs with the Release in `stop`.
        self.stopped.load(Ordering::Acquire)
    }
}

impl AsFd for Control {
    /// A descriptor that is readable once the path is stopped.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
