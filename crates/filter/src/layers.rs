//! Access to headers through the marks of a block (CONTRACT 4).
//!
//! Input: a block. Output: the offsets and kinds of its network and transport headers. Marks act as
//! a cache. Missing marks are computed by one pass of `wire::layers` and stored in the block, so
//! that only the first filter of a chain parses the headers.
//!
//! Only the first [`HEAD_SIZE`] bytes of a frame are parsed, even if more are present, so that the
//! result for a whole frame equals the result for its head (CONTRACT 14). Lengths that extend
//! beyond this limit are checked against `marks.captured`, never against the slice.

use crate::contract::{Block, Reason};
use abi::Marks;
use std::net::IpAddr;
use wire::ethernet;
use wire::flow::Flow;
use wire::ip::{Fragment, protocol};
use wire::ipv4::Ipv4;
use wire::ipv6::{self, Ipv6, UpperLayer};
use wire::link::NetworkProtocol;
use wire::ports::Ports;
use wire::tcp::{self, Tcp};
use wire::udp::{self, Udp};
use wire::vlan::is_tag_ethertype;
use wire::{Layers, LinkType};

/// Number of bytes at the start of a frame that header filters parse: enough for eight tags, the
/// longest IPv4 and TCP headers, and 300 bytes of IPv6 extension headers. A block whose headers
/// extend further has no class, with the reason `cut`.
pub const HEAD_SIZE: u16 = 512;

/// Reason for a header that cannot be read. The list of reasons of a header filter must begin with
/// [`HeaderError::NAMES`] (checked by [`HeaderError::assert_reason_names`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderError {
    /// The frame contains no IP packet, or the block is not a frame.
    NotIp,
    /// A length or offset in a header is inconsistent.
    Malformed,
    /// The header was not captured, or lies beyond [`HEAD_SIZE`].
    Truncated,
    /// There are too many extension headers or tags.
    TooDeep,
    /// The packet is a fragment other than the first, and therefore has no transport header.
    Fragment,
}

impl HeaderError {
    /// Names of the reasons, in the order of the variants of [`HeaderError`]. A filter that never
    /// returns `fragment` may omit the last name.
    pub const NAMES: [&'static str; 5] = ["not ip", "malformed", "cut", "too deep", "fragment"];

    /// Returns the [`Reason`] for this error. The result is valid for every description that passes
    /// [`HeaderError::assert_reason_names`].
    #[must_use]
    pub const fn reason(self) -> Reason {
        Reason(self as u8)
    }

    /// Asserts at compile time that the list of reasons of a description begins with the first
    /// `count` names of [`HeaderError::NAMES`].
    #[expect(clippy::indexing_slicing, reason = "at build time only: every caller is a constant")]
    pub const fn assert_reason_names(reasons: &[&str], count: usize) {
        let mut i = 0;
        while i < count {
            assert!(Reason::from_name(reasons, Self::NAMES[i]).0 as usize == i);
            i += 1;
        }
    }

    /// Returns the reason why the parser stopped before the last layer of a frame.
    fn from_layers(layers: &Layers) -> Self {
        let faults = layers.faults;
        match layers.network {
            _ if faults.too_deep => Self::TooDeep,
            NetworkProtocol::Ipv4 | NetworkProtocol::Ipv6 if faults.malformed => Self::Malformed,
            NetworkProtocol::Ipv4 | NetworkProtocol::Ipv6 if layers.fragment == Fragment::Later => {
                Self::Fragment
            }
            NetworkProtocol::Ipv4 | NetworkProtocol::Ipv6 => Self::Truncated,
            _ if layers.l3.is_none() && faults.truncated => Self::Truncated,
            _ => Self::NotIp,
        }
    }
}

/// An IP packet in a frame. All offsets are from the first byte of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Number of the protocol after all IP headers.
    pub protocol: u8,
    /// Offset of the IP header in the frame.
    pub network: u32,
    /// Offset of the payload, after options and extension headers.
    pub data: u32,
    /// Offset past the last byte of the packet, even if that byte was not captured.
    pub end: u32,
    /// Position of the packet in a fragmented datagram.
    pub fragment: Fragment,
}

