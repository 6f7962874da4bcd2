//! Link types, and parsers for their link headers.
//!
//! From a frame and its link type, [`parse_link_header`] derives the network protocol, the offset
//! of its header, and the VLAN tags before that header. Link types have the numbers of the pcap
//! registry (LINKTYPE_ values), which both capture formats and `print` use.
//!
//! Supported: Ethernet with at most [`vlan::TAGS_MAX`] tags and 802.3 with LLC and SNAP, raw IP,
//! Linux cooked v1 and v2, BSD loopback in both byte orders, PPP with and without HDLC framing,
//! Cisco HDLC. A frame of any other type has no layer 3, which is not an error.

use core::fmt;
use core::str::FromStr;

use crate::ethernet::{self, ethertype};
use crate::read::{be16, be32, truncate_to_u16};
use crate::vlan::{self, Tags};

/// A link type, identified by its number in the pcap registry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkType(pub u16);

impl LinkType {
    /// Link type of BSD loopback, with an address family in the byte order of the capturing
    /// machine.
    pub const NULL: Self = Self(0);
    /// Link type of Ethernet, IEEE 802.3.
    pub const ETHERNET: Self = Self(1);
    /// Link type of PPP, with or without the HDLC address and control bytes.
    pub const PPP: Self = Self(9);
    /// Link type of raw IP, as numbered by some BSDs in their own captures.
    pub const RAW_BSD: Self = Self(12);
    /// Link type of raw IP, as numbered by OpenBSD in its own captures.
    pub const RAW_OPENBSD: Self = Self(14);
    /// Link type of PPP in HDLC framing, or of Cisco HDLC.
    pub const PPP_HDLC: Self = Self(50);
    /// Link type of raw IPv4 or IPv6, distinguished by the version field.
    pub const RAW: Self = Self(101);
    /// Link type of Cisco HDLC.
    pub const C_HDLC: Self = Self(104);
    /// Link type of OpenBSD loopback, with an address family in network byte order.
    pub const LOOP: Self = Self(108);
    /// Link type of a Linux cooked capture, version 1.
    pub const LINUX_SLL: Self = Self(113);
    /// Link type of raw IPv4.
    pub const IPV4: Self = Self(228);
    /// Link type of raw IPv6.
    pub const IPV6: Self = Self(229);
    /// Link type of a Linux cooked capture, version 2.
    pub const LINUX_SLL2: Self = Self(276);

    /// Returns the name, in capitals: that of libpcap's `DLT_` constant without the prefix, or, for
    /// [`Self::RAW_BSD`] and [`Self::RAW_OPENBSD`], a name defined by this crate. Returns `None` if
    /// the type has no name.
    pub fn name(self) -> Option<&'static str> {
        LINK_TYPE_NAMES.iter().find(|(link, _)| *link == self).map(|(_, name)| *name)
    }

    /// Returns true if [`parse_link_header`] supports this type.
    #[must_use]
    pub const fn has_parser(self) -> bool {
        matches!(
            self,
            Self::ETHERNET
                | Self::RAW
                | Self::RAW_BSD
                | Self::RAW_OPENBSD
                | Self::IPV4
                | Self::IPV6
                | Self::NULL
                | Self::LOOP
                | Self::LINUX_SLL
                | Self::LINUX_SLL2
                | Self::PPP
                | Self::PPP_HDLC
                | Self::C_HDLC
        )
    }

    /// Returns the link type that the header of a capture file states for frames of this type: for
    /// IPv4 and IPv6 the common type [`Self::RAW`], otherwise this type.
    #[must_use]
    pub const fn file_link_type(self) -> Self {
        match self {
            Self::IPV4 | Self::IPV6 => Self::RAW,
            other => other,
        }
    }

    /// Returns the maximum length in bytes of a record that libpcap accepts for this link type.
    pub const fn record_length_max(self) -> u32 {
        match self.0 {
            // USB captures and D-Bus messages: 128 MB; EBHSCR: 8 MB.
            189 | 220 | 231 | 249 | 266 => 128 * 1024 * 1024,
            279 => 8 * 1024 * 1024,
            _ => 262_144,
        }
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for LinkType {
    type Err = UnknownLinkType;

    /// Parses a name in upper or lower case (including `EN10MB` and `ethernet`), or a number.
    fn from_str(text: &str) -> Result<Self, UnknownLinkType> {
        if let Ok(number) = text.parse() {
            return Ok(Self(number));
        }
        let named = LINK_TYPE_NAMES
            .iter()
            .chain(LINK_TYPE_ALIASES)
            .find(|(_, name)| name.eq_ignore_ascii_case(text));
        named.map(|(link, _)| *link).ok_or(UnknownLinkType)
    }
}

/// An error for text that is not the name or number of a link type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownLinkType;

impl fmt::Display for UnknownLinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no link type has this name; give its number in the pcap registry")
    }
}

