//! The failure of a source or sink: the call, its target, the reason, and a remedy.

use std::fmt;
use std::io;

/// An operating-system or environment error that stops a source or sink.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Name of the failed call, such as `open`, `read` or `write`.
    pub call: &'static str,
    /// Object of the call, such as a file name or an interface.
    pub target: String,
    /// Reason for the failure, as a sentence for the user.
    pub why: String,
    /// Error number from the kernel, or `None` if the kernel did not cause the failure.
    pub errno: Option<i32>,
    /// Remedy that is suggested to the user, or `None` if none is known.
    pub hint: Option<String>,
    /// True for a closed pipe on a standard stream. No message is printed, because the reader has
    /// exited on purpose.
    pub is_quiet: bool,
    /// Number of the capability (capabilities(7)) whose absence may be the cause, or `None` if the
    /// failure has another cause.
    pub missing_capability: Option<u32>,
}

impl Failure {
    /// Creates a failure for `call` on `target`.
    pub fn new(call: &'static str, target: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            call,
            target: target.into(),
            why: why.to_string(),
            errno: None,
            hint: None,
            is_quiet: false,
            missing_capability: None,
        }
    }

    /// Sets the kernel's error number; `None` if the kernel did not cause the failure.
    #[must_use]
    pub fn with_errno(self, errno: Option<i32>) -> Self {
        Self { errno, ..self }
    }

    /// Returns true if the call `open` failed because the file does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        let errno = self.errno.filter(|_| self.call == "open");
        errno.is_some_and(|errno| {
            io::Error::from_raw_os_error(errno).kind() == io::ErrorKind::NotFound
        })
    }

    /// Sets the remedy that is suggested to the user.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.call, self.target, self.why)?;
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// Converts an I/O error of `call` on `target` into a failure. Adds a remedy if one is known for
/// the error number.
pub(crate) fn failure_from_io_error(
    call: &'static str,
    target: &str,
    error: &io::Error,
) -> Failure {
    let errno = error.raw_os_error();
    let failure = Failure::new(call, target, reason_text(error)).with_errno(errno);
    let advice = errno.and_then(|errno| sys::Error::new(call, target.to_owned(), errno).advice());
    match advice {
        Some(advice) => failure.with_hint(advice),
        None => failure,
    }
}

/// Returns the text of an I/O error without the error number. The first letter is in lower case.
pub(crate) fn reason_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => "unknown error".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_message_names_call_target_and_remedy() {
        let full = io::Error::from_raw_os_error(28);
        assert_eq!(
            failure_from_io_error("write", "out.pcap", &full).to_string(),
            "cannot write out.pcap: no space left on device; \
             free space there, or choose another place"
        );
        let missing = io::Error::from_raw_os_error(2);
        let missing = failure_from_io_error("open", "a b", &missing);
        assert_eq!(missing.to_string(), "cannot open a b: no such file or directory");
        assert!(
            missing.is_missing() && !failure_from_io_error("write", "out.pcap", &full).is_missing()
        );
    }
}
