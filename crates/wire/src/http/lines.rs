//! Functions that split a head into lines, and an incremental search for the end of a head.

use super::fault::{HeadError, HttpFault};
use super::mode::ParseMode;
use memchr::memchr2;

/// A line of an HTTP head, given by three offsets: of its start, of the end of its text, and of the
/// next line.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadLine {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) next: usize,
}

/// Returns true if the byte is white space or part of a line end. Lenient mode permits such bytes
/// before a head (RFC 9112 §2.2 permits empty lines).
#[inline]
pub(super) const fn is_blank(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n' | b' ' | b'\t')
}

/// Returns the line of a head that begins at `start`.
///
/// In lenient mode, a line may also end with LF or CR alone, and several CR before an LF count as
/// one line end.
#[inline]
pub(super) fn next_head_line(
    bytes: &[u8],
    start: usize,
    mode: ParseMode,
) -> Result<HeadLine, HeadError> {
    let rest = bytes.get(start..).unwrap_or_default();
    let end = start + memchr2(b'\r', b'\n', rest).ok_or(HeadError::Incomplete)?;
    match (bytes.get(end), bytes.get(end + 1), mode) {
        (Some(b'\r'), Some(b'\n'), _) => Ok(HeadLine { start, end, next: end + 2 }),
        (Some(b'\r'), None, _) => Err(HeadError::Incomplete),
        (_, _, ParseMode::Strict) => Err(HttpFault::LineEnd.into()),
        (Some(b'\n'), ..) => Ok(HeadLine { start, end, next: end + 1 }),
        _ => {
            let after = bytes.get(end..).unwrap_or_default();
            let run = after.iter().take_while(|byte| **byte == b'\r').count();
            match bytes.get(end + run) {
                None => Err(HeadError::Incomplete),
                Some(b'\n') => Ok(HeadLine { start, end, next: end + run + 1 }),
                Some(_) => Ok(HeadLine { start, end, next: end + 1 }),
            }
        }
    }
}

/// An incremental search for the end of a head, which examines each byte once. The state is 1 byte
/// of plain data.
///
/// The search applies the rules of lenient mode. If the strict rules would end a head elsewhere,
/// the head is invalid in strict mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct HeadSearch(u8);

/// State of the search for the end of a head, before the first line.
const BEFORE_HEAD: u8 = 0;
/// State of the search for the end of a head, in a line that contains text.
const IN_TEXT_LINE: u8 = 1;
/// State of the search for the end of a head, after one CR in a line that contains text.
const AFTER_TEXT_CR: u8 = 2;
/// State of the search for the end of a head, after several CRs in a line that contains text.
const AFTER_TEXT_CRS: u8 = 3;
/// State of the search for the end of a head, at the beginning of a line.
const AT_LINE_START: u8 = 4;
/// State of the search for the end of a head, after a CR in an empty line.
const AFTER_EMPTY_LINE_CR: u8 = 5;
/// State of the search for the end of a head, after one space or tab in an otherwise empty line.
const AFTER_LINE_START_BLANK: u8 = 6;
/// State of the search for the end of a head, after a line that consists of a space or tab and LF.
const AFTER_BLANK_LINE: u8 = 7;

impl HeadSearch {
    /// Restores a search for the end of a head from the number that [`HeadSearch::number`]
    /// returned.
    #[must_use]
    pub const fn from_number(number: u8) -> Self {
        Self(number)
    }

    /// Encodes the state of the search as a number, for storage in a session.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Returns true if the head may end within `piece`. Consumes all bytes of `piece`, so that the
    /// search can continue with the next piece.
    #[must_use]
    pub fn may_end_in(&mut self, piece: &[u8]) -> bool {
        let (mut at, mut found) = (0, false);
        while let Some(byte) = piece.get(at) {
            if self.0 == IN_TEXT_LINE {
                let rest = piece.get(at..).unwrap_or_default();
                let Some(end) = memchr2(b'\r', b'\n', rest) else { return found };
                self.0 = if rest.get(end) == Some(&b'\n') { AT_LINE_START } else { AFTER_TEXT_CR };
                at += end + 1;
                continue;
            }
            let begun = match byte {
                b' ' | b'\t' => AFTER_LINE_START_BLANK,
                _ => IN_TEXT_LINE,
            };
            let (next, ends) = match (self.0, byte) {
                (BEFORE_HEAD, byte) if is_blank(*byte) => (BEFORE_HEAD, false),
                (BEFORE_HEAD | AFTER_LINE_START_BLANK, b' '..) => (IN_TEXT_LINE, false),
                (AFTER_TEXT_CR | AFTER_TEXT_CRS, b'\r') => (AFTER_TEXT_CRS, false),
                (AFTER_TEXT_CR | AFTER_TEXT_CRS, b'\n') => (AT_LINE_START, false),
                (AT_LINE_START | AFTER_EMPTY_LINE_CR | AFTER_BLANK_LINE, b'\r') => {
                    (AFTER_EMPTY_LINE_CR, false)
                }
                (AT_LINE_START | AFTER_EMPTY_LINE_CR | AFTER_BLANK_LINE, b'\n') => {
                    (AT_LINE_START, true)
                }
                (AFTER_LINE_START_BLANK, b'\n') => (AFTER_BLANK_LINE, false),
                (AFTER_LINE_START_BLANK, b'\r') => (AFTER_TEXT_CR, false),
                (BEFORE_HEAD | AFTER_LINE_START_BLANK, _) => (IN_TEXT_LINE, false),
                (AFTER_TEXT_CR | AT_LINE_START, _) => (begun, false),
                _ => (begun, true),
            };
            self.0 = next;
            found |= ends;
            at += 1;
        }
        found
    }
}
