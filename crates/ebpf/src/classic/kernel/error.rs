//! The error of a rewrite for the kernel.

use std::fmt;

use super::super::program::{INSTRUCTIONS_MAX, MEMORY_WORDS};

/// A program that cannot become a socket filter, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketFilterError {
    /// The program jumps backward.
    Loops,
    /// The program loads ancillary data, which is not available to a program that runs after the
    /// socket.
    Ancillary {
        /// Index of the load.
        at: usize,
    },
    /// The program leaves no scratch word free for the tag.
    Scratch,
    /// The translation, which may contain the program twice, is too long.
    TooLong {
        /// Number of instructions needed.
        length: usize,
    },
}

impl fmt::Display for SocketFilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loops => write!(f, "its program has a loop, which the kernel does not take"),
            Self::Ancillary { at } => {
                write!(f, "instruction {at} of its program asks what only the kernel knows")
            }
            Self::Scratch => {
                write!(f, "its program leaves none of the {MEMORY_WORDS} scratch words free")
            }
            Self::TooLong { length } => write!(
                f,
                "its program for frames with and without a VLAN tag has {length} instructions, the \
                 kernel takes {INSTRUCTIONS_MAX}"
            ),
        }
    }
}

impl std::error::Error for SocketFilterError {}
