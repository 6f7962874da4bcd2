//! Search for the next message after bytes that belong to no message. Such bytes may be header
//! lines whose request line has been removed, for example by `grep -v` on a file.
//!
//! A message may begin with a line that is a complete start line, or with an incomplete line at the
//! end of a block that may become one. The bytes before this line pass without a class.

use super::reasons;
use super::state::Phase;
use super::walk::BlockWalk;
use crate::prelude::*;
use wire::http::{METHOD_CLASSES, ProtocolGuess, guess_protocol, method_number};

/// The first bytes of every response.
const RESPONSE_PREFIX: &[u8] = b"HTTP/1.";

/// A possible start of a message: a line that the search for the next message has found.
struct StartLineCandidate {
    /// Offset of the line in the searched bytes.
    at: usize,
    /// True if the line is a complete start line, false if it may become one.
    certain: bool,
}

/// The kinds of messages that may begin in a direction.
#[derive(Clone, Copy)]
struct ExpectedMessages {
    requests: bool,
    responses: bool,
}

impl BlockWalk<'_, '_, '_> {
    /// Returns the kinds of messages that may begin here: both kinds until the first message has
    /// been recognized.
    fn expected_messages(&self) -> ExpectedMessages {
        let (unknown, requests) = (self.connection.protocol().is_none(), self.carries_requests());
        ExpectedMessages { requests: unknown || requests, responses: unknown || !requests }
    }

    /// Emits the bytes from the current offset without a class. Stops before the next line with
    /// which a message may begin, or at the end of the block.
    pub(super) fn skip_to_next_message_start(&mut self, reason: Reason) {
        let rest = self.unprocessed_bytes();
        let Some(found) = find_next_start_line(rest, self.expected_messages()) else {
            self.pass_unanswered(reason);
            if rest.ends_with(b"\n") {
                self.direction().enter_phase(Phase::LostAtLineStart);
            }
            return;
        };
        self.flush_fragment(false);
        // Lines are shorter than a block, whose length has 32 bits.
        let skipped = self.block.narrow(self.offset, found.at as u32);
        let class = self.cx.answer_absent(reason);
        self.emit_piece(skipped.with_class(class));
        self.offset += found.at as u32;
        self.cx.count(reasons::MESSAGES_FOUND_AGAIN, found.certain.into());
        self.direction().enter_phase(Phase::BetweenMessages);
    }

    /// Ends the search for a message and returns true if the current line may be a start line.
    /// Otherwise returns false and emits the bytes from the current offset without a class, up to
    /// the next line with which a message may begin or to the end of the block.
    pub(super) fn try_resume_at_current_line(&mut self) -> bool {
        match start_line_certainty(self.unprocessed_bytes(), self.expected_messages()) {
            Some(certain) => {
                self.cx.count(reasons::MESSAGES_FOUND_AGAIN, certain.into());
                self.direction().enter_phase(Phase::BetweenMessages);
                true
            }
            None => {
                self.direction().enter_phase(Phase::FramingLost);
                self.skip_to_next_message_start(reasons::MESSAGE_START_LOST);
                false
            }
        }
    }

    /// Skips header lines without a start line at the beginning of a direction. If the bytes are
    /// not header lines, skips nothing and returns false.
    pub(super) fn skip_leading_header_lines(&mut self, text: &[u8]) -> bool {
        if !is_header_line(text) {
            return false;
        }
        self.release_held_head(self.direction, reasons::MALFORMED);
        self.enter_framing_lost();
        self.skip_to_next_message_start(reasons::MALFORMED);
        true
    }
}

/// Returns the first line after the current one with which a message may begin, or `None` if there
/// is no such line.
fn find_next_start_line(rest: &[u8], expected: ExpectedMessages) -> Option<StartLineCandidate> {
    let mut ends = memchr::memchr_iter(b'\n', rest);
    ends.find_map(|end| {
        let at = end + 1;
        let line = rest.get(at..).filter(|line| !line.is_empty())?;
        start_line_certainty(line, expected).map(|certain| StartLineCandidate { at, certain })
    })
}

/// Returns true if the line is a complete start line, and false if it is incomplete but may become
/// one. Returns `None` for any other line.
fn start_line_certainty(text: &[u8], expected: ExpectedMessages) -> Option<bool> {
    match memchr::memchr(b'\n', text) {
        Some(end) => is_start_line(text.get(..end)?, expected).then_some(true),
        None => may_become_start_line(text, expected).then_some(false),
    }
}

/// Returns true if a complete line, given without its terminator, is a start line.
fn is_start_line(line: &[u8], expected: ExpectedMessages) -> bool {
    if expected.responses && line.starts_with(RESPONSE_PREFIX) {
        return true;
    }
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let version = line.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
    expected.requests && begins_with_method(line) && version.starts_with(RESPONSE_PREFIX)
}

/// Returns true if an incomplete line may become a start line.
fn may_become_start_line(line: &[u8], expected: ExpectedMessages) -> bool {
    let is_method = || METHOD_CLASSES.iter().any(|(name, _)| name.as_bytes().starts_with(line));
    (expected.responses && (line.starts_with(RESPONSE_PREFIX) || RESPONSE_PREFIX.starts_with(line)))
        || (expected.requests && (begins_with_method(line) || is_method()))
}

/// Returns true if a line begins with a known method and a space.
fn begins_with_method(line: &[u8]) -> bool {
    if guess_protocol(line) != ProtocolGuess::Request {
        return false;
    }
    let end = line.iter().position(|byte| *byte == b' ').unwrap_or(0);
    method_number(line.get(..end).unwrap_or_default()) != method_number(b"")
}

/// Returns true if the bytes begin with a header line: a name and a colon.
fn is_header_line(text: &[u8]) -> bool {
    let name = text.iter().position(|byte| *byte == b':');
    let name = name.and_then(|end| text.get(..end)).unwrap_or_default();
    let in_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !name.is_empty() && name.iter().all(in_name)
}
