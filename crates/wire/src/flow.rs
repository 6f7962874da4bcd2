//! Flows: protocol, addresses and ports of a packet.
//!
//! A [`Flow`] has a normalized form and a hash, both the same for the two directions. The hash is
//! also the same on every machine and in every version, so both directions of a connection reach
//! the same worker [Par §IV-A]. The hash has no secret key, so a table of flows from untrusted
//! peers must use a random seed; otherwise, a peer could choose flows that collide.

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use crate::checksum::{OnesComplementSum, pseudo_header_sum};
use crate::dissect::Layers;
use crate::ip::{Fragment, protocol};
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::link::NetworkProtocol;
use crate::ports::Ports;
use crate::read::truncate_to_u64;
use crate::source_route::final_target;
use crate::{tcp, udp};

/// Addresses, protocol and ports of a packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Flow {
    /// IP address of the sender.
    pub source: IpAddr,
    /// IP address of the receiver.
    pub target: IpAddr,
    /// Number of the transport protocol (IANA).
    pub protocol: u8,
    /// Ports; `None` for protocols without ports and for later fragments, and if they were not
    /// captured.
    pub ports: Option<Ports>,
}

/// The direction of a packet between the two ends of its flow, as [`Flow::normalized`] orders them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// From the lower address and port to the higher.
    LowToHigh,
    /// From the higher address and port to the lower.
    HighToLow,
}

impl Flow {
    /// Returns the flow of a frame; `None` if the frame is not IP, or if its IP headers are
    /// malformed, truncated or too numerous.
    #[inline]
    pub fn from_frame(layers: &Layers, frame: &[u8]) -> Option<Self> {
        let protocol = layers.protocol?;
        let ports = layers.ports(frame);
        let (source, target) = ip_addresses(layers, frame)?;
        Some(Self { source, target, protocol, ports })
    }

    /// Returns the offset of a frame's TCP or UDP checksum, and the sum over the pseudo header;
    /// `None` for fragments, for other protocols, and if the final target is unknown. The length in
    /// the pseudo header is that of the captured bytes. The checksum field itself may not have been
    /// captured.
    pub fn checksum_location(layers: &Layers, frame: &[u8]) -> Option<(usize, OnesComplementSum)> {
        let offset = match layers.protocol? {
            protocol::TCP => tcp::CHECKSUM_OFFSET,
            protocol::UDP => udp::CHECKSUM_OFFSET,
            _ => return None,
        };
        let l4 = layers.l4.filter(|_| layers.fragment == Fragment::Whole)?;
        let Self { source, protocol, .. } = Self::from_frame(layers, frame)?;
        let target = final_target(layers.packet(frame)?)?;
        let length = layers.end.checked_sub(u32::from(l4))?;
        Some((usize::from(l4) + offset, pseudo_header_sum(source, target, protocol, length)?))
    }

    /// Returns the flow of packets in the opposite direction.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            source: self.target,
            target: self.source,
            protocol: self.protocol,
            ports: self.ports.map(Ports::with_ports_swapped),
        }
    }

    /// Returns the normalized flow, which is the same for both directions of a connection, and the
    /// direction of this flow relative to it.
    #[must_use]
    pub fn normalized(self) -> (Self, Direction) {
        if self.sender() <= self.receiver() {
            (self, Direction::LowToHigh)
        } else {
            (self.reversed(), Direction::HighToLow)
        }
    }

    /// Returns a hash that is the same for both directions and, for a given seed, on every machine.
    #[inline]
    pub fn hash(&self, seed: u64) -> u64 {
        let half = |(address, port): (IpAddr, u16)| hash_endpoint(address, port, seed);
        let both = half(self.sender()).wrapping_add(half(self.receiver()));
        mix_bits(both ^ u64::from(self.protocol))
    }

    fn sender(&self) -> (IpAddr, u16) {
        (self.source, self.ports.map_or(0, |ports| ports.source))
    }

    fn receiver(&self) -> (IpAddr, u16) {
        (self.target, self.ports.map_or(0, |ports| ports.target))
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ports {
            Some(ports) => {
                let source = SocketAddr::new(self.source, ports.source);
                write!(f, "{source} > {}", SocketAddr::new(self.target, ports.target))
            }
            None => write!(f, "{} > {}", self.source, self.target),
        }
    }
}

