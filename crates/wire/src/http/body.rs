//! Tracker of message bodies (RFC 9112 §6, §7). A [`Body`] is plain data that advances over the
//! bytes after a head.

mod chunk;

use super::fault::HttpFault;
use super::head::Head;
use super::method::RequestMethod;
use super::mode::ParseMode;
use super::protocol_guess::{ProtocolGuess, guess_protocol};
use super::start_line::StartLine;
use memchr::memchr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The progress through a message body. A value of all zeros means that the body has ended.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Body {
    /// Number of remaining bytes in the body or chunk. While the digits of a chunk size are being
    /// read, the value of the digits so far.
    remaining: u64,
    /// State of the parser of the body, one of the constants of this module such as
    /// `IN_CHUNK_DATA`.
    state: u8,
    /// 1 in lenient mode, 0 in strict mode.
    lenient: u8,
    /// In lenient mode, the value of `Content-Length` (six bytes, little endian) of a response
    /// whose body was also announced as chunked; 0 in all other cases.
    stated_length: [u8; 6],
}

/// A run of bytes of one kind, as returned by [`Body::take_prefix`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyPart {
    /// Number of bytes that belong to the body's data.
    Data(usize),
    /// Number of bytes of framing: chunk sizes, line ends and trailers.
    Framing(usize),
    /// The body has ended; the bytes after its end do not belong to it.
    End,
}

/// State of the body parser after the end of the body.
const ENDED: u8 = 0;
/// State of the body parser in a body whose length the head stated.
const IN_LENGTH_BODY: u8 = 1;
/// State of the body parser in a body that ends only when its connection ends.
const UNTIL_CLOSE: u8 = 2;
/// State of the body parser after a switch to another protocol.
const PROTOCOL_SWITCHED: u8 = 3;
/// State of the body parser before the size of a chunk.
const BEFORE_CHUNK_SIZE: u8 = 4;
/// State of the body parser within the digits of a chunk size.
const IN_SIZE_DIGITS: u8 = 5;
/// State of the body parser in white space between the size of a chunk and a chunk extension.
const AFTER_SIZE_BLANK: u8 = 6;
/// State of the body parser after the semicolon that begins a chunk extension.
const IN_EXTENSION: u8 = 7;
/// State of the body parser in the name of a chunk extension.
const IN_EXTENSION_NAME: u8 = 8;
/// State of the body parser in white space after the name of a chunk extension.
const AFTER_EXTENSION_NAME: u8 = 9;
/// State of the body parser after the equals sign of a chunk extension.
const AFTER_EXTENSION_EQUALS: u8 = 10;
/// State of the body parser in the unquoted value of a chunk extension.
const IN_EXTENSION_VALUE: u8 = 11;
/// State of the body parser in the quoted value of a chunk extension.
const IN_QUOTED_VALUE: u8 = 12;
/// State of the body parser after a backslash in a quoted value of a chunk extension.
const AFTER_BACKSLASH: u8 = 13;
/// State of the body parser after the closing quote of a chunk extension's value.
const AFTER_QUOTED_VALUE: u8 = 14;
/// State of the body parser after the CR of a line with a chunk size.
const AFTER_SIZE_CR: u8 = 15;
/// State of the body parser in the data of a chunk.
const IN_CHUNK_DATA: u8 = 16;
/// State of the body parser after the data of a chunk.
const AFTER_CHUNK_DATA: u8 = 17;
/// State of the body parser after the CR that follows the data of a chunk.
const AFTER_CHUNK_CR: u8 = 18;
/// State of the body parser at the beginning of a trailer line.
const AT_TRAILER_LINE: u8 = 19;
/// State of the body parser in the name of a trailer field.
const IN_TRAILER_NAME: u8 = 20;
/// State of the body parser in the value of a trailer field.
const IN_TRAILER_VALUE: u8 = 21;
/// State of the body parser after the CR of a trailer line.
const AFTER_TRAILER_CR: u8 = 22;
/// State of the body parser after the CR of the final empty line.
const AFTER_LAST_CR: u8 = 23;
/// State of the body parser in bytes after a chunk size, which lenient mode skips.
const IGNORED_AFTER_SIZE: u8 = 24;
/// State of the body parser before the size of the first chunk, where lenient mode may find that
/// the body has no chunks.
const BEFORE_FIRST_SIZE: u8 = 25;
/// State of the body parser in white space after the value of a chunk extension.
const AFTER_EXTENSION_VALUE: u8 = 26;
/// State of the body parser at the first byte after a head, where either a body of stated length or
/// another response begins.
const LENGTH_BODY_OR_RESPONSE: u8 = 27;
/// State of the body parser at the first byte after a head, where either a body that ends with its
/// connection or another response begins.
const UNTIL_CLOSE_OR_RESPONSE: u8 = 28;

