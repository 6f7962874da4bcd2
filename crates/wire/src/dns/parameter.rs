//! DNS parameters and their names (IANA, "Domain Name System (DNS) Parameters").

use core::fmt::{self, Write as _};

/// A DNS record type, as a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecordType(pub u16);

/// A DNS record class, as a number. Almost always 1 (Internet).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecordClass(pub u16);

/// A DNS response code of at most 12 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rcode(pub u16);

/// A 4-bit DNS operation code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Opcode(pub u8);

/// Record type of the pseudo-record OPT, which extends the message header (RFC 6891).
pub const OPT_RECORD_TYPE: RecordType = RecordType(41);

/// Record types and their names in lower case.
pub const RECORD_TYPE_NAMES: [(&str, u16); 54] = [
    ("a", 1),
    ("ns", 2),
    ("md", 3),
    ("mf", 4),
    ("cname", 5),
    ("soa", 6),
    ("mb", 7),
    ("mg", 8),
    ("mr", 9),
    ("null", 10),
    ("wks", 11),
    ("ptr", 12),
    ("hinfo", 13),
    ("minfo", 14),
    ("mx", 15),
    ("txt", 16),
    ("rp", 17),
    ("afsdb", 18),
    ("sig", 24),
    ("key", 25),
    ("aaaa", 28),
    ("loc", 29),
    ("nimloc", 32),
    ("srv", 33),
    ("naptr", 35),
    ("kx", 36),
    ("cert", 37),
    ("dname", 39),
    ("opt", 41),
    ("apl", 42),
    ("ds", 43),
    ("sshfp", 44),
    ("ipseckey", 45),
    ("rrsig", 46),
    ("nsec", 47),
    ("dnskey", 48),
    ("dhcid", 49),
    ("nsec3", 50),
    ("nsec3param", 51),
    ("tlsa", 52),
    ("smimea", 53),
    ("cds", 59),
    ("cdnskey", 60),
    ("openpgpkey", 61),
    ("svcb", 64),
    ("https", 65),
    ("spf", 99),
    ("tkey", 249),
    ("tsig", 250),
    ("ixfr", 251),
    ("axfr", 252),
    ("any", 255),
    ("uri", 256),
    ("caa", 257),
];

/// Response codes and their names in lower case.
pub const RCODE_NAMES: [(&str, u16); 20] = [
    ("noerror", 0),
    ("formerr", 1),
    ("servfail", 2),
    ("nxdomain", 3),
    ("notimp", 4),
    ("refused", 5),
    ("yxdomain", 6),
    ("yxrrset", 7),
    ("nxrrset", 8),
    ("notauth", 9),
    ("notzone", 10),
    ("dsotypeni", 11),
    ("badvers", 16),
    ("badkey", 17),
    ("badtime", 18),
    ("badmode", 19),
    ("badname", 20),
    ("badalg", 21),
    ("badtrunc", 22),
    ("badcookie", 23),
];

impl Opcode {
    /// Operation code of a standard query.
    pub const QUERY: Self = Self(0);
    /// Operation code of a server status request, whose format is not defined.
    pub const STATUS: Self = Self(2);
    /// Operation code of a dynamic update (RFC 2136).
    pub const UPDATE: Self = Self(5);
    /// Operation code of DNS stateful operations (RFC 8490).
    pub const STATEFUL_OPERATIONS: Self = Self(6);

    /// Returns true if IANA has assigned this operation code. Code 1 is the obsolete inverse query,
    /// and 4 a change notification.
    pub const fn is_assigned(self) -> bool {
        matches!(self.0, 0 | 1 | 2 | 4 | 5 | 6)
    }
}

impl fmt::Display for RecordType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name_or_number(f, &RECORD_TYPE_NAMES, "TYPE", self.0)
    }
}

impl fmt::Display for Rcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name_or_number(f, &RCODE_NAMES, "RCODE", self.0)
    }
}

impl fmt::Display for RecordClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CLASS_NAMES: [(&str, u16); 5] =
            [("in", 1), ("ch", 3), ("hs", 4), ("none", 254), ("any", 255)];
        write_name_or_number(f, &CLASS_NAMES, "CLASS", self.0)
    }
}

/// Writes the name of a number in upper case, as in master files. If the number has no name, writes
/// `word` followed by the number (RFC 3597 §5).
fn write_name_or_number(
    f: &mut fmt::Formatter<'_>,
    names: &[(&str, u16)],
    word: &str,
    number: u16,
) -> fmt::Result {
    match names.iter().find(|(_, value)| *value == number) {
        Some((name, _)) => name.chars().try_for_each(|c| f.write_char(c.to_ascii_uppercase())),
        None => write!(f, "{word}{number}"),
    }
}
