//! Tokens of an expression.
//!
//! A [`Lexeme`] is a token and its span; tokens with text are read from their span.

use std::net::Ipv6Addr;

use super::ast::{Protocol, Span};

/// A token and its span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lexeme {
    pub(super) token: Token,
    pub(super) span: Span,
}

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Protocol(Protocol),
    Word(Keyword),
    Number(u32),
    /// Two to four decimal numbers with dots.
    Dotted,
    Ip6(Ipv6Addr),
    Mac([u8; 6]),
    Mac8(u8),
    Name,
    /// A name behind a backslash, which keeps it from being a keyword.
    Escaped,
    Symbol(Symbol),
    End,
}

/// A keyword that is no protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keyword {
    And,
    Or,
    Not,
    Source,
    Target,
    Host,
    Net,
    Mask,
    Port,
    PortRange,
    Proto,
    ProtoChain,
    Gateway,
    Type,
    Subtype,
    Direction,
    Address1,
    Address2,
    Address3,
    Address4,
    Receiver,
    Transmitter,
    Less,
    Greater,
    Byte,
    Broadcast,
    Multicast,
    Length,
    Inbound,
    Outbound,
    IfIndex,
    Vlan,
    Mpls,
    Pppoed,
    Pppoes,
    Geneve,
    Vxlan,
    Llc,
    /// A word of [`FOREIGN`](super::names::FOREIGN).
    Foreign,
}

/// Punctuation.
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
    /// Returns true if the symbol can only continue a value.
    pub(super) fn continues_value(self) -> bool {
        !matches!(
            self,
            Self::Open | Self::Close | Self::BracketOpen | Self::BracketClose | Self::Colon
        )
    }
}
