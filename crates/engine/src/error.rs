//! Errors of building a plan.

use endpoint::Failure;
use filter::Mistake;
use pipeline::graph::NodeId;
use pipeline::plan::KernelRefusal;

/// An error of building a plan.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// An invalid argument that only the creation of the filter detects.
    #[error("{mistake}")]
    Mistake {
        /// The node of the plan.
        node: NodeId,
        /// The invalid argument.
        mistake: Mistake,
    },
    /// A source, sink or process could not be opened or started.
    #[error("{failure}")]
    Outside {
        /// The node of the plan.
        node: NodeId,
        /// The cause.
        failure: Failure,
    },
    /// The kernel refused a filter that the plan placed in the kernel; the caller may plan again
    /// with this refusal.
    #[error("the kernel refuses it: {}", .0.why)]
    Refused(KernelRefusal),
    /// A system call failed, for example for lack of memory, descriptors or permission.
    #[error("{0}")]
    Machine(#[from] sys::Error),
    /// A state that an earlier check rules out: a bug of this program.
    #[error("a bug in this program: {0}")]
    Unexpected(String),
}

/// Returns the message of the operating system, without its number and in lower case.
pub(crate) fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
