//! Ethernet II and IEEE 802.3 headers.
//!
//! A view covers the first 14 bytes. The field after the addresses is an ethertype if its value is
//! at least [`LOWEST_ETHERTYPE`]; otherwise it is a length. The module `link` handles both cases.

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::address::Mac;

/// Byte offset of the destination address in an Ethernet header.
pub const DST_OFFSET: usize = 0;
/// Byte offset of the source address in an Ethernet header.
pub const SRC_OFFSET: usize = 6;
/// Byte offset of the ethertype or length in an Ethernet header.
pub const ETHERTYPE_FIELD_OFFSET: usize = 12;
/// Length of an Ethernet header in bytes.
pub const HEADER_LENGTH: usize = 14;
/// Smallest value of the type field that is an ethertype. Smaller values are lengths (IEEE 802.3
/// §3.2.6).
pub const LOWEST_ETHERTYPE: u16 = 0x0600;

/// Ethertypes used by this crate and its dependents.
pub mod ethertype {
    /// Ethertype of IPv4.
    pub const IPV4: u16 = 0x0800;
    /// Ethertype of ARP.
    pub const ARP: u16 = 0x0806;
    /// Ethertype of reverse ARP.
    pub const RARP: u16 = 0x8035;
    /// Ethertype of IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// Ethertype of unicast MPLS.
    pub const MPLS: u16 = 0x8847;
    /// Ethertype of PPPoE discovery.
    pub const PPPOE_DISCOVERY: u16 = 0x8863;
    /// Ethertype of a PPPoE session.
    pub const PPPOE_SESSION: u16 = 0x8864;
}

/// A view of an Ethernet header.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Ethernet {
    target: [u8; 6],
    source: [u8; 6],
    ethertype: U16,
}

impl Ethernet {
    /// Creates an Ethernet header from its three fields.
    pub fn new(source: Mac, target: Mac, ethertype: u16) -> Self {
        Self { target: target.0, source: source.0, ethertype: ethertype.into() }
    }

    /// Splits a frame into the header and the rest; `None` if the frame is shorter than the header.
    #[inline]
    pub fn parse(frame: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(frame).ok()
    }

    /// Returns the destination address.
    pub const fn target(&self) -> Mac {
        Mac(self.target)
    }

    /// Returns the source address.
    pub const fn source(&self) -> Mac {
        Mac(self.source)
    }

    /// Returns the ethertype or, below [`LOWEST_ETHERTYPE`], the length.
    #[inline]
    pub fn ethertype(&self) -> u16 {
        self.ethertype.get()
    }
}

const _: () = assert!(size_of::<Ethernet>() == HEADER_LENGTH);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_header_fields_are_parsed() {
        let frame = [1, 2, 3, 4, 5, 6, 0xa, 0xb, 0xc, 0xd, 0xe, 0xf, 8, 6, 99];
        let (header, rest) = Ethernet::parse(&frame).unwrap();
        assert_eq!(header.target().to_string(), "01:02:03:04:05:06");
        assert_eq!(header.source().to_string(), "0a:0b:0c:0d:0e:0f");
        assert_eq!(header.ethertype(), ethertype::ARP);
        assert_eq!(rest, [99]);
        assert!(Ethernet::parse(&frame[..13]).is_none());
    }
}
