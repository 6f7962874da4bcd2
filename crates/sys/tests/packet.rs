//! Tests of packet sockets on pairs of virtual devices in private namespaces: every frame sent
//! arrives in the ring with its time and tag, or is counted as dropped.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

extern crate streamline_sys as sys;

use std::os::fd::AsFd as _;
use std::time::Duration;

use sys::memory::SegmentLender as _;
use sys::packet::layout::{self, PacketHeader, PacketKind, VlanTag};
use sys::packet::{
    PacketRing, PacketRingParameters, PacketSender, PacketSocket, QdiscMode, RingStatistics,
    SendReport, SendStopReason,
};
use testkit::net::{
    CLIENT_DEVICE, DevicePairSettings, Namespace, NamespacePair, SERVER_DEVICE, WAIT_TIMEOUT,
    wait_until,
};

const RING_PARAMETERS: PacketRingParameters =
    PacketRingParameters { segment: 1 << 16, segments: 8, retire_ms: 1, reserve: 8 };
const ENETDOWN: i32 = 100;

fn silent_pair() -> Option<NamespacePair> {
    NamespacePair::new(DevicePairSettings { addresses: false, ..DevicePairSettings::default() })
}

fn interface_index(space: &Namespace, device: &str) -> u32 {
    let file = format!("/sys/class/net/{device}/ifindex");
    space.run_program("cat", &file).trim().parse().unwrap()
}

fn open_ring(space: &Namespace, device: &str, shape: PacketRingParameters) -> PacketRing {
    let ring =
        space.run_in_network_namespace(PacketSocket::open).unwrap().into_ring(shape).unwrap();
    ring.bind(interface_index(space, device)).unwrap();
    ring
}

fn open_sender(space: &Namespace, device: &str) -> PacketSender {
    let index = interface_index(space, device);
    space.run_in_network_namespace(|| PacketSender::open(index, QdiscMode::Through)).unwrap()
}

/// Builds a numbered frame of an experimental protocol.
fn numbered_frame(number: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    bytes.extend(number.to_be_bytes());
    bytes.resize(len, 0x5a);
    bytes
}

fn frame_number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[14..18].try_into().unwrap())
}

/// Copies the bytes of an arrived segment of the ring.
fn copy_segment(ring: &PacketRing, slot: usize) -> Vec<u8> {
    assert!(ring.has_arrived(slot));
    let first = ring.base().as_ptr().wrapping_add(slot * ring.segment_size());
    // SAFETY: the segment is in the mapping, has arrived, and is not given back before the copy is
    // made.
    unsafe { std::slice::from_raw_parts(first, ring.segment_size()) }.to_vec()
}

/// Receives `count` frames and gives every segment back to the kernel.
fn receive_frames(
    ring: &PacketRing,
    slot: &mut usize,
    count: usize,
) -> Vec<(PacketHeader, Vec<u8>)> {
    let mut taken = Vec::new();
    wait_until("the frames come", || {
        sys::poll::wait_until_readable(&[ring.as_fd()], Some(Duration::from_millis(20)));
        while ring.has_arrived(*slot) {
            let bytes = copy_segment(ring, *slot);
            ring.give_back(*slot);
            *slot = (*slot + 1) % ring.segment_count();
            let mut packets = layout::packets(&bytes).unwrap();
            for packet in packets.by_ref() {
                let end = packet.frame + packet.captured as usize;
                taken.push((packet, bytes[packet.frame..end].to_vec()));
            }
            assert_eq!((packets.remaining(), packets.is_broken()), (0, false));
        }
        taken.len() >= count
    });
    taken
}

