//! The one door by which atomics come in, so that loom can stand behind it in the models.
//!
//! Beside Acquire and Release only fences are sequentially consistent: loom takes accesses that are
//! for less.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};

/// Reads a word with Acquire. Made of a relaxed load and a fence, because the word may lie in
/// memory that is mapped read-only, where Rust promises only relaxed loads.
pub fn acquire(word: &AtomicU64) -> u64 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}

/// Lets the processor know that we wait in a loop.
pub(crate) fn pause() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}
