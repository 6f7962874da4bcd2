//! Vocabulary of pcap-filter expressions: keywords, named numbers, and the names in 802.11, LLC,
//! link-layer and ISO tests.
//!
//! Input: a word. Output: its meaning. Keywords follow pcap-filter(7). The names of services and IP
//! protocols are in `resolve`.

use super::ast::{DirQualifier, Encapsulation, Protocol, TypeQualifier};
use super::token::Keyword;

/// Protocol keywords. If a protocol has several keywords, messages use the first.
pub(super) const PROTOCOL_KEYWORDS: &[(&str, Protocol)] = &[
    ("link", Protocol::Link),
    ("ether", Protocol::Link),
    ("ppp", Protocol::Link),
    ("slip", Protocol::Link),
    ("fddi", Protocol::Link),
    ("tr", Protocol::Link),
    ("wlan", Protocol::Link),
    ("ip", Protocol::Ip),
    ("ip6", Protocol::Ip6),
    ("arp", Protocol::Arp),
    ("rarp", Protocol::Rarp),
    ("tcp", Protocol::Tcp),
    ("udp", Protocol::Udp),
    ("sctp", Protocol::Sctp),
    ("icmp", Protocol::Icmp),
    ("icmp6", Protocol::Icmp6),
    ("igmp", Protocol::Igmp),
    ("igrp", Protocol::Igrp),
    ("pim", Protocol::Pim),
    ("vrrp", Protocol::Vrrp),
    ("carp", Protocol::Carp),
    ("ah", Protocol::Ah),
    ("esp", Protocol::Esp),
    ("atalk", Protocol::Atalk),
    ("aarp", Protocol::Aarp),
    ("lat", Protocol::Lat),
    ("sca", Protocol::Sca),
    ("moprc", Protocol::Moprc),
    ("mopdl", Protocol::Mopdl),
    ("iso", Protocol::Iso),
    ("esis", Protocol::Esis),
    ("es-is", Protocol::Esis),
    ("isis", Protocol::Isis),
    ("is-is", Protocol::Isis),
    ("clnp", Protocol::Clnp),
    ("l1", Protocol::IsisL1),
    ("l2", Protocol::IsisL2),
    ("iih", Protocol::IsisIih),
    ("lsp", Protocol::IsisLsp),
    ("snp", Protocol::IsisSnp),
    ("csnp", Protocol::IsisCsnp),
    ("psnp", Protocol::IsisPsnp),
    ("stp", Protocol::Stp),
    ("ipx", Protocol::Ipx),
    ("netbeui", Protocol::Netbeui),
    ("radio", Protocol::Radio),
];

/// Keywords of pcap-filter that denote neither protocols nor numbers.
pub(super) const KEYWORDS: &[(&str, Keyword)] = &[
    ("and", Keyword::And),
    ("or", Keyword::Or),
    ("not", Keyword::Not),
    ("src", Keyword::Dir(DirQualifier::Source)),
    ("dst", Keyword::Dir(DirQualifier::Target)),
    ("host", Keyword::Type(TypeQualifier::Host)),
    ("net", Keyword::Type(TypeQualifier::Net)),
    ("mask", Keyword::Mask),
    ("port", Keyword::Type(TypeQualifier::Port)),
    ("portrange", Keyword::Type(TypeQualifier::PortRange)),
    ("proto", Keyword::Type(TypeQualifier::Protocol)),
    ("protochain", Keyword::Type(TypeQualifier::ProtocolChain)),
    ("gateway", Keyword::Type(TypeQualifier::Gateway)),
    ("type", Keyword::WlanType),
    ("subtype", Keyword::Subtype),
    ("dir", Keyword::Direction),
    ("direction", Keyword::Direction),
    ("addr1", Keyword::Dir(DirQualifier::Address1)),
    ("address1", Keyword::Dir(DirQualifier::Address1)),
    ("addr2", Keyword::Dir(DirQualifier::Address2)),
    ("address2", Keyword::Dir(DirQualifier::Address2)),
    ("addr3", Keyword::Dir(DirQualifier::Address3)),
    ("address3", Keyword::Dir(DirQualifier::Address3)),
    ("addr4", Keyword::Dir(DirQualifier::Address4)),
    ("address4", Keyword::Dir(DirQualifier::Address4)),
    ("ra", Keyword::Dir(DirQualifier::Receiver)),
    ("ta", Keyword::Dir(DirQualifier::Transmitter)),
    ("less", Keyword::Less),
    ("greater", Keyword::Greater),
    ("byte", Keyword::Byte),
    ("broadcast", Keyword::Broadcast),
    ("multicast", Keyword::Multicast),
    ("len", Keyword::Length),
    ("length", Keyword::Length),
    ("inbound", Keyword::Inbound),
    ("outbound", Keyword::Outbound),
    ("ifindex", Keyword::IfIndex),
    ("vlan", Keyword::Encapsulation(Encapsulation::Vlan)),
    ("mpls", Keyword::Encapsulation(Encapsulation::Mpls)),
    ("pppoed", Keyword::Encapsulation(Encapsulation::PppoeDiscovery)),
    ("pppoes", Keyword::Encapsulation(Encapsulation::PppoeSession)),
    ("geneve", Keyword::Encapsulation(Encapsulation::Geneve)),
    ("vxlan", Keyword::Encapsulation(Encapsulation::Vxlan)),
    ("llc", Keyword::Llc),
];

