//! Parsers for TLS records, ClientHello and ServerHello (RFC 8446 §4.1, §5.1, and earlier versions
//! down to SSL 3.0).
//!
//! [`find_first_hello`] finds the first hello of one direction, skipping messages that may precede
//! the hello, and joining records if necessary. Views return versions, cipher suites and extensions
//! in order, including GREASE values (RFC 8701). No bytes are decrypted, and bytes after the hello
//! are not read.
//!
//! Hostile input: a hello has at most [`HELLO_LENGTH_MAX`] bytes, in records of at most
//! [`SEARCHED_BYTES_MAX`] bytes in total; every function walks a list at most once. Not supported:
//! SSL 2.0, even as a first message, and DTLS.

mod cipher;
mod hello;
#[cfg(test)]
mod tests;

pub use cipher::CipherSuite;
pub use hello::{ClientHello, Extensions, ServerHello, U16List, extension};

use crate::read::{be16, read_array};
use core::fmt;

/// Length of a TLS record header in bytes.
pub const RECORD_HEADER_SIZE: usize = 5;
/// Maximum length of a TLS record's payload in bytes: 2¹⁴, plus 2,048 of expansion by encryption
/// (RFC 5246 §6.2.3).
pub const RECORD_PAYLOAD_MAX: usize = (1 << 14) + 2048;
/// Maximum length of a hello in bytes.
pub const HELLO_LENGTH_MAX: usize = 1 << 15;
/// Maximum number of bytes examined in the search for one hello.
pub const SEARCHED_BYTES_MAX: usize = 1 << 16;
/// Length in bytes of the header of a handshake message: type and length.
const HANDSHAKE_HEADER_SIZE: usize = 4;
/// Content type of a record with a ChangeCipherSpec message.
const CHANGE_CIPHER_SPEC: u8 = 20;
/// Content type of a record with alerts.
const ALERT: u8 = 21;
/// Content type of a record with handshake messages.
pub const HANDSHAKE: u8 = 22;

/// A protocol version, as a number on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version(pub u16);

impl Version {
    /// Version number of SSL 3.0.
    pub const SSL30: Self = Self(0x0300);
    /// Version number of TLS 1.0.
    pub const TLS10: Self = Self(0x0301);
    /// Version number of TLS 1.1.
    pub const TLS11: Self = Self(0x0302);
    /// Version number of TLS 1.2.
    pub const TLS12: Self = Self(0x0303);
    /// Version number of TLS 1.3.
    pub const TLS13: Self = Self(0x0304);

    /// Returns the version, mapping drafts of TLS 1.3 (`7f xx`, and `fb xx` as used by one site) to
    /// TLS 1.3; `None` if the version is unknown.
    #[must_use]
    pub const fn normalized_version(self) -> Option<Self> {
        match self.0 {
            0x0300..=0x0304 => Some(self),
            0x7f0e..=0x7f1c | 0xfb17..=0xfb1a => Some(Self::TLS13),
            _ => None,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.normalized_version() {
            Some(Self::SSL30) => f.write_str("SSL 3.0"),
            Some(known) => write!(f, "1.{}", known.0 - Self::TLS10.0),
            None => write!(f, "0x{:04x}", self.0),
        }
    }
}

/// Returns true if the value is one of the sixteen GREASE values (RFC 8701 §2).
#[must_use]
pub const fn is_grease(value: u16) -> bool {
    let [high, low] = value.to_be_bytes();
    high == low && high & 0x0f == 0x0a
}

/// The header of a TLS record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// Content type of the record: 20 to 24.
    pub content_type: u8,
    /// Version that the record states. In a record with a hello, this version has little
    /// significance.
    pub version: Version,
    /// Length of the record's payload in bytes.
    pub length: u16,
}

impl RecordHeader {
    /// Parses a record header; `None` if the header is truncated or invalid.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let [content, ..] = read_array::<RECORD_HEADER_SIZE>(bytes, 0)?;
        let (version, length) = (Version(be16(bytes, 1)?), be16(bytes, 3)?);
        let likely = matches!(content, 20..=24)
            && version.0 >> 8 == 3
            && version.normalized_version().is_some()
            && usize::from(length) <= RECORD_PAYLOAD_MAX;
        likely.then_some(Self { content_type: content, version, length })
    }
}

