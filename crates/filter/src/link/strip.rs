//! `strip`: removes headers or leading bytes.
//!
//! Input: frames and packets. Output: the same blocks without their link header, without a VLAN
//! tag, or without their first bytes. To remove headers and leading bytes, the filter changes only
//! offsets. To remove a tag, the filter also moves the link addresses before the tag. [SL §2,
//! header stripping], [Th Table 5.1]
//!
//! The twin edits the frame, so it runs only on redirected frames. At the tc hook it can only
//! remove a tag.

use crate::prelude::*;
use crate::twin::{self, EmitResult};
use ebpf::emit::{Answer, Cmp, Exit, FrameOffset, Layers, Scope, UnfitReason, be32};
use wire::ethernet::ETHERTYPE_FIELD_OFFSET;
use wire::link::NetworkProtocol;
use wire::{LinkType, ethernet, vlan};

/// Catalog entry of `strip`, which removes a link header, a VLAN tag or leading bytes.
pub const STRIP: Description = Description {
    name: "strip",
    summary: "remove the link header, a VLAN tag, or the first bytes",
    details: "\
Removes the front of a frame. `strip eth` removes the link header with its tags and leaves an IP
packet. `strip vlan` removes the outermost tag of an Ethernet frame. `strip 8` removes 8 bytes (1 to
4096) and leaves plain bytes. Class and view stay, except for removed bytes.

Reasons for no class: `not ip` (for `strip eth`), `no tag`, `short` (fewer bytes were captured).",
    example: "replay web.pcap | strip eth | pcap ip.pcap",
    kind: FilterKind::Editing,
    input_forms: Forms::of(&[Form::Frame, Form::Packet]),
    output_form: OutputForm::Form(Form::Packet),
    reads: ReadDepth::Head(crate::layers::HEAD_SIZE),
    effect: Some(effect),
    analysis: ArgumentAnalysis { output_links: Some(output_links), ..ArgumentAnalysis::NONE },
    parameters: &[Parameter::required(
        "what",
        ParameterType::Text,
        "`eth`, `vlan`, or a number of bytes",
    )],
    reasons: &["not ip", "no tag", "short"],
    constructor: Some(make_filter),
    emit_twin: Some(emit_twin),
    twin_test_arguments: &["eth", "vlan", "5"],
    ..Description::FILTER_DEFAULTS
};

const NOT_IP: Reason = STRIP.reason("not ip");
const NO_TAG: Reason = STRIP.reason("no tag");
const SHORT: Reason = STRIP.reason("short");
/// Maximum number of leading bytes that `strip` removes. It exceeds the length of every header.
const STRIPPED_BYTES_MAX: u16 = 4096;

#[derive(Clone, Copy)]
enum StripTarget {
    Link,
    Tag,
    Bytes(u16),
}

fn parse_strip_target(arguments: &Arguments) -> Result<StripTarget, Mistake> {
    match arguments.text("what").unwrap_or_default() {
        "eth" => Ok(StripTarget::Link),
        "vlan" => Ok(StripTarget::Tag),
        bytes => match bytes.parse() {
            Ok(bytes) if (1..=STRIPPED_BYTES_MAX).contains(&bytes) => Ok(StripTarget::Bytes(bytes)),
            _ => Err(Mistake::new(
                "what",
                format!(
                    "`{bytes}` is neither `eth` nor `vlan` nor between 1 and {STRIPPED_BYTES_MAX}"
                ),
            )),
        },
    }
}

fn effect(arguments: &Arguments) -> Effect {
    let always =
        Effect { kind: FilterKind::Reordering, output_form: STRIP.output_form, reads: STRIP.reads };
    match parse_strip_target(arguments) {
        Ok(StripTarget::Tag) => {
            Effect { kind: FilterKind::Editing, output_form: OutputForm::Same, ..always }
        }
        Ok(StripTarget::Bytes(_)) => Effect {
            output_form: OutputForm::Form(Form::Bytes),
            reads: ReadDepth::Nothing,
            ..always
        },
        Ok(StripTarget::Link) | Err(_) => always,
    }
}

