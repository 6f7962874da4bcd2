//! The error of a request that cannot run, with its causes.

use engine::build::BuildError;
use engine::record::RecordError;
use member::client::ClientError;
use pipeline::plan::{Plan, Unplaceable};
use pipeline::{Diagnostic, Graph};
use sys::process_group::ProcessOutcome;

/// An error that prevents a request from running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The text of the request contains errors.
    #[error("{}", pipeline::render(.text, .list, false).trim_end())]
    Mistakes {
        /// Text of the request.
        text: String,
        /// All mistakes in the text, each with its span.
        list: Vec<Diagnostic>,
    },
    /// The options contradict the request or each other; the text gives the reason.
    #[error("{0}")]
    Unfit(String),
    /// No space can run one of the filters.
    #[error(
        "no space can run `{}`\n{}",
        .refused.name,
        pipeline::explain::format_unplaceable(.graph, .refused).trim_end()
    )]
    Unplaceable {
        /// Text of the request.
        text: String,
        /// Graph of the request.
        graph: Box<Graph>,
        /// The filter that no space can run, with each space's reason for refusing it.
        refused: Box<Unplaceable>,
    },
    /// The plan could not be built.
    #[error("{error}")]
    Build {
        /// Text of the request that could not be built.
        text: String,
        /// Plan that could not be built.
        plan: Box<Plan>,
        /// The node that failed, and the cause.
        error: Box<BuildError>,
    },
    /// Registration with the daemon failed, although the options require it.
    #[error("{0}")]
    Unregistered(Box<ClientError>),
    /// A worker exited before it was ready. A worker that was not killed has already reported the
    /// reason.
    #[error("engine {number} {} before it was ready", describe_worker_exit(*.ended))]
    Worker {
        /// Number of the worker, counted from 1.
        number: u32,
        /// Exit status or signal of the worker, or `None` if waiting for the process failed.
        ended: Option<ProcessOutcome>,
    },
    /// The record file could not be created.
    #[error("{0}")]
    Unrecorded(endpoint::Failure),
    /// A file given as a record cannot be read, or is not a record.
    #[error(transparent)]
    Broken(#[from] RecordError),
    /// A valid record cannot be replayed by this program; the text gives the reason.
    #[error("{0}")]
    Unrepeatable(String),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] sys::Error),
}

impl OpenError {
    /// Creates the error for a failed system call that concerns a worker process.
    pub(crate) fn worker_io_error(call: &'static str, error: &std::io::Error) -> Self {
        sys::Error::new(call, "an engine", error.raw_os_error().unwrap_or(0)).into()
    }
}

/// Describes the exit of a worker process.
fn describe_worker_exit(ended: Option<ProcessOutcome>) -> String {
    ended.map_or_else(|| "was gone".to_owned(), |ended| ended.to_string())
}

impl From<ClientError> for OpenError {
    fn from(error: ClientError) -> Self {
        Self::Unregistered(Box::new(error))
    }
}
