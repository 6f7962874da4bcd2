//! The errors that a call to the daemon or to a path can return.

use crate::faults::format_fault;
use crate::varlink::{Fault, MessageError};
use std::path::PathBuf;

/// An error in a call to the daemon or to a path.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens in any of these directories.
    #[error(
        "no daemon is in {}: start one by `streamline daemon --user &`, or as root by `systemctl \
         start streamline` or `streamline daemon &`",
        .0.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(" or ")
    )]
    NoDaemon(Vec<PathBuf>),
    /// The listening process belongs neither to root, nor to this user, nor to the owner of the
    /// machine-wide directory.
    #[error(
        "a process of user {uid} listens in {}, and belongs neither to root nor to you: no request \
         was sent",
        .directory.display()
    )]
    UntrustedDaemon {
        /// Directory that contains the daemon's socket.
        directory: PathBuf,
        /// User id of the listening process.
        uid: u32,
    },
    /// The reply did not arrive in time.
    #[error("no reply in time: the other process is stopped, or overloaded")]
    Timeout,
    /// The peer has closed the connection.
    #[error("the other process has closed the connection")]
    Disconnected,
    /// The path with this name ended during the call.
    #[error(
        "path `{}` has just ended: `streamline ps` lists those that run",
        mask_hidden_characters(.0)
    )]
    PathEnded(String),
    /// The reply is malformed.
    #[error(transparent)]
    Malformed(#[from] MessageError),
    /// The peer replied with an error. For a mistake in a request, the text has several lines,
    /// which show the position of the mistake.
    #[error("{}", mask_lines(&format_fault(.0)))]
    Refused(Fault),
    /// A system call failed.
    #[error(transparent)]
    System(sys::Error),
}

impl ClientError {
    /// Returns true if the path does not exist any more.
    #[must_use]
    pub fn is_path_ended(&self) -> bool {
        match self {
            Self::PathEnded(_) => true,
            Self::Refused(fault) => fault.name == "io.streamline.NoSuchPath",
            _ => false,
        }
    }

    /// Returns true if the error means that the process of a path does not reply, because it is
    /// stopped or overloaded.
    #[must_use]
    pub fn is_unresponsive(&self) -> bool {
        match self {
            Self::Timeout => true,
            Self::Refused(fault) => fault.name == "io.streamline.Busy",
            _ => false,
        }
    }
}

impl From<sys::Error> for ClientError {
    fn from(error: sys::Error) -> Self {
        match error.errno {
            EAGAIN | EINPROGRESS => Self::Timeout,
            ECONNRESET | EPIPE => Self::Disconnected,
            _ => Self::System(error),
        }
    }
}

/// Replaces each hidden character in untrusted text with a placeholder, for display.
#[must_use]
pub fn mask_hidden_characters(text: &str) -> String {
    abi::text::VisibleText(text).to_string()
}

/// Error number of an operation that would block.
const EAGAIN: i32 = 11;
/// Error number of a write to a closed connection.
pub(super) const EPIPE: i32 = 32;
/// Error number of an operation on a connection that the peer has reset.
pub(super) const ECONNRESET: i32 = 104;
/// Error number of a connection attempt whose timeout has expired.
const EINPROGRESS: i32 = 115;

/// Masks hidden characters in each line of a text, and removes line ends at its end.
fn mask_lines(text: &str) -> String {
    text.trim_end().lines().map(mask_hidden_characters).collect::<Vec<_>>().join("\n")
}
