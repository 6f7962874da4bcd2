//! UDP headers (RFC 768).
//!
//! In: the bytes of layer 4. Out: a view of 8 bytes and what follows.

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The offset of the source port.
pub const SRC_PORT: usize = 0;
/// The offset of the target port.
pub const DST_PORT: usize = 2;
/// The offset of the length.
pub const UDP_LENGTH: usize = 4;
/// The offset of the checksum.
pub const CHECKSUM: usize = 6;
/// The length of the header.
pub const LENGTH: usize = 8;

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
    /// Views the header, and what follows it.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(bytes).ok()
    }

    /// The source port.
    #[inline]
    pub fn source(&self) -> u16 {
        self.source.get()
    }

    /// The target port.
    #[inline]
    pub fn target(&self) -> u16 {
        self.target.get()
    }

    /// The length of header and payload. Zero means to the end of the packet: a jumbogram
    /// (RFC 2675), or a frame that the card will yet cut up.
    #[inline]
    pub fn length(&self) -> u16 {
        self.length.get()
    }

    /// The checksum as it stands in the datagram; zero over IPv4 means that there is none.
    pub fn checksum(&self) -> u16 {
        self.checksum.get()
    }
}

const _: () = assert!(size_of::<Udp>() == LENGTH);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let bytes = [0, 53, 0x12, 0x34, 0, 9, 0xab, 0xcd, 7];
        let (udp, rest) = Udp::parse(&bytes).unwrap();
        assert_eq!((udp.source(), udp.target()), (53, 0x1234));
        assert_eq!((udp.length(), udp.checksum(), rest), (9, 0xabcd, &[7][..]));
        assert!(Udp::parse(&bytes[..7]).is_none());
    }
}
