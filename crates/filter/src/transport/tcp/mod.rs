//! `tcp`: reorders the segments of each connection without copying, and identifies connections as
//! sessions. [SL §4.2], [Th §5.3.2]
//!
//! Input: any view into a frame. Output: the data of each side of a connection in order, each byte
//! once, as views of the frames that carried them; bytes that were sent but not captured become a
//! **hole** of their length. A segment in order leaves at once; an early one is held until the
//! missing bytes arrive or are abandoned.
//!
//! - [`connection`]: state of a connection;
//! - [`reassembly`]: one side of a connection;
//! - [`overlap`]: overlap policies;
//! - [`lifecycle`]: life cycle of a connection;
//! - [`reset`]: acceptance of resets;
//! - [`outcomes`]: reasons and counters;
//! - [`segment_info`]: fields of a segment;
//! - [`track`]: lookup of connections;
//! - [`wheel`] for timeouts.
//!
//! The sources reassemble in the receiver's own stack, which has its acknowledgement state. Here
//! both ends are observed from outside: hence holes, unobserved sides, and resets that are verified
//! before they are accepted.

mod connection;
mod lifecycle;
mod outcomes;
mod overlap;
mod reassembly;
mod reset;
mod segment_info;
mod track;
mod wheel;

use crate::layers::{self, HeaderError};
use crate::prelude::*;
use crate::transport::SERVICES;
use crate::transport::flows::Flows;
use connection::TcpConnection;
use outcomes::{COUNTERS, REASONS};
use overlap::SegmentPolicy;
use reassembly::Rules;
use track::Tcp;
use wire::ip::protocol;

/// The description of `tcp`.
pub const TCP: Description = Description {
    name: "tcp",
    summary: "put the segments of connections in order, classify by server port",
    details: "\
The data of each side of a connection leave in order, each byte once, as views of the frames that
carried them. A connection is a session; forward is what the client sends: who sent the SYN, or who
has the greater port where none was seen. The class is the server's port both ways, by number or
name: `|80` or `|http`. Connections that were running before, and of which one side only is seen,
begin with the first data seen. `ip` before it joins fragments.

What is missing leaves as a hole, a block with a length and no bytes: when the other end has
acknowledged it, when it was cut off as the frame was captured, when more than `held` bytes wait
behind it or have waited for `gap`, and when the connection ends. That is by FIN or RST, after
`timeout` without a segment, or for want of room in `sessions`; a SYN then begins another session.
A RST that the receiver ignores ends nothing, and is counted: one outside of the window, or one that
is signed (TCP-MD5, TCP-AO) as its connection is not. Any other is believed when nobody has gone on
for `gap`; if somebody does, it is `taken back`, and what comes is delivered, in another session if
the end was told already. An end without a FIN is marked, so that no body that it cuts is complete.

Where segments overlap, what was given stays. Of what is still held, `policy` says whose bytes
count, after the system that is attacked: the first always, the last always, or those of a later
segment that begins before the earlier one (bsd, windows), also one that begins with it and ends
behind it (linux), or that ends behind it, or with it and does not begin behind it (solaris).

Used up: what says nothing new, counted as `duplicates` (retransmitted, keep-alive).

Dropped: `overlapped` (held, and the policy prefers a later segment), `closed` (behind the end),
`out of window` (too far ahead to be true), `checksum` (wrong, with `checksum=yes`; what was left to
the card or cut off is not verified).

Not answered: `not tcp`, `not ip`, `malformed`, `cut`, `too deep`, `fragment` (put `ip` before).",
    example: "replay web.pcap | tcp |http files out/",
    kind: FilterKind::Reordering,
    takes: Forms::FRAMED,
    needs: InputNeeds::of(&super::of_protocol(protocol::TCP, "the class of its packets is `|tcp`")),
    gives: OutputForm::Form(Form::Stream),
    reads: ReadDepth::All,
    effect: Some(effect),
    parameters: &[
        Parameter::named(
            "policy",
            Type::OneOf(SegmentPolicy::NAMES),
            "first",
            "whose bytes count where segments overlap",
        ),
        Parameter::named("checksum", Type::Flag, "no", "whether to verify checksums"),
        Parameter::table("sessions", "262144", "how many connections are known at once"),
        Parameter::named(
            "held",
            Type::Size { low: 0, high: 1 << 30 },
            "4M",
            "how many bytes wait for a gap, of one side",
        )
        .writable(),
        Parameter::named("gap", Type::Duration, "1s", "how long missing bytes are waited for")
            .writable(),
        Parameter::named("timeout", Type::Duration, "10m", "how long a connection may be silent")
            .writable(),
    ],
    classes: Classes::Number {
        what: "the server's port",
        range: ValueRange { low: 0, high: 0xffff },
        names: SERVICES,
    },
    reasons: REASONS,
    counters: COUNTERS,
    state: StateFacts::sessions::<TcpConnection>().numbered(Sharing::Flow).held(1 << 17),
    user: Some(make_filter),
    ..Description::EMPTY
};

/// `untcp`, the same filter as `tcp`. The name distinguishes it from a filter that would send TCP.
pub const UNTCP: Description =
    Description { name: "untcp", example: "replay web.pcap | untcp |http files out/", ..TCP };

const _: () = HeaderError::assert_names(TCP.reasons, 5);

/// Returns the effect of the filter on blocks: only the verification of checksums reads more than
/// headers.
fn effect(arguments: &Arguments) -> Effect {
    let reads = match arguments.flag("checksum") {
        true => ReadDepth::All,
        false => ReadDepth::Head(layers::HEAD),
    };
    Effect { kind: TCP.kind, gives: TCP.gives, reads }
}

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let (rules, timeout) = limits(arguments);
    let flows = Flows::new(arguments.count("sessions"), arguments.seed(), arguments.numbers());
    let tcp = Tcp::new(flows, rules, timeout, arguments.flag("checksum"));
    Ok(Filter::Stream(Box::new(tcp)))
}

/// Returns the rules of reassembly, and the time after which a silent connection ends.
fn limits(arguments: &Arguments) -> (Rules, Time) {
    let number = |name: &str| arguments.number(name).unwrap_or_default();
    let rules = Rules {
        policy: SegmentPolicy::from_name(arguments.text("policy").unwrap_or_default()),
        held: u32::try_from(number("held")).unwrap_or(u32::MAX),
        gap: number("gap"),
    };
    (rules, number("timeout"))
}

#[cfg(test)]
mod tests;
