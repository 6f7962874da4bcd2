//! A block lent by one stream to be forwarded by another.

use super::flight::Keeper;
use abi::RichPointer;
use buffer::pool::Lease;
use std::sync::Arc;

/// A lent block, which another stream may forward; not consumed yet.
#[derive(Debug)]
pub struct Lent<'a> {
    pub(crate) pointer: RichPointer,
    pub(crate) home: Home<'a>,
}

impl Lent<'_> {
    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.pointer.length() as usize
    }

    /// Returns true if the block is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The party that holds the bytes of a lent block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Home<'a> {
    /// An input that has not released the entry.
    Entry(&'a Arc<Keeper>),
    /// A lease on the segment.
    Lease(&'a Lease),
    /// A file, whose bytes need no holder.
    File,
}