fn output_links(arguments: &Arguments) -> Option<&'static [LinkType]> {
    match parse_strip_target(arguments) {
        Ok(StripTarget::Tag) | Err(_) => None,
        Ok(StripTarget::Link) => Some(&[LinkType::IPV4, LinkType::IPV6]),
        Ok(StripTarget::Bytes(_)) => Some(&[]),
    }
}

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    Ok(Filter::lanes(Strip { target: parse_strip_target(arguments)? }))
}

struct Strip {
    target: StripTarget,
}

impl LaneFilter for Strip {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        for l in lanes(batch.live_lanes()) {
            let block = batch.block(l);
            let stripped = match self.target {
                StripTarget::Link => strip_link(block),
                StripTarget::Bytes(bytes) => strip_bytes(block, bytes.into()),
                StripTarget::Tag if has_tag(&block) => {
                    strip_tag(batch, l, cx);
                    continue;
                }
                StripTarget::Tag => Err(NO_TAG),
            };
            match stripped {
                Ok(block) => batch.set_block(l, block),
                Err(why) => batch.set_class(l, cx.common.answer_absent(why)),
            }
        }
    }
}

fn strip_link(mut block: Block<'_>) -> Result<Block<'_>, Reason> {
    let found = crate::layers::parse(&mut block);
    let link = match found.network {
        NetworkProtocol::Ipv4 => LinkType::IPV4,
        NetworkProtocol::Ipv6 => LinkType::IPV6,
        NetworkProtocol::Arp | NetworkProtocol::Other(_) | NetworkProtocol::Unknown => {
            return Err(NOT_IP);
        }
    };
    let mut stripped = block.without_leading_bytes(found.l3.ok_or(NOT_IP)?.into());
    stripped.marks.link = link.0;
    Ok(stripped)
}

fn strip_bytes(block: Block<'_>, bytes: u32) -> Result<Block<'_>, Reason> {
    if block.marks.captured < bytes {
        return Err(SHORT);
    }
    let mut stripped = block.without_leading_bytes(bytes);
    let Marks { view, captured, wire_length, .. } = stripped.marks;
    let ticket = stripped.marks.section_ticket();
    stripped.marks =
        Marks::frame(Marks::NO_LINK_TYPE, captured, wire_length).with_section_ticket(ticket);
    stripped.marks.view = view;
    Ok(stripped)
}

/// Length in bytes of an Ethernet header with a VLAN tag: the link addresses, the tag, and the
/// EtherType after the tag.
const TAGGED_HEADER_SIZE: usize = ethernet::HEADER_LENGTH + vlan::TAG_LENGTH;

fn has_tag(block: &Block<'_>) -> bool {
    let kind = block.frame.get(ETHERTYPE_FIELD_OFFSET..).and_then(|rest| rest.first_chunk::<2>());
    block.marks.link == LinkType::ETHERNET.0
        && block.frame.len() >= TAGGED_HEADER_SIZE
        && kind.is_some_and(|kind| vlan::is_tag_ethertype(u16::from_be_bytes(*kind)))
}

/// Removes the tag in place by moving the link addresses over it. The frame then begins four bytes
/// later.
fn strip_tag<'a>(batch: &mut Batch<'a>, l: Lane, cx: &mut LaneContext<'_, 'a>) {
    const TAG_LENGTH: u32 = vlan::TAG_LENGTH as u32;
    let moved = cx.edit_frame(batch, l, OldBytes::Keep, |frame| {
        frame.copy_within(..ETHERTYPE_FIELD_OFFSET, vlan::TAG_LENGTH);
    });
    if !moved {
        return;
    }
    let block = batch.block(l);
    // A view past the link header stays past it.
    let behind = block.marks.view >= ethernet::HEADER_LENGTH as u32;
    let mut stripped = block.without_leading_bytes(TAG_LENGTH);
    let marks = &mut stripped.marks;
    (marks.network, marks.transport, marks.payload) =
        (Marks::UNKNOWN_OFFSET, Marks::UNKNOWN_OFFSET, Marks::UNKNOWN_OFFSET);
    if behind && stripped.marks.view < ethernet::HEADER_LENGTH as u32 {
        stripped = stripped.view_at(ethernet::HEADER_LENGTH as u32, u32::MAX);
    }
    batch.set_block(l, stripped);
}

/// Emits the twin of `strip`, which removes a link header, leading bytes or a VLAN tag, depending
/// on the arguments.
fn emit_twin<'s>(
    a: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> EmitResult<'s> {
    match parse_strip_target(a).map_err(|mistake| UnfitReason::new(mistake.to_string()))? {
        StripTarget::Link => emit_strip_link(s, on, out),
        StripTarget::Tag => emit_strip_tag(s, on, out),
        StripTarget::Bytes(bytes) => emit_strip_bytes(s, on, out, bytes),
    }
}

