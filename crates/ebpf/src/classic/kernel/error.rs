//! The error reported when a program cannot be converted to a socket filter.

use std::fmt;

use super::super::program::{INSTRUCTIONS_MAX, MEMORY_WORDS};

/// A reason why a program cannot become a socket filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketFilterError {
    /// The program contains a backward jump.
    BackwardJump,
    /// The program loads ancillary data that is no longer available when the program runs again in
    /// user space.
    Ancillary {
        /// Index of the instruction that loads the ancillary data.
        at: usize,
    },
    /// The program uses all scratch words, but the filter needs another for the VLAN tag or for a
    /// shift by X.
    NoScratchWord,
    /// The filter, which may contain the program twice, has too many instructions.
    TooLong {
        /// Number of instructions that the socket filter would need.
        length: usize,
    },
}

impl fmt::Display for SocketFilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BackwardJump => {
                write!(f, "its program has a loop, which the kernel does not accept")
            }
            Self::Ancillary { at } => {
                write!(f, "instruction {at} of its program reads data that only the kernel has")
            }
            Self::NoScratchWord => {
                write!(f, "its program leaves none of the {MEMORY_WORDS} scratch words free")
            }
            Self::TooLong { length } => write!(
                f,
                "its program for frames with and without a VLAN tag has {length} instructions, but \
                 the kernel accepts at most {INSTRUCTIONS_MAX}"
            ),
        }
    }
}

impl std::error::Error for SocketFilterError {}
