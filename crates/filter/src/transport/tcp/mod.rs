//! `tcp`: reorders the segments of each connection without copying, and identifies connections as
//! sessions. [SL §4.2], [Th §5.3.2]
//!
//! Input: any view into a frame. Output: the data of each side of a connection in order, each byte
//! once, as views of the frames that carried them; bytes that were sent but not captured become a
//! **hole** of their length. A segment in order is emitted immediately. An early segment is held
//! until the missing bytes arrive or are abandoned.
//!
//! - [`connection`]: state of a connection;
//! - [`reassembly`]: one side of a connection;
//! - [`fin`]: the end of a side;
//! - [`late_bytes`]: bytes captured after their gap was abandoned;
//! - [`overlap`]: overlap policies;
//! - [`lifecycle`]: life cycle of a connection;
//! - [`reset`]: acceptance of resets;
//! - [`outcomes`]: reasons and counters;
//! - [`segment_info`]: fields of a segment;
//! - [`connection_tracking`]: lookup of connections;
//! - [`timer_wheel`]: the timers.
//!
//! In the papers, the receiver's own stack reassembles, and knows which bytes it has acknowledged.
//! Here both hosts are observed from outside. For this reason there are holes and unobserved sides,
//! and resets are verified before they are accepted.

mod connection;
mod connection_tracking;
mod fin;
mod late_bytes;
mod lifecycle;
mod outcomes;
mod overlap;
mod reassembly;
mod reset;
mod segment_info;
mod timer_wheel;
mod timestamp_lag;

use crate::layers::{self, HeaderError};
use crate::prelude::*;
use crate::transport::SERVICE_NAMES;
use crate::transport::flows::FlowTable;
use connection::TcpConnection;
use connection_tracking::Tcp;
use outcomes::{COUNTERS, REASONS};
use overlap::SegmentPolicy;
use reassembly::ReassemblyRules;
use wire::ip::protocol;

/// Catalog entry of `tcp`, which puts the data of TCP connections in order.
pub const TCP: Description = Description {
    name: "tcp",
    summary: "put the segments of connections in order, classify by server port",
    details: "\
Puts the segments of each connection in order: the data of each side leaves as a stream, every byte
once, as views of the frames that carried it. The class is the server's port in both directions, by
number or name: `|80` or `|http`. A connection is a session, and the client's direction is forward;
the client is the sender of the SYN, or without one the end with the greater port. A connection that
was already open, or of which one side is never observed, begins with its first data. `ip` before
`tcp` reassembles fragments.

Missing bytes become a hole, a block with a length and no bytes, as soon as the other end has
acknowledged them, the capture truncated their frame, more than `held` bytes or 4,096 blocks wait
after them or have waited for `gap`, or the connection ends. If they are captured after that (the
capture is out of order, or they are sent again), they are dropped as `late` and counted in `late
bytes`, so that an answer never leaves before held data that it acknowledges. A connection ends by
FIN or RST, after `timeout` without a segment, or by eviction above `sessions` connections; a SYN
then begins a new session.

A RST that the receiver would ignore is counted and has no effect: one outside of the window, or
signed (TCP-MD5, TCP-AO) when its connection is not, or the reverse. Any other takes effect after
`gap` without further segments. If the connection continues, the RST is counted as taken back, and
the data leaves, in a new session if the end had already left. An end without FIN is marked, so that
no truncated body counts as complete.

Where segments overlap, bytes that have left are final. Among held bytes `policy` selects, as the
receiver would: always the first segment, always the last, or a later one that begins before the
earlier (bsd, windows), or also one that begins with it and ends after it (linux), or one that ends
after it, or with it without beginning after it (solaris).

Segments without new data are consumed, and counted as `duplicates` (retransmission, keep-alive).

Reasons for a drop: `overlapped` (held, and the policy prefers a later segment), `closed` (data
after the FIN), `out of window` (implausibly far ahead), `checksum` (wrong, with `checksum=yes`;
truncated segments and checksums left to the network card are not verified), `late` (data in the
range last given up, or up to 64 KiB before the first that was observed).

Reasons for no class: `not tcp`, `not ip`, `malformed`, `cut`, `too deep`, `fragment` (put `ip`
before).",
    example: "replay web.pcap | tcp |http files out/",
    kind: FilterKind::Reordering,
    input_forms: Forms::FRAMED,
    needs: InputNeeds::from_usable_inputs(&super::protocol_packet_inputs(
        protocol::TCP,
        "the class of its packets is `|tcp`",
    )),
    output_form: OutputForm::Form(Form::Stream),
    reads: ReadDepth::All,
    effect: Some(effect),
    parameters: &[
        Parameter::with_default(
            "policy",
            ParameterType::OneOf(SegmentPolicy::POLICY_NAMES),
            "first",
            "the segment that supplies overlapping bytes",
        ),
        Parameter::with_default("checksum", ParameterType::Flag, "no", "verify checksums"),
        Parameter::table_size("sessions", "262144", "maximum number of connections in memory"),
        Parameter::with_default(
            "held",
            ParameterType::Size { low: 0, high: 1 << 30 },
            "4M",
            "maximum number of bytes per side that wait after a gap",
        )
        .make_writable(),
        Parameter::with_default(
            "gap",
            ParameterType::Duration,
            "1s",
            "maximum wait for missing bytes",
        )
        .make_writable(),
        Parameter::with_default(
            "timeout",
            ParameterType::Duration,
            "10m",
            "time without a segment that ends a connection",
        )
        .make_writable(),
    ],
    classes: Classes::Number {
        meaning: "the server's port",
        range: ValueRange { low: 0, high: 0xffff },
        names: SERVICE_NAMES,
    },
    reasons: REASONS,
    counters: COUNTERS,
    state: StateFacts::sessions::<TcpConnection>()
        .with_session_key(ShardKey::Flow)
        .with_held_max(1 << 17),
    constructor: Some(make_filter),
    ..Description::FILTER_DEFAULTS
};

/// Catalog entry of `untcp`, the same filter as `tcp` under another name. The name distinguishes it
/// from a filter that would send TCP.
pub const UNTCP: Description =
    Description { name: "untcp", example: "replay web.pcap | untcp |http files out/", ..TCP };

const _: () = HeaderError::assert_reason_names(TCP.reasons, 5);

/// Returns the effect of the filter on blocks. The filter reads more than headers only if it
/// verifies checksums.
fn effect(arguments: &Arguments) -> Effect {
    let reads = match arguments.flag("checksum") {
        true => ReadDepth::All,
        false => ReadDepth::Head(layers::HEAD_SIZE),
    };
    Effect { kind: TCP.kind, output_form: TCP.output_form, reads }
}

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let (rules, timeout) = reassembly_rules_and_timeout(arguments);
    let flows = FlowTable::new(
        arguments.number_as_usize("sessions"),
        arguments.seed(),
        arguments.session_numbers(),
    );
    let tcp = Tcp::new(flows, rules, timeout, arguments.flag("checksum"));
    Ok(Filter::Stream(Box::new(tcp)))
}

/// Returns the rules of reassembly, and the timeout of an idle connection.
fn reassembly_rules_and_timeout(arguments: &Arguments) -> (ReassemblyRules, Time) {
    let number = |name: &str| arguments.number(name).unwrap_or_default();
    let rules = ReassemblyRules {
        policy: SegmentPolicy::from_name(arguments.text("policy").unwrap_or_default()),
        held_bytes_max: u32::try_from(number("held")).unwrap_or(u32::MAX),
        gap_timeout: number("gap"),
    };
    (rules, number("timeout"))
}

#[cfg(test)]
mod tests;
