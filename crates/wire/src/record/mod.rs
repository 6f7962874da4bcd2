//! Records: the facts that a filter has found about a message, encoded for the sinks that print
//! them.
//!
//! A record is the frame of the block that begins a message (CONTRACT 6). A sink that writes bytes
//! skips the record, and a sink that writes text prints its fields. The parser accepts arbitrary
//! bytes, so a record may come from an untrusted peer. One table defines the fields ([`Field`]), so
//! that `json`, `print`, `weblog` and `files` use the same names.
//!
//! ```text
//! byte 0     kind of the message (RecordKind)
//! then       fields: number (1 byte), length (2 bytes, little endian), that many bytes
//! ```
//!
//! Text is stored as on the wire, truncated to [`TEXT_LENGTH_MAX`] bytes; numbers are little endian
//! without trailing zero bytes. Fields that do not fit are omitted. A record with omitted fields or
//! truncated text is marked ([`Record::is_truncated`]).

mod field;
#[cfg(test)]
mod tests;

use memchr::memchr2;

pub use field::{Field, FieldType};

/// Maximum length in bytes of a text in a field.
pub const TEXT_LENGTH_MAX: usize = 8192;
/// Byte that marks the end of a record with omitted fields or truncated text.
const OMITTED_MARKER: u8 = 0xff;
/// Number of bytes before the value of a field: one for the number of the field, two for the length
/// of the value.
const FIELD_HEADER_SIZE: usize = 3;

/// The kind of message that a record describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordKind {
    /// The record describes an HTTP request.
    HttpRequest,
    /// The record describes an HTTP response.
    HttpResponse,
    /// The record describes an HTTP request together with its response.
    HttpExchange,
    /// The record describes a DNS message.
    Dns,
    /// The record describes a TLS hello.
    Tls,
}

impl RecordKind {
    const ALL: [Self; 5] =
        [Self::HttpRequest, Self::HttpResponse, Self::HttpExchange, Self::Dns, Self::Tls];

    /// Returns the name of the message kind, as sinks print it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HttpRequest => "http_request",
            Self::HttpResponse => "http_response",
            Self::HttpExchange => "http_exchange",
            Self::Dns => "dns",
            Self::Tls => "tls",
        }
    }

    const fn number(self) -> u8 {
        self as u8 + 1
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

/// A writer of one record into a borrowed buffer.
#[derive(Debug)]
pub struct Writer<'r> {
    room: &'r mut [u8],
    used: usize,
    cut: bool,
}

impl<'r> Writer<'r> {
    /// Begins a record of this kind, without fields, at the start of `room`.
    pub fn new(room: &'r mut [u8], kind: RecordKind) -> Self {
        // One byte stays free for the omission marker.
        let used = match room {
            [first, _, ..] => {
                *first = kind.number();
                1
            }
            _ => 0,
        };
        Self { room, used, cut: used == 0 }
    }

    /// Adds a field with text as on the wire. Truncates text of more than [`TEXT_LENGTH_MAX`]
    /// bytes, and then marks the record. A field may be added more than once.
    pub fn add_text(&mut self, field: Field, text: &[u8]) {
        self.cut |= text.len() > TEXT_LENGTH_MAX;
        let text = text.get(..TEXT_LENGTH_MAX).unwrap_or(text);
        self.add(field as u8, text);
    }

    /// Marks this record as truncated, because the caller leaves out facts or shortens a text.
    pub const fn mark_truncated(&mut self) {
        self.cut = true;
    }

    /// Marks this record as truncated if `other` is truncated. The caller copies fields of `other`
    /// to this record.
    pub fn inherit_truncation(&mut self, other: &Record<'_>) {
        self.cut |= other.is_truncated();
    }

    /// Adds a field whose value is that of an HTTP header field. Line ends in folded lines become
    /// spaces (RFC 9112 §5.2).
    pub fn add_header_value(&mut self, field: Field, value: &[u8]) {
        let before = self.used;
        self.add_text(field, value);
        if memchr2(b'\r', b'\n', value).is_none() {
            return;
        }
        let added = self.room.get_mut(before + FIELD_HEADER_SIZE..self.used).unwrap_or_default();
        for byte in added.iter_mut().filter(|byte| matches!(byte, b'\r' | b'\n')) {
            *byte = b' ';
        }
    }

