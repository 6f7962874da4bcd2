//! Literal frames with valid headers of minimum length. All other header fields are zero.

use super::ETHERNET;
use wire::ip::protocol;

/// A frame whose bytes a test has written out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Frame {
    /// Link type of the frame.
    pub link: u16,
    /// Captured bytes of the frame.
    pub bytes: Vec<u8>,
    /// Length of the frame on the wire in bytes, or `None` if it equals the number of captured
    /// bytes.
    pub wire_length: Option<u32>,
    /// Timestamp of the frame in ns.
    pub time: u64,
}

impl Frame {
    /// Creates a frame of this link type.
    #[must_use]
    pub fn new(link: u16, bytes: &[u8]) -> Self {
        Self { link, bytes: bytes.to_vec(), wire_length: None, time: 0 }
    }

    /// Creates an Ethernet frame with zero addresses. `rest` begins with the EtherType.
    #[must_use]
    pub fn ethernet(rest: &[u8]) -> Self {
        Self::new(ETHERNET, &[&[0; 12], rest].concat())
    }

    /// Creates an IPv4 packet with a 20-byte header in an Ethernet frame. `data` is at frame offset
    /// 34.
    #[must_use]
    pub fn ipv4(protocol: u8, data: &[u8]) -> Self {
        let [high, low] = length_field(20 + data.len());
        let header = [0x45, 0, high, low, 0, 0, 0, 0, 64, protocol, 0, 0];
        let addresses = [10, 0, 0, 1, 10, 0, 0, 2];
        Self::ethernet(&[&[8, 0], &header[..], &addresses, data].concat())
    }

    /// Creates an IPv6 packet with a 40-byte header in an Ethernet frame. Extension headers and
    /// data are at frame offset 54.
    #[must_use]
    pub fn ipv6(next: u8, data: &[u8]) -> Self {
        let [high, low] = length_field(data.len());
        let header = [0x60, 0, 0, 0, high, low, next, 64];
        Self::ethernet(&[&[0x86, 0xdd], &header[..], &[0; 32], data].concat())
    }

    /// Creates a UDP datagram over IPv4. The payload is at frame offset 42.
    #[must_use]
    pub fn udp(source: u16, target: u16, payload: &[u8]) -> Self {
        let stated = length_field(8 + payload.len());
        let ports = [source.to_be_bytes(), target.to_be_bytes()].concat();
        Self::ipv4(protocol::UDP, &[&ports, &stated[..], &[0, 0], payload].concat())
    }

    /// Creates a TCP segment over IPv4. The payload is at frame offset 54.
    #[must_use]
    pub fn tcp(source: u16, target: u16, payload: &[u8]) -> Self {
        let ports = [source.to_be_bytes(), target.to_be_bytes()].concat();
        let rest = [0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0];
        Self::ipv4(protocol::TCP, &[&ports, &rest[..], payload].concat())
    }

    /// Creates a TCP segment over IPv4 with these flags, from 10.0.0.1 to 10.0.0.2. The payload is
    /// at frame offset 54. [`Frame::with_acknowledgement`] adds an acknowledgement.
    #[must_use]
    pub fn segment(ports: (u16, u16), flags: u8, sequence: u32, payload: &[u8]) -> Self {
        let mut frame = Self::tcp(ports.0, ports.1, payload);
        frame.overwrite(34 + 4, &sequence.to_be_bytes());
        frame.overwrite(34 + 13, &[flags]);
        frame
    }

    /// Sets the ACK flag and the acknowledgement number of an IPv4 segment.
    #[must_use]
    pub fn with_acknowledgement(mut self, number: u32) -> Self {
        self.overwrite(34 + 8, &number.to_be_bytes());
        let flags = self.bytes[34 + 13];
        self.overwrite(34 + 13, &[flags | wire::tcp::flag::ACK]);
        self
    }

    /// Swaps the addresses of an IPv4 frame.
    #[must_use]
    pub fn with_swapped_addresses(mut self) -> Self {
        let (source, target) = (self.bytes[26..30].to_vec(), self.bytes[30..34].to_vec());
        self.overwrite(26, &[target, source].concat());
        self
    }

    /// Overwrites the bytes of the frame from offset `at` on.
    pub fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Truncates the frame to `length` captured bytes, without changing its length on the wire.
    #[must_use]
    pub fn truncated_to(mut self, length: usize) -> Self {
        self.wire_length = Some(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
        self.bytes.truncate(length);
        self
    }

    /// Sets the timestamp of the frame, in ns.
    #[must_use]
    pub fn at_time(mut self, time: u64) -> Self {
        self.time = time;
        self
    }
}

fn length_field(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes()
}
