//! `vlan`: classifies by VLAN id, moves the view past the tag.
//!
//! Input: frames, or packets from `eth`. Output: packets. The new view begins after the first tag
//! at or after the start of the old view, so `vlan | vlan` parses two tags, the outer one first. Id
//! 0 (priority only) is class `zero` (CONTRACT 9). At most eight tags are parsed.

use crate::layers;
use crate::prelude::*;
use crate::twin::{self, EmitResult};
use ebpf::emit::{Answer, Exit, Layers, Scope};
use wire::LinkType;
use wire::vlan::{self, Tag};

/// Catalog entry of `vlan`, which classifies by VLAN id and moves the view past the tag.
pub const VLAN: Description = Description {
    name: "vlan",
    summary: "classify by VLAN id, view what follows the tag",
    details: "\
Moves the view past the first VLAN tag in view. The class is the VLAN id of this tag; id 0, in a tag
that only carries a priority, is `zero`. Use `vlan | vlan` to read the inner tag of a stacked frame.

Reasons for no class: `no tag`.",
    example: "replay web.pcap | vlan |100 count",
    kind: FilterKind::Reordering,
    input_forms: Forms::of(&[Form::Frame, Form::Packet]),
    output_form: OutputForm::Form(Form::Packet),
    reads: ReadDepth::Head(layers::HEAD_SIZE),
    classes: Classes::Number {
        meaning: "the VLAN id",
        range: ValueRange { low: 0, high: 4095 },
        names: &[],
    },
    reasons: &["no tag"],
    constructor: Some(|_| Ok(Filter::lanes(Vlan))),
    emit_twin: Some(emit_twin),
    ..Description::FILTER_DEFAULTS
};

const NO_TAG: Reason = VLAN.reason("no tag");

struct Vlan;

impl LaneFilter for Vlan {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        cx.answer_each_lane(batch, |block, _| {
            let (tag, behind) = next_tag(block).ok_or(NO_TAG)?;
            let class = Class::from_natural(tag.id().into());
            *block = block.view_at(behind, u32::MAX).with_class(class);
            Ok(())
        });
    }
}

/// Returns the first tag that begins at or after the start of the view, and the offset past it, or
/// `None` if there is no such tag.
fn next_tag(block: &Block<'_>) -> Option<(Tag, u32)> {
    let head = layers::head_bytes(block);
    let tags = wire::link::parse_link_header(LinkType(block.marks.link), head).tags;
    let places = (u32::from(tags.at)..).step_by(vlan::TAG_LENGTH);
    let (at, tag) = places.zip(tags.iter(head)).find(|(at, _)| *at >= block.marks.view)?;
    Some((tag, at + vlan::TAG_LENGTH as u32))
}

/// Emits the twin of `vlan`, which also reads a tag that the kernel stores outside the frame.
fn emit_twin<'s>(
    _: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> EmitResult<'s> {
    let no_tag = s.absent("no tag", out);
    let unsure = s.unsure();
    let (kind, at) = twin::parse_link(s, on, no_tag);
    twin::require_tag(s, kind, no_tag);
    let (control, next, at) = twin::parse_tag(s, (on.frame, at), on.tags, no_tag);
    s.arm(|t, done| {
        t.arm(|u, plain| {
            twin::require_tag(u, next, plain);
            let (_, inner, _) = twin::parse_tag(u, (on.frame, at), on.tags + 1, no_tag);
            twin::require_untagged(u, inner, unsure);
            u.leave(done);
        });
        twin::require_untagged(t, next, unsure);
    });
    let id = s.and(control, 0x0fff);
    let layers =
        Layers { at, length: None, next: Some(next), l3: Some(at), tags: on.tags + 1, ..on };
    Ok(Answer::new(s.natural_class(id), layers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::eth::ETH;
    use crate::testing::{Answer, Frame, answer_frames, answer_through_chain};

    const STACKED_TAGS: [u8; 11] = [0x88, 0xa8, 0x20, 100, 0x81, 0, 0, 0, 8, 0, 0x45];

    fn answer_views(found: &[Answer]) -> Vec<(u32, u32)> {
        found.iter().map(|a| (a.class.0, a.view)).collect()
    }

    #[test]
    fn tags_are_read_outer_first() {
        let frames = [Frame::ethernet(&STACKED_TAGS), Frame::ethernet(&[8, 0, 0x45])];
        assert_eq!(answer_views(&answer_frames(&VLAN, &[], &frames)), [(100, 18), (0, 0)]);
        let second = answer_through_chain(&[(&VLAN, &[]), (&VLAN, &[])], &frames[..1]);
        assert_eq!(answer_views(&second), [(Class::ZERO.0, 22)]);
        let behind_eth = answer_through_chain(&[(&ETH, &[]), (&VLAN, &[])], &frames[..1]);
        assert_eq!(answer_views(&behind_eth), [(100, 18)]);
        let third = answer_through_chain(&[(&VLAN, &[]), (&VLAN, &[]), (&VLAN, &[])], &frames[..1]);
        assert_eq!(answer_views(&third), [(0, 22)]);
    }
}
