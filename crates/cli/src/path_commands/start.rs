//! `streamline start`: runs a request in a background process, detached from the terminal.
//!
//! The request is checked in the foreground, so that mistakes appear on the terminal. Then the
//! command starts another process of this program, whose output is redirected to a log file, and
//! waits until that process reports that the path is running. If the process exits instead, the
//! command prints the output of the process.

use super::connect::{connect_daemon, wait_readable, watch_signals};
use crate::arguments::paths::StartArguments;
use crate::failure;
use crate::failure::report_system_error;
use crate::request::to_unix_line_endings;
use crate::status::Status;
use crate::terminal;
use abi::edge::INHERITED_DESCRIPTOR_MIN;
use abi::text::VisibleLines;
use engine::calibrate;
use engine::registry::MachineRegistry;
use member::client::{Client, PathClient};
use member::protocol::{PathNumber, RegisteredPath as Listed};
use pipeline::Registry as _;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use streamline::Options;
use streamline::report::{json_line, quote_word, to_object};
use sys::open::{self, RegularOpenOptions, WriteMode};
use sys::rollback::{RollbackLog, StepResource};

/// Maximum number of bytes printed from the log of a path that failed to start.
const PRINTED_LOG_BYTES_MAX: u64 = 16 << 10;

/// Version of the output format of `start --json`.
const JSON_VERSION: u32 = 1;
/// File mode of a new log: accessible to its owner only.
const LOG_MODE: u32 = 0o600;

/// Starts a path in the background and prints its number.
pub(super) fn run(arguments: &StartArguments) -> Result<Status, Status> {
    let (name, text) = split_name_and_request(arguments)?;
    let options = Options { notices: failure::notice_handler(false), ..Options::default() };
    let text = streamline::read_graph(&text, &options)
        .map_err(failure::report_open_error)?
        .text
        .as_ref()
        .to_owned();
    let steps = RollbackLog::with_fault(arguments.fault.clone().unwrap_or_default());
    let report_error = |error: sys::Error| report_system_error(&error);
    steps
        .announce_creation(StepResource::Descriptor, "a connection to the daemon")
        .map_err(report_error)?;
    check_name(&connect_daemon()?, name)?;
    let signals = watch_signals()?;
    steps.announce_creation(StepResource::File, "a log").map_err(report_error)?;
    let (log, file) = open_log(arguments, name)?;
    let metadata = file.metadata();
    let before = metadata.as_ref().map_or(0, fs::Metadata::len);
    // If the log is not a regular file, its contents cannot be read again, so errors are stored in
    // memory.
    let stored_errors = match metadata.is_ok_and(|metadata| metadata.is_file()) {
        true => None,
        false => Some(File::from(sys::service::memfd_from_bytes(b"").map_err(report_error)?)),
    };
    let errors = stored_errors.as_ref().unwrap_or(&file).try_clone();
    let errors = errors.map_err(|error| spawn_failure(&error))?;
    let (parent_end, child_end) =
        sys::descriptor::socket_pair().map_err(|error| report_system_error(&error))?;
    steps.announce_creation(StepResource::Thread, "the process of a path").map_err(report_error)?;
    let mut child = spawn_path(arguments, name, &text, (&log, file, errors), child_end)?;
    steps.announce_step("the path is about to run");
    let Some(_) = wait_readable(&[parent_end.as_fd()], signals, None) else {
        // The user has interrupted the start.
        let _ = child.kill();
        return Err(Status::Failed);
    };
    steps.announce_step("the path has said whether it runs");
    let mut bytes = [0; 256];
    let length =
        sys::descriptor::receive(&parent_end, &mut bytes).map(|(length, _)| length).unwrap_or(0);
    let number = serde_json::from_slice::<PathNumber>(bytes.get(..length).unwrap_or_default());
    let Ok(PathNumber { number }) = number else {
        return Err(print_failure(&mut child, &log, before, stored_errors));
    };
    if arguments.json {
        return Ok(terminal::print_text(&json_line(&to_object(&[
            ("version", &JSON_VERSION),
            ("path", &number),
            ("name", &name),
            ("request", &text),
            ("log", &log.display().to_string()),
        ]))));
    }
    let suffix = name.map_or_else(String::new, |name| format!(" {name}"));
    let path_id = name.map_or_else(|| number.to_string(), str::to_owned);
    terminal::print_note(&format!(
        "path {number}{suffix} runs; its output is in {}; `streamline stop {path_id}` ends it",
        log.display()
    ));
    Ok(terminal::print_text(&format!("{number}\n")))
}

