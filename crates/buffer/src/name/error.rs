//! Errors of making and opening names.

use super::Address;
use crate::share::Refusal;
use std::fmt;

/// The reason for which a name was not made or not opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// This is no name.
    Name {
        /// The text as given; cut where it is long.
        name: String,
        /// The reason for which it is no name.
        why: &'static str,
    },
    /// The name does not exist.
    Unknown(Address),
    /// Another process of this user, or this one, has the name.
    Taken(Address),
    /// The name is kept by a process of a user to whom it does not belong.
    Squatted {
        /// The name.
        address: Address,
        /// The user that holds it.
        holder: u32,
    },
    /// The access list does not let this user in.
    Forbidden {
        /// The name.
        address: Address,
        /// The owner.
        owner: u32,
        /// The group that the middle bits are for.
        group: u32,
        /// The permission bits.
        mode: u32,
    },
    /// All places for readers are taken.
    Full {
        /// The name.
        address: Address,
        /// The limit.
        limit: u64,
        /// Those are the ones for any one untrusted peer; others have more.
        of_user: bool,
    },
    /// The writer has ended the stream.
    Ended(Address),
    /// It is something else than what was asked for.
    Kind {
        /// The name.
        address: Address,
        /// The sort of object that it is.
        is: &'static str,
        /// The sort of object that was wanted.
        wanted: &'static str,
    },
    /// The process that has the name does not answer in time: it is stopped, or overrun.
    Silent(Address),
    /// The process that answers is no host, or a host of another version.
    Strange(Address),
    /// A descriptor of the answer is not what it must be.
    Refused(Refusal),
    /// The range does not lie in the region.
    Range {
        /// Start of the range.
        at: u64,
        /// Length of the range.
        length: usize,
        /// Bytes of the region.
        bytes: usize,
    },
    /// This region may only be read here.
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
