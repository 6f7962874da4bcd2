//! Data of resource records, and their formatting as text.
//!
//! Data of common types are formatted as in master files. Data of other types, and malformed data,
//! are formatted as `\# length hex` (RFC 3597 §5), limited to [`DISPLAYED_BYTES_MAX`] bytes.

use super::name::write_escaped;
use super::svcb::ServiceParameters;
use super::{DnsFault, Name, RecordType};
use crate::read::{be16, be32, read_array};
use core::fmt::{self, Write as _};
use core::net::{Ipv4Addr, Ipv6Addr};

/// Maximum number of data bytes in the hexadecimal format.
const DISPLAYED_BYTES_MAX: usize = 64;

/// The data field of a resource record in a DNS message.
#[derive(Clone, Copy, Debug)]
pub struct ResourceData<'m> {
    /// The DNS message from its start up to the end of the data. Compressed names in the data refer
    /// to earlier parts of the message.
    message: &'m [u8],
    at: usize,
    kind: RecordType,
}

impl<'m> ResourceData<'m> {
    pub(super) fn read(
        message: &'m [u8],
        kind: RecordType,
        at: usize,
        end: usize,
    ) -> Result<Self, DnsFault> {
        let message = message.get(..end).ok_or(DnsFault::Truncated(at))?;
        Ok(Self { message, at, kind })
    }

    /// Returns the data of the record as raw bytes.
    #[must_use]
    pub fn bytes(&self) -> &'m [u8] {
        self.message.get(self.at..).unwrap_or_default()
    }

    /// Returns the name in the data of a type whose data are a single name; `None` if they are
    /// malformed or of another type.
    #[must_use]
    fn name(&self) -> Option<Name<'m>> {
        match self.kind.0 {
            2..=5 | 7..=9 | 12 | 39 => self.name_at(0),
            _ => None,
        }
    }

    /// Parses the name from `offset` to the end of the data; `None` if the name does not end there.
    fn name_at(&self, offset: usize) -> Option<Name<'m>> {
        let (name, after) = Name::read(self.message, self.at + offset).ok()?;
        (after == self.message.len()).then_some(name)
    }

    fn be16(&self, offset: usize) -> Option<u16> {
        be16(self.message, self.at + offset)
    }

    /// Parses the data into the format of their record type. Returns `None` if the data are
    /// malformed or the type is not supported.
    fn parse_by_type(&self) -> Option<ParsedData<'m>> {
        let bytes = self.bytes();
        match self.kind.0 {
            1 => Some(ParsedData::Ipv4(<[u8; 4]>::try_from(bytes).ok()?.into())),
            28 => Some(ParsedData::Ipv6(<[u8; 16]>::try_from(bytes).ok()?.into())),
            15 | 18 | 36 => Some(ParsedData::Preferred(self.be16(0)?, self.name_at(2)?)),
            33 => {
                let numbers = [self.be16(0)?, self.be16(2)?, self.be16(4)?];
                Some(ParsedData::Service(numbers, self.name_at(6)?))
            }
            6 => self.parse_soa(),
            13 | 16 | 99 => is_string_sequence(bytes).then_some(ParsedData::Strings(bytes)),
            35 => self.parse_naptr(),
            257 => {
                let [flags, length] = read_array(bytes, 0)?;
                let tag = bytes.get(2..2 + usize::from(length))?;
                let value = bytes.get(2 + usize::from(length)..)?;
                Some(ParsedData::Issuer(flags, tag, value))
            }
            64 | 65 => {
                let (name, at) = Name::read(self.message, self.at + 2).ok()?;
                let parameters = ServiceParameters::parse(self.message.get(at..)?)?;
                Some(ParsedData::Endpoint(self.be16(0)?, name, parameters))
            }
            _ => self.name().map(ParsedData::Name),
        }
    }

    /// Parses the data of a NAPTR record: two numbers, three strings and a name.
    fn parse_naptr(&self) -> Option<ParsedData<'m>> {
        let numbers = [self.be16(0)?, self.be16(2)?];
        let mut at = 4;
        for _ in 0..3 {
            at += 1 + usize::from(*self.bytes().get(at)?);
        }
        Some(ParsedData::Pointer(numbers, self.bytes().get(4..at)?, self.name_at(at)?))
    }

    fn parse_soa(&self) -> Option<ParsedData<'m>> {
        let (server, at) = Name::read(self.message, self.at).ok()?;
        let (person, at) = Name::read(self.message, at).ok()?;
        let number = |n: usize| be32(self.message, at + 4 * n);
        let numbers = [number(0)?, number(1)?, number(2)?, number(3)?, number(4)?];
        (at + 20 == self.message.len()).then_some(ParsedData::Authority(server, person, numbers))
    }
}

