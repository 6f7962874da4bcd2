//! The live page, which shows running paths in a browser.
//!
//! ```text
//!  browser ── HTTP ──► server ── access
//!                        ├──► assets
//!                        ├──► plan, edits ──────────► processes of the paths
//!                        └──► live ◄── collector ◄──────────┘
//!                               └──► history
//! ```
//!
//! - [`access`]: access control for requests; [`server`]: the routes; [`assets`]: the files of the
//!   page;
//!   [`listener`]: the sockets;
//! - [`users`]: the page for all users of a machine, with a separate process for each user;
//!   [`connection`]: connections that are handed to such a process;
//! - [`live`]: the latest figures, and the viewers that wait for them; [`collector`]: the thread
//!   that collects figures while there is a viewer; [`history`]: the figures of the last hour;
//! - [`plan`]: nodes and edges of a path; [`messages`]: messages of a filter; `actions`: checks,
//!   starts and edits; `flow`: the trace of a flow; [`captures`]: captures to files (`frames`);
//!   [`commands`]: runs of the program `streamline`.
//!
//! The server runs in a separate process, as the user whom it serves, and can do only what this
//! user can do with `streamline`. A path incurs no cost while no browser shows the page. This is
//! the only crate with an async runtime; queries of paths run in threads outside the runtime.
#![forbid(unsafe_code)]

pub mod access;
mod actions;
pub mod assets;
pub mod captures;
pub mod collector;
pub mod commands;
pub mod connection;
mod failure;
mod flow;
mod frames;
pub mod history;
pub mod listener;
pub mod live;
pub mod messages;
pub mod plan;
pub mod server;
pub mod users;
