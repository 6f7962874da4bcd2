//! The interface through which filters use the services of their space.

use crate::contract::batch::Block;
use abi::{Entry, RichPointer};

/// Services of a space for its filters. The engine implements this trait; filters use it through a
/// context.
pub trait Gateway<'a> {
    /// Returns the captured bytes of a held block.
    fn frame(&self, entry: &Entry) -> &'a [u8];
    /// Returns the block with all captured bytes present, or `None` if some bytes have been
    /// overwritten.
    fn complete_block(&mut self, block: Block<'a>) -> Option<Block<'a>>;
    /// Keeps a block beyond the current pass. The space either pins the block's memory or copies
    /// the block. Returns `None` if there is no memory for the copy.
    fn pin(&mut self, block: &Block<'a>) -> Option<(Entry, PinId)>;
    /// Releases a pinned block. Its bytes stay valid until the end of the pass.
    fn unpin(&mut self, pin: PinId);
    /// Creates a block of at most `room` bytes, and at most [`abi::BLOCK_LENGTH_MAX`], and calls
    /// `fill` to write it. Returns `None` if memory runs out.
    fn append(&mut self, room: usize, fill: &mut FillFn<'_>) -> Option<(RichPointer, &'a [u8])>;
    /// Calls `write` to change the frame of `block`: in place if the frame has no other reader,
    /// otherwise in a copy. Returns the changed frame, or `None` if there is no memory for a copy.
    fn edit(
        &mut self,
        block: &Block<'a>,
        keep: OldBytes,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> Option<(RichPointer, &'a [u8])>;
}

/// Callback that writes a new block into a slice, and returns the number of bytes written.
pub type FillFn<'f> = dyn FnMut(&mut [u8]) -> usize + 'f;

/// Handle of a pinned block. Plain data, so that a table of handles can be moved to another
/// process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PinId(pub u64);

/// The initial contents of the memory that an edit of a block receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OldBytes {
    /// The current bytes of the block, which the edit changes in part.
    Keep,
    /// Arbitrary bytes. The edit must overwrite all of them.
    Discard,
}
