//! `streamline start`: a line in a process of its own, which goes on without the terminal.
//!
//! The line is checked here, so that mistakes are told where somebody reads them. Then this program
//! is started once more, with what it prints in a file, and we wait until it says that it runs, or
//! ends: then what it said is shown.

use super::words::StartArguments;
use super::{client, refused, signals};
use crate::failure;
use crate::status::Status;
use crate::terminal;
use abi::text::VisibleLines;
use engine::calibrate;
use engine::catalogue::House;
use member::client::{Client, ToPath};
use member::protocol::{Number, Path as Listed};
use pipeline::Catalogue as _;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use streamline::Options;
use streamline::report::quoted;
use sys::open::{self, OpenRegular, WriteMode};
use sys::steps::{Resource, Steps};

/// The most that is shown of what a path said that did not come to run.
const SHOWN_MAX: u64 = 16 << 10;

/// The mode of a log: for its owner alone.
const OWN: u32 = 0o600;

/// Starts a path.
pub(super) fn run(given: &StartArguments) -> Result<Status, Status> {
    let (name, text) = split(&given.words);
    let options = Options { notices: failure::notices(false), ..Options::default() };
    let text = streamline::read(&text, &options).map_err(failure::refuse)?.text.as_ref().to_owned();
    let steps = Steps::with(given.fault.clone().unwrap_or_default());
    let untaken = |error: sys::Error| refused(&error);
    steps.take(Resource::Descriptor, "a connection to the daemon").map_err(untaken)?;
    is_free(&client()?, name)?;
    let signals = signals()?;
    steps.take(Resource::File, "a log").map_err(untaken)?;
    let (log, file) = log(given, name)?;
    let before = file.metadata().map_or(0, |about| about.len());
    let (near, far) = sys::descriptor::pair().map_err(|error| refused(&error))?;
    steps.take(Resource::Thread, "the process of a path").map_err(untaken)?;
    let mut child = spawn(given, name, &text, (&log, file), far)?;
    steps.checkpoint("the path is about to run");
    let Some(_) = super::wait(&[near.as_fd()], signals, None) else {
        // Whoever changed their mind wants nothing to be left.
        let _ = child.kill();
        return Err(Status::Failed);
    };
    steps.checkpoint("the path has said whether it runs");
    let mut bytes = [0; 256];
    let told = sys::descriptor::receive(&near, &mut bytes).map(|(length, _)| length).unwrap_or(0);
    let number = serde_json::from_slice::<Number>(bytes.get(..told).unwrap_or_default());
    let Ok(Number { number }) = number else { return Err(ended(&mut child, &log, before)) };
    let shown = name.map_or_else(String::new, |name| format!(" {name}"));
    let which = name.map_or_else(|| number.to_string(), str::to_owned);
    terminal::note(&format!(
        "path {number}{shown} runs; what it prints is in {}; `streamline stop {which}` ends it",
        log.display()
    ));
    Ok(terminal::print(&format!("{number}\n")))
}

/// Resource sure that no path of ours runs under this name: what a second one had to say would
/// stand in the log of the first.
fn is_free(client: &Client, name: Option<&str>) -> Result<(), Status> {
    let Some(name) = name else { return Ok(()) };
    let own = sys::process::identity().0;
    let listed = client.list().map_err(|error| failure::complain(&error))?;
    let has_it = |path: &&Listed| path.uid == own && path.name.as_deref() == Some(name);
    let Some(there) = listed.iter().find(has_it) else { return Ok(()) };
    // One that has just ended may still be listed.
    let ended = |to: ToPath| sys::poll::readable(&[to.process()], Some(Duration::ZERO)) == [true];
    if client.connect(&there.number.to_string()).map_or(true, ended) {
        return Ok(());
    }
    let log =
        there.log.as_ref().map_or_else(String::new, |log| format!(", which prints into {log}"));
    terminal::complain(&format!(
        "the name `{name}` is that of your path {}{log}: choose another, or `streamline stop \
         {name}`",
        there.number
    ));
    Err(Status::Failed)
}

