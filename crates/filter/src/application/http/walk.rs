//! The main loop of `http`, which assigns the bytes of one block to messages.
//!
//! Input: the state of the connection, and the block. Output: fragments. The block itself becomes
//! the first fragment, so only the description is allocated for a message that is contained in one
//! block.

use super::decode::BodyDecoder;
use super::heads::is_certain_message_start;
use super::options::{EmittedParts, Options};
use super::reasons;
use super::state::{HttpConnection, HttpDirection, Phase, Protocol};
use crate::prelude::*;
use wire::http::{BodyPart, ContentCodings};

/// A pass over the bytes of one block, with the state of the block's connection.
pub(super) struct BlockWalk<'w, 'c, 'a> {
    pub(super) options: &'w Options,
    pub(super) head_buffer: &'w mut Vec<u8>,
    pub(super) decoder: &'w mut BodyDecoder,
    pub(super) cx: &'w mut StreamContext<'c, 'a>,
    pub(super) connection: &'w mut HttpConnection,
    pub(super) block: Block<'a>,
    /// Direction of the block: 0 forward, 1 backward.
    pub(super) direction: usize,
    /// Number of bytes of the block processed so far.
    pub(super) offset: u32,
    /// Start offset of the fragment that has not been emitted yet, or `None` if there is no such
    /// fragment.
    pub(super) fragment_start: Option<u32>,
    /// True after a part of the block has been emitted or held; later parts are emitted as new
    /// blocks.
    pub(super) has_emitted: bool,
}

