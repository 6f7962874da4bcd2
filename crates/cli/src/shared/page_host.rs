//! The page of `streamline daemon --page`: the program `streamline-page`, which serves all users of
//! a daemon of root, and else this user. It is started again if it ends by itself, and ends with
//! the daemon, which holds its standard input open. What it writes to standard error becomes events
//! of the daemon's log.

use crate::separate::PAGE;
use daemon::log::{EventKind, Level, Log, Record};
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use sys::eventfd::EventFd;
use sys::local_socket;

/// Pause before the program is started again, doubled with each start.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Maximum length of a line that the program writes, in bytes. The rest becomes another line.
const LINE_MAX: usize = 4096;
/// Maximum number of reads after the program has ended: as much as a pipe holds.
const LAST_READS_MAX: usize = 16;

/// The program, and the thread that waits for it. Dropping this value ends both.
#[derive(Debug)]
pub(super) struct PageHost {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl PageHost {
    /// Starts the program. Fails with a sentence.
    pub(super) fn start(listen: &str, directory: &Path, log: &Log) -> Result<Self, String> {
        let stop = Arc::new(EventFd::new().map_err(|error| error.to_string())?);
        let (listen, directory) = (listen.to_owned(), directory.to_owned());
        let command = move || {
            let mut command = PAGE.command();
            command.args(["--all-users", "--of-daemon", "--listen", &listen]);
            command.arg("--socket").arg(&directory);
            // The daemon alone is the service.
            command.env_remove("NOTIFY_SOCKET");
            // A signal from the terminal reaches the daemon alone, which ends the program.
            command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
            command.stderr(Stdio::piped());
            command
        };
        let first = spawn(&mut command())?;
        let (log, stopped) = (log.clone(), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("page".to_owned());
        let thread = thread.spawn(move || keep_running(first, &command, &stopped, &log));
        let thread = Some(thread.map_err(|error| error.to_string())?);
        Ok(Self { stop, thread })
    }
}

impl Drop for PageHost {
    fn drop(&mut self) {
        self.stop.notify();
        // A panic of the thread was reported by it.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Waits for the program, and starts it again when it ends, until `stop` is set.
fn keep_running(first: Running, command: &dyn Fn() -> Command, stop: &EventFd, log: &Log) {
    let mut running = Some(first);
    let mut pause = PAUSE;
    loop {
        if let Some(mut program) = running.take() {
            if program.wait(Some(stop.as_fd()), log) {
                // The program ends when its standard input is closed, and may have ended already.
                drop(program.child.stdin.take());
                program.wait(None, log);
                let _ = program.child.wait();
                return;
            }
            let end = program.child.wait();
            let end = end.map_or_else(|error| error.to_string(), |end| end.to_string());
            let again = pause.as_secs();
            warn(log, &format!("the page has ended ({end}), and starts again in {again} s"));
        }
        if sys::poll::readable_within(&[stop.as_fd()], Some(pause)) == [true] {
            return;
        }
        pause = (pause * 2).min(PAUSE_MAX);
        match spawn(&mut command()) {
            Ok(started) => running = Some(started),
            Err(why) => warn(log, &why),
        }
    }
}

fn spawn(command: &mut Command) -> Result<Running, String> {
    let mut child = command.spawn().map_err(|error| PAGE.describe_failure(&error))?;
    match local_socket::open_process(i32::try_from(child.id()).unwrap_or_default()) {
        Ok(process) => {
            let messages = child.stderr.take();
            Ok(Running { child, process, messages, line: Vec::new() })
        }
        Err(error) => {
            // Without the descriptor nobody would notice its end.
            let _ = child.kill().and_then(|()| child.wait());
            Err(error.to_string())
        }
    }
}

/// The program while it runs.
struct Running {
    child: Child,
    process: OwnedFd,
    /// Standard error of the program, and of its processes for this user, which may outlive it.
    messages: Option<ChildStderr>,
    /// The beginning of a line that has not ended.
    line: Vec<u8>,
}

impl Running {
    /// Logs what the program writes until it has ended or `stop` is readable. Returns true if it
    /// has not ended.
    fn wait(&mut self, stop: Option<BorrowedFd<'_>>, log: &Log) -> bool {
        loop {
            let messages = self.messages.as_ref().map(|pipe| pipe.as_fd());
            let watched = [Some(self.process.as_fd()), stop, messages];
            let present: Vec<BorrowedFd<'_>> = watched.into_iter().flatten().collect();
            let mut ready = sys::poll::readable_within(&present, None).into_iter();
            let [ended, stopped, written] =
                watched.map(|watched| watched.is_some() && ready.next() == Some(true));
            if ended {
                self.read_last(log);
                return false;
            }
            if stopped {
                return true;
            }
            if written {
                self.read(log);
            }
        }
    }

    /// Logs the lines that have been written.
    fn read(&mut self, log: &Log) {
        let mut bytes = [0; LINE_MAX];
        let read = self.messages.as_mut().map_or(Ok(0), |pipe| pipe.read(&mut bytes));
        let length = read.unwrap_or(0);
        if length == 0 {
            self.messages = None;
        }
        for piece in bytes[..length].split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.line.len() >= LINE_MAX {
                self.end_line(log);
            }
        }
    }

    /// Logs what the program had written when it ended.
    fn read_last(&mut self, log: &Log) {
        for _ in 0..LAST_READS_MAX {
            let Some(pipe) = &self.messages else { break };
            if sys::poll::readable_within(&[pipe.as_fd()], Some(Duration::ZERO)) != [true] {
                break;
            }
            self.read(log);
        }
        self.end_line(log);
    }

    fn end_line(&mut self, log: &Log) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        if !line.trim().is_empty() {
            log.write(&record_of(line.trim_end()));
        }
    }
}

/// Returns the event for a line of the program. The first word of the line is its level, if it has
/// one.
fn record_of(line: &str) -> Record {
    let (level, message) = match line.split_once(": ") {
        Some(("error", rest)) => (Level::Error, format!("the page: {rest}")),
        Some(("warning", rest)) => (Level::Warning, rest.to_owned()),
        _ => (Level::Info, line.to_owned()),
    };
    Record::new(EventKind::PageReported, level, message)
}

fn warn(log: &Log, what: &str) {
    log.write(&Record::new(EventKind::DaemonWarning, Level::Warning, what));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_the_page_is_an_event_with_its_level() {
        for (line, level, message) in [
            ("the page is at x", Level::Info, "the page is at x"),
            ("warning: the page for a: stopped", Level::Warning, "the page for a: stopped"),
            ("error: cannot listen", Level::Error, "the page: cannot listen"),
        ] {
            assert_eq!(record_of(line), Record::new(EventKind::PageReported, level, message));
        }
    }
}
