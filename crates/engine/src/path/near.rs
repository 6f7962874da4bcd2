//! The processors of this machine at the start of a path. The planner places the threads of the
//! path on them. FEATURES K9

use pipeline::plan::{Processors, ThreadPlacement};

/// Returns the processors that would be available to a path that this thread starts now.
pub(crate) fn processors() -> Processors {
    let start = sys::machine::current_processor();
    Processors {
        allowed: sys::process::allowed_processors().unwrap_or_default(),
        start,
        sharers: sys::machine::last_cache_sharers(start),
    }
}

/// Returns the processors for the threads of a path that starts now. An empty list means all
/// permitted processors.
pub(crate) fn for_threads(threads: usize) -> Vec<usize> {
    match processors().place(threads) {
        ThreadPlacement::Near(near) => near,
        ThreadPlacement::Anywhere(_) => Vec::new(),
    }
}
