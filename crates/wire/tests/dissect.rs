//! Tests of dissection with generated frames: the generator, `etherparse` and `layers` must agree.
//! For damaged frames, `etherparse` and `layers` must agree on the payload if both find one.

use etherparse::{LaxSlicedPacket, TransportSlice};
use streamline_wire::dissect::FrameFaults;
use streamline_wire::ip::{Fragment, protocol};
use streamline_wire::ports::Ports;
use streamline_wire::{Layers, LinkType, layers};
use testkit::{Frame, Random, TcpHeader};

/// A generated frame and its expected layers.
struct GeneratedFrame {
    frame: Vec<u8>,
    tags: Vec<u16>,
    l3: usize,
    l4: usize,
    protocol: u8,
    fragment: Fragment,
    ports: Ports,
    payload: Vec<u8>,
}

#[test]
fn layers_match_the_generated_frame() {
    let mut random = Random::with_replayable_seed();
    for round in 0..4_000 {
        let made = generate_frame(&mut random);
        let found = layers(LinkType::ETHERNET, &made.frame);
        let context = || format!("round {round}: {found:?}\n{:02x?}", made.frame);
        assert_eq!(found.faults, FrameFaults::default(), "{}", context());
        assert_eq!(found.l3.map(usize::from), Some(made.l3), "{}", context());
        assert_eq!(found.protocol, Some(made.protocol), "{}", context());
        assert_eq!(found.fragment, made.fragment, "{}", context());
        let tags: Vec<u16> = found.tags.iter(&made.frame).map(|tag| tag.0).collect();
        assert_eq!(tags, made.tags, "{}", context());
        if made.fragment == Fragment::Later {
            assert_eq!((found.l4, found.payload), (None, None), "{}", context());
            continue;
        }
        assert_eq!(found.l4.map(usize::from), Some(made.l4), "{}", context());
        assert_eq!(found.ports(&made.frame), Some(made.ports), "{}", context());
        assert_eq!(found.payload(&made.frame), Some(&made.payload[..]), "{}", context());
    }
}

#[test]
fn layers_agree_with_etherparse() {
    let mut random = Random::with_replayable_seed();
    let (mut compared, rounds) = (0, 4_000);
    for round in 0..rounds {
        let made = generate_frame(&mut random);
        let found = layers(LinkType::ETHERNET, &made.frame);
        compared += u32::from(compare_with_etherparse(&found, &made.frame, round));
    }
    // Etherparse does not inspect first fragments, nor any header after more than three tags.
    assert!(compared > rounds / 3, "only {compared} frames");
}

#[test]
fn layers_of_damaged_frames_agree_with_etherparse() {
    let mut random = Random::with_replayable_seed();
    let (mut compared, rounds) = (0, 20_000);
    for round in 0..rounds {
        let mut frame = generate_frame(&mut random).frame;
        let head = frame.len().min(90);
        let flips = random.within(1..4);
        random.flip_bits(&mut frame[12..head], flips);
        if random.one_in(3) {
            frame.truncate(random.within(0..frame.len()));
        }
        let found = layers(LinkType::ETHERNET, &frame);
        compared += u32::from(compare_with_etherparse(&found, &frame, round));
    }
    assert!(compared > rounds / 10, "only {compared} frames");
}

/// Compares the ports and payloads that this crate and `etherparse` find. Returns true if both find
/// a TCP or UDP header; if not, compares nothing.
fn compare_with_etherparse(found: &Layers, frame: &[u8], round: u32) -> bool {
    let Ok(theirs) = LaxSlicedPacket::from_ethernet(frame) else { return false };
    let (kind, source, target, payload) = match &theirs.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            (protocol::TCP, tcp.source_port(), tcp.destination_port(), tcp.payload())
        }
        Some(TransportSlice::Udp(udp)) => {
            (protocol::UDP, udp.source_port(), udp.destination_port(), udp.payload())
        }
        _ => return false,
    };
    if found.protocol != Some(kind) || found.payload.is_none() {
        return false;
    }
    let context = || format!("round {round}: {found:?}\n{theirs:?}\n{frame:02x?}");
    assert_eq!(found.ports(frame), Some(Ports { source, target }), "{}", context());
    assert_eq!(found.payload(frame), Some(payload), "{}", context());
    true
}

