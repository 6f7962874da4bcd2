//! Parsing at the start of messages: protocol detection, and heads that arrive in one or several
//! pieces.

use super::options::EmittedParts;
use super::reasons;
use super::state::{HttpDirection, Phase, Protocol};
use super::walk::BlockWalk;
use wire::http::{
    Body, EvaluatedFields, Head, HeadError, HeadSearch, ParseMode, ProtocolGuess, StartLine,
    guess_protocol, method_number,
};

/// Class of a response whose status is not a number from 100 to 999.
const INVALID_STATUS_CLASS: u32 = 999;
/// Maximum number of stray bytes that may precede the head of a response.
const STRAY_BYTES_MAX: usize = 256;
/// Number of bytes at the start of a connection that suffice to detect its protocol.
const DETECTION_SIZE: usize = 32;

impl BlockWalk<'_, '_, '_> {
    /// Parses the head at the current offset, where a message should begin. Begins the message if
    /// the head is complete, and holds the bytes if they may be the beginning of a head. Otherwise
    /// handles the bytes as a response without a head if they may be one, or else emits bytes
    /// without a class up to the next possible start of a message.
    pub(super) fn parse_message_start(&mut self) {
        if self.direction().phase() == Phase::LostAtLineStart && !self.try_resume_at_current_line()
        {
            return;
        }
        let lost = self.direction().phase().is_lost();
        if !lost {
            // Skips empty lines between messages.
            let line_end = |byte: &&u8| matches!(byte, b'\r' | b'\n');
            self.offset += self.unprocessed_bytes().iter().take_while(line_end).count() as u32;
        }
        let rest = self.unprocessed_bytes();
        if rest.is_empty() {
            return;
        }
        if self.connection.protocol().is_none() && !self.detect_http(rest) {
            return;
        }
        match self.parse_head(rest) {
            Ok(head) => {
                self.cx.count(
                    reasons::MESSAGES_FOUND_AGAIN,
                    u64::from(lost && self.connection.protocol().is_some()),
                );
                let (from, to) = (self.offset + head.begin as u32, self.offset + head.end as u32);
                self.begin_message(&head, from, to);
            }
            Err(HeadError::Incomplete) if !lost || is_certain_message_start(rest) => {
                let mut seek = HeadSearch::default();
                // The end of the head was not found in these bytes, so the search continues in the
                // next block.
                let _ = seek.may_end_in(rest);
                self.hold_head_piece(rest.len(), seek);
            }
            Err(HeadError::Incomplete) => {
                self.skip_to_next_message_start(reasons::MESSAGE_START_LOST)
            }
            Err(HeadError::Fault(_)) if self.may_be_headless_response() => {
                self.handle_headless_response()
            }
            Err(HeadError::Fault(_)) => self.handle_syntax_error(),
        }
    }

    /// Returns true if bytes without a head may still belong to a response. This requires that the
    /// parser is lenient, that a request is pending, and that no earlier bytes of the direction
    /// were observed.
    fn may_be_headless_response(&self) -> bool {
        let lenient = self.options.mode == ParseMode::Lenient;
        let first = self.connection.directions[self.direction].phase() == Phase::New;
        lenient && first && !self.carries_requests() && self.pending_request().is_some()
    }

    /// Handles the first bytes of the response direction if no head begins there. They may be stray
    /// lines before a head, which are emitted without a class. Otherwise they are an HTTP/0.9
    /// response, which has no head and ends with the connection.
    fn handle_headless_response(&mut self) {
        let rest = self.unprocessed_bytes();
        let within = rest.get(..STRAY_BYTES_MAX).unwrap_or(rest);
        let starts =
            |at: &usize| within.get(*at..).is_some_and(|rest| rest.starts_with(b"HTTP/1."));
        let ends = memchr::memchr2_iter(b'\n', b'\r', within).map(|end| end + 1);
        if let Some(start) = { ends }.find(starts) {
            let junk = self.block.narrow(self.offset, start as u32);
            let class = self.cx.answer_absent(reasons::MALFORMED);
            self.emit_piece(junk.with_class(class));
            self.offset += start as u32;
            self.direction().enter_phase(Phase::BetweenMessages);
            return;
        }
        let start = StartLine::Response { status: 0, reason: &[] };
        let fields = EvaluatedFields::default();
        let head =
            Head { begin: 0, end: 0, start, version: &[], is_persistent_version: false, fields };
        self.begin_message(&head, self.offset, self.offset);
    }

    /// Returns true if `rest`, the first bytes of a direction, may be HTTP/1, and records which
    /// direction carries requests. Otherwise emits the bytes from the current offset without a
    /// class, up to the next possible start of a message or to the end of the block, and returns
    /// false.
    pub(super) fn detect_http(&mut self, rest: &[u8]) -> bool {
        let lost = self.direction().phase().is_lost();
        match guess_protocol(rest) {
            ProtocolGuess::Request => {
                self.connection.requests_flow_backward = u8::from(self.direction == 1)
            }
            ProtocolGuess::Response => {
                self.connection.requests_flow_backward = u8::from(self.direction == 0)
            }
            ProtocolGuess::TooShort if !lost => {}
            ProtocolGuess::Tls => return self.reject_protocol(Protocol::Tls),
            ProtocolGuess::Http2 => return self.reject_protocol(Protocol::Http2),
            ProtocolGuess::Other if !lost && self.skip_leading_header_lines(rest) => return false,
            ProtocolGuess::TooShort | ProtocolGuess::Other if lost => {
                self.skip_to_next_message_start(reasons::MESSAGE_START_LOST);
                return false;
            }
            ProtocolGuess::TooShort | ProtocolGuess::Other => {
                return self.reject_protocol(Protocol::Other);
            }
        }
        true
    }

    /// Stops parsing the current direction, which has turned out not to be HTTP/1. Emits the rest
    /// of the block without a class, and returns false.
    ///
    /// If `protocol` is a recognized protocol, stores it for the connection and stops parsing both
    /// directions. For [`Protocol::Other`], stops parsing only this direction, and stores `Other`
    /// once both have stopped. A direction that lost its framing is not stopped then, because
    /// HTTP/1 may follow.
    pub(super) fn reject_protocol(&mut self, protocol: Protocol) -> bool {
        let lost = self.direction().phase().is_lost();
        self.release_held_head(self.direction, reasons::NOT_HTTP);
        if protocol != Protocol::Other || !lost {
            self.direction().enter_phase(Phase::OtherProtocol);
        }
        let other = self.connection.directions[1 - self.direction].phase() == Phase::OtherProtocol;
        if protocol != Protocol::Other || (other && !lost) {
            self.connection.protocol_number = protocol.stored_number();
            self.release_held_head(1 - self.direction, reasons::NOT_HTTP);
            self.connection
                .directions
                .iter_mut()
                .for_each(|direction| direction.enter_phase(Phase::OtherProtocol));
        }
        self.pass_rest_of_block();
        false
    }

    fn parse_head<'t>(&self, text: &'t [u8]) -> Result<Head<'t>, HeadError> {
        let mode = self.options.mode;
        match self.carries_requests() {
            true => Head::parse_request(text, mode),
            false => Head::parse_response(text, mode),
        }
    }

    /// Holds the rest of the block as a piece of an incomplete head. Treats a head that becomes too
    /// long as a syntax error. If the piece cannot be held, enters [`Phase::FramingLost`].
    fn hold_head_piece(&mut self, length: usize, seek: HeadSearch) {
        let gathered = self.direction().held_bytes.saturating_add(length as u32);
        if gathered as usize > self.options.head_max {
            return self.handle_syntax_error();
        }
        let direction = self.direction();
        direction.enter_phase(Phase::InHead);
        direction.head_search = seek.number();
        direction.held_bytes = gathered;
        if !self.hold_rest_of_block() {
            // The head cannot be held, so its message is lost.
            self.enter_framing_lost();
            self.offset = self.block.length();
        }
    }

    /// Holds the rest of the block. Returns false if it cannot be held, because a limit on held
    /// blocks is reached or memory runs out.
    pub(super) fn hold_rest_of_block(&mut self) -> bool {
        let piece = self.block.narrow(self.offset, u32::MAX);
        self.offset = self.block.length();
        self.cx.hold_block_part(
            &mut self.connection.directions[self.direction].held,
            &piece,
            &mut self.has_emitted,
        )
    }

    /// Continues the parsing of a head whose earlier pieces are held.
    pub(super) fn resume_head_parsing(&mut self) {
        let rest = self.unprocessed_bytes();
        let mut seek = HeadSearch::from_number(self.direction().head_search);
        let ends = seek.may_end_in(rest);
        let undecided = self.connection.protocol().is_none()
            && (self.direction().held_bytes as usize) < DETECTION_SIZE;
        if !ends && !undecided {
            return self.hold_head_piece(rest.len(), seek);
        }
        let mut text = std::mem::take(self.head_buffer);
        self.cx.gather_views(&self.connection.directions[self.direction].held, &mut text);
        let before = text.len();
        text.extend_from_slice(rest);
        if self.connection.protocol().is_some() || self.detect_http(&text) {
            match self.parse_head(&text) {
                Ok(head) => {
                    let to = self.offset + head.end.saturating_sub(before) as u32;
                    self.begin_message(&head, self.offset, to);
                }
                Err(HeadError::Incomplete) => self.hold_head_piece(rest.len(), seek),
                Err(HeadError::Fault(_)) => self.handle_syntax_error(),
            }
        }
        *self.head_buffer = text;
    }

    /// Ends a direction that broke off within a head. If the start line is complete, emits a
    /// description that is marked as incomplete, with the start line and the header fields that
    /// arrived completely (RFC 9112 §8). Otherwise emits the held bytes without a class.
    pub(super) fn end_direction_within_head(&mut self) {
        let mut text = std::mem::take(self.head_buffer);
        self.cx.gather_views(&self.connection.directions[self.direction].held, &mut text);
        let length = text.len();
        text.truncate(memchr::memrchr(b'\n', &text).map_or(0, |end| end + 1));
        text.extend_from_slice(b"\r\n");
        if self.connection.protocol().is_some() || self.detect_http(&text) {
            match self.parse_head(&text).ok().filter(|head| !head.version.is_empty()) {
                Some(head) => {
                    let head = Head { end: length, ..head };
                    self.store_open_message(&head, Body::default(), true);
                    self.emit_head(self.offset, self.offset);
                    self.finish_message();
                }
                None => {
                    self.cx.count(reasons::INCOMPLETE_MESSAGES, 1);
                    self.release_held_head(self.direction, reasons::CUT);
                }
            }
        }
        *self.head_buffer = text;
    }

    /// Begins a message whose head ends in this block. The last piece of the head is the range
    /// `from..to` of the block.
    pub(super) fn begin_message(&mut self, head: &Head<'_>, from: u32, to: u32) {
        if head.is_http2_preface() {
            // The response that accepted the switch was not observed.
            self.release_held_head(self.direction, reasons::PROTOCOL_SWITCHED);
            return self.mark_protocol_switched();
        }
        let mode = self.options.mode;
        let body = match head.start {
            StartLine::Request { .. } => match Body::after_request_head(head, mode) {
                Ok(body) => body,
                Err(_) => return self.handle_syntax_error(),
            },
            StartLine::Response { .. } => {
                Body::after_response_head(head, self.request_method(), mode)
            }
        };
        self.store_open_message(head, body, false);
        self.emit_head(from, to);
        if body.has_ended() || body.switches_protocol() {
            self.finish_message();
        }
    }

    /// Stores the message as the open message of its direction and emits its description. `broken`
    /// is true if the message broke off within its head.
    fn store_open_message(&mut self, head: &Head<'_>, body: Body, broken: bool) {
        self.connection.protocol_number = Protocol::Http1.stored_number();
        let other = &mut self.connection.directions[1 - self.direction];
        if other.phase() == Phase::OtherProtocol {
            other.enter_phase(Phase::FramingLost);
        }
        let decodes = self.options.decode && self.options.emit != EmittedParts::Head;
        let strict = self.options.mode == ParseMode::Strict;
        let direction = self.direction();
        *direction = HttpDirection {
            body,
            class: head_class(head),
            is_broken: broken.into(),
            codings: if decodes { head.fields.codings.number() } else { 0 },
            phase_number: Phase::InBody as u8,
            closes_connection: u8::from(strict && !head.is_persistent()),
            has_begun: 1,
            held: direction.held,
            held_bytes: direction.held_bytes,
            ..HttpDirection::default()
        };
        if self.carries_requests() {
            self.connection.may_switch = u8::from(head.may_switch_protocol());
        }
        self.cx.count(reasons::AMBIGUOUS_LENGTHS, head.fields.ambiguous.into());
        let bodiless = body.has_ended() || body.switches_protocol();
        let alone = self.options.emit == EmittedParts::Body && bodiless;
        self.direction().owes_last_fragment = u8::from(!alone);
        self.emit_description(head, alone);
    }
}

/// Returns the class of the message with this head.
fn head_class(head: &Head<'_>) -> u32 {
    match head.start {
        StartLine::Request { number, .. } => number.into(),
        StartLine::Response { status, .. } if (100..1000).contains(&status) => status.into(),
        StartLine::Response { .. } => INVALID_STATUS_CLASS,
    }
}

/// Returns true if `rest`, which follows a gap or syntax error, certainly begins with a head.
pub(super) fn is_certain_message_start(rest: &[u8]) -> bool {
    match guess_protocol(rest) {
        ProtocolGuess::Request => {
            let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(0);
            method_number(rest.get(..end).unwrap_or_default()) != method_number(b"")
        }
        ProtocolGuess::Response => true,
        ProtocolGuess::TooShort
        | ProtocolGuess::Http2
        | ProtocolGuess::Tls
        | ProtocolGuess::Other => false,
    }
}
