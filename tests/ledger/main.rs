//! The ledger, proved from outside: `generate seq=yes` numbers the traffic, and what arrives and
//! what the ledger says is missing are what was sent, number by number (CONTRACT 20).
//!
//! - `lines`: drops, evictions, classes that no arc wants, cycles, counts, in lines of any shape;
//! - `ends`: paths that end early: a sink that fails in the middle, a filter with a bug;
//! - `loses.rs` beside this file is a program of its own: it needs the build that loses blocks.
#![forbid(unsafe_code)]

#[path = "../common/line.rs"]
#[expect(dead_code, reason = "hostile input uses the rest")]
mod line;
#[path = "../common/scratch.rs"]
mod scratch;

mod ends;
mod lines;
mod probes;
