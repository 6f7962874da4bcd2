//! Reports of a path to the daemon, over the connection by which the path is registered.

use super::{Client, ClientError};
use crate::protocol::{PathReport, RequestChange};
use crate::varlink::Call;

impl Client {
    /// Reports to the daemon that the path registered over this connection now runs a different
    /// request. Does not wait for a reply.
    pub(crate) fn report_change(
        &self,
        line: &str,
        plan: Option<String>,
    ) -> Result<(), ClientError> {
        self.caller.send_all(&[change_call(line, plan)])
    }

    /// Reports an event of the path registered over this connection. Does not wait for a reply.
    pub(crate) fn send_report(&self, report: &PathReport) -> Result<(), ClientError> {
        self.caller.send_all(&[report_call(report)])
    }

    /// Reports that the path runs a different request, and an event of the path, in a single write,
    /// so that the daemon is woken only once.
    pub(crate) fn report_change_and_event(
        &self,
        line: &str,
        plan: Option<String>,
        report: &PathReport,
    ) -> Result<(), ClientError> {
        self.caller.send_all(&[change_call(line, plan), report_call(report)])
    }
}

/// Returns the text of the call with which a path reports to the daemon that it runs a different
/// request.
fn change_call(line: &str, plan: Option<String>) -> Vec<u8> {
    let change = RequestChange { line: line.to_owned(), plan };
    Call::serialize_call("io.streamline.Changed", &change, true)
}

/// Returns the text of the call that reports an event of a path to the daemon.
fn report_call(report: &PathReport) -> Vec<u8> {
    Call::serialize_call("io.streamline.Report", report, true)
}
