//! TCP headers (RFC 9293).
//!
//! A view covers the fixed 20 bytes. [`options`] iterates over the options in the rest of the
//! header.

use core::fmt::{self, Write as _};

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Byte offset of the flags in the TCP header.
pub const FLAGS_OFFSET: usize = 13;
/// Byte offset of the checksum in the TCP header.
pub const CHECKSUM_OFFSET: usize = 16;
/// Length in bytes of a TCP header without options.
pub const HEADER_LENGTH_MIN: usize = 20;
/// Maximum length of a TCP header in bytes, which includes 40 bytes of options.
pub const HEADER_LENGTH_MAX: usize = 60;

/// Flags of a TCP header, as bits of the byte at [`FLAGS_OFFSET`].
pub mod flag {
    /// Flag FIN: the sender has no more data.
    pub const FIN: u8 = 0x01;
    /// Flag SYN: synchronizes sequence numbers at the start of a connection.
    pub const SYN: u8 = 0x02;
    /// Flag RST: resets the connection.
    pub const RST: u8 = 0x04;
    /// Flag PSH: asks the receiver to push the data to the application.
    pub const PSH: u8 = 0x08;
    /// Flag ACK: the acknowledgment number is valid.
    pub const ACK: u8 = 0x10;
    /// Flag URG: the urgent pointer is valid.
    pub const URG: u8 = 0x20;
    /// Flag ECE: congestion was experienced (RFC 3168).
    pub const ECE: u8 = 0x40;
    /// Flag CWR: the sender has reduced its congestion window (RFC 3168).
    pub const CWR: u8 = 0x80;

    /// Flags and the letters that tcpdump prints for them, in tcpdump's order.
    pub const FLAG_LETTERS: [(u8, char); 8] = [
        (FIN, 'F'),
        (SYN, 'S'),
        (RST, 'R'),
        (PSH, 'P'),
        (ACK, '.'),
        (URG, 'U'),
        (ECE, 'E'),
        (CWR, 'W'),
    ];
}

/// A view of the fixed TCP header.
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
    /// Splits a segment into the fixed header and the rest, which contains options and payload;
    /// `None` if the header is truncated.
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

    /// Returns the sequence number of the first payload byte, or of the SYN.
    #[inline]
    pub fn sequence(&self) -> u32 {
        self.sequence.get()
    }

    /// Returns the next sequence number that the sender expects. Valid only if ACK is set.
    #[inline]
    pub fn acknowledgement_number(&self) -> u32 {
        self.acknowledgement.get()
    }

    /// Returns the header length in bytes, including options. Values below [`HEADER_LENGTH_MIN`]
    /// are invalid.
    #[inline]
    pub const fn header_length(&self) -> u8 {
        (self.data_offset >> 4) * 4
    }

    /// Returns the flags, as bits of [`flag`].
    #[inline]
    pub const fn flags(&self) -> u8 {
        self.flags
    }

    /// Returns true if all TCP flags in `flags` are set.
    #[inline]
    pub const fn has_flags(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Returns the receive window in bytes, before scaling.
    pub fn window(&self) -> u16 {
        self.window.get()
    }

    /// Returns the checksum as sent.
    pub fn checksum(&self) -> u16 {
        self.checksum.get()
    }

    /// Returns the urgent pointer. Valid only if URG is set.
    pub fn urgent_pointer(&self) -> u16 {
        self.urgent.get()
    }
}

/// Formats flags, numbers and window like tcpdump: `[P.] seq 1 ack 7 win 512`.
impl fmt::Display for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (flag, letter) in flag::FLAG_LETTERS {
            if self.has_flags(flag) {
                f.write_char(letter)?;
            }
        }
        write!(f, "] seq {}", self.sequence())?;
        if self.has_flags(flag::ACK) {
            write!(f, " ack {}", self.acknowledgement_number())?;
        }
        write!(f, " win {}", self.window())
    }
}

/// An option of a TCP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpOption<'a> {
    /// Kind of the option: 2 segment size, 3 window scale, 4 and 5 SACK, 8 timestamps.
    pub kind: u8,
    /// Bytes of the option after its kind and length.
    pub data: &'a [u8],
}

/// Iterates over the options of a segment, except no-operation options. Ends at the end-of-list
/// option or at an option with an invalid length.
pub fn options(segment: &[u8]) -> impl Iterator<Item = TcpOption<'_>> {
    let end = Tcp::parse(segment).map_or(0, |(tcp, _)| usize::from(tcp.header_length()));
    let mut rest = segment.get(HEADER_LENGTH_MIN..end).unwrap_or_default();
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

const _: () = assert!(size_of::<Tcp>() == HEADER_LENGTH_MIN);

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp_segment(offset: u8, options: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 80, 0x30, 0x39, 0, 0, 0, 1, 0, 0, 0, 2, offset << 4, 0x12];
        bytes.extend([0x10, 0, 0xaa, 0xbb, 0, 3]);
        bytes.extend(options);
        bytes
    }

    #[test]
    fn tcp_header_fields_are_parsed() {
        let bytes = tcp_segment(5, b"x");
        let (tcp, rest) = Tcp::parse(&bytes).unwrap();
        assert_eq!((tcp.source(), tcp.target()), (80, 12345));
        assert_eq!((tcp.sequence(), tcp.acknowledgement_number()), (1, 2));
        assert_eq!((tcp.header_length(), tcp.window()), (20, 4096));
        assert_eq!((tcp.checksum(), tcp.urgent_pointer()), (0xaabb, 3));
        assert!(tcp.has_flags(flag::SYN | flag::ACK) && !tcp.has_flags(flag::FIN));
        assert_eq!(rest, b"x");
        assert!(Tcp::parse(&bytes[..19]).is_none());
    }

    #[test]
    fn options_end_at_an_invalid_length() {
        let kinds =
            |bytes: &[u8]| options(bytes).map(|o| (o.kind, o.data.len())).collect::<Vec<_>>();
        let good = tcp_segment(8, &[2, 4, 5, 0xb4, 1, 1, 4, 2, 3, 3, 7, 0]);
        assert_eq!(kinds(&good), [(2, 2), (4, 0), (3, 1)]);
        assert_eq!(kinds(&tcp_segment(6, &[2, 0, 0, 0])), [], "length 0 would never end");
        assert_eq!(kinds(&tcp_segment(6, &[2, 1, 0, 0])), []);
        assert_eq!(kinds(&tcp_segment(6, &[8, 10, 0, 0])), [], "longer than the header");
        assert_eq!(kinds(&tcp_segment(15, &[4, 2])), [], "header longer than the segment");
        assert_eq!(kinds(&tcp_segment(4, &[])), []);
    }
}
