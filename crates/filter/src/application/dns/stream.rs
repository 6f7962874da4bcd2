//! Message framing in the two directions of a DNS connection.
//!
//! Input: the blocks of one direction in order, holes included. Output: messages. [`DnsDirection`]
//! is the state of one direction: the length field, the pieces of one incomplete message, and the
//! number of its bytes that have not arrived. Until the first message is recognized, the length
//! field is held too, so that a direction that turns out not to be DNS can be emitted unchanged.

use super::message::{ReceivedMessage, describe};
use super::{
    CUT, GAP, MALFORMED, MESSAGES_FOUND_AGAIN, NOT_DNS, TOO_MANY_PIECES, emit_description,
    into_fragment, into_standalone_message, into_unanswered_message,
};
use crate::prelude::*;
use wire::dns::{HEADER_LENGTH, Message};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Maximum number of blocks in a message. A message of maximum length (65,535 bytes) in segments of
/// 536 bytes needs 123 blocks.
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
    /// Held pieces of the current message. They include its length field until the first message of
    /// the direction is recognized.
    held: HeldList,
    /// Number of bytes of the current message that have not arrived.
    missing_bytes: u32,
    /// Length of the current message in bytes.
    length: u16,
    /// Number of bytes of the current length field that have arrived: 0 to 2.
    length_field_bytes: u8,
    /// Nonzero after the first recognized message of the direction.
    is_recognized: u8,
    /// Nonzero if the current message is unreadable; the value is the [`Reason::to_code`] of the
    /// cause.
    message_fault: u8,
    /// Nonzero if the rest of the direction is unreadable; the value is the [`Reason::to_code`] of
    /// the cause.
    direction_fault: u8,
    /// Nonzero after the first block of the direction.
    has_begun: u8,
    /// Nonzero after the last block of the direction.
    has_ended: u8,
}

impl Session for DnsConnection {
    /// Returns the session number for a key of the session table. The key is the session number
    /// plus one, because key 0 is reserved for state that belongs to no connection.
    fn session_number(&self, key: u64) -> u64 {
        key.saturating_sub(1)
    }

    fn held_lists(&mut self) -> Vec<&mut HeldList> {
        vec![&mut self.forward.held, &mut self.backward.held]
    }

    const FIELDS: &'static [Field<Self>] = &[
        Field::new("forward_missing", Unit::Bytes, MISSING_HELP, |it, _| {
            it.forward.missing_bytes.into()
        }),
        Field::new("backward_missing", Unit::Bytes, MISSING_HELP, |it, _| {
            it.backward.missing_bytes.into()
        }),
        Field::new("forward_ended", Unit::YesNo, ENDED_HELP, |it, _| it.forward.has_ended.into()),
        Field::new("backward_ended", Unit::YesNo, ENDED_HELP, |it, _| it.backward.has_ended.into()),
    ];
}

const MISSING_HELP: &str = "of the current message";
const ENDED_HELP: &str = "the last block of the direction has arrived";

impl DnsConnection {
    /// Handles the next block of the connection. Returns true if each direction has ended or has
    /// not begun.
    pub(super) fn handle_block<'a>(
        &mut self,
        block: Block<'a>,
        buf: &mut Vec<u8>,
        cx: &mut StreamContext<'_, 'a>,
    ) -> bool {
        let flags = block.context.flags;
        let direction = if flags.contains(BlockFlags::BACKWARD) {
            &mut self.backward
        } else {
            &mut self.forward
        };
        direction.has_begun = 1;
        match block.pointer.is_hole() {
            true => direction.handle_hole(block, cx),
            false => direction.handle_block(block, buf, cx),
        }
        if flags.contains(BlockFlags::SESSION_END) {
            direction.has_ended = 1;
            direction.release_held_pieces(CUT, cx);
        }
        let over = [self.forward, self.backward]
            .iter()
            .all(|direction| direction.has_begun == direction.has_ended);
        if over {
            // Bytes may arrive after the end of a direction.
            self.release_all(CUT, cx);
        }
        over
    }

    /// Emits all held pieces of both directions without a class. Counts each of them under the
    /// reason `why`.
    pub(super) fn release_all(&mut self, why: Reason, cx: &mut StreamContext<'_, '_>) {
        self.forward.release_held_pieces(why, cx);
        self.backward.release_held_pieces(why, cx);
    }
}

