//! A parser for the headers of a block's frame. The result does not depend on the block's view.
//!
//! [`Headers`] provides the header fields of a block as values for `json` and `files`, and as a
//! phrase for `print`: `vlan 7 IP 10.0.0.1:1234 > 10.0.0.2:80 tcp [P.] seq 1 ack 7 win 512, payload
//! 120`.

use abi::Marks;
use filter::Block;
use std::fmt;
use std::net::IpAddr;
use wire::address::Mac;
use wire::arp::Arp;
use wire::ethernet::Ethernet;
use wire::icmp::Icmp;
use wire::ip::{Fragment, protocol};
use wire::link::{LinkType, NetworkProtocol};
use wire::tcp::Tcp;
use wire::{Flow, Layers, layers};

/// The parsed headers of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers<'a> {
    frame: &'a [u8],
    pub(crate) layers: Layers,
    pub(crate) flow: Option<Flow>,
    /// Addresses of the sender and the receiver, or `None` if the frame has none. They may be known
    /// even if the ports, and thus the flow, are not.
    pub(crate) addresses: Option<(IpAddr, IpAddr)>,
}

impl<'a> Headers<'a> {
    /// Parses the headers of the frame that contains a block. Returns `None` for blocks without a
    /// frame.
    pub(crate) fn parse_frame(block: &Block<'a>) -> Option<Self> {
        if !block.marks.is_frame() {
            return None;
        }
        let layers = layers(LinkType(block.marks.link), block.frame);
        Some(Self::new(block.frame, layers))
    }

    /// Parses the headers of a block that a filter derived from a frame, such as decompressed
    /// bytes. These headers precede the derived bytes ([`Block::headers`]). Returns `None` for
    /// other blocks.
    pub(crate) fn parse_derived_block(block: &Block<'a>) -> Option<Self> {
        let frame = block.headers();
        if block.marks.link != Marks::NO_LINK_TYPE || frame.is_empty() {
            return None;
        }
        let layers = layers(LinkType::RAW, frame);
        Some(Self::new(frame, layers))
    }

    fn new(frame: &'a [u8], layers: Layers) -> Self {
        let flow = Flow::from_frame(&layers, frame);
        Self { frame, layers, flow, addresses: wire::flow::ip_addresses(&layers, frame) }
    }

    /// Returns the hardware addresses, sender first, or `None` if there is no Ethernet header.
    pub(crate) fn hardware_addresses(&self) -> Option<(Mac, Mac)> {
        if self.layers.link != LinkType::ETHERNET {
            return None;
        }
        let (ethernet, _) = Ethernet::parse(self.frame)?;
        Some((ethernet.source(), ethernet.target()))
    }

    /// Returns the id of the outermost VLAN, or `None` for an untagged frame.
    pub(crate) fn vlan_id(&self) -> Option<u16> {
        self.layers.tags.outer_tag(self.frame).map(|tag| tag.id())
    }

    fn format_transport(&self, f: &mut fmt::Formatter<'_>, flow: &Flow) -> fmt::Result {
        match protocol::name(flow.protocol) {
            Some(name) => write!(f, " {name}")?,
            None => write!(f, " protocol {}", flow.protocol)?,
        }
        if self.layers.fragment == Fragment::Later {
            return f.write_str(" fragment");
        }
        let bytes = self.layers.transport(self.frame).unwrap_or_default();
        match flow.protocol {
            protocol::TCP => Tcp::parse(bytes).map_or(Ok(()), |(tcp, _)| write!(f, " {tcp}"))?,
            protocol::ICMP => {
                Icmp::parse_icmpv4(bytes).map_or(Ok(()), |icmp| write!(f, " {icmp}"))?
            }
            protocol::ICMPV6 => {
                Icmp::parse_icmpv6(bytes).map_or(Ok(()), |icmp| write!(f, " {icmp}"))?
            }
            _ => {}
        }
        match self.layers.payload(self.frame) {
            Some(payload) if self.layers.payload != self.layers.l4 => {
                write!(f, ", payload {}", payload.len())
            }
            _ => Ok(()),
        }
    }

    fn format_without_flow(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packet = self.layers.packet(self.frame).unwrap_or_default();
        if let (NetworkProtocol::Arp, Some(arp)) = (self.layers.network, Arp::parse(packet)) {
            return fmt::Display::fmt(arp, f);
        }
        if let Some((source, target)) = self.addresses {
            let version = if source.is_ipv4() { "IP" } else { "IP6" };
            return write!(f, "{version} {source} > {target}");
        }
        if let Some((source, target)) = self.hardware_addresses() {
            write!(f, "{source} > {target} ")?;
        }
        match self.layers.network {
            NetworkProtocol::Ipv4 => f.write_str("IP"),
            NetworkProtocol::Ipv6 => f.write_str("IP6"),
            NetworkProtocol::Arp => f.write_str("ARP"),
            NetworkProtocol::Other(ethertype) => write!(f, "ethertype 0x{ethertype:04x}"),
            NetworkProtocol::Unknown => write!(f, "{}", self.layers.link),
        }
    }
}

