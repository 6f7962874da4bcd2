//! The host's side of the process of a user. The host starts the process with the credentials of
//! the user, sends connections to it, and ends it when it is idle.
//!
//! The user owns the process and can stop, trace or replace it. The host therefore validates all
//! messages of the process, and never waits for the process.

use super::own_process::{Settings, USER_PROCESS_FLAG};
use super::start_limits::{STEADY_TIME_MIN, StartLimits};
use std::fmt;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use streamline::paths::{home_directory, user_name};
use sys::local_socket;
use sys::process::UserIds;

/// Value of `PATH` for a process that does not inherit the environment of the host.
const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";
/// Environment variables that the process of a user inherits from a host that runs as root.
const INHERITED_VARIABLES: [&str; 3] = ["LANG", "LC_ALL", "TZ"];
/// Time within which a process must end after the host has closed its socket.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The most recent use of a user's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LastUse {
    /// The process has never run.
    Never,
    /// The process has run, but is not running now.
    Earlier,
    /// The process is running.
    Now,
}

/// The process of a user. It runs while the user has the page open, and is started again on demand.
pub struct UserProcess {
    who: UserIds,
    /// Settings of the process, which each newly started process receives as its first message.
    settings: Settings,
    state: Mutex<ProcessState>,
    starts: Arc<Mutex<StartLimits>>,
}

#[derive(Debug, Default)]
struct ProcessState {
    running: Option<RunningProcess>,
    /// True if the token has been revoked, so that no process may be started.
    is_closed: bool,
    /// Number of the latest process of the account; 0 if none has been started.
    latest: u64,
}

#[derive(Debug)]
struct RunningProcess {
    /// The host's end of the socket to the process. The thread that waits for the process has
    /// another handle to it.
    control: Arc<OwnedFd>,
    /// Sequence number among the processes of the same account.
    number: u64,
    /// Number of connections that have been handed to the user's process.
    handed: u64,
}

impl fmt::Debug for UserProcess {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The settings contain the token, which must not be printed.
        out.debug_struct("UserProcess").field("who", &self.who).finish_non_exhaustive()
    }
}

impl UserProcess {
    pub(super) fn new(
        who: UserIds,
        settings: Settings,
        starts: Arc<Mutex<StartLimits>>,
    ) -> Arc<Self> {
        Arc::new(Self { who, settings, state: Mutex::default(), starts })
    }

    /// Returns the start limits that all processes of the user share.
    pub(super) fn start_limits(&self) -> Arc<Mutex<StartLimits>> {
        Arc::clone(&self.starts)
    }

    /// Logs that a connection could not be handed over, unless a refusal was logged recently.
    pub(super) fn report_refusal(&self, why: &str) {
        let due = lock(&self.starts).record_refusal(Instant::now());
        match due {
            Some(0) => log_warning(why),
            Some(earlier) => log_warning(&format!("{why}; {earlier} requests were refused before")),
            None => {}
        }
    }

    /// Returns the user id and the group ids of the process.
    #[must_use]
    pub const fn user_ids(&self) -> &UserIds {
        &self.who
    }

    /// Returns the name and the user id of the user, for messages.
    fn user(&self) -> String {
        let uid = self.who.uid;
        user_name(uid).map_or_else(|| format!("user {uid}"), |name| format!("{name} ({uid})"))
    }

    /// Hands a connection to the process, with a message that contains the kind of socket and the
    /// bytes received so far. Starts the process if it is not running. Fails with a message for the
    /// user.
    pub fn hand_over(
        self: &Arc<Self>,
        message: &[u8],
        connection: BorrowedFd<'_>,
    ) -> Result<(), String> {
        let user = self.user();
        let mut state = lock(&self.state);
        if state.is_closed {
            return Err(format!(
                "the token for {user} is no longer valid: `streamline page --renew` has replaced \
                 it; `streamline page` prints the new URL"
            ));
        }
        for _ in 0..2 {
            let mut running = match state.running.take() {
                Some(running) => running,
                None => self.restart_process(&mut state).map_err(|why| {
                    format!("the process of the page for {user} cannot be started: {why}")
                })?,
            };
            match local_socket::send_nonblocking(&running.control, message, &[connection]) {
                Ok(Some(_)) => {
                    running.handed += 1;
                    state.running = Some(running);
                    return Ok(());
                }
                Ok(None) => {
                    state.running = Some(running);
                    return Err(format!(
                        "the process of the page for {user} reads nothing: it is stopped, or \
                         overloaded"
                    ));
                }
                // The process has exited, so the loop starts another one.
                Err(error) if [EPIPE, ECONNRESET].contains(&error.errno) => {}
                Err(error) => {
                    state.running = Some(running);
                    return Err(format!("the page for {user}: {error}"));
                }
            }
        }
        Err(format!("the process of the page for {user} exits immediately"))
    }

