//! Tests that verify the ledger from outside. `generate seq=yes` numbers the traffic; the numbers
//! that arrive and the numbers that are reported missing must together be exactly the numbers sent
//! (CONTRACT 20).
//!
//! - `requests`: drops, evictions, classes without an arc, cycles and counts, in requests of any
//!   shape;
//! - `failures`: paths that end early, by a failing sink or a panicking filter;
//! - `loses.rs` in this directory is its own test target, because it needs the build that loses
//!   blocks.
#![forbid(unsafe_code)]

#[path = "../common/request.rs"]
#[expect(dead_code, reason = "hostile input uses the rest")]
mod request;
#[path = "../common/scratch.rs"]
mod scratch;

mod failures;
mod probes;
mod requests;
