//! Spinning waits in a thread of the program. No signal is lost during a wait.

use super::{errno, set_errno};
use std::mem::MaybeUninit;
use std::ptr;

/// A spinning wait. Signals are blocked between two steps, so a signal that arrives between them
/// interrupts the next step and is not lost.
#[derive(Debug)]
pub struct SpinWait {
    before: libc::sigset_t,
}

impl SpinWait {
    /// Begins a wait by blocking signals; `None` if they cannot be blocked.
    #[must_use]
    pub fn begin() -> Option<Self> {
        let mut all = MaybeUninit::uninit();
        // SAFETY: sigfillset(3) initializes the set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        let mut before = MaybeUninit::uninit();
        let (how, set) = (libc::SIG_SETMASK, all.as_ptr());
        // SAFETY: pthread_sigmask(3) reads the initialized set, and writes the other one.
        let failed = unsafe { libc::pthread_sigmask(how, set, before.as_mut_ptr()) };
        // SAFETY: pthread_sigmask(3) has written the set unless it failed.
        (failed == 0).then(|| Self { before: unsafe { before.assume_init() } })
    }

    /// Yields the processor once, then lets pending signals be handled. Returns false if a signal
    /// handler has run.
    #[must_use]
    pub fn step(&self) -> bool {
        std::thread::yield_now();
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let saved = errno();
        // SAFETY: without descriptors, ppoll(2) only reads the time and the mask.
        let result =
            unsafe { libc::ppoll(ptr::null_mut(), 0, &raw const now, &raw const self.before) };
        set_errno(saved);
        result >= 0
    }
}

impl Drop for SpinWait {
    fn drop(&mut self) {
        // SAFETY: pthread_sigmask(3) reads the set, which it has written itself.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}
