//! Frame layout of each link type: offsets of the header, the protocol number and the payload.
//!
//! Input: a link type. Output: the constants from which the generator starts.

use super::super::link::{LinkType, MATCHING_MAX};

/// Offsets at the beginning of a frame in bytes. An offset is `None` if the link type lacks the
/// field or its position is unknown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Offset of the link header.
    pub(super) header: u32,
    /// Offset of the protocol number.
    pub(super) protocol: Option<u32>,
    /// Offset of the payload, or the constant part of a varying offset.
    pub(super) payload: Option<u32>,
    /// Offset of the network header in the payload after LLC and SNAP headers.
    pub(super) nl: u32,
    /// Offset of the network header in the payload after an LLC header alone.
    pub(super) nl_nosnap: u32,
    /// True if the offset of the link header varies and must be computed.
    pub(super) header_moves: bool,
    /// True if the offset of the payload varies and must be computed.
    pub(super) payload_moves: bool,
}

/// Returns the layout of frames whose fields have fixed offsets.
const fn fixed(protocol: u32, payload: u32, nl: u32, nl_nosnap: u32) -> Layout {
    Layout {
        header: 0,
        protocol: Some(protocol),
        payload: Some(payload),
        nl,
        nl_nosnap,
        header_moves: false,
        payload_moves: false,
    }
}

/// Returns the layout of frames without a protocol number.
const fn untyped(payload: Option<u32>, nl: u32) -> Layout {
    Layout { protocol: None, payload, ..fixed(0, 0, nl, 0) }
}

/// Returns the layout of frames with an Ethernet header at offset `header`.
const fn ethernet(header: u32) -> Layout {
    Layout { header, ..fixed(header + 12, header + 14, 0, 3) }
}

/// Returns the layout of a link type; `None` if its frames cannot be filtered.
pub(super) fn layout(link: LinkType) -> Option<Layout> {
    use LinkType as L;
    Some(match link {
        // libpcap's.
        L::SUNATM | L::PFLOG => return None,
        L::ARCNET => fixed(2, 6, 0, 0),
        L::ARCNET_LINUX => fixed(4, 8, 0, 0),
        L::EN10MB => ethernet(0),
        L::NETANALYZER => ethernet(4),
        L::NETANALYZER_TRANSPARENT => ethernet(12),
        L::DSA_TAG_BRCM | L::DSA_TAG_DSA => fixed(16, 18, 0, 3),
        L::SLIP => untyped(Some(16), 0),
        L::SLIP_BSDOS => untyped(Some(24), 0),
        L::NULL | L::LOOP => fixed(0, 4, 0, 0),
        L::ENC => fixed(0, 12, 0, 0),
        L::PPP | L::PPP_PPPD | L::PPP_SERIAL | L::C_HDLC | L::HDLC => fixed(2, 4, 0, 0),
        L::PPP_ETHER => fixed(6, 8, 0, 0),
        L::PPP_BSDOS => fixed(5, 24, 0, 0),
        L::FDDI => fixed(13, 13, 8, 3),
        L::IEEE802 => fixed(14, 14, 8, 3),
        L::IEEE802_11 => Layout { payload_moves: true, ..fixed(24, 0, 8, 3) },
        L::PRISM_HEADER | L::IEEE802_11_RADIO_AVS | L::IEEE802_11_RADIO | L::PPI => {
            Layout { payload_moves: true, header_moves: true, ..fixed(24, 0, 8, 3) }
        }
        L::ATM_RFC1483 | L::ATM_CLIP => fixed(0, 0, 8, 3),
        L::RAW | L::IPV4 | L::IPV6 | L::LTALK | L::FRELAY => untyped(Some(0), 0),
        L::LINUX_SLL => fixed(14, 16, 0, 0),
        L::LINUX_SLL2 => fixed(0, 20, 0, 0),
        L::IP_OVER_FC => fixed(16, 16, 8, 3),
        L::MFR => untyped(Some(0), 4),
        L::APPLE_IP_OVER_IEEE1394 => fixed(16, 18, 0, 0),
        L::SYMANTEC_FIREWALL => fixed(6, 44, 0, 0),
        L::PFSYNC => untyped(Some(4), 0),
        L::IPNET => fixed(1, 24, 0, 0),
        link if link.is_juniper() => juniper(link),
        L::EN3MB | L::AX25 | L::PRONET | L::CHAOS | L::REDBACK_SMARTEDGE => untyped(None, 0),
        LinkType(104..=MATCHING_MAX) => untyped(None, 0),
        _ => return None,
    })
}

const fn juniper(link: LinkType) -> Layout {
    use LinkType as L;
    match link {
        L::JUNIPER_ATM1 => fixed(4, 4, 0, 10),
        L::JUNIPER_ATM2 => fixed(8, 8, 0, 10),
        L::JUNIPER_PPPOE | L::JUNIPER_ETHER => fixed(16, 14, 18, 21),
        L::JUNIPER_PPPOE_ATM => fixed(4, 6, 0, 0),
        L::JUNIPER_GGSN => fixed(6, 12, 0, 0),
        L::JUNIPER_MONITOR => fixed(12, 12, 0, 0),
        L::JUNIPER_MFR
        | L::JUNIPER_MLFR
        | L::JUNIPER_MLPPP
        | L::JUNIPER_PPP
        | L::JUNIPER_CHDLC
        | L::JUNIPER_FRELAY => fixed(4, 4, 0, 0),
        _ => untyped(None, 0),
    }
}
