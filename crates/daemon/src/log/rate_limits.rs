//! Rate limit on log lines per user, so that no user can fill the log.

use std::collections::BTreeMap;

/// Maximum number of log lines that each user may cause in a time window of
/// [`SUPPRESSION_WINDOW_NS`].
const LINES_PER_WINDOW_MAX: u64 = 200;
/// Length of the time window in which the log lines of a user are counted, in ns.
const SUPPRESSION_WINDOW_NS: u64 = 10_000_000_000;
const ROOT_UID: u32 = 0;

/// The number of log lines that each user has caused in the current time window.
#[derive(Debug, Default)]
pub(super) struct UserLogRateLimits {
    begin: u64,
    lines: BTreeMap<u32, u64>,
}

impl UserLogRateLimits {
    /// Counts a log line that this user causes at the monotonic time `now`, in ns, and returns true
    /// if the line may be written. Lines caused by root or by no user may always be written.
    ///
    /// If the line begins a new window, also returns the users whose lines were suppressed in the
    /// previous window, each with the number of suppressed lines. Otherwise the list is empty.
    pub(super) fn admit_line(&mut self, uid: Option<u32>, now: u64) -> (bool, Vec<(u32, u64)>) {
        let mut suppressed = Vec::new();
        if now.saturating_sub(self.begin) >= SUPPRESSION_WINDOW_NS {
            self.begin = now;
            suppressed = self.take_suppressed_counts();
        }
        let Some(uid) = uid.filter(|uid| *uid != ROOT_UID) else { return (true, suppressed) };
        let lines = self.lines.entry(uid).or_default();
        *lines += 1;
        (*lines <= LINES_PER_WINDOW_MAX, suppressed)
    }

    /// Returns the users whose lines were suppressed in the current window, each with the number of
    /// suppressed lines, and resets the counts.
    pub(super) fn take_suppressed_counts(&mut self) -> Vec<(u32, u64)> {
        let all = std::mem::take(&mut self.lines).into_iter();
        all.filter(|(_, lines)| *lines > LINES_PER_WINDOW_MAX)
            .map(|(uid, lines)| (uid, lines - LINES_PER_WINDOW_MAX))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_busy_user_are_suppressed_and_counted() {
        let mut limits = UserLogRateLimits::default();
        let now = SUPPRESSION_WINDOW_NS * 5;
        for _ in 0..LINES_PER_WINDOW_MAX {
            assert_eq!(limits.admit_line(Some(1001), now), (true, Vec::new()));
        }
        for _ in 0..7 {
            assert_eq!(limits.admit_line(Some(1001), now + 1), (false, Vec::new()));
        }
        assert_eq!(limits.admit_line(Some(1002), now + 1), (true, Vec::new()), "another user");
        assert_eq!(limits.admit_line(Some(0), now + 1), (true, Vec::new()), "root");
        assert_eq!(limits.admit_line(None, now + 1), (true, Vec::new()), "the daemon");
        assert_eq!(
            limits.admit_line(Some(1001), now + SUPPRESSION_WINDOW_NS),
            (true, vec![(1001, 7)])
        );
        assert_eq!(limits.take_suppressed_counts(), Vec::new());
    }
}
