//! Functions that several commands share: connections to the daemon and to paths, error messages,
//! and waiting.

use crate::failure::{report_client_error, report_system_error};
use crate::status::Status;
use crate::terminal;
use member::client::{Client, ClientError, PathClient, QUERY_TIMEOUT};
use member::protocol::{PathDescription, RegisteredPath};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Connects to the daemon. If there is no daemon, prints an error and returns the exit status.
pub(super) fn connect_daemon() -> Result<Client, Status> {
    Client::find(None).map_err(|error| report_client_error(&error))
}

/// Connects to a path, and fetches its description. If the process of the path is stopped
/// (SIGSTOP), the fetch times out before the caller makes a longer call. On failure, prints an
/// error and returns the exit status.
pub(super) fn connect_path(name: &str) -> Result<(PathClient, PathDescription), Status> {
    connect_daemon()?.connect_and_describe(name).map_err(|error| {
        let silent = error == ClientError::Timeout;
        let status = report_client_error(&error);
        if silent {
            terminal::print_note(&format!("`streamline stop --kill {name}` ends it at once"));
        }
        status
    })
}

/// Prints, for each user, a note with the paths of this user that did not reply in time.
pub(super) fn print_silent_paths<'p>(paths: impl Iterator<Item = &'p RegisteredPath>) {
    let mut silent: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    paths.for_each(|path| silent.entry(path.uid).or_default().push(path.number));
    for (uid, numbers) in silent {
        terminal::print_note(&format!(
            "no reply within {} s from {} of {}: stopped, or overloaded; `streamline stop --kill \
             PATH` ends one",
            QUERY_TIMEOUT.as_secs(),
            format_path_numbers(&numbers),
            user_name(uid)
        ));
    }
}

/// Formats path numbers, such as `paths 1, 2`. If there are more than eight, lists eight and the
/// number of the others.
fn format_path_numbers(numbers: &[u32]) -> String {
    const NAMED_PATHS_MAX: usize = 8;
    let named: Vec<String> = numbers.iter().take(NAMED_PATHS_MAX).map(u32::to_string).collect();
    let noun = if numbers.len() == 1 { "path" } else { "paths" };
    match numbers.len().saturating_sub(NAMED_PATHS_MAX) {
        0 => format!("{noun} {}", named.join(", ")),
        more => format!("{noun} {} and {more} more", named.join(", ")),
    }
}

/// Returns a descriptor that becomes readable when a terminating signal arrives. On failure, prints
/// an error and returns the exit status.
pub(super) fn watch_signals() -> Result<BorrowedFd<'static>, Status> {
    engine::signal::watch_stop_signals().map_err(|error| report_system_error(&error))
}

/// Blocks until one of the descriptors is readable, and returns a flag for each descriptor, true if
/// it is readable. Returns `None` if a terminating signal arrives or the time limit expires. A
/// change of the terminal's size (SIGWINCH) does not end the wait.
pub(super) fn wait_readable(
    descriptors: &[BorrowedFd<'_>],
    signals: BorrowedFd<'_>,
    limit: Option<Duration>,
) -> Option<Vec<bool>> {
    let mut all: Vec<BorrowedFd<'_>> = descriptors.to_vec();
    all.push(signals);
    let mut ready = sys::poll::wait_until_readable_despite_signals(&all, limit);
    let signalled = ready.pop() == Some(true);
    (!signalled && ready.contains(&true)).then_some(ready)
}

/// Returns the name of a user, or the user id as text if the user has no name.
pub(super) fn user_name(uid: u32) -> String {
    member::rights::user_name(uid).unwrap_or_else(|| uid.to_string())
}

/// Formats a duration, such as `12 s`, `3:07`, `1:03:07` or `2 d 3 h`.
pub(super) fn format_age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{}:{:02}", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_path_lists_are_formatted_briefly() {
        let ages: Vec<String> = [0, 59, 61, 3661, 90_000].map(format_age).into();
        assert_eq!(format_path_numbers(&[7]), "path 7");
        let many: Vec<u32> = (1..=32).collect();
        assert_eq!(format_path_numbers(&many), "paths 1, 2, 3, 4, 5, 6, 7, 8 and 24 more");
        assert_eq!(ages, ["0 s", "59 s", "1:01", "1:01:01", "1 d 1 h"]);
    }
}
