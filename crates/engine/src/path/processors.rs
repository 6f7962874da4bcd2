//! The processors on which the threads of a path run, chosen when the path starts. FEATURES K9

use pipeline::plan::{Processors, ThreadPlacement};

/// Returns the processors on which a path's threads could run if this thread started the path now.
pub(crate) fn path_processors() -> Processors {
    let start = sys::machine::current_processor();
    Processors {
        allowed: sys::process::allowed_processors().unwrap_or_default(),
        start,
        sharers: sys::machine::processors_sharing_last_cache(start),
    }
}

/// Returns the processors for the threads of a path that starts now. An empty list means that the
/// threads may run on all permitted processors.
pub(crate) fn processors_for_threads(threads: usize) -> Vec<usize> {
    match path_processors().place_threads(threads) {
        ThreadPlacement::SharedCache(near) => near,
        ThreadPlacement::Anywhere(_) => Vec::new(),
    }
}
