//! The syntax tree of a pcap-filter expression.
//!
//! Input: the parser's result. Output: the generator's input. Every primitive has all of its
//! qualifiers, including those inherited from the previous primitive (as in `port 80 or 443`).
//! Every leaf of the tree has a span in the text.

use std::net::Ipv6Addr;
use std::ops::Range;

use super::token::Keyword;
use super::word_tables;
use crate::insn::{Alu, Cond};

/// A range of byte offsets in the text of a pcap-filter expression.
pub(crate) type Span = Range<usize>;

/// A protocol, used as a test (`tcp`), as the header to index (`tcp[13]`), or to qualify an address
/// (`ip host`).
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

/// The *dir* qualifier of pcap-filter, which selects source or destination addresses or ports.
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

/// The *type* qualifier of pcap-filter: the kind of object that an identifier names.
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

/// The qualifiers of an identifier in a pcap-filter expression, each `None` if absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Qualifiers {
    pub(crate) protocol: Option<Protocol>,
    pub(crate) direction: Option<DirQualifier>,
    pub(crate) kind: Option<TypeQualifier>,
}

/// An identifier in a pcap-filter expression: a host, network, port or protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Identifier {
    /// A name that must be resolved.
    Name(String),
    /// A number, such as a port.
    Number(u32),
    /// Two to four numbers separated by dots, as written in the expression and not yet checked.
    Dotted(String),
    /// An IPv4 network: one to four bytes separated by dots, as written, and a prefix length.
    DottedPrefix(String, u32),
    /// An IPv4 network: one to four bytes separated by dots, and a mask in the same form, both as
    /// written.
    DottedMask(String, String),
    /// An IPv6 address and a prefix length.
    Ip6(Ipv6Addr, u32),
    /// A six-byte link-layer address.
    Mac([u8; 6]),
    /// A one-byte link-layer address, as ARCnet uses.
    Mac8(u8),
}

/// A node of the syntax tree of a pcap-filter expression.
#[derive(Debug)]
pub(crate) enum Tree {
    /// A conjunction, evaluated from left to right.
    All(Vec<Self>),
    /// A disjunction, evaluated from left to right.
    Any(Vec<Self>),
    /// A negation of another node.
    Not(Box<Self>),
    /// A primitive, and its span in the text.
    Leaf(Primitive, Span),
}

/// A primitive of the pcap-filter language: a single test of a frame.
#[derive(Debug)]
pub(crate) enum Primitive {
    /// A test for a protocol without further qualifiers.
    Protocol(Protocol),
    /// A test for an identifier, with its qualifiers.
    Id(Qualifiers, Identifier),
    /// A comparison of two computed values.
    Relation { op: Cond, left: Arithmetic, right: Arithmetic },
    /// A test for broadcast frames of the given protocol or, if it is `None`, of the link layer.
    Broadcast(Option<Protocol>),
    /// A test for multicast frames of the given protocol or, if it is `None`, of the link layer.
    Multicast(Option<Protocol>),
    /// A test for a frame length of at most this number of bytes.
    LengthAtMost(u32),
    /// A test for a frame length of at least this number of bytes.
    LengthAtLeast(u32),
    /// A comparison of one byte of the link header.
    Byte { offset: u32, op: ByteOp, value: u32 },
    /// A test for the direction of a frame: sent or received by this host.
    Direction { outbound: bool },
    /// A test for the interface index.
    Interface(u32),
    /// A test for an encapsulating header. The tests to its right apply to the headers inside the
    /// encapsulation. The number, if given, is the VLAN id, MPLS label, PPPoE session or tunnel id.
    Encapsulation(Encapsulation, Option<u32>),
    /// A test of the type and subtype of an 802.11 frame.
    WlanType { value: u32, mask: u32 },
    /// A test of the direction bits of an 802.11 frame.
    WlanDirection(u32),
    /// A test for frames with a logical link control (LLC) header, or with an LLC header of one
    /// kind.
    Llc(LlcFrameType),
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
pub(crate) enum LlcFrameType {
    Any,
    Information,
    Supervisory(Option<u32>),
    Unnumbered(Option<u32>),
}

/// An arithmetic expression that is computed from constants and the frame.
#[derive(Debug)]
pub(crate) enum Arithmetic {
    Number(u32),
    Length,
    Index { protocol: Protocol, offset: Box<Self>, size: u32, span: Span },
    Negate(Box<Self>),
    Binary { op: Alu, left: Box<Self>, right: Box<Self>, span: Span },
}

impl Protocol {
    /// Returns the keyword with which an expression names the protocol.
    pub(crate) fn keyword(self) -> &'static str {
        word_tables::find_word_with_value(word_tables::PROTOCOL_KEYWORDS, &self)
    }
}

impl DirQualifier {
    /// Returns true if the qualifier selects addresses that exist only in 802.11 frames.
    pub(crate) const fn is_wlan(self) -> bool {
        !matches!(self, Self::Source | Self::Target | Self::Either | Self::Both)
    }

    /// Returns the keywords with which an expression writes the qualifier.
    pub(crate) fn keywords(self) -> &'static str {
        match self {
            Self::Either => "src or dst",
            Self::Both => "src and dst",
            other => word_tables::find_word_with_value(word_tables::KEYWORDS, &Keyword::Dir(other)),
        }
    }
}

impl TypeQualifier {
    /// Returns the keyword with which an expression writes the qualifier.
    pub(crate) fn keyword(self) -> &'static str {
        word_tables::find_word_with_value(word_tables::KEYWORDS, &Keyword::Type(self))
    }
}

/// Formats an identifier as written in the expression.
pub(crate) fn format_id(id: &Identifier) -> String {
    match id {
        Identifier::Name(name) | Identifier::Dotted(name) => name.clone(),
        Identifier::Number(number) => number.to_string(),
        Identifier::DottedPrefix(address, length) => format!("{address}/{length}"),
        Identifier::DottedMask(address, mask) => format!("{address} mask {mask}"),
        Identifier::Ip6(address, 128) => address.to_string(),
        Identifier::Ip6(address, length) => format!("{address}/{length}"),
        Identifier::Mac(m) => {
            let [a, b, c, d, e, f] = m;
            format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
        }
        Identifier::Mac8(address) => format!("${address:02x}"),
    }
}