/// Converts a block to a hole of the same length.
pub(super) fn into_hole(block: Block<'_>) -> Block<'_> {
    let pointer = RichPointer::hole(block.length());
    let marks =
        Marks::for_plain_block(block.length()).with_section_ticket(block.marks.section_ticket());
    Block { pointer, frame: &[], marks, context: block.context }
}

/// Returns a hole of length 0 with the end flag, for a direction that ended without a FIN.
pub(super) fn make_end_hole<'a>(key: u64, direction: usize, now: Time) -> Block<'a> {
    let back = if direction == 1 { BlockFlags::BACKWARD } else { BlockFlags::NONE };
    let context = BlockMetadata {
        time: now,
        session: u32::try_from(key).unwrap_or_default(),
        origin: 0,
        flags: back.with(BlockFlags::SESSION_END_MASK),
    };
    Block { pointer: RichPointer::hole(0), frame: &[], marks: Marks::for_plain_block(0), context }
}

impl<'w, 'c, 'a> BlockWalk<'w, 'c, 'a> {
    pub(super) fn new(
        options: &'w Options,
        head_buffer: &'w mut Vec<u8>,
        decoder: &'w mut BodyDecoder,
        cx: &'w mut StreamContext<'c, 'a>,
        connection: &'w mut HttpConnection,
        block: Block<'a>,
    ) -> Self {
        let direction = usize::from(block.context.flags.contains(BlockFlags::BACKWARD));
        Self {
            options,
            head_buffer,
            decoder,
            cx,
            connection,
            block,
            direction,
            offset: 0,
            fragment_start: None,
            has_emitted: false,
        }
    }

    /// Processes all bytes of the block: assigns them to messages, or passes them without a class
    /// if they belong to no message. Ends the direction if the block has the flag `END`.
    pub(super) fn process_block(mut self) {
        let first = self.block.context.flags.contains(BlockFlags::FIRST);
        let length = self.block.length();
        if length > 0 && self.direction().has_begun == 0 {
            let direction = self.direction();
            direction.has_begun = 1;
            if !first {
                direction.enter_phase(Phase::FramingLost);
                if self.block.pointer.is_hole() || !is_certain_message_start(self.block.bytes()) {
                    self.note_lost_messages();
                }
            }
        }
        if self.block.pointer.is_hole() {
            self.handle_hole();
        } else {
            while self.offset < length {
                match self.direction().phase() {
                    Phase::New
                    | Phase::BetweenMessages
                    | Phase::FramingLost
                    | Phase::LostAtLineStart => self.parse_message_start(),
                    Phase::InHead => self.resume_head_parsing(),
                    Phase::InBody => self.advance_body(),
                    _ => self.pass_rest_of_block(),
                }
            }
        }
        if self.block.context.flags.contains(BlockFlags::SESSION_END) {
            self.end_direction();
        }
        self.flush_fragment(false);
        if !self.has_emitted {
            self.cx.consume(&self.block);
        }
    }

    /// Ends a direction of a connection that is being released. Does not emit the block, which only
    /// carries the end flag.
    pub(super) fn end_released_direction(mut self) {
        self.has_emitted = true;
        self.end_direction();
        self.flush_fragment(false);
    }

    pub(super) fn direction(&mut self) -> &mut HttpDirection {
        let [one, other] = &mut self.connection.directions;
        if self.direction == 0 { one } else { other }
    }

    /// Returns true if requests flow in this direction.
    pub(super) fn carries_requests(&self) -> bool {
        self.direction == usize::from(self.connection.requests_flow_backward)
    }

    pub(super) fn unprocessed_bytes(&self) -> &'a [u8] {
        self.block.bytes().get(self.offset as usize..).unwrap_or_default()
    }

    /// Advances the body of the open message over the next bytes of one kind: body data, or framing
    /// such as chunk sizes. Emits, holds or omits these bytes. Ends the message if its body ends,
    /// or if the framing is malformed.
    fn advance_body(&mut self) {
        let rest = self.unprocessed_bytes();
        let at = self.offset;
        let mut body = self.direction().body;
        let taken = body.take_prefix(rest);
        self.direction().body = body;
        match taken {
            Ok(BodyPart::Data(length)) => {
                self.offset += length as u32;
                let direction = self.direction();
                direction.observed_bytes = direction.observed_bytes.saturating_add(length as u64);
                self.emit_body_bytes(at, body.has_ended());
            }
            Ok(BodyPart::Framing(length)) => {
                self.offset += length as u32;
                if self.options.emit == EmittedParts::Message && self.direction().codings == 0 {
                    self.fragment_start.get_or_insert(at);
                }
            }
            Ok(BodyPart::End) => {}
            Err(_) => {
                self.direction().is_broken = 1;
                self.finish_message();
                return self.handle_syntax_error();
            }
        }
        if body.has_ended() || taken == Ok(BodyPart::End) {
            self.finish_message();
        }
    }

    /// Ends the open message: decodes its body if it is coded, emits the last fragment if that is
    /// still to be emitted, updates the counters, and ends the request or the response.
    pub(super) fn finish_message(&mut self) {
        if self.direction().codings != 0 {
            self.decode_body();
        }
        if self.direction().owes_last_fragment != 0 {
            self.fragment_start.get_or_insert(self.offset);
            self.flush_fragment(true);
        }
        let (missing, broken) = (self.direction().missing_bytes, self.direction().is_broken);
        self.cx.count(reasons::MISSING_BYTES, missing.into());
        self.cx.count(reasons::INCOMPLETE_MESSAGES, broken.into());
        let switched = self.direction().body.switches_protocol();
        match self.carries_requests() {
            true => self.end_request(),
            false => self.end_response(),
        }
        let closes = self.direction().closes_connection != 0;
        self.direction().enter_phase(if closes { Phase::Closed } else { Phase::BetweenMessages });
        if switched {
            self.mark_protocol_switched();
        }
    }

    /// Records that both directions have switched to another protocol, except a direction that is
    /// within a body or has ended.
    pub(super) fn mark_protocol_switched(&mut self) {
        for direction in 0..2 {
            if self.connection.directions[direction].phase() == Phase::InHead {
                self.release_held_head(direction, reasons::PROTOCOL_SWITCHED);
            }
            if !matches!(
                self.connection.directions[direction].phase(),
                Phase::InBody | Phase::Ended
            ) {
                self.connection.directions[direction].enter_phase(Phase::Switched);
            }
        }
    }

    /// Handles a syntax error. If no message of the connection has been recognized yet, treats the
    /// direction as not HTTP/1. If the error is in the request direction and the last request may
    /// switch protocols, marks the direction as switched. Otherwise enters [`Phase::FramingLost`]
    /// and skips to the next possible start of a message.
    pub(super) fn handle_syntax_error(&mut self) {
        let may_switch = self.connection.may_switch != 0 && self.carries_requests();
        if self.connection.protocol().is_none() {
            self.reject_protocol(Protocol::Other);
            return;
        }
        if may_switch {
            self.release_held_head(self.direction, reasons::PROTOCOL_SWITCHED);
            self.direction().enter_phase(Phase::Switched);
            return self.pass_rest_of_block();
        }
        let lost = self.direction().phase().is_lost();
        // The violation may be in an earlier block, and a message may begin here.
        let before =
            self.offset == 0 && !self.connection.directions[self.direction].held.is_empty();
        self.release_held_head(self.direction, reasons::MALFORMED);
        if lost {
            return self.skip_to_next_message_start(reasons::MESSAGE_START_LOST);
        }
        self.enter_framing_lost();
        if before && is_certain_message_start(self.unprocessed_bytes()) {
            return;
        }
        self.skip_to_next_message_start(reasons::MALFORMED);
    }

    /// Enters [`Phase::FramingLost`]. In the response direction, also ends all pending requests,
    /// because later responses cannot be paired with them.
    pub(super) fn enter_framing_lost(&mut self) {
        self.release_held_head(self.direction, reasons::MESSAGE_START_LOST);
        self.direction().enter_phase(Phase::FramingLost);
        if self.connection.protocol().is_some() && !self.carries_requests() {
            self.drop_pending_requests();
        }
    }

    /// Handles a hole. Its bytes within the open message's body count as missing. If the body is
    /// coded, abandons the decoding. If the hole extends beyond the body, or if no body is open,
    /// the start of the next message is unknown, and the rest of the hole is emitted without a
    /// class.
    fn handle_hole(&mut self) {
        let length = self.block.length();
        if length == 0 {
            return;
        }
        if self.direction().phase() == Phase::InBody {
            if self.direction().codings != 0 {
                self.abandon_decoding();
            }
            let mut body = self.direction().body;
            let missed = body.skip_missing_bytes(length.into()) as u32;
            self.direction().body = body;
            self.direction().missing_bytes = self.direction().missing_bytes.saturating_add(missed);
            self.offset = missed;
            if missed > 0 {
                self.emit_body_bytes(0, body.has_ended());
            }
            if missed == length && !body.has_ended() {
                return;
            }
            self.direction().is_broken = u8::from(!body.has_ended());
            self.finish_message();
        }
        if self.offset < length {
            self.note_lost_messages();
            if matches!(
                self.direction().phase(),
                Phase::New | Phase::BetweenMessages | Phase::InHead | Phase::LostAtLineStart
            ) {
                self.enter_framing_lost();
            }
            self.pass_rest_of_block();
        }
    }

    /// Ends the current direction, including a message in it that is still incomplete. If both
    /// directions have ended, also ends all pending requests.
    fn end_direction(&mut self) {
        match self.direction().phase() {
            Phase::InBody => {
                // Only the sender's FIN proves that a body without length is complete.
                let has_fin = !self.block.context.flags.contains(BlockFlags::BROKEN);
                let whole = has_fin && self.direction().body.ends_with_connection();
                self.direction().is_broken = u8::from(!whole);
                self.finish_message();
            }
            Phase::InHead => self.end_direction_within_head(),
            _ => {}
        }
        self.direction().enter_phase(Phase::Ended);
        if self.connection.directions.iter().all(|direction| direction.phase() == Phase::Ended) {
            self.drop_pending_requests();
        }
    }

    /// Returns true if the open body has ended.
    pub(super) fn body_has_ended(&self) -> bool {
        self.connection.directions[self.direction].body.has_ended()
    }

    /// Returns the content codings of the open body.
    pub(super) fn content_codings(&mut self) -> ContentCodings {
        ContentCodings::from_number(self.direction().codings)
    }
}
