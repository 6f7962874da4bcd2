//! The error of a request that cannot run.

use engine::build::BuildError;
use engine::record::RecordError;
use member::client::ClientError;
use pipeline::plan::{Plan, Unplaceable};
use pipeline::{Diagnostic, Graph};
use std::fmt;
use sys::process_group::ProcessEnd;

/// An error that keeps a request from running.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The request does not parse or check.
    Mistakes {
        /// Text of the request.
        text: String,
        /// Every mistake, with its span in the text.
        list: Vec<Diagnostic>,
    },
    /// The options contradict the request or each other.
    Unfit(String),
    /// No space can run one of the filters.
    Unplaceable {
        /// Text of the request.
        text: String,
        /// Its graph.
        graph: Box<Graph>,
        /// The filter, with the reason of each space for its refusal.
        refused: Box<Unplaceable>,
    },
    /// The plan could not be built.
    Build {
        /// Text of the request.
        text: String,
        /// Its plan.
        plan: Box<Plan>,
        /// The node that failed, and the cause.
        error: Box<BuildError>,
    },
    /// Registration with the daemon failed although the options require it.
    Unregistered(Box<ClientError>),
    /// A worker ended before it was ready. If it ended by itself, it has already reported why.
    Worker {
        /// Number of the worker, from 1.
        number: u32,
        /// Exit status or signal; `None` if the process could not be waited for.
        ended: Option<ProcessEnd>,
    },
    /// The record file could not be created.
    Unrecorded(endpoint::Failure),
    /// The file is not a readable record.
    Broken(RecordError),
    /// The record is valid, but this program cannot replay it.
    Unrepeatable(String),
    /// A system call failed.
    System(sys::Error),
}

impl OpenError {
    /// Converts an I/O error of a call that concerns a worker process.
    pub(crate) fn of_worker(call: &'static str, error: &std::io::Error) -> Self {
        sys::Error::new(call, "an engine", error.raw_os_error().unwrap_or(0)).into()
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mistakes { text, list } => {
                f.write_str(pipeline::render(text, list, false).trim_end())
            }
            Self::Unfit(why) | Self::Unrepeatable(why) => f.write_str(why),
            Self::Unplaceable { graph, refused, .. } => {
                let why = pipeline::explain::unplaceable(graph, refused);
                write!(f, "no space can run `{}`\n{}", refused.name, why.trim_end())
            }
            Self::Build { error, .. } => error.fmt(f),
            Self::Unregistered(error) => error.fmt(f),
            Self::Worker { number, ended: Some(ended) } => {
                write!(f, "engine {number} {ended} before it was ready")
            }
            Self::Worker { number, ended: None } => {
                write!(f, "engine {number} was gone before it was ready")
            }
            Self::Unrecorded(failure) => failure.fmt(f),
            Self::Broken(broken) => broken.fmt(f),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<sys::Error> for OpenError {
    fn from(error: sys::Error) -> Self {
        Self::System(error)
    }
}

impl From<ClientError> for OpenError {
    fn from(error: ClientError) -> Self {
        Self::Unregistered(Box::new(error))
    }
}

impl From<RecordError> for OpenError {
    fn from(broken: RecordError) -> Self {
        Self::Broken(broken)
    }
}
