//! Which blocks are pieces of one text, for filters that look for what may lie across blocks.
//!
//! In: a block. Out: whether it goes on with the text of its session and direction, begins one
//! there, ends it, or is a text by itself. One direction of a connection is a text, and so is a
//! message (its description, then its fragments), a datagram, and any block without a session.

use crate::contract::Block;
use crate::layers;
use abi::{Flags, Marks};
use wire::ip::protocol;

/// What a block is in its text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// The session that the text belongs to; `None`: the block is a whole text.
    pub(crate) session: Option<u64>,
    /// Whether it goes backward in that session.
    pub(crate) backward: bool,
    /// Whether the text begins here.
    pub(crate) begins: bool,
    /// Whether it ends here.
    pub(crate) ends: bool,
    /// Whether bytes of the text are missing here.
    pub(crate) hole: bool,
    /// Whether this describes a message, whose bytes follow.
    pub(crate) described: bool,
}

impl Piece {
    /// What this block is.
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

/// Whether the block views a UDP datagram: what follows in its flow does not go on with it.
fn is_datagram(block: &Block<'_>) -> bool {
    block.marks.is_frame() && layers::ip_protocol(&mut block.clone()) == Ok(protocol::UDP)
}
