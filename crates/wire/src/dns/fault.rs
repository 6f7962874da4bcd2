//! Faults of DNS messages.

use core::fmt;

/// A fault that ended the parsing of a message, with its offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DnsFault {
    /// The message ends inside the item that begins at this offset.
    Truncated(usize),
    /// The item that begins at this offset is invalid: an invalid label or compression pointer, or
    /// a name that is too long.
    Invalid(usize),
}

impl fmt::Display for DnsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated(at) => {
                write!(f, "the message ends inside the item that begins at byte {at}")
            }
            Self::Invalid(at) => write!(f, "byte {at} of the message contradicts RFC 1035"),
        }
    }
}

impl core::error::Error for DnsFault {}
