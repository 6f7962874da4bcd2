//! Programs that misuse the filter contract and must not compile. The test suites are in the other
//! directories of this crate.
//!
//! A statistics filter gets rich pointers:
//!
//! ```
//! fn record(tags: filter::MetadataView<'_>) -> u32 {
//!     tags.pointers[0].length()
//! }
//! ```
//!
//! and no bytes, by type:
//!
//! ```compile_fail,E0609
//! fn record(tags: filter::MetadataView<'_>) -> u8 {
//!     tags.frames[0][0]
//! }
//! ```
//!
//! ```compile_fail,E0599
//! fn record(tags: filter::MetadataView<'_>) -> u8 {
//!     tags.pointers[0].bytes()[0]
//! }
//! ```
//!
//! A filter cannot keep the bytes of a block beyond the call:
//!
//! ```compile_fail
//! use filter::{Block, Stream, StreamContext};
//! struct Keeps<'k>(&'k [u8]);
//! impl<'k> Stream for Keeps<'k> {
//!     fn process_block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
//!         self.0 = block.frame;
//!         cx.consume(&block);
//!     }
//! }
//! ```
//!
//! A reason that the description does not list does not compile:
//!
//! ```compile_fail,E0080
//! use filter::{Description, Reason};
//! const DPORT: Description =
//!     Description { reasons: &["no port"], ..Description::FILTER_DEFAULTS };
//! const WRONG: Reason = DPORT.reason("no prot");
//! fn main() {
//!     let _ = WRONG;
//! }
//! ```
#![forbid(unsafe_code)]
