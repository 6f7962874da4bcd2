//! `ip`: validates the IP header, classifies by protocol, moves the view to the packet's data, and
//! reassembles fragments.
//!
//! Input: frames or packets, IPv4 and IPv6. Output: segments, viewed from the transport header to
//! the end of the packet, without Ethernet padding. Options and extension headers are skipped, up
//! to a limit. Header checksums are not verified, because some devices fill them in after the
//! capture, and because hosts drop packets with wrong checksums anyway. [SL §4.1]
//!
//! Fragments are held until their datagram is complete. The datagram is emitted as one new frame in
//! the lane of the completing fragment, so that later filters process it like any frame.
//! Unfragmented packets stay in their lanes and are not copied.
//! docs/book/decisions/0009-fragments.md discusses lists of fragments as the alternative.
//!
//! Deviations from a host's IP: no ICMP message reports an incomplete datagram, since an observer
//! sends nothing; and a fragment inside a reassembled datagram is not reassembled. Incomplete
//! datagrams are sessions in the filter's state, but no block carries their session number
//! (CONTRACT 8).

mod coverage;
mod datagrams;
mod fragment;
mod overlap;

use crate::layers::{self, HeaderError, Packet};
use crate::network::PROTOCOL_NAMES;
use crate::prelude::*;
use crate::twin::{self, EmitResult, TwinExits};
use datagrams::{Datagram, DatagramLimits, DatagramTable, FragmentResult};
use ebpf::emit::{Answer, Exit, Layers, Scope};
use fragment::IpFragment;
use overlap::FragmentPolicy;
use wire::ip::Fragment;

/// Catalog entry of `ip`, which classifies IP packets by protocol and reassembles fragments.
pub const IP: Description = Description {
    name: "ip",
    summary: "check the IP header, classify by protocol, reassemble fragments",
    details: "\
Checks the IP header (not its checksum) and moves the view to the packet's data, without padding
after the packet. The class is the protocol number after all IP headers: `tcp` (6), `udp` (17),
`icmp`. Up to eight IPv6 extension headers are skipped.

Fragments are held until their datagram is complete. It leaves as one new frame: the data, after the
headers of the first fragment with a corrected length. With `defragment=no` each fragment passes
with the class of its packet, and only the first has a transport header.

`policy=` selects the bytes of overlapping IPv4 fragments, as the receiver would: of the fragment
that arrived `first` or `last`, by the rule of a system (`bsd`, `linux` up to 4.18, `windows`,
`solaris`), or of none (`drop`). Overlapping IPv6 fragments always end their datagram (RFC 5722).

Reasons for a drop: `fragments missing` (the datagram was incomplete after `timeout=`, at the end of
the path, or when more than `datagrams=` were incomplete), `overlap` (in IPv6, with `policy=drop`,
or if fragments disagree about the end of the datagram with `policy=linux`), `too big` (a datagram
of more than 65,535 bytes), `duplicate` (the same fragment again), `too many fragments` (over 1,024
of one datagram, duplicates included).

Reasons for no class: `not ip`, `malformed` (an inconsistent version or length, or a fragment other
than the last whose length is no multiple of 8), `cut` (the header or part of a fragment was not
captured, or the header extends beyond the first 512 bytes), `too deep` (more than eight VLAN tags
or extension headers).",
    example: "replay web.pcap | ip |udp udp | count",
    kind: FilterKind::Reordering,
    input_forms: Forms::of(&[Form::Frame, Form::Packet]),
    output_form: OutputForm::Form(Form::Segment),
    reads: ReadDepth::Head(layers::HEAD_SIZE),
    parameters: &[
        Parameter::with_default("defragment", ParameterType::Flag, "yes", "reassemble fragments"),
        Parameter::with_default(
            "policy",
            ParameterType::OneOf(FragmentPolicy::KEYWORDS),
            "first",
            "the IPv4 fragment that supplies overlapping bytes",
        ),
        Parameter::with_default(
            "timeout",
            ParameterType::Duration,
            "30s",
            "time after which an incomplete datagram is dropped",
        ),
        Parameter::with_default(
            "datagrams",
            ParameterType::Number { low: 1, high: 65_536 },
            "1024",
            "maximum number of incomplete datagrams",
        ),
    ],
    classes: Classes::Number {
        meaning: "the protocol number",
        range: ValueRange { low: 0, high: 255 },
        names: PROTOCOL_NAMES,
    },
    reasons: &[
        "not ip",
        "malformed",
        "cut",
        "too deep",
        "fragments missing",
        "overlap",
        "too big",
        "duplicate",
        "too many fragments",
    ],
    counters: &["joined datagrams", "overlapping datagrams", "evicted datagrams"],
    state: StateFacts {
        session_key: Some(ShardKey::Addresses),
        ..StateFacts::sessions::<Datagram>().with_held_max(65_536)
    },
    constructor: Some(make_filter),
    emit_twin: Some(emit_twin),
    ..Description::FILTER_DEFAULTS
};

