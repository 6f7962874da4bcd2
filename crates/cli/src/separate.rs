//! Commands that are separate programs: `streamline bench` and `streamline page`. These programs
//! have dependencies that this program must not have (CONTRACT 27).

use crate::status::Status;
use crate::terminal;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A command that is a separate program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeparateProgram {
    name: &'static str,
    /// Part of an error message that explains how to install the program.
    install: &'static str,
}

/// The program of `streamline bench`.
pub(crate) const BENCH: SeparateProgram = SeparateProgram {
    name: "streamline-bench",
    install: "no package has it; in the source tree `cargo xtask install --bench` puts it in place",
};

/// The program of `streamline page`.
pub(crate) const PAGE: SeparateProgram = SeparateProgram {
    name: "streamline-page",
    install: "the package `streamline-page` has it; in the source tree `cargo xtask install` puts \
              it in place",
};

/// Replaces this process with the program, which is looked up in this program's directory, then in
/// PATH. Returns only on failure.
pub(crate) fn execute(program: SeparateProgram, words: &[OsString]) -> Status {
    let SeparateProgram { name, install } = program;
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(name));
    let program = beside.filter(|path| path.is_file()).map_or_else(|| name.into(), OsString::from);
    let error = Command::new(program).args(words).exec();
    if error.kind() == ErrorKind::NotFound {
        terminal::print_error(&format!("`{name}` is neither beside this program nor in PATH"));
        terminal::print_note(install);
        return Status::Nothing;
    }
    terminal::print_error(&format!("cannot run {name}: {}", terminal::reason(&error)));
    Status::Failed
}
