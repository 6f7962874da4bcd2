//! Shared prefixes: the beginning of several requests of one user, run once in a process of its
//! own. [SL §7.1: prefix sharing]
//!
//! ```text
//! rx eth0 | tcp | share "rx eth0 | tcp"       one process, which belongs to no request
//!                   │ ring that overwrites
//!                   ├──► shared "rx eth0 | tcp" | http |get files out/
//!                   └──► shared "rx eth0 | tcp" | http |post json
//! ```
//!
//! The name of the ring is derived from the text of the prefix, and belongs to the user
//! ([`buffer::name`]). The first `shared` starts the process ([`Starter`]), which ends after its
//! last reader. A reader gets the sessions that begin after it has joined ([`sessions`]).
//! docs/book/decisions/0096-shared-prefixes.md

pub mod reader;
mod sessions;
pub mod share;

use crate::Failure;
use std::hash::{Hash as _, Hasher as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::OnceLock;
use sys::eventfd::EventFd;

/// Starts the process that runs a prefix, and waits until the prefix runs or the process has ended,
/// for instance because another process was first. Fails if no process can be started.
pub type Starter = fn(prefix: &str) -> Result<Started, Failure>;

/// Result of an attempt to start the process of a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Started {
    /// The prefix runs.
    Runs,
    /// The process ended before the prefix ran, with this message.
    Ended(String),
}

static STARTER: OnceLock<Starter> = OnceLock::new();
static VACANT: OnceLock<EventFd> = OnceLock::new();

/// Sets the function that starts the process of a prefix. Without it only prefixes that already run
/// can be opened. Later calls have no effect.
pub fn set_starter(starter: Starter) {
    let _ = STARTER.set(starter);
}

/// Returns the descriptor that becomes readable once a `share last=yes` of this process has no
/// reader any more. Fails if the kernel refuses an event descriptor.
pub fn vacancy() -> sys::Result<BorrowedFd<'static>> {
    if VACANT.get().is_none() {
        // Of two at once, one is dropped.
        let _ = VACANT.set(EventFd::new()?);
    }
    let event = VACANT.get().map(|event| event.as_fd());
    event.ok_or_else(|| sys::Error::new("eventfd", "", 0))
}

/// Makes the descriptor of [`vacancy`] readable.
fn report_vacancy() {
    if let Some(event) = VACANT.get() {
        event.notify();
    }
}

/// Returns the name of the ring of a prefix. Different versions of this program use different
/// names, so they never share a ring.
fn ring_name(prefix: &str) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    (env!("CARGO_PKG_VERSION"), prefix).hash(&mut hasher);
    format!("prefix-{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests;
