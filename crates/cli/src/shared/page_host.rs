//! The page of `streamline daemon --page`: the program `streamline-page`, which serves all users of
//! a daemon of root, and else this user. It is started again if it ends by itself, and ends with
//! the daemon, which holds its standard input open.

use crate::separate::PAGE;
use daemon::log::{EventKind, Level, Log, Record};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use sys::eventfd::EventFd;
use sys::local_socket;

/// Pause before the program is started again, doubled with each start.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);

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
fn keep_running(first: (Child, OwnedFd), command: &dyn Fn() -> Command, stop: &EventFd, log: &Log) {
    let mut running = Some(first);
    let mut pause = PAUSE;
    loop {
        if let Some((mut child, process)) = running.take() {
            let ready = sys::poll::readable_within(&[stop.as_fd(), process.as_fd()], None);
            if ready.first() == Some(&true) {
                // The program ends when its standard input is closed, and may have ended already.
                drop(child.stdin.take());
                let _ = child.wait();
                return;
            }
            let end = child.wait().map_or_else(|error| error.to_string(), |end| end.to_string());
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

fn spawn(command: &mut Command) -> Result<(Child, OwnedFd), String> {
    let mut child = command.spawn().map_err(|error| PAGE.describe_failure(&error))?;
    match local_socket::open_process(i32::try_from(child.id()).unwrap_or_default()) {
        Ok(process) => Ok((child, process)),
        Err(error) => {
            // Without the descriptor nobody would notice its end.
            let _ = child.kill().and_then(|()| child.wait());
            Err(error.to_string())
        }
    }
}

fn warn(log: &Log, what: &str) {
    log.write(&Record::new(EventKind::DaemonWarning, Level::Warning, what));
}
