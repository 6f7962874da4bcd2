//! The sinks: what ends a path and what it does to the outside world.
//!
//! Each file has the same order: what it writes, its `Description`, its state, `impl Sink`, tests.
//! Data go to standard output or to files, never to standard error; reports go where the door that
//! started the path puts them (CONTRACT 28).

pub mod discard;
pub mod drop;
pub mod ended;
pub mod files;
pub mod freeze;
pub mod json;
pub mod pcap;
pub mod print;
pub mod redirect;
pub mod tx;
pub mod weblog;

mod headers;
mod names;
mod object;
mod out;
mod shelf;
mod tail;
mod text;
mod told;
