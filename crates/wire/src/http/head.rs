//! Parser for the head of a message: the start line and the fields.

use super::fault::{HeadError, HttpFault};
use super::fields::{
    EvaluatedFields, KnownField, is_text, is_token_byte, trim_blank_and_control, trim_blanks,
    trim_value,
};
use super::lines::{HeadLine, is_blank, next_head_line};
use super::mode::ParseMode;
use super::start_line::{
    StartLine, begins_with_http, classify_unfinished_request, may_begin_with_http,
    parse_request_leniently, parse_request_strictly, parse_response_leniently,
    parse_response_strictly, persists_by_default,
};
use memchr::{memchr, memchr2};

/// A parsed head of a message.
#[derive(Clone, Copy, Debug)]
pub struct Head<'b> {
    /// Offset of the start line in the parsed bytes. Empty lines may precede it.
    pub begin: usize,
    /// Offset in the parsed bytes after the empty line that ends the head.
    pub end: usize,
    /// Parsed request line or status line.
    pub start: StartLine<'b>,
    /// Version as sent, without `HTTP/`. Empty in an HTTP/0.9 request, which has none.
    pub version: &'b [u8],
    /// True if connections persist by default in this version of HTTP.
    pub is_persistent_version: bool,
    /// Values of the header fields that the parser evaluates.
    pub fields: EvaluatedFields<'b>,
}

impl<'b> Head<'b> {
    /// Parses the head of a request, skipping empty lines before it.
    pub fn parse_request(bytes: &'b [u8], mode: ParseMode) -> Result<Self, HeadError> {
        let begin = offset_after_empty_lines(bytes, mode);
        let first = match next_head_line(bytes, begin, mode) {
            Err(HeadError::Incomplete) => {
                return Err(classify_unfinished_request(bytes, begin, mode));
            }
            first => first?,
        };
        let text = line_text(bytes, first);
        let (start, version) = match mode {
            ParseMode::Strict => parse_request_strictly(text)?,
            ParseMode::Lenient => parse_request_leniently(text)?,
        };
        if version.is_empty() && mode == ParseMode::Lenient {
            // HTTP/0.9: a single line.
            let fields = EvaluatedFields::default();
            return Ok(Self {
                begin,
                end: first.next,
                start,
                version,
                is_persistent_version: false,
                fields,
            });
        }
        Self::parse_with_fields(bytes, begin, first, start, version, mode)
    }

    /// Parses the head of a response, skipping empty lines before it.
    pub fn parse_response(bytes: &'b [u8], mode: ParseMode) -> Result<Self, HeadError> {
        let begin = offset_after_empty_lines(bytes, mode);
        let rest = bytes.get(begin..).unwrap_or_default();
        if !begins_with_http(rest) && !may_begin_with_http(rest) {
            return Err(HttpFault::Version.into());
        }
        let first = next_head_line(bytes, begin, mode)?;
        let text = line_text(bytes, first);
        let (start, version) = match mode {
            ParseMode::Strict => parse_response_strictly(text)?,
            ParseMode::Lenient => parse_response_leniently(text)?,
        };
        Self::parse_with_fields(bytes, begin, first, start, version, mode)
    }

    /// Returns true if the connection persists after this message, according to the head (RFC 9112
    /// §9.3).
    #[must_use]
    pub const fn is_persistent(&self) -> bool {
        !self.fields.has_close && (self.is_persistent_version || self.fields.keep_alive)
    }

    /// Returns true if the head is the preface of HTTP/2, which resembles a request (RFC 9113
    /// §3.4).
    #[must_use]
    pub fn is_http2_preface(&self) -> bool {
        matches!(self.start, StartLine::Request { method: b"PRI", target: b"*", .. })
            && self.version == b"2.0"
    }

    /// Returns true if another protocol may follow this message: after `CONNECT`, or after an
    /// upgrade that the fields `Upgrade` and `Connection` both announce (RFC 9110 §7.8). A response
    /// must have the status 101.
    #[must_use]
    pub fn may_switch_protocol(&self) -> bool {
        match self.start {
            StartLine::Request { method: b"CONNECT", .. } => true,
            StartLine::Response { status, .. } if status != 101 => false,
            _ => self.fields.has_upgrade && self.fields.connection_upgrade,
        }
    }

