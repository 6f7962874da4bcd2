//! `sport`: classifies by source port and changes nothing else.
//!
//! Input: any view into a frame; the port is found through the marks. Output: the same block with
//! the class: the TCP, UDP or SCTP source port in host order, port 0 as `zero`. Stateless, hence
//! replicable. [SL §4.2, `dport |22 ssh`] Everything else is as in `dport`.

use super::dport::{DPORT, PortOf};
use crate::prelude::*;
use crate::transport::SERVICES;
use crate::twin::{self, Emitted, Port};
use ebpf::emit::{Exit, Layers, Scope};

/// The description of `sport`.
pub const SPORT: Description = Description {
    name: "sport",
    summary: "classify by TCP, UDP or SCTP source port",
    details: "\
The class is the source port, by number or name: `|22` or `|ssh`. Port 0 is `zero`. The view stays.

Not answered: `no port` (a transport protocol without ports), `not ip`, `malformed`, `cut` (beyond
what was captured or beyond 512 bytes), `too deep`, `fragment` (a later fragment: its ports are
elsewhere).",
    example: "replay web.pcap | sport |http count",
    classes: Classes::Number {
        what: "the source port",
        range: ValueRange { low: 0, high: 0xffff },
        names: SERVICES,
    },
    user: Some(|_| Ok(Filter::classify(PortOf::<true>))),
    kernel: Some(emit),
    ..DPORT
};

/// Emits the twin.
fn emit<'s>(_: &Arguments, s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>) -> Emitted<'s> {
    twin::port(s, on, out, Port::Source)
}
