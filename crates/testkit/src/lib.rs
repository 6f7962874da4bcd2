//! Tools for tests: external cases, requirements and reported skips, reproducible random numbers,
//! generated packets and captures, private networks.
//!
//! Rules that hold for every user:
//! - a test that cannot run says so: [`need`] prints `skipped: <test>: <reason>`, appends the line
//!   to `skips.txt` in the target directory, and panics under `STREAMLINE_STRICT=1`;
//! - a test with random input takes it from [`Random::replayable`], which prints the seed that
//!   `SEED=` replays;
//! - packets are built here with code of their own (checksums included), so that a fault in `wire`
//!   does not hide behind the same fault in its judge. Only the writer of captures is `wire`'s.
//!
//! No unsafe code, and nothing here is for the product.
#![forbid(unsafe_code)]

pub mod cases;
pub mod made;
pub mod need;
pub mod net;
pub mod packet;
pub mod random;
pub mod resources;
pub mod service;
pub mod traffic;
pub mod user;
pub mod wait;

pub use cases::{captures, cases, corpus};
pub use made::{Captures, made};
pub use packet::{Frame, Segment};
pub use random::Random;
pub use traffic::{Capture, traffic, web};
pub use wait::{alone, closed, copy_program, until};
