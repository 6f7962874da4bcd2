//! What happens to bytes: the contract that every filter keeps, the catalog, and one file per
//! filter.
//!
//! A filter knows bytes, not places: nothing here names a ring, a socket, a file or a clock, which
//! is what lets the planner put a filter anywhere. This crate does no I/O. [SL §6.1], [Th §5.3]
//!
//! Read [`contract`] first (what a block is, what a filter may do), then [`catalog`] (the list),
//! then [`layers`] (how headers are read), then any filter, in the order in which a packet meets
//! them: `link`, `network`, `transport`, `general`, `content`, `stats`.
#![forbid(unsafe_code)]

pub mod contract;

pub mod catalog;
pub mod layers;

pub mod content;
pub mod general;
pub mod link;
pub mod network;
pub mod stats;
pub mod transport;

mod twin;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use contract::*;

/// What a filter file starts from.
pub mod prelude {
    pub use crate::contract::*;
    pub use abi::{Class, ContextLane, Flags, Marks, RichPointer};
}
