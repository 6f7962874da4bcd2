//! The amount of measurement.

/// The amount of measurement, as the arguments set it.
pub(crate) struct Options {
    /// The number of measurements of every candidate.
    pub(crate) rounds: usize,
    /// Bytes of the captures that are made.
    pub(crate) size: u64,
}