/// A transport header in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transport {
    /// Number of the transport protocol, as in the IP header.
    pub protocol: u8,
    /// Offset of the header in the frame.
    pub offset: u32,
}

/// Returns the bytes at the start of the frame that header filters may parse.
#[inline]
#[must_use]
pub fn head_bytes<'a>(block: &Block<'a>) -> &'a [u8] {
    block.frame.get(..usize::from(HEAD_SIZE)).unwrap_or(block.frame)
}

/// Parses the layers of the frame and stores their offsets in the marks.
pub fn parse(block: &mut Block<'_>) -> Layers {
    let layers = wire::layers(LinkType(block.marks.link), head_bytes(block));
    record_layers(&mut block.marks, &layers);
    layers
}

/// Stores the offsets of parsed layers in the marks, if they are within the first [`HEAD_SIZE`]
/// bytes of the frame. Sources that parse frames for other purposes call this, so that no filter
/// needs to parse them again.
#[inline]
pub fn record_layers(marks: &mut Marks, layers: &Layers) {
    let mark =
        |offset: Option<u16>| offset.filter(|at| *at <= HEAD_SIZE).unwrap_or(Marks::UNKNOWN_OFFSET);
    marks.network = mark(layers.l3);
    marks.transport = mark(layers.l4);
    marks.payload = mark(layers.payload);
}

/// Returns the IP packet in the frame, with a validated header.
pub fn packet(block: &mut Block<'_>) -> Result<Packet, HeaderError> {
    if let Some(packet) = marked_packet(block) {
        return Ok(packet);
    }
    let layers = parse(block);
    let (Some(protocol), Some(network)) = (layers.protocol, layers.l3) else {
        return Err(HeaderError::from_layers(&layers));
    };
    let (network, bytes) = (u32::from(network), bytes_at_offset(head_bytes(block), network));
    let length = match layers.network {
        NetworkProtocol::Ipv4 => Ipv4::parse(bytes).map(|(ip, _)| u32::from(ip.header_length())),
        _ => match ipv6::find_upper_layer(bytes) {
            UpperLayer::Protocol { offset, .. } | UpperLayer::Fragment { offset, .. } => {
                Some(offset.into())
            }
            UpperLayer::TooDeep | UpperLayer::Truncated => None,
        },
    };
    let data = network + length.ok_or(HeaderError::Truncated)?;
    Ok(Packet {
        protocol,
        network,
        data,
        end: packet_end(block, network),
        fragment: layers.fragment,
    })
}

/// Returns the protocol number after all IP headers, for fragments too.
#[inline]
pub fn ip_protocol(block: &mut Block<'_>) -> Result<u8, HeaderError> {
    if let Some(marked) = marked_transport(block) {
        return Ok(marked.protocol);
    }
    let layers = parse(block);
    layers.protocol.ok_or_else(|| HeaderError::from_layers(&layers))
}

/// Returns the transport header of the frame.
#[inline]
pub fn transport(block: &mut Block<'_>) -> Result<Transport, HeaderError> {
    if let Some(marked) = marked_transport(block) {
        return Ok(marked);
    }
    let layers = parse(block);
    match (layers.protocol, layers.l4) {
        (Some(protocol), Some(at)) => Ok(Transport { protocol, offset: at.into() }),
        _ => Err(HeaderError::from_layers(&layers)),
    }
}

/// Returns the ports of the frame, or `Ok(None)` if its transport protocol has none.
#[inline]
pub fn ports(block: &mut Block<'_>) -> Result<Option<Ports>, HeaderError> {
    let Transport { protocol, offset: at } = transport(block)?;
    if !wire::ports::has_ports(protocol) {
        return Ok(None);
    }
    match Ports::read(protocol, packet_bytes(block, at)) {
        None => Err(missing_bytes_error(block, at, PORTS_SIZE)),
        ports => Ok(ports),
    }
}

