//! Failures that end a path before its sources end.
//!
//! A panic inside a filter ends its path, not the process: the space catches the panic and copies
//! the block that the filter was processing into a capture that can be replayed.

use buffer::Fault;
use endpoint::Failure;
use endpoint::process::ProcessFailure;
use filter::Block;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A cause for which a ring between two spaces fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RingFailure {
    /// The space at the other end of the ring has ended.
    #[error("the space on the other side has ended")]
    Abandoned,
    /// The ring contains an inconsistent entry, which is a bug in this program.
    #[error("{0}")]
    Fault(Fault),
}

impl From<Fault> for RingFailure {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Abandoned => Self::Abandoned,
            other => Self::Fault(other),
        }
    }
}

/// The failure that ended a path. When a failure is sent to another process, its cause is replaced
/// by [`FailureCause::OtherProcess`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "RemoteFailure", into = "RemoteFailure")]
pub struct PathFailure {
    /// Name of the failed node.
    pub node: String,
    /// Cause of the failure.
    pub cause: FailureCause,
}

/// The cause of a path's failure.
#[derive(Clone, Debug)]
pub enum FailureCause {
    /// A source or sink failed.
    Endpoint(Failure),
    /// A ring between two spaces failed.
    Ring(RingFailure),
    /// A program exited with a failure.
    Program(ProcessFailure),
    /// The exit status of a program could not be read.
    ExitUnknown(sys::Error),
    /// The failure happened in another process.
    OtherProcess {
        /// Failure message that the other process has sent.
        what: String,
        /// Error number of the failed system call in the other process, or `None` if no system call
        /// failed.
        errno: Option<i32>,
        /// True if the failure is not reported, because its only cause is that the reader of a
        /// standard stream has closed the stream ([`PathFailure::is_quiet`]).
        quiet: bool,
    },
    /// A filter panicked.
    Panic {
        /// Message of the panic.
        message: String,
        /// Block that the filter was processing, or `None` if it was called without one.
        block: Option<CrashCapture>,
    },
}

/// A copy of the block on which a filter panicked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CrashCapture {
    /// Link type of the frame; `Marks::NO_LINK` if the block is not a frame.
    pub link: u16,
    /// Timestamp of the block, in nanoseconds.
    pub time: u64,
    /// Length of the frame on the wire, in bytes.
    pub wire_length: u32,
    /// Bytes of the frame, or of the view if the block is not a frame.
    pub bytes: Vec<u8>,
}

/// A failure as serialized for another process. The cause is reduced to a message, an error number,
/// and a flag that tells whether the failure is quiet.
#[derive(Serialize, Deserialize)]
struct RemoteFailure {
    node: String,
    what: String,
    errno: Option<i32>,
    quiet: bool,
}

impl From<PathFailure> for RemoteFailure {
    fn from(failure: PathFailure) -> Self {
        let (what, errno, quiet) = (failure.to_string(), failure.errno(), failure.is_quiet());
        Self { node: failure.node, what, errno, quiet }
    }
}

impl From<RemoteFailure> for PathFailure {
    fn from(RemoteFailure { node, what, errno, quiet }: RemoteFailure) -> Self {
        Self { node, cause: FailureCause::OtherProcess { what, errno, quiet } }
    }
}

impl PathFailure {
    /// Creates the failure of a path in which the source or sink of the node `node` failed.
    #[must_use]
    pub fn from_endpoint(node: impl Into<String>, failure: Failure) -> Self {
        Self { node: node.into(), cause: FailureCause::Endpoint(failure) }
    }

    /// Creates the failure of a path in which a ring failed for the reason `why`. `node` names the
    /// node at the end of this ring.
    #[must_use]
    pub fn from_ring(node: impl Into<String>, why: impl Into<RingFailure>) -> Self {
        Self { node: node.into(), cause: FailureCause::Ring(why.into()) }
    }

