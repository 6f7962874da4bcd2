//! Outcome of a subcommand of `cargo xtask`.

/// Outcome of a subcommand of `cargo xtask` (a verb), which determines the exit status.
pub(crate) enum Outcome {
    /// The verb succeeded: status 0.
    Success,
    /// The verb failed and has printed the reason: status 1.
    Failed,
    /// The arguments were wrong, for this reason: status 2.
    Usage(String),
}

impl From<bool> for Outcome {
    fn from(well: bool) -> Self {
        if well { Self::Success } else { Self::Failed }
    }
}