/// Keywords of Solaris ATM, MTP, PF log and DECnet, which libpcap compiles but this compiler does
/// not.
pub(super) const UNSUPPORTED_KEYWORDS: &str = "\
    lane metac bcc oam oamf4 oamf4ec oamf4sc sc ilmic vpi vci connectmsg metaconnect on ifname \
    rset ruleset rnr rulenum srnr subrulenum reason action fisu lssu lsu msu hfisu hlssu hmsu \
    sio opc dpc sls hsio hopc hdpc hsls decnet";

/// Keywords that denote numbers, such as `icmptype` (an offset) or `tcp-syn` (a flag), with these
/// numbers.
pub(super) const NUMBER_KEYWORDS: &[(&str, u32)] = &[
    ("icmptype", 0),
    ("icmpcode", 1),
    ("icmp-echoreply", 0),
    ("icmp-unreach", 3),
    ("icmp-sourcequench", 4),
    ("icmp-redirect", 5),
    ("icmp-echo", 8),
    ("icmp-routeradvert", 9),
    ("icmp-routersolicit", 10),
    ("icmp-timxceed", 11),
    ("icmp-paramprob", 12),
    ("icmp-tstamp", 13),
    ("icmp-tstampreply", 14),
    ("icmp-ireq", 15),
    ("icmp-ireqreply", 16),
    ("icmp-maskreq", 17),
    ("icmp-maskreply", 18),
    ("icmp6type", 0),
    ("icmp6code", 1),
    ("icmp6-destinationunreach", 1),
    ("icmp6-packettoobig", 2),
    ("icmp6-timeexceeded", 3),
    ("icmp6-parameterproblem", 4),
    ("icmp6-echo", 128),
    ("icmp6-echoreply", 129),
    ("icmp6-multicastlistenerquery", 130),
    ("icmp6-multicastlistenerreportv1", 131),
    ("icmp6-multicastlistenerdone", 132),
    ("icmp6-routersolicit", 133),
    ("icmp6-routeradvert", 134),
    ("icmp6-neighborsolicit", 135),
    ("icmp6-neighboradvert", 136),
    ("icmp6-redirect", 137),
    ("icmp6-routerrenum", 138),
    ("icmp6-nodeinformationquery", 139),
    ("icmp6-nodeinformationresponse", 140),
    ("icmp6-ineighbordiscoverysolicit", 141),
    ("icmp6-ineighbordiscoveryadvert", 142),
    ("icmp6-multicastlistenerreportv2", 143),
    ("icmp6-homeagentdiscoveryrequest", 144),
    ("icmp6-homeagentdiscoveryreply", 145),
    ("icmp6-mobileprefixsolicit", 146),
    ("icmp6-mobileprefixadvert", 147),
    ("icmp6-certpathsolicit", 148),
    ("icmp6-certpathadvert", 149),
    ("icmp6-multicastrouteradvert", 151),
    ("icmp6-multicastroutersolicit", 152),
    ("icmp6-multicastrouterterm", 153),
    ("tcpflags", 13),
    ("tcp-fin", 0x01),
    ("tcp-syn", 0x02),
    ("tcp-rst", 0x04),
    ("tcp-push", 0x08),
    ("tcp-ack", 0x10),
    ("tcp-urg", 0x20),
    ("tcp-ece", 0x40),
    ("tcp-cwr", 0x80),
];

/// Names of 802.11 frame types, with the type bits of the first frame byte.
pub(super) const WLAN_TYPES: &[(&str, u32)] =
    &[("data", 0x08), ("mgt", 0x00), ("management", 0x00), ("ctl", 0x04), ("control", 0x04)];

