//! The outcome of a verb.

/// The outcome of a verb, which becomes the exit status.
pub(crate) enum Outcome {
    /// The verb did its work: 0.
    Well,
    /// It did not, and has printed the reason: 1.
    Failed,
    /// The call was wrong, for this reason: 2.
    Usage(String),
}

impl From<bool> for Outcome {
    fn from(well: bool) -> Self {
        if well { Self::Well } else { Self::Failed }
    }
}
