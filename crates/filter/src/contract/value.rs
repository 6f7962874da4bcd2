//! Values of arguments, and errors in arguments.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Value of an argument.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Value {
    /// A number, a size in bytes, a duration in nanoseconds, or a factor in millionths.
    Number(u64),
    /// The value of a flag.
    Flag(bool),
    /// Text, a path, or one of several allowed words.
    Text(String),
    /// Bytes, which need not be valid text.
    Bytes(Vec<u8>),
}

/// A user's error in an argument.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mistake {
    /// Name of the parameter, or `None` if the error concerns no particular parameter.
    pub parameter: Option<&'static str>,
    /// Index of the erroneous value, from 0, if the parameter was given several times; otherwise 0.
    pub value_index: usize,
    /// Byte range of the error in the argument's text, or `None` for the entire text.
    pub range: Option<std::ops::Range<usize>>,
    /// Description of the error, without a full stop at the end.
    pub message: String,
    /// Suggested correction, or `None` if there is none.
    pub hint: Option<String>,
}

impl Mistake {
    /// Creates a mistake about the first value of `parameter`.
    #[must_use]
    pub fn new(parameter: &'static str, what: impl Into<String>) -> Self {
        Self { parameter: Some(parameter), message: what.into(), ..Self::default() }
    }

    /// Adds a suggested correction to the mistake.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistake {}
