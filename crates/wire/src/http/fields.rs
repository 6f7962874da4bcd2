//! Header fields that affect framing or appear in descriptions.

use super::codings::ContentCodings;
use super::fault::HttpFault;
use super::mode::ParseMode;

/// Values of the header fields that the parser evaluates. The text of an absent field is empty,
/// except that of `user_agent` and `referer`: they are `None`, because logs report their absence.
#[derive(Clone, Copy, Debug, Default)]
pub struct EvaluatedFields<'b> {
    /// Value of the header field `Host`; empty if absent.
    pub host: &'b [u8],
    /// Value of the header field `User-Agent`; `None` if absent.
    pub user_agent: Option<&'b [u8]>,
    /// Value of the header field `Referer`; `None` if absent.
    pub referer: Option<&'b [u8]>,
    /// Value of the header field `Content-Type`; empty if absent.
    pub content_type: &'b [u8],
    /// Value of the first header field `Content-Encoding`; empty if absent.
    pub content_encoding: &'b [u8],
    /// Value of the header field `Authorization`; empty if absent.
    pub authorization: &'b [u8],
    /// Content codings of the body, in the order of application.
    pub codings: ContentCodings,
    /// Body length in bytes as stated by the first `Content-Length` that begins with a number;
    /// `None` if there is none.
    pub length: Option<u64>,
    /// True if the length of the body is ambiguous, because a `Content-Length` is not a number,
    /// differs from another `Content-Length`, or occurs together with `Transfer-Encoding`.
    pub ambiguous: bool,
    /// True if the header field `Transfer-Encoding` is present.
    pub has_transfer_encoding: bool,
    /// True if `Transfer-Encoding` ends with `chunked`; in lenient mode, if it contains `chunked`.
    pub chunked: bool,
    /// True if `Transfer-Encoding` contains `chunked` at any place; used in strict mode only.
    contains_chunked: bool,
    /// True if `Connection` or `Proxy-Connection` contains `close`.
    pub has_close: bool,
    /// True if `Connection` or `Proxy-Connection` contains `keep-alive`.
    pub keep_alive: bool,
    /// True if `Connection` or `Proxy-Connection` contains `upgrade`.
    pub connection_upgrade: bool,
    /// True if the header field `Upgrade` is present.
    pub has_upgrade: bool,
}

/// The header fields that the parser evaluates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KnownField {
    Host,
    UserAgent,
    Referer,
    ContentType,
    ContentEncoding,
    ContentLength,
    TransferEncoding,
    Authorization,
    Connection,
    Upgrade,
}

impl KnownField {
    /// Returns the header field with this name; `None` if the parser does not evaluate it.
    #[inline]
    pub(super) fn from_name(name: &[u8]) -> Option<Self> {
        match name.len() {
            4 if eq_ignore_case(name, b"host") => Some(Self::Host),
            7 if eq_ignore_case(name, b"referer") => Some(Self::Referer),
            7 if eq_ignore_case(name, b"upgrade") => Some(Self::Upgrade),
            10 if eq_ignore_case(name, b"user-agent") => Some(Self::UserAgent),
            10 if eq_ignore_case(name, b"connection") => Some(Self::Connection),
            12 if eq_ignore_case(name, b"content-type") => Some(Self::ContentType),
            13 if eq_ignore_case(name, b"authorization") => Some(Self::Authorization),
            14 if eq_ignore_case(name, b"content-length") => Some(Self::ContentLength),
            16 if eq_ignore_case(name, b"content-encoding") => Some(Self::ContentEncoding),
            16 if eq_ignore_case(name, b"proxy-connection") => Some(Self::Connection),
            17 if eq_ignore_case(name, b"transfer-encoding") => Some(Self::TransferEncoding),
            _ => None,
        }
    }

    /// Returns the header field of a well-formed line, and the bytes after the colon; `None` if the
    /// parser does not evaluate this field.
    #[inline]
    pub(super) fn from_line(line: &[u8]) -> Option<(Self, &[u8])> {
        let candidates: &[(&[u8], Self)] = match line.first()? | 0x20 {
            b'h' => &[(b"host", Self::Host)],
            b'u' => &[(b"user-agent", Self::UserAgent), (b"upgrade", Self::Upgrade)],
            b'r' => &[(b"referer", Self::Referer)],
            b'c' => &[
                (b"content-type", Self::ContentType),
                (b"content-length", Self::ContentLength),
                (b"connection", Self::Connection),
                (b"content-encoding", Self::ContentEncoding),
            ],
            b't' => &[(b"transfer-encoding", Self::TransferEncoding)],
            b'a' => &[(b"authorization", Self::Authorization)],
            b'p' => &[(b"proxy-connection", Self::Connection)],
            _ => return None,
        };
        candidates.iter().find_map(|(name, known)| match line.split_at_checked(name.len()) {
            Some((word, [b':', value @ ..])) if eq_ignore_case(word, name) => Some((*known, value)),
            _ => None,
        })
    }

