//! `streamline mount`: shows the running paths as a file system.
//!
//! Without a command, a background process serves the file system, and exits when the file system
//! is unmounted. With `--foreground`, this process serves it instead. With a command, this process
//! serves the file system while the command runs, in a new user namespace if the user cannot mount
//! otherwise.

use crate::arguments::mount::{MountArguments, parse_edit_limit};
use crate::failure::report_system_error;
use crate::status::Status;
use crate::terminal;
use pipesfs::mount::{Mount, MountOptions, OtherUsersPaths};
use std::ffi::OsString;
use std::io::{ErrorKind, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

/// Exit status with which shells report that a program cannot be executed.
const NOT_EXECUTABLE_STATUS: u8 = 126;
/// Base of the exit status with which shells report a program killed by a signal; the signal number
/// is added.
const SIGNAL_STATUS_BASE: i32 = 128;

/// Mounts and serves the file system, or starts a process that does.
pub(crate) fn mount(arguments: &MountArguments) -> ExitCode {
    let directory = match resolve_mount_directory(&arguments.directory) {
        Ok(directory) if directory.is_dir() => directory,
        Ok(_) => return report_refusal(&arguments.directory, "it is not a directory"),
        Err(error) => {
            return report_refusal(&arguments.directory, &terminal::describe_io_error(&error));
        }
    };
    let others = match arguments.others.as_str() {
        "nothing" => OtherUsersPaths::Nothing,
        "all" => OtherUsersPaths::All,
        _ => OtherUsersPaths::Names,
    };
    let exec = arguments.options.iter().any(|option| option == "exec");
    let daemon = arguments.socket.clone();
    let edit_limit =
        arguments.options.iter().filter_map(|option| parse_edit_limit(option)).next_back();
    let options = MountOptions { daemon, for_all: arguments.all_users, others, exec, edit_limit };
    if let Some((program, words)) = arguments.command.split_first() {
        return run_command(&directory, options, (program, words));
    }
    let done = match arguments.foreground || arguments.background {
        true => serve_mount(&directory, options, arguments),
        false => start_background_server(arguments, &directory),
    };
    done.unwrap_or_else(|status| status).into()
}

/// Returns the absolute path of the mount directory. If the directory has an earlier mount whose
/// server has died, unmounts it.
fn resolve_mount_directory(directory: &Path) -> std::io::Result<PathBuf> {
    // realpath(3) may succeed without a request to the dead server, so metadata is queried.
    let is_dead = |error: &std::io::Error| error.kind() == ErrorKind::NotConnected;
    if std::fs::metadata(directory).is_err_and(|error| is_dead(&error)) {
        // If this fails, the next access reports the reason.
        let _ = sys::fuse::unmount(&std::path::absolute(directory)?);
    }
    let found = std::fs::canonicalize(directory)?;
    std::fs::metadata(&found)?;
    Ok(found)
}

/// Returns the command that the daemon runs to serve the file system on `directory`. The command
/// runs until its standard input is closed. `socket` is the directory of the daemon's sockets, and
/// `others` is the value of `--others`. If `for_all` is true, all users of the machine have access,
/// otherwise only this user.
pub(crate) fn daemon_mount_command(
    directory: &Path,
    (socket, others): (&Path, &str),
    for_all: bool,
) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["mount", "--of-daemon", "--foreground", "--others", others]);
    if for_all {
        command.arg("--all-users");
    }
    let directory = std::path::absolute(directory)?;
    command.arg("--socket").arg(socket).arg(directory);
    Ok(command)
}

fn report_refusal(directory: &Path, why: &str) -> ExitCode {
    terminal::print_error(&format!("cannot mount at {}: {why}", directory.display()));
    Status::NotFound.into()
}

/// Serves the mount until it is unmounted or a signal arrives. A mount of the daemon also ends when
/// standard input is closed.
fn serve_mount(
    directory: &Path,
    options: MountOptions,
    arguments: &MountArguments,
) -> Result<Status, Status> {
    let failed = |error: sys::Error| report_system_error(&error);
    let starter = match arguments.background {
        true => {
            sys::process::start_session().map_err(failed)?;
            Some(sys::process::detach_stdin().map_err(failed)?)
        }
        false => None,
    };
    let signals = engine::signal::watch_stop_signals().map_err(failed)?;
    let mount = Mount::new(directory, options).map_err(|error| report_mount_error(&error))?;
    match starter {
        // If the starting process no longer waits, it was interrupted; the mount remains.
        Some(starter) => drop(sys::descriptor::send(&starter, b"mounted", &[])),
        None => terminal::print_note(&mount_message(directory)),
    }
    let stdin = std::io::stdin();
    let mut ends = vec![mount.end_descriptor(), signals];
    ends.extend(arguments.of_daemon.then(|| stdin.as_fd()));
    while !sys::poll::wait_until_readable_despite_signals(&ends, None).contains(&true) {}
    Ok(Status::Done)
}

