//! Services of a space for its filters.

use crate::contract::batch::Block;
use abi::{Entry, RichPointer};

/// Services of a space for its filters. Implemented by the engine; filters never name it.
pub trait Gateway<'a> {
    /// The bytes of the frame of a block that this space holds.
    fn frame(&self, entry: &Entry) -> &'a [u8];
    /// The same block with all its bytes here; `None`: they are gone.
    fn whole(&mut self, block: Block<'a>) -> Option<Block<'a>>;
    /// Keeps a block beyond the turn: pinned where it lies, or copied.
    fn pin(&mut self, block: &Block<'a>) -> Option<(Entry, Pin)>;
    /// Gives a kept block back when the turn ends.
    fn unpin(&mut self, pin: Pin);
    /// A new block of at most `room` bytes and [`abi::BLOCK_MAX`]: `fill` writes it and answers
    /// how much it used. `None`: there is no memory.
    fn append(&mut self, room: usize, fill: &mut Fill<'_>) -> Option<(RichPointer, &'a [u8])>;
    /// Lets `write` change the frame of `block`, in place where nobody else can see it, in a copy
    /// otherwise, and answers where the changed frame lies.
    fn edit(
        &mut self,
        block: &Block<'a>,
        keep: Keep,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> Option<(RichPointer, &'a [u8])>;
}

/// Writes a new block into the room that it is given, and answers how much it used.
pub type Fill<'f> = dyn FnMut(&mut [u8]) -> usize + 'f;

/// Handle of a kept block, given by the gateway: plain data, so that it can lie in a table that
/// moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pin(pub u64);

/// Need of an edit for the previous content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// The old contents are needed.
    Contents,
    /// Everything will be overwritten.
    Nothing,
}
