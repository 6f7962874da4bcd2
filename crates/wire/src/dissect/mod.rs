//! Dissection of a frame: locating the protocol layers, from which the marks of a block are set.
//!
//! [`layers`] returns [`Layers`], 40 bytes of plain data, by these rules:
//! - Truncated frames are normal: each layer after complete headers is located, even if no byte of
//!   it was captured, and `faults.cut` is set.
//! - Bytes beyond IP's stated length (Ethernet padding) are not payload.
//! - An IPv4 total length or IPv6 payload length of 0 extends to the end of the frame, as in frames
//!   awaiting segmentation (TSO) and jumbograms.
//! - A later fragment has no layer 4, regardless of its bytes.
//! - The dissection ends at an inconsistent header, because no ports are better than ports chosen
//!   by an attacker.
//!
//! Offsets count from the start of the frame, as the contract requires of a block [SL §4.1].

use crate::ip::{Fragment, protocol};
use crate::ipv4::{self, Ipv4};
use crate::ipv6::{self, Ipv6, UpperLayer};
use crate::link::{self, LinkHeader, LinkType, NetworkProtocol};
use crate::ports::Ports;
use crate::read::truncate_to_u16;
use crate::vlan::Tags;
use crate::{tcp, udp};

#[cfg(test)]
mod tests;

/// The protocol layers of a frame and their offsets, in bytes from the start of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layers {
    /// Link type of the frame.
    pub link: LinkType,
    /// Network protocol of the frame (layer 3).
    pub network: NetworkProtocol,
    /// Location of the frame's VLAN tags.
    pub tags: Tags,
    /// Offset of layer 3; `None` if the link header is unknown or truncated.
    pub l3: Option<u16>,
    /// Offset of the transport header. `None` for later fragments, for network protocols other than
    /// IP, and if a preceding header is malformed, nested too deep or truncated.
    pub l4: Option<u16>,
    /// Offset of the TCP or UDP payload; `None` if `l4` is `None`, or if the TCP or UDP header is
    /// malformed or truncated. Equals `l4` for other transport protocols.
    pub payload: Option<u16>,
    /// Number of the transport protocol, as assigned by IANA; also set for later fragments, which
    /// have no transport header. `None` for network protocols other than IP, and if an IP header is
    /// malformed or truncated, or there are too many extension headers.
    pub protocol: Option<u8>,
    /// Offset past the last captured byte of the packet. Excludes padding and bytes beyond UDP's
    /// stated length.
    pub end: u32,
    /// Position of this frame among the fragments of an IP packet.
    pub fragment: Fragment,
    /// Inconsistencies found in the frame.
    pub faults: FrameFaults,
}

/// Inconsistencies in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameFaults {
    /// True if the headers state more bytes than were captured, or if a header is truncated.
    pub truncated: bool,
    /// True if a header contradicts itself or an outer header.
    pub malformed: bool,
    /// True if the frame has more extension headers or VLAN tags than [`layers`] follows.
    pub too_deep: bool,
}

impl Layers {
    /// Returns the bytes of the frame from layer 3 on, without padding; `None` if `l3` is `None`.
    #[inline]
    pub fn packet<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        self.bytes_from_offset(self.l3, frame)
    }

    /// Returns the bytes of the frame from layer 4 on, without padding; `None` if `l4` is `None`.
    #[inline]
    pub fn transport<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        self.bytes_from_offset(self.l4, frame)
    }

    /// Returns the bytes of the TCP or UDP payload, or those from layer 4 on for other transport
    /// protocols; `None` if the offset `payload` is `None`.
    #[inline]
    pub fn payload<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        self.bytes_from_offset(self.payload, frame)
    }

    /// Returns the ports; `None` if `l4` is `None`, if the transport protocol has no ports, or if
    /// they were not captured.
    #[inline]
    pub fn ports(&self, frame: &[u8]) -> Option<Ports> {
        Ports::read(self.protocol?, self.transport(frame)?)
    }

    #[inline]
    fn bytes_from_offset<'a>(&self, start: Option<u16>, frame: &'a [u8]) -> Option<&'a [u8]> {
        frame.get(usize::from(start?)..self.end as usize)
    }

    /// Limits all layers to bytes before `end`.
    #[inline]
    fn truncate(&mut self, end: usize) {
        self.end = self.end.min(u32::try_from(end).unwrap_or(u32::MAX));
    }
}

/// Locates the layers of a frame. Inconsistencies are recorded in [`Layers::faults`]; the function
/// never fails.
#[inline]
pub fn layers(link: LinkType, frame: &[u8]) -> Layers {
    let found = link::parse_link_header(link, frame);
    let mut layers = Layers {
        link,
        network: found.network,
        tags: found.tags,
        l3: found.l3,
        l4: None,
        payload: None,
        protocol: None,
        end: u32::try_from(frame.len()).unwrap_or(u32::MAX),
        fragment: Fragment::Whole,
        faults: FrameFaults::default(),
    };
    match (found.network, found.l3) {
        (NetworkProtocol::Ipv4, Some(l3)) => locate_ipv4(&mut layers, frame, l3),
        (NetworkProtocol::Ipv6, Some(l3)) => locate_ipv6(&mut layers, frame, l3),
        _ => locate_non_ip_layers(&mut layers, frame, found),
    }
    layers
}

