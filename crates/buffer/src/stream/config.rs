//! The shape of a stream, and what both ends know of the machine.

use crate::scale::Scaling;
use crate::{Policy, dbuf};
use abi::DbufId;
use std::sync::OnceLock;

/// The shape of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The ring.
    pub ring: dbuf::Config,
    /// Blocks between two publications (T_b).
    pub every: usize,
    /// Bytes up to which the ring may grow in place; 0: it continues in new memory
    /// ([`Config::cut`]).
    pub extent: usize,
    /// Rule by which the ring sizes itself; `None`: fixed.
    pub scaling: Option<Scaling>,
    /// Time in ns that a block may wait for its reader to be woken (T_t); `None`: until there is as
    /// much as the reader asked for, or the writer flushes.
    pub latency: Option<u64>,
}

impl Config {
    /// Makes the default shape: blocking, 1 MB, one reader, published every 32 blocks.
    #[must_use]
    pub const fn new(id: DbufId) -> Self {
        Self { ring: dbuf::Config::new(id), every: 32, extent: 0, scaling: None, latency: None }
    }

    /// Sets the bytes of the ring.
    #[must_use]
    pub const fn capacity(self, capacity: usize) -> Self {
        Self { ring: dbuf::Config { capacity, ..self.ring }, ..self }
    }

    /// Sets the number of readers.
    #[must_use]
    pub const fn readers(self, readers: usize) -> Self {
        Self { ring: dbuf::Config { readers, ..self.ring }, ..self }
    }

    /// Reserves memory so that the size can change in place up to this many bytes: deck-cut.
    /// Readers must trust the writer, which can empty the memory under them, and say so
    /// ([`Offer::open_trusting`](super::Offer::open_trusting)); a ring that overwrites is never
    /// cut. [SL §5.4]
    #[must_use]
    pub const fn cut(self, extent: usize) -> Self {
        Self { extent, ..self }
    }

    /// Lets the writer resize the ring after each lap by how full it was ([`crate::scale`]).
    /// [SL §5.4]
    #[must_use]
    pub const fn scaling(self, scaling: Scaling) -> Self {
        Self { scaling: Some(scaling), ..self }
    }

    /// Wakes a sleeping reader after T_b blocks or this time, even while the writer is busy. Every
    /// block is published at once.
    #[must_use]
    pub const fn latency(self, ns: u64) -> Self {
        Self { latency: Some(ns), ..self }
    }

    /// Sets the policy of a full ring.
    #[must_use]
    pub const fn policy(self, policy: Policy) -> Self {
        Self { ring: dbuf::Config { policy, ..self.ring }, ..self }
    }
}

/// The answer that [`know_processors`] has fixed.
static ALONE: OnceLock<bool> = OnceLock::new();

/// Fixes the number of processors now, for a process that soon may not ask the machine any more.
pub fn know_processors() {
    ALONE.get_or_init(ask_alone);
}

/// Returns true if this process may run on one processor only.
#[must_use]
pub fn is_alone() -> bool {
    ALONE.get().copied().unwrap_or_else(ask_alone)
}

fn ask_alone() -> bool {
    std::thread::available_parallelism().map_or(1, usize::from) == 1
}

/// The result of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ready {
    /// There is something to read, the end, or room.
    Something,
    /// Nothing came in time.
    Nothing,
}
