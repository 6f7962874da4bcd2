//! Bytes on which two spaces must agree: rich pointers, lanes, ring headers; and the rules by which
//! they grant each other access ([`access`]).
//!
//! Everything here is plain data with a fixed layout (little endian machines, [SL §5.3.1],
//! [Th §3.3.2]). This crate does no I/O, allocates nothing but access lists and reaches no bytes: a
//! rich pointer is a claim about memory, and only `iolite::resolve` turns a claim into bytes. All
//! crates pass text of an untrusted peer through [`text`] before they show it.
#![no_std]
#![forbid(unsafe_code)]
#![warn(clippy::cast_possible_truncation)]

extern crate alloc;

pub mod access;
pub mod edge;
mod metadata;
mod pointer;
pub mod ring;
pub mod text;

pub use metadata::{BlockMetadata, Direction, Entry, Flags, Marks};
pub use pointer::{Class, DbufId, Extent, RichPointer};

/// Largest block of one rich pointer, in bytes (20 bits of length). Longer data travels as
/// fragments or as an aggregate (CONTRACT 6, 7).
pub const BLOCK_MAX: usize = (1 << 20) - 1;
