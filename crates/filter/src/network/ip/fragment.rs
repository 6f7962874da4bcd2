//! Parser of IP fragments. It determines the datagram of a fragment, and the position of the
//! fragment's data in the datagram.
//!
//! Input: a block. Output: a [`IpFragment`], or the reason why the fragment is unusable. The
//! transport header is not parsed, because a tiny fragment may lack it.

use super::overlap::FragmentPolicy;
use crate::layers::{self, HeaderError};
use crate::prelude::*;
use std::hash::{DefaultHasher, Hasher};
use wire::ip::Fragment;
use wire::ipv4::Ipv4;
use wire::ipv6::{self, Ipv6};
use wire::link::NetworkProtocol;
use wire::{Layers, LinkType, checksum, ipv4};

/// Maximum length in bytes of an IPv4 packet, and of the data after a fixed IPv6 header.
const PACKET_LENGTH_MAX: u32 = 65_535;

/// A fragment of a datagram. Offsets in the frame are from the first byte of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct IpFragment {
    /// Offset of the fragment's data in the frame.
    pub(super) data: u32,
    /// Offset of the fragment's data within the datagram.
    pub(super) offset: u32,
    /// Length of the data in bytes; a multiple of 8 except in the last fragment.
    pub(super) length: u32,
    /// True if the fragment is the last of its datagram.
    pub(super) is_last: bool,
    /// The IP headers of the fragment.
    pub(super) head: IpHeaders,
}

/// The IP headers that a fragment shares with its datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct IpHeaders {
    /// Offset of the first IP header, from the start of the frame.
    start: u32,
    /// Offset in the frame at which the headers end. In IPv4, the data begins at this offset; in
    /// IPv6, the fragment header does.
    end: u32,
    /// For IPv6, the next-header field before the fragment header: its offset in the frame, and its
    /// value in the reassembled packet. `None` for IPv4.
    next_header: Option<(u32, u8)>,
}

impl IpFragment {
    /// Returns the fragment in the frame of a block, or an error with the reason if the fragment is
    /// unusable. Returns `None` if the frame contains no fragment, or too few bytes to decide.
    pub(super) fn find(
        block: &Block<'_>,
        policy: FragmentPolicy,
    ) -> Option<Result<Self, HeaderError>> {
        let frame = layers::head_bytes(block);
        let layers = wire::layers(LinkType(block.marks.link), frame);
        let from = layers.l3?;
        let packet = frame.get(usize::from(from)..)?;
        let found = match layers.network {
            NetworkProtocol::Ipv4 => Self::parse_ipv4(packet, from.into())?,
            NetworkProtocol::Ipv6 => Self::parse_ipv6(packet, from.into())?,
            _ => return None,
        };
        Some(found.and_then(|piece| piece.check_length(block, policy)))
    }

    fn parse_ipv4(packet: &[u8], from: u32) -> Option<Result<Self, HeaderError>> {
        let (ip, _) = Ipv4::parse(packet)?;
        let header = u32::from(ip.header_length());
        if ip.version() != 4 || header < ipv4::HEADER_LENGTH_MIN as u32 {
            return None;
        }
        if ip.fragment() == Fragment::Whole {
            return None;
        }
        let Some(length) = u32::from(ip.total_length()).checked_sub(header) else {
            return Some(Err(HeaderError::Malformed));
        };
        let data = from + header;
        let head = IpHeaders { start: from, end: data, next_header: None };
        let offset = ip.fragment_offset().into();
        Some(Ok(Self { data, offset, length, is_last: !ip.has_more_fragments(), head }))
    }

    fn parse_ipv6(packet: &[u8], from: u32) -> Option<Result<Self, HeaderError>> {
        let (ip, _) = Ipv6::parse(packet).filter(|(ip, _)| ip.version() == 6)?;
        let stated = ipv6::HEADER_LENGTH + usize::from(ip.payload_length());
        let header = ipv6::find_fragment_header(packet.get(..stated).unwrap_or(packet))?;
        let data = u32::from(header.at) + ipv6::FRAGMENT_HEADER_LENGTH as u32;
        let Some(length) = (stated as u32).checked_sub(data) else {
            return Some(Err(HeaderError::Malformed));
        };
        let announced = Some((from + u32::from(header.announced_at), header.next_header));
        let head =
            IpHeaders { start: from, end: from + u32::from(header.at), next_header: announced };
        let (data, offset) = (from + data, header.offset.into());
        Some(Ok(Self { data, offset, length, is_last: !header.has_more_fragments, head }))
    }