/// 802.11 subtypes by name. Each value also contains the frame type (mask 0x0c), so a subtype given
/// without a type implies its type.
pub(super) const WLAN_SUBTYPES: &[(&str, u32)] = &[
    ("assocreq", 0x00),
    ("assoc-req", 0x00),
    ("assocresp", 0x10),
    ("assoc-resp", 0x10),
    ("reassocreq", 0x20),
    ("reassoc-req", 0x20),
    ("reassocresp", 0x30),
    ("reassoc-resp", 0x30),
    ("probereq", 0x40),
    ("probe-req", 0x40),
    ("proberesp", 0x50),
    ("probe-resp", 0x50),
    ("beacon", 0x80),
    ("atim", 0x90),
    ("disassoc", 0xa0),
    ("disassociation", 0xa0),
    ("auth", 0xb0),
    ("authentication", 0xb0),
    ("deauth", 0xc0),
    ("deauthentication", 0xc0),
    ("bar", 0x84),
    ("ba", 0x94),
    ("ps-poll", 0xa4),
    ("rts", 0xb4),
    ("cts", 0xc4),
    ("ack", 0xd4),
    ("cf-end", 0xe4),
    ("cf-end-ack", 0xf4),
    ("data", 0x08),
    ("data-cf-ack", 0x18),
    ("data-cf-poll", 0x28),
    ("data-cf-ack-poll", 0x38),
    ("null", 0x48),
    ("cf-ack", 0x58),
    ("cf-poll", 0x68),
    ("cf-ack-poll", 0x78),
    ("qos-data", 0x88),
    ("qos-data-cf-ack", 0x98),
    ("qos-data-cf-poll", 0xa8),
    ("qos-data-cf-ack-poll", 0xb8),
    ("qos", 0xc8),
    ("qos-cf-poll", 0xe8),
    ("qos-cf-ack-poll", 0xf8),
];

/// Names of 802.11 directions, with the value of the direction bits.
pub(super) const WLAN_DIRECTIONS: &[(&str, u32)] =
    &[("nods", 0), ("tods", 1), ("fromds", 2), ("dstods", 3)];

/// Names of LLC supervisory frames, with the value of the LLC control field.
pub(super) const LLC_SUPERVISORY: &[(&str, u32)] = &[("rr", 0x01), ("rnr", 0x05), ("rej", 0x09)];

/// Names of LLC unnumbered frames, with the value of the LLC control field.
pub(super) const LLC_UNNUMBERED: &[(&str, u32)] = &[
    ("ui", 0x03),
    ("ua", 0x63),
    ("disc", 0x43),
    ("dm", 0x0f),
    ("sabme", 0x6f),
    ("test", 0xe3),
    ("xid", 0xaf),
    ("frmr", 0x87),
];

/// Names that may follow `link proto`, with their EtherTypes or LLC service access points.
pub(super) const LINK_PROTOCOLS: &[(&str, u32)] = &[
    ("aarp", 0x80f3),
    ("arp", 0x0806),
    ("atalk", 0x809b),
    ("decnet", 0x6003),
    ("ip", 0x0800),
    ("ip6", 0x86dd),
    ("lat", 0x6004),
    ("lldp", 0x88cc),
    ("loopback", 0x9000),
    ("mopdl", 0x6001),
    ("moprc", 0x6002),
    ("rarp", 0x8035),
    ("sca", 0x6007),
    ("slow", 0x8809),
    ("iso", 0xfe),
    ("stp", 0x42),
    ("ipx", 0xe0),
    ("netbeui", 0xf0),
];

/// Names that may follow `iso proto`, with their network layer protocol identifiers.
pub(super) const ISO_PROTOCOLS: &[(&str, u32)] = &[("esis", 0x82), ("isis", 0x83), ("clnp", 0x81)];

/// Returns the value of `word` in a table of words and values, ignoring case; `None` if the word is
/// not in the table.
pub(super) fn find_word_value(table: &[(&str, u32)], word: &str) -> Option<u32> {
    table.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, value)| *value)
}

/// Returns the first word in a table that has the value `meaning`; `?` if there is none.
pub(super) fn find_word_with_value<T: PartialEq>(
    table: &[(&'static str, T)],
    meaning: &T,
) -> &'static str {
    table.iter().find(|(_, known)| known == meaning).map_or("?", |(word, _)| word)
}
