//! The tree of a pcap-filter expression.
//!
//! In: what the parser understood; out: what the generator walks. Every primitive stands here with
//! all its qualifiers: what the text inherits from the primitive before (`port 80 or 443`) has been
//! filled in, and every node knows its place in the text.

use std::net::Ipv6Addr;
use std::ops::Range;

/// A place in the text, in bytes.
pub(crate) type Span = Range<usize>;

/// A protocol that can be asked for, indexed, or qualify an address.
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
    Decnet,
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

/// Which of a frame's addresses or ports is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
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

/// What kind of thing an identifier names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Host,
    Net,
    Port,
    PortRange,
    Gateway,
    Protocol,
    ProtocolChain,
}

/// The qualifiers of an identifier; `None` where the text has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Qualifiers {
    pub(crate) protocol: Option<Protocol>,
    pub(crate) way: Option<Way>,
    pub(crate) kind: Option<Kind>,
}

/// An identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Id {
    /// A name, to be looked up.
    Name(String),
    /// A number.
    Number(u32),
    /// One to four decimal parts with dots, as written.
    Dotted(String),
    /// Dotted parts with a prefix length.
    DottedPrefix(String, u32),
    /// Dotted parts with a mask.
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
    /// All must hold, asked from left to right.
    All(Vec<Self>),
    /// One must hold, asked from left to right.
    Any(Vec<Self>),
    /// It must not hold.
    Not(Box<Self>),
    /// A primitive and where it stands.
    Leaf(Primitive, Span),
}

/// A question about a frame.
#[derive(Debug)]
pub(crate) enum Primitive {
    /// A protocol by itself.
    Protocol(Protocol),
    /// An identifier with its qualifiers.
    Id(Qualifiers, Id),
    /// A comparison of two values.
    Relation { op: Relation, left: Arithmetic, right: Arithmetic },
    /// Broadcast in the given protocol.
    Broadcast(Option<Protocol>),
    /// Multicast in the given protocol.
    Multicast(Option<Protocol>),
    /// At most that long.
    Less(u32),
    /// At least that long.
    Greater(u32),
    /// A byte of the link header.
    Byte { offset: u32, op: ByteOp, value: u32 },
    /// Sent by this host, or not.
    Direction { outbound: bool },
    /// Seen on that interface.
    Interface(u32),
    /// A header that shifts what follows, with its number if one was asked for.
    Encapsulation(Encapsulation, Option<u32>),
    /// A PF log field.
    PfInterface(String),
    /// A PF log field.
    PfRuleset(String),
    /// A PF log field of a number.
    PfNumber(PfField, u32),
    /// The type and subtype of an 802.11 frame.
    WlanType { value: u32, mask: u32 },
    /// The direction bits of an 802.11 frame.
    WlanDirection(u32),
    /// Logical link control.
    Llc(Llc),
    /// A named ATM channel or message.
    Atm(Atm),
    /// An ATM field.
    AtmField(AtmField, Relation, u32),
    /// A signal unit of MTP2.
    Mtp2(Mtp2),
    /// A field of MTP3.
    Mtp3Field(Mtp3Field, Relation, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
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
pub(crate) enum PfField {
    Rule,
    Subrule,
    Reason,
    Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Llc {
    Any,
    Information,
    Supervisory(Option<u32>),
    Unnumbered(Option<u32>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atm {
    Lane,
    Metac,
    Bcc,
    OamF4Segment,
    OamF4End,
    Sc,
    Ilmic,
    Oam,
    OamF4,
    ConnectMessage,
    MetaConnect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtmField {
    Vpi,
    Vci,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mtp2 {
    Fisu,
    Lssu,
    Msu,
    HighFisu,
    HighLssu,
    HighMsu,
}

/// A field of MTP3; `high` is its place behind a high-speed MTP2 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mtp3Field {
    pub(crate) field: Mtp3,
    pub(crate) high: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mtp3 {
    Sio,
    Opc,
    Dpc,
    Sls,
}

/// A value computed from the frame.
#[derive(Debug)]
pub(crate) enum Arithmetic {
    Number(u32),
    Length,
    Index { protocol: Protocol, offset: Box<Self>, size: u32, span: Span },
    Negate(Box<Self>),
    Binary { op: BinaryOp, left: Box<Self>, right: Box<Self>, span: Span },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BinaryOp {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    And,
    Or,
    Xor,
    Left,
    Right,
}

impl Protocol {
    /// The word for the protocol in the language.
    pub(crate) fn word(self) -> &'static str {
        super::names::PROTOCOLS.iter().find(|(_, p)| *p == self).map_or("?", |(word, _)| word)
    }
}

impl Way {
    /// The words for the direction in the language.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Source => "src",
            Self::Target => "dst",
            Self::Either => "src or dst",
            Self::Both => "src and dst",
            Self::Address1 => "addr1",
            Self::Address2 => "addr2",
            Self::Address3 => "addr3",
            Self::Address4 => "addr4",
            Self::Receiver => "ra",
            Self::Transmitter => "ta",
        }
    }
}

impl Kind {
    /// The word for the kind in the language.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Net => "net",
            Self::Port => "port",
            Self::PortRange => "portrange",
            Self::Gateway => "gateway",
            Self::Protocol => "proto",
            Self::ProtocolChain => "protochain",
        }
    }
}

/// An identifier as it is written, for messages.
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