    /// Returns the header field whose name is `name` without its zero bytes, which lenient mode
    /// ignores; `None` if the parser does not evaluate it.
    pub(super) fn from_name_with_zeros(name: &[u8]) -> Option<Self> {
        /// Maximum length of a known field name in bytes.
        const FIELD_NAME_LENGTH_MAX: usize = 17;
        let mut letters = [0; FIELD_NAME_LENGTH_MAX];
        let mut used = 0;
        for letter in name.iter().filter(|letter| **letter != 0) {
            *letters.get_mut(used)? = *letter;
            used += 1;
        }
        Self::from_name(letters.get(..used)?)
    }
}

impl<'b> EvaluatedFields<'b> {
    /// Stores in [`EvaluatedFields`] what the value of a header field states. `value` must be
    /// trimmed.
    #[inline]
    pub(super) fn take_field(
        &mut self,
        known: KnownField,
        value: &'b [u8],
        mode: ParseMode,
    ) -> Result<(), HttpFault> {
        match known {
            KnownField::Host => set_if_empty(&mut self.host, value),
            KnownField::UserAgent => _ = self.user_agent.get_or_insert(value),
            KnownField::Referer => _ = self.referer.get_or_insert(value),
            KnownField::ContentType => set_if_empty(&mut self.content_type, value),
            KnownField::Authorization => set_if_empty(&mut self.authorization, value),
            KnownField::Upgrade => self.has_upgrade = true,
            KnownField::Connection => self.add_connection_field(value),
            KnownField::ContentLength => return self.add_content_length(value, mode),
            KnownField::TransferEncoding => return self.add_transfer_encoding(value, mode),
            KnownField::ContentEncoding => {
                set_if_empty(&mut self.content_encoding, value);
                split_words(value).for_each(|word| self.codings.add(word));
            }
        }
        Ok(())
    }

    fn add_connection_field(&mut self, value: &[u8]) {
        for word in split_list(value) {
            self.has_close |= eq_ignore_case(word, b"close");
            self.keep_alive |= eq_ignore_case(word, b"keep-alive");
            self.connection_upgrade |= eq_ignore_case(word, b"upgrade");
        }
    }

    /// Stores a `Content-Length`. In strict mode, a second length or malformed text is a fault.
    /// Lenient mode uses the first of several lengths, and the leading digits of malformed text.
    fn add_content_length(&mut self, value: &[u8], mode: ParseMode) -> Result<(), HttpFault> {
        let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = value.get(..digits).and_then(parse_decimal);
        match (mode, number) {
            (ParseMode::Strict, _) if self.length.is_some() => {
                return Err(HttpFault::DuplicateLength);
            }
            (ParseMode::Strict, None) => return Err(HttpFault::Length),
            (ParseMode::Strict, _) if digits < value.len() => return Err(HttpFault::Length),
            _ => {}
        }
        // Repeating the same number is not ambiguous (RFC 9112 §6.3).
        let mut others = split_list(value.get(digits..).unwrap_or_default()).skip(1);
        let same_number = digits == value.len()
            || (value.get(digits) == Some(&b',')
                && others.all(|other| parse_decimal(other) == number));
        let differs = self.length.is_some() && self.length != number;
        self.ambiguous |= number.is_none() || !same_number || differs;
        self.length = self.length.or(number);
        Ok(())
    }

    /// Records a `Transfer-Encoding`. In strict mode, `chunked` counts only if it comes last, and a
    /// second `chunked` is a fault (RFC 9112 §6.1); in lenient mode, `chunked` counts anywhere.
    fn add_transfer_encoding(&mut self, value: &[u8], mode: ParseMode) -> Result<(), HttpFault> {
        self.has_transfer_encoding = true;
        if mode == ParseMode::Lenient {
            self.chunked |= split_words(value).any(|word| eq_ignore_case(word, b"chunked"));
            return Ok(());
        }
        for word in split_list(value).filter(|word| !word.is_empty()) {
            self.chunked = eq_ignore_case(word, b"chunked");
            if self.chunked && self.contains_chunked {
                return Err(HttpFault::ChunkedTwice);
            }
            self.contains_chunked |= self.chunked;
        }
        Ok(())
    }

