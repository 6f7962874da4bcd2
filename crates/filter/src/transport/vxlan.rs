//! `vxlan`: decapsulates VXLAN, and classifies by network identifier. [RFC 7348 §5]
//!
//! Input: frames with a UDP datagram to the VXLAN port. Output: the inner frames, as if captured
//! inside the tunnel. Nothing is copied, and the outer headers stay in memory before the inner
//! frame. Bits that RFC 7348 reserves are ignored, because GPE and group policies use them.

use crate::layers::{self, HeaderError};
use crate::prelude::*;

/// Catalog entry of `vxlan`, which extracts the inner frames of VXLAN tunnels.
pub const VXLAN: Description = Description {
    name: "vxlan",
    summary: "extract frames from VXLAN, classify by network",
    details: "\
Replaces a frame that carries VXLAN by the Ethernet frame inside it, so later filters such as `ip`,
`tcp` or `pcap` see only the inner frame. The class is the network identifier (VNI). `port=` is the
UDP destination port of VXLAN. The inner frame has no session, even if `udp` has numbered the
tunnel.

Reasons for no class: `no vxlan` (another port or protocol, or no VNI), `not ip`, `malformed`,
`cut`, `too deep`, `fragment` (put `ip` before).",
    example: "replay web.pcap | vxlan |42 dport |http count",
    kind: FilterKind::Editing,
    input_forms: Forms::of(&[Form::Frame, Form::Packet, Form::Segment]),
    output_form: OutputForm::Form(Form::Frame),
    reads: ReadDepth::Head(layers::HEAD_SIZE),
    effect: Some(|_| Effect {
        kind: FilterKind::Reordering,
        output_form: VXLAN.output_form,
        reads: VXLAN.reads,
    }),
    parameters: &[Parameter::with_default(
        "port",
        ParameterType::Number { low: 1, high: 0xffff },
        "4789",
        "the UDP destination port of VXLAN",
    )],
    classes: Classes::Number {
        meaning: "the network identifier",
        range: ValueRange { low: 0, high: 0xff_ffff },
        names: &[],
    },
    reasons: &["not ip", "malformed", "cut", "too deep", "fragment", "no vxlan"],
    analysis: ArgumentAnalysis {
        output_links: Some(|_| Some(&[LinkType::ETHERNET])),
        ..ArgumentAnalysis::NONE
    },
    constructor: Some(|arguments| {
        let port = arguments.number("port").unwrap_or_default();
        Ok(Filter::lanes(Vxlan { port }))
    }),
    ..Description::FILTER_DEFAULTS
};

const _: () = HeaderError::assert_reason_names(VXLAN.reasons, 5);
const NO_VXLAN: Reason = VXLAN.reason("no vxlan");

/// Length in bytes of the VXLAN header.
const HEADER_LENGTH: u32 = 8;
/// Flag in the VXLAN header: the network identifier is valid.
const NETWORK_ID_FLAG: u8 = 0x08;
/// Flags of a block that belong to its session.
const SESSION_FLAGS: BlockFlags = BlockFlags::FIRST
    .with(BlockFlags::LAST)
    .with(BlockFlags::BACKWARD)
    .with(BlockFlags::SESSION_END_MASK);

struct Vxlan {
    port: u64,
}

impl LaneFilter for Vxlan {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        cx.answer_each_lane(batch, |block, _| {
            *block = self.inner_frame(*block)?;
            Ok(())
        });
    }
}

