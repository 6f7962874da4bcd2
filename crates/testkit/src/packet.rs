//! A builder of frames, from the outer header to the payload, with correct lengths and checksums.
//!
//! ```
//! use streamline_testkit::Frame;
//! let frame = Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").udp(53, 1024, b"answer");
//! assert_eq!(frame.len(), 14 + 20 + 8 + 6);
//! ```
//!
//! A complete frame is a plain `Vec<u8>`, so a test can change its bytes to get an invalid frame.
//! Checksums are computed here, and not by the code under test.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A frame under construction. Each method appends a layer or payload; methods that return bytes
/// complete the frame.
#[derive(Clone, Debug)]
pub struct Frame {
    bytes: Vec<u8>,
    /// Position and kind of the field that identifies the next layer. The field is in the header
    /// that was appended last.
    next: NextField,
    network: Option<IpHeader>,
    /// Offset in bytes of the length field of an 802.3 frame; `None` for any other frame.
    length_offset: Option<usize>,
    padded_to: usize,
}

/// The field of a header that identifies the next layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NextField {
    /// The header has no field that identifies the next layer.
    Absent,
    /// The field is an EtherType at this offset.
    Ethertype(usize),
    /// The field is a 32-bit address family at offset 0, in big-endian or little-endian order.
    Family { big: bool },
}

/// An IP header. Its length fields are set when the payload has been appended.
#[derive(Clone, Debug)]
struct IpHeader {
    at: usize,
    source: IpAddr,
    target: IpAddr,
    /// The offset of the byte that identifies the next header.
    protocol: usize,
}

/// The fields of a TCP header, except for the checksum, which is computed.
#[derive(Clone, Debug, Default)]
pub struct TcpHeader {
    /// The source port.
    pub source: u16,
    /// The destination port.
    pub target: u16,
    /// The sequence number.
    pub sequence: u32,
    /// The acknowledgement number.
    pub acknowledgement: u32,
    /// The flags; FIN is the lowest bit.
    pub flags: u8,
    /// The receive window of the sender.
    pub window: u16,
    /// The options, padded with end-of-list to a multiple of 4 bytes.
    pub options: Vec<u8>,
}

/// The source address of Ethernet frames.
pub const SOURCE_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
/// The destination address of Ethernet frames.
pub const TARGET_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];

impl Frame {
    /// Begins an Ethernet frame from [`SOURCE_MAC`] to [`TARGET_MAC`].
    pub fn ethernet() -> Self {
        Self::ethernet_between(SOURCE_MAC, TARGET_MAC)
    }

    /// Begins an Ethernet frame between two addresses.
    pub fn ethernet_between(source: [u8; 6], target: [u8; 6]) -> Self {
        let bytes = [&target[..], &source, &[0, 0]].concat();
        Self::new(bytes, NextField::Ethertype(12))
    }

    /// Begins a frame without a link header (link types RAW, IPV4, IPV6).
    pub fn raw() -> Self {
        Self::new(Vec::new(), NextField::Absent)
    }

    /// Begins a Linux cooked frame, version 1.
    pub fn linux_cooked_v1() -> Self {
        let mut bytes = vec![0, 0, 0, 1, 0, 6];
        bytes.extend(SOURCE_MAC);
        bytes.extend([0; 4]);
        Self::new(bytes, NextField::Ethertype(14))
    }

    /// Begins a Linux cooked frame, version 2.
    pub fn linux_cooked_v2() -> Self {
        let mut bytes = vec![0, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 6];
        bytes.extend(SOURCE_MAC);
        bytes.extend([0; 2]);
        Self::new(bytes, NextField::Ethertype(0))
    }

    /// Begins a BSD loopback frame. The address family is big-endian if `big` is true, otherwise
    /// little-endian.
    pub fn loopback(big: bool) -> Self {
        Self::new(vec![0; 4], NextField::Family { big })
    }

    /// Appends an 802.1Q tag with this tag control information.
    #[must_use]
    pub fn append_vlan_tag(self, control: u16) -> Self {
        self.append_tag_with_ethertype(0x8100, control)
    }

    /// Appends a VLAN tag with an EtherType other than 0x8100, such as 0x88a8 or 0x9100.
    #[must_use]
    pub fn append_tag_with_ethertype(mut self, ethertype: u16, control: u16) -> Self {
        self.set_next_type(ethertype);
        self.bytes.extend(control.to_be_bytes());
        self.next = NextField::Ethertype(self.bytes.len());
        self.bytes.extend([0, 0]);
        self
    }

