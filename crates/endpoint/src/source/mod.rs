//! The sources: where bytes come from.
//!
//! Each file has the same order: what it gives, its `Description`, its state, `impl Source`, tests.
//! A source never waits: what is not there yet is answered as `Given::Wait`.

pub mod generate;
pub mod inject;
pub mod kernel;
pub mod read;
pub mod replay;
pub mod rx;

mod feed;
pub(crate) mod input;
