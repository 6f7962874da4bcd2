//! TCP headers (RFC 9293).
//!
//! In: the bytes of layer 4. Out: a view of the fixed 20 bytes, its options and what follows.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The offset of the source port.
pub const SRC_PORT: usize = 0;
/// The offset of the target port.
pub const DST_PORT: usize = 2;
/// The offset of the sequence number.
pub const SEQUENCE: usize = 4;
/// The offset of the acknowledgement number.
pub const ACKNOWLEDGEMENT: usize = 8;
/// The offset of the byte with the header length in its upper half.
pub const DATA_OFFSET: usize = 12;
/// The offset of the flags.
pub const FLAGS: usize = 13;
/// The offset of the window.
pub const WINDOW: usize = 14;
/// The offset of the checksum.
pub const CHECKSUM: usize = 16;
/// The length of a header without options.
pub const LENGTH_MIN: usize = 20;
/// The length of a header with all the options that fit.
pub const LENGTH_MAX: usize = 60;

/// The bits of [`FLAGS`].
pub mod flag {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Push.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer counts.
    pub const URG: u8 = 0x20;
    /// Congestion was met (RFC 3168).
    pub const ECE: u8 = 0x40;
    /// The congestion window was reduced (RFC 3168).
    pub const CWR: u8 = 0x80;
}

/// A view of the fixed part of a TCP header.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Tcp {
    source: U16,
    target: U16,
    sequence: U32,
    acknowledgement: U32,
    data_offset: u8,
    flags: u8,
    window: U16,
    checksum: U16,
    urgent: U16,
}

impl Tcp {
    /// Views the fixed header, and what follows it: options, then the payload.
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

    /// The sequence number of the first byte, or of SYN.
    #[inline]
    pub fn sequence(&self) -> u32 {
        self.sequence.get()
    }

    /// The sequence number that the sender expects next, if ACK is set.
    #[inline]
    pub fn acknowledgement(&self) -> u32 {
        self.acknowledgement.get()
    }

    /// The length of the header with its options in bytes; less than [`LENGTH_MIN`] is a lie.
    #[inline]
    pub const fn header_length(&self) -> u8 {
        (self.data_offset >> 4) * 4
    }

    /// The flags, to be tested with [`flag`].
    #[inline]
    pub const fn flags(&self) -> u8 {
        self.flags
    }

    /// Whether all bits of `flags` are set.
    #[inline]
    pub const fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// How many bytes the sender will take, before scaling.
    pub fn window(&self) -> u16 {
        self.window.get()
    }

    /// The checksum as it stands in the segment.
    pub fn checksum(&self) -> u16 {
        self.checksum.get()
    }

    /// The urgent pointer, if URG is set.
    pub fn urgent(&self) -> u16 {
        self.urgent.get()
    }
}

/// One option of a TCP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpOption<'a> {
    /// What the option is (2 segment size, 3 window scale, 4 and 5 SACK, 8 timestamps).
    pub kind: u8,
    /// Its bytes behind kind and length.
    pub data: &'a [u8],
}

/// Iterates over the options between the fixed header and `header_length`. Ends at the end-of-list
/// option, and at an option whose length does not fit.
pub fn options(segment: &[u8]) -> impl Iterator<Item = TcpOption<'_>> {
    let end = Tcp::parse(segment).map_or(0, |(tcp, _)| usize::from(tcp.header_length()));
    let mut rest = segment.get(LENGTH_MIN..end).unwrap_or_default();
    core::iter::from_fn(move || {
        while let Some((1, after)) = rest.split_first() {
            rest = after;
        }
        let (&kind, after) = rest.split_first().filter(|(kind, _)| **kind != 0)?;
        let (&length, _) = after.split_first()?;
        let data = rest.get(2..usize::from(length))?;
        rest = rest.get(usize::from(length)..)?;
        Some(TcpOption { kind, data })
    })
}

const _: () = assert!(size_of::<Tcp>() == LENGTH_MIN);

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(offset: u8, options: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 80, 0x30, 0x39, 0, 0, 0, 1, 0, 0, 0, 2, offset << 4, 0x12];
        bytes.extend([0x10, 0, 0xaa, 0xbb, 0, 3]);
        bytes.extend(options);
        bytes
    }

    #[test]
    fn fields() {
        let bytes = segment(5, b"x");
        let (tcp, rest) = Tcp::parse(&bytes).unwrap();
        assert_eq!((tcp.source(), tcp.target()), (80, 12345));
        assert_eq!((tcp.sequence(), tcp.acknowledgement()), (1, 2));
        assert_eq!((tcp.header_length(), tcp.window()), (20, 4096));
        assert_eq!((tcp.checksum(), tcp.urgent()), (0xaabb, 3));
        assert!(tcp.has(flag::SYN | flag::ACK) && !tcp.has(flag::FIN));
        assert_eq!(rest, b"x");
        assert!(Tcp::parse(&bytes[..19]).is_none());
    }

    #[test]
    fn options_end_where_they_lie() {
        let kinds =
            |bytes: &[u8]| options(bytes).map(|o| (o.kind, o.data.len())).collect::<Vec<_>>();
        let good = segment(8, &[2, 4, 5, 0xb4, 1, 1, 4, 2, 3, 3, 7, 0]);
        assert_eq!(kinds(&good), [(2, 2), (4, 0), (3, 1)]);
        assert_eq!(kinds(&segment(6, &[2, 0, 0, 0])), [], "length 0 would never end");
        assert_eq!(kinds(&segment(6, &[2, 1, 0, 0])), []);
        assert_eq!(kinds(&segment(6, &[8, 10, 0, 0])), [], "longer than the header");
        assert_eq!(kinds(&segment(15, &[4, 2])), [], "header longer than the segment");
        assert_eq!(kinds(&segment(4, &[])), []);
    }
}
