//! Streams, inboxes and regions of memory by name, without a daemon and without a file.
//! [SL §5.1, open()], [SL §8], [Th §5.3.3], RELIABILITY T10 to T13, T17
//!
//! ```text
//!  creator                          kernel                               reader
//!  Host: one thread listens at  @streamline/UID/NAME  ◄── connect ──  open("NAME")
//!    who is it?  ◄────────────────  SO_PEERCRED  ────────────────►      who has this name?
//!    may it?  AccessList, once
//!    a page and a place  ────────── descriptors, or why not ────────►   seals, sizes are checked
//!    (hung up: gone)  ◄──────────── the same socket: the doorbell ──────►   Input
//! ```
//!
//! A name is an abstract Unix socket of the process that created it. It dies with the process and
//! leaves nothing behind; it is known in one network namespace, and not in others. To come is to
//! ask: the host reads nothing from whoever connects, so there is nothing to send it that is
//! wrong. It asks the kernel who that is, looks at the access list once (D13, T17), answers with
//! one message, waits for nobody, and keeps nothing but a place of the stream, of which there is a
//! fixed number, and fewer for any one untrusted peer (T12).
//!
//! A name belongs to the user in it: who opens one asks the kernel whether the process that
//! listens runs under that user, and refuses anybody else (T13). A process of another user that
//! keeps a name keeps nobody from it: its owner has it at a spare socket, which readers find
//! (`holder`).
//!
//! A reader that comes late starts at now ([`stream::joinable`]). One that leaves, or is killed,
//! gives its place back by hanging up.
//!
//! Deviation from the source: names do not lie in a file system yet; `PipesFS` will show them.

mod address;
mod answer;
mod error;
pub(crate) mod holder;
mod host;
mod inbox;
mod open;
mod quotas;
mod region;

pub use address::Address;
pub use error::Error;
pub use host::{Host, Limits, Listed};
pub use inbox::{Arrival, Inbox};
pub use open::{Opened, Visit, open, open_region, open_stream, open_write, opened};
pub use region::SharedRegion;

#[cfg(doc)]
use crate::stream;

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
