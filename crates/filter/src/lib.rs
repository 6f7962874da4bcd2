//! Filters: the contract with the engine, the catalog, and one file per filter.
//!
//! Filters are independent of their location. No filter refers to a ring, a socket, a file or a
//! clock, so the planner can place any filter in any space. This crate does no I/O. [SL §6.1], [Th
//! §5.3]
//!
//! Read [`contract`] first (blocks, and the rights of a filter), then [`catalog`] (the list), then
//! [`layers`] (header access), then any filter, in processing order: `link`, `network`,
//! `transport`, `general`, `application`, `content`, `stats`.
//!
//! Signatures enforce the rights of each kind. Each of the four examples below compiles. The
//! variant after each example breaks one rule and does not compile. A statistics filter has no
//! access to bytes:
//! ```
//! # use filter::prelude::*;
//! # struct Lengths(u64);
//! impl Statistics for Lengths {
//!     fn record(&mut self, tags: MetadataView<'_>, _: Time) {
//!         self.0 += tags.blocks().map(|(pointer, _)| u64::from(pointer.length())).sum::<u64>();
//!     }
//! }
//! ```
//! ```compile_fail,E0599
//! # use filter::prelude::*;
//! # struct Lengths(u64);
//! impl Statistics for Lengths {
//!     fn record(&mut self, tags: MetadataView<'_>, _: Time) {
//!         self.0 += tags.blocks().map(|(pointer, _)| pointer.bytes().len() as u64).sum::<u64>();
//!     }
//! }
//! ```
//! Bytes cannot be stored beyond the call:
//! ```
//! # use filter::prelude::*;
//! # struct Last(Option<usize>);
//! impl Classify for Last {
//!     fn classify(&mut self, block: &mut Block<'_>, _: &mut ClassifyContext<'_>) -> Class {
//!         self.0 = Some(block.frame.len());
//!         Class::YES
//!     }
//! }
//! ```
//! ```compile_fail
//! # use filter::prelude::*;
//! # struct Last(Option<&'static [u8]>);
//! impl Classify for Last {
//!     fn classify(&mut self, block: &mut Block<'_>, _: &mut ClassifyContext<'_>) -> Class {
//!         self.0 = Some(block.frame);
//!         Class::YES
//!     }
//! }
//! ```
//! A classifier cannot edit:
//! ```
//! # use filter::prelude::*;
//! # struct Clears;
//! impl LaneFilter for Clears {
//!     fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
//!         cx.edit(batch, 0, OldBytes::Discard, |bytes| bytes.fill(0));
//!     }
//! }
//! ```
//! ```compile_fail,E0599
//! # use filter::prelude::*;
//! # struct Clears;
//! impl Classify for Clears {
//!     fn classify(&mut self, block: &mut Block<'_>, cx: &mut ClassifyContext<'_>) -> Class {
//!         cx.edit(block, 0, OldBytes::Discard, |bytes: &mut [u8]| bytes.fill(0));
//!         Class::YES
//!     }
//! }
//! ```
//! An unknown reason does not compile:
//! ```
//! # use filter::prelude::*;
//! const D: Description = Description { reasons: &["no port"], ..Description::FILTER_DEFAULTS };
//! const NO_PORT: Reason = D.reason("no port");
//! # let _ = NO_PORT;
//! ```
//! ```compile_fail,E0080
//! # use filter::prelude::*;
//! const D: Description = Description { reasons: &["no port"], ..Description::FILTER_DEFAULTS };
//! const NO_PORT: Reason = D.reason("no prot");
//! # let _ = NO_PORT;
//! ```
#![forbid(unsafe_code)]

pub mod contract;

pub mod catalog;
pub mod layers;
pub mod sharing;

pub mod application;
pub mod content;
pub mod general;
pub mod link;
pub mod network;
pub mod stats;
pub mod transport;

mod automaton;
mod endpoint;
mod text_position;
mod twin;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use abi::text;
pub use contract::*;
pub use endpoint::{
    AttachTarget, EndpointFacts, ObservedSource, SendingInterface, SourceOverlap, StandardOutput,
    TrafficDirection,
};

/// Common imports of a filter's source file.
pub mod prelude {
    pub use crate::contract::*;
    pub use crate::sharing::ShardKey;
    pub use abi::{BlockFlags, BlockMetadata, Class, Marks, RichPointer};
}
