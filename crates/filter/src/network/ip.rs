//! `ip`: checks the IP header, answers the protocol, moves the view to the packet's data.
//!
//! In: frames or packets, IPv4 and IPv6. Out: segments, viewed from the transport header to the end
//! that IP states, so that Ethernet's padding is out of view. Options and extension headers are
//! passed, within bounds. Header checksums are not verified: cards fill them in late, and a host
//! would have dropped the packet. [SL §4.1]
//!
//! Deviation: fragments are answered one by one; a later fragment has no transport mark. Joining
//! them is the work of another filter.

use crate::layers::{self, Missing};
use crate::network::PROTOCOLS;
use crate::prelude::*;
use crate::twin::{self, Emitted, Ways};
use ebpf::emit::{Answer, Exit, Layers, Scope};

/// What everybody knows about `ip`.
pub const IP: Description = Description {
    name: "ip",
    summary: "check the IP header, classify by protocol, view the packet's data",
    details: "\
The class is the protocol number behind all IP headers: `tcp` (6), `udp` (17), `icmp` and so on;
IPv6 hop-by-hop and other extension headers are passed, at most eight of them. The view moves to
the packet's data and ends where the packet ends. A fragment answers the protocol of the packet
that it is part of.

Not answered: `not ip`, `malformed` (a length or version that contradicts itself), `cut` (the
header was not captured, or it ends beyond the first 512 bytes of the frame), `too deep` (more
extension headers or tags than are followed).",
    example: "replay web.pcap | ip |udp udp | count",
    kind: Kind::Reordering,
    takes: Forms::of(&[Form::Frame, Form::Packet]),
    gives: Gives::Form(Form::Segment),
    reads: Reads::Head(layers::HEAD),
    classes: Classes::Number {
        what: "the protocol number",
        range: ValueRange { low: 0, high: 255 },
        names: PROTOCOLS,
    },
    reasons: &["not ip", "malformed", "cut", "too deep"],
    user: Some(|_| Ok(Filter::lanes(Ip))),
    kernel: Some(emit),
    ..Description::EMPTY
};

const _: () = Missing::lead(&IP, 4);

struct Ip;

impl Lanes for Ip {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        for l in lanes(batch.live()) {
            let mut block = batch.block(l);
            let answered = match layers::packet(&mut block) {
                Ok(packet) => block
                    .view_at(packet.data, packet.end.saturating_sub(packet.data))
                    .with_class(Class::natural(packet.protocol.into())),
                Err(why) => block.with_class(cx.tell.absent(why.reason())),
            };
            batch.set(l, answered);
        }
    }
}

/// The twin.
fn emit<'s>(_: &Arguments, s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>) -> Emitted<'s> {
    let ways = Ways::new(s, out);
    let (l3, l4) = twin::packet(s, on, ways);
    let class = s.natural(l4.protocol);
    Ok(Answer::new(class, Layers { at: l4.at, l3: Some(l3), l4: Some(l4), ..on }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Answer, Frame, answers};

    fn seen(found: &[Answer]) -> Vec<(u32, u32, u32)> {
        found.iter().map(|a| (a.class.0, a.view, a.length)).collect()
    }

    #[test]
    fn the_view_ends_where_the_packet_ends() {
        let mut padded = Frame::ipv4(17, &[1, 2, 3]);
        padded.bytes.extend([0; 20]);
        let frames = [padded, Frame::ipv4(0, &[9]), Frame::ipv6(6, &[7, 7])];
        let zero = Class::ZERO.0;
        assert_eq!(seen(&answers(&IP, &[], &frames)), [(17, 34, 3), (zero, 34, 1), (6, 54, 2)]);
    }

    #[test]
    fn options_and_extension_headers_are_passed() {
        let mut options = Frame::ipv4(6, &[1, 1, 1, 1, 5]);
        options.bytes[14] = 0x46;
        let extended = Frame::ipv6(0, &[17, 0, 0, 0, 0, 0, 0, 0, 5]);
        let frames = [options, extended];
        assert_eq!(seen(&answers(&IP, &[], &frames)), [(6, 38, 1), (17, 62, 1)]);
    }

    #[test]
    fn a_later_fragment_has_no_transport_header() {
        let mut later = Frame::ipv4(17, &[1, 2, 3, 4]);
        later.bytes[14 + 7] = 9;
        let found = answers(&IP, &[], &[later]);
        assert_eq!(seen(&found), [(17, 34, 4)]);
        assert_eq!(found[0].marks.transport, Marks::UNKNOWN);
        assert_eq!(found[0].marks.network, 14);
    }

    #[test]
    fn what_is_not_answered_keeps_its_view() {
        let mut lying = Frame::ipv4(6, &[]);
        lying.bytes[14] = 0x43;
        let mut cut = Frame::ipv4(6, &[]);
        cut.bytes.truncate(20);
        let frames = [Frame::ethernet(&[8, 6, 0, 1]), lying, cut];
        let found = answers(&IP, &[], &frames);
        assert!(found.iter().all(|a| a.class == Class::NONE && a.view == 0));
        let why: Vec<&str> = found.iter().filter_map(|a| a.why).collect();
        assert_eq!(why, ["not ip", "malformed", "cut"]);
    }
}
