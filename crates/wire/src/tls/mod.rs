//! TLS records and the two hellos (RFC 8446 §4.1, §5.1, and its forebears down to SSL 3.0).
//!
//! In: the bytes at the beginning of one direction of a connection. Out: its first hello, behind
//! whatever may stand before it, gathered over records if need be ([`begin`]), and views of a
//! ClientHello and a ServerHello: versions, cipher suites, extensions in their order, GREASE (RFC
//! 8701) included. Nothing is decrypted, nothing behind the hellos is read.
//!
//! Hostile bytes: a hello is at most [`HELLO_MAX`] bytes long, its records together at most
//! [`BEGIN_MAX`]; every list is walked once and ends where its length or the bytes end. What is not
//! recognised: SSL 2.0, also as the form of a first message, and DTLS.

mod cipher;
mod hello;
#[cfg(test)]
mod tests;

pub use cipher::Cipher;
pub use hello::{ClientHello, Extensions, ServerHello, Words, extension};

use crate::read::{array, be16};
use core::fmt;

/// The length of a record's header.
pub const RECORD: usize = 5;
/// The longest payload of a record: 2¹⁴ bytes, and 2,048 that ciphers may add (RFC 5246 §6.2.3).
pub const RECORD_MAX: usize = (1 << 14) + 2048;
/// The longest hello that is gathered.
pub const HELLO_MAX: usize = 1 << 15;
/// The most bytes of records that one hello may take.
pub const BEGIN_MAX: usize = 1 << 16;
/// What stands before a handshake message: its type and its length.
const MESSAGE: usize = 4;
/// The content type of changes of the cipher.
const CHANGE: u8 = 20;
/// The content type of alerts.
const ALERT: u8 = 21;
/// The content type of handshake messages.
pub const HANDSHAKE: u8 = 22;

/// A version of the protocol, as it stands on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version(pub u16);

impl Version {
    /// SSL 3.0.
    pub const SSL30: Self = Self(0x0300);
    /// TLS 1.0.
    pub const TLS10: Self = Self(0x0301);
    /// TLS 1.1.
    pub const TLS11: Self = Self(0x0302);
    /// TLS 1.2.
    pub const TLS12: Self = Self(0x0303);
    /// TLS 1.3.
    pub const TLS13: Self = Self(0x0304);

    /// The version that this is, drafts of TLS 1.3 (`7f xx`, and `fb xx` of one large site) being
    /// TLS 1.3; nothing if there is none.
    #[must_use]
    pub const fn known(self) -> Option<Self> {
        match self.0 {
            0x0300..=0x0304 => Some(self),
            0x7f0e..=0x7f1c | 0xfb17..=0xfb1a => Some(Self::TLS13),
            _ => None,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some(Self::SSL30) => f.write_str("SSL 3.0"),
            Some(known) => write!(f, "1.{}", known.0 - Self::TLS10.0),
            None => write!(f, "0x{:04x}", self.0),
        }
    }
}

/// Whether this is one of the sixteen values that say nothing (RFC 8701 §2).
#[must_use]
pub const fn is_grease(value: u16) -> bool {
    let [high, low] = value.to_be_bytes();
    high == low && high & 0x0f == 0x0a
}

/// The header of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// What the payload is: 20 to 24.
    pub content: u8,
    /// The version that the record states; of a hello it says little.
    pub version: Version,
    /// The length of the payload.
    pub length: u16,
}

impl RecordHeader {
    /// Reads a header; nothing if the bytes end before it does, or cannot be one.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let [content, ..] = array::<RECORD>(bytes, 0)?;
        let (version, length) = (Version(be16(bytes, 1)?), be16(bytes, 3)?);
        let likely = matches!(content, 20..=24)
            && version.0 >> 8 == 3
            && version.known().is_some()
            && usize::from(length) <= RECORD_MAX;
        likely.then_some(Self { content, version, length })
    }
}

/// What the first bytes of a direction are.
#[derive(Clone, Copy, Debug)]
pub enum Begin<'b> {
    /// Too few bytes to tell: at least so many are needed.
    Need(usize),
    /// A ClientHello.
    Client(ClientHello<'b>),
    /// A ServerHello.
    Server(ServerHello<'b>),
    /// A hello that contradicts itself.
    Malformed,
    /// A hello of more than [`HELLO_MAX`] bytes, or in too many records.
    TooLong,
    /// Records of TLS that begin with an alert that ends the connection.
    Alert,
    /// Records of TLS that begin with something else.
    NoHello,
    /// No records of TLS.
    NotTls,
}

/// Looks at the first bytes of a direction. `room` is where a message is gathered that spans
/// records; what was in it is overwritten. Passed over is what may stand before a hello: warnings,
/// empty records, a change of cipher that says nothing (RFC 8446 §5), requests to begin anew (RFC
/// 5246 §7.4.1.1).
pub fn begin<'b>(bytes: &'b [u8], room: &'b mut Vec<u8>) -> Begin<'b> {
    let mut at = 0;
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        if at > BEGIN_MAX {
            return Begin::TooLong;
        }
        if !could_be_record(rest) {
            return Begin::NotTls;
        }
        if rest.len() < RECORD {
            // The next byte may show that it is something else.
            return Begin::Need(at + rest.len() + 1);
        }
        let Some(first) = RecordHeader::parse(rest) else { return Begin::NotTls };
        let whole = RECORD + usize::from(first.length);
        let before = match before_hello(first, rest) {
            Before::All => {
                at += whole;
                continue;
            }
            Before::More(more) => return Begin::Need(at + more),
            Before::Alert => return Begin::Alert,
            Before::Other => return Begin::NoHello,
            Before::Some(before) => before,
        };
        let kind = rest.get(RECORD + before).copied().unwrap_or(0);
        return match gather(rest, first, before, room) {
            Ok(message) => hello(kind, message),
            Err(Begin::Need(need)) => Begin::Need(at + need),
            Err(why) => why,
        };
    }
}

