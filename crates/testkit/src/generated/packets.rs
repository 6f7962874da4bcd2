//! Generated packets with unusual layers: fragments, tags, extension headers and other link types.

use super::files::FILE_FORMATS;
use crate::packet::{Frame, TcpHeader};
use crate::random::Random;
use crate::traffic::{
    CLIENT_ADDRESS, CLIENT_IPV6_ADDRESS, Capture, SERVER_ADDRESS, SERVER_IPV6_ADDRESS, content,
    mixed_traffic,
};
use wire::LinkType;

/// Splits `transport`, the payload of an IP packet, into fragments of at most `most` bytes, which
/// must be a multiple of 8. `base` contains the headers up to the IP header. Returns a frame for
/// each fragment, in order.
fn split_into_fragments(base: &Frame, protocol: u8, transport: &[u8], most: usize) -> Vec<Vec<u8>> {
    let last = transport.len().div_ceil(most).saturating_sub(1);
    let piece = |(at, bytes): (usize, &[u8])| {
        base.clone().fragment((at * most) as u16, at < last).ip_payload(protocol, bytes)
    };
    transport.chunks(most).enumerate().map(piece).collect()
}

const UDP: u8 = 17;
const TCP: u8 = 6;
const ICMP6: u8 = 58;

fn ipv4_frame(host: u8) -> Frame {
    Frame::ethernet().ipv4(&format!("10.0.1.{host}"), SERVER_ADDRESS)
}

fn ipv6_frame(host: u8) -> Frame {
    Frame::ethernet().ipv6(&format!("2001:db8:1::{host:x}"), SERVER_IPV6_ADDRESS)
}

/// Returns a UDP header with a payload of `length` bytes, which the caller splits into fragments.
/// The checksum is correct for the IP addresses in `whole`, a frame with the Ethernet and IP
/// headers. `network` is the length of the IP header in bytes (20 or 40).
fn udp_datagram(whole: Frame, network: usize, length: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..length).map(|at| (at * 7 % 251) as u8).collect();
    whole.udp(4000, 4001, &payload)[14 + network..].to_vec()
}

pub(super) fn fragment_captures() -> Vec<(&'static str, Capture)> {
    let whole4 = |host| udp_datagram(ipv4_frame(host), 20, 3_000);
    let whole6 = |host| udp_datagram(ipv6_frame(host), 40, 3_000);
    let mut many = Vec::new();
    for host in 0..100 {
        many.extend(split_into_fragments(&ipv4_frame(host), UDP, &whole4(host), 800));
        many.extend(split_into_fragments(&ipv6_frame(host), UDP, &whole6(host), 1_200));
        many.push(ipv4_frame(host).udp(4000, 4001, b"whole"));
    }
    Random::new(3).shuffle(&mut many);
    let syn = TcpHeader { source: 4000, target: 80, flags: 2, window: 512, ..TcpHeader::default() };
    let syn = ipv4_frame(1).tcp(&syn, b"")[34..].to_vec();
    let tagged = Frame::ethernet().append_vlan_tag(42).ipv4("10.0.1.1", SERVER_ADDRESS);
    let overlapping = |base: &Frame, whole: &[u8]| {
        let mut frames = split_into_fragments(base, UDP, whole, 1_000);
        frames.insert(1, base.clone().fragment(992, true).ip_payload(UDP, &[b'!'; 64]));
        frames
    };
    let missing = |base: &Frame, whole: &[u8]| {
        let mut frames = split_into_fragments(base, UDP, whole, 1_000);
        frames.remove(1);
        frames
    };
    let mut padded =
        split_into_fragments(&ipv4_frame(4), UDP, &udp_datagram(ipv4_frame(4), 20, 60), 40);
    padded.iter_mut().for_each(|frame| frame.resize(frame.len().max(60), 0xee));
    let uneven = [
        ipv6_frame(5).fragment(0, true).ip_payload(UDP, &whole6(5)[..1_001]),
        ipv6_frame(5).fragment(1_008, false).ip_payload(UDP, &whole6(5)[1_008..]),
    ];
    let atomic = ipv6_frame(8).fragment(0, false).ip_payload(ICMP6, &[2, 0, 0, 0, 0, 0, 4, 0]);
    let big4 = [ipv4_frame(6).fragment(65_512, false).ip_payload(UDP, &[7; 64])];
    let big6 = [ipv6_frame(6).fragment(65_512, false).ip_payload(UDP, &[7; 64])];
    vec![
        ("many", Capture::from_frames(many)),
        ("syn-behind-tag", Capture::from_frames(split_into_fragments(&tagged, TCP, &syn, 8))),
        (
            "reversed",
            Capture::from_frames(
                split_into_fragments(&ipv4_frame(2), UDP, &whole4(2), 512).into_iter().rev(),
            ),
        ),
        ("padded", Capture::from_frames(padded)),
        (
            "twice",
            Capture::from_frames(
                [(); 2]
                    .map(|()| split_into_fragments(&ipv4_frame(3), UDP, &whole4(3), 1_000))
                    .concat(),
            ),
        ),
        ("overlap4", Capture::from_frames(overlapping(&ipv4_frame(7), &whole4(7)))),
        ("overlap6", Capture::from_frames(overlapping(&ipv6_frame(7), &whole6(7)))),
        ("missing4", Capture::from_frames(missing(&ipv4_frame(9), &whole4(9)))),
        ("missing6", Capture::from_frames(missing(&ipv6_frame(9), &whole6(9)))),
        ("uneven6", Capture::from_frames(uneven)),
        ("atomic6", Capture::from_frames([atomic])),
        ("too-big4", Capture::from_frames(big4)),
        ("too-big6", Capture::from_frames(big6)),
    ]
}

