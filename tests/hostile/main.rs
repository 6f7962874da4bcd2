//! Hostile input: captures that others made, cut short and with bits flipped, through whole lines
//! of every filter and sink of the catalogue; and fuzz bodies over random bytes.
//!
//! What must hold for any input at all: nothing panics, nothing hangs, the only failure is the
//! source's own (the capture is broken, in the words of the reader of captures), every packet
//! before the break is given, the ledger balances, and a megabyte costs at most 100 ms of processor
//! time.
//!
//! `SEED=` repeats a run. `STREAMLINE_SOAK=1` takes every cut and 1,000 flips of every capture
//! instead of a few; with `--release` that is a matter of minutes.
#![forbid(unsafe_code)]

#[path = "../common/line.rs"]
#[expect(dead_code, reason = "the tests of the ledger use the rest")]
mod line;
#[path = "../common/scratch.rs"]
mod scratch;

mod captures;
mod catalogue;
mod exam;
mod fuzz;
mod mutate;
mod state;