/// Returns the name of the path, if it has one, and the request. If the name is invalid or
/// specified twice, prints an error and returns the exit status.
fn split_name_and_request(arguments: &StartArguments) -> Result<(Option<&str>, String), Status> {
    let (first, text) = split_name(&arguments.words);
    let Some(name) = arguments.path_name.as_deref() else { return Ok((first, text)) };
    let mistake = match first {
        _ if !is_path_name(name) => format!(
            "`{name}` cannot name a path: use letters, digits, `.`, `-` and `_`, and not only \
             digits"
        ),
        Some(other) => format!(
            "the path has two names, `--as {name}` and `{other}`: leave one of them out, and write \
             the request in single quotes"
        ),
        None => return Ok((Some(name), text)),
    };
    terminal::print_error(&mistake);
    Err(Status::Usage)
}

/// Checks that no path of the user has this name, because the new path would write to the log of
/// the existing path. If the name is in use, prints an error and returns the exit status.
fn check_name(client: &Client, name: Option<&str>) -> Result<(), Status> {
    let Some(name) = name else { return Ok(()) };
    let own = sys::process::effective_ids().0;
    let listed = client.list_paths().map_err(|error| failure::report_client_error(&error))?;
    let has_name = |path: &&Listed| path.uid == own && path.name.as_deref() == Some(name);
    let Some(existing) = listed.iter().find(has_name) else { return Ok(()) };
    // A path that has just ended may still be listed.
    let has_ended = |path_client: PathClient| {
        sys::poll::wait_until_readable(&[path_client.pidfd()], Some(Duration::ZERO)) == [true]
    };
    if client.connect(&existing.number.to_string()).map_or(true, has_ended) {
        return Ok(());
    }
    let log = existing.log.as_ref().map_or_else(String::new, |log| format!(" (log: {log})"));
    terminal::print_error(&format!(
        "your path {}{log} already has the name `{name}`: choose another, or `streamline stop \
         {name}`",
        existing.number
    ));
    Err(Status::Failed)
}

/// Returns true if a word contains only characters that are valid in a name, and is not an option.
fn has_name_characters(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    !word.starts_with('-') && word.chars().all(plain)
}

/// Returns true if a word is a valid name for a path, and thus for its log file.
fn is_path_name(word: &str) -> bool {
    has_name_characters(word) && !word.chars().all(|c| c.is_ascii_digit())
}

/// Splits the arguments into an optional name and the request.
fn split_name(words: &[String]) -> (Option<&str>, String) {
    let is_name =
        |word: &str| has_name_characters(word) && MachineRegistry::Local.find(word).is_none();
    match words {
        [name, rest @ ..] if !rest.is_empty() && is_name(name) => {
            (Some(name.as_str()), to_unix_line_endings(&rest.join(" ")))
        }
        all => (None, to_unix_line_endings(&all.join(" "))),
    }
}

/// Opens or creates the log file, and returns its path and the file. A new file is accessible only
/// to this user. On failure, prints an error and returns the exit status.
fn open_log(arguments: &StartArguments, name: Option<&str>) -> Result<(PathBuf, File), Status> {
    let failed = |path: &Path, error: &std::io::Error| {
        terminal::print_error(&format!(
            "cannot write {}: {}",
            path.display(),
            terminal::describe_io_error(error)
        ));
        Status::Failed
    };
    // The file is opened in append mode, so the log of a path of this name that is still running is
    // preserved.
    let (path, opened) = match &arguments.log {
        Some(path) => {
            let path = std::path::absolute(path).map_err(|error| failed(path, &error))?;
            let opened = open::open_target(&path, WriteMode::Append, LOG_MODE);
            (path, opened.map(|target| target.file))
        }
        None => {
            let folder = calibrate::state_directory()
                .ok_or_else(|| {
                    terminal::print_error(
                        "no directory for a log: set HOME, or name a log with --log",
                    );
                    Status::Failed
                })?
                .join("paths");
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
            made.map_err(|error| failed(&folder, &error))?;
            let process = || format!("process-{}", std::process::id());
            let name = name.map_or_else(process, str::to_owned);
            let path = folder.join(format!("{name}.log"));
            let opened =
                RegularOpenOptions::append().create(LOG_MODE).require_sole_link().open(&path);
            (path, opened)
        }
    };
    let file = opened.map_err(|error| failed(&path, &error))?;
    Ok((path, file))
}

