//! Calls of cargo and other programs, each shown before it runs.

use crate::silence::Watch;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The cargo that runs us, so that the same toolchain runs the rest.
pub(crate) fn cargo(root: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root).stdin(Stdio::null());
    command
}

/// Returns cargo's target directory.
pub(crate) fn target(root: &Path) -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => root.join(directory),
        None => root.join("target"),
    }
}

/// Runs a command to its end; returns true if it succeeded.
pub(crate) fn run(command: &mut Command) -> bool {
    show(command);
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("error: cannot run {:?}: {error}", command.get_program());
            false
        }
    }
}

/// Runs a command to its end; shows each line of its standard output and hands it to `line` too.
/// A program that it runs from `target` is ended when it prints nothing for too long.
pub(crate) fn run_lines(command: &mut Command, target: &Path, mut line: impl FnMut(&str)) -> bool {
    show(command);
    let mut child = match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("error: cannot run {:?}: {error}", command.get_program());
            return false;
        }
    };
    if let Some(output) = child.stdout.take() {
        let watch = Watch::new(child.id(), target.to_path_buf());
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
pub(crate) fn has(root: &Path, subcommand: &str) -> bool {
    let mut command = cargo(root);
    command.args([subcommand, "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn show(command: &Command) {
    let mut line = String::from("$ cargo");
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    println!("{line}");
}
