//! The error reported for an expression that cannot be compiled.

use std::fmt;
use std::ops::Range;

/// An error in an expression: its position and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionError {
    /// Range of bytes in the text of the expression.
    pub span: Range<usize>,
    /// Description of the error, for the user.
    pub message: String,
    /// Suggested correction, if any.
    pub hint: Option<String>,
    /// Category of the error.
    pub kind: ErrorKind,
}

/// The category of an [`ExpressionError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The text of the expression is invalid.
    Invalid,
    /// The text of the expression is valid, but this compiler does not support it.
    Unsupported,
    /// The text of the expression is valid, but no frame of this link type can match it.
    RejectsAll,
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hint {
            Some(hint) => write!(f, "{}: {hint}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for ExpressionError {}
