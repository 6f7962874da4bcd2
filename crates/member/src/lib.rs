//! Membership of a path in this machine: the daemon's protocol, its client, and the thread that
//! answers for a path. [SL §7, §8]
//!
//! ```text
//!  client ── io.streamline ──► daemon ── Admit ──► worker: the process of a path, its user's own
//!    └──────────────── io.streamline.path, without the daemon ────────┘
//! ```
//!
//! - [`varlink`]: calls and replies, and the interfaces;
//! - [`protocol`]: the types that travel; [`faults`]: errors, and their text for people;
//! - [`connection`]: one connection, seen from the side that answers;
//! - [`place`]: the directories in which a client looks for a daemon;
//! - [`client`]: calls to a daemon or to a path; [`gather`]: many calls at once;
//! - [`host`]: requests that a daemon runs in the kernel for this process; [`rights`]: the words
//!   for those that root has not opened;
//! - [`worker`]: the answers of a path.
//!
//! The server is the crate `daemon`. A path needs none: it runs in a process of its user, and goes
//! on when the daemon ends.
#![forbid(unsafe_code)]

pub mod client;
pub mod connection;
pub mod faults;
pub mod gather;
pub mod host;
pub mod place;
pub mod protocol;
pub mod rights;
pub mod varlink;
pub mod worker;
