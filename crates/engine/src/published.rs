//! Reader of the state that filters on this machine publish (`state=NAME`). Other programs can read
//! the state in the same way.

pub use buffer::name::{Address, Error};
pub use buffer::state::{Column, Snapshot, TableNames, TableReader, TableShape};
