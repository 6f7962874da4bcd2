//! `udp`: validates the UDP header, classifies by destination port, moves the view to the payload,
//! and identifies flows as sessions.
//!
//! Input: any view into a frame. Output: datagrams, viewed from the payload to the end according to
//! the length in the header. A length of zero means that the datagram extends to the end of the
//! packet (RFC 2675, and segmentation offload). The view of a first fragment ends with the
//! fragment; later fragments have no header, and no class. Checksums are not verified, because a
//! sender may leave them to its network device.
//!
//! The twin returns the same class, but assigns no session.

use crate::layers::{self, HeaderError};
use crate::prelude::*;
use crate::transport::SERVICE_NAMES;
use crate::transport::flows::{FlowIdentity, FlowTable};
use crate::twin::{self, EmitResult, TwinExits};
use ebpf::emit::{Answer, Exit, Layers, Scope, be16};
use wire::ip::protocol;
use wire::ports::{self, Ports};
use wire::udp;

/// Catalog entry of `udp`, which classifies datagrams by destination port and identifies flows as
/// sessions.
pub const UDP: Description = Description {
    name: "udp",
    summary: "check the UDP header, classify by destination port, view the payload",
    details: "\
Checks the UDP header and moves the view to the payload, up to the end of the datagram. The class is
the destination port, by number or name: `|53` or `|dns`; port 0 is `zero`. All datagrams between
two addresses and ports are one session, whose first datagram defines the forward direction. Above
`sessions=` flows, an idle one is forgotten, and its next datagram begins a new session.

Reasons for no class: `not udp` (another transport protocol), `not ip`, `malformed` (a length that
contradicts itself or the packet), `cut`, `too deep`, `fragment` (a later fragment, which has no UDP
header; put `ip` before).",
    example: "replay dns.pcap | udp |dns print",
    kind: FilterKind::Reordering,
    input_forms: Forms::FRAMED,
    needs: InputNeeds::from_usable_inputs(&super::protocol_packet_inputs(
        protocol::UDP,
        "the class of its packets is `|udp`",
    )),
    output_form: OutputForm::Form(Form::Segment),
    reads: ReadDepth::Head(layers::HEAD_SIZE),
    parameters: &[Parameter::table_size("sessions", "65536", "maximum number of flows in memory")],
    classes: Classes::Number {
        meaning: "the destination port",
        range: ValueRange { low: 0, high: 0xffff },
        names: SERVICE_NAMES,
    },
    reasons: &["not ip", "malformed", "cut", "too deep", "fragment", "not udp"],
    counters: &["new sessions", "evicted sessions"],
    state: StateFacts::sessions::<FlowIdentity>().with_session_key(ShardKey::Flow),
    constructor: Some(make_filter),
    emit_twin: Some(emit_twin),
    ..Description::FILTER_DEFAULTS
};

const _: () = HeaderError::assert_reason_names(UDP.reasons, 5);
const NOT_UDP: Reason = UDP.reason("not udp");

const NEW_SESSIONS: Counter = UDP.counter("new sessions");
const EVICTED_SESSIONS: Counter = UDP.counter("evicted sessions");

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let flows = FlowTable::new(
        arguments.number_as_usize("sessions"),
        arguments.seed(),
        arguments.session_numbers(),
    );
    Ok(Filter::lanes(Udp { flows }))
}

struct Udp {
    flows: FlowTable<FlowIdentity>,
}

impl LaneFilter for Udp {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        let seed = self.flows.seed();
        cx.answer_each_lane(batch, |block, common| {
            let datagram =
                layers::datagram_ports_and_payload(block).map_err(HeaderError::reason)?;
            let (ports, payload, end) = datagram.ok_or(NOT_UDP)?;
            self.assign_session(block, ports, seed, common);
            let class = Class::from_natural(ports.target.into());
            *block = block.view_at(payload, end.saturating_sub(payload)).with_class(class);
            Ok(())
        });
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(&mut self.flows)
    }
}

impl Udp {
    fn assign_session(
        &mut self,
        block: &mut Block<'_>,
        ports: Ports,
        seed: u64,
        common: &mut ClassifyContext<'_>,
    ) {
        let Some(flow) = layers::flow(block, protocol::UDP, ports) else { return };
        let found = self.flows.assign_session(&flow, seed);
        common.count(NEW_SESSIONS, found.is_new.into());
        common.count(EVICTED_SESSIONS, found.has_evicted.into());
        let flags = block.context.flags.without(BlockFlags::BACKWARD);
        let way = if found.backward { BlockFlags::BACKWARD } else { BlockFlags::NONE };
        block.context.session = found.session;
        block.context.flags = flags.with(way);
    }
}

