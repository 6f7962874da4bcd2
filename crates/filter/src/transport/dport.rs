//! `dport`: classifies by destination port and changes nothing else.
//!
//! Input: any view into a frame; the port is found through the marks. Output: the same block with
//! the class: the TCP, UDP or SCTP destination port in host order, port 0 as `zero`. Stateless,
//! hence replicable. [SL §4.2, `dport |22 ssh`]

use crate::layers::{self, HeaderError};
use crate::prelude::*;
use crate::transport::SERVICE_NAMES;
use crate::twin::{self, EmitResult, PortField};
use ebpf::emit::{Exit, Layers, Scope};

/// Catalog entry of `dport`, which classifies by destination port.
pub const DPORT: Description = Description {
    name: "dport",
    summary: "classify by TCP, UDP or SCTP destination port",
    details: "\
Leaves the view unchanged. The class is the destination port of TCP, UDP or SCTP, by number or name:
`|22` or `|ssh`; port 0 is `zero`.

Reasons for no class: `no port` (another transport protocol), `not ip`, `malformed`, `cut` (not
captured, or beyond the first 512 bytes), `too deep`, `fragment` (a later one has no ports).",
    example: "replay web.pcap | dport |http count",
    kind: FilterKind::Classification,
    input_forms: Forms::FRAMED,
    reads: ReadDepth::Head(layers::HEAD_SIZE),
    classes: Classes::Number {
        meaning: "the destination port",
        range: ValueRange { low: 0, high: 0xffff },
        names: SERVICE_NAMES,
    },
    reasons: &["not ip", "malformed", "cut", "too deep", "fragment", "no port"],
    constructor: Some(|_| Ok(Filter::classify(PortClassifier::<false>))),
    emit_twin: Some(emit_twin),
    ..Description::FILTER_DEFAULTS
};

const _: () = HeaderError::assert_reason_names(DPORT.reasons, 5);
const NO_PORT: Reason = DPORT.reason("no port");

/// A classifier by port: by source port if `SOURCE` is true, otherwise by destination port. Also
/// used by `sport`.
pub(super) struct PortClassifier<const SOURCE: bool>;

impl<const SOURCE: bool> Classify for PortClassifier<SOURCE> {
    #[inline]
    fn classify(&mut self, block: &mut Block<'_>, cx: &mut ClassifyContext<'_>) -> Class {
        match layers::ports(block) {
            Ok(Some(ports)) if SOURCE => Class::from_natural(ports.source.into()),
            Ok(Some(ports)) => Class::from_natural(ports.target.into()),
            Ok(None) => cx.answer_absent(NO_PORT),
            Err(why) => cx.answer_absent(why.reason()),
        }
    }
}

/// Emits the twin of `dport`, which returns the destination port as the class.
fn emit_twin<'s>(
    _: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> EmitResult<'s> {
    twin::emit_port(s, on, out, PortField::Target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Frame, answer_frames};
    use crate::transport::sport::SPORT;

    #[test]
    fn h4_port_of_either_side_is_class_or_has_reason() {
        let mut cut = Frame::tcp(1000, 22, b"");
        cut.bytes.truncate(34 + 3);
        let mut padded = Frame::ipv4(6, &[]);
        padded.bytes.extend([0, 22, 0, 22]);
        let frames = [
            Frame::tcp(2222, 22, b"x"),
            Frame::udp(53, 0, b""),
            Frame::udp(0, 53, b""),
            Frame::ipv4(1, &[8, 0, 0, 0]),
            cut,
            padded,
        ];
        let zero = Class::ZERO.0;
        for (filter, expected) in
            [(&DPORT, [22, zero, 53, 0, 0, 0]), (&SPORT, [2222, 53, zero, 0, 0, 0])]
        {
            let found = answer_frames(filter, &[], &frames);
            let classes: Vec<u32> = found.iter().map(|a| a.class.0).collect();
            assert_eq!(classes, expected, "{}", filter.name);
            let why: Vec<_> = found.iter().filter_map(|a| a.reason).collect();
            assert_eq!(why, ["no port", "cut", "malformed"], "{}", filter.name);
        }
    }
}
