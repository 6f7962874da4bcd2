//! Tests of dissection with literal frames. `tests/dissect.rs` compares generated frames with
//! etherparse.

use super::*;

const ETHERNET_IPV4_HEADER: [u8; 14] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
const ETHERNET_IPV6_HEADER: [u8; 14] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];

/// Builds an IPv4 header from the total length, the word with the flags and the fragment offset,
/// and the protocol.
fn ipv4_header(total: u16, fragment: u16, protocol: u8) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend(total.to_be_bytes());
    header.extend([0, 1]);
    header.extend(fragment.to_be_bytes());
    header.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    header
}

fn ipv6_header(payload: u16, next: u8) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0];
    header.extend(payload.to_be_bytes());
    header.extend([next, 64]);
    header.extend([0; 32]);
    header
}

fn udp_header(length: u16) -> Vec<u8> {
    let mut header = vec![0, 53, 4, 0];
    header.extend(length.to_be_bytes());
    header.extend([0, 0]);
    header
}

/// Builds a TCP header without options whose data offset is `offset` words.
fn tcp_header(offset: u8) -> Vec<u8> {
    let mut header = vec![4, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, offset << 4, 2];
    header.extend([0; 6]);
    header
}

fn concat_frame(parts: &[&[u8]]) -> Vec<u8> {
    [&ETHERNET_IPV4_HEADER[..], &parts.concat()].concat()
}

fn dissect_ethernet(frame: &[u8]) -> Layers {
    layers(LinkType::ETHERNET, frame)
}

const TRUNCATED_FAULT: FrameFaults =
    FrameFaults { truncated: true, malformed: false, too_deep: false };
const MALFORMED_FAULT: FrameFaults =
    FrameFaults { truncated: false, malformed: true, too_deep: false };
const TOO_DEEP_FAULT: FrameFaults =
    FrameFaults { truncated: false, malformed: false, too_deep: true };
const NO_FAULTS: FrameFaults = FrameFaults { truncated: false, malformed: false, too_deep: false };

#[test]
fn padding_after_tcp_is_not_payload() {
    let frame = concat_frame(&[&ipv4_header(42, 0, 6), &tcp_header(5), b"hi", &[0; 4]]);
    let found = dissect_ethernet(&frame);
    assert_eq!((found.network, found.protocol), (NetworkProtocol::Ipv4, Some(6)));
    assert_eq!((found.l3, found.l4, found.payload), (Some(14), Some(34), Some(54)));
    assert_eq!(found.payload(&frame), Some(&b"hi"[..]));
    assert_eq!(found.ports(&frame), Some(Ports { source: 1024, target: 80 }));
    assert_eq!((found.fragment, found.faults), (Fragment::Whole, NO_FAULTS));
}

#[test]
fn udp_length_limits_the_payload() {
    let frame = concat_frame(&[&ipv4_header(34, 0, 17), &udp_header(11), b"dns123"]);
    let found = dissect_ethernet(&frame);
    assert_eq!(found.payload(&frame), Some(&b"dns"[..]));
    assert_eq!(found.faults, NO_FAULTS);
}

#[test]
fn payload_of_zero_length_field_ends_with_the_frame() {
    let frame = concat_frame(&[&ipv4_header(0, 0, 6), &tcp_header(5), b"all of it"]);
    assert_eq!(dissect_ethernet(&frame).payload(&frame), Some(&b"all of it"[..]));
    let six = [&ETHERNET_IPV6_HEADER[..], &ipv6_header(0, 17), &udp_header(0), b"jumbo"].concat();
    assert_eq!(dissect_ethernet(&six).payload(&six), Some(&b"jumbo"[..]));
    assert_eq!(dissect_ethernet(&six).faults, NO_FAULTS);
}

#[test]
fn frame_truncated_anywhere_is_marked_truncated() {
    let frame =
        concat_frame(&[&ipv4_header(60, 0, 6), &tcp_header(6), &[1, 1, 1, 0], b"sixteen bytes..."]);
    for length in 0..frame.len() {
        let found = dissect_ethernet(&frame[..length]);
        assert_eq!(found.faults, TRUNCATED_FAULT, "{length}");
        assert_eq!(found.l3.is_some(), length >= 14, "{length}");
        assert_eq!(found.l4.is_some(), length >= 34, "{length}");
        assert_eq!(found.ports(&frame[..length]).is_some(), length >= 38, "{length}");
        assert_eq!(found.payload.is_some(), length >= 58, "{length}");
        assert_eq!(found.end as usize, length);
    }
    assert_eq!(dissect_ethernet(&frame).faults, NO_FAULTS);
}

#[test]
fn later_fragment_has_no_transport_header() {
    let frame = concat_frame(&[&ipv4_header(28, 0x2001, 17), &udp_header(8)]);
    let found = dissect_ethernet(&frame);
    assert_eq!((found.fragment, found.protocol), (Fragment::Later, Some(17)));
    assert_eq!((found.l4, found.payload, found.ports(&frame)), (None, None, None));
    let six = [
        &ETHERNET_IPV6_HEADER[..],
        &ipv6_header(16, 44),
        &[17, 0, 0, 8, 0, 0, 0, 1],
        &udp_header(8),
    ]
    .concat();
    let found = dissect_ethernet(&six);
    assert_eq!((found.fragment, found.protocol), (Fragment::Later, Some(17)));
    assert_eq!((found.l4, found.faults), (None, NO_FAULTS));
}

