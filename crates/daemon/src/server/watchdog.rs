//! Reports to the watchdog of the service manager, which restarts a daemon that does not report in
//! time (sd_watchdog_enabled(3)).
//!
//! The reports come from the event loop, so a daemon that no longer serves its clients is
//! restarted. Paths continue meanwhile, as during every restart.

use std::time::{Duration, Instant};
use sys::service;

/// Periodic reports to the watchdog.
#[derive(Debug)]
pub(super) struct WatchdogNotifier {
    /// Time between two reports: half of the interval that the manager permits.
    period: Duration,
    due: Instant,
}

impl WatchdogNotifier {
    /// Creates the notifier if the service manager expects reports, according to the environment.
    /// The first report is due at once. Returns `None` if the manager expects no reports.
    pub(super) fn from_environment() -> Option<Self> {
        let period = service::watchdog_interval()? / 2;
        Some(Self { period, due: Instant::now() })
    }

    /// Sends a report to the service manager if a report is due. Returns the time until the next
    /// one.
    pub(super) fn send_if_due(&mut self) -> Duration {
        let now = Instant::now();
        if now >= self.due {
            // A manager whose queue of messages is full gets the next report.
            let _ = service::try_notify("WATCHDOG=1", &[]);
            self.due = now + self.period;
        }
        self.due - now
    }
}
