//! Builder of Linux cooked headers, which replace the link-layer headers of packets from several
//! interfaces (LINKTYPE_LINUX_SLL and LINKTYPE_LINUX_SLL2).

use crate::LinkType;
use crate::ethernet;
use crate::vlan;

/// The addressee of a packet (`PACKET_*` of packet(7)).
pub mod packet_type {
    /// The packet was sent to this host.
    pub const HOST: u8 = 0;
    /// The packet was sent to the broadcast address.
    pub const BROADCAST: u8 = 1;
    /// The packet was sent to a multicast address.
    pub const MULTICAST: u8 = 2;
    /// The packet was sent to another host.
    pub const OTHER_HOST: u8 = 3;
    /// The packet was sent by this host.
    pub const OUTGOING: u8 = 4;
}

/// The content of a cooked header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CookedHeader {
    /// Index of the packet's interface. Only headers of version 2 (LINUX_SLL2) contain it.
    pub interface: u32,
    /// Addressee of the packet, one of the constants in [`packet_type`].
    pub kind: u8,
    /// Link type of the interface (`ARPHRD_*`).
    pub hardware: u16,
    /// Link-layer address of the sender, padded with zeros.
    pub sender: [u8; 8],
    /// Length of the sender's link-layer address in bytes.
    pub sender_length: u8,
    /// EtherType of the packet, or one of Linux's own numbers below 1536.
    pub protocol: u16,
}

impl CookedHeader {
    /// Returns the header of a packet in an Ethernet frame, and the offset in bytes at which the
    /// packet begins; `None` if the frame is too short. As in the kernel, the outermost VLAN tag is
    /// not part of the packet. `own` is the address of the interface, and `is_sent` is true if the
    /// host sends the frame.
    #[must_use]
    pub fn from_ethernet_frame(frame: &[u8], own: [u8; 6], is_sent: bool) -> Option<(Self, usize)> {
        let field = |at: usize| Some(u16::from_be_bytes(frame.get(at - 2..at)?.try_into().ok()?));
        let mut at = ethernet::HEADER_LENGTH;
        let mut protocol = field(at)?;
        if matches!(protocol, vlan::CUSTOMER_TAG | vlan::SERVICE_TAG) {
            at += vlan::TAG_LENGTH;
            protocol = field(at)?;
        }
        let target: [u8; 6] = frame.get(..6)?.try_into().ok()?;
        let mut sender = [0; 8];
        sender.get_mut(..6)?.copy_from_slice(frame.get(6..12)?);
        let header = Self {
            interface: 0,
            kind: cooked_packet_type(target, own, is_sent),
            hardware: 0,
            sender,
            sender_length: 6,
            protocol: linux_protocol(protocol, frame.get(at..).unwrap_or_default()),
        };
        Some((header, at))
    }

    /// Writes the header in the format of this link type to the last bytes of `to`, so that it
    /// precedes a packet that follows `to`. Returns its length in bytes; `None` if the link type
    /// has no cooked header or `to` is too short.
    pub fn write_header_before(&self, link: LinkType, to: &mut [u8]) -> Option<usize> {
        let [h0, h1] = self.hardware.to_be_bytes();
        let [p0, p1] = self.protocol.to_be_bytes();
        let [i0, i1, i2, i3] = self.interface.to_be_bytes();
        let [s0, s1, s2, s3, s4, s5, s6, s7] = self.sender;
        let (kind, length) = (self.kind, self.sender_length);
        let header: &[u8] = match link {
            LinkType::LINUX_SLL => {
                &[0, kind, h0, h1, 0, length, s0, s1, s2, s3, s4, s5, s6, s7, p0, p1]
            }
            LinkType::LINUX_SLL2 => &[
                p0, p1, 0, 0, i0, i1, i2, i3, h0, h1, kind, length, s0, s1, s2, s3, s4, s5, s6, s7,
            ],
            _ => return None,
        };
        let from = to.len().checked_sub(header.len())?;
        to.get_mut(from..)?.copy_from_slice(header);
        Some(header.len())
    }
}