/// Returns the UDP datagram in the frame: its ports, the offset of its payload, and the offset past
/// its last byte. A first fragment counts as a datagram that ends with the packet. Returns
/// `Ok(None)` for another protocol.
pub fn datagram_ports_and_payload(
    block: &mut Block<'_>,
) -> Result<Option<(Ports, u32, u32)>, HeaderError> {
    let Transport { protocol, offset: at } = transport(block)?;
    if protocol != protocol::UDP {
        return Ok(None);
    }
    let Some((udp, _)) = Udp::parse(packet_bytes(block, at)) else {
        return Err(missing_bytes_error(block, at, udp::HEADER_LENGTH as u32));
    };
    let (payload, end) =
        (at + udp::HEADER_LENGTH as u32, packet_end(block, block.marks.network.into()));
    let ports = Ports { source: udp.source(), target: udp.target() };
    let stated = at + u32::from(udp.length());
    match u32::from(udp.length()) {
        0 => Ok(Some((ports, payload, end))),
        length if length < udp::HEADER_LENGTH as u32 => Err(HeaderError::Malformed),
        _ if stated <= end => Ok(Some((ports, payload, stated))),
        // The first fragment states the length of the whole datagram.
        _ if is_first_fragment(block) => Ok(Some((ports, payload, end))),
        _ => Err(HeaderError::Malformed),
    }
}

/// A TCP segment in a frame.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Fixed part of the TCP header, without options.
    pub header: &'a Tcp,
    /// Addresses and ports of the sender and the receiver.
    pub flow: Flow,
    /// Offset of the TCP header in the frame.
    pub at: u32,
    /// Offset of the payload in the frame.
    pub payload: u32,
    /// Offset in the frame past the payload as it was sent, even if part of it was not captured.
    pub end: u32,
}

/// Returns the TCP segment in the frame, or `Ok(None)` for another protocol. Fails for the first
/// fragment of a datagram, which contains only part of a segment.
#[inline]
pub fn segment<'a>(block: &mut Block<'a>) -> Result<Option<Segment<'a>>, HeaderError> {
    let (frame, marks) = (block.frame, &mut block.marks);
    match fast_path_segment(frame, marks).or_else(|| fast_path_ipv6_segment(frame, marks)) {
        Some(segment) => Ok(Some(segment)),
        None => parse_tcp_segment(block),
    }
}

/// Returns the segment in a frame of the most common form: untagged Ethernet, IPv4 without options,
/// not fragmented. Returns `None` for frames of other forms, and if a header is invalid or not
/// completely captured. This is the fast path of [`segment`]. The full parse
/// ([`parse_tcp_segment`]) returns the same segment for a frame of this form.
#[inline]
pub(crate) fn fast_path_segment<'a>(frame: &'a [u8], marks: &mut Marks) -> Option<Segment<'a>> {
    const TCP_OFFSET: usize = ethernet::HEADER_LENGTH + wire::ipv4::HEADER_LENGTH_MIN;
    let head: &[u8; TCP_OFFSET] = frame.first_chunk()?;
    let fragment = u16::from_be_bytes([head[20], head[21]]) & 0x3fff;
    let plain = marks.link == LinkType::ETHERNET.0
        && [head[12], head[13], head[14], head[23]] == [8, 0, 0x45, protocol::TCP]
        && fragment == 0;
    if !plain {
        return None;
    }
    let end = ethernet::HEADER_LENGTH as u32 + u32::from(u16::from_be_bytes([head[16], head[17]]));
    let address = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]].into();
    fast_path_segment_at::<TCP_OFFSET>(frame, marks, end, (address(26), address(30)))
}

