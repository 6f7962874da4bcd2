//! The status of a space, which other threads read without sending a command.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The status of a space: its name, and the full ring at which it waits, if any. Shared by the
/// space's command queue, its rings and the stall detector.
#[derive(Debug)]
pub struct SpaceStatus {
    /// Name of the space.
    pub name: String,
    /// One more than the number of the edge whose ring is full, while the space waits for room in
    /// it; otherwise 0.
    full_ring: AtomicUsize,
}

impl SpaceStatus {
    /// Creates the status of a space that is not waiting at a ring.
    #[must_use]
    pub const fn new(name: String) -> Self {
        Self { name, full_ring: AtomicUsize::new(0) }
    }

    /// Returns the number of the edge at whose full ring the space waits; `None` if the space is
    /// not waiting.
    pub fn full_ring(&self) -> Option<usize> {
        // Relaxed suffices: the word guards no other memory.
        self.full_ring.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Stores the number of the edge whose ring is full while the space waits for room in it, or
    /// `None` if the space no longer waits.
    pub fn set_full_ring(&self, edge: Option<usize>) {
        self.full_ring.store(edge.map_or(0, |edge| edge + 1), Ordering::Relaxed);
    }
}
