//! `udp`: checks the UDP header, answers the destination port, moves the view to the payload.
//!
//! In: anything that still lies in a frame. Out: datagrams, viewed from the payload to the end that
//! UDP states. A length of zero means the end of the packet (RFC 2675, and frames that the card
//! will yet cut up). The first fragment of a datagram is viewed as far as it goes; later fragments
//! have no header and no answer. Checksums are not verified: a sender may have left them to its
//! card.

use crate::layers::{self, Missing};
use crate::prelude::*;
use crate::transport::SERVICES;
use crate::twin::{self, Emitted, Ways};
use ebpf::emit::{Answer, Cmp, Exit, Layers, Scope, be16};
use wire::ip::protocol;
use wire::udp;

/// What everybody knows about `udp`.
pub const UDP: Description = Description {
    name: "udp",
    summary: "check the UDP header, classify by destination port, view the payload",
    details: "\
The class is the destination port, by number or name: `|53` or `|dns`. Port 0 is `zero`. The view
moves to the payload and ends where the datagram ends.

Not answered: `not udp` (another transport protocol), `not ip`, `malformed` (a length that
contradicts itself or the packet's), `cut`, `too deep`, `fragment` (a later fragment: its header
is elsewhere).",
    example: "replay dns.pcap | udp |dns print",
    kind: Kind::Reordering,
    takes: Forms::FRAMED,
    gives: Gives::Form(Form::Segment),
    reads: Reads::Head(layers::HEAD),
    classes: Classes::Number {
        what: "the destination port",
        range: ValueRange { low: 0, high: 0xffff },
        names: SERVICES,
    },
    reasons: &["not ip", "malformed", "cut", "too deep", "fragment", "not udp"],
    user: Some(|_| Ok(Filter::lanes(Udp))),
    kernel: Some(emit),
    ..Description::EMPTY
};

const _: () = Missing::lead(&UDP, 5);
const NOT_UDP: Reason = UDP.reason("not udp");

struct Udp;

impl Lanes for Udp {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        for l in lanes(batch.live()) {
            let mut block = batch.block(l);
            let answered = match layers::datagram(&mut block) {
                Ok(Some((ports, payload, end))) => block
                    .view_at(payload, end.saturating_sub(payload))
                    .with_class(Class::natural(ports.target.into())),
                Ok(None) => block.with_class(cx.tell.absent(NOT_UDP)),
                Err(why) => block.with_class(cx.tell.absent(why.reason())),
            };
            batch.set(l, answered);
        }
    }
}

/// The twin.
fn emit<'s>(_: &Arguments, s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>) -> Emitted<'s> {
    const HEADER: u32 = udp::LENGTH as u32;
    let ways = Ways::new(s, out);
    let not_udp = s.absent("not udp", out);
    let l4 = twin::transport(s, on, ways);
    s.only(l4.protocol, Cmp::Eq, u32::from(protocol::UDP), not_udp);
    s.only(l4.length, Cmp::Ge, HEADER, ways.malformed);
    let header = s.need::<{ udp::LENGTH }>(l4.at, ways.cut);
    let length = s.load(header, be16::<{ udp::UDP_LENGTH }>());
    s.arm(|t, to_the_end| {
        t.only(length, Cmp::Ne, 0, to_the_end);
        t.only(length, Cmp::Ge, HEADER, ways.malformed);
        t.only(length, Cmp::Le, l4.length, ways.malformed);
    });
    let port = s.load(header, be16::<{ udp::DST_PORT }>());
    let at = s.advance(l4.at, udp::LENGTH as u16);
    Ok(Answer::new(s.natural(port), Layers { at, l4: Some(l4), ..on }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Answer, Frame, answers};

    fn seen(found: &[Answer]) -> Vec<(u32, u32, u32)> {
        found.iter().map(|a| (a.class.0, a.view, a.length)).collect()
    }

    #[test]
    fn the_payload_ends_where_udp_says() {
        let mut longer = Frame::udp(7, 53, b"abc");
        longer.bytes.extend([0; 9]);
        let mut unstated = Frame::udp(7, 0, b"abc");
        unstated.bytes[34 + 5] = 0;
        let frames = [longer, unstated];
        assert_eq!(seen(&answers(&UDP, &[], &frames)), [(53, 42, 3), (Class::ZERO.0, 42, 3)]);
    }

    #[test]
    fn lies_and_other_protocols_are_not_answered() {
        let with_length = |length: u8| {
            let mut frame = Frame::udp(7, 53, b"abc");
            frame.bytes[34 + 5] = length;
            frame
        };
        let mut later = Frame::udp(7, 53, b"abcdefgh");
        later.bytes[14 + 7] = 1;
        let frames =
            [with_length(7), with_length(12), Frame::tcp(1, 2, b""), later, Frame::ipv4(17, &[1])];
        let why: Vec<_> = answers(&UDP, &[], &frames).iter().filter_map(|a| a.why).collect();
        assert_eq!(why, ["malformed", "malformed", "not udp", "fragment", "malformed"]);
    }

    #[test]
    fn a_first_fragment_states_more_than_it_has() {
        let mut first = Frame::udp(7, 53, b"abc");
        first.bytes[34 + 4] = 3;
        first.bytes[14 + 6] = 0x20;
        assert_eq!(seen(&answers(&UDP, &[], &[first])), [(53, 42, 3)]);
    }

    #[test]
    fn what_was_cut_when_captured_is_viewed_as_far_as_it_is_here() {
        let mut cut = Frame::udp(7, 53, b"abcdefgh");
        cut.wire_length = Some(50);
        cut.bytes.truncate(45);
        assert_eq!(seen(&answers(&UDP, &[], &[cut])), [(53, 42, 3)]);
    }
}
