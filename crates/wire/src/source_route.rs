//! The final destination of packets with a source route.
//!
//! On the way, the destination in the IP header of such a packet is that of the next router. The
//! checksums of TCP and UDP cover the final destination instead (RFC 8200 §8.1, RFC 1122 §3.2.1.8).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ip::protocol;
use crate::ipv4::{self, Ipv4};
use crate::ipv6::{self, Ipv6};
use crate::read::read_array;

/// Option of IPv4: loose source route.
const LOOSE_SOURCE_ROUTE: u8 = 131;
/// Option of IPv4: strict source route.
const STRICT_SOURCE_ROUTE: u8 = 137;
/// Type of a routing header: source route (RFC 2460), whose last address is the destination.
const ROUTING_SOURCE_ROUTE: u8 = 0;
/// Type of a routing header: home address of a mobile node (RFC 6275), the only address.
const ROUTING_HOME_ADDRESS: u8 = 2;
/// Type of a routing header: segments (RFC 8754), whose first address is the destination.
const ROUTING_SEGMENTS: u8 = 4;
/// Offset in bytes of the addresses in a routing header.
const ROUTING_ADDRESSES_OFFSET: usize = 8;

/// Returns the destination that the checksums of a packet's upper layer cover. `packet` begins with
/// the IP header. Returns `None` if the headers are truncated, or if a routing header has a type
/// whose addresses are unknown.
pub fn final_target(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => ipv4_final_target(packet).map(IpAddr::V4),
        6 => ipv6_final_target(packet).map(IpAddr::V6),
        _ => None,
    }
}

fn ipv4_final_target(packet: &[u8]) -> Option<Ipv4Addr> {
    let (ip, _) = Ipv4::parse(packet)?;
    let header = packet.get(..usize::from(ip.header_length()))?;
    let mut options = header.get(ipv4::HEADER_LENGTH_MIN..)?;
    while let [kind, rest @ ..] = options {
        match (*kind, rest) {
            (0, _) => break,
            (1, _) => options = rest,
            (kind, [length, place, ..]) if *length >= 2 => {
                let option = options.get(..usize::from(*length))?;
                let is_route = matches!(kind, LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE);
                // The next address is at `place`, counted from 1; after the last, none is left.
                if is_route && place < length {
                    return option.last_chunk::<4>().copied().map(Ipv4Addr::from);
                }
                options = options.get(option.len()..)?;
            }
            _ => break,
        }
    }
    Some(ip.target())
}

fn ipv6_final_target(packet: &[u8]) -> Option<Ipv6Addr> {
    let (ip, _) = Ipv6::parse(packet)?;
    let (mut kind, mut at) = (ip.next_header(), ipv6::HEADER_LENGTH);
    for _ in 0..ipv6::EXTENSIONS_MAX {
        if !ipv6::is_extension(kind) {
            break;
        }
        let [next, length] = read_array(packet, at)?;
        let end = at + ipv6::extension_length(kind, length);
        if kind == protocol::ROUTING {
            let [of, segments_left] = read_array(packet, at + 2)?;
            let first = at + ROUTING_ADDRESSES_OFFSET;
            match of {
                _ if segments_left == 0 => {}
                ROUTING_SOURCE_ROUTE => {
                    let addresses = packet.get(first..end)?;
                    return addresses.last_chunk::<16>().copied().map(Ipv6Addr::from);
                }
                ROUTING_HOME_ADDRESS | ROUTING_SEGMENTS => {
                    return read_array::<16>(packet.get(..end)?, first).map(Ipv6Addr::from);
                }
                _ => return None,
            }
        }
        (kind, at) = (next, end);
    }
    Some(ip.target())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4_packet(options: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; ipv4::HEADER_LENGTH_MIN];
        packet[0] = 0x45 + (options.len() / 4) as u8;
        packet[16..20].copy_from_slice(&[10, 0, 0, 2]);
        packet.extend(options);
        packet
    }

    #[test]
    fn ipv4_route_ends_at_the_final_target() {
        let target = |options: &[u8]| final_target(&ipv4_packet(options)).unwrap().to_string();
        let route = |kind, place| [1, kind, 11, place, 10, 0, 0, 8, 10, 0, 0, 9];
        assert_eq!(target(&[]), "10.0.0.2");
        assert_eq!(target(&[1, 1, 1, 0]), "10.0.0.2");
        for kind in [LOOSE_SOURCE_ROUTE, STRICT_SOURCE_ROUTE] {
            assert_eq!(target(&route(kind, 4)), "10.0.0.9");
            assert_eq!(target(&route(kind, 8)), "10.0.0.9");
            assert_eq!(target(&route(kind, 12)), "10.0.0.2", "the route has been followed");
        }
        assert_eq!(target(&route(7, 4)), "10.0.0.2", "a record of the route");
        assert_eq!(final_target(&ipv4_packet(&route(131, 4))[..30]), None);
    }

    #[test]
    fn ipv6_route_ends_at_the_final_target() {
        let target = |kind: u8, left: u8| {
            let mut packet = vec![0; ipv6::HEADER_LENGTH];
            (packet[0], packet[6], packet[39]) = (0x60, protocol::HOP_BY_HOP, 2);
            packet.extend([protocol::ROUTING, 0, 1, 4, 0, 0, 0, 0]);
            packet.extend([protocol::TCP, 4, kind, left, 0, 0, 0, 0]);
            for last in [7, 8] {
                packet.extend([0; 15]);
                packet.push(last);
            }
            for cut in 0..packet.len() {
                assert_ne!(final_target(&packet[..cut]), Some("::7".parse().unwrap()));
            }
            final_target(&packet).map(|target| target.to_string())
        };
        for kind in [0, 2, 3, 4, 77] {
            assert_eq!(target(kind, 0).as_deref(), Some("::2"), "type {kind}");
        }
        assert_eq!(target(0, 1).as_deref(), Some("::8"));
        assert_eq!(target(2, 1).as_deref(), Some("::7"));
        assert_eq!(target(4, 1).as_deref(), Some("::7"));
        assert_eq!(target(3, 1), None, "compressed addresses");
    }
}
