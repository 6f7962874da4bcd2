//! The events that the server logs.

use super::accept::ConnectionLimit;
use super::client::Client;
use super::event_loop::Server;
use super::methods::CallReplies;
use super::registry::PathEntry;
use super::store;
use crate::log::{EventKind, Level, Log, Record};
use member::connection::Received;
use member::faults::{format_fault, refused};
use member::protocol::{NoParameters, PathEvent, PathReport, RequestChange};
use member::varlink::{Call, Fault};

/// Name of the method with which a path reports an event.
const REPORT_METHOD: &str = "io.streamline.Report";
/// Maximum length of a report, in bytes.
const REPORT_BYTES_MAX: usize = 4096;
/// Maximum number of characters of a method's name in the log.
const METHOD_CHARS_MAX: usize = 80;
/// Maximum number of messages read from a path that has ended.
const LAST_MESSAGES_MAX: usize = 64;

impl Server {
    /// Logs events from now on. First logs the paths adopted from the previous daemon, and a
    /// warning for each object that could not be adopted.
    pub fn start_log(&mut self, log: Log) {
        self.log = log;
        for entry in self.registry.iter().cloned().collect::<Vec<_>>() {
            self.log_path_event(EventKind::PathAdopted, &entry, "continues with this daemon");
        }
        for note in std::mem::take(&mut self.notes) {
            self.log.write(&Record::new(EventKind::DaemonWarning, Level::Warning, note));
        }
    }

    /// Logs an event of a path with the text of its request. `what` describes the event.
    pub(super) fn log_path_event(&self, event: EventKind, entry: &PathEntry, what: &str) {
        let request = Some(entry.line.clone());
        self.log.write(&Record { request, ..new_path_record((event, Level::Info), entry, what) });
    }

    /// Replaces the request of the path that a client has registered, and announces the change.
    /// Logs the change unless the path itself reports it.
    pub(super) fn replace_request(
        &mut self,
        id: u64,
        change: RequestChange,
    ) -> Result<CallReplies, Fault> {
        let RequestChange { line, plan } = change;
        let path = self.clients.get(&id).and_then(|client| client.path.as_ref());
        let number = path.map(|path| path.number).ok_or_else(Fault::permission_denied)?;
        // A path that knows its plan reports the change by itself, with the ledger.
        let reports = plan.is_some();
        if let Some(entry) = self.registry.replace_request(number, (line, plan))?.cloned() {
            store::replace_stored_entry(&entry);
            if !reports {
                self.log_path_event(EventKind::PathChanged, &entry, "changed");
            }
            self.announce_path_event("changed", &entry);
        }
        Ok(CallReplies::single(&NoParameters {}))
    }

    /// Handles a report of a path: logs it, or stores a report of the path's end, which is logged
    /// when the path is removed from the registry.
    pub(super) fn handle_report(
        &mut self,
        id: u64,
        report: PathReport,
    ) -> Result<CallReplies, Fault> {
        let client = self.clients.get_mut(&id).ok_or_else(Fault::permission_denied)?;
        let path = client.path.as_mut().ok_or_else(Fault::permission_denied)?;
        if report.text.len() > REPORT_BYTES_MAX {
            return Err(refused("report", &format!("it is longer than {REPORT_BYTES_MAX} bytes")));
        }
        if report.event == PathEvent::Ended {
            path.ended = Some((report.status.unwrap_or_default(), report.text));
        } else {
            let number = path.number;
            self.log_report(number, report);
        }
        Ok(CallReplies::single(&NoParameters {}))
    }

    /// Logs an event that the path with this number has reported.
    fn log_report(&self, number: u32, PathReport { event, text, .. }: PathReport) {
        let (event, level, what) = match event {
            PathEvent::Changed => (EventKind::PathChanged, Level::Info, "changed"),
            PathEvent::Adapted => (EventKind::PathAdapted, Level::Info, "adapts"),
            PathEvent::Lost => (EventKind::PathLost, Level::Warning, "loses blocks"),
            PathEvent::Alarm => (EventKind::PathAlarm, Level::Warning, "raises an alarm"),
            PathEvent::Over => (EventKind::PathAlarm, Level::Info, "ends an alarm"),
            PathEvent::Late => (EventKind::PathLate, Level::Warning, "is late"),
            PathEvent::Unchanged => (EventKind::PathUnchanged, Level::Warning, "refuses a change"),
            PathEvent::Ended => (EventKind::PathEnded, Level::Info, "ends"),
        };
        if let Some(entry) = self.registry.get(number) {
            let request = (event == EventKind::PathChanged).then(|| entry.line.clone());
            let record = new_path_record((event, level), entry, what);
            self.log.write(&Record { reason: Some(text), request, ..record });
        }
    }

