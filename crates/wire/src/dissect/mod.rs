//! One cheap pass over a frame: where its layers begin. This is what sets the marks of a block.
//!
//! In: a frame and its link type. Out: [`Layers`], 40 bytes of plain data. Rules:
//! - Frames that were cut when captured are normal: layers whose first byte is there are marked,
//!   and `faults.cut` is set.
//! - What lies behind the length that IP states (Ethernet's padding) is not payload.
//! - An IPv4 total length or IPv6 payload length of zero means the end of the frame: so it is on
//!   frames that the card will yet cut up (TSO) and on jumbograms.
//! - A fragment that is not the first has no layer 4, whatever its bytes look like.
//! - Where a header contradicts itself, the layers before it are marked and nothing behind it:
//!   better no port than one that an attacker chose.
//!
//! The marks are offsets into the frame, as the contract asks of a block [SL §4.1].

use crate::ip::{Fragment, protocol};
use crate::ipv4::{self, Ipv4};
use crate::ipv6::{self, Ipv6, Upper};
use crate::link::{self, Link, LinkType, Network};
use crate::ports::Ports;
use crate::read::low16;
use crate::vlan::Tags;
use crate::{tcp, udp};

#[cfg(test)]
mod tests;

/// Where the layers of a frame begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layers {
    /// The link type of the frame.
    pub link: LinkType,
    /// The network protocol.
    pub network: Network,
    /// The VLAN tags.
    pub tags: Tags,
    /// Where layer 3 begins; nothing where the link header is unknown or cut.
    pub l3: Option<u16>,
    /// Where the transport header begins; nothing for later fragments, for other network protocols
    /// than IP, and behind a header that is malformed, too deep or cut.
    pub l4: Option<u16>,
    /// Where the payload of TCP or UDP begins; for every other transport protocol this is `l4`.
    pub payload: Option<u16>,
    /// The transport protocol that IP states; for later fragments that of the whole packet.
    pub protocol: Option<u8>,
    /// One past the last byte of the innermost layer found, as far as it was captured: padding and
    /// what follows the length of UDP are outside.
    pub end: u32,
    /// Which part of an IP packet this is.
    pub fragment: Fragment,
    /// What is wrong with the frame.
    pub faults: Faults,
}

/// What a pass found wrong with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Fewer bytes were captured than the headers state, or a header is not whole.
    pub cut: bool,
    /// A header contradicts itself or the one around it.
    pub malformed: bool,
    /// There are more extension headers or VLAN tags than are followed.
    pub deep: bool,
}

impl Layers {
    /// The bytes from layer 3 on, without padding.
    #[inline]
    pub fn packet<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        self.from(self.l3, frame)
    }

    /// The bytes from layer 4 on, without padding.
    #[inline]
    pub fn transport<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        self.from(self.l4, frame)
    }

    /// The bytes of the payload.
    #[inline]
    pub fn payload<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        self.from(self.payload, frame)
    }

    /// The ports, if the transport protocol has any and they were captured.
    #[inline]
    pub fn ports(&self, frame: &[u8]) -> Option<Ports> {
        Ports::read(self.protocol?, self.transport(frame)?)
    }

    #[inline]
    fn from<'a>(&self, start: Option<u16>, frame: &'a [u8]) -> Option<&'a [u8]> {
        frame.get(usize::from(start?)..self.end as usize)
    }

    /// Ends the layers at `end`, unless they end before.
    #[inline]
    fn end_at(&mut self, end: usize) {
        self.end = self.end.min(u32::try_from(end).unwrap_or(u32::MAX));
    }
}

/// Finds the layers of a frame.
#[inline]
pub fn layers(link: LinkType, frame: &[u8]) -> Layers {
    let found = link::read(link, frame);
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
        faults: Faults::default(),
    };
    match (found.network, found.l3) {
        (Network::Ipv4, Some(l3)) => ipv4(&mut layers, frame, l3),
        (Network::Ipv6, Some(l3)) => ipv6(&mut layers, frame, l3),
        _ => other(&mut layers, frame, found),
    }
    layers
}

/// Frames without IP: only the link header can say where they end.
fn other(layers: &mut Layers, frame: &[u8], found: Link) {
    if let Network::Other(ethertype) = found.network {
        layers.faults.deep = crate::vlan::is_tag(ethertype);
    }
    if let Some(end) = found.end {
        layers.faults.cut = usize::from(end) > frame.len();
        layers.end_at(usize::from(end));
    }
    layers.faults.cut |= found.l3.is_none() && header_is_known(layers.link);
}