fn emit_strip_link<'s>(s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>) -> EmitResult<'s> {
    if !on.has_link_header {
        return Err(UnfitReason::new("the link header is cut off already"));
    }
    let not_ip = s.absent("not ip", out);
    let fresh = Layers { at: on.frame, next: None, tags: 0, ..on };
    let (kind, l3) = twin::parse_network_with_exit(s, fresh, not_ip);
    s.only_one_of(kind, [ethernet::ethertype::IPV4, ethernet::ethertype::IPV6], not_ip);
    let first = s.to_frame_offset(l3);
    s.remove_bytes_before(first);
    let at = s.position_at(FrameOffset::from_start(0));
    let (next, l3) = (Some(kind), Some(at));
    let layers = Layers {
        frame: at,
        at,
        length: None,
        next,
        l3,
        l4: None,
        tags: 0,
        has_link_header: false,
        ..on
    };
    Ok(Answer::new(on.class, layers))
}

fn emit_strip_bytes<'s>(
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
    bytes: u16,
) -> EmitResult<'s> {
    let short = s.absent("short", out);
    let length = s.load_metadata(ebpf::emit::MetadataField::Length);
    s.only(length, Cmp::Ge, u32::from(bytes), short);
    let at = s.to_frame_offset(on.at);
    let at = s.offset_after_removal(at, bytes);
    s.remove_bytes_before(FrameOffset::from_start(bytes));
    let (frame, at) = (s.position_at(FrameOffset::from_start(0)), s.position_at(at));
    let layers = Layers { frame, at, next: None, l3: None, l4: None, has_link_header: false, ..on };
    Ok(Answer::new(on.class, layers))
}