/// The result of the search for the first hello in one direction.
#[derive(Clone, Copy, Debug)]
pub enum FirstHello<'b> {
    /// There are too few bytes to decide; the search needs at least this many bytes in total.
    NeedBytes(usize),
    /// The first hello is a ClientHello.
    Client(ClientHello<'b>),
    /// The first hello is a ServerHello.
    Server(ServerHello<'b>),
    /// The first hello is malformed.
    Malformed,
    /// The first hello exceeds [`HELLO_LENGTH_MAX`] bytes, or the messages and records before its
    /// end exceed [`SEARCHED_BYTES_MAX`] bytes.
    TooLong,
    /// The bytes are TLS, but begin with an alert that ends the connection.
    Alert,
    /// The bytes are TLS, but begin with a message other than a hello.
    NoHello,
    /// The bytes are not TLS.
    NotTls,
}

/// Finds the first hello in `bytes`, the first bytes of one direction. Skips messages that may
/// precede a hello: warnings, empty records, a dummy ChangeCipherSpec (RFC 8446 §5), and
/// HelloRequests (RFC 5246 §7.4.1.1). A message that spans records is assembled in `room`, whose
/// contents are overwritten.
pub fn find_first_hello<'b>(bytes: &'b [u8], room: &'b mut Vec<u8>) -> FirstHello<'b> {
    let mut at = 0;
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        if at > SEARCHED_BYTES_MAX {
            return FirstHello::TooLong;
        }
        if !can_begin_record(rest) {
            return FirstHello::NotTls;
        }
        if rest.len() < RECORD_HEADER_SIZE {
            // The next byte may rule out TLS.
            return FirstHello::NeedBytes(at + rest.len() + 1);
        }
        let Some(first) = RecordHeader::parse(rest) else { return FirstHello::NotTls };
        let whole = RECORD_HEADER_SIZE + usize::from(first.length);
        let before = match classify_preamble(first, rest) {
            Preamble::All => {
                at += whole;
                continue;
            }
            Preamble::More(more) => return FirstHello::NeedBytes(at + more),
            Preamble::Alert => return FirstHello::Alert,
            Preamble::Other => return FirstHello::NoHello,
            Preamble::Some(before) => before,
        };
        let kind = rest.get(RECORD_HEADER_SIZE + before).copied().unwrap_or(0);
        return match assemble_message(rest, first, before, room) {
            Ok(message) => parse_hello(kind, message),
            Err(FirstHello::NeedBytes(need)) => FirstHello::NeedBytes(at + need),
            Err(why) => why,
        };
    }
}

/// The leading part of a record that consists of messages that may precede a hello.
enum Preamble {
    /// The entire record may precede a hello.
    All,
    /// This many bytes of the payload may precede a hello, which begins after them.
    Some(usize),
    /// There are too few bytes to decide; the search needs this many bytes of the record.
    More(usize),
    /// The record is an alert that ends the connection.
    Alert,
    /// The record must not precede a hello, or is unreadable.
    Other,
}

fn classify_preamble(record: RecordHeader, bytes: &[u8]) -> Preamble {
    const WARNING: u8 = 1;
    const CLOSE_NOTIFY: u8 = 0;
    let length = usize::from(record.length);
    let payload = bytes.get(RECORD_HEADER_SIZE..).unwrap_or_default();
    let payload = payload.get(..length).unwrap_or(payload);
    match (record.content_type, payload) {
        _ if length == 0 => Preamble::All,
        (ALERT, _) if length == 2 => match payload {
            [WARNING] | [] => Preamble::More(RECORD_HEADER_SIZE + 2),
            [WARNING, what] if *what != CLOSE_NOTIFY => Preamble::All,
            _ => Preamble::Alert,
        },
        (CHANGE_CIPHER_SPEC, []) if length == 1 => Preamble::More(RECORD_HEADER_SIZE + 1),
        (CHANGE_CIPHER_SPEC, [1]) if length == 1 => Preamble::All,
        (HANDSHAKE, _) => {
            let mut at = 0;
            while payload.get(at..at + HANDSHAKE_HEADER_SIZE) == Some(&[0; HANDSHAKE_HEADER_SIZE]) {
                at += HANDSHAKE_HEADER_SIZE;
            }
            match payload.get(at..).unwrap_or_default() {
                _ if at == length => Preamble::All,
                [] => {
                    Preamble::More(RECORD_HEADER_SIZE + at + HANDSHAKE_HEADER_SIZE.min(length - at))
                }
                [1 | 2, ..] => Preamble::Some(at),
                // The beginning of another HelloRequest.
                rest @ [0, ..]
                    if rest.len() < HANDSHAKE_HEADER_SIZE.min(length - at)
                        && rest.iter().all(|byte| *byte == 0) =>
                {
                    Preamble::More(RECORD_HEADER_SIZE + at + HANDSHAKE_HEADER_SIZE.min(length - at))
                }
                _ => Preamble::Other,
            }
        }
        _ => Preamble::Other,
    }
}

