//! PipesFS: the running paths of a machine as a file system. [SL §4.1]
//!
//! ```text
//!  kernel ── /dev/fuse ──► server ──► tree ◄── snapshot ◄── processes of the paths
//!                            └──────► streams ◄── taps ◄──────────┘
//! ```
//!
//! - [`names`]: names of directories; [`tree`]: directories as a pure function of the paths;
//!   [`entries`]: the files in them; [`content`]: the text of the files;
//! - [`snapshot`]: the paths and counters of the machine, which are queried only while a program
//!   uses the file system;
//! - [`edits`]: changes to the tree, which are edits of paths;
//! - [`streams`]: open streams, each a separate tap, and [`transfer`] of their bytes; [`writers`]:
//!   files that are open for writing; [`totals`]: byte counts of streams and writers; [`events`]:
//!   the events of the daemon;
//! - [`protocol`]: messages to and from the kernel; [`inodes`]: inode numbers of objects;
//!   [`server`]: the operations; `threads`: threads for operations that may block; [`failures`]:
//!   reasons for failures; [`mount`]: mounting.
//!
//! An object that no process opens costs the paths nothing. A request that can block, because it
//! queries a path or waits for a block, never occupies the threads that answer other requests, and
//! is interrupted when its caller receives a signal. A change to the tree is one edit. The path's
//! own process applies the edit, within a time limit, while a thread of this process waits for the
//! result.
#![forbid(unsafe_code)]

pub mod content;
pub mod edits;
pub mod entries;
pub mod events;
pub mod failures;
pub mod inodes;
pub mod mount;
pub mod names;
pub mod protocol;
pub mod server;
pub mod snapshot;
pub mod streams;
mod threads;
pub mod totals;
pub mod transfer;
pub mod tree;
pub mod writers;