    fn restart_process(
        self: &Arc<Self>,
        state: &mut ProcessState,
    ) -> Result<RunningProcess, String> {
        let pause = lock(&self.starts).remaining_pause(Instant::now());
        match pause {
            Some((ends, pause)) => Err(format!(
                "it has ended {ends} times soon after its start; try again in {} s",
                pause.as_secs() + 1
            )),
            None => start(self, state),
        }
    }

    /// Returns the most recent use of the process. Does not block.
    pub(super) fn last_use(&self) -> LastUse {
        // The lock is held while a connection is handed over.
        let Ok(state) = self.state.try_lock() else { return LastUse::Now };
        match (&state.running, state.latest) {
            (Some(_), _) => LastUse::Now,
            (None, 0) => LastUse::Never,
            (None, _) => LastUse::Earlier,
        }
    }

    /// Ends the process if it is running, and prevents further starts.
    pub(super) fn close(&self) {
        let running = {
            let mut state = lock(&self.state);
            state.is_closed = true;
            state.running.take()
        };
        running.iter().for_each(|running| drop(local_socket::hang_up(&running.control)));
    }

    /// Forgets the running process `number` if it is idle, that is, if all connections handed to it
    /// have ended. `ended` is the number of ended connections that the process has reported.
    /// Returns true if the process was idle.
    fn forget_if_idle(&self, number: u64, ended: u64) -> bool {
        let is_idle =
            |running: &mut RunningProcess| running.number == number && running.handed == ended;
        lock(&self.state).running.take_if(is_idle).is_some()
    }

    /// Forgets the running process `number` after the process has exited.
    fn forget(&self, number: u64) {
        let _ = lock(&self.state).running.take_if(|running| running.number == number);
    }
}

/// Starts the process of a user, and a thread that waits until the process has exited.
fn start(owner: &Arc<UserProcess>, state: &mut ProcessState) -> Result<RunningProcess, String> {
    let failed = |error: &dyn fmt::Display| error.to_string();
    let (control, far) = sys::descriptor::socket_pair().map_err(|error| failed(&error))?;
    let mut child = command(&owner.who, far)?.spawn().map_err(|error| failed(&error))?;
    let settings = serde_json::to_vec(&owner.settings).unwrap_or_default();
    let process = i32::try_from(child.id()).unwrap_or_default();
    let begun = local_socket::send_nonblocking(&control, &settings, &[])
        .and_then(|_| local_socket::open_pidfd(process));
    let process = match begun {
        Ok(process) => process,
        Err(error) => {
            // The process would wait for its settings forever, so it is killed.
            let _ = child.kill().and_then(|()| child.wait());
            return Err(failed(&error));
        }
    };
    log_line(&format!("the page for {}: process {} has started", owner.user(), child.id()));
    state.latest += 1;
    let (number, control) = (state.latest, Arc::new(control));
    let (owner, shared) = (Arc::clone(owner), Arc::clone(&control));
    let thread = std::thread::Builder::new().name("user process".to_owned());
    let begun = Instant::now();
    let waits =
        thread.spawn(move || wait_for_exit(&owner, (number, begun), shared, (child, &process)));
    waits.map_err(|error| failed(&error))?;
    Ok(RunningProcess { control, number, handed: 0 })
}

/// Returns the command that starts a process with these credentials and `control` as standard
/// input.
fn command(who: &UserIds, control: OwnedFd) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(own);
    command.arg(USER_PROCESS_FLAG).stdin(Stdio::from(control)).stdout(Stdio::null());
    let (uid, _) = sys::process::effective_ids();
    if uid == 0 {
        // Even root's process gets a new environment, because a service does not have the
        // environment of a login.
        set_environment(&mut command, who.uid);
        sys::process::set_command_user(&mut command, who);
    }
    if who.uid != uid {
        command.stderr(Stdio::null());
    }
    Ok(command)
}