    /// Checks the header fields that determine the length of the body. A length together with a
    /// transfer coding is a fault in strict mode, and an ambiguity in lenient mode.
    pub(super) fn check_body_length(&mut self, mode: ParseMode) -> Result<(), HttpFault> {
        match (mode, self.has_transfer_encoding, self.length) {
            (ParseMode::Strict, true, Some(_)) => return Err(HttpFault::LengthAndTransfer),
            (ParseMode::Lenient, true, Some(_)) => self.ambiguous = true,
            _ => {}
        }
        Ok(())
    }
}

/// Returns true if the byte is a character of a token (RFC 9110 §5.6.2).
#[inline]
#[expect(clippy::indexing_slicing, reason = "a byte is below 256")]
pub(super) const fn is_token_byte(byte: u8) -> bool {
    IS_TOKEN_BYTE[byte as usize]
}

#[expect(clippy::indexing_slicing, reason = "the table has an element for every byte value")]
static IS_TOKEN_BYTE: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let letter = byte as u8;
        table[byte] = letter.is_ascii_alphanumeric()
            || matches!(letter, b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-')
            || matches!(letter, b'.' | b'^' | b'_' | b'`' | b'|' | b'~');
        byte += 1;
    }
    table
};

/// Returns true if no byte of a field's value is a control character other than a tab (RFC 9110
/// §5.5).
#[inline]
pub(super) fn is_text(value: &[u8]) -> bool {
    let control = |byte: u8| (byte < 0x20 && byte != b'\t') | (byte == 0x7f);
    !value.iter().fold(false, |found, byte| found | control(*byte))
}

/// Trims spaces and tabs from both ends of a field's value.
#[inline]
pub(super) fn trim_blanks(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Trims white space and control characters from both ends of `text`.
pub(super) fn trim_blank_and_control(text: &[u8]) -> &[u8] {
    trim_bytes(text, |byte| byte <= b' ')
}

/// Trims the separators around a field's value: white space, control characters, and further
/// colons, as in `Name:: value`. In `User-Agent` and `Referer`, control characters other than tabs
/// and line ends are part of the value and are not trimmed (RFC 9110 §5.5).
pub(super) fn trim_value(known: KnownField, text: &[u8]) -> &[u8] {
    let is_text = matches!(known, KnownField::UserAgent | KnownField::Referer);
    let is_blank = |byte| match is_text {
        true => matches!(byte, b' ' | b'\t' | b'\r' | b'\n'),
        false => byte <= b' ',
    };
    let mut text = trim_bytes(text, is_blank);
    while let [b':', rest @ ..] = text {
        text = trim_bytes(rest, is_blank);
    }
    text
}

/// Trims bytes for which `is_blank` returns true from both ends of `text`.
fn trim_bytes(mut text: &[u8], is_blank: impl Fn(u8) -> bool) -> &[u8] {
    while let [byte, rest @ ..] = text
        && is_blank(*byte)
    {
        text = rest;
    }
    while let [rest @ .., byte] = text
        && is_blank(*byte)
    {
        text = rest;
    }
    text
}

/// Compares a word with `lower`, a word in lower case. Ignores case and the zero bytes that lenient
/// mode permits.
#[inline]
pub(super) fn eq_ignore_case(word: &[u8], lower: &[u8]) -> bool {
    if word.len() <= lower.len() {
        // Letters have bit 6 set; other characters of a name have bit 5 alone.
        let differ = |(letter, lower): (&u8, &u8)| (letter | (lower >> 1 & 0x20)) ^ lower;
        let differ = word.iter().zip(lower).map(differ).fold(0, |any, bits| any | bits);
        return word.len() == lower.len() && differ == 0;
    }
    let letters = || word.iter().filter(|letter| **letter != 0);
    letters().count() == lower.len()
        && letters().zip(lower).all(|(letter, lower)| letter.eq_ignore_ascii_case(lower))
}

#[inline]
fn set_if_empty<'b>(place: &mut &'b [u8], value: &'b [u8]) {
    if place.is_empty() {
        *place = value;
    }
}

/// Splits a comma-separated list into trimmed members (RFC 9110 §5.6.1).
fn split_list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(trim_blanks)
}

/// Iterates over the words of a value. All bytes except letters, digits, `-` and zero bytes
/// separate words.
fn split_words(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| !byte.is_ascii_alphanumeric() && !matches!(*byte, b'-' | 0))
}

fn parse_decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let add = |number: u64, digit: &u8| match digit {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    };
    digits.iter().try_fold(0, add)
}
