//! Tests that compare the results of `ip` and `tcp` with those of other programs on external
//! captures.
#![forbid(unsafe_code)]

#[path = "../common/captures.rs"]
mod captures;
#[path = "../common/collect.rs"]
mod collect;
#[path = "../common/request.rs"]
#[expect(dead_code, reason = "the tests of the ledger use the rest")]
mod request;
#[path = "../common/tshark.rs"]
#[expect(dead_code, reason = "the tests of http use the rest")]
mod tshark;

mod follow;
mod fragments;
mod pcapplusplus;
mod streams;
mod suricata;
mod zeek;
