//! Timers that can be polled together with other descriptors (timerfd_create(2)).

use crate::error::{ErrorContext as _, Result};
use crate::poll::timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A timer whose descriptor becomes readable when the timer expires.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// Creates a timer that is not set, closed on exec.
    pub fn new() -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        timerfd_create(TimerfdClockId::Monotonic, flags).map(Self).context("timerfd_create", "")
    }

    /// Sets the timer to expire after a duration, or stops it if `after` is `None`. The descriptor
    /// is not readable before the timer expires.
    pub fn set(&self, after: Option<Duration>) {
        // The kernel stops a timer that is set to 0.
        let value = timespec(after.map_or(Duration::ZERO, |after| after.max(TIMER_DURATION_MIN)));
        let times = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: value };
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &times);
    }
}

/// The shortest duration to which a timer can be set.
const TIMER_DURATION_MIN: Duration = Duration::from_nanos(1);

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_is_readable_from_expiry_until_reset() {
        let timer = Timer::new().unwrap();
        let now = Some(Duration::ZERO);
        assert_eq!(crate::poll::wait_until_readable(&[timer.as_fd()], now), [false]);
        timer.set(Some(Duration::ZERO));
        assert_eq!(crate::poll::wait_until_readable(&[timer.as_fd()], None), [true]);
        assert_eq!(
            crate::poll::wait_until_readable(&[timer.as_fd()], now),
            [true],
            "until it is set"
        );
        timer.set(Some(Duration::from_secs(3600)));
        assert_eq!(crate::poll::wait_until_readable(&[timer.as_fd()], now), [false]);
    }
}
