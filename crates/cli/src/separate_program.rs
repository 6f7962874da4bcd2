//! Commands that are separate programs: `streamline bench` and `streamline page`. These programs
//! have dependencies that `streamline` must not have (CONTRACT 27).

use crate::status::Status;
use crate::terminal;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A command of `streamline` that is implemented by a separate program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeparateProgram {
    name: &'static str,
    /// Instructions for installing the program, for an error message.
    install: &'static str,
}

impl SeparateProgram {
    /// Returns a command that runs the program from the directory of this program or, if it is not
    /// there, from PATH.
    pub(crate) fn command(self) -> Command {
        let beside = std::env::current_exe().ok().map(|own| own.with_file_name(self.name));
        let beside = beside.filter(|path| path.is_file());
        Command::new(beside.map_or_else(|| self.name.into(), OsString::from))
    }

    /// Returns a message that explains why the program could not be started, with a remedy if the
    /// program is not installed.
    pub(crate) fn describe_failure(self, error: &std::io::Error) -> String {
        let Self { name, install } = self;
        match error.kind() {
            ErrorKind::NotFound => {
                format!("`{name}` is neither beside this program nor in PATH: {install}")
            }
            _ => format!("cannot run {name}: {}", terminal::describe_io_error(error)),
        }
    }
}

/// The program that `streamline bench` runs.
pub(crate) const BENCH_PROGRAM: SeparateProgram = SeparateProgram {
    name: "streamline-bench",
    install: "no package contains it; in the source tree `cargo xtask install --bench` installs it",
};

/// The program that `streamline page` runs.
pub(crate) const PAGE_PROGRAM: SeparateProgram = SeparateProgram {
    name: "streamline-page",
    install: "the package `streamline-page` contains it; in the source tree `cargo xtask install` \
              installs it",
};

/// Replaces this process with the program (execve). Returns only on failure.
pub(crate) fn execute(program: SeparateProgram, words: &[OsString]) -> Status {
    let SeparateProgram { name, install } = program;
    let error = program.command().args(words).exec();
    if error.kind() == ErrorKind::NotFound {
        terminal::print_error(&format!("`{name}` is neither beside this program nor in PATH"));
        terminal::print_note(install);
        return Status::NotFound;
    }
    terminal::print_error(&format!("cannot run {name}: {}", terminal::describe_io_error(&error)));
    Status::Failed
}
