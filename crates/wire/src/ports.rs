//! Ports of TCP, UDP and SCTP, which are always in the first four bytes of the header.

use crate::ip::protocol;
use crate::read::read_array;

/// Byte offset of the source port in the transport header.
pub const SRC_PORT_OFFSET: usize = 0;
/// Byte offset of the destination port in the transport header.
pub const DST_PORT_OFFSET: usize = 2;
/// Protocols that have ports, as `port` in pcap-filter(7) defines them.
pub const PROTOCOLS_WITH_PORTS: [u8; 3] = [protocol::TCP, protocol::UDP, protocol::SCTP];

/// A source and a destination port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Ports {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub target: u16,
}

impl Ports {
    /// Reads the ports of a transport header; `None` if `protocol` has no ports or the header is
    /// truncated.
    #[inline]
    pub fn read(protocol: u8, transport: &[u8]) -> Option<Self> {
        if !has_ports(protocol) {
            return None;
        }
        let [a, b, c, d] = read_array(transport, SRC_PORT_OFFSET)?;
        Some(Self { source: u16::from_be_bytes([a, b]), target: u16::from_be_bytes([c, d]) })
    }

    /// Returns the ports with source and destination swapped, for the opposite direction.
    pub const fn with_ports_swapped(self) -> Self {
        Self { source: self.target, target: self.source }
    }
}

/// Returns true if a protocol has ports.
#[inline]
pub const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_for_protocols_that_have_them() {
        let bytes = [0x1f, 0x90, 0, 80, 1];
        let ports = Ports { source: 8080, target: 80 };
        for protocol in PROTOCOLS_WITH_PORTS {
            assert_eq!(Ports::read(protocol, &bytes), Some(ports));
            assert_eq!(Ports::read(protocol, &bytes[..3]), None);
        }
        assert_eq!(ports.with_ports_swapped(), Ports { source: 80, target: 8080 });
        let others = (0..=255).filter(|protocol| !PROTOCOLS_WITH_PORTS.contains(protocol));
        assert!(others.into_iter().all(|protocol| Ports::read(protocol, &bytes).is_none()));
    }
}
