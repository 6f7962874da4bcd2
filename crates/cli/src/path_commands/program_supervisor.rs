//! The programs that `streamline daemon` runs: the page (`--page`) and the mount (`--mount`). For
//! each program, a thread restarts the program if it exits by itself. The daemon holds the
//! program's standard input open, so the program ends with the daemon. The daemon also logs the
//! program's standard error.

use super::child_program::{ChildProgram, LogEventOrigin};
use super::daemon::log_warning;
use crate::mount;
use crate::separate_program::PAGE_PROGRAM;
use crate::terminal;
use daemon::log::{EventKind, Log};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::eventfd::EventFd;

/// Initial pause before a program is restarted. The pause doubles with each restart, and is reset
/// after the program has run for longer than [`RESTART_PAUSE_MAX`].
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause before the daemon restarts a program.
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(60);

/// A program that the daemon runs and restarts.
#[derive(Clone, Debug)]
pub(super) enum Program {
    /// The live page (`streamline-page`).
    Page {
        /// Loopback address or path of the Unix socket on which the page listens.
        listen: String,
        /// Directory of the daemon's sockets.
        socket: PathBuf,
    },
    /// The file system of running paths (`streamline mount`).
    Mount {
        /// Directory on which the file system is mounted.
        directory: PathBuf,
        /// Directory of the daemon's sockets.
        socket: PathBuf,
        /// Selection of the other users' paths in the listing: `nothing`, `names` or `all`.
        others: &'static str,
        /// True if all users of the machine have access to the mount.
        for_all: bool,
    },
}

impl Program {
    fn log_event_origin(&self) -> LogEventOrigin {
        match self {
            Self::Page { .. } => {
                LogEventOrigin { event: EventKind::PageReported, subject: "the page" }
            }
            Self::Mount { .. } => {
                LogEventOrigin { event: EventKind::MountReported, subject: "the mount" }
            }
        }
    }

    fn command(&self) -> io::Result<Command> {
        let mut command = match self {
            Self::Page { listen, socket } => {
                let mut command = PAGE_PROGRAM.command();
                command.args(["--all-users", "--of-daemon", "--listen", listen]);
                command.arg("--socket").arg(socket);
                command
            }
            Self::Mount { directory, socket, others, for_all } => {
                mount::daemon_mount_command(directory, (socket, others), *for_all)?
            }
        };
        // The program must not notify the service manager; only the daemon does.
        command.env_remove("NOTIFY_SOCKET");
        // Signals from the terminal reach only the daemon, which then ends the program.
        command.process_group(0);
        Ok(command)
    }

    /// Starts the program. Fails with a message for the user.
    fn spawn(&self) -> Result<ChildProgram, String> {
        let spawned = self
            .command()
            .and_then(|mut command| ChildProgram::spawn(&mut command, self.log_event_origin()));
        spawned.map_err(|error| match self {
            Self::Page { .. } => PAGE_PROGRAM.describe_failure(&error),
            Self::Mount { directory, .. } => {
                format!(
                    "{} is not mounted: {}",
                    directory.display(),
                    terminal::describe_io_error(&error)
                )
            }
        })
    }

    /// Returns true if the program must be restarted after it has exited with the status `end`. The
    /// page is always restarted. The mount is restarted only if a signal has killed it: if it exits
    /// by itself, it was unmounted, or has reported why it cannot mount.
    fn needs_restart(&self, end: &io::Result<ExitStatus>) -> bool {
        match self {
            Self::Page { .. } => true,
            Self::Mount { .. } => end.as_ref().is_ok_and(|end| end.signal().is_some()),
        }
    }
}

/// A running program, and the thread that restarts it. Dropping this value ends the program and the
/// thread.
#[derive(Debug)]
pub(super) struct ProgramSupervisor {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl ProgramSupervisor {
    /// Starts the program. Fails with a sentence that describes the error.
    pub(super) fn start(program: Program, log: &Log) -> Result<Self, String> {
        let stop = Arc::new(EventFd::new().map_err(|error| error.to_string())?);
        let first = program.spawn()?;
        let (log, stopped) = (log.clone(), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("program monitor".to_owned());
        let thread = thread.spawn(move || keep_program_running(first, &program, &stopped, &log));
        let thread = Some(thread.map_err(|error| error.to_string())?);
        Ok(Self { stop, thread })
    }
}

impl Drop for ProgramSupervisor {
    fn drop(&mut self) {
        self.stop.notify();
        // If the thread has panicked, it has already reported the panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Waits for a program, and restarts it whenever it exits, until `stop` is notified. Then ends the
/// program.
fn keep_program_running(first: ChildProgram, program: &Program, stop: &EventFd, log: &Log) {
    let mut running = Some(first);
    let mut pause = RESTART_PAUSE;
    let mut started = Instant::now();
    loop {
        if let Some(mut helper) = running.take() {
            let goes_on = helper.wait(Some(stop.as_fd()), log);
            let end = helper.end_and_wait(log);
            if goes_on || !program.needs_restart(&end) {
                return;
            }
            if started.elapsed() > RESTART_PAUSE_MAX {
                pause = RESTART_PAUSE;
            }
            let end = end.map_or_else(|error| error.to_string(), |end| end.to_string());
            let (subject, again) = (program.log_event_origin().subject, pause.as_secs());
            log_warning(
                log,
                &format!("{subject} has ended ({end}), and starts again in {again} s"),
            );
        }
        if sys::poll::wait_until_readable_despite_signals(&[stop.as_fd()], Some(pause)) == [true] {
            return;
        }
        pause = (pause * 2).min(RESTART_PAUSE_MAX);
        started = Instant::now();
        match program.spawn() {
            Ok(helper) => running = Some(helper),
            Err(why) => log_warning(log, &why),
        }
    }
}
