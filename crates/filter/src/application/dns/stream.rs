//! Message framing in the two directions of a DNS connection.
//!
//! Input: the blocks of one direction in order, holes included. Output: messages. The state of a
//! direction is [`DnsDirection`]: the length field, the pieces of one incomplete message, and the
//! number of its missing bytes. Until the first message is recognized, the length field is held
//! together with the pieces, so that all bytes of a direction that is not DNS can be emitted
//! unchanged.

use super::message::{ReceivedMessage, describe};
use super::{
    CUT, FOUND_AGAIN, GAP, MALFORMED, NOT_DNS, TOO_MANY_PIECES, emit_description, into_fragment,
    into_unanswered, standalone_message,
};
use crate::prelude::*;
use wire::dns::{LENGTH, Message};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Maximum number of blocks of a message. A message of 65,535 bytes in segments of 536 bytes has
/// 123 blocks.
const PIECES_MAX: u32 = 256;

/// The DNS state of a connection.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct DnsConnection {
    forward: DnsDirection,
    backward: DnsDirection,
}

/// The DNS state of one direction of a connection.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, Debug)]
#[repr(C)]
struct DnsDirection {
    /// Held pieces of the current message, preceded by the length field while `recognized` is zero.
    held: HeldList,
    /// Number of bytes of the current message that have not arrived.
    missing: u32,
    /// Length of the current message in bytes.
    length: u16,
    /// Number of bytes of the current length field that have arrived: 0 to 2.
    prefix: u8,
    /// Nonzero after the first recognized message of the direction.
    recognized: u8,
    /// Nonzero if the current message is unreadable: the [`Reason::mark`] of the cause.
    broken: u8,
    /// Nonzero if the rest of the direction is unreadable: the [`Reason::mark`] of the cause.
    closed: u8,
    /// Nonzero after the first block of the direction.
    begun: u8,
    /// Nonzero after the last block of the direction.
    ended: u8,
}

impl Session for DnsConnection {
    /// Returns the session number for a key of the session table, which is the number plus one: key
    /// 0 is the private session.
    fn number(&self, key: u64) -> u64 {
        key.saturating_sub(1)
    }

    fn held_lists(&mut self) -> Vec<&mut HeldList> {
        vec![&mut self.forward.held, &mut self.backward.held]
    }

    const FIELDS: &'static [Field<Self>] = &[
        Field::new("forward_missing", Unit::Bytes, MISSING_HELP, |it, _| it.forward.missing.into()),
        Field::new("backward_missing", Unit::Bytes, MISSING_HELP, |it, _| {
            it.backward.missing.into()
        }),
        Field::new("forward_ended", Unit::YesNo, ENDED_HELP, |it, _| it.forward.ended.into()),
        Field::new("backward_ended", Unit::YesNo, ENDED_HELP, |it, _| it.backward.ended.into()),
    ];
}

const MISSING_HELP: &str = "of the current message";
const ENDED_HELP: &str = "the last block of the direction has arrived";

impl DnsConnection {
    /// Handles the next block; returns true if the connection is over.
    pub(super) fn handle_block<'a>(
        &mut self,
        block: Block<'a>,
        buf: &mut Vec<u8>,
        cx: &mut StreamContext<'_, 'a>,
    ) -> bool {
        let flags = block.context.flags;
        let direction =
            if flags.has(Flags::BACKWARD) { &mut self.backward } else { &mut self.forward };
        direction.begun = 1;
        match block.pointer.is_hole() {
            true => direction.handle_hole(block, cx),
            false => direction.handle_block(block, buf, cx),
        }
        if flags.has(Flags::END) {
            direction.ended = 1;
            direction.release(CUT, cx);
        }
        let over = [self.forward, self.backward]
            .iter()
            .all(|direction| direction.begun == direction.ended);
        if over {
            // Bytes may arrive after the end of a direction.
            self.give_up(CUT, cx);
        }
        over
    }

    /// Releases all held pieces without a class, counted by reason.
    pub(super) fn give_up(&mut self, why: Reason, cx: &mut StreamContext<'_, '_>) {
        self.forward.release(why, cx);
        self.backward.release(why, cx);
    }
}

