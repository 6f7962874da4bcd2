//! Reasons why a request does not run, with their places.

use engine::build::BuildError;
use engine::record::Broken;
use member::client::ClientError;
use pipeline::plan::{Plan, Unplaceable};
use pipeline::{Diagnostic, Graph};
use std::fmt;
use sys::process_group::ProcessEnd;

/// A request that does not run, with the reason.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The request has mistakes.
    Mistakes {
        /// The request.
        text: String,
        /// All of them, with their places.
        list: Vec<Diagnostic>,
    },
    /// The options contradict the request, or each other.
    Unfit(String),
    /// No space can run a filter.
    Unplaceable {
        /// The request.
        text: String,
        /// Its graph.
        graph: Box<Graph>,
        /// The filter, and what each space says.
        refused: Box<Unplaceable>,
    },
    /// It could not be built.
    Build {
        /// The request.
        text: String,
        /// Its plan.
        plan: Box<Plan>,
        /// The place, and why.
        error: Box<BuildError>,
    },
    /// No daemon knows it, and one was to.
    Unregistered(Box<ClientError>),
    /// A worker ended before it was ready; if by itself, it has said why.
    Worker {
        /// Its number, from 1 on.
        number: u32,
        /// Its end, if it is known.
        ended: Option<ProcessEnd>,
    },
    /// The record could not be begun.
    Unrecorded(endpoint::Failure),
    /// The file is no record that can be repeated.
    Broken(Broken),
    /// The record cannot be repeated by this program.
    Unrepeatable(String),
    /// The machine refuses.
    System(sys::Error),
}

impl OpenError {
    /// A refusal of the machine to do something for a worker.
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

impl From<Broken> for OpenError {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}
