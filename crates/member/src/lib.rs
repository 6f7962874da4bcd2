//! The daemon's protocol, its client, and the thread that serves a registered path. [SL §7, §8]
//!
//! ```text
//!  client ── io.streamline ──► daemon ── Admit ──► worker: the process of a path, its user's own
//!    └──────────────── io.streamline.path, without the daemon ────────┘
//! ```
//!
//! - [`varlink`]: the encoding of calls and replies, and the interface texts;
//! - [`protocol`]: the parameter types; [`faults`]: errors, and their texts for users;
//! - [`connection`]: the server's end of one connection;
//! - [`daemon_directories`]: the directories in which a client searches for a daemon;
//! - [`client`]: calls to a daemon or a path; [`gather`]: calls to many peers at once;
//! - [`host`]: requests that the daemon runs in the kernel for this process; [`rights`]:
//!   explanations of rights that the policy denies, and user and group names;
//! - [`page_socket`]: the socket over which a user requests the address of the machine's live page;
//! - [`worker`]: the service of a path.
//!
//! The server is the crate `daemon`. A path does not depend on it: it runs in a process of its user
//! and continues when the daemon exits.
#![forbid(unsafe_code)]

pub mod client;
pub mod connection;
pub mod daemon_directories;
pub mod dbuf_ids;
pub mod faults;
pub mod gather;
pub mod host;
pub mod page_socket;
pub mod protocol;
mod receive_buffer;
pub mod rights;
pub mod varlink;
pub mod worker;
