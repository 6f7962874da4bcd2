//! The requests of workers, derived from the user's request.

use crate::error::OpenError;
use pipeline::{Graph, workers};

/// Returns the number of workers that a request asks for, or `None` if this process runs the
/// request.
pub(crate) fn worker_count(graph: &Graph) -> Option<u32> {
    workers::worker_count(graph, allowed_processors().len())
}

/// Returns the numbers of the processors that this process may use.
pub(super) fn allowed_processors() -> Vec<usize> {
    sys::process::allowed_processors().unwrap_or_default()
}

/// Derives the requests of `count` workers. Fails if a request cannot be formatted as text.
pub(crate) fn derive_worker_requests(graph: &Graph, count: u32) -> Result<Vec<String>, OpenError> {
    let one = |number| {
        workers::worker_request(graph, number, count).map_err(|why| {
            OpenError::Unfit(format!("the request of a worker process cannot be written: {why}"))
        })
    };
    (1..=count).map(one).collect()
}