fn generate_frame(random: &mut Random) -> GeneratedFrame {
    let mut frame = Frame::ethernet().padded_to(if random.one_in(2) { 60 } else { 0 });
    let (mut tags, mut l3) = (Vec::new(), 14);
    for _ in 0..random.below(4) {
        let control = random.next_u64() as u16;
        frame = frame.append_tag_with_ethertype(*random.pick(&[0x8100, 0x88a8, 0x9100]), control);
        tags.push(control);
        l3 += 4;
    }
    let fragment = match random.below(8) {
        0 => Some((0, true)),
        1 => Some((8 * random.within(1..1000) as u16, random.one_in(2))),
        _ => None,
    };
    let part = fragment.map_or(Fragment::Whole, |(offset, more)| Fragment::classify(offset, more));
    let (frame, l4) = if random.one_in(2) {
        generate_ipv4(random, frame, l3, fragment)
    } else {
        generate_ipv6(random, frame, l3, fragment)
    };
    let ports = Ports { source: random.next_u64() as u16, target: random.next_u64() as u16 };
    let length = random.within(0..200);
    let payload = random.bytes(length);
    let (protocol, frame) = if random.one_in(2) {
        (protocol::UDP, frame.udp(ports.source, ports.target, &payload))
    } else {
        let count = random.within(0..41);
        let options = vec![1; count];
        let Ports { source, target } = ports;
        let segment = TcpHeader { source, target, options, ..TcpHeader::default() };
        (protocol::TCP, frame.tcp(&segment, &payload))
    };
    GeneratedFrame { frame, tags, l3, l4, protocol, fragment: part, ports, payload }
}

/// Builds an IPv4 packet; one packet in three has options.
fn generate_ipv4(
    random: &mut Random,
    frame: Frame,
    l3: usize,
    fragment: Option<(u16, bool)>,
) -> (Frame, usize) {
    let mut frame = frame.ipv4("10.1.2.3", "172.16.9.8");
    let mut l4 = l3 + 20;
    if random.one_in(3) {
        let words = random.within(1..11);
        frame = frame.ipv4_options(&vec![1; words * 4]);
        l4 += words * 4;
    }
    match fragment {
        Some((offset, more)) => (frame.fragment(offset, more), l4),
        None => (frame, l4),
    }
}

/// Builds an IPv6 packet with a random subset of extension headers, in the recommended order of RFC
/// 8200.
fn generate_ipv6(
    random: &mut Random,
    frame: Frame,
    l3: usize,
    fragment: Option<(u16, bool)>,
) -> (Frame, usize) {
    let mut frame = frame.ipv6("2001:db8::1", "fe80::2");
    let mut l4 = l3 + 40;
    for header in [protocol::HOP_BY_HOP, protocol::DESTINATION_OPTIONS, protocol::ROUTING] {
        if random.one_in(4) {
            let units = random.within(0..4);
            let mut body = vec![0; 7 + units * 8];
            body[0] = units as u8;
            frame = frame.ipv6_extension(header, &body);
            l4 += 8 + units * 8;
        }
    }
    if let Some((offset, more)) = fragment {
        frame = frame.fragment(offset, more);
        l4 += 8;
    }
    if random.one_in(4) && fragment.is_none() {
        // Authentication header of 12 bytes plus a check value of 4 to 16.
        let words = random.within(1..5);
        let mut body = vec![0; 11 + words * 4];
        body[0] = 1 + words as u8;
        frame = frame.ipv6_extension(protocol::AH, &body);
        l4 += 12 + words * 4;
    }
    (frame, l4)
}