impl Body {
    /// Returns the body that follows the head of a request (RFC 9112 §6.3). In strict mode, a
    /// `Transfer-Encoding` that does not end with `chunked` is a fault.
    pub fn after_request_head(head: &Head<'_>, mode: ParseMode) -> Result<Self, HttpFault> {
        let fields = &head.fields;
        match (fields.has_transfer_encoding, fields.chunked, fields.length) {
            (true, true, _) => Ok(Self::new_chunked(mode)),
            (true, false, _) if mode == ParseMode::Strict => Err(HttpFault::TransferEncoding),
            // `CONNECT` has no body (RFC 9110 §9.3.6), whatever length its head states.
            _ if matches!(head.start, StartLine::Request { method: b"CONNECT", .. }) => {
                Ok(Self::default())
            }
            (_, _, Some(length)) => Ok(Self::with_length(length)),
            (_, _, None) => Ok(Self::default()),
        }
    }

    /// Returns the body that follows the head of a response to a request with this method (RFC 9112
    /// §6.3). If the method is unknown and the connection persists, it may have been `HEAD`: the
    /// body is empty if another response begins where the body should begin.
    #[must_use]
    pub fn after_response_head(head: &Head<'_>, method: RequestMethod, mode: ParseMode) -> Self {
        let StartLine::Response { status, .. } = head.start else { return Self::default() };
        let fields = &head.fields;
        let lenient = mode == ParseMode::Lenient;
        let stated = fields.length.is_some_and(|length| length > 0) || fields.chunked;
        match (status, method) {
            (101, _) if head.may_switch_protocol() => return Self::protocol_switch(),
            (_, RequestMethod::Head) | (304, _) => return Self::default(),
            // Such a response must not state a length (RFC 9110 §8.6), but a sender that states one
            // may also send a body.
            (100..200 | 204, _) if !(lenient && stated) => return Self::default(),
            (200..300, RequestMethod::Connect) => return Self::protocol_switch(),
            _ => {}
        }
        match (fields.has_transfer_encoding, fields.chunked, fields.length) {
            (true, true, stated) if lenient => Self::new_maybe_chunked(stated.unwrap_or(0)),
            (true, true, _) => Self::new_chunked(mode),
            (true, false, _) if !lenient => Self::until_close(),
            (_, _, Some(length)) => Self::with_length(length),
            (_, _, None) => Self::until_close(),
        }
        .with_possible_response(method == RequestMethod::Unknown && head.is_persistent())
    }

    /// Makes the presence of the body depend on its first byte if `maybe` is true: there is no body
    /// if another response begins there.
    const fn with_possible_response(mut self, maybe: bool) -> Self {
        self.state = match self.state {
            IN_LENGTH_BODY if maybe => LENGTH_BODY_OR_RESPONSE,
            UNTIL_CLOSE if maybe => UNTIL_CLOSE_OR_RESPONSE,
            state => state,
        };
        self
    }

    /// Records that the message has a body, because the first bytes after the head do not begin
    /// another response.
    const fn confirm_body(&mut self) {
        self.state = match self.state {
            LENGTH_BODY_OR_RESPONSE => IN_LENGTH_BODY,
            UNTIL_CLOSE_OR_RESPONSE => UNTIL_CLOSE,
            state => state,
        };
    }

    /// Creates a body of `length` bytes.
    #[must_use]
    pub fn with_length(length: u64) -> Self {
        Self {
            remaining: length,
            state: if length == 0 { ENDED } else { IN_LENGTH_BODY },
            ..Self::default()
        }
    }

    /// Creates a body that ends when its connection ends.
    #[must_use]
    pub fn until_close() -> Self {
        Self { state: UNTIL_CLOSE, ..Self::default() }
    }

    /// Creates an empty body, after which the connection switches to another protocol.
    #[must_use]
    pub fn protocol_switch() -> Self {
        Self { state: PROTOCOL_SWITCHED, ..Self::default() }
    }

    /// Creates a chunked body that is parsed in this mode.
    fn new_chunked(mode: ParseMode) -> Self {
        Self {
            state: BEFORE_CHUNK_SIZE,
            lenient: u8::from(mode == ParseMode::Lenient),
            ..Self::default()
        }
    }

    /// Creates a body that was announced as chunked, for lenient mode, which decides from its first
    /// bytes. A body that begins with a chunk size is chunked. If another response begins instead,
    /// the body is empty. Otherwise, it has `stated` bytes or, if `stated` is 0, ends with its
    /// connection.
    fn new_maybe_chunked(stated: u64) -> Self {
        // A length of more than 6 bytes exceeds the data of any connection.
        let [a, b, c, d, e, f, ..] = stated.to_le_bytes();
        Self {
            remaining: 0,
            state: BEFORE_FIRST_SIZE,
            lenient: 1,
            stated_length: [a, b, c, d, e, f],
        }
    }

