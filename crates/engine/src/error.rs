//! The errors that can occur while a plan is built.

use endpoint::Failure;
use filter::Mistake;
use pipeline::graph::NodeId;
use pipeline::plan::KernelRefusal;

/// A failure to build a plan.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// An invalid argument that is detected only when the filter is created.
    #[error("{mistake}")]
    Mistake {
        /// The node whose argument is invalid.
        node: NodeId,
        /// The error in the argument.
        mistake: Mistake,
    },
    /// A source, sink or process could not be opened or started.
    #[error("{failure}")]
    Outside {
        /// The node that could not be opened or started.
        node: NodeId,
        /// The cause of the failure.
        failure: Failure,
    },
    /// The kernel refused a filter that the plan placed in the kernel; the caller may plan again
    /// with this refusal.
    #[error("it cannot run in the kernel: {}", .0.why)]
    Refused(KernelRefusal),
    /// A system call failed, for example for lack of memory, descriptors or permission.
    #[error("{0}")]
    Machine(#[from] sys::Error),
    /// The build reached a state that an earlier check should have ruled out, which is a bug in
    /// this program.
    #[error("a bug in this program: {0}")]
    Unexpected(String),
}

/// Returns the operating system's message in lower case, without the error number.
pub(crate) fn reason_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
