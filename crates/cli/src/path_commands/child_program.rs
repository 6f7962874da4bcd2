//! A child process of the daemon, such as the page or the mount, which ends together with the
//! daemon. Each line of its standard error becomes an event in the daemon's log.

use daemon::log::{EventKind, Level, Log, Record};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;
use sys::local_socket;

/// Maximum length in bytes of a line that a child process writes. A longer line is split.
const LINE_MAX: usize = 4096;
/// Maximum number of reads of [`LINE_MAX`] bytes from a program's pipe after the program has
/// exited. So many reads empty a full pipe.
const READS_AFTER_EXIT_MAX: usize = 16;

/// A running child process of the daemon, with its output and the settings for its log events.
#[derive(Debug)]
pub(super) struct ChildProgram {
    child: Child,
    process: OwnedFd,
    /// The pipe from the standard error of the program and of its child processes, which may
    /// outlive the program. `None` after the end of the output.
    messages: Option<ChildStderr>,
    /// Beginning of a line of the program's output, whose end has not been read yet.
    line: Vec<u8>,
    reports: LogEventOrigin,
}

impl ChildProgram {
    /// Starts a program, which must exit when its standard input is closed. The program's output
    /// is logged as events with the origin `reports`.
    pub(super) fn spawn(command: &mut Command, reports: LogEventOrigin) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        match local_socket::open_pidfd(i32::try_from(child.id()).unwrap_or_default()) {
            Ok(process) => {
                let messages = child.stderr.take();
                Ok(Self { child, process, messages, line: Vec::new(), reports })
            }
            Err(error) => {
                // Without a process descriptor, the exit of the program could not be detected.
                let _ = child.kill().and_then(|()| child.wait());
                Err(io::Error::other(error.to_string()))
            }
        }
    }

    /// Logs the output of the program until the program has exited or `stop` is readable. Returns
    /// true if the program is still running.
    pub(super) fn wait(&mut self, stop: Option<BorrowedFd<'_>>, log: &Log) -> bool {
        loop {
            let messages = self.messages.as_ref().map(|pipe| pipe.as_fd());
            let watched = [Some(self.process.as_fd()), stop, messages];
            let present: Vec<BorrowedFd<'_>> = watched.into_iter().flatten().collect();
            let mut ready =
                sys::poll::wait_until_readable_despite_signals(&present, None).into_iter();
            let [ended, stopped, written] =
                watched.map(|watched| watched.is_some() && ready.next() == Some(true));
            if ended {
                self.log_last_output(log);
                return false;
            }
            if stopped {
                return true;
            }
            if written {
                self.read_output(log);
            }
        }
    }

    /// Ends the program by closing its standard input, logs its remaining output, and waits for its
    /// exit.
    pub(super) fn end_and_wait(&mut self, log: &Log) -> io::Result<ExitStatus> {
        drop(self.child.stdin.take());
        self.wait(None, log);
        self.child.wait()
    }

    /// Reads once from the program's standard error, and logs all complete lines.
    fn read_output(&mut self, log: &Log) {
        let mut bytes = [0; LINE_MAX];
        let read = self.messages.as_mut().map_or(Ok(0), |pipe| pipe.read(&mut bytes));
        let length = read.unwrap_or(0);
        if length == 0 {
            self.messages = None;
        }
        for piece in bytes[..length].split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.line.len() >= LINE_MAX {
                self.log_pending_line(log);
            }
        }
    }

    /// Logs the output that remains in the pipe after the program has exited.
    fn log_last_output(&mut self, log: &Log) {
        for _ in 0..READS_AFTER_EXIT_MAX {
            let Some(pipe) = &self.messages else { break };
            if sys::poll::wait_until_readable_despite_signals(&[pipe.as_fd()], Some(Duration::ZERO))
                != [true]
            {
                break;
            }
            self.read_output(log);
        }
        self.log_pending_line(log);
    }

    fn log_pending_line(&mut self, log: &Log) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        if !line.trim().is_empty() {
            log.write(&self.reports.parse_log_line(line.trim_end()));
        }
    }
}

/// The event kind and the subject of the log events that report the output of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogEventOrigin {
    pub(super) event: EventKind,
    /// Noun phrase for the program in log messages, such as "the page".
    pub(super) subject: &'static str,
}

impl LogEventOrigin {
    /// Returns the event for a line of the program's output. The prefixes `error:`, `warning:` and
    /// `note:` determine the level of the event. The level of any other line is `Info`.
    fn parse_log_line(self, line: &str) -> Record {
        let (level, message) = match line.split_once(": ") {
            Some(("error", rest)) => (Level::Error, format!("{}: {rest}", self.subject)),
            Some(("warning", rest)) => (Level::Warning, rest.to_owned()),
            Some(("note", rest)) => (Level::Info, rest.to_owned()),
            _ => (Level::Info, line.to_owned()),
        };
        Record::new(self.event, level, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_program_is_an_event_with_its_level() {
        let reports = LogEventOrigin { event: EventKind::PageReported, subject: "the page" };
        for (line, level, message) in [
            ("the page is at x", Level::Info, "the page is at x"),
            ("note: it is in x", Level::Info, "it is in x"),
            ("warning: the page for a: stopped", Level::Warning, "the page for a: stopped"),
            ("error: cannot listen", Level::Error, "the page: cannot listen"),
        ] {
            assert_eq!(
                reports.parse_log_line(line),
                Record::new(EventKind::PageReported, level, message)
            );
        }
    }
}
