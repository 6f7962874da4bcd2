//! Frame layout of each link type: offsets of the header, the protocol number and the payload.
//!
//! Input: a link type. Output: the constants from which the generator starts.

use super::super::link::{LINK_TYPE_MAX, LinkType};

/// Offsets of a frame's headers and fields, in bytes. An offset is `None` if the link type lacks
/// the field or its position is unknown.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderLayout {
    /// Offset of the link header in the frame.
    pub(super) header: u32,
    /// Offset of the protocol number in the frame; `None` if there is none.
    pub(super) protocol: Option<u32>,
    /// Offset of the link header's payload, or the constant part of this offset if it varies;
    /// `None` if it is unknown.
    pub(super) payload: Option<u32>,
    /// Offset of the network header, relative to the payload. If an LLC header precedes the network
    /// header, this offset applies to frames in which a SNAP header follows the LLC header.
    pub(super) network_offset: u32,
    /// Offset of the network header, relative to the payload, in frames with an LLC header but no
    /// SNAP header.
    pub(super) network_offset_without_snap: u32,
    /// True if the offset of the link header varies from frame to frame and must be computed.
    pub(super) has_varying_header: bool,
    /// True if the offset of the payload varies from frame to frame and must be computed.
    pub(super) has_varying_payload: bool,
}

/// Returns the layout of frames whose fields have fixed offsets.
const fn fixed_layout(
    protocol: u32,
    payload: u32,
    nl: u32,
    network_offset_without_snap: u32,
) -> HeaderLayout {
    HeaderLayout {
        header: 0,
        protocol: Some(protocol),
        payload: Some(payload),
        network_offset: nl,
        network_offset_without_snap,
        has_varying_header: false,
        has_varying_payload: false,
    }
}

/// Returns the layout of frames without a protocol number.
const fn untyped_layout(payload: Option<u32>, nl: u32) -> HeaderLayout {
    HeaderLayout { protocol: None, payload, ..fixed_layout(0, 0, nl, 0) }
}

/// Returns the layout of frames with an Ethernet header at offset `header`.
const fn ethernet_layout(header: u32) -> HeaderLayout {
    HeaderLayout { header, ..fixed_layout(header + 12, header + 14, 0, 3) }
}

/// Returns the layout of a link type, or `None` if its frames cannot be filtered.
pub(super) fn link_layout(link: LinkType) -> Option<HeaderLayout> {
    use LinkType as L;
    Some(match link {
        // Supported by libpcap, but not by this compiler.
        L::SUNATM | L::PFLOG => return None,
        L::ARCNET => fixed_layout(2, 6, 0, 0),
        L::ARCNET_LINUX => fixed_layout(4, 8, 0, 0),
        L::EN10MB => ethernet_layout(0),
        L::NETANALYZER => ethernet_layout(4),
        L::NETANALYZER_TRANSPARENT => ethernet_layout(12),
        L::DSA_TAG_BRCM | L::DSA_TAG_DSA => fixed_layout(16, 18, 0, 3),
        L::SLIP => untyped_layout(Some(16), 0),
        L::SLIP_BSDOS => untyped_layout(Some(24), 0),
        L::NULL | L::LOOP => fixed_layout(0, 4, 0, 0),
        L::ENC => fixed_layout(0, 12, 0, 0),
        L::PPP | L::PPP_PPPD | L::PPP_SERIAL | L::C_HDLC | L::HDLC => fixed_layout(2, 4, 0, 0),
        L::PPP_ETHER => fixed_layout(6, 8, 0, 0),
        L::PPP_BSDOS => fixed_layout(5, 24, 0, 0),
        L::FDDI => fixed_layout(13, 13, 8, 3),
        L::IEEE802 => fixed_layout(14, 14, 8, 3),
        L::IEEE802_11 => HeaderLayout { has_varying_payload: true, ..fixed_layout(24, 0, 8, 3) },
        L::PRISM_HEADER | L::IEEE802_11_RADIO_AVS | L::IEEE802_11_RADIO | L::PPI => HeaderLayout {
            has_varying_payload: true,
            has_varying_header: true,
            ..fixed_layout(24, 0, 8, 3)
        },
        L::ATM_RFC1483 | L::ATM_CLIP => fixed_layout(0, 0, 8, 3),
        L::RAW | L::IPV4 | L::IPV6 | L::LTALK | L::FRELAY => untyped_layout(Some(0), 0),
        L::LINUX_SLL => fixed_layout(14, 16, 0, 0),
        L::LINUX_SLL2 => fixed_layout(0, 20, 0, 0),
        L::IP_OVER_FC => fixed_layout(16, 16, 8, 3),
        L::MFR => untyped_layout(Some(0), 4),
        L::APPLE_IP_OVER_IEEE1394 => fixed_layout(16, 18, 0, 0),
        L::SYMANTEC_FIREWALL => fixed_layout(6, 44, 0, 0),
        L::PFSYNC => untyped_layout(Some(4), 0),
        L::IPNET => fixed_layout(1, 24, 0, 0),
        link if link.is_juniper() => juniper_layout(link),
        L::EN3MB | L::AX25 | L::PRONET | L::CHAOS | L::REDBACK_SMARTEDGE => untyped_layout(None, 0),
        LinkType(104..=LINK_TYPE_MAX) => untyped_layout(None, 0),
        _ => return None,
    })
}

const fn juniper_layout(link: LinkType) -> HeaderLayout {
    use LinkType as L;
    match link {
        L::JUNIPER_ATM1 => fixed_layout(4, 4, 0, 10),
        L::JUNIPER_ATM2 => fixed_layout(8, 8, 0, 10),
        L::JUNIPER_PPPOE | L::JUNIPER_ETHER => fixed_layout(16, 14, 18, 21),
        L::JUNIPER_PPPOE_ATM => fixed_layout(4, 6, 0, 0),
        L::JUNIPER_GGSN => fixed_layout(6, 12, 0, 0),
        L::JUNIPER_MONITOR => fixed_layout(12, 12, 0, 0),
        L::JUNIPER_MFR
        | L::JUNIPER_MLFR
        | L::JUNIPER_MLPPP
        | L::JUNIPER_PPP
        | L::JUNIPER_CHDLC
        | L::JUNIPER_FRELAY => fixed_layout(4, 4, 0, 0),
        _ => untyped_layout(None, 0),
    }
}