impl DnsDirection {
    fn handle_hole<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        let length = block.length();
        if length == 0 {
            return cx.consume(&block);
        }
        if self.closed == 0 {
            self.release(GAP, cx);
            if length > self.missing {
                self.closed = GAP.mark();
            } else {
                self.advance(length);
                self.broken = if self.missing > 0 { GAP.mark() } else { 0 };
            }
        }
        let block = into_unanswered(block, GAP, cx);
        cx.pass(block);
    }

    fn handle_block<'a>(
        &mut self,
        block: Block<'a>,
        buf: &mut Vec<u8>,
        cx: &mut StreamContext<'_, 'a>,
    ) {
        let Some(block) = cx.complete_block(block).filter(Block::has_all_bytes) else {
            return cx.drop(&block, CUT);
        };
        if Reason::from_mark(self.closed) == Some(GAP) && is_message_start(block.bytes()) {
            *self = Self { closed: 0, broken: 0, prefix: 0, missing: 0, ..*self };
            cx.count(FOUND_AGAIN, 1);
        }
        let mut pieces = BlockSplitter { block, taken: 0, lead: 0, emitted: false };
        while self.closed == 0 && pieces.taken < block.length() {
            if self.prefix < 2 {
                self.read_length(&mut pieces, cx);
                continue;
            }
            let piece = pieces.next(self.missing);
            self.advance(piece.length());
            self.handle_piece(piece, &mut pieces, buf, cx);
            pieces.lead = 0;
            if self.missing == 0 {
                (self.prefix, self.broken) = (0, 0);
            }
        }
        if let Some(why) = Reason::from_mark(self.closed)
            && pieces.taken < block.length()
        {
            let rest = pieces.next(u32::MAX);
            pieces.emit(into_unanswered(rest, why, cx), cx);
        }
        if !pieces.emitted {
            cx.consume(&block);
        }
    }

    /// Consumes the next byte of the length field. Before the first message is recognized, the byte
    /// is also held. If its block has no more bytes, the byte is held as a piece of its own,
    /// otherwise together with the bytes that follow.
    fn read_length<'a>(&mut self, pieces: &mut BlockSplitter<'a>, cx: &mut StreamContext<'_, 'a>) {
        let byte = pieces.next(1).bytes().first().copied().unwrap_or(0);
        self.length = self.length << 8 | u16::from(byte);
        self.prefix = self.prefix.saturating_add(1);
        pieces.lead += u32::from(self.recognized == 0);
        if self.prefix == 2 {
            self.missing = self.length.into();
            if usize::from(self.length) < LENGTH {
                let why = if self.recognized == 0 { NOT_DNS } else { MALFORMED };
                self.closed = why.mark();
                self.missing = 0;
                self.release(why, cx);
                return pieces.step_back(if self.recognized == 0 { pieces.lead } else { 2 });
            }
        }
        if pieces.lead > 0 && pieces.taken == pieces.block.length() {
            pieces.step_back(pieces.lead);
            let lead = pieces.next(pieces.lead);
            if !cx.hold_part(&mut self.held, &lead, &mut pieces.emitted) {
                self.release(TOO_MANY_PIECES, cx);
                self.broken = TOO_MANY_PIECES.mark();
            }
        }
    }

    fn advance(&mut self, length: u32) {
        self.missing = self.missing.saturating_sub(length);
        if self.missing == 0 {
            self.prefix = 0;
        }
    }

    /// Handles the next piece of a message: emits the message if the piece completes it, and
    /// otherwise holds the piece.
    fn handle_piece<'a>(
        &mut self,
        piece: Block<'a>,
        pieces: &mut BlockSplitter<'a>,
        buf: &mut Vec<u8>,
        cx: &mut StreamContext<'_, 'a>,
    ) {
        if let Some(why) = Reason::from_mark(self.broken) {
            return pieces.emit(into_unanswered(piece, why, cx), cx);
        }
        let whole = self.missing == 0;
        let length = usize::from(self.length);
        if self.recognized == 0 && !self.may_begin_message(&piece, pieces.lead, cx) {
            self.closed = NOT_DNS.mark();
            self.release(NOT_DNS, cx);
            return pieces.step_back(pieces.lead + piece.length());
        }
        if whole && self.held.is_empty() {
            return match describe(ReceivedMessage { block: piece, raw: piece.bytes(), length }, cx)
            {
                Ok((class, description)) => {
                    self.recognized = 1;
                    let first = emit_description(description, cx);
                    pieces.emit(into_fragment(piece, class, first.with(Flags::LAST)), cx);
                }
                Err(NOT_DNS) if self.recognized == 0 => {
                    self.closed = NOT_DNS.mark();
                    pieces.step_back(pieces.lead + piece.length());
                }
                Err(why) => {
                    self.recognized = 1;
                    pieces.emit(into_unanswered(piece, why, cx), cx);
                }
            };
        }
        let key = self.held.len();
        let all = pieces.lead + piece.length();
        pieces.step_back(all);
        let piece = pieces.next(all);
        if key >= PIECES_MAX {
            self.release(TOO_MANY_PIECES, cx);
            pieces.emit(into_unanswered(piece, TOO_MANY_PIECES, cx), cx);
        } else {
            let held = cx.hold_part(&mut self.held, &piece, &mut pieces.emitted);
            if held && whole {
                self.finish_held(length, buf, cx);
            }
            if held {
                return;
            }
            self.release(TOO_MANY_PIECES, cx);
        }
        self.broken = if whole { 0 } else { TOO_MANY_PIECES.mark() };
    }

    /// Returns false if the held pieces and `piece` cannot be the start of a DNS message. `lead` is
    /// the number of bytes of the length field that precede the piece in its block. Returns true if
    /// the header is still incomplete, or was already complete in the held pieces.
    fn may_begin_message(&self, piece: &Block<'_>, lead: u32, cx: &StreamContext<'_, '_>) -> bool {
        let before = u32::from(self.length).saturating_sub(self.missing + piece.length());
        if before as usize >= LENGTH {
            return true;
        }
        let mut header = [0; LENGTH];
        let held = cx.held(&self.held).flat_map(|(_, held)| held.bytes());
        let held = held.skip(2usize.saturating_sub(lead as usize));
        let known =
            held.chain(piece.bytes()).zip(&mut header).map(|(byte, to)| *to = *byte).count();
        let message = Message::parse(&header).filter(|_| known == LENGTH);
        let length = self.length.into();
        message.is_none_or(|message| message.is_likely(length) || message.is_possible(length))
    }

    /// Emits the held pieces as a message if they form one. Otherwise releases them without a
    /// class.
    fn finish_held(&mut self, length: usize, buf: &mut Vec<u8>, cx: &mut StreamContext<'_, '_>) {
        let mut lead = if self.recognized == 0 { 2 } else { 0 };
        buf.clear();
        buf.extend(cx.held(&self.held).flat_map(|(_, piece)| piece.bytes()).skip(lead as usize));
        let Some((_, block)) = cx.front(&self.held) else { return };
        match describe(ReceivedMessage { block, raw: buf, length }, cx) {
            Ok((class, description)) => {
                self.recognized = 1;
                let mut flags = emit_description(description, cx);
                while let Some((_, piece)) = cx.front(&self.held) {
                    if piece.length() <= lead {
                        cx.consume_front(&mut self.held);
                        lead -= piece.length();
                        continue;
                    }
                    let last = self.held.len() == 1;
                    flags = if last { flags.with(Flags::LAST) } else { flags };
                    cx.release(&mut self.held, |piece| {
                        into_fragment(piece.narrow(lead, u32::MAX), class, flags)
                    });
                    (flags, lead) = (Flags::NONE, 0);
                }
            }
            Err(why) => {
                if self.recognized == 0 && why == NOT_DNS {
                    self.closed = why.mark();
                }
                self.release(why, cx);
            }
        }
    }

    /// Releases the held pieces without a class.
    fn release(&mut self, why: Reason, cx: &mut StreamContext<'_, '_>) {
        while !self.held.is_empty() {
            let class = cx.absent(why);
            cx.release(&mut self.held, |piece| standalone_message(piece, class));
        }
    }
}