    #[inline]
    fn parse_with_fields(
        bytes: &'b [u8],
        begin: usize,
        first: HeadLine,
        start: StartLine<'b>,
        version: &'b [u8],
        mode: ParseMode,
    ) -> Result<Self, HeadError> {
        let (fields, end) = match mode {
            ParseMode::Strict => parse_fields_strictly(bytes, first.next)?,
            ParseMode::Lenient => parse_fields_leniently(bytes, first.next)?,
        };
        if version.is_empty() && mode == ParseMode::Strict && end > first.next + 2 {
            return Err(HttpFault::Version.into());
        }
        let is_persistent_version = persists_by_default(version);
        Ok(Self { begin, end, start, version, is_persistent_version, fields })
    }
}

fn line_text(bytes: &[u8], line: HeadLine) -> &[u8] {
    bytes.get(line.start..line.end).unwrap_or_default()
}

/// Returns the offset of the head after any empty lines before it. RFC 9112 §2.2 permits empty
/// lines before a request; this parser also permits them before a response. Lenient mode skips
/// other white space too.
fn offset_after_empty_lines(bytes: &[u8], mode: ParseMode) -> usize {
    let blank = |byte: &&u8| match mode {
        ParseMode::Strict => matches!(byte, b'\r' | b'\n'),
        ParseMode::Lenient => is_blank(**byte),
    };
    match bytes.first() {
        Some(first) if !blank(&first) => 0,
        _ => bytes.iter().take_while(blank).count(),
    }
}

/// Parses field lines up to the empty line that ends the head. Also returns the offset after the
/// empty line.
fn parse_fields_strictly(
    bytes: &[u8],
    from: usize,
) -> Result<(EvaluatedFields<'_>, usize), HeadError> {
    let mut fields = EvaluatedFields::default();
    let mut at = from;
    loop {
        if matches!(bytes.get(at), Some(b' ' | b'\t')) {
            return Err(HttpFault::FoldedLine.into());
        }
        let line = next_head_line(bytes, at, ParseMode::Strict)?;
        at = line.next;
        let text = line_text(bytes, line);
        if text.is_empty() {
            fields.check_body_length(ParseMode::Strict)?;
            return Ok((fields, at));
        }
        let (name, value) = split_field_strictly(text)?;
        if let Some(known) = KnownField::from_name(name) {
            fields.take_field(known, trim_blanks(value), ParseMode::Strict)?;
        }
    }
}

/// Parses field lines like [`parse_fields_strictly`], but leniently. A line that begins with white
/// space continues the previous line, whatever it contains (RFC 9112 §5.2); before the first field,
/// such a line is skipped (§2.2). A line without a colon is skipped.
fn parse_fields_leniently(
    bytes: &[u8],
    from: usize,
) -> Result<(EvaluatedFields<'_>, usize), HeadError> {
    let mut fields = EvaluatedFields::default();
    let mut open: Option<HeadLine> = None;
    let mut at = from;
    loop {
        let line = next_head_line(bytes, at, ParseMode::Lenient)?;
        at = line.next;
        let text = line_text(bytes, line);
        let mut end = None;
        if text.is_empty() {
            end = head_end_after_empty_line(bytes, line);
            if end.is_none() {
                continue;
            }
        } else if matches!(text, [b' ' | b'\t', ..]) {
            if !ends_head_with_single_blank(bytes, line)? {
                if let Some(open) = open.as_mut() {
                    open.end = line.end;
                }
                continue;
            }
            end = Some(line.next);
        }
        if let Some(open) = open.replace(line) {
            store_lenient_field(&mut fields, line_text(bytes, open))?;
        }
        if let Some(end) = end {
            fields.check_body_length(ParseMode::Lenient)?;
            return Ok((fields, end));
        }
    }
}

