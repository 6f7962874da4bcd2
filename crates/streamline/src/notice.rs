//! Notices: messages other than errors that the user is shown while a request is being opened or is
//! running.

use pipeline::Diagnostic;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// A message for the user that is not an error.
#[derive(Debug)]
pub enum Notice<'n> {
    /// Information that needs no action.
    Note(&'n str),
    /// A problem that may need action.
    Warning(&'n str),
    /// Warnings about a request: its text, and the diagnostics.
    RequestWarnings(&'n str, &'n [Diagnostic]),
    /// The saved capture of a block on which a filter panicked.
    Crash(&'n CrashCapture),
}

/// A shared callback for notices; the default discards them.
#[derive(Clone, Default)]
pub struct Notices(Option<Arc<NoticeReader>>);

type NoticeReader = dyn Fn(&Notice<'_>) + Send + Sync;

impl Notices {
    /// Creates a handle that passes each notice to `reader`. `reader` runs in the thread in which
    /// the notice arises, and must return quickly.
    pub fn new(reader: impl Fn(&Notice<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(reader)))
    }

    pub(crate) fn raise(&self, notice: &Notice<'_>) {
        if let Some(reader) = &self.0 {
            reader(notice);
        }
    }

    pub(crate) fn raise_note(&self, text: &str) {
        self.raise(&Notice::Note(text));
    }

    pub(crate) fn raise_warning(&self, text: &str) {
        self.raise(&Notice::Warning(text));
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notices")
    }
}

/// A capture file with the block on which a filter panicked.
#[derive(Debug)]
pub struct CrashCapture {
    /// Path of the capture file.
    pub path: PathBuf,
    /// Shell command that reproduces the panic of the filter.
    pub command: String,
}