/// Returns captures of frames with tags, extension headers, invalid fields and truncated contents.
pub(super) fn frame_captures() -> Vec<(&'static str, Capture)> {
    let ask = content::dns_query(7, "www.example.org", 1);
    let base = || Frame::ethernet().ipv4(CLIENT_ADDRESS, SERVER_ADDRESS);
    let over = |frame: Frame| frame.ipv4(CLIENT_ADDRESS, SERVER_ADDRESS).udp(4000, 53, &ask);
    let tagged = vec![
        over(Frame::ethernet().append_vlan_tag(1)),
        over(Frame::ethernet().append_vlan_tag(0xe001)),
        over(Frame::ethernet().append_tag_with_ethertype(0x88a8, 7).append_vlan_tag(42)),
        over(Frame::ethernet().append_tag_with_ethertype(0x9100, 7).append_vlan_tag(42)),
        over(Frame::ethernet().append_vlan_tag(1).append_vlan_tag(2).append_vlan_tag(3)),
        over(Frame::ethernet().append_snap_header()),
        Frame::ethernet().append_vlan_tag(9).arp(true, CLIENT_ADDRESS, SERVER_ADDRESS),
        Frame::ethernet()
            .append_vlan_tag(9)
            .ipv6(CLIENT_IPV6_ADDRESS, SERVER_IPV6_ADDRESS)
            .udp(4000, 53, &ask),
    ];
    let extended = |header: u8, body: &[u8]| {
        Frame::ethernet()
            .ipv6(CLIENT_IPV6_ADDRESS, SERVER_IPV6_ADDRESS)
            .ipv6_extension(header, body)
            .udp(4000, 53, &ask)
    };
    let headers = vec![
        base().ipv4_options(&[1; 8]).udp(4000, 53, &ask),
        base().ipv4_options(&[0x94, 4, 0, 0]).echo(true, 1, 1, b"alert"),
        extended(0, &[0, 5, 2, 0, 0, 1, 0]),
        extended(60, &[0, 1, 4, 0, 0, 0, 0]),
        extended(43, &[0, 0, 0, 0, 0, 0, 0]),
        Frame::ethernet().ipv6(CLIENT_IPV6_ADDRESS, SERVER_IPV6_ADDRESS).echo(
            true,
            1,
            2,
            b"is anybody there?",
        ),
        base().ip_payload(47, &[0, 0, 8, 0, 0x45, 0]),
        base().ip_payload(50, &[0, 0, 0, 1, 0, 0, 0, 2]),
        base().ip_payload(132, &[0x0b, 0x80, 0x0b, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]),
        base().ip_payload(1, &[3, 1, 0, 0, 0, 0, 0, 0, 0x45, 0, 0, 28]),
        Frame::ethernet().link_payload(0x88cc, &[2, 7, 4, 2, 0, 0, 0, 0, 1, 0, 0]),
        Frame::ethernet().link_payload(0x8847, &[0, 0, 0x11, 0xff, 0x45, 0, 0, 20]),
        Frame::ethernet().link_payload(0x0800, &[]),
    ];
    let mut wrong = Vec::new();
    for (at, value) in [(14, 0x44), (14, 0x55), (16, 0xff), (17, 19), (23, 99), (34, 0), (38, 0xff)]
    {
        let mut frame = base().udp(4000, 53, &ask);
        frame[at] = value;
        wrong.push(frame);
    }
    let segment =
        TcpHeader { source: 4000, target: 80, flags: 2, window: 512, ..TcpHeader::default() };
    let mut small = base().tcp(&segment, b"");
    small[14 + 20 + 12] = 0x40;
    wrong.push(small);
    // One frame, truncated to every length from the Ethernet header on.
    let whole = base().udp(4000, 53, &ask);
    let short = (14..whole.len()).map(|length| whole[..length].to_vec());
    vec![
        ("tagged", Capture::from_frames(tagged)),
        ("headers", Capture::from_frames(headers)),
        ("wrong", Capture::from_frames(wrong)),
        ("short", Capture::from_frames(short)),
        (
            "plain",
            Capture::from_frames(mixed_traffic(77, 12).frames.into_iter().map(|(_, frame)| frame)),
        ),
    ]
}

