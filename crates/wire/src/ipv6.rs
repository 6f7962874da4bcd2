//! IPv6 headers and extension headers (RFC 8200).
//!
//! A view covers the fixed 40 bytes. [`find_upper_layer`] finds the end of the extension headers in
//! at most [`EXTENSIONS_MAX`] steps. For longer chains it returns [`UpperLayer::TooDeep`] and never
//! guesses, because a filter that read ports inside the chain would read values chosen by an
//! attacker.

use core::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ip::{Fragment, protocol};
use crate::read::{be16, be32, read_array, truncate_to_u16};

/// Byte offset of the payload length in the IPv6 header.
pub const PAYLOAD_LENGTH_OFFSET: usize = 4;
/// Byte offset of the next header number in the IPv6 header.
pub const NEXT_HEADER_OFFSET: usize = 6;
/// Byte offset of the hop limit in the IPv6 header.
pub const HOP_LIMIT_OFFSET: usize = 7;
/// Byte offset of the source address in the IPv6 header.
pub const SRC_OFFSET: usize = 8;
/// Byte offset of the destination address in the IPv6 header.
pub const DST_OFFSET: usize = 24;
/// Length of the fixed IPv6 header in bytes.
pub const HEADER_LENGTH: usize = 40;
/// Length of an IPv6 fragment extension header in bytes.
pub const FRAGMENT_HEADER_LENGTH: usize = 8;
/// Maximum number of extension headers that [`find_upper_layer`] follows. The recommended order in
/// RFC 8200 §4.1 has seven headers.
pub const EXTENSIONS_MAX: usize = 8;

/// A view of the fixed IPv6 header.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Ipv6 {
    version_class_label: U32,
    payload_length: U16,
    next_header: u8,
    hop_limit: u8,
    source: [u8; 16],
    target: [u8; 16],
}

impl Ipv6 {
    /// Splits a packet into the fixed header and the rest, which contains extension headers and
    /// payload; `None` if the header is truncated.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(bytes).ok()
    }

    /// Returns the version, which is 6 in a valid packet.
    #[inline]
    pub fn version(&self) -> u8 {
        (self.version_class_label.get() >> 28) as u8
    }

    /// Returns the number of bytes after the fixed header; 0 in jumbograms and in frames that await
    /// segmentation by a device.
    #[inline]
    pub fn payload_length(&self) -> u16 {
        self.payload_length.get()
    }

    /// Returns the number of the next header.
    #[inline]
    pub const fn next_header(&self) -> u8 {
        self.next_header
    }

    /// Returns the remaining hop count.
    pub const fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// Returns the source address.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.source)
    }

    /// Returns the destination address.
    #[inline]
    pub fn target(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.target)
    }
}

/// The result of walking the extension headers of an IPv6 packet ([`find_upper_layer`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UpperLayer {
    /// An upper-layer header was found.
    Protocol {
        /// Protocol number of the header; [`protocol::NONE`] if no header follows.
        protocol: u8,
        /// Offset of the header from the start of the IPv6 header, in bytes.
        offset: u16,
        /// [`Fragment::First`] if a fragment header announces further fragments, otherwise
        /// [`Fragment::Whole`].
        fragment: Fragment,
    },
    /// The packet is a later fragment, without an upper-layer header.
    Fragment {
        /// Type of the first header in the fragmentable part of the complete packet.
        protocol: u8,
        /// Offset of the fragment's data from the start of the IPv6 header, in bytes.
        offset: u16,
    },
    /// The packet has more than [`EXTENSIONS_MAX`] extension headers.
    TooDeep,
    /// The packet ends inside the extension headers.
    Truncated,
}

/// Follows the extension headers of a packet to the upper layer. The fixed header must be complete,
/// and `packet` must not contain bytes after the end of the packet, because the parser would read
/// padding as headers.
#[inline]
pub fn find_upper_layer(packet: &[u8]) -> UpperLayer {
    let Some(&next) = packet.get(NEXT_HEADER_OFFSET) else { return UpperLayer::Truncated };
    if !is_extension(next) {
        return UpperLayer::Protocol {
            protocol: next,
            offset: truncate_to_u16(HEADER_LENGTH),
            fragment: Fragment::Whole,
        };
    }
    walk_extensions(packet, next)
}

/// The fields of an IPv6 fragment header, and its location.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FragmentHeader {
    /// Offset of the fragment header from the start of the IPv6 header, in bytes.
    pub at: u16,
    /// Offset of the next-header field that announces the fragment header, from the start of the
    /// IPv6 header, in bytes.
    pub announced_at: u16,
    /// Type of the first header in the fragmentable part of the complete packet.
    pub next_header: u8,
    /// Offset of the fragment's data in the fragmentable part of the complete packet, in bytes.
    pub offset: u16,
    /// True if more fragments of the packet follow.
    pub has_more_fragments: bool,
    /// Identification that the fragments of a packet share.
    pub identification: u32,
}

