//! Tests of replicated filters (CONTRACT 16): the output and its order are the same as with a
//! single instance for any batches, load, schedule and number of replicas, except that blocks
//! released by time or a reset may leave in another order; every ledger balances; and a failing
//! replica ends its request at once.
#![forbid(unsafe_code)]

#[path = "../common/request.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod request;
#[path = "../common/scratch.rs"]
mod scratch;

mod affinity;
mod collected;
mod replicas_by_load;
mod sections;
mod session_moves;
mod sessions;
mod shutdown;
mod stages;