const _: () = HeaderError::assert_reason_names(IP.reasons, 4);
const FRAGMENTS_MISSING: Reason = IP.reason("fragments missing");
const OVERLAP: Reason = IP.reason("overlap");
const DATAGRAM_TOO_BIG: Reason = IP.reason("too big");
const DUPLICATE: Reason = IP.reason("duplicate");
const TOO_MANY_FRAGMENTS: Reason = IP.reason("too many fragments");

const JOINED_DATAGRAMS: Counter = IP.counter("joined datagrams");
const OVERLAPPING_DATAGRAMS: Counter = IP.counter("overlapping datagrams");
const EVICTED_DATAGRAMS: Counter = IP.counter("evicted datagrams");

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    if !arguments.flag("defragment") {
        return Ok(Filter::lanes(IpWithoutReassembly));
    }
    let timeout = arguments.number("timeout").unwrap_or(0);
    let limits = DatagramLimits { datagrams_max: arguments.number_as_usize("datagrams"), timeout };
    let policy = arguments
        .text("policy")
        .and_then(FragmentPolicy::from_keyword)
        .unwrap_or(FragmentPolicy::First);
    Ok(Filter::holding_lanes(Reassembler {
        datagrams: DatagramTable::new(limits, policy, arguments.seed()),
        policy,
    }))
}

/// The `ip` filter without reassembly of fragments.
struct IpWithoutReassembly;

impl LaneFilter for IpWithoutReassembly {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        cx.answer_each_lane(batch, |block, _| {
            let packet = layers::packet(block).map_err(HeaderError::reason)?;
            *block = packet_view(*block, &packet);
            Ok(())
        });
    }
}

/// The `ip` filter with reassembly of fragments.
struct Reassembler {
    datagrams: DatagramTable,
    policy: FragmentPolicy,
}

impl HoldingLanes for Reassembler {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut StreamContext<'_, 'a>) {
        for l in lanes(batch.live_lanes()) {
            let mut block = batch.block(l);
            let answered = match layers::packet(&mut block) {
                Ok(packet) if packet.fragment == Fragment::Whole => packet_view(block, &packet),
                Err(HeaderError::NotIp) => {
                    block.with_class(cx.answer_absent(HeaderError::NotIp.reason()))
                }
                // A tiny first fragment may lack the end of the headers.
                other => match IpFragment::find(&block, self.policy) {
                    Some(Ok(piece)) => {
                        self.process_fragment(batch, l, &piece, cx);
                        continue;
                    }
                    found => {
                        let why = found.and_then(Result::err).or_else(|| other.err());
                        let why = why.unwrap_or(HeaderError::Malformed);
                        block.with_class(cx.answer_absent(why.reason()))
                    }
                },
            };
            batch.set_block(l, answered);
        }
    }

    fn tick<'a>(&mut self, cx: &mut StreamContext<'_, 'a>) {
        self.datagrams.tick(cx);
    }

    fn finish<'a>(&mut self, cx: &mut StreamContext<'_, 'a>) {
        self.datagrams.finish(cx);
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(self.datagrams.state())
    }
}

impl Reassembler {
    /// Processes the fragment in a lane. If the fragment completes its datagram, the datagram
    /// replaces the fragment in the lane. Otherwise, the lane is no longer live. A fragment whose
    /// bytes have partly been overwritten stays in the lane without a class.
    #[cold]
    fn process_fragment<'a>(
        &mut self,
        batch: &mut Batch<'a>,
        l: Lane,
        piece: &IpFragment,
        cx: &mut StreamContext<'_, 'a>,
    ) {
        let incoming = batch.block(l);
        let Some(block) = cx.complete_block(incoming.view_at(piece.data, piece.length)) else {
            let class = cx.answer_absent(HeaderError::Truncated.reason());
            return batch.set_class(l, class);
        };
        match self.datagrams.reassemble_fragment(piece, block, cx) {
            FragmentResult::Absorbed => batch.retain_lanes(!(1 << l)),
            FragmentResult::Complete(mut whole) => {
                let answered = match layers::packet(&mut whole) {
                    Ok(packet) => packet_view(whole, &packet),
                    Err(why) => whole.with_class(cx.answer_absent(why.reason())),
                };
                cx.replace(batch, l, answered);
            }
        }
    }
}

/// Returns the block with the packet's data in view and the protocol number as the class.
#[inline]
fn packet_view<'a>(block: Block<'a>, packet: &Packet) -> Block<'a> {
    block
        .view_at(packet.data, packet.end.saturating_sub(packet.data))
        .with_class(Class::from_natural(packet.protocol.into()))
}

/// Emits the twin of `ip`, which leaves fragments to the user implementation.
fn emit_twin<'s>(
    _: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> EmitResult<'s> {
    let exits = TwinExits::new(s, out);
    let (l3, l4) = twin::parse_packet(s, on, exits);
    let class = s.natural_class(l4.protocol);
    let length = Some(l4.length);
    let layers = Layers { at: l4.at, length, l3: Some(l3), l4: Some(l4), ..on };
    Ok(Answer::new(class, layers))
}

#[cfg(test)]
mod tests;
