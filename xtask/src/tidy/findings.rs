//! Findings of the rules: violations, and occurrences that rules only count and limit (ratchets).

use super::tree::File;
use std::fmt;

/// A violation of a rule at a place in the tree, which makes `tidy` fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Finding {
    pub(super) rule: &'static str,
    pub(super) path: String,
    pub(super) line: Option<usize>,
    pub(super) what: String,
}

impl Finding {
    pub(super) fn in_file(rule: &'static str, file: &File, what: impl Into<String>) -> Self {
        Self { rule, path: file.path.clone(), line: None, what: what.into() }
    }

    pub(super) fn at_line(
        rule: &'static str,
        file: &File,
        line: usize,
        what: impl Into<String>,
    ) -> Self {
        Self { line: Some(line), ..Self::in_file(rule, file, what) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}: {}", self.path, self.rule, self.what),
            None => write!(f, "{}: {}: {}", self.path, self.rule, self.what),
        }
    }
}

/// All violations of rules, and all occurrences that rules only count and limit (ratchets).
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) errors: Vec<Finding>,
    pub(super) occurrences: Vec<Occurrence>,
}

impl Findings {
    pub(super) fn push(&mut self, finding: Finding) {
        self.errors.push(finding);
    }
}

/// A place in the tree that breaks a counted rule. The weights of all occurrences with the same
/// key, such as a crate, are added. Their sum must not exceed the key's ceiling.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Occurrence {
    pub(crate) rule: &'static str,
    pub(crate) key: String,
    pub(crate) path: String,
    pub(crate) line: Option<usize>,
    /// The amount that the occurrence adds to the sum of its key.
    pub(crate) weight: usize,
    pub(crate) what: String,
}

impl Occurrence {
    /// Creates an occurrence that adds 1 to the sum of its key.
    pub(super) fn new(
        rule: &'static str,
        key: impl Into<String>,
        file: &File,
        line: usize,
        what: String,
    ) -> Self {
        Self { rule, key: key.into(), path: file.path.clone(), line: Some(line), weight: 1, what }
    }

    /// Formats the occurrence as `PATH:LINE: DESCRIPTION`, without the line number if it concerns
    /// the whole file.
    pub(crate) fn format_line(&self) -> String {
        match self.line {
            Some(line) => format!("{}:{line}: {}", self.path, self.what),
            None => format!("{}: {}", self.path, self.what),
        }
    }
}
