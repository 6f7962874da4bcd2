//! IPv4 headers (RFC 791).
//!
//! A view covers the fixed 20 bytes. Lengths are returned as stated; `dissect` checks them against
//! the available bytes.

use core::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum;
use crate::ip::Fragment;

/// Byte offset, in the IPv4 header, of the byte with version and header length.
pub const VERSION_IHL_OFFSET: usize = 0;
/// Byte offset of the total length in the IPv4 header.
pub const TOTAL_LENGTH_OFFSET: usize = 2;
/// Byte offset of the identification in the IPv4 header.
pub const IDENTIFICATION_OFFSET: usize = 4;
/// Byte offset of the word with flags and fragment offset in the IPv4 header.
pub const FLAGS_FRAGMENT_OFFSET: usize = 6;
/// Byte offset of the time to live in the IPv4 header.
pub const TTL_OFFSET: usize = 8;
/// Byte offset of the protocol number in the IPv4 header.
pub const PROTOCOL_OFFSET: usize = 9;
/// Byte offset of the header checksum in the IPv4 header.
pub const CHECKSUM_OFFSET: usize = 10;
/// Byte offset of the source address in the IPv4 header.
pub const SRC_OFFSET: usize = 12;
/// Byte offset of the destination address in the IPv4 header.
pub const DST_OFFSET: usize = 16;
/// Length in bytes of an IPv4 header without options.
pub const HEADER_LENGTH_MIN: usize = 20;
/// Maximum length of an IPv4 header in bytes, which includes 40 bytes of options.
pub const HEADER_LENGTH_MAX: usize = 60;
/// Mask of the fragment offset in the word at [`FLAGS_FRAGMENT_OFFSET`].
pub const IPV4_FRAGMENT_OFFSET_MASK: u16 = 0x1fff;
/// Don't-fragment bit in the word at [`FLAGS_FRAGMENT_OFFSET`].
pub const DONT_FRAGMENT: u16 = 0x4000;
/// More-fragments bit in the word at [`FLAGS_FRAGMENT_OFFSET`].
pub const MORE_FRAGMENTS: u16 = 0x2000;

/// A view of the fixed IPv4 header.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Ipv4 {
    version_ihl: u8,
    service: u8,
    total_length: U16,
    identification: U16,
    flags_fragment: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    source: [u8; 4],
    target: [u8; 4],
}

impl Ipv4 {
    /// Creates the header of an atomic packet (RFC 6864: Don't Fragment, identification 0) with a
    /// payload of `length` bytes, no options, a TTL of 64, and a valid checksum. Returns `None` if
    /// the payload is too long for an IPv4 packet.
    pub fn new(source: Ipv4Addr, target: Ipv4Addr, protocol: u8, length: u16) -> Option<Self> {
        let mut header = Self {
            version_ihl: 0x45,
            total_length: length.checked_add(20)?.into(),
            flags_fragment: DONT_FRAGMENT.into(),
            ttl: 64,
            protocol,
            source: source.octets(),
            target: target.octets(),
            ..Self::new_zeroed()
        };
        header.checksum = checksum::internet_checksum(header.as_bytes()).into();
        Some(header)
    }

