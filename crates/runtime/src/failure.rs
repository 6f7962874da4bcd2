//! Causes for which a path ends before its sources do.
//!
//! A panic inside a filter ends its path, not the process: it is caught at the edge of the space,
//! and the block that the filter was looking at is kept as a capture that can be replayed.

use crate::ring::RingFailure;
use endpoint::Failure;
use endpoint::process::BadEnd;
use filter::Block;
use std::fmt;

/// The failure that ended a path.
#[derive(Debug)]
pub struct PathFailure {
    /// The node at which it ended.
    pub node: String,
    /// Cause of the failure.
    pub cause: Cause,
}

/// Cause for which a path ended.
#[derive(Debug)]
pub enum Cause {
    /// A source or sink could not go on.
    Outside(Failure),
    /// A ring between two spaces refused.
    Ring(RingFailure),
    /// A program did not end well.
    Program(BadEnd),
    /// The end of a program cannot be known.
    Unseen(sys::Error),
    /// It happened in another process.
    Elsewhere {
        /// The message of that process.
        what: String,
        /// The error number of the machine, where it refused.
        errno: Option<i32>,
        /// True if the reader of a standard stream has gone.
        quiet: bool,
    },
    /// A filter has a bug.
    Panic {
        /// Message of the panic.
        message: String,
        /// The block that the filter was looking at.
        block: Option<Suspect>,
    },
}

/// The block that a filter failed on, copied out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Suspect {
    /// The link type of the frame, `Marks::NO_LINK` if it was none.
    pub link: u16,
    /// Its time in ns.
    pub time: u64,
    /// Its length on the wire.
    pub wire_length: u32,
    /// The frame, or what was viewed if it was no frame.
    pub bytes: Vec<u8>,
}

impl PathFailure {
    /// A source or sink could not go on.
    #[must_use]
    pub fn outside(node: impl Into<String>, failure: Failure) -> Self {
        Self { node: node.into(), cause: Cause::Outside(failure) }
    }

    /// A ring refused.
    #[must_use]
    pub fn ring(node: impl Into<String>, why: impl Into<RingFailure>) -> Self {
        Self { node: node.into(), cause: Cause::Ring(why.into()) }
    }

    /// A program did not end well.
    #[must_use]
    pub fn program(node: impl Into<String>, bad: BadEnd) -> Self {
        Self { node: node.into(), cause: Cause::Program(bad) }
    }

    /// The end of a program cannot be known.
    #[must_use]
    pub fn lost_sight(node: impl Into<String>, error: sys::Error) -> Self {
        Self { node: node.into(), cause: Cause::Unseen(error) }
    }

    /// A filter panicked, looking at this block.
    #[must_use]
    pub fn panicked(
        node: impl Into<String>,
        panic: &(dyn std::any::Any + Send),
        block: Option<&Block<'_>>,
    ) -> Self {
        let message = panic
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a message".to_owned());
        let block = block.map(|b| Suspect {
            link: b.marks.link,
            time: b.context.time,
            wire_length: b.marks.wire_length,
            bytes: if b.marks.is_frame() { b.frame } else { b.bytes() }.to_vec(),
        });
        Self { node: node.into(), cause: Cause::Panic { message, block } }
    }

    /// A space ended outside of any filter.
    #[must_use]
    pub fn space(path: usize) -> Self {
        let message = "a space panicked outside of any filter".to_owned();
        Self { node: format!("path {}", path + 1), cause: Cause::Panic { message, block: None } }
    }

    /// Returns true if the failure only reports that another space of the path has ended.
    #[must_use]
    pub const fn is_echo(&self) -> bool {
        matches!(self.cause, Cause::Ring(RingFailure::Abandoned))
    }

    /// Returns true if both report the end of the same program.
    pub fn is_same_end(&self, other: &Self) -> bool {
        match (&self.cause, &other.cause) {
            (Cause::Program(one), Cause::Program(two)) => self.node == other.node && one == two,
            _ => false,
        }
    }

    /// The error number with which the machine refused, where that ended the path.
    #[must_use]
    pub const fn errno(&self) -> Option<i32> {
        match &self.cause {
            Cause::Outside(failure) => failure.errno,
            Cause::Unseen(error) => Some(error.errno),
            Cause::Elsewhere { errno, .. } => *errno,
            Cause::Ring(_) | Cause::Program(_) | Cause::Panic { .. } => None,
        }
    }

    /// Returns true if the reader of a standard stream has gone, which is no mistake.
    #[must_use]
    pub const fn is_quiet(&self) -> bool {
        match &self.cause {
            Cause::Outside(failure) => failure.quiet,
            Cause::Program(bad) => bad.quiet,
            Cause::Elsewhere { quiet, .. } => *quiet,
            Cause::Ring(_) | Cause::Unseen(_) | Cause::Panic { .. } => false,
        }
    }
}

impl fmt::Display for PathFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = &self.node;
        match &self.cause {
            Cause::Outside(failure) => write!(f, "`{node}`: {failure}"),
            Cause::Program(bad) => write!(f, "`{node}`: {bad}"),
            Cause::Unseen(error) => write!(f, "`{node}`: {error}"),
            Cause::Elsewhere { what, .. } => f.write_str(what),
            Cause::Ring(why) => write!(f, "the ring behind `{node}`: {why}"),
            Cause::Panic { message, .. } => {
                write!(f, "`{node}` has a bug and ended its path: {message}")
            }
        }
    }
}

impl std::error::Error for PathFailure {}