/// Emits the twin of `udp`, which assigns no sessions.
fn emit_twin<'s>(
    _: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> EmitResult<'s> {
    let exits = TwinExits::new(s, out);
    let not_udp = s.absent("not udp", out);
    let l4 = twin::parse_transport(s, on, exits);
    let (header, payload) = twin::parse_datagram(s, l4, exits, not_udp);
    let port = s.load(header, be16::<{ ports::DST_PORT_OFFSET }>());
    let at = s.advance(l4.at, udp::HEADER_LENGTH as u16);
    let layers = Layers { at, length: Some(payload), l4: Some(l4), ..on };
    Ok(Answer::new(s.natural_class(port), layers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Answer, Frame, answer_frames};

    fn payload_views(found: &[Answer]) -> Vec<(u32, u32, u32)> {
        found.iter().map(|a| (a.class.0, a.view, a.length)).collect()
    }

    #[test]
    fn payload_ends_at_the_udp_length() {
        let mut longer = Frame::udp(7, 53, b"abc");
        longer.bytes.extend([0; 9]);
        let mut unstated = Frame::udp(7, 0, b"abc");
        unstated.bytes[34 + 5] = 0;
        let frames = [longer, unstated];
        assert_eq!(
            payload_views(&answer_frames(&UDP, &[], &frames)),
            [(53, 42, 3), (Class::ZERO.0, 42, 3)]
        );
    }

    #[test]
    fn h4_flow_is_one_session_in_both_directions() {
        let query = Frame::udp(4000, 53, b"who");
        let mut answer = Frame::udp(53, 4000, b"you");
        let (source, target) = (query.bytes[26..30].to_vec(), query.bytes[30..34].to_vec());
        answer.bytes[26..34].copy_from_slice(&[target, source].concat());
        let six = Frame::ipv6(17, &[0, 53, 0, 53, 0, 8, 0, 0]);
        let none = Frame::tcp(1, 2, b"");
        let frames = [query.clone(), answer, six, none, query];
        let sessions = |words: &[&str]| {
            let found = answer_frames(&UDP, words, &frames);
            let way =
                |a: &Answer| (a.context.session, a.context.flags.contains(BlockFlags::BACKWARD));
            found.iter().map(way).collect::<Vec<_>>()
        };
        let both = [(1, false), (1, true), (2, false), (0, false)];
        assert_eq!(sessions(&[])[..4], both);
        assert_eq!(sessions(&[])[4], (1, false));
        assert_eq!(sessions(&["sessions=1"])[4], (3, false), "forgotten, and begun anew");
    }

    #[test]
    fn invalid_lengths_and_other_protocols_are_unanswered() {
        let with_length = |length: u8| {
            let mut frame = Frame::udp(7, 53, b"abc");
            frame.bytes[34 + 5] = length;
            frame
        };
        let mut later = Frame::udp(7, 53, b"abcdefgh");
        later.bytes[14 + 7] = 1;
        let frames =
            [with_length(7), with_length(12), Frame::tcp(1, 2, b""), later, Frame::ipv4(17, &[1])];
        let why: Vec<_> =
            answer_frames(&UDP, &[], &frames).iter().filter_map(|a| a.reason).collect();
        assert_eq!(why, ["malformed", "malformed", "not udp", "fragment", "malformed"]);
    }

    #[test]
    fn first_fragment_view_ends_with_the_fragment() {
        let mut first = Frame::udp(7, 53, b"abc");
        first.bytes[34 + 4] = 3;
        first.bytes[14 + 6] = 0x20;
        assert_eq!(payload_views(&answer_frames(&UDP, &[], &[first])), [(53, 42, 3)]);
    }

    #[test]
    fn truncated_datagram_is_viewed_as_captured() {
        let mut cut = Frame::udp(7, 53, b"abcdefgh");
        cut.wire_length = Some(50);
        cut.bytes.truncate(45);
        assert_eq!(payload_views(&answer_frames(&UDP, &[], &[cut])), [(53, 42, 3)]);
    }
}
