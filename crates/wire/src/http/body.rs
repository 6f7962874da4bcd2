//! Tracker of message bodies (RFC 9112 §6, §7). A [`Body`] is plain data that advances over the
//! bytes after a head.

use super::fault::HttpFault;
use super::fields::is_token_byte;
use super::guess::{Guess, guess_protocol};
use super::head::Head;
use super::mode::ParseMode;
use super::start::Start;
use memchr::memchr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The progress through a message body. A value of all zeros means that the body has ended.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Body {
    /// Number of remaining bytes in the body or chunk. While the digits of a chunk size are being
    /// read, the value of the digits so far.
    left: u64,
    /// Parse state, one of the constants below.
    state: u8,
    /// 1 in lenient mode, 0 in strict mode.
    lenient: u8,
    /// Value of the `Content-Length` of a response body that was also announced as chunked, in six
    /// bytes (little endian), if the mode is lenient. 0 in all other cases.
    stated_length: [u8; 6],
}

/// A run of bytes of one kind, as returned by [`Body::take`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyPart {
    /// Number of bytes that belong to the body's data.
    Data(usize),
    /// Number of bytes of framing: chunk sizes, line ends and trailers.
    Framing(usize),
    /// The body has ended, and the bytes do not belong to it.
    End,
}

/// The request method, reduced to its effect on the framing of the response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestMethod {
    /// `HEAD`: no body follows, regardless of the response's header fields.
    Head,
    /// `CONNECT`: after a successful response, another protocol follows.
    Connect,
    /// Any other method. Also used if the method is unknown.
    Other,
}

/// State after the end of the body.
const ENDED: u8 = 0;
/// State in a body whose length was stated.
const LENGTH: u8 = 1;
/// State in a body that ends with its connection.
const UNTIL_CLOSE: u8 = 2;
/// State after a switch to another protocol.
const SWITCHED: u8 = 3;
/// State before the size of a chunk.
const BEFORE_CHUNK_SIZE: u8 = 4;
/// State within the digits of a chunk size.
const SIZE_DIGITS: u8 = 5;
/// State in white space between the size and an extension.
const SIZE_BLANK: u8 = 6;
/// State after the semicolon that begins an extension.
const EXTENSION: u8 = 7;
/// State in the name of an extension.
const EXTENSION_NAME: u8 = 8;
/// State in white space after the name of an extension.
const EXTENSION_BLANK: u8 = 9;
/// State after the equals sign of an extension.
const EXTENSION_EQUALS: u8 = 10;
/// State in the unquoted value of an extension.
const EXTENSION_VALUE: u8 = 11;
/// State in the quoted value of an extension.
const QUOTED: u8 = 12;
/// State after a backslash in a quoted value.
const QUOTED_PAIR: u8 = 13;
/// State after the closing quote of a value.
const QUOTED_END: u8 = 14;
/// State after the CR of a size line.
const SIZE_CR: u8 = 15;
/// State in the data of a chunk.
const IN_CHUNK_DATA: u8 = 16;
/// State after the data of a chunk.
const CHUNK_END: u8 = 17;
/// State after the CR that follows the data of a chunk.
const CHUNK_CR: u8 = 18;
/// State at the beginning of a trailer line.
const TRAILER: u8 = 19;
/// State in the name of a trailer field.
const TRAILER_NAME: u8 = 20;
/// State in the value of a trailer field.
const TRAILER_VALUE: u8 = 21;
/// State after the CR of a trailer line.
const TRAILER_CR: u8 = 22;
/// State after the CR of the final empty line.
const LAST_CR: u8 = 23;
/// State in bytes after a size, which lenient mode skips.
const SIZE_JUNK: u8 = 24;
/// State before the size of the first chunk, where the body may turn out to have no chunks.
const BEFORE_FIRST_SIZE: u8 = 25;
/// State in white space after the value of an extension.
const VALUE_BLANK: u8 = 26;

