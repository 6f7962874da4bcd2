//! `ipproto`: classifies by IP protocol number and changes nothing else.
//!
//! Input: any view into a frame; the number is found through the marks. Output: the same block with
//! the class. Unlike `ip`, the filter does not move the view. [SL §4.1]

use crate::layers::{self, HeaderError};
use crate::network::PROTOCOL_NAMES;
use crate::prelude::*;
use crate::twin::{self, EmitResult, TwinExits};
use ebpf::emit::{Answer, Exit, Layers, Scope};

/// Catalog entry of `ipproto`, which classifies by IP protocol number.
pub const IPPROTO: Description = Description {
    name: "ipproto",
    summary: "classify by IP protocol number, leave the view as it is",
    details: "\
Classifies packets and leaves the view unchanged, so later filters still see whole frames. The class
is the protocol number after all IP headers: `tcp` (6), `udp` (17), `icmp`. A fragment has the
protocol of its packet.

Reasons for no class: `not ip`, `malformed`, `cut` (not captured, or beyond the first 512 bytes),
`too deep` (more than eight VLAN tags or extension headers).",
    example: "replay web.pcap | ipproto |udp count",
    kind: FilterKind::Classification,
    input_forms: Forms::FRAMED,
    reads: ReadDepth::Head(layers::HEAD_SIZE),
    classes: Classes::Number {
        meaning: "the protocol number",
        range: ValueRange { low: 0, high: 255 },
        names: PROTOCOL_NAMES,
    },
    reasons: &["not ip", "malformed", "cut", "too deep"],
    constructor: Some(|_| Ok(Filter::classify(Ipproto))),
    emit_twin: Some(emit_twin),
    ..Description::FILTER_DEFAULTS
};

const _: () = HeaderError::assert_reason_names(IPPROTO.reasons, 4);

struct Ipproto;

impl Classify for Ipproto {
    #[inline]
    fn classify(&mut self, block: &mut Block<'_>, cx: &mut ClassifyContext<'_>) -> Class {
        match layers::ip_protocol(block) {
            Ok(protocol) => Class::from_natural(protocol.into()),
            Err(why) => cx.answer_absent(why.reason()),
        }
    }
}

/// Emits the twin of `ipproto`, which returns the protocol number as the class.
fn emit_twin<'s>(
    _: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> EmitResult<'s> {
    let exits = TwinExits::new(s, out);
    let l4 = twin::parse_transport(s, on, exits);
    let class = s.natural_class(l4.protocol);
    Ok(Answer::new(class, Layers { l4: Some(l4), ..on }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::ip::IP;
    use crate::testing::{Frame, answer_frames, answer_through_chain};

    #[test]
    fn h3_protocol_is_read_through_the_marks() {
        let mut later = Frame::ipv4(17, &[1, 2, 3, 4]);
        later.bytes[14 + 7] = 9;
        let frames = [
            Frame::ipv4(6, &[0; 20]),
            Frame::ipv6(58, &[]),
            Frame::ipv4(0, &[]),
            Frame::ethernet(&[8, 6]),
            later,
        ];
        let wanted = [6, 58, Class::ZERO.0, 0, 17];
        let alone: Vec<u32> =
            answer_frames(&IPPROTO, &[], &frames).iter().map(|a| a.class.0).collect();
        assert_eq!(alone, wanted);
        let behind = answer_through_chain(&[(&IP, &["defragment=no"]), (&IPPROTO, &[])], &frames);
        assert_eq!(behind.iter().map(|a| a.class.0).collect::<Vec<_>>(), wanted);
    }
}
