//! The framing of chunked bodies, byte by byte (RFC 9112 §7.1): sizes, extensions and trailers.

use super::*;
use crate::http::fields::is_token_byte;

impl Body {
    /// Advances the state of a chunked body by one byte of framing.
    pub(super) fn advance_framing(&mut self, byte: u8) -> Result<(), HttpFault> {
        let lenient = self.lenient != 0;
        self.state = match self.state {
            BEFORE_FIRST_SIZE | BEFORE_CHUNK_SIZE | IN_SIZE_DIGITS => {
                return self.advance_in_chunk_size(byte, lenient);
            }
            IGNORED_AFTER_SIZE | AFTER_SIZE_CR if byte == b'\n' => self.state_after_size(),
            IGNORED_AFTER_SIZE => IGNORED_AFTER_SIZE,
            AFTER_SIZE_BLANK | IN_EXTENSION..=AFTER_QUOTED_VALUE | AFTER_EXTENSION_VALUE => {
                self.next_extension_state(byte)?
            }
            AFTER_CHUNK_DATA if byte == b'\r' => AFTER_CHUNK_CR,
            AFTER_CHUNK_DATA if lenient && byte == b'\n' => BEFORE_CHUNK_SIZE,
            AFTER_CHUNK_CR if byte == b'\n' => BEFORE_CHUNK_SIZE,
            AFTER_CHUNK_DATA | AFTER_CHUNK_CR => return Err(HttpFault::ChunkEnd),
            AT_TRAILER_LINE..=AFTER_LAST_CR => self.advance_in_trailer(byte, lenient)?,
            _ => return Err(HttpFault::ChunkSize),
        };
        Ok(())
    }

    /// Advances the state within a chunk size by one byte. Lenient mode allows white space and line
    /// ends before the size, and any bytes between the size and the end of the line.
    fn advance_in_chunk_size(&mut self, byte: u8, lenient: bool) -> Result<(), HttpFault> {
        let before = self.state != IN_SIZE_DIGITS;
        self.state = match byte {
            b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F' => {
                let digit = char::from(byte).to_digit(16).map_or(0, u64::from);
                if self.remaining >> 60 != 0 {
                    return Err(HttpFault::ChunkSize);
                }
                self.remaining = self.remaining << 4 | digit;
                IN_SIZE_DIGITS
            }
            b'\t' | b'\n' | 0x0b | 0x0c | b'\r' | b' ' if before && lenient => self.state,
            _ if before => return Err(HttpFault::ChunkSize),
            b'\r' => AFTER_SIZE_CR,
            b'\n' if lenient => self.state_after_size(),
            _ if lenient => IGNORED_AFTER_SIZE,
            b';' => IN_EXTENSION,
            b' ' | b'\t' => AFTER_SIZE_BLANK,
            _ => return Err(HttpFault::ChunkSize),
        };
        Ok(())
    }

    /// Returns the state of the body parser after the line with a chunk size: in the data of the
    /// chunk or, if the size is 0, at the first trailer line.
    const fn state_after_size(&self) -> u8 {
        if self.remaining == 0 { AT_TRAILER_LINE } else { IN_CHUNK_DATA }
    }

    /// Returns the state after `byte` of a chunk extension, according to the strict grammar.
    /// Accepts the white space that recipients must ignore (RFC 9112 §7.1.1).
    fn next_extension_state(&self, byte: u8) -> Result<u8, HttpFault> {
        let token = is_token_byte(byte);
        let blank = matches!(byte, b' ' | b'\t');
        Ok(match (self.state, byte) {
            (IN_EXTENSION_NAME, _) if blank => AFTER_EXTENSION_NAME,
            (IN_EXTENSION_VALUE | AFTER_QUOTED_VALUE, _) if blank => AFTER_EXTENSION_VALUE,
            (IN_QUOTED_VALUE | AFTER_BACKSLASH, b'\t' | b' ') => IN_QUOTED_VALUE,
            _ if blank => self.state,
            (IN_EXTENSION | IN_EXTENSION_NAME, _) if token => IN_EXTENSION_NAME,
            (AFTER_EXTENSION_EQUALS, b'"') => IN_QUOTED_VALUE,
            (AFTER_EXTENSION_EQUALS | IN_EXTENSION_VALUE, _) if token => IN_EXTENSION_VALUE,
            (IN_EXTENSION_NAME | AFTER_EXTENSION_NAME, b'=') => AFTER_EXTENSION_EQUALS,
            (AFTER_SIZE_BLANK | IN_EXTENSION_NAME | AFTER_EXTENSION_NAME, b';') => IN_EXTENSION,
            (IN_EXTENSION_VALUE | AFTER_QUOTED_VALUE | AFTER_EXTENSION_VALUE, b';') => IN_EXTENSION,
            (IN_EXTENSION_NAME | IN_EXTENSION_VALUE | AFTER_QUOTED_VALUE, b'\r') => AFTER_SIZE_CR,
            (IN_QUOTED_VALUE, b'"') => AFTER_QUOTED_VALUE,
            (IN_QUOTED_VALUE, b'\\') => AFTER_BACKSLASH,
            (IN_QUOTED_VALUE | AFTER_BACKSLASH, b'!'..=0x7e | 0x80..) => IN_QUOTED_VALUE,
            (AFTER_SIZE_BLANK, _) => return Err(HttpFault::ChunkSize),
            _ => return Err(HttpFault::ChunkExtension),
        })
    }

    fn advance_in_trailer(&self, byte: u8, lenient: bool) -> Result<u8, HttpFault> {
        let text = byte == b'\t' || (byte >= b' ' && byte != 0x7f);
        Ok(match (self.state, byte) {
            (AT_TRAILER_LINE, b'\r') => AFTER_LAST_CR,
            (AT_TRAILER_LINE | AFTER_LAST_CR, b'\n') if lenient => ENDED,
            (AFTER_LAST_CR, b'\n') => ENDED,
            (IN_TRAILER_VALUE, b'\n') if lenient => AT_TRAILER_LINE,
            (AT_TRAILER_LINE | IN_TRAILER_NAME | IN_TRAILER_VALUE | AFTER_LAST_CR, _)
                if lenient =>
            {
                IN_TRAILER_VALUE
            }
            (AT_TRAILER_LINE | IN_TRAILER_NAME, _) if is_token_byte(byte) => IN_TRAILER_NAME,
            (IN_TRAILER_NAME, b':') => IN_TRAILER_VALUE,
            (IN_TRAILER_VALUE, b'\r') => AFTER_TRAILER_CR,
            (IN_TRAILER_VALUE, _) if text => IN_TRAILER_VALUE,
            (AFTER_TRAILER_CR, b'\n') => AT_TRAILER_LINE,
            _ => return Err(HttpFault::Trailer),
        })
    }
}
