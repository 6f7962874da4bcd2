//! Published state of filters that run on this machine (`state=NAME`), for commands, which read it
//! as any program can.

pub use buffer::name::{Address, Error};
pub use buffer::state::{Column, Look, Names, Reader, Shape};
