//! Output of `http`: message fragments as views of the current block, and bytes outside of messages
//! unchanged.

use super::options::Emit;
use super::state::Phase;
use super::walk::Walk;
use super::why;
use crate::prelude::*;

impl<'a> Walk<'_, '_, 'a> {
    pub(super) fn emit_head(&mut self, from: u32, to: u32) {
        self.at = to;
        self.direction().gathered = 0;
        let mut held = std::mem::take(&mut self.direction().held);
        let (class, emit) = (Class(self.direction().class), self.options.emit);
        while !held.is_empty() {
            let to_flags = self.to_message_flags();
            match emit {
                Emit::Body => self.cx.consume_front(&mut held),
                Emit::Message | Emit::Head => self.cx.release(&mut held, |block| {
                    let mut block = block.with_class(class);
                    block.context.flags = to_flags(block.context.flags);
                    block
                }),
            }
        }
        if emit != Emit::Body {
            self.open = Some(from);
            if emit == Emit::Head || self.direction().codings != 0 {
                self.flush(emit == Emit::Head);
            }
        }
    }

    /// Emits the bytes from offset `from` to the current offset as part of the open message's body,
    /// merged with a pending fragment if there is one.
    pub(super) fn emit_data(&mut self, from: u32, last: bool) {
        let coded = self.direction().codings != 0;
        match self.options.emit {
            Emit::Head => {}
            _ if coded => self.hold_data(from),
            Emit::Message => {
                self.open.get_or_insert(from);
            }
            Emit::Body => self.emit_fragment(from, self.at, last),
        }
    }

    /// Emits the pending fragment of the open message, which ends at the current offset. `last`
    /// means that the message ends there.
    pub(super) fn flush(&mut self, last: bool) {
        let from = self.open.take().filter(|from| last || *from < self.at);
        if let Some(from) = from {
            self.emit_fragment(from, self.at, last);
        }
    }

    /// Returns the flag of the open message's last fragment: `LAST`, or `END` if the message is
    /// incomplete.
    pub(super) fn last_flag(&self) -> Flags {
        if self.it.directions[self.direction].broken != 0 { Flags::END } else { Flags::LAST }
    }

    /// Emits a range of the block as a fragment of the open message.
    pub(super) fn emit_fragment(&mut self, from: u32, to: u32, last: bool) {
        let mut piece =
            self.block.narrow(from, to - from).with_class(Class(self.direction().class));
        let end = self.last_flag();
        let flags = self.to_message_flags()(piece.context.flags);
        piece.context.flags = if last { flags.with(end) } else { flags };
        self.direction().owes &= u8::from(!last);
        self.emit(piece);
    }

    pub(super) fn emit(&mut self, piece: Block<'a>) {
        self.cx.emit_part(piece, &mut self.emitted);
    }

    /// Returns a function that converts the flags of a stream block to those of a message: it
    /// clears the stream's flags (first, last, end) and sets the direction, forward for requests
    /// and backward for responses.
    pub(super) fn to_message_flags(&self) -> impl Fn(Flags) -> Flags + use<> {
        let requests = self.is_requests();
        move |flags: Flags| {
            let stream = Flags::FIRST.with(Flags::LAST).with(Flags::END_MASK).with(Flags::BACKWARD);
            let flags = flags.without(stream);
            if requests { flags } else { flags.with(Flags::BACKWARD) }
        }
    }

    /// Passes the rest of the block without a class.
    pub(super) fn pass_rest(&mut self) {
        let reason = match self.direction().phase() {
            Phase::Switched => why::SWITCHED,
            Phase::Closed => why::AFTER_CLOSE,
            Phase::Other => why::NOT_HTTP,
            _ => why::LOST,
        };
        self.pass_unanswered(reason);
    }

    pub(super) fn pass_unanswered(&mut self, reason: Reason) {
        self.flush(false);
        if self.at < self.block.length() {
            let class = self.cx.absent(reason);
            let piece = self.block.narrow(self.at, u32::MAX).with_class(class);
            self.emit(piece);
        }
        self.at = self.block.length();
    }

    /// Releases the held pieces of a head without a class.
    pub(super) fn release_held(&mut self, direction: usize, reason: Reason) {
        let mut held = std::mem::take(&mut self.it.directions[direction].held);
        self.it.directions[direction].gathered = 0;
        while !held.is_empty() {
            let class = self.cx.absent(reason);
            self.cx.release(&mut held, |block| block.with_class(class));
        }
    }
}
