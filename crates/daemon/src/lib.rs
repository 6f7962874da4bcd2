//! Who runs what on this machine, for whom, and how one speaks to it. [SL §7, §8]
//!
//! ```text
//!  client ── io.streamline ──► daemon ── Admit ──► worker: the process of a path, its user's own
//!    └──────────────── io.streamline.path, without the daemon ────────┘
//! ```
//!
//! - [`varlink`]: calls and replies, and the interfaces;
//! - [`protocol`]: the types that travel; [`faults`]: errors, and as a person reads them;
//! - [`place`]: the directory in which a daemon is;
//! - [`policy`]: what users may, by root's word;
//! - [`server`]: the daemon;
//! - [`client`]: who asks it, or a path; [`host`]: who has lines run in the kernel by it;
//! - [`worker`]: what a path answers.
//!
//! The daemon runs no filter of a user: a path runs in a process of its user, and goes on when the
//! daemon ends.
#![forbid(unsafe_code)]

pub mod client;
mod connection;
pub mod faults;
pub mod gather;
pub mod host;
pub mod place;
pub mod policy;
pub mod protocol;
pub mod server;
#[cfg(test)]
mod testing;
pub mod varlink;
pub mod worker;
