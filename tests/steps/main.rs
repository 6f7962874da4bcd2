//! The transaction of an allocation (docs/book/decisions/0029-steps.md): any of its steps may fail,
//! and then the machine is as before; any process may be killed in front of any of them, and then
//! others go on and nothing stays.
//!
//! - `fail`: each step of many requests fails once, in a process of its own;
//! - `change`: each step of changes of a path that runs;
//! - `shapes`: the requests.
#![forbid(unsafe_code)]

#[path = "../common/scratch.rs"]
mod scratch;

mod change;
mod fail;
mod shapes;