/// Returns the addressee of a frame with this target address ([`packet_type`]). `own` is the
/// address of the interface, and `is_sent` is true if the host sends the frame.
fn cooked_packet_type(target: [u8; 6], own: [u8; 6], is_sent: bool) -> u8 {
    match target {
        _ if is_sent => packet_type::OUTGOING,
        [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => packet_type::BROADCAST,
        [first, ..] if first & 1 == 1 => packet_type::MULTICAST,
        _ if target == own => packet_type::HOST,
        _ => packet_type::OTHER_HOST,
    }
}

/// Returns the number with which Linux represents the type field of an Ethernet header: an
/// EtherType, or 1 (Novell's raw 802.3) or 4 (LLC) if the field is a length.
fn linux_protocol(field: u16, payload: &[u8]) -> u16 {
    match payload {
        _ if field >= ethernet::LOWEST_ETHERTYPE => field,
        [0xff, 0xff, ..] => 1,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dissect::layers;
    use crate::link::NetworkProtocol;

    const OWN_MAC_ADDRESS: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn frame(target: [u8; 6], middle: &[u8]) -> Vec<u8> {
        [&target[..], &[2, 0, 0, 0, 0, 1], middle, &[0x45; 20]].concat()
    }

    fn header(frame: &[u8], is_sent: bool) -> (CookedHeader, usize) {
        CookedHeader::from_ethernet_frame(frame, OWN_MAC_ADDRESS, is_sent).unwrap()
    }

    #[test]
    fn packet_type_matches_the_kernel() {
        let kind = |target, is_sent| header(&frame(target, &[8, 0]), is_sent).0.kind;
        assert_eq!(kind(OWN_MAC_ADDRESS, false), packet_type::HOST);
        assert_eq!(kind([0xff; 6], false), packet_type::BROADCAST);
        assert_eq!(kind([0x33, 0x33, 0, 0, 0, 1], false), packet_type::MULTICAST);
        assert_eq!(kind([2, 0, 0, 0, 0, 8], false), packet_type::OTHER_HOST);
        assert_eq!(kind(OWN_MAC_ADDRESS, true), packet_type::OUTGOING);
    }

    #[test]
    fn cooked_headers_of_both_versions_round_trip() {
        let bytes = frame(OWN_MAC_ADDRESS, &[8, 0]);
        let (mut cooked, at) = header(&bytes, false);
        (cooked.hardware, cooked.interface) = (1, 0x0102_0304);
        for (link, length) in [(LinkType::LINUX_SLL, 16), (LinkType::LINUX_SLL2, 20)] {
            let mut packet = [0xee; 24].to_vec();
            assert_eq!(cooked.write_header_before(link, &mut packet), Some(length));
            let packet = [&packet[24 - length..], &bytes[at..]].concat();
            assert_eq!(layers(link, &packet).network, NetworkProtocol::Ipv4, "{link:?}");
            assert_eq!(cooked.write_header_before(link, &mut [0; 15]), None);
        }
        assert_eq!(cooked.write_header_before(LinkType::ETHERNET, &mut [0; 64]), None);
        let mut version_2 = [0; 20];
        cooked.write_header_before(LinkType::LINUX_SLL2, &mut version_2);
        let expected = [8, 0, 0, 0, 1, 2, 3, 4, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0];
        assert_eq!(version_2, expected);
    }

    #[test]
    fn only_the_outermost_tag_is_skipped() {
        let (tagged, at) = header(&frame(OWN_MAC_ADDRESS, &[0x81, 0, 0, 7, 8, 0]), false);
        assert_eq!((tagged.protocol, at), (0x0800, 18));
        let (stacked, at) =
            header(&frame(OWN_MAC_ADDRESS, &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 9, 8, 0]), true);
        assert_eq!((stacked.protocol, at), (0x8100, 18));
    }

    #[test]
    fn length_field_becomes_linux_protocol_number() {
        assert_eq!(header(&frame(OWN_MAC_ADDRESS, &[0, 40, 0xff, 0xff]), false).0.protocol, 1);
        assert_eq!(header(&frame(OWN_MAC_ADDRESS, &[0, 40, 0xaa, 0xaa]), false).0.protocol, 4);
        assert_eq!(CookedHeader::from_ethernet_frame(&[0; 13], OWN_MAC_ADDRESS, false), None);
        let cut = frame(OWN_MAC_ADDRESS, &[0x81, 0, 0, 7]);
        let cut = CookedHeader::from_ethernet_frame(&cut[..16], OWN_MAC_ADDRESS, false);
        assert_eq!(cut, None, "a tag without a type");
    }
}
