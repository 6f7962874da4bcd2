//! Builders of complete frames from header values.

use core::net::{SocketAddr, SocketAddrV4};

use zerocopy::IntoBytes;

use crate::address::Mac;
use crate::ethernet::{Ethernet, ethertype};
use crate::ip::protocol;
use crate::ipv4::Ipv4;
use crate::udp::{self, Udp};

/// Returns an Ethernet frame with a UDP datagram over IPv4, with valid checksums and without
/// padding; `None` if the payload is too long for an IPv4 packet. `hardware` and `ends` each give
/// the address of the sender, then that of the receiver.
pub fn udp_frame(
    hardware: (Mac, Mac),
    ends: (SocketAddrV4, SocketAddrV4),
    payload: &[u8],
) -> Option<Vec<u8>> {
    let length = u16::try_from(udp::HEADER_LENGTH + payload.len()).ok()?;
    let ip = Ipv4::new(*ends.0.ip(), *ends.1.ip(), protocol::UDP, length)?;
    let udp = Udp::new((SocketAddr::V4(ends.0), SocketAddr::V4(ends.1)), payload)?;
    let ethernet = Ethernet::new(hardware.0, hardware.1, ethertype::IPV4);
    Some([ethernet.as_bytes(), ip.as_bytes(), udp.as_bytes(), payload].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkType;
    use crate::{checksum, ipv4, layers};

    #[test]
    fn udp_frame_round_trips_with_valid_checksums() {
        let ends = ("10.0.0.1:1234".parse().unwrap(), "10.0.0.2:53".parse().unwrap());
        let hardware = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        for payload in [&b""[..], b"odd", b"even"] {
            let frame = udp_frame(hardware, ends, payload).unwrap();
            let layers = layers(LinkType::ETHERNET, &frame);
            assert_eq!(layers.payload(&frame).unwrap_or_default(), payload);
            assert_eq!(
                crate::Flow::from_frame(&layers, &frame).unwrap().to_string(),
                "10.0.0.1:1234 > 10.0.0.2:53"
            );
            let (ethernet, packet) = Ethernet::parse(&frame).unwrap();
            assert_eq!((ethernet.source(), ethernet.target()), hardware);
            assert!(ipv4::has_valid_checksum(packet));
            let datagram = &packet[ipv4::HEADER_LENGTH_MIN..];
            let (source, target) = (*ends.0.ip(), *ends.1.ip());
            let length = u32::try_from(datagram.len()).unwrap();
            let sum =
                checksum::pseudo_header_sum(source.into(), target.into(), protocol::UDP, length);
            assert_eq!(sum.unwrap().with_bytes(datagram).checksum(), 0);
        }
        assert!(udp_frame(hardware, ends, &[0; 65_508]).is_none());
    }
}