/// Starts a background process that serves the mount, and waits until the mount is ready.
fn start_background_server(arguments: &MountArguments, directory: &Path) -> Result<Status, Status> {
    let (parent_end, child_end) =
        sys::descriptor::socket_pair().map_err(|error| report_system_error(&error))?;
    let mut child =
        spawn_server(arguments, directory, Stdio::from(child_end)).map_err(|error| {
            terminal::print_error(&format!(
                "cannot start the server: {}",
                terminal::describe_io_error(&error)
            ));
            Status::Failed
        })?;
    let mounted =
        sys::descriptor::receive(&parent_end, &mut [0; 16]).is_ok_and(|(length, _)| length > 0);
    if mounted {
        terminal::print_note(&mount_message(directory));
        return Ok(Status::Done);
    }
    let mut words = String::new();
    if let Some(errors) = &mut child.stderr {
        // If the process prints nothing, its exit status is the only message.
        let _ = errors.read_to_string(&mut words);
    }
    terminal::print_error_text(&words);
    let status = child.wait().ok().and_then(|status| status.code());
    Err(status
        .map_or(Status::Failed, |code| Status::from_exit_code(u8::try_from(code).unwrap_or(1))))
}

fn spawn_server(
    arguments: &MountArguments,
    directory: &Path,
    socket: Stdio,
) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["mount", "--background", "--others", &arguments.others]);
    if arguments.all_users {
        command.arg("--all-users");
    }
    if let Some(socket) = &arguments.socket {
        command.arg("--socket").arg(socket);
    }
    for option in &arguments.options {
        command.args(["-o", option]);
    }
    // The path is absolute, so it cannot be mistaken for an option.
    command.arg(directory).current_dir("/");
    command.stdin(socket).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
}

fn mount_message(directory: &Path) -> String {
    let directory = directory.display();
    let unmount = match sys::process::effective_ids().0 {
        0 => "umount",
        _ => "fusermount3 -u",
    };
    format!("the running paths are in {directory}; `{unmount} {directory}` unmounts it")
}

/// Serves the mount while a command runs. Returns the exit status of the command in the convention
/// of shells.
fn run_command(
    directory: &Path,
    options: MountOptions,
    (program, words): (&OsString, &[OsString]),
) -> ExitCode {
    let mount = Mount::new(directory, options.clone()).or_else(|error| {
        // The failed attempt has started no thread, so this process is still single-threaded.
        Mount::new_in_user_namespace(directory, options).map_err(|_| error)
    });
    let mount = match mount {
        Ok(mount) => mount,
        Err(error) if error.call == "mount" => return report_system_error(&error).into(),
        Err(error) => return report_mount_error(&error).into(),
    };
    let ended = Command::new(program).args(words).status();
    drop(mount);
    match ended {
        Ok(status) => {
            let code =
                status.code().or_else(|| status.signal().map(|signal| SIGNAL_STATUS_BASE + signal));
            ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
        }
        Err(error) => {
            let program = PathBuf::from(program);
            terminal::print_error(&format!(
                "{}: {}",
                program.display(),
                terminal::describe_io_error(&error)
            ));
            ExitCode::from(NOT_EXECUTABLE_STATUS)
        }
    }
}

/// Prints the reason why the file system cannot be mounted. Returns the exit status.
fn report_mount_error(error: &sys::Error) -> Status {
    let status = report_system_error(error);
    match error.call {
        "execve" => terminal::print_note(
            "without fusermount3 (on Debian the package fuse3), `streamline mount DIR -- COMMAND` \
             mounts for one command",
        ),
        // Without /dev/fuse, a private mount is not possible either.
        "mount" if !error.target.contains("/dev/fuse") => terminal::print_note(
            "`streamline mount DIR -- COMMAND` mounts for one command, in a user namespace",
        ),
        _ => {}
    }
    status
}