impl core::error::Error for UnknownLinkType {}

/// The network protocol announced by a link header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetworkProtocol {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// ARP.
    Arp,
    /// Any other ethertype. A VLAN ethertype means that there are too many tags.
    Other(u16),
    /// The network protocol is unknown, because the frame has no ethertype or this crate cannot
    /// read the link header.
    Unknown,
}

impl NetworkProtocol {
    /// Returns the network protocol for an ethertype.
    #[inline]
    pub const fn from_ethertype(ethertype: u16) -> Self {
        match ethertype {
            ethertype::IPV4 => Self::Ipv4,
            ethertype::IPV6 => Self::Ipv6,
            ethertype::ARP => Self::Arp,
            other => Self::Other(other),
        }
    }

    /// Returns the ethertype of the network protocol; `None` if unknown.
    pub const fn ethertype(self) -> Option<u16> {
        match self {
            Self::Ipv4 => Some(ethertype::IPV4),
            Self::Ipv6 => Some(ethertype::IPV6),
            Self::Arp => Some(ethertype::ARP),
            Self::Other(other) => Some(other),
            Self::Unknown => None,
        }
    }
}

/// The result of parsing a link header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkHeader {
    /// Network protocol of the frame.
    pub network: NetworkProtocol,
    /// Offset of layer 3 in bytes; `None` if the link header is unknown or truncated.
    pub l3: Option<u16>,
    /// VLAN tags between the link header and layer 3.
    pub tags: Tags,
    /// Byte offset in the frame at which the data end according to an 802.3 length field; `None`
    /// for frames without such a field.
    pub end: Option<u16>,
}

impl LinkHeader {
    const UNKNOWN: Self =
        Self { network: NetworkProtocol::Unknown, l3: None, tags: Tags::NONE, end: None };

    #[inline]
    const fn untagged(network: NetworkProtocol, l3: u16) -> Self {
        Self { network, l3: Some(l3), tags: Tags::NONE, end: None }
    }
}

/// Parses the link header of a frame.
#[inline]
pub fn parse_link_header(link: LinkType, frame: &[u8]) -> LinkHeader {
    let read = match link {
        LinkType::ETHERNET => read_ethernet(frame),
        other => parse_uncommon_link_header(other, frame),
    };
    read.unwrap_or(LinkHeader::UNKNOWN)
}

fn parse_uncommon_link_header(link: LinkType, frame: &[u8]) -> Option<LinkHeader> {
    match link {
        LinkType::RAW | LinkType::RAW_BSD | LinkType::RAW_OPENBSD => read_raw_ip(frame),
        LinkType::IPV4 => Some(LinkHeader::untagged(NetworkProtocol::Ipv4, 0)),
        LinkType::IPV6 => Some(LinkHeader::untagged(NetworkProtocol::Ipv6, 0)),
        LinkType::NULL | LinkType::LOOP => read_loopback(frame),
        LinkType::LINUX_SLL => read_cooked_v1(frame),
        LinkType::LINUX_SLL2 => read_cooked_v2(frame),
        LinkType::PPP => read_ppp(frame),
        LinkType::PPP_HDLC => read_hdlc(frame),
        LinkType::C_HDLC => follow_ethertype(frame, be16(frame, 2)?, 4),
        _ => None,
    }
}

#[inline]
fn read_ethernet(frame: &[u8]) -> Option<LinkHeader> {
    let ethertype = be16(frame, ethernet::ETHERTYPE_FIELD_OFFSET)?;
    follow_ethertype(frame, ethertype, truncate_to_u16(ethernet::HEADER_LENGTH))
}

