//! Waits for descriptors with poll(2) and epoll(7).

use crate::clock::repeat_until_limit;
use crate::error::{ErrorContext as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Blocks until a descriptor is readable or closed by its peer, a signal arrives, or `limit` passes
/// (`None` means no limit). Returns, for each descriptor, true if it is readable or closed.
pub fn wait_until_readable(descriptors: &[BorrowedFd<'_>], limit: Option<Duration>) -> Vec<bool> {
    let ready = wait_until_readable_or_signal(descriptors, limit);
    ready.unwrap_or_else(|| vec![false; descriptors.len()])
}

/// Waits like [`wait_until_readable`], but returns `None` if a signal handler ended the wait.
pub fn wait_until_readable_or_signal(
    descriptors: &[BorrowedFd<'_>],
    limit: Option<Duration>,
) -> Option<Vec<bool>> {
    let mut fds: Vec<PollFd<'_>> =
        descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    match poll(&mut fds, limit.map(timespec).as_ref()) {
        Ok(_) => Some(fds.iter().map(|fd| !fd.revents().is_empty()).collect()),
        Err(rustix::io::Errno::INTR) => None,
        Err(_) => Some(vec![false; fds.len()]),
    }
}

/// Waits like [`wait_until_readable`], but continues to wait after a signal.
pub fn wait_until_readable_despite_signals(
    descriptors: &[BorrowedFd<'_>],
    limit: Option<Duration>,
) -> Vec<bool> {
    let attempt = |left| {
        let ready = wait_until_readable(descriptors, left);
        Ok::<_, Infallible>(ready.contains(&true).then_some(ready))
    };
    let Ok(ready) = repeat_until_limit(limit, attempt);
    ready.unwrap_or_else(|| vec![false; descriptors.len()])
}

/// Waits for input on the descriptors of `first`, and for hang-ups on those of `second`. Blocks
/// until a descriptor of `first` is readable or closed by its peer, the peer of a descriptor of
/// `second` hangs up, a signal arrives, or `limit` passes. Returns true for each ready descriptor
/// of `first`, and for each descriptor of `second` whose peer has hung up.
pub fn wait_until_readable_or_hung_up(
    first: &[BorrowedFd<'_>],
    second: &[BorrowedFd<'_>],
    limit: Option<Duration>,
) -> (Vec<bool>, Vec<bool>) {
    let listened = first.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    let watched = second.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::empty()));
    let mut fds: Vec<PollFd<'_>> = listened.chain(watched).collect();
    let known = poll(&mut fds, limit.map(timespec).as_ref()).is_ok();
    let mut ready: Vec<bool> = fds.iter().map(|fd| known && !fd.revents().is_empty()).collect();
    let gone = ready.split_off(first.len());
    (ready, gone)
}

/// Several descriptors combined into one, which is readable when any of them is.
#[derive(Debug)]
pub struct PollSet(OwnedFd);

impl PollSet {
    /// Creates a set of these descriptors. A descriptor leaves the set once it and all its
    /// duplicates are closed.
    pub fn new(all: &[impl AsFd]) -> Result<Self> {
        let group = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll_create1", "")?;
        let set = Self(group);
        all.iter().try_for_each(|one| set.add(one))?;
        Ok(set)
    }

    /// Adds a descriptor to the set.
    pub fn add(&self, one: impl AsFd) -> Result<()> {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.0, one, data, epoll::EventFlags::IN).context("epoll_ctl", "")
    }
}

impl AsFd for PollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Blocks until the descriptor is writable or has an error, a signal arrives, or `limit` passes.
/// Returns true if the descriptor is writable or has an error.
pub fn wait_until_writable(descriptor: impl AsFd, limit: Duration) -> bool {
    let mut fds = [PollFd::new(&descriptor, PollFlags::OUT)];
    poll(&mut fds, Some(&timespec(limit))).is_ok_and(|ready| ready > 0)
}

pub(crate) fn timespec(limit: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    }
}
