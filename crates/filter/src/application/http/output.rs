//! Output of `http`: message fragments, which are views of the current block, and bytes that belong
//! to no message, which pass unchanged. The *open* message of a direction is the one whose head is
//! complete and whose body has not ended.

use super::options::EmittedParts;
use super::reasons;
use super::state::Phase;
use super::walk::BlockWalk;
use crate::prelude::*;

impl<'a> BlockWalk<'_, '_, 'a> {
    pub(super) fn emit_head(&mut self, from: u32, to: u32) {
        self.offset = to;
        self.direction().held_bytes = 0;
        let mut held = std::mem::take(&mut self.direction().held);
        let (class, emit) = (Class(self.direction().class), self.options.emit);
        while !held.is_empty() {
            let to_flags = self.message_flags_function();
            match emit {
                EmittedParts::Body => self.cx.consume_front_block(&mut held),
                EmittedParts::Message | EmittedParts::Head => {
                    self.cx.release_front_block(&mut held, |block| {
                        let mut block = block.with_class(class);
                        block.context.flags = to_flags(block.context.flags);
                        block
                    })
                }
            }
        }
        if emit != EmittedParts::Body {
            self.fragment_start = Some(from);
            if emit == EmittedParts::Head || self.direction().codings != 0 {
                self.flush_fragment(emit == EmittedParts::Head);
            }
        }
    }

    /// Handles body bytes of the open message, from offset `from` to the current offset. Emits them
    /// at once, adds them to the fragment to be emitted next, holds them for decoding, or omits
    /// them if only heads are emitted.
    pub(super) fn emit_body_bytes(&mut self, from: u32, last: bool) {
        let coded = self.direction().codings != 0;
        match self.options.emit {
            EmittedParts::Head => {}
            _ if coded => self.hold_body_piece(from),
            EmittedParts::Message => {
                self.fragment_start.get_or_insert(from);
            }
            EmittedParts::Body => self.emit_fragment(from, self.offset, last),
        }
    }

    /// Emits the fragment that is due: the bytes of the open message from
    /// [`BlockWalk::fragment_start`] to the current offset. `last` is true if the message ends at
    /// this offset.
    pub(super) fn flush_fragment(&mut self, last: bool) {
        let from = self.fragment_start.take().filter(|from| last || *from < self.offset);
        if let Some(from) = from {
            self.emit_fragment(from, self.offset, last);
        }
    }

    /// Returns the flag for the last fragment of the current message: `END` if the message is
    /// incomplete, otherwise `LAST`.
    pub(super) fn last_fragment_flag(&self) -> BlockFlags {
        if self.connection.directions[self.direction].is_broken != 0 {
            BlockFlags::SESSION_END
        } else {
            BlockFlags::LAST
        }
    }

    /// Emits a range of the block as a fragment of the open message.
    pub(super) fn emit_fragment(&mut self, from: u32, to: u32, last: bool) {
        let mut piece =
            self.block.narrow(from, to - from).with_class(Class(self.direction().class));
        let end = self.last_fragment_flag();
        let flags = self.message_flags_function()(piece.context.flags);
        piece.context.flags = if last { flags.with(end) } else { flags };
        self.direction().owes_last_fragment &= u8::from(!last);
        self.emit_piece(piece);
    }

    pub(super) fn emit_piece(&mut self, piece: Block<'a>) {
        self.cx.emit_block_part(piece, &mut self.has_emitted);
    }

    /// Returns a function that converts the flags of an input block to the flags of a message
    /// fragment. It clears the flags first, last and end. It sets the direction to forward for a
    /// request, and to backward for a response.
    pub(super) fn message_flags_function(&self) -> impl Fn(BlockFlags) -> BlockFlags + use<> {
        let requests = self.carries_requests();
        move |flags: BlockFlags| {
            let stream = BlockFlags::FIRST
                .with(BlockFlags::LAST)
                .with(BlockFlags::SESSION_END_MASK)
                .with(BlockFlags::BACKWARD);
            let flags = flags.without(stream);
            if requests { flags } else { flags.with(BlockFlags::BACKWARD) }
        }
    }

    /// Emits the bytes from the current offset to the end of the block without a class. The
    /// [`Phase`] of the direction determines the reason.
    pub(super) fn pass_rest_of_block(&mut self) {
        let reason = match self.direction().phase() {
            Phase::Switched => reasons::PROTOCOL_SWITCHED,
            Phase::Closed => reasons::AFTER_CLOSE,
            Phase::OtherProtocol => reasons::NOT_HTTP,
            _ => reasons::MESSAGE_START_LOST,
        };
        self.pass_unanswered(reason);
    }

    pub(super) fn pass_unanswered(&mut self, reason: Reason) {
        self.flush_fragment(false);
        if self.offset < self.block.length() {
            let class = self.cx.answer_absent(reason);
            let piece = self.block.narrow(self.offset, u32::MAX).with_class(class);
            self.emit_piece(piece);
        }
        self.offset = self.block.length();
    }

    /// Emits the held pieces of the direction's incomplete head without a class, and counts each of
    /// them under `reason`.
    pub(super) fn release_held_head(&mut self, direction: usize, reason: Reason) {
        let mut held = std::mem::take(&mut self.connection.directions[direction].held);
        self.connection.directions[direction].held_bytes = 0;
        while !held.is_empty() {
            let class = self.cx.answer_absent(reason);
            self.cx.release_front_block(&mut held, |block| block.with_class(class));
        }
    }
}
