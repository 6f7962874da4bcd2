//! The configuration of a stream, and the detection of machines with one processor.

use crate::scale::ScalingParameters;
use crate::{OverflowPolicy, dbuf};
use abi::DbufId;
use std::sync::OnceLock;

/// The configuration of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Ring that carries the stream.
    pub ring: dbuf::BlockConfig,
    /// Number of blocks between two publications (T_b).
    pub every: usize,
    /// Size in bytes up to which the ring may grow in place, or 0 if a resized ring continues in
    /// new memory ([`Config::in_place_capacity_max`]).
    pub extent: usize,
    /// Parameters for resizing the ring, or `None` if the size is fixed.
    pub scaling: Option<ScalingParameters>,
    /// Time in nanoseconds after which a sleeping reader is woken (T_t). With `None`, a reader is
    /// woken only when enough bytes are unread or the writer flushes.
    pub latency: Option<u64>,
}

impl Config {
    /// Returns the default configuration: a blocking ring of 1 MB with one reader, and publication
    /// after every 32 blocks.
    #[must_use]
    pub const fn new(id: DbufId) -> Self {
        Self {
            ring: dbuf::BlockConfig::new(id),
            every: 32,
            extent: 0,
            scaling: None,
            latency: None,
        }
    }

    /// Sets the size of the ring in bytes.
    #[must_use]
    pub const fn capacity(self, capacity: usize) -> Self {
        Self { ring: dbuf::BlockConfig { capacity, ..self.ring }, ..self }
    }

    /// Sets the number of readers.
    #[must_use]
    pub const fn readers(self, readers: usize) -> Self {
        Self { ring: dbuf::BlockConfig { readers, ..self.ring }, ..self }
    }

    /// Reserves memory so that the capacity can change in place up to `extent` bytes (deck-cut).
    /// Readers must trust the writer, which can punch holes into the memory that they read, and
    /// declare that by [`Offer::open_trusting`](super::Offer::open_trusting). Has no effect on a
    /// ring that overwrites. [SL §5.4]
    #[must_use]
    pub const fn in_place_capacity_max(self, extent: usize) -> Self {
        Self { extent, ..self }
    }

    /// Makes the writer resize the ring after each lap according to its fill level
    /// ([`crate::scale`]). [SL §5.4]
    #[must_use]
    pub const fn scaling(self, scaling: ScalingParameters) -> Self {
        Self { scaling: Some(scaling), ..self }
    }

    /// Permits the writer to fit the size of the ring to the caches of this machine
    /// ([`Config::scaling`]). Has no effect if the writer drops or overwrites, because the size of
    /// such a ring determines which blocks are lost. Detects the sizes of the caches once per
    /// process.
    #[must_use]
    pub fn self_sizing(self) -> Self {
        if self.ring.policy != OverflowPolicy::Block {
            return self;
        }
        self.scaling(ScalingParameters::for_reallocation(cache_sizes()))
    }

    /// Permits the writer to fit the size of the ring to the caches of this machine, like
    /// [`Config::self_sizing`], but never below the configured capacity, so that the maximum length
    /// of a block does not decrease.
    #[must_use]
    pub fn self_growing(self) -> Self {
        let sized = self.self_sizing();
        Self { scaling: sized.scaling.map(|s| s.with_minimum_size(self.ring.capacity)), ..sized }
    }

    /// Permits the writer to size the ring like [`Config::self_sizing`], but only up to the
    /// configured capacity and within memory that is reserved now
    /// ([`Config::in_place_capacity_max`]). A reader then notices no change, and no process needs
    /// new memory or descriptors. Has no effect if the writer drops or overwrites.
    #[must_use]
    pub fn self_sizing_in_place(self) -> Self {
        if self.ring.policy != OverflowPolicy::Block {
            return self;
        }
        let scaling = ScalingParameters::for_in_place_resizing(cache_sizes())
            .with_maximum_size(self.ring.capacity);
        self.in_place_capacity_max(self.ring.capacity).scaling(scaling)
    }

    /// Limits to `ns` nanoseconds the time between the publication of a block and the wake-up of a
    /// sleeping reader, even if the writer is busy. With this limit, the writer publishes every
    /// block immediately.
    #[must_use]
    pub const fn latency(self, ns: u64) -> Self {
        Self { latency: Some(ns), ..self }
    }

    /// Sets the policy that applies when the ring is full.
    #[must_use]
    pub const fn policy(self, policy: OverflowPolicy) -> Self {
        Self { ring: dbuf::BlockConfig { policy, ..self.ring }, ..self }
    }
}

/// Returns the sizes of the data caches in bytes, level 1 first. Reads them once per process.
#[must_use]
pub fn cache_sizes() -> &'static [usize] {
    static CACHE_SIZES: OnceLock<Vec<usize>> = OnceLock::new();
    CACHE_SIZES.get_or_init(|| sys::machine::Machine::detect().cache_sizes)
}

/// True if this process may run on one processor only. Set by [`fix_processor_count`]; unset if
/// that function has not been called.
static HAS_SINGLE_PROCESSOR: OnceLock<bool> = OnceLock::new();

/// Determines the number of processors now, for a process that will not be permitted to query it
/// later.
pub fn fix_processor_count() {
    HAS_SINGLE_PROCESSOR.get_or_init(query_single_processor);
}

/// Returns true if this process may run on one processor only.
#[must_use]
pub fn has_single_processor() -> bool {
    HAS_SINGLE_PROCESSOR.get().copied().unwrap_or_else(query_single_processor)
}

fn query_single_processor() -> bool {
    std::thread::available_parallelism().map_or(1, usize::from) == 1
}
