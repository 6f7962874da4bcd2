//! Errors of creating and opening names.

use super::Address;
use crate::share::Refusal;
use std::fmt;

/// Reason why a name could not be created or opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The text is not a valid name.
    Name {
        /// Invalid text, truncated if long.
        name: String,
        /// Reason why it is invalid.
        why: &'static str,
    },
    /// No process has created the name.
    Unknown(Address),
    /// This or another process of the same user has created the name already.
    Taken(Address),
    /// The name is occupied by a process of a user that does not own it.
    Squatted {
        /// Requested name.
        address: Address,
        /// User ID of that process.
        holder: u32,
    },
    /// The access list denies this user access.
    Forbidden {
        /// Requested name.
        address: Address,
        /// User ID of the owner.
        owner: u32,
        /// Group ID for the middle permission bits.
        group: u32,
        /// Permission bits.
        mode: u32,
    },
    /// All slots for readers are in use.
    Full {
        /// Requested name.
        address: Address,
        /// Number of slots.
        limit: u64,
        /// True if the limit is the one per untrusted user, false if it is the total.
        of_user: bool,
    },
    /// The writer has ended the stream.
    Ended(Address),
    /// The name refers to another kind of object.
    Kind {
        /// Requested name.
        address: Address,
        /// Actual kind.
        is: &'static str,
        /// Requested kind.
        wanted: &'static str,
    },
    /// The process that has the name does not reply in time: it is stopped or overloaded.
    Silent(Address),
    /// The reply is not from a host, or is of another protocol version.
    Strange(Address),
    /// A descriptor in the reply failed validation.
    Refused(Refusal),
    /// The range exceeds the region.
    Range {
        /// Start of the range in bytes.
        at: u64,
        /// Length of the range in bytes.
        length: usize,
        /// Size of the region in bytes.
        bytes: usize,
    },
    /// This process has read-only access to the region.
    ReadOnly,
    /// The kernel refused a call.
    System(sys::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { name, why } => write!(f, "`{name}` is no name: {why}"),
            Self::Unknown(address) => write!(
                f,
                "no {} is called {address} in this network namespace: a process of user {} has to \
                 create it first",
                address.noun(),
                address.uid()
            ),
            Self::Taken(address) => write!(
                f,
                "the name {address} is taken by another {} of the same user: choose another name, \
                 or end that process (`ss -xlp | grep {}`)",
                address.noun(),
                address.name()
            ),
            Self::Squatted { address, holder } => write!(
                f,
                "the name {address} is kept by a process of user {holder}, to whom it does not \
                 belong: nothing was opened (`ss -xlp | grep {}` shows the process to root)",
                address.name()
            ),
            Self::Forbidden { address, owner, group, mode } => {
                let (uid, gid) = sys::process::identity();
                write!(
                    f,
                    "user {uid}, group {gid}, may not open {address}: it belongs to user {owner}, \
                     group {group}, and has mode {mode:03o}"
                )
            }
            Self::Full { address, limit, of_user: false } => write!(
                f,
                "{address} has {limit} readers, as many as its creator lets in: wait until one \
                 leaves"
            ),
            Self::Full { address, limit, of_user: true } => write!(
                f,
                "{address} has {limit} readers of this user, as many as its creator lets any one \
                 stranger have"
            ),
            Self::Ended(address) => {
                write!(f, "the {} {address} has just been ended", address.noun())
            }
            Self::Kind { address, is, wanted } => {
                write!(f, "{address} is {is}, and not {wanted}")
            }
            Self::Silent(address) => write!(
                f,
                "the process that has the name {address} does not answer: it is stopped, or has \
                 too many visitors"
            ),
            Self::Strange(address) => {
                write!(f, "what answers at {address} speaks another language, or another version")
            }
            Self::Refused(refusal) => write!(f, "what was handed out was refused: {refusal}"),
            Self::Range { at, length, bytes } => {
                write!(f, "{length} bytes at {at} do not lie in a region of {bytes} bytes")
            }
            Self::ReadOnly => f.write_str("this region was opened to be read only"),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::System(error) => Some(error),
            _ => None,
        }
    }
}

impl From<sys::Error> for Error {
    fn from(error: sys::Error) -> Self {
        Self::System(error)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
