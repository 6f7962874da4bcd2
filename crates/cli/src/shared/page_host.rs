//! The page of `streamline daemon --page`: the program `streamline-page`. The page of a daemon of
//! root serves all users; otherwise, it serves this user. The program is restarted if it ends by
//! itself, and ends with the daemon, which holds its standard input open. Its standard error
//! becomes events of the daemon's log.

use super::helper::{Helper, Reports};
use crate::separate::PAGE;
use daemon::log::{EventKind, Level, Log, Record};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use sys::eventfd::EventFd;

/// Pause before the program is restarted. Each restart doubles the pause.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause before a restart.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The program, and the thread that waits for the program. Dropping this value ends both.
#[derive(Debug)]
pub(super) struct PageHost {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl PageHost {
    /// Starts the program. Fails with a sentence that describes the error.
    pub(super) fn start(listen: &str, directory: &Path, log: &Log) -> Result<Self, String> {
        let stop = Arc::new(EventFd::new().map_err(|error| error.to_string())?);
        let (listen, directory) = (listen.to_owned(), directory.to_owned());
        let command = move || {
            let mut command = PAGE.command();
            command.args(["--all-users", "--of-daemon", "--listen", &listen]);
            command.arg("--socket").arg(&directory);
            // Only the daemon notifies the service manager.
            command.env_remove("NOTIFY_SOCKET");
            // Only the daemon receives signals from the terminal, and then ends the program.
            command.process_group(0);
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
        // The thread has already reported its panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Waits for the program, and restarts it when it ends, until `stop` is notified.
fn keep_running(first: Helper, command: &dyn Fn() -> Command, stop: &EventFd, log: &Log) {
    let mut running = Some(first);
    let mut pause = PAUSE;
    loop {
        if let Some(mut program) = running.take() {
            let goes_on = program.wait(Some(stop.as_fd()), log);
            let end = program.end(log);
            if goes_on {
                return;
            }
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

fn spawn(command: &mut Command) -> Result<Helper, String> {
    let reports = Reports { event: EventKind::PageReported, subject: "the page" };
    Helper::spawn(command, reports).map_err(|error| PAGE.describe_failure(&error))
}

fn warn(log: &Log, what: &str) {
    log.write(&Record::new(EventKind::DaemonWarning, Level::Warning, what));
}