/// Returns the TCP segment in an untagged Ethernet frame with an IPv6 packet without extension
/// headers. Returns `None` for all other frames, and if the headers are invalid or not completely
/// captured.
#[inline]
fn fast_path_ipv6_segment<'a>(frame: &'a [u8], marks: &mut Marks) -> Option<Segment<'a>> {
    const TCP_OFFSET: usize = ethernet::HEADER_LENGTH + ipv6::HEADER_LENGTH;
    let head: &[u8; TCP_OFFSET] = frame.first_chunk()?;
    let (ip, _) = Ipv6::parse(head.get(ethernet::HEADER_LENGTH..)?)?;
    let plain = marks.link == LinkType::ETHERNET.0
        && [head[12], head[13]] == [0x86, 0xdd]
        && ip.version() == 6
        && ip.next_header() == protocol::TCP
        // A length of 0 means that the packet ends with the frame.
        && ip.payload_length() != 0;
    if !plain {
        return None;
    }
    let end = TCP_OFFSET as u32 + u32::from(ip.payload_length());
    let addresses = (ip.source().into(), ip.target().into());
    fast_path_segment_at::<TCP_OFFSET>(frame, marks, end, addresses)
}

/// Parses the TCP header at offset `AT` of an untagged Ethernet frame, and returns the segment. The
/// packet ends at offset `end` and has these addresses, sender first. Stores the offsets of the
/// headers in the marks. Returns `None` without effect if the header is invalid or not completely
/// captured.
#[inline]
fn fast_path_segment_at<'a, const AT: usize>(
    frame: &'a [u8],
    marks: &mut Marks,
    end: u32,
    (source, target): (IpAddr, IpAddr),
) -> Option<Segment<'a>> {
    let (header, _) = Tcp::parse(frame.get(AT..)?)?;
    let header_length = header.header_length();
    let payload = AT as u32 + u32::from(header_length);
    let whole = payload <= end && payload as usize <= frame.len();
    if usize::from(header_length) < tcp::HEADER_LENGTH_MIN || !whole {
        return None;
    }
    marks.network = ethernet::HEADER_LENGTH as u16;
    marks.transport = AT as u16;
    marks.payload = payload as u16;
    let ports = Ports { source: header.source(), target: header.target() };
    let flow = Flow { source, target, protocol: protocol::TCP, ports: Some(ports) };
    Some(Segment { header, flow, at: AT as u32, payload, end })
}

/// Returns the TCP segment in the frame of a block, or `Ok(None)` for another protocol. Unlike the
/// fast path [`fast_path_segment`], parses frames with any layout of headers.
fn parse_tcp_segment<'a>(block: &mut Block<'a>) -> Result<Option<Segment<'a>>, HeaderError> {
    let Transport { protocol, offset: at } = transport(block)?;
    if protocol != protocol::TCP {
        return Ok(None);
    }
    if is_first_fragment(block) {
        return Err(HeaderError::Fragment);
    }
    let end = packet_end(block, block.marks.network.into());
    let bytes = head_bytes(block).get(at as usize..).unwrap_or_default();
    let Some((header, _)) = Tcp::parse(bytes).filter(|_| end >= at + tcp::HEADER_LENGTH_MIN as u32)
    else {
        return Err(missing_bytes_error(block, at, tcp::HEADER_LENGTH_MIN as u32));
    };
    let payload = at + u32::from(header.header_length());
    if usize::from(header.header_length()) < tcp::HEADER_LENGTH_MIN || payload > end {
        return Err(HeaderError::Malformed);
    }
    let ports = Ports { source: header.source(), target: header.target() };
    let flow = flow(block, protocol::TCP, ports).ok_or(HeaderError::Truncated)?;
    Ok(Some(Segment { header, flow, at, payload, end }))
}

/// Returns the flow of the packet in a frame. The offset of the IP header must be in the marks.
/// Returns `None` if the header cannot be read.
#[inline]
#[must_use]
pub fn flow(block: &Block<'_>, protocol: u8, ports: Ports) -> Option<Flow> {
    let bytes = bytes_at_offset(head_bytes(block), block.marks.network);
    let (source, target) = match bytes.first()? >> 4 {
        4 => Ipv4::parse(bytes).map(|(ip, _)| (ip.source().into(), ip.target().into()))?,
        6 => Ipv6::parse(bytes).map(|(ip, _)| (ip.source().into(), ip.target().into()))?,
        _ => return None,
    };
    Some(Flow { source, target, protocol, ports: Some(ports) })
}

