//! Tools for tests: external cases, requirements with reported skips, reproducible random numbers,
//! generated packets and captures, private networks.
//!
//! Rules for all tests:
//! - a test that cannot run reports it: [`need`] prints `skipped: <test>: <reason>`, appends the
//!   line to `skips.txt` in the target directory, and panics under `STREAMLINE_STRICT=1`;
//! - a test with random input uses [`Random::with_replayable_seed`], which prints the seed; the
//!   environment variable `SEED` replays a run;
//! - packets, including their checksums, are built by code in this crate and not in `wire`, because
//!   a bug in `wire` could otherwise hide itself in its own tests. Only [`Capture::to_pcap`] uses
//!   code of `wire`.
//!
//! This crate contains no unsafe code, and the product does not depend on it.
#![forbid(unsafe_code)]

pub mod cases;
pub mod generated;
pub mod lingering;
pub mod need;
pub mod net;
pub mod packet;
pub mod program;
pub mod random;
pub mod resources;
pub mod service;
pub mod traffic;
pub mod user;
pub mod wait;

pub use cases::{capture_paths, case_directory, corpus_captures};
pub use generated::{Captures, generated_captures};
pub use lingering::lingering_socket;
pub use packet::{Frame, TcpHeader};
pub use program::streamline_program;
pub use random::Random;
pub use traffic::{Capture, mixed_traffic, web_capture};
pub use wait::{copy_program, run_in_separate_process, wait_until, wait_until_closed};
