//! Readers of the state that filters on this machine publish (`state=NAME`), with the same access
//! as any other program.

pub use buffer::name::{Address, Error};
pub use buffer::state::{Column, Shape, Snapshot, TableNames, TableReader};