impl DnsDirection {
    fn handle_hole<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        let length = block.length();
        if length == 0 {
            return cx.consume(&block);
        }
        if self.direction_fault == 0 {
            self.release_held_pieces(GAP, cx);
            if length > self.missing_bytes {
                self.direction_fault = GAP.to_code();
            } else {
                self.advance_within_message(length);
                self.message_fault = if self.missing_bytes > 0 { GAP.to_code() } else { 0 };
            }
        }
        let block = into_unanswered_message(block, GAP, cx);
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
        if Reason::from_code(self.direction_fault) == Some(GAP) && is_message_start(block.bytes()) {
            *self = Self {
                direction_fault: 0,
                message_fault: 0,
                length_field_bytes: 0,
                missing_bytes: 0,
                ..*self
            };
            cx.count(MESSAGES_FOUND_AGAIN, 1);
        }
        let mut pieces =
            BlockSplitter { block, next_offset: 0, leading_length_bytes: 0, has_emitted: false };
        while self.direction_fault == 0 && pieces.next_offset < block.length() {
            if self.length_field_bytes < 2 {
                self.read_length_byte(&mut pieces, cx);
                continue;
            }
            let piece = pieces.next_piece(self.missing_bytes);
            self.advance_within_message(piece.length());
            self.emit_or_hold_piece(piece, &mut pieces, buf, cx);
            pieces.leading_length_bytes = 0;
            if self.missing_bytes == 0 {
                (self.length_field_bytes, self.message_fault) = (0, 0);
            }
        }
        if let Some(why) = Reason::from_code(self.direction_fault)
            && pieces.next_offset < block.length()
        {
            let rest = pieces.next_piece(u32::MAX);
            pieces.emit_piece(into_unanswered_message(rest, why, cx), cx);
        }
        if !pieces.has_emitted {
            cx.consume(&block);
        }
    }

    /// Consumes the next byte of a length field. A length too small for a message header makes the
    /// rest of the direction unreadable.
    ///
    /// Before the first message is recognized, the bytes of the field are held. They form a piece
    /// of their own if the block ends with them; otherwise they are held together with the bytes
    /// that follow.
    fn read_length_byte<'a>(
        &mut self,
        pieces: &mut BlockSplitter<'a>,
        cx: &mut StreamContext<'_, 'a>,
    ) {
        let byte = pieces.next_piece(1).bytes().first().copied().unwrap_or(0);
        self.length = self.length << 8 | u16::from(byte);
        self.length_field_bytes = self.length_field_bytes.saturating_add(1);
        pieces.leading_length_bytes += u32::from(self.is_recognized == 0);
        if self.length_field_bytes == 2 {
            self.missing_bytes = self.length.into();
            if usize::from(self.length) < HEADER_LENGTH {
                let why = if self.is_recognized == 0 { NOT_DNS } else { MALFORMED };
                self.direction_fault = why.to_code();
                self.missing_bytes = 0;
                self.release_held_pieces(why, cx);
                return pieces.step_back(if self.is_recognized == 0 {
                    pieces.leading_length_bytes
                } else {
                    2
                });
            }
        }
        if pieces.leading_length_bytes > 0 && pieces.next_offset == pieces.block.length() {
            pieces.step_back(pieces.leading_length_bytes);
            let lead = pieces.next_piece(pieces.leading_length_bytes);
            if !cx.hold_block_part(&mut self.held, &lead, &mut pieces.has_emitted) {
                self.release_held_pieces(TOO_MANY_PIECES, cx);
                self.message_fault = TOO_MANY_PIECES.to_code();
            }
        }
    }

    fn advance_within_message(&mut self, length: u32) {
        self.missing_bytes = self.missing_bytes.saturating_sub(length);
        if self.missing_bytes == 0 {
            self.length_field_bytes = 0;
        }
    }

    /// Handles the next piece of a message. Emits the message if the piece completes it, and
    /// otherwise holds the piece. A piece of an unreadable message is emitted without a class. If
    /// it turns out that the direction does not carry DNS, emits the held pieces without a class,
    /// and moves `pieces` back to the first byte that has not been emitted.
    fn emit_or_hold_piece<'a>(
        &mut self,
        piece: Block<'a>,
        pieces: &mut BlockSplitter<'a>,
        buf: &mut Vec<u8>,
        cx: &mut StreamContext<'_, 'a>,
    ) {
        if let Some(why) = Reason::from_code(self.message_fault) {
            return pieces.emit_piece(into_unanswered_message(piece, why, cx), cx);
        }
        let whole = self.missing_bytes == 0;
        let length = usize::from(self.length);
        if self.is_recognized == 0
            && !self.may_begin_message(&piece, pieces.leading_length_bytes, cx)
        {
            self.direction_fault = NOT_DNS.to_code();
            self.release_held_pieces(NOT_DNS, cx);
            return pieces.step_back(pieces.leading_length_bytes + piece.length());
        }
        if whole && self.held.is_empty() {
            return match describe(ReceivedMessage { block: piece, raw: piece.bytes(), length }, cx)
            {
                Ok((class, description)) => {
                    self.is_recognized = 1;
                    let first = emit_description(description, cx);
                    pieces
                        .emit_piece(into_fragment(piece, class, first.with(BlockFlags::LAST)), cx);
                }
                Err(NOT_DNS) if self.is_recognized == 0 => {
                    self.direction_fault = NOT_DNS.to_code();
                    pieces.step_back(pieces.leading_length_bytes + piece.length());
                }
                Err(why) => {
                    self.is_recognized = 1;
                    pieces.emit_piece(into_unanswered_message(piece, why, cx), cx);
                }
            };
        }
        let key = self.held.len();
        let all = pieces.leading_length_bytes + piece.length();
        pieces.step_back(all);
        let piece = pieces.next_piece(all);
        if key >= PIECES_MAX {
            self.release_held_pieces(TOO_MANY_PIECES, cx);
            pieces.emit_piece(into_unanswered_message(piece, TOO_MANY_PIECES, cx), cx);
        } else {
            let held = cx.hold_block_part(&mut self.held, &piece, &mut pieces.has_emitted);
            if held && whole {
                self.emit_or_release_held_pieces(length, buf, cx);
            }
            if held {
                return;
            }
            self.release_held_pieces(TOO_MANY_PIECES, cx);
        }
        self.message_fault = if whole { 0 } else { TOO_MANY_PIECES.to_code() };
    }

    /// Returns false if the held pieces and `piece` cannot begin a DNS message, because of an
    /// impossible header. Returns true if the header is plausible or still incomplete, and also if
    /// it was complete before `piece`. `lead` is the number of length field bytes that precede the
    /// piece in its block.
    fn may_begin_message(&self, piece: &Block<'_>, lead: u32, cx: &StreamContext<'_, '_>) -> bool {
        let before = u32::from(self.length).saturating_sub(self.missing_bytes + piece.length());
        if before as usize >= HEADER_LENGTH {
            return true;
        }
        let mut header = [0; HEADER_LENGTH];
        let held = cx.held_blocks(&self.held).flat_map(|(_, held)| held.bytes());
        let held = held.skip(2usize.saturating_sub(lead as usize));
        let known =
            held.chain(piece.bytes()).zip(&mut header).map(|(byte, to)| *to = *byte).count();
        let message = Message::parse(&header).filter(|_| known == HEADER_LENGTH);
        let length = self.length.into();
        message.is_none_or(|message| {
            message.is_likely_dns(length) || message.counts_fit_length(length)
        })
    }

    /// Emits the held pieces as a message of `length` bytes if they form one, otherwise without a
    /// class.
    fn emit_or_release_held_pieces(
        &mut self,
        length: usize,
        buf: &mut Vec<u8>,
        cx: &mut StreamContext<'_, '_>,
    ) {
        let mut lead = if self.is_recognized == 0 { 2 } else { 0 };
        buf.clear();
        buf.extend(
            cx.held_blocks(&self.held).flat_map(|(_, piece)| piece.bytes()).skip(lead as usize),
        );
        let Some((_, block)) = cx.front_block(&self.held) else { return };
        match describe(ReceivedMessage { block, raw: buf, length }, cx) {
            Ok((class, description)) => {
                self.is_recognized = 1;
                let mut flags = emit_description(description, cx);
                while let Some((_, piece)) = cx.front_block(&self.held) {
                    if piece.length() <= lead {
                        cx.consume_front_block(&mut self.held);
                        lead -= piece.length();
                        continue;
                    }
                    let last = self.held.len() == 1;
                    flags = if last { flags.with(BlockFlags::LAST) } else { flags };
                    cx.release_front_block(&mut self.held, |piece| {
                        into_fragment(piece.narrow(lead, u32::MAX), class, flags)
                    });
                    (flags, lead) = (BlockFlags::NONE, 0);
                }
            }
            Err(why) => {
                if self.is_recognized == 0 && why == NOT_DNS {
                    self.direction_fault = why.to_code();
                }
                self.release_held_pieces(why, cx);
            }
        }
    }

    /// Emits the held pieces without a class. Counts each of them under the reason `why`.
    fn release_held_pieces(&mut self, why: Reason, cx: &mut StreamContext<'_, '_>) {
        while !self.held.is_empty() {
            let class = cx.answer_absent(why);
            cx.release_front_block(&mut self.held, |piece| into_standalone_message(piece, class));
        }
    }
}

