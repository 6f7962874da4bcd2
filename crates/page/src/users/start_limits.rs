//! Rate limits for each user: on starts of the user's process, and on log messages about refused
//! requests.
//!
//! The limits are necessary because a user can kill the user's own process at any time, and can
//! send requests that are refused.

use std::time::{Duration, Instant};

/// Running time from which on the end of a user's process does not count as early.
pub(super) const STEADY_TIME_MIN: Duration = Duration::from_secs(60);
/// Pause before the next start of a user's process, if the last two processes have ended early.
/// Each further early end doubles the pause.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// Maximum pause before the next start of a user's process.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Minimum time between two log messages about refused requests.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The start and log limits of one user, which all accounts of the user share.
#[derive(Debug, Default)]
pub(super) struct StartLimits {
    /// Number of consecutive processes that have ended early.
    early_ends: u32,
    /// Earliest time of the next start of the user's process, or `None` if it can start at once.
    next: Option<Instant>,
    /// Time of the latest log message about a refused request, or `None` before the first one.
    reported: Option<Instant>,
    /// Number of requests refused since the latest log message about a refused request.
    refused: u64,
}

impl StartLimits {
    /// Returns the number of consecutive early ends and the time until the next start is permitted;
    /// `None` if the process may be started at the time `now`.
    pub(super) fn remaining_pause(&self, now: Instant) -> Option<(u32, Duration)> {
        let pause = self.next?.saturating_duration_since(now);
        (!pause.is_zero()).then_some((self.early_ends, pause))
    }

    /// Records the end of a user's process. `was_steady` is true if the process ran for so long
    /// that its end does not count as early; this resets the count of early ends. From the second
    /// consecutive early end on, the next start must wait for a pause.
    pub(super) fn record_end(&mut self, now: Instant, was_steady: bool) {
        if was_steady {
            (self.early_ends, self.next) = (0, None);
            return;
        }
        self.early_ends = self.early_ends.saturating_add(1);
        let doublings = self.early_ends.checked_sub(2);
        let pause = doublings.map(|doublings| PAUSE_MIN * 2u32.pow(doublings.min(5)));
        self.next = pause.map(|pause| now + pause.min(PAUSE_MAX));
    }

    /// Counts a refused request. If the refusal must be logged, returns the number of earlier
    /// refusals that were not logged; otherwise returns `None`.
    pub(super) fn record_refusal(&mut self, now: Instant) -> Option<u64> {
        if self.reported.is_some_and(|reported| now - reported < REFUSAL_LOG_INTERVAL) {
            self.refused += 1;
            return None;
        }
        self.reported = Some(now);
        Some(std::mem::take(&mut self.refused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_pause_grows_until_a_process_lasts() {
        let (mut starts, now) = (StartLimits::default(), Instant::now());
        let pauses: Vec<u64> = (0..9)
            .map(|_| {
                starts.record_end(now, false);
                starts.remaining_pause(now).map_or(0, |(_, pause)| pause.as_secs())
            })
            .collect();
        assert_eq!(pauses, [0, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(starts.remaining_pause(now + PAUSE_MAX), None);
        starts.record_end(now, true);
        assert_eq!(starts.remaining_pause(now), None);
        starts.record_end(now, false);
        assert_eq!(starts.remaining_pause(now), None, "the count begins again");
    }

    #[test]
    fn refused_requests_are_logged_at_most_once_a_minute() {
        let (mut starts, now) = (StartLimits::default(), Instant::now());
        assert_eq!(starts.record_refusal(now), Some(0));
        for _ in 0..1000 {
            assert_eq!(starts.record_refusal(now + REFUSAL_LOG_INTERVAL / 2), None);
        }
        assert_eq!(starts.record_refusal(now + REFUSAL_LOG_INTERVAL), Some(1000));
    }
}
