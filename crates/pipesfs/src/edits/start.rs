//! Start of a path when a user creates a directory in the root directory. The path runs in a new
//! process of the caller, which the command `streamline start` creates.

use super::Refusal;
use super::carry_out::Caller;
use crate::protocol::errno;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Number of bytes stored from the output of the command that starts a path; the rest is read and
/// discarded.
const COMMAND_OUTPUT_BYTES_MAX: u64 = 16 << 10;

/// Environment variable with the directory of the daemon.
const DAEMON_VARIABLE: &str = "STREAMLINE_DAEMON";

/// Starts a path in the background, as a process of the caller, and returns the path's number.
/// Blocks until the path is running, at most until the caller's deadline.
pub(super) fn start(
    daemon: Option<&Path>,
    (name, request): (Option<&str>, &str),
    caller: &Caller,
) -> Result<u32, Refusal> {
    let failed = |why: String| Refusal::new(errno::EIO, why);
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(program);
    command.arg("start");
    if caller.is_other {
        // The environment of this process belongs to another user, so it is not passed on.
        let (uid, gid) = caller.user;
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").uid(uid).gid(gid);
        command.args(["--log", "/dev/null"]);
    }
    let own = std::env::var_os(DAEMON_VARIABLE);
    if let Some(daemon) = daemon.map(|daemon| daemon.as_os_str().to_owned()).or(own) {
        command.env(DAEMON_VARIABLE, daemon);
    }
    command.args(name).arg(request).current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(format!("cannot start it: {error}")))?;
    let (out, errors) = match read_output(&mut child, caller) {
        Some(read) => read,
        None => {
            let _ = child.kill();
            let _ = child.wait();
            let why = "the path did not start within the time limit of edits (`mount -o \
                       edit_limit=SECONDS`): look for it with `streamline ps`";
            return Err(Refusal::new(errno::ETIMEDOUT, why));
        }
    };
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    match out.trim().parse() {
        Ok(number) if status.success() => Ok(number),
        _ => Err(Refusal::new(errno::EINVAL, errors.trim_end().to_owned())),
    }
}

/// Reads the standard output and the standard error of a command until both end. Returns `None` if
/// they do not end before the caller's deadline.
fn read_output(child: &mut Child, caller: &Caller) -> Option<(String, String)> {
    let (mut out, mut errors) = (child.stdout.take()?, child.stderr.take()?);
    let errors = read_text(&mut errors, caller)?;
    Some((read_text(&mut out, caller)?, errors))
}

fn read_text(pipe: &mut (impl Read + AsFd), caller: &Caller) -> Option<String> {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        if sys::poll::wait_until_readable_despite_signals(&[pipe.as_fd()], Some(caller.time_left()))
            != [true]
        {
            return None;
        }
        match pipe.read(&mut part) {
            Ok(0) => return Some(String::from_utf8_lossy(&bytes).into_owned()),
            Ok(length) if (bytes.len() as u64) < COMMAND_OUTPUT_BYTES_MAX => {
                bytes.extend_from_slice(part.get(..length).unwrap_or_default());
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}
