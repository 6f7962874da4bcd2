//! The sources of the catalog.
//!
//! Each file has the same order: output, `Description`, state, `impl Source`, tests. A source never
//! waits for input; it returns `SourceStatus::Wait`.

pub mod generate;
pub mod inject;
pub mod kernel;
pub mod read;
pub mod replay;
pub mod rx;

mod feed;
pub(crate) mod input;
