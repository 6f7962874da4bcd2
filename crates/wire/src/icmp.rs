//! Type and code of ICMP messages for IPv4 (RFC 792) and IPv6 (RFC 4443).

use core::fmt;

/// The type and code of an ICMP message. Displayed by name, such as `echo request`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Icmp {
    version: u8,
    kind: u8,
    code: u8,
}

impl Icmp {
    /// Parses an ICMP message over IPv4; `None` if the message ends before the code.
    pub fn parse_icmpv4(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk().map(|&[kind, code]| Self { version: 4, kind, code })
    }

    /// Parses an ICMP message over IPv6; `None` if the message ends before the code.
    pub fn parse_icmpv6(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk().map(|&[kind, code]| Self { version: 6, kind, code })
    }
}

impl fmt::Display for Icmp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match (self.version, self.kind) {
            (4, 8) | (6, 128) => "echo request",
            (4, 0) | (6, 129) => "echo reply",
            (4, 3) | (6, 1) => "unreachable",
            (4, 11) | (6, 3) => "time exceeded",
            (6, 2) => "packet too big",
            (6, 133) => "router solicitation",
            (6, 134) => "router advertisement",
            (6, 135) => "neighbour solicitation",
            (6, 136) => "neighbour advertisement",
            (_, kind) => return write!(f, "type {kind} code {}", self.code),
        };
        f.write_str(name)?;
        if self.code != 0 { write!(f, " code {}", self.code) } else { Ok(()) }
    }
}
