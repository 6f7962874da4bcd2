//! Wishes about a run that the request does not say, and sentences for people while it comes to be.

use crate::crash::CrashCapture;
use crate::own::Own;
use engine::kernel::Refuses;
use pipeline::Diagnostic;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use sys::steps::Steps;

/// Wishes about a run that the request does not say.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Ends the run when its sinks have taken this many blocks.
    pub count: Option<u64>,
    /// Ends the run after this time.
    pub time: Option<Duration>,
    /// Measures the time in each filter.
    pub timed: bool,
    /// Has the kernel measure the time of programs, too.
    pub programs_timed: bool,
    /// Runs it without a daemon: unregistered, and in the kernel with the rights of this process.
    pub embedded: bool,
    /// Runs nothing of it in the kernel.
    pub outside_kernel: bool,
    /// The name under which the daemon knows the path.
    pub name: Option<String>,
    /// Refuses to run without a daemon; a named path does so, too.
    pub registered: bool,
    /// The file that holds what is printed, for those who ask the daemon.
    pub log: Option<PathBuf>,
    /// Bytes that each source remembers of what it gave, for taps that begin in the past.
    pub history: Option<usize>,
    /// A new file from which the run can be repeated.
    pub record: Option<PathBuf>,
    /// Bytes that a record may hold; default 64 MiB.
    pub record_bytes: Option<u64>,
    /// Keeps blocks on which filters failed, as captures in the user's state directory.
    pub captures_crashes: bool,
    /// A program that serves as a worker and runs untrusted filters: the command `streamline`, or
    /// one that calls [`serve_if_asked`](crate::serve_if_asked).
    pub helper: Option<PathBuf>,
    /// Filters, sources, sinks and ends of this program.
    pub own: Own,
    /// The reader of sentences for people; default: none.
    pub notices: Notices,
    /// The log of the allocation.
    pub steps: Steps,
    /// A refusal that the kernel is to feign, for tests.
    pub refuses: Refuses,
}

impl Options {
    /// A run in this process alone: no daemon is asked.
    #[must_use]
    pub fn alone() -> Self {
        Self { embedded: true, ..Self::default() }
    }
}

/// A sentence for people that is no error.
#[derive(Debug)]
pub enum Notice<'n> {
    /// Something to know.
    Note(&'n str),
    /// Something to look after.
    Warning(&'n str),
    /// Warnings about places in a request.
    Doubts(&'n str, &'n [Diagnostic]),
    /// A block on which a filter failed was kept.
    Crash(&'n CrashCapture),
}

/// The reader of notices.
#[derive(Clone, Default)]
pub struct Notices(Option<Arc<Reader>>);

type Reader = dyn Fn(&Notice<'_>) + Send + Sync;

impl Notices {
    /// Hands every notice to this function, which must not block for long.
    pub fn to(reader: impl Fn(&Notice<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(reader)))
    }

    pub(crate) fn give(&self, notice: &Notice<'_>) {
        if let Some(reader) = &self.0 {
            reader(notice);
        }
    }

    pub(crate) fn note(&self, text: &str) {
        self.give(&Notice::Note(text));
    }

    pub(crate) fn warn(&self, text: &str) {
        self.give(&Notice::Warning(text));
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notices")
    }
}
