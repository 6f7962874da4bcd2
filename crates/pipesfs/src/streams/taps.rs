//! The connections of open taps.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use streamline::paths::{Memfd, PathClient, TapReport};

/// Maximum time to wait for the report of a tap whose reader has closed its stream, or still reads.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time to wait for the report of a tap that has ended.
const END_LIMIT: Duration = Duration::from_secs(10);

/// A report of a tap, with the bytes that were not yet in its pipe when the path ended.
pub(super) type TapEndReport = (TapReport, Option<Memfd>);

/// The connection of a tap, which awaits the last report of the tap.
#[derive(Debug)]
pub struct TapConnection(Mutex<TapState>);

#[derive(Debug)]
struct TapState {
    path: PathClient,
    /// The last report of the tap, if it was received in reply to a query for the current state.
    last_report: Option<TapEndReport>,
}

impl TapConnection {
    /// Takes over the connection of a tap, and requests the last report of the tap.
    #[must_use]
    pub fn new(path: PathClient) -> Arc<Self> {
        // If it cannot be sent, the path has exited, which the next call reports.
        let _ = path.await_tap_end();
        Arc::new(Self(Mutex::new(TapState { path, last_report: None })))
    }

    /// Returns the report of a tap that has ended, or whose reader has closed its stream. Returns
    /// `None` if the path does not reply.
    pub(super) fn end(&self, is_closed: bool) -> Option<TapEndReport> {
        let limit = if is_closed { REPORT_TIMEOUT } else { END_LIMIT };
        let mut tap = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = tap.last_report.take() {
            return Some(last);
        }
        let report = tap.path.tap_state(limit).ok()?;
        if report.0.over.is_some() || is_closed {
            return Some(report);
        }
        // A path of an older version has replied at once when the last report was awaited.
        tap.path.tap_state(limit).ok()
    }

    /// Returns the number of blocks that were skipped so far, or `None` if the path does not reply.
    pub(super) fn skipped(&self) -> Option<u64> {
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
