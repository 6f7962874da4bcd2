//! `sport`: classifies by source port and changes nothing else.
//!
//! Input: any view into a frame; the port is found through the marks. Output: the same block with
//! the class: the TCP, UDP or SCTP source port in host order, port 0 as `zero`. Stateless, hence
//! replicable. In all other respects the filter works like `dport`. [SL §4.2, `dport |22 ssh`]

use super::dport::{DPORT, PortClassifier};
use crate::prelude::*;
use crate::transport::SERVICE_NAMES;
use crate::twin::{self, EmitResult, PortField};
use ebpf::emit::{Exit, Layers, Scope};

/// Catalog entry of `sport`, which classifies by source port.
pub const SPORT: Description = Description {
    name: "sport",
    summary: "classify by TCP, UDP or SCTP source port",
    details: "\
Leaves the view unchanged. The class is the source port of TCP, UDP or SCTP, by number or name:
`|22` or `|ssh`; port 0 is `zero`.

Reasons for no class: `no port` (another transport protocol), `not ip`, `malformed`, `cut` (not
captured, or beyond the first 512 bytes), `too deep`, `fragment` (a later one has no ports).",
    example: "replay web.pcap | sport |http count",
    classes: Classes::Number {
        meaning: "the source port",
        range: ValueRange { low: 0, high: 0xffff },
        names: SERVICE_NAMES,
    },
    constructor: Some(|_| Ok(Filter::classify(PortClassifier::<true>))),
    emit_twin: Some(emit_twin),
    ..DPORT
};

/// Emits the twin of `sport`, which returns the source port as the class.
fn emit_twin<'s>(
    _: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> EmitResult<'s> {
    twin::emit_port(s, on, out, PortField::Source)
}