impl Body {
    /// Returns the body that follows the head of a request (RFC 9112 §6.3). In strict mode, a
    /// `Transfer-Encoding` that does not end with `chunked` is a fault.
    pub fn after_request_head(head: &Head<'_>, mode: ParseMode) -> Result<Self, HttpFault> {
        let fields = &head.fields;
        match (fields.transfer, fields.chunked, fields.length) {
            (true, true, _) => Ok(Self::chunked(mode)),
            (true, false, _) if mode == ParseMode::Strict => Err(HttpFault::Transfer),
            // `CONNECT` has no body (RFC 9110 §9.3.6), whatever length its head states.
            _ if matches!(head.start, Start::Request { method: b"CONNECT", .. }) => {
                Ok(Self::default())
            }
            (_, _, Some(length)) => Ok(Self::length(length)),
            (_, _, None) => Ok(Self::default()),
        }
    }

    /// Returns the body that follows the head of a response to a request with this method (RFC 9112
    /// §6.3).
    #[must_use]
    pub fn after_response_head(head: &Head<'_>, method: RequestMethod, mode: ParseMode) -> Self {
        let Start::Response { status, .. } = head.start else { return Self::default() };
        let fields = &head.fields;
        let lenient = mode == ParseMode::Lenient;
        let stated = fields.length.is_some_and(|length| length > 0) || fields.chunked;
        match (status, method) {
            (101, _) if head.may_switch() => return Self::switched(),
            (_, RequestMethod::Head) | (304, _) => return Self::default(),
            // Such a response must not state a length (RFC 9110 §8.6), but a sender that states one
            // may also send a body.
            (100..200 | 204, _) if !(lenient && stated) => return Self::default(),
            (200..300, RequestMethod::Connect) => return Self::switched(),
            _ => {}
        }
        match (fields.transfer, fields.chunked, fields.length) {
            (true, true, stated) if lenient => Self::chunked_or_unchunked(stated.unwrap_or(0)),
            (true, true, _) => Self::chunked(mode),
            (true, false, _) if !lenient => Self::until_close(),
            (_, _, Some(length)) => Self::length(length),
            (_, _, None) => Self::until_close(),
        }
    }

    /// Returns a body of `length` bytes.
    #[must_use]
    pub fn length(length: u64) -> Self {
        Self { left: length, state: if length == 0 { ENDED } else { LENGTH }, ..Self::default() }
    }

    /// Returns a body that ends when its connection ends.
    #[must_use]
    pub fn until_close() -> Self {
        Self { state: UNTIL_CLOSE, ..Self::default() }
    }

    /// Returns an empty body, after which another protocol follows.
    #[must_use]
    pub fn switched() -> Self {
        Self { state: SWITCHED, ..Self::default() }
    }

    /// Returns a chunked body.
    fn chunked(mode: ParseMode) -> Self {
        Self {
            state: BEFORE_CHUNK_SIZE,
            lenient: u8::from(mode == ParseMode::Lenient),
            ..Self::default()
        }
    }

    /// Returns a chunked body for lenient mode. If the first chunk turns out to have no size, the
    /// body instead is empty if another response begins there; otherwise it has `stated` bytes or,
    /// if `stated` is 0, ends with its connection.
    fn chunked_or_unchunked(stated: u64) -> Self {
        // A length of more than 6 bytes exceeds the data of any connection.
        let [a, b, c, d, e, f, ..] = stated.to_le_bytes();
        Self { left: 0, state: BEFORE_FIRST_SIZE, lenient: 1, stated_length: [a, b, c, d, e, f] }
    }

