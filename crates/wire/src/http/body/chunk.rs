//! The framing of chunked bodies, byte by byte (RFC 9112 §7.1): sizes, extensions and trailers.

use super::*;
use crate::http::fields::is_token_byte;

impl Body {
    /// Advances the state by one byte of framing.
    pub(super) fn step(&mut self, byte: u8) -> Result<(), HttpFault> {
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