    /// Returns true if the body has ended.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.state == ENDED
    }

    /// Returns true if the body ends only with its connection.
    #[must_use]
    pub const fn ends_with_connection(&self) -> bool {
        matches!(self.state, UNTIL_CLOSE | UNTIL_CLOSE_OR_RESPONSE)
    }

    /// Returns true if another protocol follows instead of a body.
    #[must_use]
    pub const fn switches_protocol(&self) -> bool {
        self.state == PROTOCOL_SWITCHED
    }

    /// Consumes the next `length` bytes and returns true if all of them are data of the body and
    /// neither the body nor a chunk ends with them. Otherwise consumes nothing and returns false.
    #[inline]
    pub const fn consume_if_all_data(&mut self, length: u32) -> bool {
        match self.state {
            IN_LENGTH_BODY | IN_CHUNK_DATA if self.remaining > length as u64 => {
                self.remaining -= length as u64;
                true
            }
            UNTIL_CLOSE => true,
            _ => false,
        }
    }

    /// Consumes the longest prefix of `bytes` that consists only of data or only of framing, and
    /// returns its kind and length.
    pub fn take_prefix(&mut self, bytes: &[u8]) -> Result<BodyPart, HttpFault> {
        if matches!(self.state, LENGTH_BODY_OR_RESPONSE | UNTIL_CLOSE_OR_RESPONSE) {
            if bytes.starts_with(b"HTTP/1.") {
                *self = Self::default();
            }
            self.confirm_body();
        }
        match self.state {
            ENDED | PROTOCOL_SWITCHED => Ok(BodyPart::End),
            UNTIL_CLOSE => Ok(BodyPart::Data(bytes.len())),
            IN_LENGTH_BODY | IN_CHUNK_DATA => Ok(BodyPart::Data(self.take_body_data(bytes.len()))),
            _ => self.take_framing_bytes(bytes),
        }
    }

    /// Advances over up to `length` missing bytes, as long as they are data of the body, and
    /// returns the number of bytes skipped. A number smaller than `length` means that framing
    /// bytes, or bytes after the body, are missing.
    pub fn skip_missing_bytes(&mut self, length: u64) -> u64 {
        self.confirm_body();
        match self.state {
            UNTIL_CLOSE => length,
            IN_LENGTH_BODY | IN_CHUNK_DATA => {
                let missed = length.min(self.remaining);
                self.consume_data(missed);
                missed
            }
            _ => 0,
        }
    }

    fn take_body_data(&mut self, length: usize) -> usize {
        let taken = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(length);
        self.consume_data(taken as u64);
        taken
    }

    fn consume_data(&mut self, length: u64) {
        self.remaining -= length.min(self.remaining);
        if self.remaining == 0 {
            self.state = if self.state == IN_CHUNK_DATA { AFTER_CHUNK_DATA } else { ENDED };
        }
    }

    fn take_framing_bytes(&mut self, bytes: &[u8]) -> Result<BodyPart, HttpFault> {
        let (state, left) = (self.state, self.remaining);
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            let skipped = self.unchanged_prefix_length(bytes.get(at..).unwrap_or_default());
            if skipped > 0 {
                at += skipped;
                continue;
            }
            if let Err(fault) = self.advance_framing(*byte) {
                // An oversized chunk size still counts as a size.
                let first = state == BEFORE_FIRST_SIZE && self.remaining >> 60 == 0;
                return if first { self.reinterpret_as_unchunked(bytes) } else { Err(fault) };
            }
            at += 1;
            if matches!(self.state, IN_CHUNK_DATA | ENDED) {
                break;
            }
        }
        debug_assert!(at > 0 || bytes.is_empty(), "nothing taken in state {state} with {left}");
        Ok(BodyPart::Framing(at))
    }

    /// Returns the number of bytes at the start of `rest` that can be skipped, because they leave
    /// the state of the body parser unchanged.
    fn unchanged_prefix_length(&self, rest: &[u8]) -> usize {
        match self.state {
            IN_TRAILER_VALUE | IGNORED_AFTER_SIZE if self.lenient != 0 => {
                memchr(b'\n', rest).unwrap_or(rest.len())
            }
            _ => 0,
        }
    }

    /// Converts a body that was announced as chunked, but has no chunks, to a body without chunks.
    /// Used in lenient mode only.
    fn reinterpret_as_unchunked(&mut self, bytes: &[u8]) -> Result<BodyPart, HttpFault> {
        let [a, b, c, d, e, f] = self.stated_length;
        let stated = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        *self = match guess_protocol(bytes) {
            ProtocolGuess::Response => Self::default(),
            _ if stated > 0 => Self::with_length(stated),
            _ => Self::until_close(),
        };
        self.take_prefix(bytes)
    }
}