    /// Checks that the fragment was captured and is not empty, and that its length is a multiple of
    /// 8 unless it is the last fragment (RFC 791, RFC 8200 §4.5). If an IPv4 fragment fails the
    /// last check, the policy `linux` truncates it to a multiple of 8.
    fn check_length(
        mut self,
        block: &Block<'_>,
        policy: FragmentPolicy,
    ) -> Result<Self, HeaderError> {
        if self.data + self.length > block.marks.captured {
            return Err(HeaderError::Truncated);
        }
        if !self.is_last && !self.length.is_multiple_of(8) {
            if policy != FragmentPolicy::Linux || self.is_ipv6() {
                return Err(HeaderError::Malformed);
            }
            self.length &= !7;
        }
        if self.length == 0 { Err(HeaderError::Malformed) } else { Ok(self) }
    }

    /// Returns true for a fragment of an IPv6 packet.
    pub(super) const fn is_ipv6(&self) -> bool {
        self.head.next_header.is_some()
    }

    /// Returns the offset past the last byte of the fragment within the datagram.
    pub(super) const fn end(&self) -> u32 {
        self.offset + self.length
    }

    /// Returns the key of the fragment's datagram: a hash of the addresses, the identification, the
    /// network and, for IPv4, the protocol (RFC 791 §2.3, RFC 8200 §4.5). The VLAN tags and the
    /// source identify the network. A datagram that is observed on two networks is therefore
    /// reassembled twice, just as an unfragmented packet is received twice.
    pub(super) fn datagram_key(&self, block: &Block<'_>, seed: u64) -> u64 {
        let frame = layers::head_bytes(block);
        let part = |from: usize, length: usize| {
            let from = self.head.start as usize + from;
            frame.get(from..from + length).unwrap_or_default()
        };
        let mut hash = DefaultHasher::new();
        hash.write_u64(seed);
        if self.is_ipv6() {
            hash.write(part(ipv6::SRC_OFFSET, 32));
            hash.write(part((self.head.end - self.head.start) as usize + 4, 4));
        } else {
            hash.write(part(ipv4::SRC_OFFSET, 8));
            hash.write(part(ipv4::IDENTIFICATION_OFFSET, 2));
            hash.write(part(ipv4::PROTOCOL_OFFSET, 1));
        }
        let Layers { tags, .. } = wire::layers(LinkType(block.marks.link), frame);
        tags.iter(frame).for_each(|tag| hash.write_u16(tag.id()));
        hash.write_u16(block.context.origin);
        hash.finish().max(PRIVATE_SESSION_KEY + 1)
    }
}

impl IpHeaders {
    /// Returns true if a packet with these headers and `length` bytes of data exceeds the maximum
    /// length of an IP packet.
    pub(super) const fn would_exceed_packet_length(&self, length: u32) -> bool {
        let headers = self.end - self.start;
        let counted =
            if self.next_header.is_some() { headers - ipv6::HEADER_LENGTH as u32 } else { headers };
        counted + length > PACKET_LENGTH_MAX
    }

    /// Returns the offset past the headers in the frame.
    pub(super) const fn end(&self) -> usize {
        self.end as usize
    }

    /// Changes the headers at the start of `frame` to the headers of an unfragmented packet with
    /// `length` bytes of data.
    pub(super) fn write_unfragmented_headers(&self, frame: &mut [u8], length: u32) {
        let (from, to) = (self.start as usize, self.end as usize);
        if let Some((announced, next)) = self.next_header {
            if let Some(field) = frame.get_mut(announced as usize) {
                *field = next;
            }
            let counted = self.end - self.start - ipv6::HEADER_LENGTH as u32 + length;
            write_u16(frame, from + ipv6::PAYLOAD_LENGTH_OFFSET, counted);
            return;
        }
        write_u16(frame, from + ipv4::TOTAL_LENGTH_OFFSET, self.end - self.start + length);
        let fields = frame.get_mut(from + ipv4::FLAGS_FRAGMENT_OFFSET..to).unwrap_or_default();
        if let [flags, offset, ..] = fields {
            // Preserves "don't fragment" and the reserved bit.
            (*flags, *offset) = (*flags & 0xc0, 0);
        }
        write_u16(frame, from + ipv4::CHECKSUM_OFFSET, 0);
        let sum = checksum::internet_checksum(frame.get(from..to).unwrap_or_default());
        write_u16(frame, from + ipv4::CHECKSUM_OFFSET, sum.into());
    }
}

/// Writes the low 16 bits of a number at offset `at` in the frame, in network byte order.
fn write_u16(frame: &mut [u8], at: usize, number: u32) {
    let [.., high, low] = number.to_be_bytes();
    if let Some(field) = frame.get_mut(at..at + 2) {
        field.copy_from_slice(&[high, low]);
    }
}
