//! The truth about `http`: what others find in captures that others made.
#![forbid(unsafe_code)]

#[path = "../common/captures.rs"]
mod captures;
#[path = "../common/collect.rs"]
mod collect;
#[path = "../common/line.rs"]
#[expect(dead_code, reason = "the tests of the ledger use the rest")]
mod line;
#[path = "../common/scratch.rs"]
mod scratch;
#[path = "../common/tshark.rs"]
#[expect(dead_code, reason = "the tests of tcp use the rest")]
mod tshark;

mod evader;
mod exported;
mod failures;
mod messages;
mod state;
