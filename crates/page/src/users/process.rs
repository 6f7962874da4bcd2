//! The process of a user, as the host sees it: started with the rights of the user, given
//! connections, and let go when it is idle.
//!
//! The process belongs to its user, who can stop, trace or replace it. What it sends is checked, and
//! the host never waits for it.

use super::accounts::{Account, lock};
use super::own_process::{Settings, USER_PROCESS_FLAG};
use super::report;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use streamline::paths::{home_directory, user_name};
use sys::local_socket;

/// Search path of a process that does not inherit that of its starter.
const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";
/// Variables that the process of another user inherits.
const INHERITED: [&str; 3] = ["LANG", "LC_ALL", "TZ"];
/// Time within which a process that was told to end must have ended.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The place of the process of a user, which may be empty.
#[derive(Debug, Default)]
pub(super) struct Slot(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    running: Option<Running>,
    /// Number of the latest process.
    latest: u64,
}

#[derive(Debug)]
struct Running {
    /// The socket to the process, shared with the thread that waits for it.
    control: Arc<OwnedFd>,
    /// Number among the processes of the slot.
    number: u64,
    /// Number of connections that were handed to the process.
    handed: u64,
}

impl Slot {
    /// Hands a connection to the process, which is started if it does not run.
    pub(super) fn hand_over(
        account: &Arc<Account>,
        message: &[u8],
        connection: BorrowedFd<'_>,
    ) -> Result<(), String> {
        let user = account.user();
        let mut state = lock(&account.process.0);
        for _ in 0..2 {
            let mut running = match state.running.take() {
                Some(running) => running,
                None => start(account, &mut state).map_err(|why| {
                    format!("the process of the page for {user} cannot be started: {why}")
                })?,
            };
            match local_socket::send_now(&running.control, message, &[connection]) {
                Ok(Some(_)) => {
                    running.handed += 1;
                    state.running = Some(running);
                    return Ok(());
                }
                Ok(None) => {
                    state.running = Some(running);
                    return Err(format!(
                        "the process of the page for {user} reads nothing: it is \
                                        stopped, or overloaded"
                    ));
                }
                // It has ended, which the next one makes good.
                Err(error) if [EPIPE, ECONNRESET].contains(&error.errno) => {}
                Err(error) => {
                    state.running = Some(running);
                    return Err(format!("the page for {user}: {error}"));
                }
            }
        }
        Err(format!("the process of the page for {user} ends at once"))
    }

    /// Tells the process to end.
    pub(super) fn end(&self) {
        let running = lock(&self.0).running.take();
        running.iter().for_each(|running| drop(local_socket::hang_up(&running.control)));
    }

    /// Tells process `number` to end if it has no connection but those that it knows to have ended.
    fn end_if_idle(&self, number: u64, ended: u64) -> bool {
        let mut state = lock(&self.0);
        let is_idle = |running: &Running| running.number == number && running.handed == ended;
        let idle = state.running.take_if(|running| is_idle(running));
        idle.is_some()
    }

    /// Forgets process `number`, which has ended.
    fn forget(&self, number: u64) {
        let _ = lock(&self.0).running.take_if(|running| running.number == number);
    }
}

/// Starts the process of a user, and a thread that waits for its end.
fn start(account: &Arc<Account>, state: &mut State) -> Result<Running, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let (control, far) = sys::descriptor::pair().map_err(|error| failed(&error))?;
    let mut child = command(account, far)?.spawn().map_err(|error| failed(&error))?;
    let settings = Settings {
        token: account.needs_token.then(|| account.token.text().to_owned()),
        daemon: account.daemon.clone(),
        idle_ms: u64::try_from(account.idle.as_millis()).unwrap_or(u64::MAX),
    };
    let settings = serde_json::to_vec(&settings).unwrap_or_default();
    let process = i32::try_from(child.id()).unwrap_or_default();
    let begun = local_socket::send_now(&control, &settings, &[])
        .and_then(|_| local_socket::open_process(process));
    let process = match begun {
        Ok(process) => process,
        Err(error) => {
            // It would wait for its settings.
            let _ = child.kill().and_then(|()| child.wait());
            return Err(failed(&error));
        }
    };
    report(&format!("the page for {}: process {} has started", account.user(), child.id()));
    state.latest += 1;
    let (number, control) = (state.latest, Arc::new(control));
    let (account, shared) = (Arc::clone(account), Arc::clone(&control));
    let thread = std::thread::Builder::new().name("process of a user".to_owned());
    let waits = thread.spawn(move || wait(&account, number, shared, (child, &process)));
    waits.map_err(|error| failed(&error))?;
    Ok(Running { control, number, handed: 0 })
}

/// Returns the command of the process, with `control` as standard input.
fn command(account: &Account, control: OwnedFd) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(own);
    command.arg(USER_PROCESS_FLAG).stdin(Stdio::from(control)).stdout(Stdio::null());
    let (uid, _) = sys::process::identity();
    if account.who.uid != uid {
        set_environment(&mut command, account.who.uid);
        command.stderr(Stdio::null());
    }
    if uid == 0 {
        sys::process::run_as(&mut command, &account.who);
    }
    Ok(command)
}

/// Gives a command the environment of a user, and nothing of this process's.
fn set_environment(command: &mut Command, uid: u32) {
    command.env_clear().env("PATH", SEARCH_PATH);
    for name in INHERITED {
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
    // The process goes to the home of its user itself, with the rights of the user.
    command.current_dir(Path::new("/"));
}

/// Waits until the process of a user has ended, and reports why. Lets it end when it is idle.
fn wait(
    account: &Account,
    number: u64,
    control: Arc<OwnedFd>,
    (mut child, process): (Child, &OwnedFd),
) {
    let is_idle = serve_reports(account, number, &control, process);
    account.process.forget(number);
    // Only now can it know that it ends: a duplicate may be in the hands of whoever sends.
    let _ = local_socket::hang_up(&control);
    drop(control);
    if sys::poll::readable_within(&[process.as_fd()], Some(END_LIMIT)) != [true] {
        // The process may have ended meanwhile.
        let _ = child.kill();
    }
    let (user, id) = (account.user(), child.id());
    report(&match child.wait() {
        Ok(status) if status.success() && is_idle => {
            format!("the page for {user}: process {id} has ended: nobody looks")
        }
        Ok(status) if status.success() => format!("the page for {user}: process {id} has ended"),
        Ok(status) => format!(
            "the page for {user}: process {id} has ended: {status}; the next request starts another"
        ),
        Err(error) => format!("the page for {user}: process {id}: {error}"),
    });
}

/// Receives the reports of a process, which say that all connections up to a number have ended.
/// Returns true when it was let go because it is idle, and false when it has ended, or sends anything
/// else.
fn serve_reports(account: &Account, number: u64, control: &OwnedFd, process: &OwnedFd) -> bool {
    let mut reported = 0;
    loop {
        let ready = sys::poll::readable(&[control.as_fd(), process.as_fd()], None);
        if ready.get(1) == Some(&true) {
            return false;
        }
        let mut message = [0; 8];
        match sys::descriptor::try_receive(control, &mut message) {
            Ok(None) => {}
            // A process that repeats itself would keep this thread busy.
            Ok(Some((8, _))) if u64::from_le_bytes(message) > reported => {
                reported = u64::from_le_bytes(message);
                if account.process.end_if_idle(number, reported) {
                    return true;
                }
            }
            Ok(Some(_)) | Err(_) => return false,
        }
    }
}

/// Error number for a write to a closed connection.
const EPIPE: i32 = 32;
/// Error number for a connection that the peer has reset.
const ECONNRESET: i32 = 104;