impl fmt::Display for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for tag in self.layers.tags.iter(self.frame) {
            write!(f, "vlan {} ", tag.id())?;
        }
        match &self.flow {
            Some(flow) => {
                let version = if flow.source.is_ipv4() { "IP" } else { "IP6" };
                write!(f, "{version} {flow}")?;
                self.format_transport(f, flow)?;
            }
            None => self.format_without_flow(f)?,
        }
        if self.layers.faults.malformed {
            f.write_str(", malformed")?;
        }
        if self.layers.faults.too_deep {
            f.write_str(", too deep")?;
        }
        if self.layers.faults.truncated {
            f.write_str(", cut")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{block_with_marks, decode_hex, frame_block, frameless_block};
    use abi::Marks;

    const ETHERNET: &str = "020000000002 020000000001";
    const TCP: &str = "0800 4500002a000100004006000 00a0000010a000002
                       04d20050 00000001 00000007 5018 0200 0000 0000 6869";

    fn headers_phrase(digits: &str) -> String {
        Headers::parse_frame(&frame_block(&decode_hex(&format!("{ETHERNET}{digits}"))))
            .unwrap()
            .to_string()
    }

    #[test]
    fn tcp_and_udp_phrases_contain_payload_length() {
        let tcp = "IP 10.0.0.1:1234 > 10.0.0.2:80 tcp [P.] seq 1 ack 7 win 512, payload 2";
        assert_eq!(headers_phrase(TCP), tcp);
        assert_eq!(headers_phrase(&format!("8100 0007 {TCP}")), format!("vlan 7 {tcp}"));
        let udp = "86dd 60000000 000a 11 40 fe800000000000000000000000000001
                   20010db8000000000000000000000002 0035 0400 000a 0000 6869";
        assert_eq!(headers_phrase(udp), "IP6 [fe80::1]:53 > [2001:db8::2]:1024 udp, payload 2");
    }

    #[test]
    fn other_protocols_are_named_or_numbered() {
        let ip = |protocol: &str, rest: &str| {
            headers_phrase(&format!(
                "0800 4500001c 00010000 40{protocol}0000 0a000001 0a000002 {rest}"
            ))
        };
        let ends = "IP 10.0.0.1 > 10.0.0.2";
        assert_eq!(ip("01", "0800000000010001"), format!("{ends} icmp echo request"));
        assert_eq!(ip("01", "0301000000000000"), format!("{ends} icmp unreachable code 1"));
        assert_eq!(ip("01", "0d00000000000000"), format!("{ends} icmp type 13 code 0"));
        assert_eq!(ip("2f", "0000000000000000"), format!("{ends} gre"));
        assert_eq!(ip("fd", "0000000000000000"), format!("{ends} protocol 253"));
        let later =
            headers_phrase("0800 4500001c 00010002 40110000 0a000001 0a000002 0000000000000000");
        assert_eq!(later, format!("{ends} udp fragment"));
    }

    #[test]
    fn addresses_are_printed_without_a_known_protocol() {
        let ends = "fe800000000000000000000000000001 20010db8000000000000000000000002";
        let phrase = "IP6 fe80::1 > 2001:db8::2";
        let nested = format!("86dd 60000000 0048 3c 40 {ends} {}", "3c00000000000000".repeat(9));
        assert_eq!(headers_phrase(&nested), format!("{phrase}, too deep"));
        let cut = headers_phrase(&format!("86dd 60000000 0008 3c 40 {ends} 3c"));
        assert_eq!(cut, format!("{phrase}, cut"));
    }

    #[test]
    fn non_ip_frames_are_described_by_link_layer() {
        let arp = "0806 0001 0800 06 04 0001 020000000001 0a000001 000000000000 0a000002";
        assert_eq!(headers_phrase(arp), "ARP who has 10.0.0.2, tell 10.0.0.1");
        let reply = arp.replacen("0001 02", "0002 02", 1);
        assert_eq!(headers_phrase(&reply), "ARP 10.0.0.1 is at 02:00:00:00:00:01");
        let hardware = "02:00:00:00:00:01 > 02:00:00:00:00:02";
        assert_eq!(headers_phrase("88cc 0207"), format!("{hardware} ethertype 0x88cc"));
        assert_eq!(headers_phrase("0800 45"), format!("{hardware} IP, cut"));
        assert!(Headers::parse_frame(&frameless_block(b"a line")).is_none());
        let strange = Headers::parse_frame(&block_with_marks(Marks::frame(147, 3, 3), b"abc"))
            .unwrap()
            .to_string();
        assert_eq!(strange, "147");
    }

    #[test]
    fn truncated_frames_do_not_panic() {
        let whole = decode_hex(&format!("{ETHERNET}{TCP}"));
        for length in 0..whole.len() {
            let text = Headers::parse_frame(&frame_block(&whole[..length])).unwrap().to_string();
            assert!(text.contains("cut"), "{length}: {text}");
        }
    }
}