/// Returns true if `bytes`, which follow missing bytes, certainly begin with a message: a length, a
/// plausible header and, if the message is complete, contents that match the header.
fn is_message_start(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_first_chunk() else { return false };
    let length = usize::from(u16::from_be_bytes(*length));
    let message = rest.get(..length).unwrap_or(rest);
    let likely = Message::parse(message).filter(|message| message.is_likely(length));
    likely.is_some_and(|likely| message.len() < length || likely.is_sound())
}

/// An iterator that splits a block into pieces. The first emitted piece replaces the block in its
/// batch; the others become new blocks.
struct BlockSplitter<'a> {
    block: Block<'a>,
    /// Offset in the block of the next piece.
    taken: u32,
    /// Number of bytes before `taken` that belong to the length field of a direction's first
    /// message.
    lead: u32,
    /// True after the first piece was emitted.
    emitted: bool,
}

impl<'a> BlockSplitter<'a> {
    /// Returns the next piece of the block, of at most `length` bytes. Only the piece that contains
    /// the last byte of the block has the end-of-session flag.
    fn next(&mut self, length: u32) -> Block<'a> {
        let mut piece = self.block.narrow(self.taken, length);
        self.taken += piece.length();
        if self.taken < self.block.length() {
            piece.context.flags = piece.context.flags.without(Flags::END_MASK);
        }
        piece
    }

    /// Moves back by `length` bytes, so that `next` returns them again.
    fn step_back(&mut self, length: u32) {
        self.taken = self.taken.saturating_sub(length);
    }

    fn emit(&mut self, piece: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        cx.emit_part(piece, &mut self.emitted);
    }
}
