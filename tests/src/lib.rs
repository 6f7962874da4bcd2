//! Misuse that the contract's types refuse, shown by programs that do not compile. The tests
//! themselves are in the folders beside this one.
//!
//! A statistics filter sees rich pointers:
//!
//! ```
//! fn record(tags: filter::Tags<'_>) -> u32 {
//!     tags.pointers[0].length()
//! }
//! ```
//!
//! and no bytes, by type:
//!
//! ```compile_fail,E0609
//! fn record(tags: filter::Tags<'_>) -> u8 {
//!     tags.frames[0][0]
//! }
//! ```
//!
//! ```compile_fail,E0599
//! fn record(tags: filter::Tags<'_>) -> u8 {
//!     tags.pointers[0].bytes()[0]
//! }
//! ```
//!
//! Nobody keeps the bytes of a block beyond the turn:
//!
//! ```compile_fail
//! use filter::{Block, Stream, StreamContext};
//! struct Keeps<'k>(&'k [u8]);
//! impl<'k> Stream for Keeps<'k> {
//!     fn block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
//!         self.0 = block.frame;
//!         cx.consume(&block);
//!     }
//! }
//! ```
//!
//! A reason that the description does not name does not build:
//!
//! ```compile_fail,E0080
//! use filter::{Description, Reason};
//! const DPORT: Description = Description { reasons: &["no port"], ..Description::EMPTY };
//! const WRONG: Reason = DPORT.reason("no prot");
//! fn main() {
//!     let _ = WRONG;
//! }
//! ```
#![forbid(unsafe_code)]
