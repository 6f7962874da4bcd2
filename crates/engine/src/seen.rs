//! What filters show that run somewhere on this machine (`state=NAME`): for commands, which look at
//! it as any program can.

pub use buffer::name::{Address, Error};
pub use buffer::state::{Column, Look, Names, Reader, Shape};
