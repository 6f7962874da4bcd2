//! The atomic types that this crate uses: those of `core` or, in models, those of loom. No other
//! module imports atomic types.
//!
//! Accesses are at most Acquire or Release. Only fences are sequentially consistent: loom weakens
//! sequentially consistent accesses.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};

/// Loads a word with Acquire ordering. Uses a relaxed load and a fence, because the word may be in
/// memory mapped read-only, for which Rust guarantees only relaxed loads.
pub fn load_acquire(word: &AtomicU64) -> u64 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}

/// Executes the processor's spin-loop hint. Under loom, yields to the other threads.
pub(crate) fn pause() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}
