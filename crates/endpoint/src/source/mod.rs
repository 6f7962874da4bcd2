//! The sources of the catalog.
//!
//! Every file has the same structure: the module comment, the `Description`, the state, the `impl
//! Source`, the tests. A source never waits for input; it returns `SourceStatus::Wait`.

pub mod generate;
pub mod inject;
pub mod kernel;
pub mod read;
pub mod replay;
pub mod rx;
pub mod stream;

mod buffered_input;
pub(crate) mod input;
