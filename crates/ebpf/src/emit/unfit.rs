//! The error of an emission: a filter that eBPF cannot express.

use std::borrow::Cow;
use std::fmt;

/// A filter that cannot run in the kernel with its arguments, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// Prose for `explain`.
    pub why: Cow<'static, str>,
}

impl Unfit {
    /// Creates the error with this reason.
    pub fn new(why: impl Into<Cow<'static, str>>) -> Self {
        Self { why: why.into() }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot run in the kernel: {}", self.why)
    }
}

impl std::error::Error for Unfit {}