/// Parses the data at offset `at`, whose ethertype is `ethertype`: VLAN tags, then a network
/// protocol or, if the last ethertype is a length, an IEEE 802.2 header. Returns `None` if the
/// headers are truncated.
#[inline]
fn follow_ethertype(frame: &[u8], ethertype: u16, at: u16) -> Option<LinkHeader> {
    if ethertype >= ethernet::LOWEST_ETHERTYPE && !vlan::is_tag_ethertype(ethertype) {
        return Some(LinkHeader::untagged(NetworkProtocol::from_ethertype(ethertype), at));
    }
    parse_tags_or_length(frame, ethertype, at)
}

/// Parses VLAN tags or an 802.3 length at offset `at`. A separate function keeps the code for
/// frames without tags short.
#[inline(never)]
fn parse_tags_or_length(frame: &[u8], ethertype: u16, at: u16) -> Option<LinkHeader> {
    let (tags, ethertype, at) = vlan::parse_tags(frame, ethertype, at)?;
    if ethertype >= ethernet::LOWEST_ETHERTYPE {
        return Some(LinkHeader {
            tags,
            ..LinkHeader::untagged(NetworkProtocol::from_ethertype(ethertype), at)
        });
    }
    let (network, l3) = read_llc(frame, at)?;
    Some(LinkHeader { tags, end: at.checked_add(ethertype), ..LinkHeader::untagged(network, l3) })
}

/// Parses an IEEE 802.2 header at `at`. SNAP carries an ethertype, SAP 6 means IPv4 (RFC 1042), and
/// other SAPs have no ethertype.
fn read_llc(frame: &[u8], at: u16) -> Option<(NetworkProtocol, u16)> {
    const LLC_SNAP_HEADER: [u8; 6] = [0xaa, 0xaa, 0x03, 0x00, 0x00, 0x00];
    const LLC_IP_HEADER: [u8; 3] = [0x06, 0x06, 0x03];
    let header = frame.get(usize::from(at)..)?;
    if header.starts_with(&LLC_SNAP_HEADER) {
        return Some((
            NetworkProtocol::from_ethertype(be16(header, LLC_SNAP_HEADER.len())?),
            at + 8,
        ));
    }
    if header.starts_with(&LLC_IP_HEADER) {
        return Some((NetworkProtocol::Ipv4, at + 3));
    }
    Some((NetworkProtocol::Unknown, at))
}

fn read_raw_ip(frame: &[u8]) -> Option<LinkHeader> {
    match frame.first()? >> 4 {
        4 => Some(LinkHeader::untagged(NetworkProtocol::Ipv4, 0)),
        6 => Some(LinkHeader::untagged(NetworkProtocol::Ipv6, 0)),
        _ => None,
    }
}

/// Parses a loopback header. The header does not state the byte order of the address family, but
/// all families are small numbers, so the value reveals the byte order.
fn read_loopback(frame: &[u8]) -> Option<LinkHeader> {
    let number = be32(frame, 0)?;
    let family = if number > 0xffff { number.swap_bytes() } else { number };
    match family {
        2 => Some(LinkHeader::untagged(NetworkProtocol::Ipv4, 4)),
        // `AF_INET6`: 10 on Linux, 23 on Windows, 24 on NetBSD and OpenBSD, 28 on FreeBSD, 30 on
        // Darwin.
        10 | 23 | 24 | 28 | 30 => Some(LinkHeader::untagged(NetworkProtocol::Ipv6, 4)),
        _ => Some(LinkHeader::untagged(NetworkProtocol::Unknown, 4)),
    }
}

fn read_cooked_v1(frame: &[u8]) -> Option<LinkHeader> {
    const HARDWARE_TYPE_OFFSET: usize = 2;
    const PROTOCOL_OFFSET: usize = 14;
    const COOKED_HEADER_LENGTH: u16 = 16;
    read_cooked_protocol(
        frame,
        be16(frame, HARDWARE_TYPE_OFFSET)?,
        be16(frame, PROTOCOL_OFFSET)?,
        COOKED_HEADER_LENGTH,
    )
}

