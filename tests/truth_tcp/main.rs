//! The truth about `ip` and `tcp`: what others say is in captures that others made.
#![forbid(unsafe_code)]

#[path = "../common/captures.rs"]
mod captures;
#[path = "../common/collect.rs"]
mod collect;
#[path = "../common/line.rs"]
#[expect(dead_code, reason = "the tests of the ledger use the rest")]
mod line;
#[path = "../common/tshark.rs"]
#[expect(dead_code, reason = "the tests of http use the rest")]
mod tshark;

mod follow;
mod fragments;
mod pcapplusplus;
mod streams;
mod suricata;
mod zeek;
