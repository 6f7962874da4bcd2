//! Options of a benchmark run.

/// The options of a run, from the command line.
pub(crate) struct Options {
    /// Number of measurements per candidate.
    pub(crate) rounds: usize,
    /// Size of generated captures in bytes.
    pub(crate) size: u64,
}