/// Returns the first fragment header that is not atomic (RFC 6946); `None` if there is none. Later
/// headers are not inspected, because in a tiny first fragment they may continue in the next
/// fragment.
pub fn find_fragment_header(packet: &[u8]) -> Option<FragmentHeader> {
    let (mut announced_at, mut at) = (NEXT_HEADER_OFFSET, HEADER_LENGTH);
    for _ in 0..EXTENSIONS_MAX {
        let kind = *packet.get(announced_at)?;
        if !is_extension(kind) {
            return None;
        }
        let [next, length] = read_array(packet, at)?;
        if kind == protocol::FRAGMENT {
            let (field, identification) = (be16(packet, at + 2)?, be32(packet, at + 4)?);
            let (offset, more) = (field & !7, field & 1 == 1);
            if (offset, more) != (0, false) {
                let (at, announced_at) = (truncate_to_u16(at), truncate_to_u16(announced_at));
                return Some(FragmentHeader {
                    at,
                    announced_at,
                    next_header: next,
                    offset,
                    has_more_fragments: more,
                    identification,
                });
            }
        }
        (announced_at, at) = (at, at + extension_length(kind, length));
    }
    None
}

/// Returns true if [`find_upper_layer`] follows this extension header. ESP is excluded, because all
/// bytes after it are encrypted.
#[inline]
pub const fn is_extension(next: u8) -> bool {
    use protocol::{AH, DESTINATION_OPTIONS, FRAGMENT, HIP, HOP_BY_HOP, MOBILITY, ROUTING, SHIM6};
    matches!(
        next,
        HOP_BY_HOP | ROUTING | FRAGMENT | AH | DESTINATION_OPTIONS | MOBILITY | HIP | SHIM6
    )
}

fn walk_extensions(packet: &[u8], first: u8) -> UpperLayer {
    let (mut next, mut at, mut fragment) = (first, HEADER_LENGTH, Fragment::Whole);
    for _ in 0..EXTENSIONS_MAX {
        let Some([following, length]) = read_array(packet, at) else {
            return UpperLayer::Truncated;
        };
        if next == protocol::FRAGMENT {
            let Some(field) = be16(packet, at + 2) else { return UpperLayer::Truncated };
            let part = Fragment::classify(field >> 3, field & 1 == 1);
            if part == Fragment::Later {
                return later_fragment_layer(packet, following, at + FRAGMENT_HEADER_LENGTH);
            }
            // An atomic fragment header does not undo an earlier header that announced fragments.
            fragment = if part == Fragment::Whole { fragment } else { part };
        }
        at += extension_length(next, length);
        if at > packet.len() {
            return UpperLayer::Truncated;
        }
        next = following;
        if !is_extension(next) {
            return upper_layer_at(next, at, fragment);
        }
    }
    UpperLayer::TooDeep
}

/// Returns the length of an extension header in bytes. The length field counts units of 8 bytes
/// after the first 8 bytes (RFC 8200); in AH, it counts units of 4 bytes after the first 8 bytes
/// (RFC 4302).
pub(crate) const fn extension_length(header: u8, length: u8) -> usize {
    match header {
        protocol::FRAGMENT => FRAGMENT_HEADER_LENGTH,
        protocol::AH => (length as usize + 2) * 4,
        _ => (length as usize + 1) * 8,
    }
}

fn upper_layer_at(protocol: u8, at: usize, fragment: Fragment) -> UpperLayer {
    match u16::try_from(at) {
        Ok(offset) => UpperLayer::Protocol { protocol, offset, fragment },
        Err(_) => UpperLayer::TooDeep,
    }
}

fn later_fragment_layer(packet: &[u8], protocol: u8, at: usize) -> UpperLayer {
    match u16::try_from(at) {
        Ok(offset) if at <= packet.len() => UpperLayer::Fragment { protocol, offset },
        Ok(_) => UpperLayer::Truncated,
        Err(_) => UpperLayer::TooDeep,
    }
}

