//! `eth`: validates the link header, classifies by EtherType, moves the view past the header.
//!
//! Input: frames of any link type that `wire` supports. Output: packets, viewed from the network
//! header or the first VLAN tag. For link types without an EtherType the class is the corresponding
//! EtherType, so that `eth |ip` means the same on Ethernet, on a tunnel and on loopback. [SL §4.1]
//!
//! Deviation: IEEE 802.3 frames with a length field and no SNAP header have no EtherType, and thus
//! no class.

use crate::layers;
use crate::prelude::*;
use crate::twin::{self, EmitResult};
use ebpf::emit::{Answer, Exit, Layers, Scope};
use wire::LinkType;
use wire::ethernet::ethertype;
use wire::link::NetworkProtocol;

/// Catalog entry of `eth`, which classifies frames by EtherType and moves the view past the link
/// header.
pub const ETH: Description = Description {
    name: "eth",
    summary: "check the link header, classify by ethertype, view what follows",
    details: "\
Checks the link header of a frame and moves the view past it. The class is the EtherType: `ip`
(0x0800), `ip6`, `arp`, `vlan` (0x8100) or its number. Link types without an EtherType (raw IP,
loopback, PPP) get the corresponding one. A frame with VLAN tags has the type of its outermost tag,
at which the view begins; `vlan` reads the tag.

Reasons for no class: `cut` (the header was not captured), `no ethertype` (802.3 without SNAP, or an
unknown link type).",
    example: "replay web.pcap | eth |ip ip | count",
    kind: FilterKind::Reordering,
    input_forms: Forms::of(&[Form::Frame]),
    output_form: OutputForm::Form(Form::Packet),
    reads: ReadDepth::Head(layers::HEAD_SIZE),
    classes: Classes::Number {
        meaning: "the ethertype",
        range: ValueRange { low: 0, high: 0xffff },
        names: &[
            ("ip", ethertype::IPV4 as u32),
            ("arp", ethertype::ARP as u32),
            ("wol", 0x0842),
            ("rarp", ethertype::RARP as u32),
            ("vlan", wire::vlan::CUSTOMER_TAG as u32),
            ("ip6", ethertype::IPV6 as u32),
            ("flow_control", 0x8808),
            ("slow", 0x8809),
            ("mpls", ethertype::MPLS as u32),
            ("pppoe_discovery", ethertype::PPPOE_DISCOVERY as u32),
            ("pppoe", ethertype::PPPOE_SESSION as u32),
            ("eapol", 0x888e),
            ("qinq", wire::vlan::SERVICE_TAG as u32),
            ("lldp", 0x88cc),
            ("macsec", 0x88e5),
            ("ptp", 0x88f7),
        ],
    },
    reasons: &["cut", "no ethertype"],
    constructor: Some(|_| Ok(Filter::lanes(Eth))),
    emit_twin: Some(emit_twin),
    ..Description::FILTER_DEFAULTS
};

const CUT: Reason = ETH.reason("cut");
const NO_ETHERTYPE: Reason = ETH.reason("no ethertype");

struct Eth;

impl LaneFilter for Eth {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        cx.answer_each_lane(batch, |block, _| {
            let (ethertype, at) = link_header(block)?;
            let class = Class::from_natural(ethertype.into());
            *block = block.view_at(at.into(), u32::MAX).with_class(class);
            Ok(())
        });
    }
}

/// Returns the EtherType from the link header, and the offset past the header.
fn link_header(block: &mut Block<'_>) -> Result<(u16, u16), Reason> {
    /// Offset of the EtherType in a Linux cooked header of version 2. In every other link header,
    /// the EtherType is the last field.
    const COOKED_V2_ETHERTYPE_OFFSET: usize = 0;
    if let Some(ethertype) = layers::marked_ethertype(block) {
        return Ok((ethertype, block.marks.network));
    }
    let link = layers::parse(block);
    let Some(l3) = link.l3 else {
        return Err(if link.faults.truncated { CUT } else { NO_ETHERTYPE });
    };
    if link.tags.count > 0 {
        let at = usize::from(link.tags.at);
        let from = if link.link == LinkType::LINUX_SLL2 {
            COOKED_V2_ETHERTYPE_OFFSET
        } else {
            at.saturating_sub(2)
        };
        let field = layers::head_bytes(block)
            .get(from..)
            .and_then(|rest| rest.first_chunk::<2>())
            .ok_or(CUT)?;
        return Ok((u16::from_be_bytes(*field), link.tags.at.into()));
    }
    match link.network {
        NetworkProtocol::Unknown => Err(NO_ETHERTYPE),
        network => Ok((network.ethertype().ok_or(NO_ETHERTYPE)?, l3)),
    }
}

/// Emits the twin of `eth`, which reads Ethernet headers only.
fn emit_twin<'s>(
    _: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> EmitResult<'s> {
    let cut = s.absent("cut", out);
    let unsure = s.unsure();
    let (kind, at) = twin::parse_link(s, Layers { next: None, ..on }, cut);
    s.arm(|t, done| {
        t.arm(|u, plain| {
            twin::require_tag(u, kind, plain);
            // The whole tag must be present. A second tag after it makes the twin unsure.
            let (_, next, _) = twin::parse_tag(u, (on.frame, at), 0, cut);
            twin::require_untagged(u, next, unsure);
            u.leave(done);
        });
        twin::require_untagged(t, kind, unsure);
    });
    Ok(Answer::new(kind, Layers { at, length: None, next: Some(kind), l3: Some(at), ..on }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Frame, answer_frames};

    #[test]
    fn ethertype_is_class_and_view_skips_header() {
        let frames = [
            Frame::ethernet(&[8, 0, 0x45]),
            Frame::ethernet(&[0x86, 0xdd, 0x60]),
            Frame::ethernet(&[0x81, 0, 0, 7, 8, 0, 0x45]),
            Frame::ethernet(&[0, 0, 1]),
            Frame::ethernet(&[8]),
            Frame::new(LinkType::RAW.0, &[0x45, 0]),
            Frame::new(LinkType::NULL.0, &[30, 0, 0, 0, 0x60]),
        ];
        let found = answer_frames(&ETH, &[], &frames);
        let classes: Vec<u32> = found.iter().map(|a| a.class.0).collect();
        assert_eq!(classes, [0x0800, 0x86dd, 0x8100, 0, 0, 0x0800, 0x86dd]);
        let views: Vec<(u32, u32)> = found.iter().map(|a| (a.view, a.length)).collect();
        assert_eq!(views, [(14, 1), (14, 1), (14, 5), (0, 15), (0, 13), (0, 2), (4, 1)]);
    }

    #[test]
    fn tag_after_cooked_header_is_found() {
        let mut cooked = vec![0; 14];
        cooked.extend([0x81, 0, 0, 7, 8, 0, 0x45]);
        let mut cooked2 = vec![0x81, 0];
        cooked2.extend([0; 18]);
        cooked2.extend([0, 7, 8, 0, 0x45]);
        let frames = [
            Frame::new(LinkType::LINUX_SLL.0, &cooked),
            Frame::new(LinkType::LINUX_SLL2.0, &cooked2),
        ];
        let found = answer_frames(&ETH, &[], &frames);
        assert_eq!(found.iter().map(|a| a.class.0).collect::<Vec<_>>(), [0x8100, 0x8100]);
        assert_eq!(found.iter().map(|a| a.view).collect::<Vec<_>>(), [16, 20]);
    }
}