/// Returns the offset after the head if the empty line `line` ends the head, otherwise `None`. An
/// empty line that consists of CR LF or LF always ends the head. Any other empty line does so only
/// if no known field follows it. A CR LF that follows an empty line such as CR CR LF also belongs
/// to the head.
fn head_end_after_empty_line(bytes: &[u8], line: HeadLine) -> Option<usize> {
    let suffix = bytes.get(line.end..line.next).unwrap_or_default();
    if matches!(suffix, b"\r\n" | b"\n") {
        return Some(line.next);
    }
    let rest = bytes.get(line.next..).unwrap_or_default();
    match rest {
        [b'\r', b'\n', ..] if suffix.ends_with(b"\n") => Some(line.next + 2),
        _ if begins_with_known_field(rest) => None,
        _ => Some(line.next),
    }
}

/// Returns true if the bytes begin with a header field that the parser evaluates, without white
/// space before it.
fn begins_with_known_field(rest: &[u8]) -> bool {
    /// Number of bytes to examine for the name of a field: the length of the longest known name,
    /// plus some white space.
    const FIELD_SEARCH_SIZE: usize = 24;
    if matches!(rest, [b' ' | b'\t', ..]) {
        return false;
    }
    let rest = rest.get(..FIELD_SEARCH_SIZE).unwrap_or(rest);
    let name = memchr(b':', rest).and_then(|colon| rest.get(..colon)).unwrap_or_default();
    KnownField::from_name(trim_blank_and_control(name)).is_some()
}

/// Returns true if the line is a single space or tab that ends the head. Some clients send such a
/// line instead of an empty one. Fails with [`HeadError::Incomplete`] if the byte after the line,
/// which decides, is missing.
fn ends_head_with_single_blank(bytes: &[u8], line: HeadLine) -> Result<bool, HeadError> {
    if line.end != line.start + 1 || line.next != line.end + 1 {
        return Ok(false);
    }
    match (bytes.get(line.end), bytes.get(line.next)) {
        (Some(b'\n'), None) => Err(HeadError::Incomplete),
        (Some(b'\n'), Some(b'\r' | b'\n')) => Ok(false),
        (byte, _) => Ok(byte == Some(&b'\n')),
    }
}

/// Splits a field line into a name, which is a token, and a value (RFC 9112 §5).
#[inline]
fn split_field_strictly(text: &[u8]) -> Result<(&[u8], &[u8]), HttpFault> {
    let colon = text.iter().position(|byte| !is_token_byte(*byte)).ok_or(HttpFault::FieldName)?;
    let (name, rest) = text.split_at(colon);
    match rest {
        [b':', value @ ..] if !name.is_empty() => match is_text(value) {
            true => Ok((name, value)),
            false => Err(HttpFault::FieldValue),
        },
        _ => Err(HttpFault::FieldName),
    }
}

#[inline]
fn store_lenient_field<'b>(
    fields: &mut EvaluatedFields<'b>,
    text: &'b [u8],
) -> Result<(), HttpFault> {
    if let Some((known, value)) = KnownField::from_line(text) {
        return fields.take_field(known, trim_value(known, value), ParseMode::Lenient);
    }
    // Most fields are well-formed and unknown.
    let may_be_known =
        |first: &u8| !first.is_ascii_alphabetic() || b"hurctap".contains(&(first | 0x20));
    if !text.first().is_some_and(may_be_known) {
        return Ok(());
    }
    let name = text.iter().position(|byte| !is_token_byte(*byte)).unwrap_or(text.len());
    if text.get(name) == Some(&b':') && name > 0 {
        return Ok(());
    }
    // The name must be on the first line: text in a folded line is part of a value.
    let first = memchr2(b'\r', b'\n', text).and_then(|end| text.get(..end)).unwrap_or(text);
    let Some(colon) = memchr(b':', text).filter(|_| !trim_blank_and_control(first).is_empty())
    else {
        return Ok(());
    };
    let name = trim_blank_and_control(text.get(..colon).unwrap_or_default());
    let value = text.get(colon..).unwrap_or_default();
    match KnownField::from_name_with_zeros(name) {
        Some(known) => fields.take_field(known, trim_value(known, value), ParseMode::Lenient),
        None => Ok(()),
    }
}
