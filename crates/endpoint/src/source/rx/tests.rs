//! Tests of `rx` with segments built in the kernel's layout, and of refused requests. End-to-end
//! tests cover live interfaces.

use super::unpack::{SkippedPackets, unpack};
use super::*;
use crate::testing::{checked_arguments, expect_failure, sink_opening};
use abi::{BlockFlags, DbufId, Extent};
use filter::Value;
use sys::packet::layout::PACKET_HEADER_SIZE;
use wire::link::LinkType;

const BLOCK_HEADER_BYTES: usize = 48;
/// Number of free bytes between a packet's header and its frame in a test segment.
const HEADROOM: usize = 14;

/// A packet to be put into a segment.
#[derive(Clone, Copy)]
struct TestPacket<'a> {
    frame: &'a [u8],
    tag: Option<(u16, u16)>,
    hatype: u16,
    outgoing: bool,
    status: u32,
}

const PLAIN_PACKET: TestPacket<'_> = TestPacket {
    frame: b"ddddddsssssstt-payload",
    tag: None,
    hatype: 1,
    outgoing: false,
    status: 1,
};

/// Returns a segment with these packets in the layout of `linux/if_packet.h` (TPACKET_V3).
fn build_segment(packets: &[TestPacket<'_>]) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_HEADER_BYTES];
    let put = |bytes: &mut Vec<u8>, at: usize, value: &[u8]| {
        bytes[at..at + value.len()].copy_from_slice(value);
    };
    for (number, packet) in packets.iter().enumerate() {
        let at = bytes.len();
        let distance = (PACKET_HEADER_SIZE + HEADROOM + packet.frame.len()).next_multiple_of(16);
        bytes.resize(at + distance, 0xee);
        let next = if number + 1 == packets.len() { 0 } else { distance };
        let length = u32::try_from(packet.frame.len()).unwrap();
        let tagged = if packet.tag.is_some() { 1 << 4 | 1 << 6 } else { 0 };
        let words = [
            u32::try_from(next).unwrap(),
            7,
            u32::try_from(number).unwrap(),
            length,
            length + 100,
            packet.status | tagged,
        ];
        for (i, word) in words.iter().enumerate() {
            put(&mut bytes, at + 4 * i, &word.to_ne_bytes());
        }
        let frame = u16::try_from(PACKET_HEADER_SIZE + HEADROOM).unwrap();
        put(&mut bytes, at + 24, &frame.to_ne_bytes());
        put(&mut bytes, at + 26, &(frame + 14).to_ne_bytes());
        let (protocol, control) = packet.tag.unwrap_or_default();
        put(&mut bytes, at + 32, &u32::from(control).to_ne_bytes());
        put(&mut bytes, at + 36, &protocol.to_ne_bytes());
        put(&mut bytes, at + 48 + 8, &packet.hatype.to_ne_bytes());
        bytes[at + 48 + 10] = if packet.outgoing { 4 } else { 0 };
        put(&mut bytes, at + PACKET_HEADER_SIZE + HEADROOM, packet.frame);
    }
    put(&mut bytes, 0, &2u32.to_ne_bytes());
    put(&mut bytes, 8, &1u32.to_ne_bytes());
    put(&mut bytes, 12, &u32::try_from(packets.len()).unwrap().to_ne_bytes());
    put(&mut bytes, 16, &u32::try_from(BLOCK_HEADER_BYTES).unwrap().to_ne_bytes());
    let used = u32::try_from(bytes.len()).unwrap();
    put(&mut bytes, 20, &used.to_ne_bytes());
    bytes
}

const SEGMENT_POSITION: u64 = 1 << 20;

fn unpack_segment(bytes: &mut [u8]) -> (Vec<Entry>, SkippedPackets) {
    let mut entries = Vec::new();
    let unpacked = unpack(bytes, (DbufId::new(5).unwrap(), SEGMENT_POSITION), 3, &mut entries);
    (entries, unpacked)
}

/// Returns the bytes in this extent of the segment.
fn bytes_of(bytes: &[u8], place: Extent) -> &[u8] {
    let from = usize::try_from(place.position() - SEGMENT_POSITION).unwrap();
    &bytes[from..from + place.length() as usize]
}

#[test]
fn frames_are_unpacked_in_place_with_metadata() {
    let outgoing = TestPacket { frame: b"ddddddssssssttx", outgoing: true, ..PLAIN_PACKET };
    let unset = TestPacket { frame: b"DDDDDDSSSSSSTT", status: 1 | 1 << 3, ..PLAIN_PACKET };
    let mut bytes = build_segment(&[PLAIN_PACKET, outgoing, unset]);
    let (entries, unpacked) = unpack_segment(&mut bytes);
    assert_eq!(unpacked, SkippedPackets::default());
    let frames: Vec<&[u8]> =
        entries.iter().map(|entry| bytes_of(&bytes, entry.pointer.place)).collect();
    assert_eq!(frames, [PLAIN_PACKET.frame, outgoing.frame, unset.frame]);
    let flags: Vec<BlockFlags> = entries.iter().map(|entry| entry.context.flags).collect();
    assert_eq!(flags, [BlockFlags::NONE, BlockFlags::BACKWARD, BlockFlags::CHECKSUM_UNSET]);
    let times: Vec<Time> = entries.iter().map(|entry| entry.context.time).collect();
    assert_eq!(times, [7_000_000_000, 7_000_000_001, 7_000_000_002]);
    assert!(entries.iter().all(|entry| entry.context.origin == 3));
    assert_eq!((entries[1].marks.captured, entries[1].marks.wire_length), (15, 115));
    assert_eq!(entries[0].marks.link, LinkType::ETHERNET.0);
}

#[test]
fn vlan_tag_is_reinserted_after_the_addresses() {
    let tagged = |tag| TestPacket { tag: Some(tag), ..PLAIN_PACKET };
    let mut bytes = build_segment(&[tagged((0x8100, 5)), PLAIN_PACKET, tagged((0x88a8, 0x6007))]);
    let (entries, _) = unpack_segment(&mut bytes);
    let frame = |at: usize| bytes_of(&bytes, entries[at].pointer.place);
    assert_eq!(frame(0), b"ddddddssssss\x81\x00\x00\x05tt-payload");
    assert_eq!(frame(1), PLAIN_PACKET.frame);
    assert_eq!(frame(2), b"ddddddssssss\x88\xa8\x60\x07tt-payload");
    assert_eq!((entries[0].marks.captured, entries[0].marks.wire_length), (26, 126));
}

#[test]
fn tag_is_not_reinserted_without_ethernet_header() {
    let raw =
        TestPacket { frame: b"\x45 ip", hatype: 65534, tag: Some((0x8100, 5)), ..PLAIN_PACKET };
    let radio = TestPacket { hatype: 803, ..PLAIN_PACKET };
    let mut bytes = build_segment(&[raw, radio, PLAIN_PACKET]);
    let (entries, unpacked) = unpack_segment(&mut bytes);
    assert_eq!(unpacked, SkippedPackets { unknown_link: 1, missing_packets: 0 });
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0].marks.link, LinkType::RAW.0);
    assert_eq!(bytes_of(&bytes, entries[0].pointer.place), raw.frame);
}

