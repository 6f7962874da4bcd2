//! The sinks of the catalog.
//!
//! Every file has the same structure: the module comment, the `Description`, the state, the `impl
//! Sink`, the tests. Data goes to standard output or files, never to standard error; reports go to
//! the caller that started the path (CONTRACT 28).

pub mod account;
pub mod discard;
pub mod drop;
pub mod files;
pub mod freeze;
mod full_write;
pub mod json;
pub mod offloaded_sink;
pub mod pcap;
pub mod print;
pub mod redirect;
pub mod tx;
pub mod weblog;

mod buffered_output;
mod class_names;
mod counting_sink;
mod file_set;
mod headers;
mod json_object;
mod line_repair;
mod message;
mod recent_frames;
mod text_sink;