fn read_cooked_v2(frame: &[u8]) -> Option<LinkHeader> {
    const PROTOCOL_OFFSET: usize = 0;
    const HARDWARE_TYPE_OFFSET: usize = 8;
    const COOKED_HEADER_LENGTH: u16 = 20;
    frame.get(..usize::from(COOKED_HEADER_LENGTH))?;
    read_cooked_protocol(
        frame,
        be16(frame, HARDWARE_TYPE_OFFSET)?,
        be16(frame, PROTOCOL_OFFSET)?,
        COOKED_HEADER_LENGTH,
    )
}

/// Parses a Linux cooked packet's data at offset `at`, given the header's protocol field. For some
/// hardware types (frame relay, three forms of 802.11, netlink) the field is not an ethertype.
/// Values below 1536 are Linux's own: 1 is Novell's raw 802.3, and 4 is LLC.
fn read_cooked_protocol(frame: &[u8], hardware: u16, protocol: u16, at: u16) -> Option<LinkHeader> {
    if matches!(hardware, 770 | 801 | 802 | 803 | 824) {
        return Some(LinkHeader::untagged(NetworkProtocol::Unknown, at));
    }
    if protocol >= ethernet::LOWEST_ETHERTYPE {
        return follow_ethertype(frame, protocol, at);
    }
    if protocol == 4 {
        let (network, l3) = read_llc(frame, at)?;
        return Some(LinkHeader::untagged(network, l3));
    }
    Some(LinkHeader::untagged(NetworkProtocol::Unknown, at))
}

/// Parses a PPP header (RFC 1661, 1662), whose address and control bytes may be omitted, and whose
/// protocol field may be a single odd byte.
fn read_ppp(frame: &[u8]) -> Option<LinkHeader> {
    let at = if frame.starts_with(&[0xff, 0x03]) { 2 } else { 0 };
    let first = *frame.get(usize::from(at))?;
    let (protocol, l3) = if first & 1 == 1 {
        (u16::from(first), at + 1)
    } else {
        (be16(frame, usize::from(at))?, at + 2)
    };
    let network = match protocol {
        0x0021 => NetworkProtocol::Ipv4,
        0x0057 => NetworkProtocol::Ipv6,
        _ => NetworkProtocol::Unknown,
    };
    Some(LinkHeader::untagged(network, l3))
}

/// Parses a Cisco HDLC header (address 0x0f or 0x8f, a zero byte, an ethertype), or a PPP header if
/// the bytes are not a Cisco HDLC header.
fn read_hdlc(frame: &[u8]) -> Option<LinkHeader> {
    match frame.first()? {
        0x0f | 0x8f => follow_ethertype(frame, be16(frame, 2)?, 4),
        _ => read_ppp(frame),
    }
}

const LINK_TYPE_NAMES: &[(LinkType, &str)] = &[
    (LinkType::NULL, "NULL"),
    (LinkType::ETHERNET, "EN10MB"),
    (LinkType::PPP, "PPP"),
    (LinkType::PPP_HDLC, "PPP_SERIAL"),
    (LinkType::RAW, "RAW"),
    (LinkType::RAW_BSD, "RAW_BSD"),
    (LinkType::RAW_OPENBSD, "RAW_OPENBSD"),
    (LinkType::C_HDLC, "C_HDLC"),
    (LinkType(105), "IEEE802_11"),
    (LinkType::LOOP, "LOOP"),
    (LinkType::LINUX_SLL, "LINUX_SLL"),
    (LinkType(127), "IEEE802_11_RADIO"),
    (LinkType::IPV4, "IPV4"),
    (LinkType::IPV6, "IPV6"),
    (LinkType::LINUX_SLL2, "LINUX_SLL2"),
];

const LINK_TYPE_ALIASES: &[(LinkType, &str)] =
    &[(LinkType::ETHERNET, "ETHERNET"), (LinkType::PPP_HDLC, "PPP_HDLC")];

#[cfg(test)]
mod tests {
    use super::*;

    fn network_at(link: LinkType, frame: &[u8]) -> (NetworkProtocol, Option<u16>) {
        let read = parse_link_header(link, frame);
        (read.network, read.l3)
    }

