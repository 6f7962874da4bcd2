//! Lines of a head, and where a head ends that comes in pieces.

use super::{Fault, Manner, Stop};
use memchr::memchr2;

/// A line: where it begins, where its text ends, where the next begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) next: usize,
}

/// White space and line ends that may stand before a head (RFC 9112 §2.2 lets empty lines).
#[inline]
pub(super) const fn is_blank(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n' | b' ' | b'\t')
}

/// The line that begins at `start`.
///
/// Leniently a line also ends with LF, or with CR alone; several CR before an LF are one line end.
#[inline]
pub(super) fn line(bytes: &[u8], start: usize, manner: Manner) -> Result<Line, Stop> {
    let rest = bytes.get(start..).unwrap_or_default();
    let end = start + memchr2(b'\r', b'\n', rest).ok_or(Stop::More)?;
    match (bytes.get(end), bytes.get(end + 1), manner) {
        (Some(b'\r'), Some(b'\n'), _) => Ok(Line { start, end, next: end + 2 }),
        (Some(b'\r'), None, _) => Err(Stop::More),
        (_, _, Manner::Strict) => Err(Fault::LineEnd.into()),
        (Some(b'\n'), ..) => Ok(Line { start, end, next: end + 1 }),
        _ => {
            let behind = bytes.get(end..).unwrap_or_default();
            let run = behind.iter().take_while(|byte| **byte == b'\r').count();
            match bytes.get(end + run) {
                None => Err(Stop::More),
                Some(b'\n') => Ok(Line { start, end, next: end + run + 1 }),
                Some(_) => Ok(Line { start, end, next: end + 1 }),
            }
        }
    }
}

/// Looks for the end of a head in pieces of it, each byte once: 1 byte of plain data.
///
/// What it finds is where the lenient manner ends a head; the strict one refuses there if it does
/// not end it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Seek(u8);

/// Before the first line.
const BEFORE: u8 = 0;
/// In a line that has text.
const TEXT: u8 = 1;
/// Behind one CR in it.
const TEXT_CR: u8 = 2;
/// Behind several.
const TEXT_CRS: u8 = 3;
/// At the beginning of a line.
const EMPTY: u8 = 4;
/// Behind CR in an empty line.
const EMPTY_CR: u8 = 5;
/// Behind one blank in an empty line.
const BLANK: u8 = 6;
/// Behind a line of one blank and LF.
const BLANK_LINE: u8 = 7;

impl Seek {
    /// The state that this number stands for, from a session.
    #[must_use]
    pub const fn of(number: u8) -> Self {
        Self(number)
    }

    /// The number of this state.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Whether the head may end within `piece`: all of the piece is looked at, so that the search
    /// can go on behind it.
    #[must_use]
    pub fn ends_in(&mut self, piece: &[u8]) -> bool {
        let (mut at, mut found) = (0, false);
        while let Some(byte) = piece.get(at) {
            if self.0 == TEXT {
                let rest = piece.get(at..).unwrap_or_default();
                let Some(end) = memchr2(b'\r', b'\n', rest) else { return found };
                self.0 = if rest.get(end) == Some(&b'\n') { EMPTY } else { TEXT_CR };
                at += end + 1;
                continue;
            }
            let begun = match byte {
                b' ' | b'\t' => BLANK,
                _ => TEXT,
            };
            let (next, ends) = match (self.0, byte) {
                (BEFORE, byte) if is_blank(*byte) => (BEFORE, false),
                (BEFORE | BLANK, b' '..) => (TEXT, false),
                (TEXT_CR | TEXT_CRS, b'\r') => (TEXT_CRS, false),
                (TEXT_CR | TEXT_CRS, b'\n') => (EMPTY, false),
                (EMPTY | EMPTY_CR | BLANK_LINE, b'\r') => (EMPTY_CR, false),
                (EMPTY | EMPTY_CR | BLANK_LINE, b'\n') => (EMPTY, true),
                (BLANK, b'\n') => (BLANK_LINE, false),
                (BLANK, b'\r') => (TEXT_CR, false),
                (BEFORE | BLANK, _) => (TEXT, false),
                (TEXT_CR | EMPTY, _) => (begun, false),
                _ => (begun, true),
            };
            self.0 = next;
            found |= ends;
            at += 1;
        }
        found
    }
}
