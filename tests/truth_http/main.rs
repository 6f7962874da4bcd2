//! Tests that compare the results of `http` with those of other programs on external captures.
#![forbid(unsafe_code)]

#[path = "../common/captures.rs"]
mod captures;
#[path = "../common/collect.rs"]
mod collect;
#[path = "../common/request.rs"]
#[expect(dead_code, reason = "the tests of the ledger use the rest")]
mod request;
#[path = "../common/scratch.rs"]
mod scratch;
#[path = "../common/tshark.rs"]
#[expect(dead_code, reason = "the tests of tcp use the rest")]
mod tshark;

mod evader;
mod exported;
mod failures;
mod messages;
mod moved_state;