/// Parsed data of a resource record, with one variant per format.
enum ParsedData<'m> {
    Ipv4(Ipv4Addr),
    Ipv6(Ipv6Addr),
    Name(Name<'m>),
    Preferred(u16, Name<'m>),
    Service([u16; 3], Name<'m>),
    Endpoint(u16, Name<'m>, ServiceParameters<'m>),
    Authority(Name<'m>, Name<'m>, [u32; 5]),
    Pointer([u16; 2], &'m [u8], Name<'m>),
    Strings(&'m [u8]),
    Issuer(u8, &'m [u8], &'m [u8]),
}

impl fmt::Display for ResourceData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parse_by_type() {
            Some(ParsedData::Ipv4(address)) => write!(f, "{address}"),
            Some(ParsedData::Ipv6(address)) => write!(f, "{address}"),
            Some(ParsedData::Name(name)) => write!(f, "{name}"),
            Some(ParsedData::Preferred(number, name)) => write!(f, "{number} {name}"),
            Some(ParsedData::Endpoint(priority, name, parameters)) => {
                write!(f, "{priority} {name}{parameters}")
            }
            Some(ParsedData::Service([priority, weight, port], name)) => {
                write!(f, "{priority} {weight} {port} {name}")
            }
            Some(ParsedData::Authority(
                server,
                person,
                [serial, refresh, retry, expire, least],
            )) => {
                write!(f, "{server} {person} {serial} {refresh} {retry} {expire} {least}")
            }
            Some(ParsedData::Pointer([order, preference], words, name)) => {
                write!(f, "{order} {preference} ")?;
                write_character_strings(f, words)?;
                write!(f, " {name}")
            }
            Some(ParsedData::Strings(bytes)) => write_character_strings(f, bytes),
            Some(ParsedData::Issuer(flags, tag, value)) => {
                write!(f, "{flags} ")?;
                write_escaped(f, tag, |byte| byte == b'"')?;
                f.write_char(' ')?;
                write_quoted(f, value)
            }
            None => write_unknown_rdata(f, self.bytes()),
        }
    }
}

/// Returns true if the bytes are a sequence of length-prefixed strings.
fn is_string_sequence(mut bytes: &[u8]) -> bool {
    while let Some((length, after)) = bytes.split_first() {
        match after.get(usize::from(*length)..) {
            Some(rest) => bytes = rest,
            None => return false,
        }
    }
    true
}

fn write_character_strings(f: &mut fmt::Formatter<'_>, mut bytes: &[u8]) -> fmt::Result {
    let mut first = true;
    while let Some((length, after)) = bytes.split_first() {
        let Some((string, rest)) = after.split_at_checked(usize::from(*length)) else { break };
        if !core::mem::take(&mut first) {
            f.write_char(' ')?;
        }
        write_quoted(f, string)?;
        bytes = rest;
    }
    Ok(())
}

fn write_quoted(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    f.write_char('"')?;
    for (number, words) in bytes.split(|byte| *byte == b' ').enumerate() {
        if number > 0 {
            f.write_char(' ')?;
        }
        write_escaped(f, words, |byte| byte == b'"')?;
    }
    f.write_char('"')
}

fn write_unknown_rdata(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    write!(f, "\\# {}", bytes.len())?;
    if !bytes.is_empty() {
        f.write_char(' ')?;
    }
    let displayed = bytes.get(..DISPLAYED_BYTES_MAX).unwrap_or(bytes);
    displayed.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
    if displayed.len() < bytes.len() { f.write_str("...") } else { Ok(()) }
}
