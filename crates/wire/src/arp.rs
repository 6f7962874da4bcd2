//! ARP for IPv4 over Ethernet (RFC 826).
//!
//! Other combinations of hardware and protocol types exist only in the RFC and are not parsed.

use core::fmt;
use core::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::address::Mac;
use crate::ethernet::ethertype;

/// Length of an ARP message in bytes.
pub const MESSAGE_LENGTH: usize = 28;
/// ARP operation code of a request.
pub const ARP_REQUEST: u16 = 1;
/// ARP operation code of a reply.
pub const ARP_REPLY: u16 = 2;

/// A view of an ARP message for IPv4 over Ethernet.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Arp {
    hardware: U16,
    protocol: U16,
    hardware_length: u8,
    protocol_length: u8,
    operation: U16,
    sender: [u8; 6],
    sender_address: [u8; 4],
    target: [u8; 6],
    target_address: [u8; 4],
}

impl Arp {
    /// Returns a view of an IPv4-over-Ethernet message; `None` if the message has other address
    /// types or is truncated.
    pub fn parse(bytes: &[u8]) -> Option<&Self> {
        let (arp, _) = Self::ref_from_prefix(bytes).ok()?;
        let lengths = (arp.hardware_length, arp.protocol_length);
        let kinds = (arp.hardware.get(), arp.protocol.get());
        (kinds == (1, ethertype::IPV4) && lengths == (6, 4)).then_some(arp)
    }

    /// Returns the operation: [`ARP_REQUEST`], [`ARP_REPLY`] or another number.
    pub fn operation(&self) -> u16 {
        self.operation.get()
    }

    /// Returns the sender's hardware address and network address.
    pub const fn sender(&self) -> (Mac, Ipv4Addr) {
        (Mac(self.sender), ipv4_from_octets(self.sender_address))
    }

    /// Returns the target's hardware address and network address.
    pub const fn target(&self) -> (Mac, Ipv4Addr) {
        (Mac(self.target), ipv4_from_octets(self.target_address))
    }
}

/// Formats the message like tcpdump: `ARP who has 10.0.0.2, tell 10.0.0.1`.
impl fmt::Display for Arp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((hardware, sender), (_, target)) = (self.sender(), self.target());
        match self.operation() {
            ARP_REQUEST => write!(f, "ARP who has {target}, tell {sender}"),
            ARP_REPLY => write!(f, "ARP {sender} is at {hardware}"),
            operation => write!(f, "ARP operation {operation} from {sender}"),
        }
    }
}

const fn ipv4_from_octets([a, b, c, d]: [u8; 4]) -> Ipv4Addr {
    Ipv4Addr::new(a, b, c, d)
}

const _: () = assert!(size_of::<Arp>() == MESSAGE_LENGTH);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arp_request_fields_are_parsed() {
        let mut bytes = [0u8; 28];
        bytes[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
        bytes[8..18].copy_from_slice(&[2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
        bytes[24..].copy_from_slice(&[10, 0, 0, 2]);
        let arp = Arp::parse(&bytes).unwrap();
        assert_eq!(arp.operation(), ARP_REQUEST);
        assert_eq!(arp.sender(), (Mac([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(arp.target(), (Mac([0; 6]), Ipv4Addr::new(10, 0, 0, 2)));
        assert!(Arp::parse(&bytes[..27]).is_none());
        bytes[4] = 8;
        assert!(Arp::parse(&bytes).is_none());
    }
}