    fn ethernet_frame(rest: &[u8]) -> Vec<u8> {
        [&[0; 12], rest].concat()
    }

    #[test]
    fn ethernet_types_select_the_network_protocol() {
        let link = LinkType::ETHERNET;
        assert_eq!(network_at(link, &ethernet_frame(&[8, 0])), (NetworkProtocol::Ipv4, Some(14)));
        assert_eq!(
            network_at(link, &ethernet_frame(&[0x86, 0xdd, 0x60])),
            (NetworkProtocol::Ipv6, Some(14))
        );
        assert_eq!(network_at(link, &ethernet_frame(&[8, 6])), (NetworkProtocol::Arp, Some(14)));
        assert_eq!(
            network_at(link, &ethernet_frame(&[0x88, 0x64])),
            (NetworkProtocol::Other(0x8864), Some(14))
        );
        assert_eq!(network_at(link, &ethernet_frame(&[8])), (NetworkProtocol::Unknown, None));
        assert_eq!(network_at(link, &[]), (NetworkProtocol::Unknown, None));
    }

    #[test]
    fn frames_of_802_3_with_llc_and_snap_are_parsed() {
        let snap = ethernet_frame(&[0, 28, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0, 0x45]);
        let read = parse_link_header(LinkType::ETHERNET, &snap);
        assert_eq!((read.network, read.l3, read.end), (NetworkProtocol::Ipv4, Some(22), Some(42)));
        let spanning_tree = ethernet_frame(&[0, 38, 0x42, 0x42, 3]);
        assert_eq!(
            network_at(LinkType::ETHERNET, &spanning_tree),
            (NetworkProtocol::Unknown, Some(14))
        );
        let sap6 = ethernet_frame(&[0, 38, 6, 6, 3, 0x45]);
        assert_eq!(network_at(LinkType::ETHERNET, &sap6), (NetworkProtocol::Ipv4, Some(17)));
        assert_eq!(network_at(LinkType::ETHERNET, &snap[..21]), (NetworkProtocol::Unknown, None));
    }

    #[test]
    fn vlan_tags_precede_type_or_length() {
        let tagged = ethernet_frame(&[0x81, 0, 0x20, 7, 0x86, 0xdd]);
        let read = parse_link_header(LinkType::ETHERNET, &tagged);
        assert_eq!((read.network, read.l3), (NetworkProtocol::Ipv6, Some(18)));
        assert_eq!(read.tags.iter(&tagged).map(|tag| tag.id()).collect::<Vec<_>>(), [7]);
        let snap = ethernet_frame(&[0x81, 0, 0, 7, 0, 28, 0xaa, 0xaa, 3, 0, 0, 0, 8, 6]);
        assert_eq!(network_at(LinkType::ETHERNET, &snap), (NetworkProtocol::Arp, Some(26)));
    }

    #[test]
    fn link_types_with_parser_have_layer_3() {
        let frames = [
            ethernet_frame(&[8, 0, 0x45]),
            vec![0x45],
            vec![2, 0, 0, 0, 0x45],
            [&[0; 14][..], &[8, 0], &[0; 4]].concat(),
            [&[8, 0][..], &[0; 18], &[0x45]].concat(),
            vec![0xff, 3, 0, 0x21, 0x45],
            vec![0x0f, 0, 8, 0, 0x45],
        ];
        for link in (0..u16::MAX).map(LinkType) {
            let found =
                |frame: &Vec<u8>| network_at(link, frame) != (NetworkProtocol::Unknown, None);
            assert_eq!(frames.iter().any(found), link.has_parser(), "{link}");
        }
        assert_eq!(network_at(LinkType::C_HDLC, &frames[6]), (NetworkProtocol::Ipv4, Some(4)));
    }