/// Returns the flow of any IP packet. The flow has no ports if the transport protocol has none, or
/// if they are in another fragment.
pub fn packet_flow(block: &mut Block<'_>) -> Result<Flow, HeaderError> {
    let layers = parse(block);
    Flow::from_frame(&layers, head_bytes(block)).ok_or_else(|| HeaderError::from_layers(&layers))
}

/// Size of the two port fields in bytes.
const PORTS_SIZE: u32 = 4;

/// Returns the bytes of the IP packet from frame offset `at` on, limited to the first [`HEAD_SIZE`]
/// bytes of the frame.
///
/// Filters must read headers through this function, not from `block.frame`, because a frame may
/// contain padding or a trailer after a short packet.
#[inline]
#[must_use]
pub fn packet_bytes<'a>(block: &Block<'a>, at: u32) -> &'a [u8] {
    let bytes = head_bytes(block);
    let end = bytes.len().min(packet_end(block, block.marks.network.into()) as usize);
    bytes.get(at as usize..end).unwrap_or_default()
}

/// Returns the reason why the packet has fewer than `length` bytes from offset `at` on: the packet
/// is too short, or the bytes were not captured.
#[cold]
fn missing_bytes_error(block: &Block<'_>, at: u32, length: u32) -> HeaderError {
    match packet_end(block, block.marks.network.into()) {
        end if end < at + length => HeaderError::Malformed,
        _ => HeaderError::Truncated,
    }
}

/// Returns the transport header at the offset that the marks contain. Returns `None` if they
/// contain no such offset, or if the protocol number cannot be read.
#[inline]
fn marked_transport(block: &Block<'_>) -> Option<Transport> {
    let marks = &block.marks;
    if marks.transport == Marks::UNKNOWN_OFFSET || marks.network == Marks::UNKNOWN_OFFSET {
        return None;
    }
    let bytes = bytes_at_offset(head_bytes(block), marks.network);
    let protocol = match bytes.first()? >> 4 {
        4 => *bytes.get(wire::ipv4::PROTOCOL_OFFSET)?,
        6 => match *bytes.get(ipv6::NEXT_HEADER_OFFSET)? {
            next if !ipv6::is_extension(next) => next,
            _ => match ipv6::find_upper_layer(bytes) {
                UpperLayer::Protocol { protocol, .. } => protocol,
                UpperLayer::Fragment { .. } | UpperLayer::TooDeep | UpperLayer::Truncated => {
                    return None;
                }
            },
        },
        _ => return None,
    };
    Some(Transport { protocol, offset: marks.transport.into() })
}

/// Returns the IP packet at the offset that the marks contain. Returns `None` if they contain no
/// offset of a transport header, or if an extension header precedes the payload.
#[inline]
fn marked_packet(block: &Block<'_>) -> Option<Packet> {
    let Transport { protocol, .. } = marked_transport(block)?;
    let network = u32::from(block.marks.network);
    let bytes = bytes_at_offset(head_bytes(block), block.marks.network);
    let (header, fragment) = match bytes.first()? >> 4 {
        4 => Ipv4::parse(bytes).map(|(ip, _)| (ip.header_length().into(), ip.fragment()))?,
        6 if *bytes.get(ipv6::NEXT_HEADER_OFFSET)? == protocol => {
            (ipv6::HEADER_LENGTH as u32, Fragment::Whole)
        }
        // A packet with extension headers is parsed again.
        _ => return None,
    };
    let data = network + header;
    Some(Packet { protocol, network, data, end: packet_end(block, network), fragment })
}

