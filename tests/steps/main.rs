//! Tests that the building of a request is a transaction (docs/book/decisions/0029-steps.md): any
//! step may fail, and the machine is then unchanged.
//!
//! - `fail`: each step of many requests fails once, in a separate process;
//! - `change`: each step of changing a running path fails once;
//! - `shapes`: the requests.
#![forbid(unsafe_code)]

#[path = "../common/scratch.rs"]
mod scratch;

mod change;
mod fail;
mod shapes;
