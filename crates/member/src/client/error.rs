//! The error of a call to the daemon or a path.

use crate::faults::sentence;
use crate::varlink::{Fault, MessageError};
use std::fmt;
use std::path::PathBuf;

/// The error of a call.
#[derive(Clone, PartialEq, Debug)]
pub enum ClientError {
    /// No daemon listens in these directories.
    NoDaemon(Vec<PathBuf>),
    /// The listening process belongs neither to root nor to this user.
    UntrustedDaemon {
        /// Directory of the socket.
        directory: PathBuf,
        /// User of the listening process.
        uid: u32,
    },
    /// The reply did not arrive in time.
    Timeout,
    /// The peer has closed the connection.
    Disconnected,
    /// The path, given by its name, ended during the call.
    PathEnded(String),
    /// The reply is malformed.
    Malformed(MessageError),
    /// The peer replied with an error.
    Refused(Fault),
    /// A system call failed.
    System(sys::Error),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDaemon(places) => {
                let places: Vec<_> = places.iter().map(|p| p.display().to_string()).collect();
                write!(
                    f,
                    "no daemon is in {}: start one by `streamline daemon --user &`, or as root by \
                     `systemctl start streamline` or `streamline daemon &`",
                    places.join(" or ")
                )
            }
            Self::UntrustedDaemon { directory, uid } => write!(
                f,
                "a process of user {uid} listens in {}, and not root or you: nothing was asked",
                directory.display()
            ),
            Self::Timeout => {
                f.write_str("no answer came in time: the other side is stopped, or overrun")
            }
            Self::Disconnected => f.write_str("the other side has ended"),
            Self::PathEnded(path) => write!(
                f,
                "path `{}` has just ended: `streamline ps` lists those that run",
                plain(path)
            ),
            Self::Malformed(why) => why.fmt(f),
            // A mistake in a request takes several lines, which show its position.
            Self::Refused(fault) => {
                let sentence = sentence(fault);
                let lines: Vec<String> = sentence.trim_end().lines().map(plain).collect();
                f.write_str(&lines.join("\n"))
            }
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<sys::Error> for ClientError {
    fn from(error: sys::Error) -> Self {
        match error.errno {
            EAGAIN | EINPROGRESS => Self::Timeout,
            ECONNRESET | EPIPE => Self::Disconnected,
            _ => Self::System(error),
        }
    }
}

impl From<MessageError> for ClientError {
    fn from(why: MessageError) -> Self {
        Self::Malformed(why)
    }
}

/// Escapes control characters in an untrusted text for display.
#[must_use]
pub fn plain(text: &str) -> String {
    abi::text::Visible(text).to_string()
}

const EAGAIN: i32 = 11;
pub(super) const EPIPE: i32 = 32;
pub(super) const ECONNRESET: i32 = 104;
/// The timeout expired during connect.
const EINPROGRESS: i32 = 115;
