//! The kernel space of the machine, shared by users. [SL §7.1, §8; CONTRACT 21, 25; RELIABILITY T8,
//! T12, T18]
//!
//! ```text
//! Attach ──► queue per user ──► kernel thread: policy, accounts, Points ──► DelegatedProgram
//! ```
//!
//! Loading a program takes milliseconds, and removing a program waits for the kernel, so a
//! dedicated thread does both ([`thread`]), one command at a time. Users are served round robin, so
//! that a user with many commands delays no other user. Removals have priority, because they free
//! resources. Accounts ([`accounts`]) enforce each user's quota.

mod accounts;
pub(super) mod commands;
mod methods;
pub(super) mod queue;
mod thread;
