//! Parsers for the start lines of requests and responses.

use super::fault::{HeadError, HttpFault};
use super::fields::{eq_ignore_case, is_text, is_token_byte, trim_blank_and_control, trim_blanks};
use super::method::method_number;
use super::mode::ParseMode;
use memchr::{memchr, memrchr};

/// The start line of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartLine<'b> {
    /// A request line.
    Request {
        /// Name of the method as sent.
        method: &'b [u8],
        /// Number of the method, as [`super::method_number`] returns it.
        number: u8,
        /// Request target as sent.
        target: &'b [u8],
    },
    /// A status line.
    Response {
        /// HTTP status code; 0 if the code is invalid.
        status: u16,
        /// Reason phrase as sent; empty if there is none.
        reason: &'b [u8],
    },
}

/// Returns true if the bytes begin with `HTTP/` in upper or lower case.
pub(super) fn begins_with_http(bytes: &[u8]) -> bool {
    bytes.get(..5).is_some_and(|word| eq_ignore_case(word, b"http/"))
}

pub(super) fn may_begin_with_http(bytes: &[u8]) -> bool {
    bytes.len() < 5 && b"http/".get(..bytes.len()).is_some_and(|word| eq_ignore_case(bytes, word))
}

/// Parses a request line: method, space, target, space, version (RFC 9112 §3). Also returns the
/// version without `HTTP/`, which is empty for an HTTP/0.9 request.
pub(super) fn parse_request_strictly(text: &[u8]) -> Result<(StartLine<'_>, &[u8]), HttpFault> {
    let end = text.iter().position(|byte| !is_token_byte(*byte)).ok_or(HttpFault::Method)?;
    let (method, rest) = text.split_at(end);
    let [b' ', rest @ ..] = rest else { return Err(HttpFault::Method) };
    if method.is_empty() {
        return Err(HttpFault::Method);
    }
    let (target, version) = match memchr(b' ', rest) {
        Some(end) => {
            (rest.get(..end), parse_version_strictly(rest.get(end + 1..).unwrap_or_default())?)
        }
        None => (Some(rest), &[][..]),
    };
    let target = target.unwrap_or_default();
    // A target consists of visible ASCII (RFC 3986 §2); other characters are percent-encoded.
    if target.is_empty() || !target.iter().all(u8::is_ascii_graphic) {
        return Err(HttpFault::Target);
    }
    Ok((StartLine::Request { method, number: method_number(method), target }, version))
}

/// Returns the error for a request line that is incomplete so far: a fault if its version is
/// already invalid in strict mode, otherwise [`HeadError::Incomplete`].
pub(super) fn classify_unfinished_request(
    bytes: &[u8],
    begin: usize,
    mode: ParseMode,
) -> HeadError {
    let rest = bytes.get(begin..).unwrap_or_default();
    let version = rest.splitn(3, |byte| *byte == b' ').nth(2).unwrap_or_default();
    match version.get(..8) {
        Some(version) if mode == ParseMode::Strict && parse_version_strictly(version).is_err() => {
            HttpFault::Version.into()
        }
        _ => HeadError::Incomplete,
    }
}

/// Parses a request line leniently. The target is all text between method and version, including
/// white space. Also returns the version without `HTTP/`; empty if there is none.
pub(super) fn parse_request_leniently(text: &[u8]) -> Result<(StartLine<'_>, &[u8]), HttpFault> {
    let text = trim_blank_and_control(text);
    let end = text.iter().position(|byte| !is_token_byte(*byte)).ok_or(HttpFault::Method)?;
    let (method, rest) = text.split_at(end);
    if method.is_empty() || !matches!(rest.first(), Some(b' ' | b'\t')) {
        return Err(HttpFault::Method);
    }
    let rest = trim_blanks(rest);
    let last = memrchr(b' ', rest).or_else(|| memrchr(b'\t', rest));
    let after = last.and_then(|last| rest.get(last + 1..)).unwrap_or_default();
    let number = method_number(method);
    let (target, version) = match last {
        Some(last) if begins_with_http(after) => {
            (trim_blanks(rest.get(..last).unwrap_or_default()), after.get(5..).unwrap_or_default())
        }
        None if number == 1 && rest.first() == Some(&b'/') => (rest, &[][..]),
        _ => return Err(HttpFault::Version),
    };
    if target.is_empty() {
        return Err(HttpFault::Target);
    }
    Ok((StartLine::Request { method, number, target }, version))
}

/// Parses a status line: version, space, three digits, and optionally another space and a reason
/// phrase (RFC 9112 §4). Also returns the version without `HTTP/`.
pub(super) fn parse_response_strictly(text: &[u8]) -> Result<(StartLine<'_>, &[u8]), HttpFault> {
    let version = parse_version_strictly(text.get(..8).unwrap_or_default())?;
    let [b' ', a, b, c, rest @ ..] = text.get(8..).unwrap_or_default() else {
        return Err(if text.get(8) == Some(&b' ') {
            HttpFault::Status
        } else {
            HttpFault::Version
        });
    };
    let digits = [*a, *b, *c];
    if !digits.iter().all(u8::is_ascii_digit) {
        return Err(HttpFault::Status);
    }
    let reason = match rest {
        [b' ', reason @ ..] => reason,
        [] => rest,
        _ => return Err(HttpFault::Status),
    };
    if !is_text(reason) {
        return Err(HttpFault::Reason);
    }
    let status = digits.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0'));
    Ok((StartLine::Response { status, reason }, version))
}

/// Parses a status line leniently. Spaces and control characters separate words. Also returns the
/// version without `HTTP/`.
pub(super) fn parse_response_leniently(text: &[u8]) -> Result<(StartLine<'_>, &[u8]), HttpFault> {
    let text = trim_blank_and_control(text);
    if !begins_with_http(text) {
        return Err(HttpFault::Version);
    }
    let rest = text.get(5..).unwrap_or_default();
    let word = |bytes: &'_ [u8]| bytes.iter().take_while(|byte| **byte > b' ').count();
    let (version, rest) = rest.split_at(word(rest));
    let rest = trim_blank_and_control(rest);
    let (code, reason) = rest.split_at(word(rest));
    let add = |number: u16, digit: &u8| match digit {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u16::from(digit - b'0')),
        _ => None,
    };
    let status = code.iter().try_fold(0, add).filter(|status| (100..=999).contains(status));
    Ok((
        StartLine::Response { status: status.unwrap_or(0), reason: trim_blank_and_control(reason) },
        version,
    ))
}

/// Checks a version text in strict mode and returns it without `HTTP/`. Accepts HTTP/1.1, HTTP/1.0
/// and HTTP/0.9, and HTTP/2.0, which some faulty gateways send in a start line.
fn parse_version_strictly(text: &[u8]) -> Result<&[u8], HttpFault> {
    match text.strip_prefix(b"HTTP/") {
        Some(version @ (b"1.1" | b"1.0" | b"0.9" | b"2.0")) => Ok(version),
        _ => Err(HttpFault::Version),
    }
}

pub(super) fn persists_by_default(version: &[u8]) -> bool {
    let mut numbers = version.splitn(2, |byte| *byte == b'.');
    let mut number = || {
        let digits = numbers.next().unwrap_or_default().iter();
        let digits = digits.take_while(|byte| byte.is_ascii_digit());
        digits.fold(0u32, |number, digit| {
            number.saturating_mul(10).saturating_add(u32::from(digit - b'0'))
        })
    };
    (number(), number()) >= (1, 1)
}