fn emit_strip_tag<'s>(s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>) -> EmitResult<'s> {
    if !on.has_link_header {
        return Err(UnfitReason::new("the link header is cut off already"));
    }
    let (no_tag, unsure) = (s.absent("no tag", out), s.unsure());
    let (kind, at) = twin::parse_link(s, Layers { next: None, ..on }, no_tag);
    twin::require_tag(s, kind, no_tag);
    let (_, next, _) = twin::parse_tag(s, (on.frame, at), 0, no_tag);
    if s.may_have_stored_tag() {
        // The kernel would move a second tag into metadata, and does not recognize the tag type
        // 0x9100.
        twin::require_untagged(s, next, unsure);
        s.only(kind, Cmp::Ne, u32::from(vlan::STACKED_TAG), unsure);
        s.pop_tag();
    } else {
        let header = s.need::<TAGGED_HEADER_SIZE>(on.frame, no_tag);
        let words =
            [s.load(header, be32::<0>()), s.load(header, be32::<4>()), s.load(header, be32::<8>())];
        let to = FrameOffset::from_start(vlan::TAG_LENGTH as u16);
        s.make_writable(FrameOffset::from_start(TAGGED_HEADER_SIZE as u16));
        for (at, word) in (0..).step_by(4).zip(words) {
            s.put::<u32>(to.plus_bytes(at), word);
        }
        s.remove_bytes_before(to);
    }
    let frame = s.position_at(FrameOffset::from_start(0));
    let behind = s.position_at(FrameOffset::from_start(ethernet::HEADER_LENGTH as u16));
    // The view's contents are known only after an earlier twin parsed them.
    let (at, next, l3) = match on.next {
        Some(_) => (behind, Some(next), Some(behind)),
        None => (frame, None, None),
    };
    let layers = Layers { frame, at, length: None, next, l3, l4: None, tags: 0, ..on };
    Ok(Answer::new(on.class, layers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::eth::ETH;
    use crate::network::ip::IP;
    use crate::testing::{Answer, Frame, answer_frames, answer_through_chain};

    const TAGGED_BYTES: [u8; 9] = [0x81, 0, 0, 7, 8, 0, 0x45, 1, 2];

    fn answer_views(found: &[Answer]) -> Vec<(u32, u32, u32, u16)> {
        let of = |a: &Answer| (a.view, a.length, a.marks.captured, a.marks.link);
        found.iter().map(of).collect()
    }

    #[test]
    fn link_header_is_removed_with_its_tags() {
        let mut tagged = Frame::udp(1, 2, b"xyz");
        tagged.bytes.splice(12..12, [0x81, 0, 0, 7]);
        let frames = [Frame::udp(1, 2, b"xyz"), tagged, Frame::ipv6(17, &[0; 8])];
        let packets = answer_frames(&STRIP, &["eth"], &frames);
        assert_eq!(answer_views(&packets), [(0, 31, 31, 228), (0, 31, 31, 228), (0, 48, 48, 229)]);
        assert_eq!(packets[0].bytes, frames[0].bytes[14..]);
        assert_eq!(packets[1].bytes, frames[0].bytes[14..]);
        let behind = answer_through_chain(&[(&STRIP, &["eth"]), (&IP, &[])], &frames);
        assert_eq!(behind.iter().map(|a| a.class.0).collect::<Vec<_>>(), [17, 17, 17]);
        let arp = &answer_frames(&STRIP, &["eth"], &[Frame::ethernet(&[8, 6, 0, 1])])[0];
        assert_eq!((arp.class, arp.reason), (Class::NONE, Some("not ip")));
    }

    #[test]
    fn tag_is_removed() {
        let frames = [Frame::ethernet(&TAGGED_BYTES), Frame::ethernet(&TAGGED_BYTES[4..])];
        let found = answer_frames(&STRIP, &["vlan"], &frames);
        assert_eq!(found[0].bytes, frames[1].bytes);
        assert_eq!((found[1].class, found[1].reason), (Class::NONE, Some("no tag")));
        let behind = answer_through_chain(&[(&ETH, &[]), (&STRIP, &["vlan"])], &frames[..1]);
        assert_eq!(answer_views(&behind), [(14, 3, 17, 1)]);
    }

    #[test]
    fn leading_bytes_are_removed() {
        let frames = [Frame::ethernet(&[8, 0, 1, 2, 3])];
        let found = answer_frames(&STRIP, &["15"], &frames);
        assert_eq!(
            (answer_views(&found), &found[0].bytes[..]),
            (vec![(0, 2, 2, u16::MAX)], &[2, 3][..])
        );
        let viewed = answer_through_chain(&[(&ETH, &[]), (&STRIP, &["10"])], &frames);
        assert_eq!(
            (answer_views(&viewed), &viewed[0].bytes[..]),
            (vec![(4, 3, 7, u16::MAX)], &[1, 2, 3][..])
        );
        assert_eq!(answer_frames(&STRIP, &["18"], &frames)[0].reason, Some("short"));
        for wrong in ["0", "ip", "4097", "-1"] {
            assert!(crate::testing::Node::new(&STRIP, &[wrong]).is_err(), "{wrong}");
        }
    }
}
