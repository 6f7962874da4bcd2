//! Parameters of SVCB and HTTPS records (RFC 9460), and their presentation format.

use super::name::write_escaped;
use crate::read::be16;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use core::fmt::{self, Write as _};
use core::net::{Ipv4Addr, Ipv6Addr};

/// The parameters of an SVCB or HTTPS record, all of which are well-formed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServiceParameters<'m>(&'m [u8]);

const MANDATORY_KEY: u16 = 0;
const ALPN_KEY: u16 = 1;
const NO_DEFAULT_ALPN_KEY: u16 = 2;
const PORT_KEY: u16 = 3;
const IPV4_HINT_KEY: u16 = 4;
const ECH_KEY: u16 = 5;
const IPV6_HINT_KEY: u16 = 6;

/// Names of the SVCB parameters, indexed by key.
const PARAMETER_NAMES: [&str; 7] =
    ["mandatory", "alpn", "no-default-alpn", "port", "ipv4hint", "ech", "ipv6hint"];

impl<'m> ServiceParameters<'m> {
    /// Parses the parameters. Returns `None` if a value contradicts its key, if a parameter is
    /// truncated, or if the keys do not ascend (RFC 9460 §2.2).
    pub(super) fn parse(bytes: &'m [u8]) -> Option<Self> {
        let (mut rest, mut least) = (bytes, 0);
        while !rest.is_empty() {
            let (key, value, after) = split_first_parameter(rest)?;
            if u32::from(key) < least || !is_valid_parameter_value(key, value) {
                return None;
            }
            (rest, least) = (after, u32::from(key) + 1);
        }
        Some(Self(bytes))
    }

    /// Iterates over the keys and values of the parameters.
    fn iter(self) -> impl Iterator<Item = (u16, &'m [u8])> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let (key, value, after) = split_first_parameter(rest)?;
            rest = after;
            Some((key, value))
        })
    }
}

/// Splits off the first parameter. Returns its key, its value and the bytes after it, or `None` if
/// the parameter is truncated.
fn split_first_parameter(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (key, length) = (be16(bytes, 0)?, be16(bytes, 2)?);
    let (value, after) = bytes.get(4..)?.split_at_checked(length.into())?;
    Some((key, value, after))
}

/// Returns true if the value has the form that RFC 9460 §7 and §8 require for the key.
fn is_valid_parameter_value(key: u16, value: &[u8]) -> bool {
    let is_list_of = |size: usize| !value.is_empty() && value.len().is_multiple_of(size);
    match key {
        MANDATORY_KEY => is_list_of(2),
        ALPN_KEY => !value.is_empty() && is_alpn_list(value),
        NO_DEFAULT_ALPN_KEY => value.is_empty(),
        PORT_KEY => value.len() == 2,
        IPV4_HINT_KEY => is_list_of(4),
        IPV6_HINT_KEY => is_list_of(16),
        ECH_KEY => !value.is_empty(),
        _ => true,
    }
}

/// Returns true if the bytes are a sequence of length-prefixed ALPN protocols, none of which is
/// empty.
fn is_alpn_list(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while let Some((&length, after)) = rest.split_first() {
        match after.get(usize::from(length)..) {
            Some(next) if length > 0 => rest = next,
            _ => return false,
        }
    }
    true
}

impl fmt::Display for ServiceParameters<'_> {
    /// Writes each parameter in presentation format, preceded by a space.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, value) in self.iter() {
            f.write_char(' ')?;
            write_parameter_key(f, key)?;
            if key != NO_DEFAULT_ALPN_KEY && !value.is_empty() {
                f.write_char('=')?;
                write_parameter_value(f, key, value)?;
            }
        }
        Ok(())
    }
}

fn write_parameter_key(f: &mut fmt::Formatter<'_>, key: u16) -> fmt::Result {
    match PARAMETER_NAMES.get(usize::from(key)) {
        Some(name) => f.write_str(name),
        None => write!(f, "key{key}"),
    }
}

fn write_parameter_value(f: &mut fmt::Formatter<'_>, key: u16, value: &[u8]) -> fmt::Result {
    match key {
        MANDATORY_KEY => write_comma_separated(f, value.as_chunks().0, |f, key| {
            write_parameter_key(f, u16::from_be_bytes(*key))
        }),
        ALPN_KEY => write_alpn_protocols(f, value),
        PORT_KEY => write!(f, "{}", be16(value, 0).unwrap_or(0)),
        IPV4_HINT_KEY => write_comma_separated(f, value.as_chunks().0, |f, ip| {
            write!(f, "{}", Ipv4Addr::from(*ip))
        }),
        IPV6_HINT_KEY => write_comma_separated(f, value.as_chunks().0, |f, ip| {
            write!(f, "{}", Ipv6Addr::from(*ip))
        }),
        ECH_KEY => write!(f, "{}", Base64Display::new(value, &STANDARD)),
        _ => {
            f.write_char('"')?;
            write_escaped(f, value, |byte| byte == b'"')?;
            f.write_char('"')
        }
    }
}

/// Writes items of `N` bytes each, separated by commas.
fn write_comma_separated<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    items: &[[u8; N]],
    write: impl Fn(&mut fmt::Formatter<'_>, &[u8; N]) -> fmt::Result,
) -> fmt::Result {
    for (number, item) in items.iter().enumerate() {
        if number > 0 {
            f.write_char(',')?;
        }
        write(f, item)?;
    }
    Ok(())
}

/// Writes ALPN protocols, separated by commas. A comma or a backslash in a protocol is escaped
/// twice: once for the list, and once for the text (RFC 9460 appendix A.1).
fn write_alpn_protocols(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    let mut rest = bytes;
    let mut first = true;
    while let Some((&length, after)) = rest.split_first() {
        let Some((protocol, next)) = after.split_at_checked(length.into()) else { break };
        rest = next;
        if !core::mem::take(&mut first) {
            f.write_char(',')?;
        }
        for byte in protocol {
            match byte {
                b',' => f.write_str("\\\\,")?,
                b'\\' => f.write_str("\\\\\\\\")?,
                _ => write_escaped(f, &[*byte], |byte| matches!(byte, b'"' | b';'))?,
            }
        }
    }
    Ok(())
}
