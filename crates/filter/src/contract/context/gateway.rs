//! Services of a space for its filters.

use crate::contract::batch::Block;
use abi::{Entry, RichPointer};

/// Services of a space for its filters. Implemented by the engine; filters use them through a
/// context.
pub trait Gateway<'a> {
    /// Returns the captured bytes of a held block.
    fn frame(&self, entry: &Entry) -> &'a [u8];
    /// Returns the block with all captured bytes present; `None` if some of the bytes have been
    /// overwritten.
    fn complete_block(&mut self, block: Block<'a>) -> Option<Block<'a>>;
    /// Keeps a block beyond the pass, either pinned in place or copied; `None` if there is no
    /// memory for a copy.
    fn pin(&mut self, block: &Block<'a>) -> Option<(Entry, PinId)>;
    /// Releases a pinned block at the end of the pass.
    fn unpin(&mut self, pin: PinId);
    /// Creates a block of at most `room` bytes and at most [`abi::BLOCK_MAX`] bytes, written by
    /// `fill`; `None` if there is no memory.
    fn append(&mut self, room: usize, fill: &mut Fill<'_>) -> Option<(RichPointer, &'a [u8])>;
    /// Calls `write` to change the frame of `block`, in place if it has no other reader, otherwise
    /// in a copy. Returns the changed frame; `None` if there is no memory for a copy.
    fn edit(
        &mut self,
        block: &Block<'a>,
        keep: Keep,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> Option<(RichPointer, &'a [u8])>;
}

/// Callback that writes a new block into a slice and returns the number of bytes written.
pub type Fill<'f> = dyn FnMut(&mut [u8]) -> usize + 'f;

/// Handle of a pinned block; plain data, so that a table with it can move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PinId(pub u64);

/// The bytes that an edit expects in the slice it receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// The current bytes of the block.
    Contents,
    /// Any bytes: the edit overwrites all of them.
    Nothing,
}