    /// Splits a packet into the fixed header and the rest, which contains options and payload;
    /// `None` if the header is truncated.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(bytes).ok()
    }

    /// Returns the version, which is 4 in a valid packet.
    #[inline]
    pub const fn version(&self) -> u8 {
        self.version_ihl >> 4
    }

    /// Returns the header length in bytes, including options. Values below [`HEADER_LENGTH_MIN`]
    /// are invalid.
    #[inline]
    pub const fn header_length(&self) -> u8 {
        (self.version_ihl & 0x0f) * 4
    }

    /// Returns the type of service: six bits of DSCP, two bits of ECN.
    pub const fn type_of_service(&self) -> u8 {
        self.service
    }

    /// Returns the packet length in bytes, including the header; 0 in frames that await
    /// segmentation by a device.
    #[inline]
    pub fn total_length(&self) -> u16 {
        self.total_length.get()
    }

    /// Returns the identification shared by the fragments of a packet.
    pub fn identification(&self) -> u16 {
        self.identification.get()
    }

    /// Returns true if more fragments follow.
    pub fn has_more_fragments(&self) -> bool {
        self.flags_fragment.get() & MORE_FRAGMENTS != 0
    }

    /// Returns the offset in bytes of this fragment's payload in the payload of the complete
    /// packet.
    pub fn fragment_offset(&self) -> u16 {
        (self.flags_fragment.get() & IPV4_FRAGMENT_OFFSET_MASK) * 8
    }

    /// Returns the position of this packet among the fragments.
    #[inline]
    pub fn fragment(&self) -> Fragment {
        let field = self.flags_fragment.get();
        Fragment::classify(field & IPV4_FRAGMENT_OFFSET_MASK, field & MORE_FRAGMENTS != 0)
    }

    /// Returns the remaining hop count.
    pub const fn ttl(&self) -> u8 {
        self.ttl
    }

    /// Returns the protocol number of the payload.
    #[inline]
    pub const fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Returns the header checksum as sent.
    pub fn checksum(&self) -> u16 {
        self.checksum.get()
    }

    /// Returns the source address.
    #[inline]
    pub const fn source(&self) -> Ipv4Addr {
        let [a, b, c, d] = self.source;
        Ipv4Addr::new(a, b, c, d)
    }

    /// Returns the destination address.
    #[inline]
    pub const fn target(&self) -> Ipv4Addr {
        let [a, b, c, d] = self.target;
        Ipv4Addr::new(a, b, c, d)
    }
}

/// Returns true if `bytes` begin with a complete header with a valid checksum.
pub fn has_valid_checksum(bytes: &[u8]) -> bool {
    let length = Ipv4::parse(bytes).map(|(header, _)| usize::from(header.header_length()));
    let header =
        length.filter(|length| *length >= HEADER_LENGTH_MIN).and_then(|end| bytes.get(..end));
    header.is_some_and(|header| checksum::internet_checksum(header) == 0)
}

const _: () = assert!(size_of::<Ipv4>() == HEADER_LENGTH_MIN);

#[cfg(test)]
mod tests {
    use super::*;

    /// Example packet in the style of RFC 1071, with the checksum 0xb861.
    const EXAMPLE_PACKET: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00,
        0x01, 0xc0, 0xa8, 0x00, 0xc7,
    ];

    #[test]
    fn ipv4_header_fields_are_parsed() {
        let (ip, rest) = Ipv4::parse(&EXAMPLE_PACKET).unwrap();
        assert_eq!((ip.version(), ip.header_length(), ip.total_length()), (4, 20, 115));
        assert_eq!((ip.ttl(), ip.protocol(), ip.checksum()), (64, 17, 0xb861));
        assert_eq!(ip.source(), Ipv4Addr::new(192, 168, 0, 1));
        assert_eq!(ip.target(), Ipv4Addr::new(192, 168, 0, 199));
        assert_eq!(ip.fragment(), Fragment::Whole);
        assert!(rest.is_empty());
        assert!(Ipv4::parse(&EXAMPLE_PACKET[..19]).is_none());
    }

    #[test]
    fn header_checksum_detects_any_flipped_bit() {
        assert!(has_valid_checksum(&EXAMPLE_PACKET));
        for bit in 0..160 {
            let mut broken = EXAMPLE_PACKET;
            broken[bit / 8] ^= 1 << (bit % 8);
            assert!(!has_valid_checksum(&broken), "bit {bit}");
        }
        assert!(!has_valid_checksum(&EXAMPLE_PACKET[..19]));
    }

    #[test]
    fn fragment_field_is_decoded() {
        let fragment = |field: u16| {
            let mut packet = EXAMPLE_PACKET;
            packet[6..8].copy_from_slice(&field.to_be_bytes());
            let (ip, _) = Ipv4::parse(&packet).unwrap();
            (ip.fragment(), ip.fragment_offset(), ip.has_more_fragments())
        };
        assert_eq!(fragment(0x2000), (Fragment::First, 0, true));
        assert_eq!(fragment(0x2001), (Fragment::Later, 8, true));
        assert_eq!(fragment(0x1fff), (Fragment::Later, 65_528, false));
    }
}