    /// Appends an 802.2 LLC header with SNAP to an Ethernet header or tag. The EtherType field
    /// before the LLC header becomes the 802.3 length field.
    #[must_use]
    pub fn append_snap_header(mut self) -> Self {
        self.length_offset = self.bytes.len().checked_sub(2);
        self.bytes.extend([0xaa, 0xaa, 3, 0, 0, 0, 0, 0]);
        self.next = NextField::Ethertype(self.bytes.len() - 2);
        self
    }

    /// Sets the minimum length of the frame in bytes (60 for Ethernet). A shorter frame is padded
    /// with zeros.
    #[must_use]
    pub const fn padded_to(mut self, length: usize) -> Self {
        self.padded_to = length;
        self
    }

    /// Appends an IPv4 header.
    ///
    /// # Panics
    /// If an argument is not an IPv4 address.
    #[must_use]
    pub fn ipv4(self, source: &str, target: &str) -> Self {
        self.ip(IpAddr::V4(parse_ip(source)), IpAddr::V4(parse_ip(target)))
    }

    /// Appends an IPv6 header.
    ///
    /// # Panics
    /// If an argument is not an IPv6 address.
    #[must_use]
    pub fn ipv6(self, source: &str, target: &str) -> Self {
        self.ip(IpAddr::V6(parse_ip(source)), IpAddr::V6(parse_ip(target)))
    }

    /// Appends an IPv4 or IPv6 header, according to the addresses.
    ///
    /// # Panics
    /// If the addresses are of different versions.
    #[must_use]
    pub fn ip(mut self, source: IpAddr, target: IpAddr) -> Self {
        let at = self.bytes.len();
        let protocol = match (source, target) {
            (IpAddr::V4(source), IpAddr::V4(target)) => self.append_ipv4_header(source, target),
            (IpAddr::V6(source), IpAddr::V6(target)) => self.append_ipv6_header(source, target),
            _ => panic!("{source} and {target} are of different versions"),
        };
        self.network = Some(IpHeader { at, source, target, protocol });
        self
    }

    /// Appends options, zero-padded to a multiple of 4 bytes, to an IPv4 header without payload.
    #[must_use]
    pub fn ipv4_options(mut self, options: &[u8]) -> Self {
        let at = self.ip_header_mut().at;
        self.bytes.extend(options);
        let length = (self.bytes.len() - at).next_multiple_of(4);
        self.bytes.resize(at + length, 0);
        self.bytes[at] = 0x40 | (length / 4) as u8;
        self
    }

    /// Makes the packet a fragment at `offset`, in bytes, a multiple of 8. `more` is the
    /// more-fragments flag. For IPv6, appends the fragment header.
    #[must_use]
    pub fn fragment(mut self, offset: u16, more: bool) -> Self {
        let (at, four) = (self.ip_header_mut().at, self.ip_header_mut().source.is_ipv4());
        let field =
            if four { (offset / 8) | (u16::from(more) << 13) } else { offset | u16::from(more) };
        let [high, low] = field.to_be_bytes();
        if four {
            self.bytes[at + 6..at + 8].copy_from_slice(&[high, low]);
            return self;
        }
        self.ipv6_extension(44, &[0, high, low, 0, 0, 0, 1])
    }

    /// Appends an IPv6 extension header of type `header`. `body` contains all bytes after the
    /// next-header byte, so its first byte is the length field.
    #[must_use]
    pub fn ipv6_extension(mut self, header: u8, body: &[u8]) -> Self {
        let at = self.bytes.len();
        let protocol = std::mem::replace(&mut self.ip_header_mut().protocol, at);
        self.bytes[protocol] = header;
        self.bytes.push(0);
        self.bytes.extend(body);
        self
    }

