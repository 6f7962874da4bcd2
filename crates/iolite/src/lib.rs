//! An implementation of IO-Lite on top of the crate `buffer`: aggregates, streams of pointers,
//! cached files, merged streams, and a Unix-like file interface to all of them. [IOL §2, §3], [SL
//! §5.3, §6]
//!
//! Paths do not use this crate. It serves programs that read and write streams directly. Its rings,
//! pools and doorbells, and the three kinds of shared memory with their rules, come from `buffer`.
#![deny(unsafe_code)]
#![cfg(not(loom))]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]

pub mod aggregate;
pub mod file;
pub mod indirect;
pub mod interface;
pub mod merge;
pub mod mpipe;
pub mod resolve;
pub mod splice;
#[expect(unsafe_code, reason = "lends trusted and frozen memory; numbered invariants in the file")]
pub mod view;
#[cfg(all(test, not(miri)))]
mod writer_end_races;

/// The examples of the book, run as doc tests.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../../docs/book/04-buffers.md")]
    mod buffers {}
    #[doc = include_str!("../../../docs/book/buffers/forms.md")]
    mod forms {}
    #[doc = include_str!("../../../docs/book/buffers/names.md")]
    mod names {}
}