    /// Adds a field whose value is a number.
    pub fn add_number(&mut self, field: Field, number: u64) {
        let bytes = number.to_le_bytes();
        let used = 8 - number.leading_zeros() as usize / 8;
        self.add(field as u8, bytes.get(..used).unwrap_or_default());
    }

    /// Adds all fields of another record to this record. Marks this record, too, if the other is
    /// truncated.
    pub fn add_all_fields(&mut self, other: &Record<'_>) {
        self.inherit_truncation(other);
        for (field, value) in other.fields() {
            self.add(field as u8, value);
        }
    }

    /// Finishes the record and returns its length in bytes; 0 if the buffer has fewer than two
    /// bytes.
    #[must_use]
    pub fn finish(self) -> usize {
        match self.room.get_mut(self.used) {
            Some(mark) if self.cut && self.used > 0 => {
                *mark = OMITTED_MARKER;
                self.used + 1
            }
            _ => self.used,
        }
    }

    fn add(&mut self, field: u8, value: &[u8]) {
        let end = self.used + FIELD_HEADER_SIZE + value.len();
        let place = if end < self.room.len() { self.room.get_mut(self.used..end) } else { None };
        match (place, u16::try_from(value.len())) {
            (Some([number, low, high, bytes @ ..]), Ok(length)) => {
                *number = field;
                [*low, *high] = length.to_le_bytes();
                bytes.copy_from_slice(value);
                self.used = end;
            }
            _ => self.cut = true,
        }
    }
}

/// A reader of the fields of a message's description, over its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Record<'b> {
    kind: RecordKind,
    fields: &'b [u8],
}

impl<'b> Record<'b> {
    /// Returns a view of a record; `None` if there are no bytes or the kind is unknown.
    #[must_use]
    pub fn parse(bytes: &'b [u8]) -> Option<Self> {
        let (kind, fields) = bytes.split_first()?;
        Some(Self { kind: RecordKind::from_number(*kind)?, fields })
    }

    /// Returns the kind of message that the record describes.
    #[must_use]
    pub const fn kind(&self) -> RecordKind {
        self.kind
    }

    /// Iterates over the fields with their stored values, in the order in which they were added.
    /// Skips unknown fields.
    pub fn fields(&self) -> impl Iterator<Item = (Field, &'b [u8])> + use<'b> {
        let mut rest = self.fields;
        let mut next = move || {
            let [number, low, high, after @ ..] = rest else { return None };
            let length = usize::from(u16::from_le_bytes([*low, *high]));
            let value = after.get(..length)?;
            rest = after.get(length..)?;
            Some((Field::from_number(*number), value))
        };
        core::iter::from_fn(move || {
            loop {
                if let (Some(field), value) = next()? {
                    return Some((field, value));
                }
            }
        })
    }

    /// Returns the value of a field's first occurrence; `None` if the record does not contain the
    /// field.
    #[must_use]
    pub fn text(&self, field: Field) -> Option<&'b [u8]> {
        self.fields().find(|(found, _)| *found == field).map(|(_, value)| value)
    }

    /// Returns the value of a field as a number; `None` if the field is absent or its value is not
    /// a number.
    #[must_use]
    pub fn number(&self, field: Field) -> Option<u64> {
        self.text(field).and_then(decode_number)
    }

    /// Returns true if fields were omitted from the record, or a text was truncated.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.fields.last() == Some(&OMITTED_MARKER) && self.ends_with_omitted_marker()
    }

    fn ends_with_omitted_marker(&self) -> bool {
        let fields: usize = self.field_lengths().sum();
        fields + 1 == self.fields.len()
    }

    fn field_lengths(&self) -> impl Iterator<Item = usize> + '_ {
        let mut rest = self.fields;
        core::iter::from_fn(move || {
            let [_, low, high, after @ ..] = rest else { return None };
            let length = usize::from(u16::from_le_bytes([*low, *high]));
            rest = after.get(length..)?;
            Some(FIELD_HEADER_SIZE + length)
        })
    }
}

/// Decodes the value of a number field; `None` if the value has more than 8 bytes.
#[must_use]
pub fn decode_number(value: &[u8]) -> Option<u64> {
    if value.len() > 8 {
        return None;
    }
    Some(value.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
