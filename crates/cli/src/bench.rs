//! `streamline bench`: executes the separate program `streamline-bench`, which may have
//! dependencies that the product must not have (CONTRACT 27).

use crate::status::Status;
use crate::terminal;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Name of the program.
const PROGRAM: &str = "streamline-bench";

/// Replaces this process by `streamline-bench`, found in this program's directory or else in PATH.
/// Returns only on failure.
pub(crate) fn bench(words: &[OsString]) -> Status {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
    let program =
        beside.filter(|path| path.is_file()).map_or_else(|| PROGRAM.into(), OsString::from);
    let error = Command::new(program).args(words).exec();
    if error.kind() == ErrorKind::NotFound {
        terminal::print_error(&format!("`{PROGRAM}` is neither beside this program nor in PATH"));
        terminal::print_note("in the source tree `cargo xtask install --bench` puts it in place");
        return Status::Nothing;
    }
    terminal::print_error(&format!("cannot run {PROGRAM}: {}", terminal::reason(&error)));
    Status::Failed
}
