//! Copies of filters that share their work (CONTRACT 16): what comes out is what one copy gives, in
//! the same order, whatever the batches, the load, the schedule and the number of copies; every
//! ledger balances; and a copy that dies ends its line at once.
#![forbid(unsafe_code)]

#[path = "../common/line.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod line;
#[path = "../common/scratch.rs"]
mod scratch;

mod kept;
mod load;
mod places;
mod sessions;
mod ways_to_end;
