//! Blocks lent by one stream to be forwarded by another stream.

use super::held_segments::FollowedInputState;
use abi::RichPointer;
use buffer::pool::Lease;
use std::sync::Arc;

/// A block that a stream has lent but not consumed, and that another stream may forward.
#[derive(Debug)]
pub struct LentBlock<'a> {
    pub(crate) pointer: RichPointer,
    pub(crate) holder: BlockHolder<'a>,
}

impl LentBlock<'_> {
    /// Returns the length of the block in bytes.
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
pub(crate) enum BlockHolder<'a> {
    /// An input that has not released the entry of the block.
    Entry(&'a Arc<FollowedInputState>),
    /// A lease on the segment of the block.
    Lease(&'a Lease),
    /// A file in the page cache, whose bytes need no holder.
    File,
}