impl Vxlan {
    /// Returns the block with the inner frame in view, or the reason why it contains no inner
    /// frame.
    fn inner_frame<'a>(&self, mut block: Block<'a>) -> Result<Block<'a>, Reason> {
        let datagram =
            layers::datagram_ports_and_payload(&mut block).map_err(HeaderError::reason)?;
        let ours = datagram.filter(|(ports, ..)| u64::from(ports.target) == self.port);
        let (_, at, end) = ours.ok_or(NO_VXLAN)?;
        let begins = at + HEADER_LENGTH;
        if end < begins {
            return Err(HeaderError::Malformed.reason());
        }
        let header = layers::packet_bytes(&block, at).first_chunk::<{ HEADER_LENGTH as usize }>();
        let [flags, _, _, _, network @ ..] = *header.ok_or(HeaderError::Truncated.reason())?;
        if flags & NETWORK_ID_FLAG == 0 {
            return Err(NO_VXLAN);
        }
        let mut inner = block.without_leading_bytes(begins);
        let (captured, ticket) =
            (inner.marks.captured.min(end - begins), inner.marks.section_ticket());
        inner.marks = Marks::frame(LinkType::ETHERNET.0, inner.marks.captured, end - begins);
        inner.marks = inner.marks.with_section_ticket(ticket);
        // A session of the tunnel, and the direction in it, say nothing about the inner flows.
        inner.context.session = 0;
        inner.context = inner.context.without_flags(SESSION_FLAGS);
        let class = Class::from_natural(u32::from_be_bytes(network) >> 8);
        Ok(inner.view_at(0, captured).with_class(class))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Frame, answer_frames, answer_through_chain};
    use crate::transport::dport::DPORT;
    use crate::transport::udp::UDP;

    fn encapsulated_frame(flags: u8, network: u8, inner: &Frame) -> Frame {
        let header = [flags, 0, 0, 0, 0, 0, network, 0];
        Frame::udp(50_000, 4789, &[&header[..], &inner.bytes].concat())
    }

    #[test]
    fn inner_frame_has_its_network_as_the_class() {
        let inner = Frame::tcp(4000, 80, b"GET");
        let mut padded = encapsulated_frame(8, 42, &inner);
        padded.bytes.extend([0; 9]);
        let frames = [encapsulated_frame(8, 42, &inner), encapsulated_frame(8, 0, &inner), padded];
        let found = answer_frames(&VXLAN, &[], &frames);
        assert!(found.iter().all(|answer| answer.bytes == inner.bytes && answer.view == 0));
        let classes: Vec<_> = found.iter().map(|answer| answer.class).collect();
        assert_eq!(classes, [Class(42), Class::ZERO, Class(42)]);
        let behind = answer_through_chain(&[(&VXLAN, &[]), (&DPORT, &[])], &frames);
        assert!(behind.iter().all(|answer| answer.class == Class(80)), "the inner port");
    }

    /// All flows in a tunnel would otherwise be one session, in one direction.
    #[test]
    fn inner_frame_has_no_session_of_the_tunnel() {
        let header = [8, 0, 0, 0, 0, 0, 42, 0];
        let inner = Frame::udp(4000, 53, b"question");
        let there = Frame::udp(4789, 4789, &[&header[..], &inner.bytes].concat());
        let mut back = there.clone();
        back.bytes[26..34].rotate_left(4);
        let alone = answer_frames(&VXLAN, &[], &[there.clone(), back.clone()]);
        let chain: [(_, &[&str]); 2] = [(&UDP, &[]), (&VXLAN, &[])];
        let behind_udp = answer_through_chain(&chain, &[there, back]);
        for (answer, alone) in behind_udp.iter().zip(&alone) {
            assert_eq!((answer.class, answer.context), (Class(42), alone.context));
        }
    }

    #[test]
    fn frames_without_vxlan_have_a_reason() {
        let inner = Frame::udp(1, 2, b"");
        let mut short = Frame::udp(50_000, 4789, &[8, 0, 0, 0]);
        short.bytes.extend([0; 30]);
        let frames = [
            encapsulated_frame(0, 42, &inner),
            Frame::udp(4789, 53, b"question"),
            Frame::tcp(1, 4789, b""),
            short,
            encapsulated_frame(8, 42, &inner).truncated_to(46),
            Frame::ethernet(&[8, 6]),
        ];
        let found = answer_frames(&VXLAN, &[], &frames);
        let why: Vec<_> = found.iter().filter_map(|answer| answer.reason).collect();
        assert_eq!(why, ["no vxlan", "no vxlan", "no vxlan", "malformed", "cut", "not ip"]);
        let elsewhere = answer_frames(&VXLAN, &["port=8472"], &[encapsulated_frame(8, 42, &inner)]);
        assert_eq!(elsewhere[0].reason, Some("no vxlan"));
    }
}