/// Whether a frame of this link type has a layer 3 as soon as its header is whole.
const fn header_is_known(link: LinkType) -> bool {
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
fn ipv4(layers: &mut Layers, frame: &[u8], l3: u16) {
    let start = usize::from(l3);
    let Some((ip, _)) = frame.get(start..).and_then(Ipv4::parse) else {
        layers.faults.cut = true;
        return;
    };
    let (header, total) = (usize::from(ip.header_length()), usize::from(ip.total_length()));
    let lies = header < ipv4::LENGTH_MIN || (total != 0 && total < header);
    if ip.version() != 4 || lies {
        layers.faults.malformed = true;
        return;
    }
    if total != 0 {
        layers.faults.cut = start + total > frame.len();
        layers.end_at(start + total);
    }
    layers.protocol = Some(ip.protocol());
    layers.fragment = ip.fragment();
    if layers.fragment != Fragment::Later {
        transport(layers, frame, ip.protocol(), l3 + u16::from(ip.header_length()));
    }
}

#[inline]
fn ipv6(layers: &mut Layers, frame: &[u8], l3: u16) {
    let start = usize::from(l3);
    let Some((ip, _)) = frame.get(start..).and_then(Ipv6::parse) else {
        layers.faults.cut = true;
        return;
    };
    if ip.version() != 6 {
        layers.faults.malformed = true;
        return;
    }
    let stated = start + ipv6::LENGTH + usize::from(ip.payload_length());
    if ip.payload_length() != 0 {
        layers.faults.cut = stated > frame.len();
        layers.end_at(stated);
    }
    let packet = frame.get(start..layers.end as usize).unwrap_or_default();
    match ipv6::upper(packet) {
        Upper::Protocol { protocol, offset, fragment } => {
            layers.protocol = Some(protocol);
            layers.fragment = fragment;
            transport(layers, frame, protocol, l3.saturating_add(offset));
        }
        Upper::Fragment { protocol, .. } => {
            layers.protocol = Some(protocol);
            layers.fragment = Fragment::Later;
        }
        Upper::TooDeep => layers.faults.deep = true,
        // Cut off, or the headers go on beyond the length that the packet states.
        Upper::Truncated if layers.faults.cut => {}
        Upper::Truncated => layers.faults.malformed = true,
    }
}

#[inline]
fn transport(layers: &mut Layers, frame: &[u8], protocol: u8, l4: u16) {
    let Some(bytes) = frame.get(usize::from(l4)..layers.end as usize) else {
        layers.short();
        return;
    };
    layers.l4 = Some(l4);
    match protocol {
        protocol::TCP => tcp(layers, bytes, l4),
        protocol::UDP => udp(layers, bytes, l4),
        _ => layers.payload = Some(l4),
    }
}

#[inline]
fn tcp(layers: &mut Layers, bytes: &[u8], l4: u16) {
    let Some((tcp, _)) = tcp::Tcp::parse(bytes) else { return layers.short() };
    let header = tcp.header_length();
    if usize::from(header) < tcp::LENGTH_MIN {
        layers.faults.malformed = true;
    } else if usize::from(header) > bytes.len() {
        layers.short();
    } else {
        layers.payload = Some(l4 + u16::from(header));
    }
}

#[inline]
fn udp(layers: &mut Layers, bytes: &[u8], l4: u16) {
    let Some((udp, _)) = udp::Udp::parse(bytes) else { return layers.short() };
    let length = usize::from(udp.length());
    if length != 0 && length < udp::LENGTH {
        layers.faults.malformed = true;
        return;
    }
    if length > bytes.len() {
        layers.short();
    } else if length != 0 {
        layers.end_at(usize::from(l4) + length);
    }
    layers.payload = Some(l4 + low16(udp::LENGTH));
}

impl Layers {
    /// Notes that a header or a length goes beyond the end: no wonder in a frame that was cut or in
    /// a first fragment, a contradiction in any other.
    fn short(&mut self) {
        if !self.faults.cut && self.fragment == Fragment::Whole {
            self.faults.malformed = true;
        }
    }
}