/// The name, if there is one, and the line.
fn split(words: &[String]) -> (Option<&str>, String) {
    let is_name = |word: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        !word.starts_with('-') && word.chars().all(plain) && House.find(word).is_none()
    };
    match words {
        [name, rest @ ..] if !rest.is_empty() && is_name(name) => {
            (Some(name.as_str()), rest.join(" "))
        }
        all => (None, all.join(" ")),
    }
}

/// The file for what the path prints: empty, and of this user alone.
fn log(given: &StartArguments, name: Option<&str>) -> Result<(PathBuf, File), Status> {
    let failed = |path: &Path, error: &std::io::Error| {
        terminal::complain(&format!(
            "cannot write {}: {}",
            path.display(),
            terminal::reason(error)
        ));
        Status::Failed
    };
    // A log of a path that still runs under this name stays whole: the new one cannot run.
    let (path, opened) = match &given.log {
        Some(path) => {
            let path = std::path::absolute(path).map_err(|error| failed(path, &error))?;
            let opened = open::open_target(&path, WriteMode::Append, OWN);
            (path, opened.map(|target| target.file))
        }
        None => {
            let folder = calibrate::folder()
                .ok_or_else(|| {
                    terminal::complain(
                        "there is no place for a log: set HOME, or name one by --log",
                    );
                    Status::Failed
                })?
                .join("paths");
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
            made.map_err(|error| failed(&folder, &error))?;
            let process = || format!("process-{}", std::process::id());
            let name = name.map_or_else(process, str::to_owned);
            let path = folder.join(format!("{name}.log"));
            let opened = OpenRegular::append().create(OWN).sole_link().open(&path);
            (path, opened)
        }
    };
    let file = opened.map_err(|error| failed(&path, &error))?;
    Ok((path, file))
}

fn spawn(
    given: &StartArguments,
    name: Option<&str>,
    text: &str,
    (log, file): (&Path, File),
    socket: OwnedFd,
) -> Result<Child, Status> {
    let failed = |error: &std::io::Error| {
        terminal::complain(&format!("cannot start the path: {}", terminal::reason(error)));
        Status::Failed
    };
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut command = Command::new(program);
    command.args(["run", "--background", "--log"]).arg(log);
    if let Some(name) = name {
        command.args(["--as", name]);
    }
    if let Some(time) = &given.time {
        command.args(["--for", time]);
    }
    if let Some(history) = &given.history {
        command.args(["--history", history]);
    }
    if let Some(count) = given.count {
        command.args(["--count", &count.to_string()]);
    }
    command.args(["--", text]);
    let errors = file.try_clone().map_err(|error| failed(&error))?;
    command.stdin(Stdio::from(socket)).stdout(file).stderr(errors);
    command.spawn().map_err(|error| failed(&error))
}

/// Tells why a path did not come to run: what it said last.
fn ended(child: &mut Child, log: &Path, before: u64) -> Status {
    let status = child.wait().ok().and_then(|status| status.code());
    let mut said = String::new();
    if let Ok(mut file) = OpenRegular::read().open(log) {
        // What cannot be read is not shown; the file is named.
        let _ = file.seek(SeekFrom::Start(before));
        let _ = file.take(SHOWN_MAX).read_to_string(&mut said);
    }
    terminal::tell(&VisibleLines(&said).to_string());
    terminal::complain(&format!(
        "the path did not come to run: see {}",
        quoted(&log.display().to_string())
    ));
    match status {
        Some(2) => Status::Usage,
        Some(3) => Status::Nothing,
        _ => Status::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_before_the_line() {
        let split = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let (name, line) = split(&words);
            (name.map(str::to_owned), line)
        };
        let named = |name: &str, line: &str| (Some(name.to_owned()), line.to_owned());
        assert_eq!(split(&["web", "rx lo | count"]), named("web", "rx lo | count"));
        assert_eq!(split(&["rx lo | count"]), (None, "rx lo | count".to_owned()));
        assert_eq!(split(&["rx", "lo", "|", "count"]), (None, "rx lo | count".to_owned()));
        assert_eq!(split(&["w", "rx", "lo"]), named("w", "rx lo"));
        assert_eq!(split(&["--no-loss", "rx"]), (None, "--no-loss rx".to_owned()));
    }
}
