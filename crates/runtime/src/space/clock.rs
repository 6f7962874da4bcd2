//! The clock of a path: block time or monotonic time. (CONTRACT 11)

use filter::{Columns, Time};

/// Time base of a path (CONTRACT 11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// Block time: time of the newest block, in nanoseconds.
    Blocks(Time),
    /// Monotonic time with the offset of the time of day at which the path was built: never jumps,
    /// and comparable with block times.
    Live,
}

impl Clock {
    /// Advances block time to the newest of these blocks; returns the path's time. `now` is the
    /// live time.
    pub(super) fn advance(&mut self, columns: &Columns, now: Time) -> Time {
        match self {
            Self::Live => now,
            Self::Blocks(newest) => {
                *newest = columns.newest().map_or(*newest, |time| time.max(*newest));
                *newest
            }
        }
    }

    /// Advances block time to at least `other`, the block time of another space; returns the path's
    /// time. `now` is the live time.
    pub(super) fn not_before(&mut self, other: Time, now: Time) -> Time {
        match self {
            Self::Live => now,
            Self::Blocks(newest) => {
                *newest = other.max(*newest);
                *newest
            }
        }
    }
}