/// Returns captures of link types other than Ethernet, including an unknown type, and one capture
/// with two link types.
pub(super) fn link_type_captures() -> Vec<(String, Vec<u8>)> {
    let segment =
        TcpHeader { source: 4000, target: 80, flags: 2, window: 512, ..TcpHeader::default() };
    let ask = content::dns_query(7, "www.example.org", 1);
    let three = |base: &dyn Fn() -> Frame| {
        Capture::from_frames([
            base().ipv4(CLIENT_ADDRESS, SERVER_ADDRESS).udp(4000, 53, &ask),
            base().ipv4(CLIENT_ADDRESS, SERVER_ADDRESS).tcp(&segment, b""),
            base().ipv6(CLIENT_IPV6_ADDRESS, SERVER_IPV6_ADDRESS).udp(4000, 53, &ask),
        ])
        .frames
    };
    let all = [
        ("raw", LinkType::RAW, three(&Frame::raw)),
        ("null", LinkType::NULL, three(&|| Frame::loopback(false))),
        ("null-big", LinkType::NULL, three(&|| Frame::loopback(true))),
        ("cooked", LinkType::LINUX_SLL, three(&Frame::linux_cooked_v1)),
        ("cooked2", LinkType::LINUX_SLL2, three(&Frame::linux_cooked_v2)),
        ("unknown", LinkType(147), three(&Frame::raw)),
    ];
    let mut files: Vec<_> = all
        .iter()
        .zip(FILE_FORMATS)
        .map(|((name, link, frames), format)| {
            let name = format!("links/{name}.{}", format.extension());
            (name, format.encode(&[(*link, frames)]))
        })
        .collect();
    let ethernet = three(&Frame::ethernet);
    let both = [(LinkType::ETHERNET, &ethernet[..]), (LinkType::RAW, &all[0].2[..])];
    files.push(("links/several.pcapng".to_owned(), FILE_FORMATS[5].encode(&both)));
    files
}
