//! The error returned for a filter that eBPF cannot express.

use std::borrow::Cow;
use std::fmt;

/// A reason why a filter with its arguments cannot run in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfitReason {
    /// Reason as a text for the user, which `explain` prints.
    pub why: Cow<'static, str>,
}

impl UnfitReason {
    /// Creates an error that states this reason.
    pub fn new(why: impl Into<Cow<'static, str>>) -> Self {
        Self { why: why.into() }
    }
}

/// The result of emitting a part of a program.
pub type EmitResult = Result<(), UnfitReason>;

impl fmt::Display for UnfitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot run in the kernel: {}", self.why)
    }
}

impl std::error::Error for UnfitReason {}
