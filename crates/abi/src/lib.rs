//! Data layouts shared by all spaces (rich pointers, metadata columns, ring headers), and the rules
//! by which spaces grant each other access ([`access`]).
//!
//! Everything here is plain data with a fixed layout (little-endian machines, [SL §5.3.1], [Th
//! §3.3.2]). This crate does no I/O, allocates nothing but access lists, and dereferences no rich
//! pointer: a rich pointer is an allegation, which `buffer` (within a process) and
//! `iolite::resolve` (between processes) check before they return bytes. All crates pass text from
//! an untrusted peer through [`text`] before they print it.
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

pub use metadata::{BlockFlags, BlockMetadata, Direction, Entry, Marks};
pub use pointer::{Class, DbufId, Extent, RichPointer};

/// Maximum length in bytes of the block that one rich pointer identifies; the length field has 20
/// bits. Longer data is passed as fragments or as an aggregate (CONTRACT 6, 7).
pub const BLOCK_LENGTH_MAX: usize = (1 << 20) - 1;
