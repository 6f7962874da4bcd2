//! An answer that outlives its piece: every slot that it names, named anew.

use super::handle::{Answer, At, Base, Brand, Depth, Layers, Num, Transport, Value};

/// The answer with `f` of each slot in the place of the slot, under a brand to be chosen.
pub(super) fn map_slots(answer: Answer<'_>, mut f: impl FnMut(Depth) -> Depth) -> Answer<'static> {
    fn num(slot: Depth) -> Num<'static> {
        Num { slot, brand: Brand::default() }
    }
    let mut at = |at: At<'_>| {
        let base = match at.base {
            Base::Frame => Base::Frame,
            Base::Slot(slot) => Base::Slot(f(slot)),
        };
        At {
            base,
            off: at.off,
            reach: at.reach,
            epoch: at.epoch,
            usual: at.usual,
            brand: Brand::default(),
        }
    };
    let Layers { frame, at: view, class, length, next, l3, l4, tags, linked } = answer.layers;
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
            linked,
        },
    }
}
