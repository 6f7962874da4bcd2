//! Parsing at the start of messages: protocol detection, and heads that arrive in one or several
//! pieces.

use super::options::Emit;
use super::state::{HttpDirection, Phase, Protocol};
use super::walk::Walk;
use super::why;
use wire::http::{
    Body, Fields, Guess, Head, HeadError, HeadSearch, ParseMode, Start, guess_protocol,
    method_number,
};

/// Class of a response whose status is not a number from 100 to 999.
const NO_STATUS: u32 = 999;
/// Maximum number of stray bytes before a response in which the parser searches for its head.
const JUNK_MAX: usize = 256;
/// Number of bytes at the start of a connection that suffice to detect its protocol.
const GUESS_SIZE: usize = 32;

impl Walk<'_, '_, '_> {
    /// Handles bytes at a position where a message is expected.
    pub(super) fn handle_message_start(&mut self) {
        let lost = self.direction().phase() == Phase::Lost;
        if !lost {
            // Skips empty lines between messages.
            let line_end = |byte: &&u8| matches!(byte, b'\r' | b'\n');
            self.at += self.rest().iter().take_while(line_end).count() as u32;
        }
        let rest = self.rest();
        if rest.is_empty() {
            return;
        }
        if self.it.protocol().is_none() && !self.may_be_http(rest) {
            return;
        }
        match self.parse_head(rest) {
            Ok(head) => {
                self.cx.count(why::FOUND_AGAIN, u64::from(lost && self.it.protocol().is_some()));
                let (from, to) = (self.at + head.begin as u32, self.at + head.end as u32);
                self.begin_message(&head, from, to);
            }
            Err(HeadError::Incomplete) if !lost || is_certain_start(rest) => {
                let mut seek = HeadSearch::default();
                // The end of a head may need one more byte to be certain, so the search for it
                // starts after all of this.
                let _ = seek.ends_in(rest);
                self.hold_head(rest.len(), seek);
            }
            Err(HeadError::Incomplete) => self.pass_rest(),
            Err(HeadError::Fault(_)) if self.may_be_headless() => self.handle_headless(),
            Err(HeadError::Fault(_)) => self.handle_fault(),
        }
    }

    /// Returns true if bytes that do not begin with a head may still belong to a response: in
    /// lenient mode, at the start of a direction, while a request is pending.
    fn may_be_headless(&self) -> bool {
        let lenient = self.options.mode == ParseMode::Lenient;
        let first = self.it.directions[self.direction].phase() == Phase::New;
        lenient && first && !self.is_requests() && self.pending_request().is_some()
    }

    /// Handles a response that begins with stray lines before its head, or an HTTP/0.9 response,
    /// which is a body without a head and ends with the connection.
    fn handle_headless(&mut self) {
        let rest = self.rest();
        let within = rest.get(..JUNK_MAX).unwrap_or(rest);
        let starts =
            |at: &usize| within.get(*at..).is_some_and(|rest| rest.starts_with(b"HTTP/1."));
        let ends = memchr::memchr2_iter(b'\n', b'\r', within).map(|end| end + 1);
        if let Some(start) = { ends }.find(starts) {
            let junk = self.block.narrow(self.at, start as u32);
            let class = self.cx.absent(why::MALFORMED);
            self.emit(junk.with_class(class));
            self.at += start as u32;
            self.direction().enter(Phase::Between);
            return;
        }
        let start = Start::Response { status: 0, reason: &[] };
        let fields = Fields::default();
        let head =
            Head { begin: 0, end: 0, start, version: &[], is_persistent_version: false, fields };
        self.begin_message(&head, self.at, self.at);
    }

    /// Returns true if the first bytes of a direction may be HTTP/1, and derives from them which
    /// direction carries requests. If it returns false, it has emitted the bytes without a class.
    pub(super) fn may_be_http(&mut self, rest: &[u8]) -> bool {
        let lost = self.direction().phase() == Phase::Lost;
        match guess_protocol(rest) {
            Guess::Request => self.it.flipped = u8::from(self.direction == 1),
            Guess::Response => self.it.flipped = u8::from(self.direction == 0),
            Guess::TooShort if !lost => {}
            Guess::Tls => return self.reject_protocol(Protocol::Tls),
            Guess::Http2 => return self.reject_protocol(Protocol::Http2),
            Guess::TooShort | Guess::Other => return self.reject_protocol(Protocol::Other),
        }
        true
    }

    /// Stops parsing a direction that is not HTTP/1, and always returns false. A recognized
    /// protocol also stops the other direction. An unrecognized protocol stops the other direction
    /// only if that direction does not parse either. A direction that lost its framing continues
    /// after an unrecognized protocol, because HTTP/1 may still follow.
    pub(super) fn reject_protocol(&mut self, protocol: Protocol) -> bool {
        let lost = self.direction().phase() == Phase::Lost;
        self.release_held(self.direction, why::NOT_HTTP);
        if protocol != Protocol::Other || !lost {
            self.direction().enter(Phase::Other);
        }
        let other = self.it.directions[1 - self.direction].phase() == Phase::Other;
        if protocol != Protocol::Other || (other && !lost) {
            self.it.kind = protocol.number();
            self.release_held(1 - self.direction, why::NOT_HTTP);
            self.it.directions.iter_mut().for_each(|direction| direction.enter(Phase::Other));
        }
        self.pass_rest();
        false
    }

    fn parse_head<'t>(&self, text: &'t [u8]) -> Result<Head<'t>, HeadError> {
        let mode = self.options.mode;
        match self.is_requests() {
            true => Head::request(text, mode),
            false => Head::response(text, mode),
        }
    }

    /// Holds the rest of the block as a piece of an incomplete head.
    fn hold_head(&mut self, length: usize, seek: HeadSearch) {
        let gathered = self.direction().gathered.saturating_add(length as u32);
        if gathered as usize > self.options.head {
            return self.handle_fault();
        }
        let direction = self.direction();
        direction.enter(Phase::Head);
        direction.seek = seek.number();
        direction.gathered = gathered;
        if !self.hold_rest() {
            // No memory to hold it: the message that it begins is lost.
            self.lose_framing();
            self.at = self.block.length();
        }
    }

    /// Holds the rest of the block. Returns false if no memory is left.
    pub(super) fn hold_rest(&mut self) -> bool {
        let piece = self.block.narrow(self.at, u32::MAX);
        self.at = self.block.length();
        self.cx.hold_part(&mut self.it.directions[self.direction].held, &piece, &mut self.emitted)
    }

    /// Continues a head whose earlier pieces are held.
    pub(super) fn continue_head(&mut self) {
        let rest = self.rest();
        let mut seek = HeadSearch::from_number(self.direction().seek);
        let ends = seek.ends_in(rest);
        let undecided =
            self.it.protocol().is_none() && (self.direction().gathered as usize) < GUESS_SIZE;
        if !ends && !undecided {
            return self.hold_head(rest.len(), seek);
        }
        let mut text = std::mem::take(self.text);
        self.cx.gather(&self.it.directions[self.direction].held, &mut text);
        let before = text.len();
        text.extend_from_slice(rest);
        if self.it.protocol().is_some() || self.may_be_http(&text) {
            match self.parse_head(&text) {
                Ok(head) => {
                    let to = self.at + head.end.saturating_sub(before) as u32;
                    self.begin_message(&head, self.at, to);
                }
                Err(HeadError::Incomplete) => self.hold_head(rest.len(), seek),
                Err(HeadError::Fault(_)) => self.handle_fault(),
            }
        }
        *self.text = text;
    }

    /// Ends a direction that broke off within a head. If the start line is complete, emits a
    /// description with the start line and the complete header fields, marked as incomplete and
    /// without a body (RFC 9112 §8).
    pub(super) fn end_within_head(&mut self) {
        let mut text = std::mem::take(self.text);
        self.cx.gather(&self.it.directions[self.direction].held, &mut text);
        let length = text.len();
        text.truncate(memchr::memrchr(b'\n', &text).map_or(0, |end| end + 1));
        text.extend_from_slice(b"\r\n");
        if self.it.protocol().is_some() || self.may_be_http(&text) {
            match self.parse_head(&text).ok().filter(|head| !head.version.is_empty()) {
                Some(head) => {
                    let head = Head { end: length, ..head };
                    self.open_message(&head, Body::default(), true);
                    self.emit_head(self.at, self.at);
                    self.finish_message();
                }
                None => {
                    self.cx.count(why::INCOMPLETE_MESSAGES, 1);
                    self.release_held(self.direction, why::CUT);
                }
            }
        }
        *self.text = text;
    }

    /// Begins a message whose head ends in this block: the range `from..to` is the last piece of
    /// the head.
    pub(super) fn begin_message(&mut self, head: &Head<'_>, from: u32, to: u32) {
        if head.is_preface() {
            // The response that accepted the switch was not observed.
            self.release_held(self.direction, why::SWITCHED);
            return self.switch_protocol();
        }
        let mode = self.options.mode;
        let body = match head.start {
            Start::Request { .. } => match Body::after_request_head(head, mode) {
                Ok(body) => body,
                Err(_) => return self.handle_fault(),
            },
            Start::Response { .. } => Body::after_response_head(head, self.request_method(), mode),
        };
        self.open_message(head, body, false);
        self.emit_head(from, to);
        if body.has_ended() || body.is_switched() {
            self.finish_message();
        }
    }

    /// Stores the message as the open one and emits its description. `broken` means that the
    /// message broke off within its head.
    fn open_message(&mut self, head: &Head<'_>, body: Body, broken: bool) {
        self.it.kind = Protocol::Http1.number();
        let other = &mut self.it.directions[1 - self.direction];
        if other.phase() == Phase::Other {
            other.enter(Phase::Lost);
        }
        let decodes = self.options.decode && self.options.emit != Emit::Head;
        let strict = self.options.mode == ParseMode::Strict;
        let direction = self.direction();
        *direction = HttpDirection {
            body,
            class: head_class(head),
            broken: broken.into(),
            codings: if decodes { head.fields.codings.number() } else { 0 },
            state: Phase::Body as u8,
            closes: u8::from(strict && !head.persists()),
            begun: 1,
            held: direction.held,
            gathered: direction.gathered,
            ..HttpDirection::default()
        };
        if self.is_requests() {
            self.it.may_switch = u8::from(head.may_switch());
        }
        self.cx.count(why::AMBIGUOUS_LENGTHS, head.fields.ambiguous.into());
        let bodiless = body.has_ended() || body.is_switched();
        let alone = self.options.emit == Emit::Body && bodiless;
        self.direction().owes = u8::from(!alone);
        self.describe(head, alone);
    }
}

/// Returns the class of the message with this head.
fn head_class(head: &Head<'_>) -> u32 {
    match head.start {
        Start::Request { number, .. } => number.into(),
        Start::Response { status, .. } if (100..1000).contains(&status) => status.into(),
        Start::Response { .. } => NO_STATUS,
    }
}

/// Returns true if `rest`, bytes after lost framing, certainly begins with a head.
pub(super) fn is_certain_start(rest: &[u8]) -> bool {
    match guess_protocol(rest) {
        Guess::Request => {
            let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(0);
            method_number(rest.get(..end).unwrap_or_default()) != method_number(b"")
        }
        Guess::Response => true,
        Guess::TooShort | Guess::Http2 | Guess::Tls | Guess::Other => false,
    }
}
