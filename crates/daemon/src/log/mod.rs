//! The log of the control plane: one line for each event, such as the start of a path or the
//! refusal of a request.
//!
//! A line is sent to journald in its native protocol, with each property in a separate field, or
//! written to standard error as text or JSON. Writing never blocks the server: a line that would
//! block is dropped and counted, and the next line that is written reports how many lines are
//! missing. Nothing is logged per block.

mod journal;
mod rate_limits;
mod record;

pub use record::{EventKind, Level, Record};

use journal::Journal;
use rate_limits::UserLogRateLimits;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Path of the socket on which journald accepts entries in its native protocol.
pub const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";

/// The format and the destination of the log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum LogForm {
    /// Journald if standard error is connected to it and it accepts datagrams, else text.
    #[default]
    Automatic,
    /// Lines of text on standard error.
    Text,
    /// One JSON object per line on standard error, conforming to the published schema `log`.
    Json,
    /// Datagrams to journald at this socket.
    Journal(PathBuf),
}

impl FromStr for LogForm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "text" => Ok(Self::Text),
            None if text == "json" => Ok(Self::Json),
            None if text == "journal" => Ok(Self::Journal(JOURNAL_SOCKET.into())),
            Some(("journal", socket)) if socket.starts_with('/') => {
                Ok(Self::Journal(socket.into()))
            }
            _ => Err("write text, json, journal, or journal:SOCKET with an absolute path".into()),
        }
    }
}

/// A shared handle to the log of the daemon. The default handle discards all lines.
#[derive(Clone, Debug, Default)]
pub struct Log(Option<Arc<Mutex<Writer>>>);

impl Log {
    /// Opens a log. Fails if the form is [`LogForm::Journal`] and its socket does not accept
    /// datagrams.
    pub fn open(form: &LogForm) -> Result<Self, LogError> {
        let target = match form {
            LogForm::Text => LogTarget::Text,
            LogForm::Json => LogTarget::Json,
            LogForm::Journal(socket) => LogTarget::Journal(open_journal(socket)?),
            // Standard error is connected to the journal, too, so text loses only the separate
            // fields.
            LogForm::Automatic if is_journal_stream() => {
                open_journal(Path::new(JOURNAL_SOCKET)).map_or(LogTarget::Text, LogTarget::Journal)
            }
            LogForm::Automatic => LogTarget::Text,
        };
        let writer = Writer { target, limits: UserLogRateLimits::default(), dropped_lines: 0 };
        Ok(Self(Some(Arc::new(Mutex::new(writer)))))
    }

    /// Writes a line to the log. Lines of a user who exceeds the limit are counted instead, and the
    /// count is written later.
    pub fn write(&self, record: &Record) {
        let Some(writer) = &self.0 else { return };
        writer.lock().unwrap_or_else(PoisonError::into_inner).write(record);
    }

    /// Writes lines that report how many lines have been suppressed or dropped since the last such
    /// report.
    pub fn flush(&self) {
        let Some(writer) = &self.0 else { return };
        writer.lock().unwrap_or_else(PoisonError::into_inner).flush();
    }
}

/// The error for a journald socket that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("no log at {}: {why}: use --log=text or --log=json", socket.display())]
pub struct LogError {
    socket: PathBuf,
    why: std::io::Error,
}

fn open_journal(socket: &Path) -> Result<Journal, LogError> {
    Journal::open(socket).map_err(|why| LogError { socket: socket.to_owned(), why })
}

/// Maximum length of a line on standard error, in bytes. A pipe that is ready accepts a line of
/// this length without blocking (pipe(7), `PIPE_BUF`).
const LOG_LINE_BYTES_MAX: usize = 4096;

#[derive(Debug)]
enum LogTarget {
    Text,
    Json,
    Journal(Journal),
}

#[derive(Debug)]
struct Writer {
    target: LogTarget,
    limits: UserLogRateLimits,
    /// Number of lines dropped since the last line was written. A line is dropped if writing it
    /// would block.
    dropped_lines: u64,
}

impl Writer {
    fn write(&mut self, record: &Record) {
        let (written, suppressed) = self.limits.admit_line(record.uid, sys::clock::monotonic_ns());
        self.write_suppressed_counts(&suppressed);
        if written {
            self.write_record_or_count_drop(record);
        }
    }

    fn flush(&mut self) {
        let suppressed = self.limits.take_suppressed_counts();
        self.write_suppressed_counts(&suppressed);
        self.write_dropped_line_count();
    }

    fn write_suppressed_counts(&mut self, suppressed: &[(u32, u64)]) {
        for (uid, count) in suppressed {
            let message = format!("{count} more events of user {uid} were not logged");
            let record = Record::new(EventKind::LogSuppressed, Level::Warning, message);
            self.write_record_or_count_drop(&Record { uid: Some(*uid), ..record });
        }
    }

    fn write_dropped_line_count(&mut self) {
        if self.dropped_lines > 0 {
            let message = format!("{} events were not logged: no room", self.dropped_lines);
            let record = Record::new(EventKind::LogSuppressed, Level::Warning, message);
            if self.send(&record) {
                self.dropped_lines = 0;
            }
        }
    }

    fn write_record_or_count_drop(&mut self, record: &Record) {
        self.write_dropped_line_count();
        self.dropped_lines += u64::from(!self.send(record));
    }

    /// Writes the line to the target without blocking. Returns true if it was written.
    fn send(&self, record: &Record) -> bool {
        match &self.target {
            LogTarget::Text => {
                write_stderr_line(&record.bounded_line(LOG_LINE_BYTES_MAX, Record::to_text))
            }
            LogTarget::Json => {
                write_stderr_line(&record.bounded_line(LOG_LINE_BYTES_MAX, Record::to_json))
            }
            LogTarget::Journal(journal) => journal.send(record).is_ok(),
        }
    }
}

/// Writes a line to standard error unless that could block. Returns true if it was written.
fn write_stderr_line(line: &str) -> bool {
    let stderr = std::io::stderr();
    sys::poll::wait_until_writable(stderr.as_fd(), Duration::ZERO)
        && stderr.lock().write_all(line.as_bytes()).is_ok()
}

/// Returns true if a service manager has connected standard error to journald (systemd.exec(5),
/// `JOURNAL_STREAM`).
fn is_journal_stream() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(stderr) = std::io::stderr().as_fd().try_clone_to_owned() else { return false };
    let about = std::fs::File::from(stderr).metadata();
    about.is_ok_and(|about| stream == format!("{}:{}", about.dev(), about.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_forms_are_parsed() {
        assert_eq!("json".parse(), Ok(LogForm::Json));
        assert_eq!("text".parse(), Ok(LogForm::Text));
        assert_eq!("journal".parse(), Ok(LogForm::Journal(JOURNAL_SOCKET.into())));
        assert_eq!("journal:/run/x".parse(), Ok(LogForm::Journal("/run/x".into())));
        for wrong in ["", "xml", "journal:relative", "json:/x"] {
            assert!(wrong.parse::<LogForm>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn missing_journal_is_an_error_only_if_it_was_asked_for() {
        let none = LogForm::Journal("/nonexistent/socket".into());
        let error = Log::open(&none).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/socket") && error.contains("--log=text"), "{error}");
        assert!(Log::open(&LogForm::Automatic).is_ok());
    }
}
