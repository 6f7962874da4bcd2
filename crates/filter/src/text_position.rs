//! Position of a block within a text, which is a sequence of blocks that a match may span.
//!
//! Input: a block. Output: the position of the block in its text. A block may be at the start, in
//! the middle or at the end, or be the only block of the text. A text is one direction of a
//! connection, a message (its description, then its fragments), a datagram, or a block without a
//! session.

use crate::contract::Block;
use crate::layers;
use abi::{BlockFlags, Marks};
use wire::ip::protocol;

/// The position of a block in its text, which is the sequence of blocks that a match may span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TextPosition {
    /// Session of the text, or `None` if the text consists of one block.
    pub(crate) session: Option<u64>,
    /// True for the backward direction of the session.
    pub(crate) backward: bool,
    /// True if the block is the first one of its text.
    pub(crate) is_first: bool,
    /// True if the block is the last one of its text.
    pub(crate) is_last: bool,
    /// True if the block is a hole: its bytes are missing.
    pub(crate) is_hole: bool,
    /// True if the block is the description of a message, whose bytes follow.
    pub(crate) is_description: bool,
}

impl TextPosition {
    /// Returns the position of a block in its text, as its flags and its session show.
    #[inline]
    pub(crate) fn from_block(block: &Block<'_>) -> Self {
        let flags = block.context.flags;
        let (begins, ends) = (flags.contains(BlockFlags::FIRST), is_text_end(flags));
        let whole = block.context.session == 0 || (begins && ends) || is_udp_datagram(block);
        Self {
            session: (!whole).then_some(block.context.session.into()),
            backward: flags.contains(BlockFlags::BACKWARD),
            is_first: begins || whole,
            is_last: ends || whole,
            is_hole: block.pointer.is_hole() && block.length() > 0,
            is_description: block.marks.link == Marks::DESCRIPTION_LINK_TYPE,
        }
    }
}

fn is_text_end(flags: BlockFlags) -> bool {
    flags.contains(BlockFlags::LAST) || flags.contains(BlockFlags::SESSION_END)
}

/// Returns true if the block is a UDP datagram, which is a text of its own even within a flow.
fn is_udp_datagram(block: &Block<'_>) -> bool {
    block.marks.is_frame() && layers::ip_protocol(&mut block.clone()) == Ok(protocol::UDP)
}