#[test]
fn frame_arrives_unchanged_with_time_and_origin() {
    let Some(pair) = silent_pair() else { return };
    let ring = open_ring(&pair.server, SERVER_DEVICE, RING_PARAMETERS);
    let own = open_ring(&pair.client, CLIENT_DEVICE, RING_PARAMETERS);
    let before = sys::clock::realtime_ns();
    let sent = open_sender(&pair.client, CLIENT_DEVICE)
        .send(&[&numbered_frame(7, 60), &numbered_frame(8, 1514)]);
    assert_eq!(sent, SendReport { frames: 2, stopped: None });
    let frames = receive_frames(&ring, &mut 0, 2);
    for ((packet, bytes), expected) in
        frames.iter().zip([numbered_frame(7, 60), numbered_frame(8, 1514)])
    {
        assert_eq!(*bytes, expected);
        assert_eq!(packet.length as usize, expected.len());
        assert!((before..=sys::clock::realtime_ns()).contains(&packet.time_ns), "{packet:?}");
        assert_eq!((packet.link.hatype, packet.link.protocol), (1, 0x88b5));
        assert_eq!(packet.link.index, interface_index(&pair.server, SERVER_DEVICE));
        assert_eq!(packet.link.kind, PacketKind::Other, "addressed to another host");
        assert_eq!(packet.network, packet.frame + 14);
        assert!(
            packet.frame - packet.at >= layout::PACKET_HEADER_SIZE + layout::FRAME_PADDING + 8,
            "room and reserve"
        );
        assert_eq!(packet.vlan, None);
    }
    let outgoing = receive_frames(&own, &mut 0, 2);
    assert!(outgoing.iter().all(|(packet, _)| packet.link.kind == PacketKind::Outgoing));
    assert_eq!(ring.statistics().unwrap(), RingStatistics { packets: 2, drops: 0, freezes: 0 });
    assert_eq!(ring.statistics().unwrap().packets, 2, "totals");
    assert_eq!((ring.socket_drop_count().unwrap(), ring.take_error()), (0, None));
}

#[test]
fn stripped_vlan_tag_is_reported() {
    let Some(pair) = silent_pair() else { return };
    let ring = open_ring(&pair.server, SERVER_DEVICE, RING_PARAMETERS);
    let tagged = |protocol: u16, control: u16| {
        let mut bytes = numbered_frame(1, 80);
        bytes.splice(12..12, [protocol.to_be_bytes(), control.to_be_bytes()].concat());
        bytes
    };
    let (plain, service) = (tagged(0x8100, 0x6007), tagged(0x88a8, 0x0009));
    open_sender(&pair.client, CLIENT_DEVICE).send(&[&plain, &service]);
    let frames = receive_frames(&ring, &mut 0, 2);
    for ((packet, bytes), tag) in frames.iter().zip([
        VlanTag { protocol: 0x8100, control: 0x6007 },
        VlanTag { protocol: 0x88a8, control: 0x0009 },
    ]) {
        assert_eq!(packet.vlan, Some(tag));
        assert_eq!(*bytes, numbered_frame(1, 80), "without its tag");
    }
}

/// Expects the ring to count frames that arrive while it is full, and to receive frames again once
/// segments are returned.
#[test]
fn full_ring_counts_drops_and_continues() {
    let Some(pair) = silent_pair() else { return };
    let shape = PacketRingParameters { segment: 4096, segments: 2, ..RING_PARAMETERS };
    let ring = open_ring(&pair.server, SERVER_DEVICE, shape);
    let mut sender = open_sender(&pair.client, CLIENT_DEVICE);
    let frames: Vec<Vec<u8>> = (0..1000).map(|n| numbered_frame(n, 200)).collect();
    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    assert_eq!(sender.send(&slices), SendReport { frames: 1000, stopped: None });
    wait_until("all have come to the ring or past it", || {
        ring.statistics().unwrap().packets == 1000
    });
    let RingStatistics { drops, freezes, .. } = ring.statistics().unwrap();
    assert!((900..1000).contains(&drops) && freezes >= 1, "{drops} {freezes}");
    let mut slot = 0;
    let received = receive_frames(&ring, &mut slot, 1000 - drops as usize);
    let numbers: Vec<u32> = received.iter().map(|(_, bytes)| frame_number(bytes)).collect();
    assert_eq!(numbers, (0..1000 - drops as u32).collect::<Vec<_>>(), "the first, in order");
    sender.send(&slices[..5]);
    let numbers: Vec<u32> =
        receive_frames(&ring, &mut slot, 5).iter().map(|(_, bytes)| frame_number(bytes)).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
    assert_eq!(ring.statistics().unwrap(), RingStatistics { packets: 1005, drops, freezes });
}

