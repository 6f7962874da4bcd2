//! Tests of hostile input. Captures, some of them truncated or with flipped bits, pass requests
//! with every filter and sink of the catalog, and fuzz bodies run over random bytes.
//!
//! For any input, there is no panic and no hang. Only the source may fail, with the capture
//! reader's error for a broken capture. Every packet before the fault is emitted, the ledger
//! balances, and a megabyte costs at most 100 ms of processor time.
//!
//! `SEED=` repeats a run. `STREAMLINE_SOAK=1` applies every truncation and 1,000 bit flips to every
//! capture, which takes minutes with `--release`.
#![forbid(unsafe_code)]

#[path = "../common/request.rs"]
#[expect(dead_code, reason = "the tests of the ledger use the rest")]
mod request;
#[path = "../common/scratch.rs"]
mod scratch;

mod captures;
mod catalog;
mod examination;
mod forged_state;
mod fuzz;
mod mutation;
