//! The outcome of a single worker of a request.

use engine::run::Outcome;

/// One worker of a request, with its outcome.
#[derive(Debug)]
pub struct WorkerRun {
    /// Number of the worker, from 1.
    pub number: u32,
    /// Process id of the worker.
    pub process: u32,
    /// Processor on which the worker ran.
    pub processor: usize,
    /// Outcome of the worker.
    pub outcome: Outcome,
}