fn spawn_path(
    arguments: &StartArguments,
    name: Option<&str>,
    text: &str,
    (log, file, errors): (&Path, File, File),
    socket: OwnedFd,
) -> Result<Child, Status> {
    let program = std::env::current_exe().map_err(|error| spawn_failure(&error))?;
    let mut command = Command::new(program);
    command.args(["run", "--background", "--log"]).arg(log);
    if let Some(name) = name {
        command.args(["--as", name]);
    }
    if let Some(time) = &arguments.time {
        command.args(["--for", time]);
    }
    if let Some(history) = &arguments.history {
        command.args(["--history", history]);
    }
    if let Some(count) = arguments.count {
        command.args(["--count", &count.to_string()]);
    }
    command.args(arguments.monitor.to_words());
    // The request is passed in a file, because other users can read the arguments of a process.
    let request = sys::service::memfd_from_bytes(text.as_bytes())
        .and_then(|file| sys::children::duplicate_inheritable(file, INHERITED_DESCRIPTOR_MIN))
        .map_err(|error| report_system_error(&error))?;
    command.arg("--file").arg(format!("/dev/fd/{}", request.as_raw_fd()));
    command.stdin(Stdio::from(socket)).stdout(file).stderr(errors);
    // The descriptor must stay open until the program has started.
    let ids = streamline::ids::duplicate_id_counter(INHERITED_DESCRIPTOR_MIN).ok();
    if let Some((variable, _)) = &ids {
        command.env(streamline::ids::ID_COUNTER_VARIABLE, variable);
    }
    command.spawn().map_err(|error| spawn_failure(&error))
}

fn spawn_failure(error: &std::io::Error) -> Status {
    terminal::print_error(&format!(
        "cannot start the path: {}",
        terminal::describe_io_error(error)
    ));
    Status::Failed
}

/// Prints the output of a path that failed to start. Reads the output from `stored_errors` or, if
/// it is `None`, from the log, beginning after the `before` bytes that the log contained earlier.
/// Returns `Usage` or `NotFound` if the path's process exited with that status, and otherwise
/// `Failed`.
fn print_failure(
    child: &mut Child,
    log: &Path,
    before: u64,
    stored_errors: Option<File>,
) -> Status {
    let status = child.wait().ok().and_then(|status| status.code());
    let mut output = String::new();
    let (is_stored, file) = (
        stored_errors.is_some(),
        stored_errors.or_else(|| RegularOpenOptions::read().open(log).ok()),
    );
    if let Some(mut file) = file {
        // If the log cannot be read, the message below still contains its name.
        let _ = file.seek(SeekFrom::Start(if is_stored { 0 } else { before }));
        let _ = file.take(PRINTED_LOG_BYTES_MAX).read_to_string(&mut output);
    }
    terminal::print_error_text(&VisibleLines(&output).to_string());
    let place = quote_word(&log.display().to_string());
    let place = if is_stored { String::new() } else { format!(": see {place}") };
    terminal::print_error(&format!("the path did not start{place}"));
    match status {
        Some(2) => Status::Usage,
        Some(3) => Status::NotFound,
        _ => Status::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_splits_the_name_from_the_request() {
        let split_name = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let (name, line) = split_name(&words);
            (name.map(str::to_owned), line)
        };
        let named = |name: &str, line: &str| (Some(name.to_owned()), line.to_owned());
        assert_eq!(split_name(&["web", "rx lo | count"]), named("web", "rx lo | count"));
        assert_eq!(split_name(&["rx lo | count"]), (None, "rx lo | count".to_owned()));
        assert_eq!(split_name(&["rx", "lo", "|", "count"]), (None, "rx lo | count".to_owned()));
        assert_eq!(split_name(&["w", "rx", "lo"]), named("w", "rx lo"));
        assert_eq!(split_name(&["--no-loss", "rx"]), (None, "--no-loss rx".to_owned()));
    }
}