    #[test]
    fn raw_ip_version_selects_the_protocol() {
        for link in [LinkType::RAW, LinkType::RAW_BSD, LinkType::RAW_OPENBSD] {
            assert_eq!(network_at(link, &[0x45]), (NetworkProtocol::Ipv4, Some(0)));
            assert_eq!(network_at(link, &[0x60]), (NetworkProtocol::Ipv6, Some(0)));
            assert_eq!(network_at(link, &[0x50]), (NetworkProtocol::Unknown, None));
            assert_eq!(network_at(link, &[]), (NetworkProtocol::Unknown, None));
        }
        assert_eq!(network_at(LinkType::IPV4, &[]), (NetworkProtocol::Ipv4, Some(0)));
        assert_eq!(network_at(LinkType::IPV6, &[]), (NetworkProtocol::Ipv6, Some(0)));
    }

    #[test]
    fn loopback_family_is_read_in_both_byte_orders() {
        for link in [LinkType::NULL, LinkType::LOOP] {
            assert_eq!(network_at(link, &[2, 0, 0, 0]), (NetworkProtocol::Ipv4, Some(4)));
            assert_eq!(network_at(link, &[0, 0, 0, 2]), (NetworkProtocol::Ipv4, Some(4)));
            assert_eq!(network_at(link, &[30, 0, 0, 0]), (NetworkProtocol::Ipv6, Some(4)));
            assert_eq!(network_at(link, &[0, 0, 0, 10]), (NetworkProtocol::Ipv6, Some(4)));
            assert_eq!(network_at(link, &[0, 0, 0, 7]), (NetworkProtocol::Unknown, Some(4)));
            assert_eq!(network_at(link, &[0, 0, 0]), (NetworkProtocol::Unknown, None));
        }
    }

    #[test]
    fn linux_cooked_headers_are_parsed() {
        let mut v1 = [0u8; 16];
        v1[3] = 1;
        v1[14] = 8;
        assert_eq!(network_at(LinkType::LINUX_SLL, &v1), (NetworkProtocol::Ipv4, Some(16)));
        assert_eq!(network_at(LinkType::LINUX_SLL, &v1[..15]), (NetworkProtocol::Unknown, None));
        v1[2..4].copy_from_slice(&824u16.to_be_bytes());
        assert_eq!(network_at(LinkType::LINUX_SLL, &v1), (NetworkProtocol::Unknown, Some(16)));
        let mut v2 = [0u8; 24];
        v2[..2].copy_from_slice(&[0x81, 0]);
        v2[20..].copy_from_slice(&[0, 5, 0x86, 0xdd]);
        let read = parse_link_header(LinkType::LINUX_SLL2, &v2);
        assert_eq!((read.network, read.l3), (NetworkProtocol::Ipv6, Some(24)));
        assert_eq!(read.tags.iter(&v2).map(|tag| tag.id()).collect::<Vec<_>>(), [5]);
        assert_eq!(network_at(LinkType::LINUX_SLL2, &v2[..19]), (NetworkProtocol::Unknown, None));
    }

    #[test]
    fn long_and_compressed_ppp_headers_are_parsed() {
        assert_eq!(
            network_at(LinkType::PPP, &[0xff, 3, 0, 0x21]),
            (NetworkProtocol::Ipv4, Some(4))
        );
        assert_eq!(network_at(LinkType::PPP, &[0, 0x57]), (NetworkProtocol::Ipv6, Some(2)));
        assert_eq!(network_at(LinkType::PPP, &[0x21]), (NetworkProtocol::Ipv4, Some(1)));
        assert_eq!(network_at(LinkType::PPP, &[0xc0, 0x21]), (NetworkProtocol::Unknown, Some(2)));
        assert_eq!(network_at(LinkType::PPP, &[0xff, 3]), (NetworkProtocol::Unknown, None));
        assert_eq!(
            network_at(LinkType::PPP_HDLC, &[0x0f, 0, 8, 0]),
            (NetworkProtocol::Ipv4, Some(4))
        );
    }

    #[test]
    fn link_type_names_parse_and_display() {
        for (link, name) in LINK_TYPE_NAMES {
            assert_eq!(name.parse(), Ok(*link));
            assert_eq!(link.to_string(), *name);
        }
        assert_eq!("ethernet".parse(), Ok(LinkType::ETHERNET));
        assert_eq!("276".parse(), Ok(LinkType::LINUX_SLL2));
        assert_eq!("token ring".parse::<LinkType>(), Err(UnknownLinkType));
        assert_eq!(LinkType(300).to_string(), "300");
    }
}
