//! State that filters on this machine publish (`state=NAME`), read as any other program can read
//! it.

pub use buffer::name::{Address, Error};
pub use buffer::state::{Column, Shape, Snapshot, TableNames, TableReader};
