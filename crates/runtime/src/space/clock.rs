//! The clock of a path, which is either block time or live time. (CONTRACT 11)

use filter::{Columns, Time};

/// The clock that a path uses for timestamps and timers (CONTRACT 11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// Block time: the time of the newest block, in nanoseconds.
    BlockTime(Time),
    /// Live time: monotonic time plus a constant. The constant is the difference between the time
    /// of day and monotonic time when the path was built. Live time never jumps, and is comparable
    /// with block times.
    Live,
}

impl Clock {
    /// Advances block time to the time of the newest block in `columns`. Returns the current time
    /// on the path's clock, which is `now` in a live path and block time otherwise.
    pub(super) fn advance(&mut self, columns: &Columns, now: Time) -> Time {
        match self {
            Self::Live => now,
            Self::BlockTime(newest) => {
                *newest = columns.newest_timestamp().map_or(*newest, |time| time.max(*newest));
                *newest
            }
        }
    }

    /// Advances block time to at least `other`, the block time of another space. Returns the
    /// current time on the path's clock, which is `now` in a live path and block time otherwise.
    pub(super) fn advance_to(&mut self, other: Time, now: Time) -> Time {
        match self {
            Self::Live => now,
            Self::BlockTime(newest) => {
                *newest = other.max(*newest);
                *newest
            }
        }
    }
}
