//! The time limit for a stopped path that waits for the reader of its output.
//!
//! A running path waits without limit, like a program in a shell pipeline. A stopped path drains as
//! long as the output makes progress. A reader that reads nothing for [`STALL_MAX`] is abandoned,
//! so that one stop request ends the path.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time without progress after which a stopped path abandons a reader of its output.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(5);
/// Interval, in ns, at which a wait for a reader checks whether the path has been stopped.
const STOP_CHECK_INTERVAL_NS: i64 = 50_000_000;

/// The stop flag of a path; `None` for an output that belongs to no path.
#[derive(Clone, Default, Debug)]
pub(crate) struct StopFlag(Option<Arc<AtomicBool>>);

impl StopFlag {
    /// Creates a stop flag that shares the flag of a path, `stopped`.
    pub(crate) fn new(stopped: &Arc<AtomicBool>) -> Self {
        Self(Some(Arc::clone(stopped)))
    }

    /// Returns true if the path was stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        // SYNC POINT: stop; pairs with the Release in `runtime::control::Control::stop`.
        self.0.as_ref().is_some_and(|stopped| stopped.load(Ordering::Acquire))
    }

    /// Blocks until the descriptor accepts bytes or has failed. Fails with `TimedOut` if the path
    /// is stopped and the descriptor then accepts nothing for [`STALL_MAX`].
    pub(crate) fn wait_until_writable(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let interval = Timespec { tv_sec: 0, tv_nsec: STOP_CHECK_INTERVAL_NS };
        let mut stall = StallTimer::default();
        loop {
            // If poll fails, the next write reports the error.
            match poll(&mut [PollFd::new(&fd, PollFlags::OUT)], Some(&interval)) {
                Ok(0) if stall.record_stall_check(self.is_stopped()) => {
                    let why = format!(
                        "nothing was read for {} s after the path had been stopped",
                        STALL_MAX.as_secs()
                    );
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                _ => return Ok(()),
            }
        }
    }
}

/// A timer for a stall: the time for which a stopped path has made no progress.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct StallTimer {
    /// Monotonic time, in ns, of the first check at which the path made no progress; `None` while
    /// it makes progress.
    begin: Option<u64>,
}

impl StallTimer {
    /// Records whether the path was stalled at a check. Returns true if it was stalled at all
    /// checks for at least [`STALL_MAX`], including this one.
    pub(crate) fn record_stall_check(&mut self, stalled: bool) -> bool {
        if !stalled {
            self.begin = None;
            return false;
        }
        let now = sys::clock::monotonic_ns();
        let begin = *self.begin.get_or_insert(now);
        u128::from(now.saturating_sub(begin)) >= STALL_MAX.as_nanos()
    }
}

/// Reopens a pipe or terminal for nonblocking writes. The open file of the original descriptor,
/// which other processes may share, is not changed. Returns `None` for any other file, or if the
/// file cannot be reopened.
pub(crate) fn open_nonblocking(file: &File) -> Option<File> {
    let kind = file.metadata().ok()?.file_type();
    if !kind.is_fifo() && !kind.is_char_device() {
        return None;
    }
    let name = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(name, flags, Mode::empty()).ok().map(File::from)
}
