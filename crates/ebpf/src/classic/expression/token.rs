//! Tokens of an expression.
//!
//! A [`Lexeme`] is a token and its span in the text. The span also yields the text of names and
//! addresses.

use std::net::Ipv6Addr;

use super::ast::{DirQualifier, Encapsulation, Protocol, Span, TypeQualifier};

/// A token and its span in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lexeme {
    pub(super) token: Token,
    pub(super) span: Span,
}

/// A token of a pcap-filter expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Protocol(Protocol),
    Word(Keyword),
    Number(u32),
    /// Two to four numbers separated by dots.
    Dotted,
    Ip6(Ipv6Addr),
    Mac([u8; 6]),
    Mac8(u8),
    Name,
    /// A name after a backslash. The backslash prevents the name from being read as a keyword.
    Escaped,
    Symbol(Symbol),
    End,
}

impl Token {
    /// Returns true for a name or an address. An identifier of this kind is a test only together
    /// with a qualifier.
    pub(super) fn is_name_or_address(self) -> bool {
        use Token::{Dotted, Escaped, Ip6, Mac, Mac8, Name};
        matches!(self, Name | Escaped | Dotted | Ip6(_) | Mac(_) | Mac8(_))
    }
}

/// A keyword of pcap-filter that is not a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keyword {
    And,
    Or,
    Not,
    /// A *dir* qualifier of pcap-filter that is a single word, such as `src`.
    Dir(DirQualifier),
    /// A *type* qualifier of pcap-filter, such as `host`.
    Type(TypeQualifier),
    Mask,
    WlanType,
    Subtype,
    Direction,
    Less,
    Greater,
    Byte,
    Broadcast,
    Multicast,
    Length,
    Inbound,
    Outbound,
    IfIndex,
    Encapsulation(Encapsulation),
    Llc,
    /// A keyword that libpcap supports and this compiler does not: one of
    /// [`UNSUPPORTED_KEYWORDS`](super::word_tables::UNSUPPORTED_KEYWORDS).
    Unsupported,
}

/// A punctuation symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symbol {
    Open,
    Close,
    BracketOpen,
    BracketClose,
    Colon,
    Plus,
    Minus,
    Star,
    Slash,
    Percent,
    Ampersand,
    Bar,
    Caret,
    ShiftLeft,
    ShiftRight,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Symbol {
    /// Returns true for operators and relations, which occur only next to arithmetic values.
    pub(super) fn is_operator_or_relation(self) -> bool {
        !matches!(
            self,
            Self::Open | Self::Close | Self::BracketOpen | Self::BracketClose | Self::Colon
        )
    }
}
