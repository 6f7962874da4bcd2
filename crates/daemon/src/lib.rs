//! The daemon of a machine: a register of all paths, and a kernel space that users share.
//! [SL §7, §8]
//!
//! - [`server`]: the daemon;
//! - [`policy`]: the rights of users, by root's word;
//! - [`directory`]: the directory that one daemon holds.
//!
//! Its protocol and its clients are the crate `member`. The daemon runs no filter of a user: a path
//! runs in a process of its user, and goes on when the daemon ends.
#![forbid(unsafe_code)]

pub mod directory;
pub mod policy;
pub mod server;
#[cfg(test)]
mod testing;
