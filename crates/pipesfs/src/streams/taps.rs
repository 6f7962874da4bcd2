//! Connections of open taps, over which the paths report skipped blocks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use streamline::paths::{Memfd, PathClient, TapReport};

/// Maximum time to wait for the report of a tap that is still open, or whose reader has closed the
/// stream.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time to wait for the last report of a tap whose path has ended it.
const END_REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// The last report of a tap, with the bytes that were not yet in the tap's pipe when the path
/// ended; `None` if there are no such bytes.
pub(super) type LastTapReport = (TapReport, Option<Memfd>);

/// The connection of a tap, over which the path sends the last report of the tap.
#[derive(Debug)]
pub struct TapConnection(Mutex<TapState>);

#[derive(Debug)]
struct TapState {
    path: PathClient,
    /// The last report of the tap, if a call of [`TapConnection::skipped_blocks`] has already
    /// received it; `None` otherwise.
    last_report: Option<LastTapReport>,
}

impl TapConnection {
    /// Takes over the connection of a tap, and requests the last report of the tap.
    #[must_use]
    pub fn new(path: PathClient) -> Arc<Self> {
        // An error means that the path has exited, which the next call reports.
        let _ = path.request_final_tap_report();
        Arc::new(Self(Mutex::new(TapState { path, last_report: None })))
    }

    /// Returns the last report of a tap. The tap has ended or, if `is_closed` is true, its reader
    /// has closed the stream. Returns `None` if the path does not reply within a time limit.
    pub(super) fn receive_last_report(&self, is_closed: bool) -> Option<LastTapReport> {
        let limit = if is_closed { REPORT_TIMEOUT } else { END_REPORT_TIMEOUT };
        let mut tap = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = tap.last_report.take() {
            return Some(last);
        }
        let report = tap.path.tap_state(limit).ok()?;
        if report.0.over.is_some() || is_closed {
            return Some(report);
        }
        // The first reply was the immediate one that older versions of paths send to a request for
        // the last report.
        tap.path.tap_state(limit).ok()
    }

    /// Returns the number of blocks that the tap has skipped so far, or `None` if the path does not
    /// reply within a time limit.
    pub(super) fn skipped_blocks(&self) -> Option<u64> {
        let mut tap = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tap.last_report.is_none() {
            let report = tap.path.tap_state(REPORT_TIMEOUT).ok()?;
            if report.0.over.is_none() {
                return Some(report.0.skipped);
            }
            tap.last_report = Some(report);
        }
        tap.last_report.as_ref().map(|(report, _)| report.skipped)
    }
}
