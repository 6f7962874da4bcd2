//! The processors of this machine as a path finds them that starts. The planner places the path's
//! threads on them. FEATURES K9

use pipeline::plan::{Processors, ThreadPlacement};

/// Returns the processors as a path finds them that starts now, in this thread.
pub(crate) fn processors() -> Processors {
    let start = sys::machine::current_processor();
    Processors {
        allowed: sys::process::allowed_processors().unwrap_or_default(),
        start,
        sharers: sys::machine::last_cache_sharers(start),
    }
}

/// Returns the processors for the threads of a path that begins now; empty: all that are allowed.
pub(crate) fn for_threads(threads: usize) -> Vec<usize> {
    match processors().place(threads) {
        ThreadPlacement::Near(near) => near,
        ThreadPlacement::Anywhere(_) => Vec::new(),
    }
}
