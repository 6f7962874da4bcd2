//! Processes of this program that the library starts for a task: the run of an untrusted filter, or
//! the work of a worker.

use crate::error::OpenError;
use crate::notice::Notices;
use crate::workers::child;
use std::sync::atomic::{AtomicBool, Ordering};

/// A completed task for which this process was started.
#[derive(Debug)]
#[must_use]
pub enum CompletedTask {
    /// The process ran an untrusted filter and should exit with this status.
    Filter(u8),
    /// The process ran a request as one of its worker processes.
    Worker(Result<(), OpenError>),
}

/// True if the library may start this program again as a filter process or worker.
/// [`serve_if_asked`] sets it, if this process was not itself started as one.
static CAN_SERVE: AtomicBool = AtomicBool::new(false);

/// Runs an untrusted filter or a worker if this process was started as one; the caller should then
/// exit.
///
/// Call this first in `main`. If the process was not started for a task, returns `None` and records
/// that this program can be started for tasks.
pub fn serve_if_asked(notices: &Notices) -> Option<CompletedTask> {
    if let Some(status) = engine::sandbox::serve_untrusted_filter_if_asked() {
        return Some(CompletedTask::Filter(status));
    }
    if let Some(served) = child::serve_if_asked(notices) {
        return Some(CompletedTask::Worker(served));
    }
    CAN_SERVE.store(true, Ordering::Relaxed);
    None
}

/// Returns true if this program can be started as a worker.
pub(crate) fn can_serve() -> bool {
    CAN_SERVE.load(Ordering::Relaxed)
}
