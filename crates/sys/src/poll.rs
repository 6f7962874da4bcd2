//! Waiting for descriptors.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Sleeps until one of the descriptors can be read or has been closed, or until `limit`. Comes back
/// early for a signal: the caller looks again. Answers which are ready.
pub fn readable(descriptors: &[BorrowedFd<'_>], limit: Option<Duration>) -> Vec<bool> {
    let mut fds: Vec<PollFd<'_>> =
        descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let limit = limit.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    match poll(&mut fds, limit.as_ref()) {
        Ok(_) => fds.iter().map(|fd| !fd.revents().is_empty()).collect(),
        Err(_) => vec![false; fds.len()],
    }
}
