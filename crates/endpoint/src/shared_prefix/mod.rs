//! Shared prefixes. If several requests of a user begin with the same filters, this common
//! beginning, the *prefix*, runs only once, in a process of its own. [SL §7.1: prefix sharing]
//!
//! ```text
//! rx eth0 | tcp | share "rx eth0 | tcp"       one process, which belongs to no request
//!                   │ ring that overwrites its oldest messages
//!                   ├──► shared "rx eth0 | tcp" | http |get files out/
//!                   └──► shared "rx eth0 | tcp" | http |post json
//! ```
//!
//! The name of the ring is derived from the text of the prefix and its interface ([`interface`]),
//! and belongs to the user ([`buffer::name`]). The first `shared` starts the process
//! ([`PrefixStarter`]), which exits after its last reader has left. A reader receives the sessions
//! that begin after the reader has joined ([`sessions`]).
//! docs/book/decisions/0096-shared-prefixes.md

mod bundle;
mod description;
mod interface;
mod messages;
pub mod reader;
mod sessions;
pub mod share;

use crate::Failure;
use crate::source::rx;
use buffer::name::{self, Address, Error, OpenRequest};
use buffer::stream::Input;
use interface::PrefixInterface;
use std::hash::{Hash as _, Hasher as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use sys::eventfd::EventFd;

/// A function that starts a process to run a shared prefix. It blocks until the prefix is running
/// or the process has exited, for example because another process started the prefix first. It
/// fails if no process can be started.
pub type PrefixStarter = fn(prefix: &str) -> Result<PrefixStartOutcome, Failure>;

/// Result of an attempt to start a process for a shared prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PrefixStartOutcome {
    /// The shared prefix is running in the process that was started.
    Running,
    /// The new process exited before the prefix was running. The text is its error message.
    Ended(String),
}

/// Maximum number of attempts to find or start the process of a shared prefix. An attempt fails if
/// another such process starts or exits at the same time.
const JOIN_ATTEMPTS_MAX: usize = 8;

static PREFIX_STARTER: OnceLock<PrefixStarter> = OnceLock::new();
static LAST_READER_LEFT_EVENT: OnceLock<EventFd> = OnceLock::new();
/// Event that is notified when a source of this process learns that its shared prefix has lost
/// blocks.
static UPSTREAM_LOSS_EVENT: OnceLock<EventFd> = OnceLock::new();
/// Number of blocks that all paths of this process have lost in total, upstream of their `share`
/// sinks.
static UPSTREAM_LOST_BLOCKS: AtomicU64 = AtomicU64::new(0);

/// Sets the function that starts a process for a shared prefix. If none is set, only prefixes that
/// are already running can be opened. Later calls have no effect.
pub fn set_prefix_starter(starter: PrefixStarter) {
    let _ = PREFIX_STARTER.set(starter);
}

/// Sets the total number of blocks that the paths of this process have lost upstream of `share`.
/// Each `share` sink reports this number to its readers with the next batch, or when its space
/// becomes idle.
pub fn set_upstream_losses(blocks: u64) {
    UPSTREAM_LOST_BLOCKS.store(blocks, Ordering::Relaxed);
}

/// Returns true if the source of a shared prefix observes live traffic. The process of such a
/// prefix is expected to run as long as it has readers. With any other source, the prefix ends when
/// its input ends; it was then started by a user, not by a request.
fn has_live_source(prefix: &str) -> bool {
    let live = [&rx::ENTRY, &rx::TX_SOURCE_ENTRY].map(|entry| entry.description.name);
    prefix.split_whitespace().next().is_some_and(|source| live.contains(&source))
}

/// Returns a descriptor that becomes readable when the last reader of a `share` with the argument
/// `last=yes` in this process has left. Fails if the kernel cannot create the descriptor.
pub fn last_reader_left_descriptor() -> sys::Result<BorrowedFd<'static>> {
    event_descriptor(&LAST_READER_LEFT_EVENT)
}

/// Returns a descriptor that becomes readable when a source `shared` of this process learns that
/// its prefix has lost blocks. Fails if the kernel cannot create the descriptor.
pub fn upstream_loss_descriptor() -> sys::Result<BorrowedFd<'static>> {
    event_descriptor(&UPSTREAM_LOSS_EVENT)
}

/// Makes the descriptor returned by [`upstream_loss_descriptor`] unreadable until the next loss.
pub fn clear_upstream_loss() {
    UPSTREAM_LOSS_EVENT.get().map(EventFd::clear);
}

/// Makes the descriptor returned by [`upstream_loss_descriptor`] readable.
fn report_upstream_loss() {
    if let Some(event) = UPSTREAM_LOSS_EVENT.get() {
        event.notify();
    }
}

/// Returns the descriptor of an event. Creates the event on the first call. Fails if the kernel
/// cannot create it.
fn event_descriptor(event: &'static OnceLock<EventFd>) -> sys::Result<BorrowedFd<'static>> {
    if event.get().is_none() {
        // If two threads create a descriptor at the same time, one of the descriptors is dropped.
        let _ = event.set(EventFd::new()?);
    }
    event.get().map(|event| event.as_fd()).ok_or_else(|| sys::Error::new("eventfd", "", 0))
}

/// Opens the ring of a shared prefix for reading. If no process runs the prefix, starts one, and
/// blocks until the prefix is running. If the caller has already read an earlier ring of the
/// prefix, `interface` is the interface of that ring.
///
/// # Errors
///
/// Fails if this program cannot start a process, if the ring cannot be opened, if it is still
/// missing after [`JOIN_ATTEMPTS_MAX`] attempts, or if the prefix now names an interface other than
/// `interface`.
fn join_ring(prefix: &str, interface: Option<PrefixInterface>) -> Result<Input, Failure> {
    let wrong = |why: &dyn std::fmt::Display| Failure::new("share", prefix, why);
    let mut message = String::new();
    for _ in 0..JOIN_ATTEMPTS_MAX {
        let now = PrefixInterface::find(prefix);
        if interface.zip(now).is_some_and(|(before, now)| before != now) {
            return Err(wrong(&"its process ended, and another interface has the name now"));
        }
        match name::open_stream(&ring_name(prefix, now)) {
            Ok(input) => return Ok(input),
            Err(Error::Unknown(_) | Error::Ended(_)) => {}
            Err(error) => return Err(wrong(&error)),
        }
        let Some(starter) = PREFIX_STARTER.get() else {
            let failure = wrong(&"no process runs it, and this program cannot start one");
            return Err(failure.with_hint("start one with `streamline run`"));
        };
        if let PrefixStartOutcome::Ended(why) = starter(prefix)? {
            message = why;
        }
    }
    Err(wrong(&if message.is_empty() { "its process exits immediately" } else { message.trim() }))
}

/// Returns true if a process of this user runs this shared prefix.
#[must_use]
pub fn is_prefix_running(prefix: &str) -> bool {
    let name = ring_name(prefix, PrefixInterface::find(prefix));
    let address = Address::for_current_user(&name);
    address.and_then(|address| OpenRequest::begin(&address)).is_ok()
}

/// Makes the descriptor returned by [`last_reader_left_descriptor`] readable.
fn report_last_reader_left() {
    if let Some(event) = LAST_READER_LEFT_EVENT.get() {
        event.notify();
    }
}

/// Returns the name of a shared prefix's ring. The name depends on the version of this program, so
/// that different versions never share a ring, and on the prefix's interface.
fn ring_name(prefix: &str, interface: Option<PrefixInterface>) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    (env!("CARGO_PKG_VERSION"), prefix, interface).hash(&mut hasher);
    format!("prefix-{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests;
