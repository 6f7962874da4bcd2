//! Groups blocks into texts, for filters whose matches may span blocks.
//!
//! In: a block. Out: its position in the text of its session and direction: continuation,
//! beginning, end, or a text of its own. Texts are a direction of a connection, a message (its
//! description, then its fragments), a datagram, and any block without a session.

use crate::contract::Block;
use crate::layers;
use abi::{Flags, Marks};
use wire::ip::protocol;

/// The position of a block in its text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TextPiece {
    /// Session of the text; `None` if the block is a whole text.
    pub(crate) session: Option<u64>,
    /// True if it is a piece of the backward direction.
    pub(crate) backward: bool,
    /// True if the text begins here.
    pub(crate) begins: bool,
    /// True if the text ends here.
    pub(crate) ends: bool,
    /// True if bytes of the text are missing here.
    pub(crate) hole: bool,
    /// True for the description of a message, whose bytes follow.
    pub(crate) described: bool,
}

impl TextPiece {
    /// Classifies this block.
    #[inline]
    pub(crate) fn of(block: &Block<'_>) -> Self {
        let flags = block.context.flags;
        let (begins, ends) = (flags.has(Flags::FIRST), is_last(flags));
        let whole = block.context.session == 0 || (begins && ends) || is_datagram(block);
        Self {
            session: (!whole).then_some(block.context.session.into()),
            backward: flags.has(Flags::BACKWARD),
            begins: begins || whole,
            ends: ends || whole,
            hole: block.pointer.is_hole() && block.length() > 0,
            described: block.marks.link == Marks::DESCRIBED,
        }
    }
}

fn is_last(flags: Flags) -> bool {
    flags.has(Flags::LAST) || flags.has(Flags::END)
}

/// Returns true if the block views a UDP datagram, which later blocks of its flow do not continue.
fn is_datagram(block: &Block<'_>) -> bool {
    block.marks.is_frame() && layers::ip_protocol(&mut block.clone()) == Ok(protocol::UDP)
}
