//! Replacement of the stack slots that a twin's answer refers to.

use super::handle::{Answer, Brand, FramePos, Layers, Num, PosBase, SlotDepth, Transport, Value};

/// Replaces each stack slot that the answer refers to with the result of `f`. The new answer is
/// valid in any scope.
pub(super) fn map_slots(
    answer: Answer<'_>,
    mut f: impl FnMut(SlotDepth) -> SlotDepth,
) -> Answer<'static> {
    fn num(slot: SlotDepth) -> Num<'static> {
        Num { slot, brand: Brand::default() }
    }
    let mut at = |at: FramePos<'_>| {
        let base = match at.base {
            PosBase::Frame => PosBase::Frame,
            PosBase::Slot(slot) => PosBase::Slot(f(slot)),
        };
        FramePos {
            base,
            offset: at.offset,
            reach: at.reach,
            epoch: at.epoch,
            usual: at.usual,
            brand: Brand::default(),
        }
    };
    let Layers { frame, at: view, class, length, next, l3, l4, tags, has_link_header: linked } =
        answer.layers;
    let (frame, view, l3) = (at(frame), at(view), l3.map(&mut at));
    let l4 = l4.map(|l4| (at(l4.at), l4.protocol.slot, l4.length.slot));
    let mut value = |value: Value<'_>| match value {
        Value::Const(class) => Value::Const(class),
        Value::Num(class) => Value::Num(num(f(class.slot))),
    };
    Answer {
        class: value(answer.class),
        layers: Layers {
            frame,
            at: view,
            class: value(class),
            length: length.map(|length| num(f(length.slot))),
            next: next.map(|next| num(f(next.slot))),
            l3,
            l4: l4.map(|(at, protocol, length)| Transport {
                at,
                protocol: num(f(protocol)),
                length: num(f(length)),
            }),
            tags,
            has_link_header: linked,
        },
    }
}
