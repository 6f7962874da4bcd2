//! Limits on how often a user can make the host start a process or write to its log.
//!
//! The limits are needed because a user can end the user's own process at any time, and can send
//! requests that are refused.

use std::time::{Duration, Instant};

/// Time after which the end of a process no longer counts as early.
pub(super) const STEADY_TIME_MIN: Duration = Duration::from_secs(60);
/// Pause before the next start after two consecutive early ends. The pause doubles with each
/// further early end.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Time between two reports of refused requests.
const REPORT_PAUSE: Duration = Duration::from_secs(60);

/// The starts of all processes of a user, whatever their groups and tokens.
#[derive(Debug, Default)]
pub(super) struct Starts {
    /// Number of consecutive processes that have ended early.
    early_ends: u32,
    /// Earliest time of the next start, or `None` if a process can start at once.
    next: Option<Instant>,
    /// Time of the latest report of a refused request, or `None` before the first report.
    reported: Option<Instant>,
    /// Number of refused requests since that report.
    refused: u64,
}

impl Starts {
    /// Returns the number of early ends and the time until the next start, or `None` if a process
    /// can start now.
    pub(super) fn pause(&self, now: Instant) -> Option<(u32, Duration)> {
        let pause = self.next?.saturating_duration_since(now);
        (!pause.is_zero()).then_some((self.early_ends, pause))
    }

    /// Counts the end of a process. An end that was not early resets the count. From the second
    /// consecutive early end on, the next process starts after a pause.
    pub(super) fn end(&mut self, now: Instant, was_steady: bool) {
        if was_steady {
            (self.early_ends, self.next) = (0, None);
            return;
        }
        self.early_ends = self.early_ends.saturating_add(1);
        let doublings = self.early_ends.checked_sub(2);
        let pause = doublings.map(|doublings| PAUSE_MIN * 2u32.pow(doublings.min(5)));
        self.next = pause.map(|pause| now + pause.min(PAUSE_MAX));
    }

    /// Counts a refused request. Returns the number of earlier refusals that were not reported, or
    /// `None` if this refusal is not to be reported.
    pub(super) fn refuse(&mut self, now: Instant) -> Option<u64> {
        if self.reported.is_some_and(|reported| now - reported < REPORT_PAUSE) {
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
    fn pause_grows_until_a_process_lasts() {
        let (mut starts, now) = (Starts::default(), Instant::now());
        let pauses: Vec<u64> = (0..9)
            .map(|_| {
                starts.end(now, false);
                starts.pause(now).map_or(0, |(_, pause)| pause.as_secs())
            })
            .collect();
        assert_eq!(pauses, [0, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(starts.pause(now + PAUSE_MAX), None);
        starts.end(now, true);
        assert_eq!(starts.pause(now), None);
        starts.end(now, false);
        assert_eq!(starts.pause(now), None, "the count begins again");
    }

    #[test]
    fn refused_requests_are_reported_once_in_a_while() {
        let (mut starts, now) = (Starts::default(), Instant::now());
        assert_eq!(starts.refuse(now), Some(0));
        for _ in 0..1000 {
            assert_eq!(starts.refuse(now + REPORT_PAUSE / 2), None);
        }
        assert_eq!(starts.refuse(now + REPORT_PAUSE), Some(1000));
    }
}
