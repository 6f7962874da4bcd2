//! The registration of a path with a daemon, and the state shared by the serving thread and the
//! thread that runs the path.

use crate::client::{Client, ClientError};
use crate::connection::Connection;
use crate::protocol::{PathEnd, PathEvent, PathReport, RegisterParameters};
use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use sys::eventfd::EventFd;
use sys::local_socket::Framing;

/// Name of the error with which a daemon rejects an unknown parameter.
const INVALID_PARAMETER: &str = "org.varlink.service.InvalidParameter";

/// Interval between searches for a daemon while the path is not registered.
pub(super) const DAEMON_SEARCH_INTERVAL: Duration = Duration::from_millis(250);

/// State shared by the thread that runs the path and the thread that serves the path's clients.
#[derive(Debug)]
pub(super) struct SharedWorkerState {
    /// Doorbell that ends the path. A client that asks the path to stop causes the notification.
    pub(super) stop: EventFd,
    /// Doorbell that wakes the thread that serves the path's clients.
    pub(super) wake: EventFd,
    pub(super) ended: Mutex<Option<PathEnd>>,
    /// Reports for the daemon's log that have not been sent yet.
    pub(super) reports: Mutex<VecDeque<PathReport>>,
}

/// Maximum number of queued reports while there is no daemon.
const REPORTS_MAX: usize = 64;
/// Maximum length of a report for the daemon's log, in characters.
const REPORT_CHARS_MAX: usize = 1000;

/// A handle with which a running path reports events for the daemon's log. The default handle
/// discards all reports.
#[derive(Clone, Debug, Default)]
pub struct Reporter(pub(super) Option<Arc<SharedWorkerState>>);

impl Reporter {
    /// Queues a report, and truncates its text if it is too long. Never blocks. Without a daemon,
    /// the latest 64 reports stay queued for the next daemon.
    pub fn report(&self, event: PathEvent, text: &str) {
        let Some(shared) = &self.0 else { return };
        shared.queue_report(event, text);
        shared.wake.notify();
    }
}

impl SharedWorkerState {
    /// Queues a report for the daemon's log. The thread that serves the path's clients sends it
    /// before it waits again.
    pub(super) fn queue_report(&self, event: PathEvent, text: &str) {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.push_back(new_report(event, text));
        if reports.len() > REPORTS_MAX {
            reports.pop_front();
        }
    }
}

/// Creates a report, and truncates its text if it is too long.
pub(super) fn new_report(event: PathEvent, text: &str) -> PathReport {
    let text = text.chars().take(REPORT_CHARS_MAX).collect();
    PathReport { event, text, status: None }
}

/// A registration with a daemon. A hangup on either socket means that the daemon has exited.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) client: Client,
    /// Socket over which the daemon passes connections of clients to this path.
    pub(super) admissions: Connection,
    pub(super) number: u32,
    /// True if the daemon accepts reports; older daemons do not.
    pub(super) takes_reports: bool,
}

impl Registration {
    pub(super) fn new(client: Client, register: &RegisterParameters) -> Result<Self, ClientError> {
        let (own_end, peer_end) = sys::descriptor::socket_pair()?;
        let (number, takes_reports) = match client.register(register, peer_end.as_fd()) {
            Err(ClientError::Refused(fault)) if fault.name == INVALID_PARAMETER => {
                let older = RegisterParameters { plan: None, ..register.clone() };
                (client.register(&older, peer_end.as_fd())?, false)
            }
            registered => (registered?, true),
        };
        let admissions = Connection::new(own_end, Framing::Packets);
        Ok(Self { client, admissions, number, takes_reports })
    }

    /// Reports to the daemon which request and plan the path is now running. Does not wait for a
    /// reply.
    pub(super) fn report_change(&self, line: &str, plan: Option<String>) {
        let plan = plan.filter(|_| self.takes_reports);
        // If the daemon has just exited, the next registration contains the change.
        let _ = self.client.report_change(line, plan);
    }

    /// Reports a new request and plan like [`report_change`](Self::report_change), together with a
    /// report. Returns false if the daemon has exited or accepts no reports.
    pub(super) fn report_change_and_event(
        &self,
        line: &str,
        plan: Option<String>,
        report: &PathReport,
    ) -> bool {
        self.takes_reports && self.client.report_change_and_event(line, plan, report).is_ok()
    }

    /// Sends a report. Does not wait for a reply. Returns false if the daemon has exited.
    pub(super) fn send_report(&self, report: &PathReport) -> bool {
        !self.takes_reports || self.client.send_report(report).is_ok()
    }
}
