//! Fixture for tests between processes: the other process, blocks that carry their expected
//! content, and waits with a limit.
//!
//! The other process is the same executable again, as user nobody, with a socket as standard input
//! over which messages and descriptors travel. Needs root, because another user is the point. Each
//! test file has a `the_other_process`, which plays the [`role`] that it was given.
//!
//! No wait here is unbounded: a hang becomes a failure that names its place ([`patience`]).

#![allow(dead_code, unused_imports, reason = "no test file needs all of it")]
#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod blocks;
mod other;
pub(crate) mod patience;
pub(crate) mod scribble;
mod streams;

pub(crate) use blocks::{LONGEST, Reads, Writes, block, digest, read, read_to_fault, write};
pub(crate) use other::{Other, receive, role, say, send};
pub(crate) use patience::{Running, run, until, within};
pub(crate) use streams::{all_that_was_shown_is_there, offer, open};

/// A dbuf of this number.
pub(crate) fn id(number: u32) -> abi::DbufId {
    abi::DbufId::new(number).unwrap()
}

/// Not in vain: until it is killed.
pub(crate) fn wait_to_be_killed<T>(_kept: T) -> ! {
    loop {
        std::thread::park();
    }
}
