//! Runs cargo and other programs. Each command line is printed before it runs.

use crate::silence_watchdog::SilenceWatchdog;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns a command for the cargo that started this program, so that all calls use the same
/// toolchain.
pub(crate) fn cargo_command(root: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root).stdin(Stdio::null());
    command
}

/// Returns the directory into which cargo builds, `target` unless `CARGO_TARGET_DIR` is set.
pub(crate) fn target_directory(root: &Path) -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => root.join(directory),
        None => root.join("target"),
    }
}

/// Runs a command and waits for it; returns true if it succeeded.
pub(crate) fn run_command(command: &mut Command) -> bool {
    print_command(command);
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("error: cannot run {:?}: {error}", command.get_program());
            false
        }
    }
}

/// Runs a command, waits until it exits, and returns true if it succeeded. Prints each line of its
/// standard output, and calls `line` with it. If no line arrives for too long (see
/// [`SilenceWatchdog`]), kills the programs in the directory `target` that the command started.
pub(crate) fn run_and_forward_lines(
    command: &mut Command,
    target: &Path,
    mut line: impl FnMut(&str),
) -> bool {
    print_command(command);
    let mut child = match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("error: cannot run {:?}: {error}", command.get_program());
            return false;
        }
    };
    if let Some(output) = child.stdout.take() {
        let watch = SilenceWatchdog::new(child.id(), target.to_path_buf());
        let mut output = BufReader::new(output);
        let mut bytes = Vec::new();
        while matches!(output.read_until(b'\n', &mut bytes), Ok(1..)) {
            let text = String::from_utf8_lossy(&bytes);
            print!("{text}");
            line(text.trim_end());
            watch.reset();
            bytes.clear();
        }
    }
    child.wait().is_ok_and(|status| status.success())
}

/// Returns true if cargo has this subcommand.
pub(crate) fn has_subcommand(root: &Path, subcommand: &str) -> bool {
    let mut command = cargo_command(root);
    command.args([subcommand, "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn print_command(command: &Command) {
    let mut line = String::from("$ cargo");
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    println!("{line}");
}
