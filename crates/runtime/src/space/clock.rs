//! The time of a path, as its blocks or the machine tell it. (CONTRACT 11)

use super::Space;
use filter::{Columns, Time};
use std::time::Duration;

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

    /// The path's time when another space has seen blocks of this one, at `now` here.
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

impl Space {
    /// Returns the time until the next timer of a filter; `None` if no filter has one, or if the
    /// path goes by the time of its blocks, which then stands still.
    pub fn wakes_in(&self) -> Option<Duration> {
        let wake = self.graph.nodes.iter().filter_map(|node| node.wake).min()?;
        match self.graph.clock {
            Clock::Live => Some(Duration::from_nanos(wake.saturating_sub(self.live()))),
            Clock::Blocks(_) => None,
        }
    }
}
