//! UDP headers (RFC 768).

use core::net::SocketAddr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::pseudo_header_sum;
use crate::ip::protocol;

/// Byte offset of the length in the UDP header.
pub const UDP_LENGTH_OFFSET: usize = 4;
/// Byte offset of the checksum in the UDP header.
pub const CHECKSUM_OFFSET: usize = 6;
/// Length of the UDP header in bytes.
pub const HEADER_LENGTH: usize = 8;

/// A view of a UDP header.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Udp {
    source: U16,
    target: U16,
    length: U16,
    checksum: U16,
}

impl Udp {
    /// Returns the header of a datagram from `ends.0` to `ends.1`, with a valid checksum, which is
    /// never 0 (RFC 768). Returns `None` if the addresses are of different IP versions or the
    /// payload is too long.
    pub fn new(ends: (SocketAddr, SocketAddr), payload: &[u8]) -> Option<Self> {
        let length = u16::try_from(HEADER_LENGTH + payload.len()).ok()?;
        let (source, target) = (ends.0.port().into(), ends.1.port().into());
        let mut header = Self { source, target, length: length.into(), checksum: 0.into() };
        let sum = pseudo_header_sum(ends.0.ip(), ends.1.ip(), protocol::UDP, length.into())?;
        let checksum = sum.with_bytes(header.as_bytes()).with_bytes(payload).checksum();
        header.checksum = if checksum == 0 { u16::MAX } else { checksum }.into();
        Some(header)
    }

    /// Splits a datagram into the header and the rest; `None` if the header is truncated.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(bytes).ok()
    }

    /// Returns the source port.
    #[inline]
    pub fn source(&self) -> u16 {
        self.source.get()
    }

    /// Returns the destination port.
    #[inline]
    pub fn target(&self) -> u16 {
        self.target.get()
    }

    /// Returns the length of header and payload in bytes. The value 0 means that the datagram
    /// extends to the end of the packet. This occurs in jumbograms (RFC 2675) and in frames that
    /// await segmentation by a device.
    #[inline]
    pub fn length(&self) -> u16 {
        self.length.get()
    }

    /// Returns the checksum as sent. Over IPv4, 0 means that there is no checksum.
    pub fn checksum(&self) -> u16 {
        self.checksum.get()
    }
}

const _: () = assert!(size_of::<Udp>() == HEADER_LENGTH);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_header_fields_are_parsed() {
        let bytes = [0, 53, 0x12, 0x34, 0, 9, 0xab, 0xcd, 7];
        let (udp, rest) = Udp::parse(&bytes).unwrap();
        assert_eq!((udp.source(), udp.target()), (53, 0x1234));
        assert_eq!((udp.length(), udp.checksum(), rest), (9, 0xabcd, &[7][..]));
        assert!(Udp::parse(&bytes[..7]).is_none());
    }
}
