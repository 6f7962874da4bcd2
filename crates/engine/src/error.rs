//! Errors of building a plan.

use endpoint::Failure;
use filter::Mistake;
use pipeline::graph::NodeId;
use pipeline::plan::Refused;
use std::fmt;

/// An error of building a plan.
#[derive(Debug)]
pub enum BuildError {
    /// An argument that no check of the request can refuse.
    Mistake {
        /// The node.
        node: NodeId,
        /// The mistake.
        mistake: Mistake,
    },
    /// A source or sink could not be opened.
    Outside {
        /// The node.
        node: NodeId,
        /// The failure.
        failure: Failure,
    },
    /// The kernel would not run what the plan has placed there: plan again with this.
    Refused(Refused),
    /// The machine refused memory or a descriptor.
    Machine(sys::Error),
    /// A step that a check should have refused: a bug of ours.
    Unexpected(String),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mistake { mistake, .. } => write!(f, "{mistake}"),
            Self::Outside { failure, .. } => write!(f, "{failure}"),
            Self::Refused(refused) => write!(f, "the kernel refuses it: {}", refused.why),
            Self::Machine(error) => write!(f, "{error}"),
            Self::Unexpected(what) => write!(f, "a bug in this program: {what}"),
        }
    }
}

impl std::error::Error for BuildError {}

impl From<sys::Error> for BuildError {
    fn from(error: sys::Error) -> Self {
        Self::Machine(error)
    }
}
