//! The syntax tree of a pcap-filter expression.
//!
//! Input: the parser's result. Output: the generator's input. Every primitive carries all its
//! qualifiers: those inherited from the previous primitive (`port 80 or 443`) are filled in. Every
//! node has its span in the text.

use std::net::Ipv6Addr;
use std::ops::Range;

use super::names;
use super::token::Keyword;
use crate::insn::{Alu, Cond};

/// A span of the text, in bytes.
pub(crate) type Span = Range<usize>;

/// A protocol to test for, to index, or to qualify an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
    Link,
    Ip,
    Ip6,
    Arp,
    Rarp,
    Tcp,
    Udp,
    Sctp,
    Icmp,
    Icmp6,
    Igmp,
    Igrp,
    Pim,
    Vrrp,
    Carp,
    Ah,
    Esp,
    Atalk,
    Aarp,
    Lat,
    Sca,
    Moprc,
    Mopdl,
    Iso,
    Esis,
    Isis,
    Clnp,
    IsisL1,
    IsisL2,
    IsisIih,
    IsisLsp,
    IsisSnp,
    IsisCsnp,
    IsisPsnp,
    Stp,
    Ipx,
    Netbeui,
    Radio,
}

/// The *dir* qualifier: the address or port of a frame that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirQualifier {
    Source,
    Target,
    Either,
    Both,
    Address1,
    Address2,
    Address3,
    Address4,
    Receiver,
    Transmitter,
}

/// The *type* qualifier: the kind of object that an identifier names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TypeQualifier {
    Host,
    Net,
    Port,
    PortRange,
    Gateway,
    Protocol,
    ProtocolChain,
}

/// The qualifiers of an identifier; `None` where absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Qualifiers {
    pub(crate) protocol: Option<Protocol>,
    pub(crate) direction: Option<DirQualifier>,
    pub(crate) kind: Option<TypeQualifier>,
}

/// An identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Id {
    /// A name to resolve.
    Name(String),
    /// A number.
    Number(u32),
    /// One to four decimal bytes with dots, as written.
    Dotted(String),
    /// Dotted bytes with a prefix length.
    DottedPrefix(String, u32),
    /// Dotted bytes with a mask.
    DottedMask(String, String),
    /// An IPv6 address and its prefix length.
    Ip6(Ipv6Addr, u32),
    /// A link address of six bytes.
    Mac([u8; 6]),
    /// A link address of one byte.
    Mac8(u8),
}

/// A node of the tree.
#[derive(Debug)]
pub(crate) enum Tree {
    /// Conjunction, evaluated from left to right.
    All(Vec<Self>),
    /// Disjunction, evaluated from left to right.
    Any(Vec<Self>),
    /// Negation.
    Not(Box<Self>),
    /// A primitive and its span.
    Leaf(Primitive, Span),
}

/// A test of a frame.
#[derive(Debug)]
pub(crate) enum Primitive {
    /// A bare protocol.
    Protocol(Protocol),
    /// An identifier with its qualifiers.
    Id(Qualifiers, Id),
    /// A comparison of two values.
    Relation { op: Cond, left: Arithmetic, right: Arithmetic },
    /// Broadcast in the given protocol.
    Broadcast(Option<Protocol>),
    /// Multicast in the given protocol.
    Multicast(Option<Protocol>),
    /// Length at most the given number.
    Less(u32),
    /// Length at least the given number.
    Greater(u32),
    /// A byte of the link header.
    Byte { offset: u32, op: ByteOp, value: u32 },
    /// Direction: sent by this host, or received.
    Direction { outbound: bool },
    /// Interface index.
    Interface(u32),
    /// A header that shifts everything to its right, with its number if one is given.
    Encapsulation(Encapsulation, Option<u32>),
    /// The type and subtype of an 802.11 frame.
    WlanType { value: u32, mask: u32 },
    /// The direction bits of an 802.11 frame.
    WlanDirection(u32),
    /// Logical link control.
    Llc(Llc),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteOp {
    Equal,
    Less,
    Greater,
    And,
    Or,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encapsulation {
    Vlan,
    Mpls,
    PppoeDiscovery,
    PppoeSession,
    Geneve,
    Vxlan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Llc {
    Any,
    Information,
    Supervisory(Option<u32>),
    Unnumbered(Option<u32>),
}

/// A numeric value computed from the frame.
#[derive(Debug)]
pub(crate) enum Arithmetic {
    Number(u32),
    Length,
    Index { protocol: Protocol, offset: Box<Self>, size: u32, span: Span },
    Negate(Box<Self>),
    Binary { op: Alu, left: Box<Self>, right: Box<Self>, span: Span },
}

impl Protocol {
    /// Returns the protocol's keyword.
    pub(crate) fn word(self) -> &'static str {
        names::first(names::PROTOCOLS, &self)
    }
}

impl DirQualifier {
    /// Returns true for the addresses that only 802.11 frames have.
    pub(crate) const fn is_wlan(self) -> bool {
        !matches!(self, Self::Source | Self::Target | Self::Either | Self::Both)
    }

    /// Returns the qualifier's keywords.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Either => "src or dst",
            Self::Both => "src and dst",
            other => names::first(names::WORDS, &Keyword::Dir(other)),
        }
    }
}

impl TypeQualifier {
    /// Returns the qualifier's keyword.
    pub(crate) fn word(self) -> &'static str {
        names::first(names::WORDS, &Keyword::Type(self))
    }
}

/// Formats an identifier as written, for messages.
pub(crate) fn describe(id: &Id) -> String {
    match id {
        Id::Name(name) | Id::Dotted(name) => name.clone(),
        Id::Number(number) => number.to_string(),
        Id::DottedPrefix(address, length) => format!("{address}/{length}"),
        Id::DottedMask(address, mask) => format!("{address} mask {mask}"),
        Id::Ip6(address, 128) => address.to_string(),
        Id::Ip6(address, length) => format!("{address}/{length}"),
        Id::Mac(m) => {
            let [a, b, c, d, e, f] = m;
            format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
        }
        Id::Mac8(address) => format!("${address:02x}"),
    }
}
