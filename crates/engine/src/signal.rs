//! Signals that end a run. The first signal lets the paths drain; the second ends the process.
//! (CONTRACT 28)

use std::os::fd::{AsFd, BorrowedFd};

/// Starts watching SIGINT and SIGTERM. Returns a descriptor for [`crate::run::StopConditions`] that
/// becomes readable at the first signal. The second signal ends the process with status 130. Does
/// not block.
pub fn watch_stop_signals() -> sys::Result<BorrowedFd<'static>> {
    Ok(sys::signal::watch_stop_signals()?.as_fd())
}
