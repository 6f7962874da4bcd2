//! The time of a path, as its blocks or the machine tell it. (CONTRACT 11)

use filter::{Columns, Time};

/// The path's clock (CONTRACT 11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// Block time: the time of the newest block.
    Blocks(Time),
    /// Monotonic time, counted from the time of day at which the path was built: it never jumps,
    /// and blocks carry times that people can read.
    Live,
}

impl Clock {
    /// The path's time when these blocks have come, at live time `now`.
    pub(super) fn advance(&mut self, columns: &Columns, now: Time) -> Time {
        match self {
            Self::Live => now,
            Self::Blocks(newest) => {
                *newest = columns.newest().map_or(*newest, |time| time.max(*newest));
                *newest
            }
        }
    }
}