    /// Returns true if the body has ended.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.state == ENDED
    }

    /// Returns true if the body ends only with its connection.
    #[must_use]
    pub const fn ends_with_connection(&self) -> bool {
        self.state == UNTIL_CLOSE
    }

    /// Returns true if another protocol follows instead of a body.
    #[must_use]
    pub const fn is_switched(&self) -> bool {
        self.state == SWITCHED
    }

    /// Consumes the next `length` bytes and returns true if all of them are data of the body and
    /// neither the body nor a chunk ends with them. Otherwise consumes nothing and returns false.
    #[inline]
    pub const fn continue_within(&mut self, length: u32) -> bool {
        match self.state {
            LENGTH | IN_CHUNK_DATA if self.left > length as u64 => {
                self.left -= length as u64;
                true
            }
            UNTIL_CLOSE => true,
            _ => false,
        }
    }

    /// Consumes the longest prefix of `bytes` that is of one kind, and returns its kind and length.
    pub fn take(&mut self, bytes: &[u8]) -> Result<BodyPart, HttpFault> {
        match self.state {
            ENDED | SWITCHED => Ok(BodyPart::End),
            UNTIL_CLOSE => Ok(BodyPart::Data(bytes.len())),
            LENGTH | IN_CHUNK_DATA => Ok(BodyPart::Data(self.take_data(bytes.len()))),
            _ => self.take_framing(bytes),
        }
    }

    /// Advances over up to `length` missing bytes, as long as they are data of the body, and
    /// returns the number of bytes skipped. A number smaller than `length` means that framing
    /// bytes, or bytes after the body, are missing.
    pub fn skip_missing(&mut self, length: u64) -> u64 {
        match self.state {
            UNTIL_CLOSE => length,
            LENGTH | IN_CHUNK_DATA => {
                let missed = length.min(self.left);
                self.consume(missed);
                missed
            }
            _ => 0,
        }
    }

    fn take_data(&mut self, length: usize) -> usize {
        let taken = usize::try_from(self.left).unwrap_or(usize::MAX).min(length);
        self.consume(taken as u64);
        taken
    }

    fn consume(&mut self, length: u64) {
        self.left -= length.min(self.left);
        if self.left == 0 {
            self.state = if self.state == IN_CHUNK_DATA { CHUNK_END } else { ENDED };
        }
    }

    fn take_framing(&mut self, bytes: &[u8]) -> Result<BodyPart, HttpFault> {
        let (state, left) = (self.state, self.left);
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            let skipped = self.unchanged_prefix_length(bytes.get(at..).unwrap_or_default());
            if skipped > 0 {
                at += skipped;
                continue;
            }
            if let Err(fault) = self.step(*byte) {
                // An oversized chunk size still counts as a size.
                let first = state == BEFORE_FIRST_SIZE && self.left >> 60 == 0;
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

    /// Returns the number of bytes at the start of `rest` that leave the state unchanged.
    fn unchanged_prefix_length(&self, rest: &[u8]) -> usize {
        match self.state {
            TRAILER_VALUE | SIZE_JUNK if self.lenient != 0 => {
                memchr(b'\n', rest).unwrap_or(rest.len())
            }
            _ => 0,
        }
    }

    /// Changes a body that was announced as chunked but has no chunks into a body without chunks
    /// (lenient mode).
    fn reinterpret_as_unchunked(&mut self, bytes: &[u8]) -> Result<BodyPart, HttpFault> {
        let [a, b, c, d, e, f] = self.stated_length;
        let stated = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        *self = match guess_protocol(bytes) {
            Guess::Response => Self::default(),
            _ if stated > 0 => Self::length(stated),
            _ => Self::until_close(),
        };
        self.take(bytes)
    }

    /// Advances the state by one byte of framing.
    fn step(&mut self, byte: u8) -> Result<(), HttpFault> {
        let lenient = self.lenient != 0;
        self.state = match self.state {
            BEFORE_FIRST_SIZE | BEFORE_CHUNK_SIZE | SIZE_DIGITS => {
                return self.advance_in_chunk_size(byte, lenient);
            }
            SIZE_JUNK | SIZE_CR if byte == b'\n' => self.state_after_size(),
            SIZE_JUNK => SIZE_JUNK,
            SIZE_BLANK | EXTENSION..=QUOTED_END | VALUE_BLANK => self.next_extension_state(byte)?,
            CHUNK_END if byte == b'\r' => CHUNK_CR,
            CHUNK_END if lenient && byte == b'\n' => BEFORE_CHUNK_SIZE,
            CHUNK_CR if byte == b'\n' => BEFORE_CHUNK_SIZE,
            CHUNK_END | CHUNK_CR => return Err(HttpFault::ChunkEnd),
            TRAILER..=LAST_CR => self.advance_in_trailer(byte, lenient)?,
            _ => return Err(HttpFault::ChunkSize),
        };
        Ok(())
    }

    /// Advances the state within a chunk size. Lenient mode allows white space and line ends before
    /// the size, and anything after it.
    fn advance_in_chunk_size(&mut self, byte: u8, lenient: bool) -> Result<(), HttpFault> {
        let before = self.state != SIZE_DIGITS;
        self.state = match byte {
            b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F' => {
                let digit = char::from(byte).to_digit(16).map_or(0, u64::from);
                if self.left >> 60 != 0 {
                    return Err(HttpFault::ChunkSize);
                }
                self.left = self.left << 4 | digit;
                SIZE_DIGITS
            }
            b'\t' | b'\n' | 0x0b | 0x0c | b'\r' | b' ' if before && lenient => self.state,
            _ if before => return Err(HttpFault::ChunkSize),
            b'\r' => SIZE_CR,
            b'\n' if lenient => self.state_after_size(),
            _ if lenient => SIZE_JUNK,
            b';' => EXTENSION,
            b' ' | b'\t' => SIZE_BLANK,
            _ => return Err(HttpFault::ChunkSize),
        };
        Ok(())
    }

    /// Returns the state that follows a size line.
    const fn state_after_size(&self) -> u8 {
        if self.left == 0 { TRAILER } else { IN_CHUNK_DATA }
    }

    /// Returns the state after another byte of an extension, according to the strict grammar.
    /// Accepts the white space that recipients must ignore (RFC 9112 §7.1.1).
    fn next_extension_state(&self, byte: u8) -> Result<u8, HttpFault> {
        let token = is_token_byte(byte);
        let blank = matches!(byte, b' ' | b'\t');
        Ok(match (self.state, byte) {
            (EXTENSION_NAME, _) if blank => EXTENSION_BLANK,
            (EXTENSION_VALUE | QUOTED_END, _) if blank => VALUE_BLANK,
            (QUOTED | QUOTED_PAIR, b'\t' | b' ') => QUOTED,
            _ if blank => self.state,
            (EXTENSION | EXTENSION_NAME, _) if token => EXTENSION_NAME,
            (EXTENSION_EQUALS, b'"') => QUOTED,
            (EXTENSION_EQUALS | EXTENSION_VALUE, _) if token => EXTENSION_VALUE,
            (EXTENSION_NAME | EXTENSION_BLANK, b'=') => EXTENSION_EQUALS,
            (SIZE_BLANK | EXTENSION_NAME | EXTENSION_BLANK, b';') => EXTENSION,
            (EXTENSION_VALUE | QUOTED_END | VALUE_BLANK, b';') => EXTENSION,
            (EXTENSION_NAME | EXTENSION_VALUE | QUOTED_END, b'\r') => SIZE_CR,
            (QUOTED, b'"') => QUOTED_END,
            (QUOTED, b'\\') => QUOTED_PAIR,
            (QUOTED | QUOTED_PAIR, b'!'..=0x7e | 0x80..) => QUOTED,
            (SIZE_BLANK, _) => return Err(HttpFault::ChunkSize),
            _ => return Err(HttpFault::ChunkExtension),
        })
    }

    fn advance_in_trailer(&self, byte: u8, lenient: bool) -> Result<u8, HttpFault> {
        let text = byte == b'\t' || (byte >= b' ' && byte != 0x7f);
        Ok(match (self.state, byte) {
            (TRAILER, b'\r') => LAST_CR,
            (TRAILER | LAST_CR, b'\n') if lenient => ENDED,
            (LAST_CR, b'\n') => ENDED,
            (TRAILER_VALUE, b'\n') if lenient => TRAILER,
            (TRAILER | TRAILER_NAME | TRAILER_VALUE | LAST_CR, _) if lenient => TRAILER_VALUE,
            (TRAILER | TRAILER_NAME, _) if is_token_byte(byte) => TRAILER_NAME,
            (TRAILER_NAME, b':') => TRAILER_VALUE,
            (TRAILER_VALUE, b'\r') => TRAILER_CR,
            (TRAILER_VALUE, _) if text => TRAILER_VALUE,
            (TRAILER_CR, b'\n') => TRAILER,
            _ => return Err(HttpFault::Trailer),
        })
    }
}