    /// Appends a UDP header and its payload, and returns the frame.
    pub fn udp(self, source: u16, target: u16, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() + 8) as u16;
        let words = [source, target, length, 0];
        let header: Vec<u8> = words.into_iter().flat_map(u16::to_be_bytes).collect();
        self.finish_with_checksum(17, 6, [&header, payload].concat())
    }

    /// Appends a TCP segment and returns the frame.
    pub fn tcp(self, segment: &TcpHeader, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(segment.source.to_be_bytes());
        bytes.extend(segment.target.to_be_bytes());
        bytes.extend(segment.sequence.to_be_bytes());
        bytes.extend(segment.acknowledgement.to_be_bytes());
        let length = (20 + segment.options.len()).next_multiple_of(4);
        bytes.extend([(length / 4) as u8 * 16, segment.flags]);
        bytes.extend(segment.window.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(&segment.options);
        bytes.resize(length, 0);
        bytes.extend(payload);
        self.finish_with_checksum(6, 16, bytes)
    }

    /// Appends an ICMP or ICMPv6 echo request or reply and returns the frame.
    pub fn echo(mut self, request: bool, identifier: u16, number: u16, payload: &[u8]) -> Vec<u8> {
        let four = self.ip_header_mut().source.is_ipv4();
        let kind = match (four, request) {
            (true, true) => 8,
            (true, false) => 0,
            (false, true) => 128,
            (false, false) => 129,
        };
        let mut bytes = vec![kind, 0, 0, 0];
        bytes.extend(identifier.to_be_bytes());
        bytes.extend(number.to_be_bytes());
        bytes.extend(payload);
        if !four {
            return self.finish_with_checksum(58, 2, bytes);
        }
        let sum = checksum(&[&bytes]);
        bytes[2..4].copy_from_slice(&sum.to_be_bytes());
        self.ip_payload(1, &bytes)
    }

    /// Appends an ARP request or reply and returns the frame. The hardware addresses are copied
    /// from the Ethernet header.
    ///
    /// # Panics
    /// If an argument is not an IPv4 address, or if the frame has no Ethernet header.
    pub fn arp(mut self, request: bool, sender: &str, target: &str) -> Vec<u8> {
        self.set_next_type(0x0806);
        let (to, from) = (self.bytes[..6].to_vec(), self.bytes[6..12].to_vec());
        let (sender, target) = (parse_ip::<Ipv4Addr>(sender), parse_ip::<Ipv4Addr>(target));
        self.bytes.extend([0, 1, 8, 0, 6, 4, 0, if request { 1 } else { 2 }]);
        self.bytes.extend(from);
        self.bytes.extend(sender.octets());
        self.bytes.extend(if request { vec![0; 6] } else { to });
        self.bytes.extend(target.octets());
        self.finish()
    }

    /// Appends the payload of any transport protocol unchanged and returns the frame.
    ///
    /// # Panics
    /// If the frame has no IP header.
    pub fn ip_payload(mut self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let at = self.ip_header_mut().protocol;
        self.bytes[at] = protocol;
        self.bytes.extend(payload);
        self.finish_ip_header();
        self.finish()
    }

    /// Sets the EtherType in the last header, appends the payload, and returns the frame.
    pub fn link_payload(mut self, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        self.set_next_type(ethertype);
        self.bytes.extend(payload);
        self.finish()
    }

    const fn new(bytes: Vec<u8>, next: NextField) -> Self {
        Self { bytes, next, network: None, length_offset: None, padded_to: 0 }
    }

    fn ip_header_mut(&mut self) -> &mut IpHeader {
        self.network.as_mut().expect("the frame has an IP header")
    }

    /// Writes the type of the next layer into the last header, if the header has a field for it.
    fn set_next_type(&mut self, ethertype: u16) {
        match self.next {
            NextField::Absent => {}
            NextField::Ethertype(at) => {
                self.bytes[at..at + 2].copy_from_slice(&ethertype.to_be_bytes());
            }
            NextField::Family { big } => {
                let family: u32 = if ethertype == 0x0800 { 2 } else { 30 };
                let bytes = if big { family.to_be_bytes() } else { family.to_le_bytes() };
                self.bytes[..4].copy_from_slice(&bytes);
            }
        }
    }

    /// Appends an IPv4 header without options. Returns the offset of its protocol field.
    fn append_ipv4_header(&mut self, source: Ipv4Addr, target: Ipv4Addr) -> usize {
        self.set_next_type(0x0800);
        let at = self.bytes.len();
        self.bytes.extend([0x45, 0, 0, 0, 0x12, 0x34, 0, 0, 64, 0, 0, 0]);
        self.bytes.extend(source.octets());
        self.bytes.extend(target.octets());
        at + 9
    }

    fn append_ipv6_header(&mut self, source: Ipv6Addr, target: Ipv6Addr) -> usize {
        self.set_next_type(0x86dd);
        let at = self.bytes.len();
        self.bytes.extend([0x60, 0, 0, 0, 0, 0, 0, 64]);
        self.bytes.extend(source.octets());
        self.bytes.extend(target.octets());
        at + 6
    }

    /// Appends a transport header with its payload, and returns the frame. The checksum at offset
    /// `at` covers the pseudo-header and `transport`. For a fragment, this is not the checksum of
    /// the whole datagram.
    fn finish_with_checksum(mut self, protocol: u8, at: usize, mut transport: Vec<u8>) -> Vec<u8> {
        let IpHeader { source, target, .. } = *self.ip_header_mut();
        let length = (transport.len() as u32).to_be_bytes();
        let pseudo = match (source, target) {
            (IpAddr::V4(source), IpAddr::V4(target)) => [source.octets(), target.octets()].concat(),
            (IpAddr::V6(source), IpAddr::V6(target)) => [source.octets(), target.octets()].concat(),
            _ => unreachable!("ip() refuses mixed versions"),
        };
        let sum = checksum(&[&pseudo, &length, &[0, protocol], &transport]);
        // RFC 768: a checksum field of 0 means that there is no checksum.
        let sum = if protocol == 17 && sum == 0 { 0xffff } else { sum };
        transport[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        self.ip_payload(protocol, &transport)
    }

    /// Sets the length field of the IP header and, for IPv4, the header checksum.
    fn finish_ip_header(&mut self) {
        let IpHeader { at, source, .. } = *self.ip_header_mut();
        let total = self.bytes.len() - at;
        if source.is_ipv6() {
            let length = (total - 40) as u16;
            self.bytes[at + 4..at + 6].copy_from_slice(&length.to_be_bytes());
            return;
        }
        self.bytes[at + 2..at + 4].copy_from_slice(&(total as u16).to_be_bytes());
        let end = at + usize::from(self.bytes[at] & 15) * 4;
        let sum = checksum(&[&self.bytes[at..end]]);
        self.bytes[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
    }

    fn finish(mut self) -> Vec<u8> {
        if let Some(at) = self.length_offset {
            let length = (self.bytes.len() - at - 2) as u16;
            self.bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
        }
        let length = self.bytes.len().max(self.padded_to);
        self.bytes.resize(length, 0);
        self.bytes
    }
}

/// Returns the Internet checksum (RFC 1071) of the concatenation of `parts`. All parts except the
/// last must have an even length.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for word in parts.iter().flat_map(|part| part.chunks(2)) {
        sum += (u32::from(word[0]) << 8) | word.get(1).map_or(0, |low| u32::from(*low));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn parse_ip<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{text} is no such address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_over_ipv4_has_correct_lengths_and_checksums() {
        let frame = Frame::raw().ipv4("192.168.0.1", "192.168.0.199").udp(53, 1024, b"hello");
        let header = [0x45, 0, 0, 33, 0x12, 0x34, 0, 0, 64, 17];
        assert_eq!(frame[..10], header);
        assert_eq!(checksum(&[&frame[..20]]), 0, "a header sums to zero with its checksum");
        let pseudo = [&frame[12..20], &[0, 17, 0, 13]].concat();
        assert_eq!(checksum(&[&pseudo, &frame[20..]]), 0);
        assert_eq!(frame[20..26], [0, 53, 4, 0, 0, 13]);
        assert_eq!(&frame[28..], b"hello");
    }

    #[test]
    fn tcp_over_ipv6_with_options_has_correct_checksum() {
        let segment =
            TcpHeader { source: 1, target: 2, options: vec![2, 4, 5], ..TcpHeader::default() };
        let frame = Frame::ethernet().ipv6("::1", "::2").tcp(&segment, b"x");
        assert_eq!(frame[12..14], [0x86, 0xdd]);
        assert_eq!(frame[18..21], [0, 25, 6]);
        assert_eq!(frame[54 + 12], 6 << 4, "three bytes of options take four");
        let pseudo = [&frame[22..54], &[0, 0, 0, 25, 0, 0, 0, 6]].concat();
        assert_eq!(checksum(&[&pseudo, &frame[54..]]), 0);
    }

    #[test]
    fn vlan_tag_and_snap_header_set_length_and_ethertype() {
        let frame = Frame::ethernet()
            .append_tag_with_ethertype(0x88a8, 7)
            .append_vlan_tag(42)
            .append_snap_header()
            .padded_to(60);
        let frame = frame.ipv4("10.0.0.1", "10.0.0.2").echo(true, 1, 2, b"");
        assert_eq!(frame.len(), 60);
        assert_eq!(frame[12..20], [0x88, 0xa8, 0, 7, 0x81, 0, 0, 42]);
        assert_eq!(frame[20..30], [0, 36, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0]);
    }

    #[test]
    fn ipv6_extension_headers_name_the_next_header() {
        let frame = Frame::raw().ipv6("::1", "::2").ipv6_extension(0, &[0; 7]).fragment(16, true);
        let frame = frame.ip_payload(17, b"data");
        assert_eq!(frame[6], 0);
        assert_eq!(frame[40], 44);
        assert_eq!(frame[48..56], [17, 0, 0, 17, 0, 0, 0, 1]);
        assert_eq!(frame[4..6], [0, 20]);
    }
}