    /// Handles up to [`LAST_MESSAGES_MAX`] reports that a path sent before it closed its
    /// connection. The server may notice the exit of the process before these reports. Does nothing
    /// if the path has already reported its end.
    pub(super) fn read_last_reports(&self, client: &mut Client) {
        let Some(path) = client.path.as_mut().filter(|path| path.ended.is_none()) else { return };
        for _ in 0..LAST_MESSAGES_MAX {
            let Received::Message(bytes, _) = client.connection.next_message() else { return };
            let Ok(call) = Call::read(&bytes) else { return };
            let report = call.deserialize_parameters::<PathReport>();
            match report {
                Ok(report)
                    if call.method != REPORT_METHOD || report.text.len() > REPORT_BYTES_MAX => {}
                Ok(report) if report.event == PathEvent::Ended => {
                    path.ended = Some((report.status.unwrap_or_default(), report.text));
                }
                Ok(report) => self.log_report(path.number, report),
                Err(_) => {}
            }
        }
    }

    /// Logs the end of a path, with its exit status and report if it has sent them.
    pub(super) fn log_path_end(&self, entry: &PathEntry, ended: Option<(u8, String)>) {
        let (level, what) = match &ended {
            Some((0, _)) => (Level::Info, "ended".to_owned()),
            Some((status, _)) => (Level::Warning, format!("ended with status {status}")),
            None => (Level::Warning, "ended without a report".to_owned()),
        };
        let record = new_path_record((EventKind::PathEnded, level), entry, &what);
        let (status, reason) = ended.unzip();
        self.log.write(&Record { status, reason, ..record });
    }

    /// Logs that a call of a client was refused.
    pub(super) fn log_refusal(&self, id: u64, method: &str, fault: &Fault) {
        let Some(client) = self.clients.get(&id) else { return };
        let method: String = method.chars().take(METHOD_CHARS_MAX).collect();
        let (uid, process) = (client.credentials.uid, client.process);
        let message = format!("user {uid}, process {process}: {method} is refused");
        self.log.write(&Record {
            path: client.path.as_ref().map(|path| path.number),
            uid: Some(uid),
            process: Some(process),
            method: Some(method),
            error: Some(fault.name.clone()),
            reason: Some(format_fault(fault)),
            ..Record::new(EventKind::RequestRefused, Level::Warning, message)
        });
    }

    pub(super) fn log_refused_connection(
        &self,
        (uid, process): (u32, i32),
        limit: ConnectionLimit,
    ) {
        let message = format!("a connection of user {uid}, process {process}, is refused");
        self.log.write(&Record {
            uid: Some(uid),
            process: Some(process),
            reason: Some(limit.to_string()),
            ..Record::new(EventKind::ConnectionRefused, Level::Warning, message)
        });
    }

    /// Logs a change to the request that a client has in the kernel. `why` is the reason if the
    /// client did not request the change.
    pub(super) fn log_kernel_change(&self, event: EventKind, id: u64, why: Option<String>) {
        let Some(client) = self.clients.get(&id) else { return };
        let (uid, process) = (client.credentials.uid, client.process);
        let entry = self.registry.iter().find(|entry| entry.process == process);
        let whose = match entry {
            Some(entry) => describe_path(entry),
            None => format!("process {process}"),
        };
        let what = match event {
            EventKind::KernelAttached => "runs in the kernel",
            EventKind::KernelSwitched => "is replaced in the kernel",
            _ => "no longer runs in the kernel",
        };
        let level = if why.is_some() { Level::Warning } else { Level::Info };
        self.log.write(&Record {
            path: entry.map(|entry| entry.number),
            name: entry.and_then(|entry| entry.name.clone()),
            plan: entry.and_then(|entry| entry.plan.clone()),
            uid: Some(uid),
            process: Some(process),
            reason: why,
            ..Record::new(event, level, format!("the kernel part of {whose} of user {uid} {what}"))
        });
    }
}

/// Creates a log line about a path, without the text of the path's request.
fn new_path_record((event, level): (EventKind, Level), entry: &PathEntry, what: &str) -> Record {
    let message = format!("{} of user {} {what}", describe_path(entry), entry.uid);
    Record {
        path: Some(entry.number),
        name: entry.name.clone(),
        plan: entry.plan.clone(),
        uid: Some(entry.uid),
        process: Some(entry.process),
        ..Record::new(event, level, message)
    }
}

fn describe_path(entry: &PathEntry) -> String {
    let name = entry.name.as_ref().map_or_else(String::new, |name| format!(" {name}"));
    format!("path {}{name}", entry.number)
}
