//! libstreamline, the C library: the Unix file interface of streams, and requests that run in
//! threads of the calling program. [SL §5.1], FEATURES A19, D9, D10
//!
//! `export` is the only file with unsafe code: each function checks its pointers where a check is
//! possible, turns them into slices, and calls one safe function of `stream_calls`, `transfer`,
//! `state` or `run`. `run` opens requests with the library `streamline`. `table` maps numbers to
//! ends. Each number is a separate descriptor, so closing one by mistake affects no other object.
//!
//! cbindgen generates the header `include/streamline.h` from `export` and `config`; the header is
//! committed, and a test compares it with cbindgen's output.
#![deny(unsafe_code)]

mod config;
mod end;
#[expect(unsafe_code, reason = "the border to C: numbers and pointers become slices here")]
#[expect(clippy::missing_safety_doc, reason = "what a C program promises stands in the header")]
mod export;
mod failure;
mod pointers;
mod request;
mod run;
mod state;
mod state_reader;
mod stream_calls;
mod table;
mod transfer;
mod wait;

pub use config::streamline_config;
pub use export::*;
