//! Shared prefixes: if several requests of a user begin alike, their common beginning runs only
//! once, in a process of its own. [SL §7.1: prefix sharing]
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
//! last reader has left. A reader gets the sessions that begin after the reader has joined
//! ([`sessions`]). docs/book/decisions/0096-shared-prefixes.md

pub mod reader;
mod sessions;
pub mod share;

use crate::Failure;
use std::hash::{Hash as _, Hasher as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::OnceLock;
use sys::eventfd::EventFd;

/// A function that starts the process that runs a prefix. It waits until the prefix runs or the
/// process has ended, for example because another process was faster. It fails if no process can be
/// started.
pub type Starter = fn(prefix: &str) -> Result<Started, Failure>;

/// Result of an attempt to start the process of a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Started {
    /// The prefix runs in the new process.
    Runs,
    /// The process ended before the prefix ran, with this message.
    Ended(String),
}

static STARTER: OnceLock<Starter> = OnceLock::new();
static VACANCY_EVENT: OnceLock<EventFd> = OnceLock::new();

/// Sets the function that starts the process of a prefix. Without such a function, only prefixes
/// that already run can be opened. Later calls have no effect.
pub fn set_starter(starter: Starter) {
    let _ = STARTER.set(starter);
}

/// Returns a descriptor that becomes readable when a `share last=yes` of this process has lost its
/// last reader. Fails if the kernel refuses to create an event descriptor.
pub fn vacancy_descriptor() -> sys::Result<BorrowedFd<'static>> {
    if VACANCY_EVENT.get().is_none() {
        // Of two at once, one is dropped.
        let _ = VACANCY_EVENT.set(EventFd::new()?);
    }
    let event = VACANCY_EVENT.get().map(|event| event.as_fd());
    event.ok_or_else(|| sys::Error::new("eventfd", "", 0))
}

/// Makes the descriptor of [`vacancy_descriptor`] readable.
fn report_vacancy() {
    if let Some(event) = VACANCY_EVENT.get() {
        event.notify();
    }
}

/// Returns the name of the ring for a prefix. The name depends on the version of this program, so
/// that different versions never share a ring.
fn ring_name(prefix: &str) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    (env!("CARGO_PKG_VERSION"), prefix).hash(&mut hasher);
    format!("prefix-{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests;
