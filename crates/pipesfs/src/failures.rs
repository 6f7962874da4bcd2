//! The reason for each user's latest failure, as text for the file `.error`. It supplements the
//! error number of the failed system call.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of users for which [`LatestFailures`] stores a failure.
const STORED_USERS_MAX: usize = 4096;
/// Age from which a reason is shown together with its age, because a later failure may have stored
/// no reason.
const PUBLISHED_AGE_MIN: Duration = Duration::from_secs(5);

/// For each user, the reason for the latest failure, and the time of this failure.
#[derive(Debug, Default)]
pub struct LatestFailures(Mutex<HashMap<u32, (String, Instant)>>);

impl LatestFailures {
    /// Stores the reason for a user's latest failure and replaces any earlier reason.
    pub fn set_failure(&self, uid: u32, why: String) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= STORED_USERS_MAX {
            known.clear();
        }
        known.insert(uid, (why, Instant::now()));
    }

    /// Returns the reason for a user's latest failure as a line of text, with its age unless it is
    /// recent. Returns an empty string if no reason is stored.
    #[must_use]
    pub fn latest_failure_line(&self, uid: u32) -> String {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .get(&uid)
            .map_or_else(String::new, |(why, since)| format_failure_line(why, since.elapsed()))
    }
}

fn format_failure_line(why: &str, age: Duration) -> String {
    let seconds = age.as_secs();
    match (age < PUBLISHED_AGE_MIN, seconds / 60) {
        (true, _) => format!("{why}\n"),
        (false, 0) => format!("{why} ({seconds} s ago)\n"),
        (false, minutes) => format!("{why} ({minutes} min ago)\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b1_text_of_an_old_failure_has_its_age() {
        let lines = [0, 4, 5, 59, 60, 7200]
            .map(|age| format_failure_line("gone", Duration::from_secs(age)));
        let expected = ["", "", " (5 s ago)", " (59 s ago)", " (1 min ago)", " (120 min ago)"];
        assert_eq!(lines, expected.map(|age| format!("gone{age}\n")));
    }
}