/// Hashes the address and port of one end of a flow.
#[inline]
fn hash_endpoint(address: IpAddr, port: u16, seed: u64) -> u64 {
    let (high, low) = match address {
        IpAddr::V4(address) => (0, u64::from(address.to_bits())),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            (truncate_to_u64(bits >> 64), truncate_to_u64(bits))
        }
    };
    mix_bits(mix_bits(high ^ seed).wrapping_add(low) ^ u64::from(port).rotate_left(40))
}

/// Mixes the bits of a value with the finalizer of SplitMix64: every input bit flips every output
/// bit with probability one half.
#[inline]
const fn mix_bits(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Returns the addresses of a frame's IP packet, sender first, even if the headers after the
/// addresses are malformed, too numerous or truncated. Returns `None` if the addresses were not
/// captured.
#[inline]
pub fn ip_addresses(layers: &Layers, frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let packet = layers.packet(frame)?;
    match layers.network {
        NetworkProtocol::Ipv4 => {
            let (ip, _) = Ipv4::parse(packet)?;
            Some((ip.source().into(), ip.target().into()))
        }
        NetworkProtocol::Ipv6 => {
            let (ip, _) = Ipv6::parse(packet)?;
            Some((ip.source().into(), ip.target().into()))
        }
        NetworkProtocol::Arp | NetworkProtocol::Other(_) | NetworkProtocol::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::protocol;

    fn parse_flow(source: &str, target: &str, ports: Option<(u16, u16)>) -> Flow {
        Flow {
            source: source.parse().unwrap(),
            target: target.parse().unwrap(),
            protocol: protocol::TCP,
            ports: ports.map(|(source, target)| Ports { source, target }),
        }
    }

    #[test]
    fn flow_displays_addresses_and_ports() {
        let four = parse_flow("10.0.0.1", "10.0.0.2", Some((1234, 80)));
        assert_eq!(four.to_string(), "10.0.0.1:1234 > 10.0.0.2:80");
        let six = parse_flow("fe80::1", "2001:db8::2", Some((1, 2)));
        assert_eq!(six.to_string(), "[fe80::1]:1 > [2001:db8::2]:2");
        assert_eq!(parse_flow("1.2.3.4", "::", None).to_string(), "1.2.3.4 > ::");
    }

    #[test]
    fn both_directions_normalize_to_one_flow() {
        let up = parse_flow("10.0.0.1", "10.0.0.2", Some((1234, 80)));
        let down = up.reversed();
        assert_eq!(up.normalized(), (up, Direction::LowToHigh));
        assert_eq!(down.normalized(), (up, Direction::HighToLow));
        let same_host = parse_flow("127.0.0.1", "127.0.0.1", Some((80, 1234)));
        assert_eq!(same_host.normalized(), (same_host, Direction::LowToHigh));
        assert_eq!(same_host.reversed().normalized(), (same_host, Direction::HighToLow));
    }

    #[test]
    fn hash_is_symmetric_seeded_and_stable() {
        let up = parse_flow("10.0.0.1", "10.0.0.2", Some((1234, 80)));
        assert_eq!(up.hash(7), up.reversed().hash(7));
        assert_ne!(up.hash(7), up.hash(8));
        let swapped_ports = parse_flow("10.0.0.1", "10.0.0.2", Some((80, 1234)));
        assert_ne!(up.hash(7), swapped_ports.hash(7));
        assert_ne!(up.hash(0), Flow { protocol: protocol::UDP, ..up }.hash(0));
        assert_eq!(up.hash(0), STABLE_HASH, "a stored hash must keep its value");
    }

    const STABLE_HASH: u64 = 5_946_426_835_229_603_807;

    #[test]
    fn hash_spreads_flows_over_workers() {
        let mut engines = [0u32; 8];
        for port in 0..8000 {
            let flow = parse_flow("10.0.0.1", "10.0.0.2", Some((port, 80)));
            engines[(flow.hash(0) % 8) as usize] += 1;
        }
        assert!(engines.iter().all(|count| (850..1150).contains(count)), "{engines:?}");
    }
}
