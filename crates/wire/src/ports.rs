//! The two ports that TCP, UDP and SCTP carry in the same four bytes.

use crate::ip::protocol;
use crate::read::array;

/// The offset of the source port from the beginning of layer 4.
pub const SRC_PORT: usize = 0;
/// The offset of the target port from the beginning of layer 4.
pub const DST_PORT: usize = 2;
/// The protocols whose header begins with two ports; those of `port` in pcap-filter.
pub const PROTOCOLS: [u8; 3] = [protocol::TCP, protocol::UDP, protocol::SCTP];

/// A source and a target port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Ports {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub target: u16,
}

impl Ports {
    /// Reads the ports at the front of a transport header, if `protocol` has ports.
    #[inline]
    pub fn read(protocol: u8, transport: &[u8]) -> Option<Self> {
        if !carries(protocol) {
            return None;
        }
        let [a, b, c, d] = array(transport, SRC_PORT)?;
        Some(Self { source: u16::from_be_bytes([a, b]), target: u16::from_be_bytes([c, d]) })
    }

    /// The ports of the other direction.
    pub const fn swapped(self) -> Self {
        Self { source: self.target, target: self.source }
    }
}

/// Whether a protocol carries ports.
#[inline]
pub const fn carries(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports() {
        let bytes = [0x1f, 0x90, 0, 80, 1];
        let ports = Ports { source: 8080, target: 80 };
        for protocol in PROTOCOLS {
            assert_eq!(Ports::read(protocol, &bytes), Some(ports));
            assert_eq!(Ports::read(protocol, &bytes[..3]), None);
        }
        assert_eq!(ports.swapped(), Ports { source: 80, target: 8080 });
        let others = (0..=255).filter(|protocol| !PROTOCOLS.contains(protocol));
        assert!(others.into_iter().all(|protocol| Ports::read(protocol, &bytes).is_none()));
    }
}