/// Sets the environment of a command to the user's basic environment. Variables of this process are
/// not inherited, except [`INHERITED_VARIABLES`].
fn set_environment(command: &mut Command, uid: u32) {
    command.env_clear().env("PATH", SEARCH_PATH);
    for name in INHERITED_VARIABLES {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    if let Some(name) = user_name(uid) {
        command.env("USER", &name).env("LOGNAME", name);
    }
    let home = home_directory(uid).unwrap_or_else(|| "/".into());
    command.env("HOME", home);
    let runtime = PathBuf::from(format!("/run/user/{uid}"));
    if runtime.is_dir() {
        command.env("XDG_RUNTIME_DIR", runtime);
    }
    // The process itself changes to the user's home directory, under the user's credentials.
    command.current_dir(Path::new("/"));
}

/// Waits until the process of a user has exited, and logs the reason. Ends the process when it
/// reports that it is idle.
fn wait_for_exit(
    owner: &UserProcess,
    (number, begun): (u64, Instant),
    control: Arc<OwnedFd>,
    (mut child, process): (Child, &OwnedFd),
) {
    let is_idle = receive_reports(owner, number, &control, process);
    let idle = Duration::from_millis(owner.settings.idle_ms);
    // The user may have replaced the process, so a claim to be idle counts only after the idle
    // time.
    let steady = if is_idle { idle } else { STEADY_TIME_MIN };
    let now = Instant::now();
    lock(&owner.starts).record_end(now, now - begun >= steady);
    owner.forget(number);
    // The socket is shut down explicitly, because a thread that is handing over a connection may
    // still hold a duplicate, so that dropping it here would not close it.
    let _ = local_socket::hang_up(&control);
    drop(control);
    if sys::poll::wait_until_readable_despite_signals(&[process.as_fd()], Some(EXIT_TIMEOUT))
        != [true]
    {
        // An error means that the process has exited in the meantime.
        let _ = child.kill();
    }
    let (user, id) = (owner.user(), child.id());
    match child.wait() {
        Ok(status) if status.success() && is_idle => {
            log_line(&format!(
                "the page for {user}: process {id} has ended: the page is not in use"
            ));
        }
        Ok(status) if status.success() => {
            log_line(&format!("the page for {user}: process {id} has ended"));
        }
        Ok(status) => log_warning(&format!(
            "the page for {user}: process {id} has ended: {status}; the next request starts another"
        )),
        Err(error) => log_warning(&format!("the page for {user}: process {id}: {error}")),
    }
}

/// Receives the reports of a process, each of which contains the number of ended connections.
/// Returns true when the process is idle and has been forgotten. Returns false when the process has
/// exited or has sent an invalid message.
fn receive_reports(owner: &UserProcess, number: u64, control: &OwnedFd, process: &OwnedFd) -> bool {
    let mut reported = 0;
    loop {
        let ready = sys::poll::wait_until_readable(&[control.as_fd(), process.as_fd()], None);
        if ready.get(1) == Some(&true) {
            return false;
        }
        let mut message = [0; 8];
        match sys::descriptor::try_receive(control, &mut message) {
            Ok(None) => {}
            // The number must increase, so that a process cannot keep this thread busy with
            // repeated reports.
            Ok(Some((8, _))) if u64::from_le_bytes(message) > reported => {
                reported = u64::from_le_bytes(message);
                if owner.forget_if_idle(number, reported) {
                    return true;
                }
            }
            Ok(Some(_)) | Err(_) => return false,
        }
    }
}

/// Writes a line to standard error, which is the log of the live page.
pub(super) fn log_line(line: &str) {
    // A failed write to standard error cannot be reported.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes a warning to standard error. The daemon derives the log level of the line from its first
/// word.
pub(super) fn log_warning(line: &str) {
    log_line(&format!("warning: {line}"));
}

pub(super) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Error number: write to a closed connection.
const EPIPE: i32 = 32;
/// Error number: connection reset by the peer.
const ECONNRESET: i32 = 104;