#[test]
fn corrupt_segments_lose_packets_without_panic() {
    let mut random = testkit::Random::with_replayable_seed();
    let whole = build_segment(&[
        PLAIN_PACKET,
        TestPacket { tag: Some((0x8100, 5)), ..PLAIN_PACKET },
        PLAIN_PACKET,
    ]);
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        random.flip_bits(&mut bytes, 3);
        let (entries, _) = unpack_segment(&mut bytes);
        for entry in entries {
            let from = usize::try_from(entry.pointer.place.position() - SEGMENT_POSITION).unwrap();
            assert!(from + entry.pointer.length() as usize <= bytes.len());
        }
    }
    assert_eq!(unpack_segment(&mut []), (Vec::new(), SkippedPackets::default()));
}

#[test]
fn missing_interface_fails_with_list_of_existing_ones() {
    if testkit::need::require_net_raw().is_none() {
        return;
    }
    let given = checked_arguments(&RX, &[("interface", "sl-none")]);
    let failure = expect_failure(open(&sink_opening(&given, &[]), Direction::Received)).to_string();
    let beginning = "cannot watch sl-none: there is no such interface in this namespace; there are";
    assert!(failure.starts_with(beginning) && failure.contains("lo"), "{failure}");
    let given = checked_arguments(&RX, &[("interface", "lo"), ("netns", "sl-none")]);
    let failure = expect_failure(open(&sink_opening(&given, &[]), Direction::Received)).to_string();
    assert!(failure.starts_with("cannot enter namespace sl-none: "), "{failure}");
}

#[test]
fn attach_point_needs_one_interface_and_direction() {
    let attach_point_of = |entry: &SourceEntry, values: &[(&'static str, Value)]| {
        let mut arguments = Arguments::from_parameter_defaults(entry.description.parameters);
        values.iter().for_each(|(name, value)| arguments.set(name, value.clone()));
        entry.facts.attach_point.unwrap()(&arguments)
    };
    let interface = ("interface", Value::Text("eth0".to_owned()));
    let yes = Value::Flag(true);
    let one = |side| AttachTarget { side, ..AttachTarget::observing("eth0") };
    assert_eq!(
        attach_point_of(&ENTRY, std::slice::from_ref(&interface)),
        Ok(one(TrafficDirection::Received))
    );
    assert_eq!(
        attach_point_of(&TX_SOURCE_ENTRY, std::slice::from_ref(&interface)),
        Ok(one(TrafficDirection::Sent))
    );
    let netns = ("netns", Value::Text("blue".to_owned()));
    let in_namespace = attach_point_of(&ENTRY, &[interface.clone(), netns]).unwrap();
    assert_eq!(in_namespace.netns.as_deref(), Some("blue"));
    assert!(attach_point_of(&ENTRY, &[]).is_err());
    assert!(attach_point_of(&ENTRY, &[interface.clone(), ("both", yes.clone())]).is_err());
    assert!(attach_point_of(&ENTRY, &[interface.clone(), ("promisc", yes.clone())]).is_err());
    let take = ("how", Value::Text("take".to_owned()));
    let taken = AttachTarget { redirects: true, ..one(TrafficDirection::Received) };
    assert_eq!(
        attach_point_of(&ENTRY, &[interface.clone(), ("promisc", yes), take.clone()]),
        Ok(taken)
    );
    let both = ("both", Value::Flag(true));
    assert!(attach_point_of(&ENTRY, &[interface.clone(), both.clone(), take.clone()]).is_err());
    let own = ("own", Value::Flag(true));
    let sockets = AttachTarget { own_sockets: true, ..AttachTarget::observing("") };
    assert_eq!(attach_point_of(&ENTRY, std::slice::from_ref(&own)), Ok(sockets.clone()));
    assert_eq!(
        attach_point_of(&ENTRY, &[own.clone(), both]),
        Ok(sockets),
        "sockets have both directions"
    );
    for with in [interface, take, ("promisc", Value::Flag(true))] {
        assert!(attach_point_of(&ENTRY, &[own.clone(), with.clone()]).is_err(), "{with:?}");
    }
}
