//! The main loop of `http`: assigns the bytes of one block to messages.
//!
//! Input: the state of the connection, and the block. Output: fragments. The block itself is
//! emitted as the first fragment, so that a message of one block allocates only its description.

use super::decode::BodyDecoder;
use super::heads::is_certain_start;
use super::options::{Emit, Options};
use super::state::{HttpConnection, HttpDirection, Phase, Protocol};
use super::why;
use crate::prelude::*;
use wire::http::{BodyPart, Codings};

/// A pass over one block, with the state of its connection.
pub(super) struct Walk<'w, 'c, 'a> {
    pub(super) options: &'w Options,
    pub(super) text: &'w mut Vec<u8>,
    pub(super) decoder: &'w mut BodyDecoder,
    pub(super) cx: &'w mut StreamContext<'c, 'a>,
    pub(super) it: &'w mut HttpConnection,
    pub(super) block: Block<'a>,
    /// Direction of the block.
    pub(super) direction: usize,
    /// Number of bytes of the block processed so far.
    pub(super) at: u32,
    /// Start offset of the open message's fragment that is not emitted yet.
    pub(super) open: Option<u32>,
    /// True after a part of the block was emitted or held; later parts are emitted as new blocks.
    pub(super) emitted: bool,
}

/// Converts a block to a hole of the same length, without bytes.
pub(super) fn into_hole(block: Block<'_>) -> Block<'_> {
    let pointer = RichPointer::hole(block.length());
    let marks = Marks::bare(block.length()).with_ticket(block.marks.ticket());
    Block { pointer, frame: &[], marks, context: block.context }
}

/// Returns an empty hole that marks the end of a direction that ended without a FIN.
pub(super) fn end_hole<'a>(key: u64, direction: usize, now: Time) -> Block<'a> {
    let back = if direction == 1 { Flags::BACKWARD } else { Flags::NONE };
    let context = BlockMetadata {
        time: now,
        session: u32::try_from(key).unwrap_or_default(),
        origin: 0,
        flags: back.with(Flags::END_MASK),
    };
    Block { pointer: RichPointer::hole(0), frame: &[], marks: Marks::bare(0), context }
}

impl<'w, 'c, 'a> Walk<'w, 'c, 'a> {
    pub(super) fn new(
        options: &'w Options,
        text: &'w mut Vec<u8>,
        decoder: &'w mut BodyDecoder,
        cx: &'w mut StreamContext<'c, 'a>,
        it: &'w mut HttpConnection,
        block: Block<'a>,
    ) -> Self {
        let direction = usize::from(block.context.flags.has(Flags::BACKWARD));
        Self { options, text, decoder, cx, it, block, direction, at: 0, open: None, emitted: false }
    }

    /// Assigns all bytes of the block to messages.
    pub(super) fn run(mut self) {
        let first = self.block.context.flags.has(Flags::FIRST);
        let length = self.block.length();
        if length > 0 && self.direction().begun == 0 {
            let direction = self.direction();
            direction.begun = 1;
            if !first {
                direction.enter(Phase::Lost);
            }
        }
        if self.block.pointer.is_hole() {
            self.handle_hole();
        } else {
            while self.at < length {
                match self.direction().phase() {
                    Phase::New | Phase::Between | Phase::Lost => self.handle_message_start(),
                    Phase::Head => self.continue_head(),
                    Phase::Body => self.handle_body(),
                    _ => self.pass_rest(),
                }
            }
        }
        if self.block.context.flags.has(Flags::END) {
            self.end_direction();
        }
        self.flush(false);
        if !self.emitted {
            self.cx.consume(&self.block);
        }
    }

    /// Ends a direction of a closed connection, and drops the block, which only carries the end
    /// flag.
    pub(super) fn close(mut self) {
        self.emitted = true;
        self.end_direction();
        self.flush(false);
    }

    pub(super) fn direction(&mut self) -> &mut HttpDirection {
        let [one, other] = &mut self.it.directions;
        if self.direction == 0 { one } else { other }
    }

    /// Returns true if requests flow in this direction.
    pub(super) fn is_requests(&self) -> bool {
        self.direction == usize::from(self.it.flipped)
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.block.bytes().get(self.at as usize..).unwrap_or_default()
    }

    /// Handles the bytes of a body.
    fn handle_body(&mut self) {
        let rest = self.rest();
        let at = self.at;
        let mut body = self.direction().body;
        let taken = body.take(rest);
        self.direction().body = body;
        match taken {
            Ok(BodyPart::Data(length)) => {
                self.at += length as u32;
                let direction = self.direction();
                direction.seen = direction.seen.saturating_add(length as u64);
                self.emit_data(at, body.has_ended());
            }
            Ok(BodyPart::Framing(length)) => {
                self.at += length as u32;
                if self.options.emit == Emit::Message && self.direction().codings == 0 {
                    self.open.get_or_insert(at);
                }
            }
            Ok(BodyPart::End) => {}
            Err(_) => {
                self.direction().broken = 1;
                self.finish_message();
                return self.handle_fault();
            }
        }
        if body.has_ended() || taken == Ok(BodyPart::End) {
            self.finish_message();
        }
    }

    /// Ends the open message.
    pub(super) fn finish_message(&mut self) {
        if self.direction().codings != 0 {
            self.decode();
        }
        if self.direction().owes != 0 {
            self.open.get_or_insert(self.at);
            self.flush(true);
        }
        let (missing, broken) = (self.direction().missing, self.direction().broken);
        self.cx.count(why::MISSING_BYTES, missing.into());
        self.cx.count(why::INCOMPLETE_MESSAGES, broken.into());
        let switched = self.direction().body.is_switched();
        match self.is_requests() {
            true => self.end_request(),
            false => self.end_response(),
        }
        let closes = self.direction().closes != 0;
        self.direction().enter(if closes { Phase::Closed } else { Phase::Between });
        if switched {
            self.switch_protocol();
        }
    }

    /// Switches both directions to another protocol.
    pub(super) fn switch_protocol(&mut self) {
        for direction in 0..2 {
            if self.it.directions[direction].phase() == Phase::Head {
                self.release_held(direction, why::SWITCHED);
            }
            if !matches!(self.it.directions[direction].phase(), Phase::Body | Phase::Ended) {
                self.it.directions[direction].enter(Phase::Switched);
            }
        }
    }

    /// Handles a syntax error. If the bytes show that the protocol was switched, switches;
    /// otherwise gives up the message framing.
    pub(super) fn handle_fault(&mut self) {
        let may_switch = self.it.may_switch != 0 && self.is_requests();
        if self.it.protocol().is_none() {
            self.reject_protocol(Protocol::Other);
            return;
        }
        if may_switch {
            self.release_held(self.direction, why::SWITCHED);
            self.direction().enter(Phase::Switched);
            return self.pass_rest();
        }
        let lost = self.direction().phase() == Phase::Lost;
        // The violation may be in an earlier block, and a message may begin here.
        let before = self.at == 0 && !self.it.directions[self.direction].held.is_empty();
        self.release_held(self.direction, why::MALFORMED);
        if lost {
            return self.pass_rest();
        }
        self.lose_framing();
        if before && is_certain_start(self.rest()) {
            return;
        }
        self.pass_unanswered(why::MALFORMED);
    }

    /// Abandons the message framing and, for responses, the pairing with requests. Exchanges whose
    /// requests are complete are emitted first; requests that are still open stay pending.
    pub(super) fn lose_framing(&mut self) {
        self.release_held(self.direction, why::LOST);
        self.direction().enter(Phase::Lost);
        if self.it.protocol().is_some() && !self.is_requests() {
            self.drop_pending();
        }
    }

    /// Handles a hole: bytes that were never captured.
    fn handle_hole(&mut self) {
        let length = self.block.length();
        if length == 0 {
            return;
        }
        if self.direction().phase() == Phase::Body {
            if self.direction().codings != 0 {
                self.give_up_decoding();
            }
            let mut body = self.direction().body;
            let missed = body.miss(length.into()) as u32;
            self.direction().body = body;
            self.direction().missing = self.direction().missing.saturating_add(missed);
            self.at = missed;
            if missed > 0 {
                self.emit_data(0, body.has_ended());
            }
            if missed == length && !body.has_ended() {
                return;
            }
            self.direction().broken = u8::from(!body.has_ended());
            self.finish_message();
        }
        if self.at < length {
            if matches!(self.direction().phase(), Phase::New | Phase::Between | Phase::Head) {
                self.lose_framing();
            }
            self.pass_rest();
        }
    }

    /// Ends the direction.
    fn end_direction(&mut self) {
        match self.direction().phase() {
            Phase::Body => {
                // Only the sender's FIN proves that a body without length is complete.
                let has_fin = !self.block.context.flags.has(Flags::BROKEN);
                let whole = has_fin && self.direction().body.ends_with_connection();
                self.direction().broken = u8::from(!whole);
                self.finish_message();
            }
            Phase::Head => self.end_within_head(),
            _ => {}
        }
        self.direction().enter(Phase::Ended);
        if self.it.directions.iter().all(|direction| direction.phase() == Phase::Ended) {
            self.drop_pending();
        }
    }

    /// Returns true if the open body has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.it.directions[self.direction].body.has_ended()
    }

    /// Returns the content codings of the open body.
    pub(super) fn codings(&mut self) -> Codings {
        Codings::from_number(self.direction().codings)
    }
}