#[test]
fn first_fragment_has_a_transport_header() {
    let frame = concat_frame(&[&ipv4_header(36, 0x2000, 17), &udp_header(4000), b"begin..."]);
    let found = dissect_ethernet(&frame);
    assert_eq!((found.fragment, found.l4, found.faults), (Fragment::First, Some(34), NO_FAULTS));
    assert_eq!(found.payload(&frame), Some(&b"begin..."[..]));
}

#[test]
fn inconsistent_header_ends_the_dissection() {
    let version = concat_frame(&[&ipv6_header(0, 6), &tcp_header(5)]);
    let short_header = concat_frame(&[&[0x44], &ipv4_header(40, 0, 6)[1..], &tcp_header(5)]);
    let short_total = concat_frame(&[&ipv4_header(19, 0, 6), &tcp_header(5)]);
    let total_in_options = concat_frame(&[&[0x46], &ipv4_header(22, 0, 6)[1..], &tcp_header(5)]);
    for frame in [version, short_header, short_total, total_in_options] {
        let found = dissect_ethernet(&frame);
        assert_eq!((found.l3, found.l4, found.faults), (Some(14), None, MALFORMED_FAULT));
    }
    let small_offset = concat_frame(&[&ipv4_header(40, 0, 6), &tcp_header(4)]);
    let large_offset = concat_frame(&[&ipv4_header(40, 0, 6), &tcp_header(6)]);
    let small_tcp = concat_frame(&[&ipv4_header(39, 0, 6), &tcp_header(5)]);
    let small_udp = concat_frame(&[&ipv4_header(28, 0, 17), &udp_header(7)]);
    for frame in [small_offset, large_offset, small_tcp, small_udp] {
        let found = dissect_ethernet(&frame);
        assert_eq!((found.l4, found.payload, found.faults), (Some(34), None, MALFORMED_FAULT));
    }
    let large_udp = concat_frame(&[&ipv4_header(28, 0, 17), &udp_header(9)]);
    let found = dissect_ethernet(&large_udp);
    assert_eq!((found.payload(&large_udp), found.faults), (Some(&[][..]), MALFORMED_FAULT));
}

#[test]
fn extension_headers_are_followed_to_a_limit() {
    let options = [17, 0, 0, 0, 0, 0, 0, 0];
    let frame = [&ETHERNET_IPV6_HEADER[..], &ipv6_header(18, 60), &options, &udp_header(10), b"ok"]
        .concat();
    let found = dissect_ethernet(&frame);
    assert_eq!(
        (found.network, found.protocol, found.l4),
        (NetworkProtocol::Ipv6, Some(17), Some(62))
    );
    assert_eq!((found.payload(&frame), found.faults), (Some(&b"ok"[..]), NO_FAULTS));
    let chain = [60, 0, 0, 0, 0, 0, 0, 0].repeat(9);
    let deep = [&ETHERNET_IPV6_HEADER[..], &ipv6_header(72, 60), &chain].concat();
    assert_eq!(
        (dissect_ethernet(&deep).l4, dissect_ethernet(&deep).faults),
        (None, TOO_DEEP_FAULT)
    );
    // The options would extend beyond the packet's stated length, into the padding.
    let beyond =
        [&ETHERNET_IPV6_HEADER[..], &ipv6_header(4, 60), &options, &udp_header(8)].concat();
    assert_eq!(
        (dissect_ethernet(&beyond).l4, dissect_ethernet(&beyond).faults),
        (None, MALFORMED_FAULT)
    );
}

#[test]
fn frames_without_tcp_or_udp_are_dissected() {
    let icmp = concat_frame(&[&ipv4_header(28, 0, 1), &[8, 0, 0, 0, 0, 1, 0, 1]]);
    let found = dissect_ethernet(&icmp);
    assert_eq!((found.protocol, found.l4, found.payload), (Some(1), Some(34), Some(34)));
    assert_eq!(found.ports(&icmp), None);
    let arp = [&ETHERNET_IPV4_HEADER[..12], &[8, 6], &[0; 28][..]].concat();
    assert_eq!(
        (dissect_ethernet(&arp).network, dissect_ethernet(&arp).l4),
        (NetworkProtocol::Arp, None)
    );
    assert_eq!(dissect_ethernet(&arp).faults, NO_FAULTS);
    let spanning_tree =
        [&ETHERNET_IPV4_HEADER[..12], &[0, 7], &[0x42, 0x42, 3, 0, 0, 0, 0, 9, 9]].concat();
    let found = dissect_ethernet(&spanning_tree);
    assert_eq!(found.packet(&spanning_tree), Some(&spanning_tree[14..21]));
    let nine_tags = [&ETHERNET_IPV4_HEADER[..12], &[0x81, 0, 0, 1].repeat(9), &[8, 0]].concat();
    assert_eq!(
        (dissect_ethernet(&nine_tags).network, dissect_ethernet(&nine_tags).faults),
        (NetworkProtocol::Other(0x8100), TOO_DEEP_FAULT)
    );
    let unknown = layers(LinkType(105), &icmp);
    assert_eq!(
        (unknown.l3, unknown.network, unknown.faults),
        (None, NetworkProtocol::Unknown, NO_FAULTS)
    );
}

#[test]
fn layers_have_at_most_40_bytes() {
    assert!(size_of::<Layers>() <= 40);
}
