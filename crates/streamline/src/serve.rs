//! Tasks that a program performs in processes started for them: untrusted filters and workers.

use crate::error::OpenError;
use crate::notice::Notices;
use crate::workers::child;
use std::sync::atomic::{AtomicBool, Ordering};

/// The task that this process was started for and has completed.
#[derive(Debug)]
#[must_use]
pub enum Served {
    /// It ran an untrusted filter; the process should exit with this status.
    Filter(u8),
    /// It ran one worker's share of a request.
    Worker(Result<(), OpenError>),
}

/// True once [`serve_if_asked`] found no task: this program can then serve as its own helper.
static SERVES: AtomicBool = AtomicBool::new(false);

/// Runs an untrusted filter or a worker if this process was started as one; the caller should then
/// exit.
///
/// Call it first in `main`. Otherwise it returns `None` and registers this program as one that can
/// be started for such tasks.
pub fn serve_if_asked(notices: &Notices) -> Option<Served> {
    if let Some(status) = engine::sandbox::serve_if_asked() {
        return Some(Served::Filter(status));
    }
    if let Some(served) = child::serve_if_asked(notices) {
        return Some(Served::Worker(served));
    }
    SERVES.store(true, Ordering::Relaxed);
    None
}

/// Returns true if this program can be started as a worker.
pub(crate) fn serves() -> bool {
    SERVES.load(Ordering::Relaxed)
}