/// Returns true if `bytes`, which follow a gap, almost certainly begin with a message: with a
/// length field and a plausible header. If the message is complete, its contents must also match
/// the header.
fn is_message_start(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_first_chunk() else { return false };
    let length = usize::from(u16::from_be_bytes(*length));
    let message = rest.get(..length).unwrap_or(rest);
    let likely = Message::parse(message).filter(|message| message.is_likely_dns(length));
    likely.is_some_and(|likely| message.len() < length || likely.is_exactly_one_message())
}

/// A block that is split into pieces, from front to back. The first emitted or held piece counts as
/// the block itself; the others count as new blocks.
struct BlockSplitter<'a> {
    block: Block<'a>,
    /// Offset of the next piece in the block.
    next_offset: u32,
    /// Number of bytes of a message's length field that directly precede the next piece and must be
    /// held together with it. Nonzero only before the first message of the direction is recognized.
    leading_length_bytes: u32,
    /// True after the first piece has been emitted or held.
    has_emitted: bool,
}

impl<'a> BlockSplitter<'a> {
    /// Returns the next piece of the block, of at most `length` bytes. Only the last piece keeps
    /// the end-of-session flag of the block.
    fn next_piece(&mut self, length: u32) -> Block<'a> {
        let mut piece = self.block.narrow(self.next_offset, length);
        self.next_offset += piece.length();
        if self.next_offset < self.block.length() {
            piece.context.flags = piece.context.flags.without(BlockFlags::SESSION_END_MASK);
        }
        piece
    }

    /// Moves the next offset back by `length` bytes, so that the next piece includes these bytes
    /// again.
    fn step_back(&mut self, length: u32) {
        self.next_offset = self.next_offset.saturating_sub(length);
    }

    fn emit_piece(&mut self, piece: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        cx.emit_block_part(piece, &mut self.has_emitted);
    }
}
