//! The run of one worker.

use engine::run::Outcome;

/// One worker of a request, and its outcome.
#[derive(Debug)]
pub struct WorkerRun {
    /// Number of the worker, from 1.
    pub number: u32,
    /// Process number.
    pub process: u32,
    /// Processor on which it ran.
    pub processor: usize,
    /// Its outcome.
    pub outcome: Outcome,
}