/// Locates the layers of a frame without IP, after its link header `found`. In such a frame, only
/// the link header can state a length.
fn locate_non_ip_layers(layers: &mut Layers, frame: &[u8], found: LinkHeader) {
    if let NetworkProtocol::Other(ethertype) = found.network {
        layers.faults.too_deep = crate::vlan::is_tag_ethertype(ethertype);
    }
    if let Some(end) = found.end {
        layers.faults.truncated = usize::from(end) > frame.len();
        layers.truncate(usize::from(end));
    }
    layers.faults.truncated |= found.l3.is_none() && has_layer3(layers.link);
}

/// Returns true if every frame of this link type with a complete link header has a layer 3.
const fn has_layer3(link: LinkType) -> bool {
    matches!(
        link,
        LinkType::ETHERNET
            | LinkType::NULL
            | LinkType::LOOP
            | LinkType::LINUX_SLL
            | LinkType::LINUX_SLL2
            | LinkType::PPP
            | LinkType::PPP_HDLC
    )
}

#[inline]
fn locate_ipv4(layers: &mut Layers, frame: &[u8], l3: u16) {
    let start = usize::from(l3);
    let Some((ip, _)) = frame.get(start..).and_then(Ipv4::parse) else {
        layers.faults.truncated = true;
        return;
    };
    let (header, total) = (usize::from(ip.header_length()), usize::from(ip.total_length()));
    let lies = header < ipv4::HEADER_LENGTH_MIN || (total != 0 && total < header);
    if ip.version() != 4 || lies {
        layers.faults.malformed = true;
        return;
    }
    if total != 0 {
        layers.faults.truncated = start + total > frame.len();
        layers.truncate(start + total);
    }
    layers.protocol = Some(ip.protocol());
    layers.fragment = ip.fragment();
    if layers.fragment != Fragment::Later {
        locate_transport(layers, frame, ip.protocol(), l3 + u16::from(ip.header_length()));
    }
}

#[inline]
fn locate_ipv6(layers: &mut Layers, frame: &[u8], l3: u16) {
    let start = usize::from(l3);
    let Some((ip, _)) = frame.get(start..).and_then(Ipv6::parse) else {
        layers.faults.truncated = true;
        return;
    };
    if ip.version() != 6 {
        layers.faults.malformed = true;
        return;
    }
    let stated = start + ipv6::HEADER_LENGTH + usize::from(ip.payload_length());
    if ip.payload_length() != 0 {
        layers.faults.truncated = stated > frame.len();
        layers.truncate(stated);
    }
    let packet = frame.get(start..layers.end as usize).unwrap_or_default();
    match ipv6::find_upper_layer(packet) {
        UpperLayer::Protocol { protocol, offset, fragment } => {
            layers.protocol = Some(protocol);
            layers.fragment = fragment;
            locate_transport(layers, frame, protocol, l3.saturating_add(offset));
        }
        UpperLayer::Fragment { protocol, .. } => {
            layers.protocol = Some(protocol);
            layers.fragment = Fragment::Later;
        }
        UpperLayer::TooDeep => layers.faults.too_deep = true,
        // Truncated, or the extension headers exceed the packet's stated length.
        UpperLayer::Truncated if layers.faults.truncated => {}
        UpperLayer::Truncated => layers.faults.malformed = true,
    }
}

#[inline]
fn locate_transport(layers: &mut Layers, frame: &[u8], protocol: u8, l4: u16) {
    let Some(bytes) = frame.get(usize::from(l4)..layers.end as usize) else {
        layers.record_overrun();
        return;
    };
    layers.l4 = Some(l4);
    match protocol {
        protocol::TCP => locate_tcp(layers, bytes, l4),
        protocol::UDP => locate_udp(layers, bytes, l4),
        _ => layers.payload = Some(l4),
    }
}

#[inline]
fn locate_tcp(layers: &mut Layers, bytes: &[u8], l4: u16) {
    let Some((tcp, _)) = tcp::Tcp::parse(bytes) else { return layers.record_overrun() };
    let header = tcp.header_length();
    if usize::from(header) < tcp::HEADER_LENGTH_MIN {
        layers.faults.malformed = true;
    } else if usize::from(header) > bytes.len() {
        layers.record_overrun();
    } else {
        layers.payload = Some(l4 + u16::from(header));
    }
}

#[inline]
fn locate_udp(layers: &mut Layers, bytes: &[u8], l4: u16) {
    let Some((udp, _)) = udp::Udp::parse(bytes) else { return layers.record_overrun() };
    let length = usize::from(udp.length());
    if length != 0 && length < udp::HEADER_LENGTH {
        layers.faults.malformed = true;
        return;
    }
    if length > bytes.len() {
        layers.record_overrun();
    } else if length != 0 {
        layers.truncate(usize::from(l4) + length);
    }
    layers.payload = Some(l4 + truncate_to_u16(udp::HEADER_LENGTH));
}

impl Layers {
    /// Records that a header or a stated length extends beyond [`Layers::end`]. The frame is
    /// malformed, unless it is truncated or a fragment: its missing bytes then explain the overrun.
    fn record_overrun(&mut self) {
        if !self.faults.truncated && self.fragment == Fragment::Whole {
            self.faults.malformed = true;
        }
    }
}
