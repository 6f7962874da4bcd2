//! The outcome of one worker of a request.

use engine::run::RunOutcome;

/// One worker of a request, with its outcome.
#[derive(Debug)]
pub struct WorkerRun {
    /// Number of the worker, counted from 1.
    pub number: u32,
    /// Process id of the worker.
    pub process: u32,
    /// Number of the processor on which the worker ran.
    pub processor: usize,
    /// Outcome of the worker's run.
    pub outcome: RunOutcome,
}
