//! The server: one thread that serves all clients and never blocks on any of them. (RELIABILITY T8,
//! T10, T12, T13)
//!
//! ```text
//! clients ──► two sockets ──► connections ──► methods ──► registry
//!                                 │  a client that registers a path is a worker
//!                                 ▼
//!                its connection, its process (pidfd), and a socket for admissions
//! ```
//!
//! Clients are identified by credentials from the kernel. The quota of a user bounds the cost of
//! the user's clients, and a client that reads its replies too slowly is disconnected. A path stays
//! registered while both the connection and the process that registered it exist; the kernel
//! reports the end of either at once.
//!
//! The daemon is not part of any data path. To connect an authorized client to a path's process, it
//! creates a socket pair, passes one end to each of them, and keeps neither.

mod accept;
mod client;
mod event_loop;
mod events;
mod kernel;
mod messages;
mod methods;
mod registry;
mod restore;
mod store;
mod watchdog;

pub use event_loop::Server;