#[test]
fn filter_and_close_keep_frames_out_of_the_ring() {
    let Some(pair) = silent_pair() else { return };
    let socket = pair.server.run_in_network_namespace(PacketSocket::open).unwrap();
    // ldh [12]; jeq #0x88b5, next, +2; ld [14]; jlt 500: by jge #500, +1; ret all; ret none.
    let program = [
        (0x28, 0, 0, 12),
        (0x15, 0, 3, 0x88b5),
        (0x20, 0, 0, 14),
        (0x35, 1, 0, 500),
        (0x06, 0, 0, 0x0004_0000),
        (0x06, 0, 0, 0),
    ];
    socket.attach_filter(&program).unwrap();
    let ring = socket.into_ring(RING_PARAMETERS).unwrap();
    let mut sender = open_sender(&pair.client, CLIENT_DEVICE);
    sender.send(&[&numbered_frame(0, 60)]);
    ring.bind(interface_index(&pair.server, SERVER_DEVICE)).unwrap();
    sender.send(&[&numbered_frame(1, 60), &numbered_frame(500, 60), &numbered_frame(499, 60)]);
    let mut slot = 0;
    let frames = receive_frames(&ring, &mut slot, 2);
    let numbers: Vec<u32> = frames.iter().map(|(_, bytes)| frame_number(bytes)).collect();
    assert_eq!(numbers, [1, 499], "nothing from before, nothing that was refused");
    ring.stop_reception().unwrap();
    sender.send(&[&numbered_frame(2, 60)]);
    let received_count =
        || testkit::net::device_counters(&pair.server, SERVER_DEVICE).unwrap().received;
    wait_until("the device has seen all five", || received_count() == 5);
    assert_eq!(ring.statistics().unwrap().packets, 2);
    assert!(!ring.has_arrived(slot));
}

#[test]
fn outgoing_frames_can_be_excluded() {
    let Some(pair) = silent_pair() else { return };
    let socket = pair.server.run_in_network_namespace(PacketSocket::open).unwrap();
    socket.ignore_outgoing().unwrap();
    socket.make_promiscuous(interface_index(&pair.server, SERVER_DEVICE)).unwrap();
    let ring = socket.into_ring(RING_PARAMETERS).unwrap();
    ring.bind(0).unwrap();
    open_sender(&pair.server, SERVER_DEVICE).send(&[&numbered_frame(1, 60)]);
    open_sender(&pair.client, CLIENT_DEVICE).send(&[&numbered_frame(2, 60)]);
    let frames = receive_frames(&ring, &mut 0, 1);
    assert_eq!(frames.iter().map(|(_, bytes)| frame_number(bytes)).collect::<Vec<_>>(), [2]);
}

#[test]
fn ring_on_removed_interface_reports_an_error() {
    let Some(pair) = silent_pair() else { return };
    let ring = open_ring(&pair.server, SERVER_DEVICE, RING_PARAMETERS);
    let mut sender = open_sender(&pair.client, CLIENT_DEVICE);
    pair.server.run_ip(&format!("link set dev {SERVER_DEVICE} down"));
    assert_eq!(ring.take_error(), Some(ENETDOWN));
    assert_eq!(ring.take_error(), None, "told once");
    pair.server.run_ip(&format!("link set dev {SERVER_DEVICE} up"));
    pair.client.wait_until_up(CLIENT_DEVICE);
    pair.server.wait_until_up(SERVER_DEVICE);
    sender.send(&[&numbered_frame(3, 60)]);
    assert_eq!(
        frame_number(&receive_frames(&ring, &mut 0, 1)[0].1),
        3,
        "it goes on when the interface is up"
    );
    pair.server.run_ip(&format!("link delete dev {SERVER_DEVICE}"));
    assert!(sys::poll::wait_until_readable(&[ring.as_fd()], Some(WAIT_TIMEOUT))[0], "it wakes");
    assert_eq!(ring.take_error(), Some(ENETDOWN));
    let gone = sender.send(&[&numbered_frame(4, 60)]);
    assert!(
        matches!(gone, SendReport { frames: 0, stopped: Some(SendStopReason::Refused(_)) }),
        "{gone:?}"
    );
}

#[test]
fn unsendable_frame_is_refused_and_reported() {
    let Some(pair) = silent_pair() else { return };
    let ring = open_ring(&pair.server, SERVER_DEVICE, RING_PARAMETERS);
    let mut sender = open_sender(&pair.client, CLIENT_DEVICE);
    let frames: Vec<Vec<u8>> =
        (0..200).map(|n| numbered_frame(n, 60 + 2000 * (n / 150) as usize)).collect();
    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    const EMSGSIZE: i32 = 90;
    let sent = sender.send(&slices);
    assert_eq!(sent, SendReport { frames: 150, stopped: Some(SendStopReason::Refused(EMSGSIZE)) });
    assert_eq!(receive_frames(&ring, &mut 0, 150).len(), 150);
    assert!(sys::poll::wait_until_writable(&sender, WAIT_TIMEOUT));
    let nowhere = pair
        .client
        .run_in_network_namespace(|| PacketSender::open(4711, QdiscMode::Bypass))
        .unwrap_err();
    assert_eq!(nowhere.call, "bind");
}