/// What a record has before a hello.
enum Before {
    /// All of it may stand there.
    All,
    /// So many bytes of its payload may; then a hello begins.
    Some(usize),
    /// So many bytes of it are needed to tell.
    More(usize),
    /// An alert behind which nothing comes.
    Alert,
    /// Something that follows a hello, or nothing that can be read.
    Other,
}

fn before_hello(record: RecordHeader, bytes: &[u8]) -> Before {
    const WARNING: u8 = 1;
    const CLOSE: u8 = 0;
    let length = usize::from(record.length);
    let payload = bytes.get(RECORD..).unwrap_or_default();
    let payload = payload.get(..length).unwrap_or(payload);
    match (record.content, payload) {
        _ if length == 0 => Before::All,
        (ALERT, _) if length == 2 => match payload {
            [WARNING] | [] => Before::More(RECORD + 2),
            [WARNING, what] if *what != CLOSE => Before::All,
            _ => Before::Alert,
        },
        (CHANGE, []) if length == 1 => Before::More(RECORD + 1),
        (CHANGE, [1]) if length == 1 => Before::All,
        (HANDSHAKE, _) => {
            let mut at = 0;
            while payload.get(at..at + MESSAGE) == Some(&[0; MESSAGE]) {
                at += MESSAGE;
            }
            match payload.get(at..).unwrap_or_default() {
                _ if at == length => Before::All,
                [] => Before::More(RECORD + at + MESSAGE.min(length - at)),
                [1 | 2, ..] => Before::Some(at),
                // The beginning of another request.
                rest @ [0, ..]
                    if rest.len() < MESSAGE.min(length - at)
                        && rest.iter().all(|byte| *byte == 0) =>
                {
                    Before::More(RECORD + at + MESSAGE.min(length - at))
                }
                _ => Before::Other,
            }
        }
        _ => Before::Other,
    }
}

/// Returns true if these bytes are whole records.
#[must_use]
pub fn ends_with_a_record(mut bytes: &[u8]) -> bool {
    while let Some(record) = RecordHeader::parse(bytes) {
        match bytes.get(RECORD + usize::from(record.length)..) {
            Some(rest) => bytes = rest,
            None => return false,
        }
    }
    bytes.is_empty()
}

fn hello(kind: u8, message: &[u8]) -> Begin<'_> {
    let body = message.get(MESSAGE..).unwrap_or_default();
    let read = match kind {
        1 => ClientHello::parse(body).map(Begin::Client),
        _ => ServerHello::parse(body).map(Begin::Server),
    };
    read.unwrap_or(Begin::Malformed)
}

/// Whether the first three bytes, as far as they are here, can begin a record.
fn could_be_record(bytes: &[u8]) -> bool {
    let may = |at: usize, fits: fn(u8) -> bool| bytes.get(at).is_none_or(|byte| fits(*byte));
    may(0, |content| matches!(content, 20..=24)) && may(1, |major| major == 3) && may(2, |b| b <= 4)
}

/// The handshake message with its header that begins behind `before` bytes of the first record:
/// where it lies, or put together in `room`.
fn gather<'b>(
    bytes: &'b [u8],
    first: RecordHeader,
    before: usize,
    room: &'b mut Vec<u8>,
) -> Result<&'b [u8], Begin<'b>> {
    let payload = bytes.get(RECORD + before..).unwrap_or_default();
    if let Some(length) = message_length(payload)
        && before + length <= usize::from(first.length)
    {
        return payload.get(..length).ok_or(Begin::Need(RECORD + before + length));
    }
    room.clear();
    let mut at = 0;
    loop {
        let wanted = message_length(room);
        if wanted.is_some_and(|length| length > HELLO_MAX) || at > BEGIN_MAX {
            return Err(Begin::TooLong);
        }
        let missing = wanted.unwrap_or(MESSAGE).saturating_sub(room.len());
        if missing == 0 {
            return Ok(room.get(..wanted.unwrap_or(MESSAGE)).unwrap_or_default());
        }
        if at > bytes.len() {
            // The last record goes on for so many bytes.
            let open = at - bytes.len();
            let next = if missing > open { RECORD + missing - open } else { 0 };
            return Err(Begin::Need(bytes.len() + missing.min(open) + next));
        }
        let rest = bytes.get(at..).unwrap_or_default();
        if rest.len() < RECORD {
            return Err(Begin::Need(at + RECORD + missing));
        }
        // Nothing stands between the parts of a handshake message in TLS 1.3 (RFC 8446 §5.1); in
        // the versions before, a warning may.
        let Some(header) = RecordHeader::parse(rest) else { return Err(Begin::Malformed) };
        let length = usize::from(header.length);
        if header.content == HANDSHAKE {
            let payload = rest.get(RECORD..).unwrap_or_default();
            let payload = payload.get(..length).unwrap_or(payload);
            let skipped = if at == 0 { before } else { 0 };
            room.extend_from_slice(payload.get(skipped..).unwrap_or_default());
        } else {
            match before_hello(header, rest) {
                Before::All => {}
                Before::More(more) => return Err(Begin::Need(at + more)),
                _ => return Err(Begin::Malformed),
            }
        }
        at += RECORD + length;
    }
}

/// The length of a handshake message with its header.
fn message_length(bytes: &[u8]) -> Option<usize> {
    let [_, high, middle, low] = array(bytes, 0)?;
    Some(MESSAGE + (usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low)))
}
