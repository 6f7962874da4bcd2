//! The daemon of a machine: the registry of all paths, and the kernel space that its users share.
//! [SL §7, §8]
//!
//! - [`server`]: the server;
//! - [`policy`]: rights and quotas of users, configured by root;
//! - [`log`]: the log of events;
//! - [`directory`]: the directory with the sockets, locked by one daemon at a time.
//!
//! The protocol and its clients are in the crate `member`. The daemon runs no user's filter in its
//! own process: a path runs in a process of its user and continues when the daemon exits.
#![forbid(unsafe_code)]

pub mod directory;
mod ids;
pub mod log;
pub mod policy;
pub mod server;
#[cfg(test)]
mod testing;