/// Returns the EtherType of an untagged Ethernet frame whose network header follows the Ethernet
/// header according to the marks. Returns `None` for any other frame.
#[inline]
pub(crate) fn marked_ethertype(block: &Block<'_>) -> Option<u16> {
    let Marks { link, network, .. } = block.marks;
    if link != LinkType::ETHERNET.0 || usize::from(network) != ethernet::HEADER_LENGTH {
        return None;
    }
    let field = block.frame.get(ethernet::ETHERTYPE_FIELD_OFFSET..)?.first_chunk()?;
    Some(u16::from_be_bytes(*field))
        .filter(|kind| *kind >= ethernet::LOWEST_ETHERTYPE && !is_tag_ethertype(*kind))
}

/// Returns the offset past the end of the IP packet at `network`, even if its end was not captured.
/// If the length field of the packet is 0 (segmentation offload), returns the end of the frame.
fn packet_end(block: &Block<'_>, network: u32) -> u32 {
    let bytes = head_bytes(block).get(network as usize..).unwrap_or_default();
    let stated = match bytes.first().map(|first| first >> 4) {
        Some(4) => Ipv4::parse(bytes).map_or(0, |(ip, _)| u32::from(ip.total_length())),
        Some(6) => Ipv6::parse(bytes).map_or(0, |(ip, _)| match ip.payload_length() {
            0 => 0,
            length => ipv6::HEADER_LENGTH as u32 + u32::from(length),
        }),
        _ => 0,
    };
    if stated == 0 { block.marks.wire_length.max(network) } else { network + stated }
}

fn is_first_fragment(block: &Block<'_>) -> bool {
    let bytes = bytes_at_offset(head_bytes(block), block.marks.network);
    match bytes.first().map(|first| first >> 4) {
        Some(4) => Ipv4::parse(bytes).is_some_and(|(ip, _)| ip.fragment() == Fragment::First),
        Some(6) => {
            matches!(
                ipv6::find_upper_layer(bytes),
                UpperLayer::Protocol { fragment: Fragment::First, .. }
            )
        }
        _ => false,
    }
}

fn bytes_at_offset(bytes: &[u8], at: u16) -> &[u8] {
    bytes.get(usize::from(at)..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Arena, Frame, Space};
    use testkit::Random;

    type FastPath = for<'a> fn(&'a [u8], &mut Marks) -> Option<Segment<'a>>;

    /// Compares a fast path with the full parse, on intact, damaged, padded and truncated frames.
    /// `header` is the offset of the TCP header.
    fn assert_fast_path_agrees(fast: FastPath, header: usize, make: fn(&[u8]) -> Frame) {
        let mut random = Random::with_replayable_seed();
        let mut plain = 0;
        for _ in 0..20_000 {
            let length = random.within(0..30);
            let mut frame = make(&random.bytes(length));
            if random.one_in(4) {
                frame.bytes.extend([0; 9]);
            }
            if !random.one_in(3) {
                let at = random.within(12..frame.bytes.len().min(header + 20));
                frame.bytes[at] ^= 1 << random.below(8);
            }
            if random.one_in(3) {
                let length = random.within(0..frame.bytes.len());
                frame = frame.truncated_to(length);
            }
            let arena = Arena::new(1);
            let batch = Space::new(&arena).batch(&[frame]);
            let (mut one, mut other) = (batch.block(0), batch.block(0));
            let Some(short) = fast(one.frame, &mut one.marks) else {
                assert_eq!(one.marks, other.marks);
                continue;
            };
            plain += 1;
            let long = parse_tcp_segment(&mut other).ok().flatten().expect("a segment");
            let place = |s: &Segment<'_>| (s.flow, s.at, s.payload, s.end, s.header.sequence());
            assert_eq!(place(&short), place(&long));
            assert_eq!(one.marks, other.marks);
        }
        assert!(plain > 2000, "{plain}");
    }

    #[test]
    fn fast_path_agrees_with_the_full_parse() {
        assert_fast_path_agrees(fast_path_segment, 34, |data| Frame::tcp(1, 2, data));
    }

    #[test]
    fn fast_path_of_ipv6_agrees_with_the_full_parse() {
        assert_fast_path_agrees(fast_path_ipv6_segment, 54, |data| {
            Frame::ipv6(protocol::TCP, &Frame::tcp(1, 2, data).bytes[34..])
        });
    }
}