/// Returns true if the bytes consist of complete records.
#[must_use]
pub fn consists_of_complete_records(mut bytes: &[u8]) -> bool {
    while let Some(record) = RecordHeader::parse(bytes) {
        match bytes.get(RECORD_HEADER_SIZE + usize::from(record.length)..) {
            Some(rest) => bytes = rest,
            None => return false,
        }
    }
    bytes.is_empty()
}

fn parse_hello(kind: u8, message: &[u8]) -> FirstHello<'_> {
    let body = message.get(HANDSHAKE_HEADER_SIZE..).unwrap_or_default();
    let read = match kind {
        1 => ClientHello::parse(body).map(FirstHello::Client),
        _ => ServerHello::parse(body).map(FirstHello::Server),
    };
    read.unwrap_or(FirstHello::Malformed)
}

/// Returns true if the first three bytes can begin a TLS record. Bytes that are not present yet may
/// have any value.
fn can_begin_record(bytes: &[u8]) -> bool {
    let may = |at: usize, fits: fn(u8) -> bool| bytes.get(at).is_none_or(|byte| fits(*byte));
    may(0, |content| matches!(content, 20..=24)) && may(1, |major| major == 3) && may(2, |b| b <= 4)
}

/// Returns the handshake message that begins after `before` bytes of the payload of the record
/// `first`. The message is either returned in place or assembled in `room`. If the message is
/// incomplete or invalid, returns the result of the search instead.
fn assemble_message<'b>(
    bytes: &'b [u8],
    first: RecordHeader,
    before: usize,
    room: &'b mut Vec<u8>,
) -> Result<&'b [u8], FirstHello<'b>> {
    let payload = bytes.get(RECORD_HEADER_SIZE + before..).unwrap_or_default();
    if let Some(length) = message_length(payload)
        && before + length <= usize::from(first.length)
    {
        return payload
            .get(..length)
            .ok_or(FirstHello::NeedBytes(RECORD_HEADER_SIZE + before + length));
    }
    room.clear();
    let mut at = 0;
    loop {
        let wanted = message_length(room);
        if wanted.is_some_and(|length| length > HELLO_LENGTH_MAX) || at > SEARCHED_BYTES_MAX {
            return Err(FirstHello::TooLong);
        }
        let missing = wanted.unwrap_or(HANDSHAKE_HEADER_SIZE).saturating_sub(room.len());
        if missing == 0 {
            return Ok(room.get(..wanted.unwrap_or(HANDSHAKE_HEADER_SIZE)).unwrap_or_default());
        }
        if at > bytes.len() {
            // Number of bytes that are missing from the last record.
            let open = at - bytes.len();
            let next = if missing > open { RECORD_HEADER_SIZE + missing - open } else { 0 };
            return Err(FirstHello::NeedBytes(bytes.len() + missing.min(open) + next));
        }
        let rest = bytes.get(at..).unwrap_or_default();
        if rest.len() < RECORD_HEADER_SIZE {
            return Err(FirstHello::NeedBytes(at + RECORD_HEADER_SIZE + missing));
        }
        // In TLS 1.3 nothing may separate parts of a handshake message (RFC 8446 §5.1); in earlier
        // versions a warning may.
        let Some(header) = RecordHeader::parse(rest) else { return Err(FirstHello::Malformed) };
        let length = usize::from(header.length);
        if header.content_type == HANDSHAKE {
            let payload = rest.get(RECORD_HEADER_SIZE..).unwrap_or_default();
            let payload = payload.get(..length).unwrap_or(payload);
            let skipped = if at == 0 { before } else { 0 };
            room.extend_from_slice(payload.get(skipped..).unwrap_or_default());
        } else {
            match classify_preamble(header, rest) {
                Preamble::All => {}
                Preamble::More(more) => return Err(FirstHello::NeedBytes(at + more)),
                _ => return Err(FirstHello::Malformed),
            }
        }
        at += RECORD_HEADER_SIZE + length;
    }
}

/// Returns the length in bytes of a handshake message, including its header; `None` if the header
/// is truncated.
fn message_length(bytes: &[u8]) -> Option<usize> {
    let [_, high, middle, low] = read_array(bytes, 0)?;
    Some(
        HANDSHAKE_HEADER_SIZE
            + (usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low)),
    )
}