    /// Creates the failure of a path in which a program exited with a failure. `node` names the
    /// node of the program.
    #[must_use]
    pub fn from_program(node: impl Into<String>, bad: ProcessFailure) -> Self {
        Self { node: node.into(), cause: FailureCause::Program(bad) }
    }

    /// Creates the failure of a path in which the exit status of a program could not be read.
    /// `node` names the node of the program.
    #[must_use]
    pub fn from_unknown_exit(node: impl Into<String>, error: sys::Error) -> Self {
        Self { node: node.into(), cause: FailureCause::ExitUnknown(error) }
    }

    /// Creates the failure of a path in which the filter of the node `node` panicked. `block` is
    /// the block that the filter was processing, if any.
    #[must_use]
    pub fn from_panicked_filter(
        node: impl Into<String>,
        panic: &(dyn std::any::Any + Send),
        block: Option<&Block<'_>>,
    ) -> Self {
        let message = panic
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a message".to_owned());
        let block = block.map(|b| CrashCapture {
            link: b.marks.link,
            time: b.context.time,
            wire_length: b.marks.wire_length,
            bytes: if b.marks.is_frame() { b.frame } else { b.bytes() }.to_vec(),
        });
        Self { node: node.into(), cause: FailureCause::Panic { message, block } }
    }

    /// Creates the failure of a path in which a space panicked outside all filters. `path` is the
    /// index of the path, counted from 0; the message prints it counted from 1.
    #[must_use]
    pub fn from_panicked_space(path: usize) -> Self {
        let message = "a space panicked outside of any filter".to_owned();
        Self {
            node: format!("path {}", path + 1),
            cause: FailureCause::Panic { message, block: None },
        }
    }

    /// Returns true if the failure is only the consequence of another failure: the space at the
    /// other end of a ring has ended.
    #[must_use]
    pub const fn is_consequence(&self) -> bool {
        matches!(self.cause, FailureCause::Ring(RingFailure::Abandoned))
    }

    /// Returns true if both failures report the exit of the same program.
    pub fn is_same_program_exit(&self, other: &Self) -> bool {
        match (&self.cause, &other.cause) {
            (FailureCause::Program(one), FailureCause::Program(two)) => {
                self.node == other.node && one == two
            }
            _ => false,
        }
    }

    /// Returns the error number of the failed system call, or `None` if no system call failed.
    #[must_use]
    pub const fn errno(&self) -> Option<i32> {
        match &self.cause {
            FailureCause::Endpoint(failure) => failure.errno,
            FailureCause::ExitUnknown(error) => Some(error.errno),
            FailureCause::OtherProcess { errno, .. } => *errno,
            FailureCause::Ring(_) | FailureCause::Program(_) | FailureCause::Panic { .. } => None,
        }
    }

    /// Returns true if the cause is that the reader of a standard stream has closed the stream,
    /// which is not reported as a failure.
    #[must_use]
    pub const fn is_quiet(&self) -> bool {
        match &self.cause {
            FailureCause::Endpoint(failure) => failure.is_quiet,
            FailureCause::Program(bad) => bad.quiet,
            FailureCause::OtherProcess { quiet, .. } => *quiet,
            FailureCause::Ring(_) | FailureCause::ExitUnknown(_) | FailureCause::Panic { .. } => {
                false
            }
        }
    }
}

impl fmt::Display for PathFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = &self.node;
        match &self.cause {
            FailureCause::Endpoint(failure) => write!(f, "`{node}`: {failure}"),
            FailureCause::Program(bad) => write!(f, "`{node}`: {bad}"),
            FailureCause::ExitUnknown(error) => write!(f, "`{node}`: {error}"),
            FailureCause::OtherProcess { what, .. } => f.write_str(what),
            FailureCause::Ring(why) => write!(f, "the ring after `{node}`: {why}"),
            FailureCause::Panic { message, .. } => {
                write!(f, "`{node}` has a bug and ended its path: {message}")
            }
        }
    }
}

impl std::error::Error for PathFailure {}