const _: () = assert!(size_of::<Ipv6>() == HEADER_LENGTH);
const _: () = assert!(HEADER_LENGTH + EXTENSIONS_MAX * 2048 < u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv6_packet(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0u8; HEADER_LENGTH];
        packet[0] = 0x60;
        packet[NEXT_HEADER_OFFSET] = next;
        packet.extend(rest);
        packet
    }

    fn unfragmented_layer(protocol: u8, offset: u16) -> UpperLayer {
        UpperLayer::Protocol { protocol, offset, fragment: Fragment::Whole }
    }

    #[test]
    fn ipv6_header_fields_are_parsed() {
        let mut bytes = ipv6_packet(6, &[]);
        bytes[..8].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45, 0, 9, 6, 64]);
        bytes[23] = 1;
        bytes[39] = 2;
        let (ip, _) = Ipv6::parse(&bytes).unwrap();
        assert_eq!(ip.version(), 6);
        assert_eq!((ip.payload_length(), ip.next_header(), ip.hop_limit()), (9, 6, 64));
        assert_eq!((ip.source(), ip.target()), ("::1".parse().unwrap(), "::2".parse().unwrap()));
        assert!(Ipv6::parse(&bytes[..39]).is_none());
    }

    #[test]
    fn ipv6_packet_without_extension_headers_is_parsed() {
        assert_eq!(find_upper_layer(&ipv6_packet(6, &[])), unfragmented_layer(6, 40));
        assert_eq!(find_upper_layer(&ipv6_packet(59, &[])), unfragmented_layer(59, 40));
        assert_eq!(find_upper_layer(&ipv6_packet(50, &[])), unfragmented_layer(50, 40));
        assert_eq!(find_upper_layer(&[]), UpperLayer::Truncated);
    }

    #[test]
    fn three_extension_headers_are_followed() {
        // Hop-by-hop of 8, destination options of 16, authentication of 12 bytes, then UDP.
        let mut rest = vec![60, 0, 0, 0, 0, 0, 0, 0];
        rest.extend([51, 1]);
        rest.extend([0; 14]);
        rest.extend([17, 1]);
        rest.extend([0; 10]);
        assert_eq!(
            find_upper_layer(&ipv6_packet(0, &rest)),
            unfragmented_layer(17, 40 + 8 + 16 + 12)
        );
        for cut in 0..rest.len() {
            assert_eq!(
                find_upper_layer(&ipv6_packet(0, &rest[..cut])),
                UpperLayer::Truncated,
                "{cut}"
            );
        }
    }

    #[test]
    fn fragment_headers_are_classified() {
        let fragment = |field: u16| {
            let [high, low] = field.to_be_bytes();
            find_upper_layer(&ipv6_packet(44, &[6, 0, high, low, 0, 0, 0, 1]))
        };
        assert_eq!(fragment(0), unfragmented_layer(6, 48), "atomic, RFC 6946");
        let first = UpperLayer::Protocol { protocol: 6, offset: 48, fragment: Fragment::First };
        assert_eq!(fragment(1), first);
        assert_eq!(fragment(8), UpperLayer::Fragment { protocol: 6, offset: 48 });
        assert_eq!(fragment(9), UpperLayer::Fragment { protocol: 6, offset: 48 });
        assert_eq!(find_upper_layer(&ipv6_packet(44, &[6, 0, 0, 8])), UpperLayer::Truncated);
        let both = [44, 0, 0, 1, 0, 0, 0, 1, 6, 0, 0, 0, 0, 0, 0, 1];
        let first = UpperLayer::Protocol { protocol: 6, offset: 56, fragment: Fragment::First };
        assert_eq!(
            find_upper_layer(&ipv6_packet(44, &both)),
            first,
            "an atomic header behind it hides nothing"
        );
    }

    #[test]
    fn fragment_header_is_found_after_others() {
        let header = [17, 0, 5, 0xa9, 1, 2, 3, 4];
        let found = FragmentHeader {
            at: 40,
            announced_at: 6,
            next_header: 17,
            offset: 0x5a8,
            has_more_fragments: true,
            identification: 0x0102_0304,
        };
        assert_eq!(find_fragment_header(&ipv6_packet(44, &header)), Some(found));
        let options = [44, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let after = ipv6_packet(60, &[&options[..], &header].concat());
        assert_eq!(
            find_fragment_header(&after),
            Some(FragmentHeader { at: 56, announced_at: 40, ..found })
        );
        // An atomic fragment is complete by itself.
        let atomic = [44, 0, 0, 0, 9, 9, 9, 9];
        let after = ipv6_packet(44, &[&atomic[..], &header].concat());
        assert_eq!(
            find_fragment_header(&after),
            Some(FragmentHeader { at: 48, announced_at: 40, ..found })
        );
        assert_eq!(find_fragment_header(&ipv6_packet(44, &[17, 0, 0, 0, 9, 9, 9, 9])), None);
        assert_eq!(find_fragment_header(&ipv6_packet(17, &header)), None);
        for cut in 0..8 {
            assert_eq!(find_fragment_header(&ipv6_packet(44, &header[..cut])), None, "{cut}");
        }
        // Reserved bits are ignored.
        let last = find_fragment_header(&ipv6_packet(44, &[17, 0, 0, 8 | 6, 0, 0, 0, 0])).unwrap();
        assert_eq!((last.offset, last.has_more_fragments), (8, false));
    }

    #[test]
    fn extension_header_depth_is_bounded() {
        let chain = |count: usize| {
            let mut rest: Vec<u8> = [60, 0, 0, 0, 0, 0, 0, 0].repeat(count);
            let last = rest.len() - 8;
            rest[last] = 6;
            find_upper_layer(&ipv6_packet(60, &rest))
        };
        assert_eq!(chain(EXTENSIONS_MAX), unfragmented_layer(6, 40 + 8 * 8));
        assert_eq!(chain(EXTENSIONS_MAX + 1), UpperLayer::TooDeep);
    }
}
