//! Signals that end a run: the first lets the paths drain, the second ends the process. (CONTRACT
//! 28)

use std::os::fd::{AsFd, BorrowedFd};

/// Begins to watch SIGINT and SIGTERM. What is answered becomes readable with the first of them: it
/// is for [`crate::run::Until`]. The second ends the process with status 130.
pub fn watch() -> sys::Result<BorrowedFd<'static>> {
    Ok(sys::signal::watch()?.as_fd())
}
