//! Streams, inboxes and memory regions by name, without a daemon and without a file. [SL §5.1,
//! open()], [SL §8], [Th §5.3.3], RELIABILITY T10 to T13, T17
//!
//! ```text
//!  creator                          kernel                               reader
//!  Host: one thread listens on  @streamline/UID/NAME  ◄── connect ──  open("NAME")
//!    user of the client  ◄────────  SO_PEERCRED  ────────────────►      user of the listener
//!    AccessList and quota, once
//!    page and reader slot  ──────── descriptors or refusal ─────────►   checks of seals and sizes
//!    (hang-up: departed)  ◄──────── the same socket as doorbell ────────►   Input
//! ```
//!
//! A name is an abstract Unix socket of the process that created the name. The socket vanishes with
//! the process, and is visible in one network namespace only. Connecting is the entire request: the
//! host reads no bytes from a client, so there is no malformed input. The host queries the client's
//! credentials from the kernel, checks the access list once (D13, T17), replies with one message
//! and never blocks on a client. Per client the host stores only a reader slot or an inbox entry.
//! The number of slots is fixed, with a lower limit per untrusted user (T12).
//!
//! A name belongs to the user whose ID it contains: a client queries the user of the listening
//! process from the kernel, and refuses any other user (T13). If a process of another user occupies
//! the name, the owner's host listens on a spare socket instead, which clients find (`holder`).
//!
//! A reader that joins a running stream starts *now*: after the last published block
//! ([`stream::joinable_stream`]). When the reader leaves or is killed, its socket hangs up and its
//! slot is released.
//!
//! Deviation from the paper: names are not files yet; `PipesFS` will show them in a file system.

mod address;
mod error;
mod host;
mod inbox;
mod open;
mod quotas;
mod region;
mod reply;
pub(crate) mod socket_owner;

pub use address::Address;
pub use error::Error;
pub use host::{NameEntry, NameHost, ReaderLimits};
pub use inbox::{AcceptedWriter, Inbox};
pub use open::{
    OpenRequest, OpenedObject, open, open_address, open_inbox_writer, open_region, open_stream,
};
pub use region::SharedRegion;

#[cfg(doc)]
use crate::stream;

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
