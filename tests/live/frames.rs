//! Tests of frames that differ from those on the wire (merged by GRO, without a checksum, with the
//! VLAN tag in metadata), and of jumbo frames. An observed frame equals the frame that the host's
//! stack receives, with its tag inline (CONTRACT 3).

use crate::frame_sending::{capture_length, send_frames};
use crate::observer::{Observer, ObserverResult};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use testkit::net::{
    CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER, SERVER_DEVICE, WAIT_TIMEOUT,
};
use testkit::packet::checksum;
use testkit::{Frame, Random, TcpHeader};

/// Offset of the TCP header in a frame, after an Ethernet header and an IPv4 header without
/// options.
const TCP_OFFSET: usize = 14 + 20;
/// Number of bytes sent over a TCP connection.
const TRANSFER_LENGTH: usize = 3 << 20;

/// Sends bytes to the server; returns the bytes that the server received.
fn send_over_tcp(pair: &NamespacePair, bytes: &[u8]) -> Vec<u8> {
    let listener =
        pair.server.run_in_network_namespace(|| TcpListener::bind((SERVER, 7)).expect("a port"));
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| {
            let (mut connection, _) = listener.accept().expect("a connection");
            connection.set_read_timeout(Some(WAIT_TIMEOUT)).expect("a time");
            let mut taken = Vec::new();
            connection.read_to_end(&mut taken).expect("to the end");
            taken
        });
        let mut connection = pair
            .client
            .run_in_network_namespace(|| TcpStream::connect((SERVER, 7)).expect("it listens"));
        connection.write_all(bytes).expect("it takes");
        connection.shutdown(Shutdown::Write).expect("it is open");
        // The other side closes once it has received everything.
        let _ = connection.read(&mut [0]);
        taken.join().expect("no panic")
    })
}

/// Returns the frames from client to server that contain data.
fn data_frames(frames: &[Vec<u8>]) -> Vec<&[u8]> {
    let header = |frame: &[u8]| TCP_OFFSET + usize::from(frame[TCP_OFFSET + 12] >> 4) * 4;
    frames.iter().map(Vec::as_slice).filter(|frame| frame.len() > header(frame)).collect()
}

/// Transfers bytes over TCP while one request writes a capture and another one reassembles streams.
/// Returns the frames that carried the bytes.
fn capture_transfer_frames(pair: &NamespacePair, bytes: &[u8]) -> Vec<Vec<u8>> {
    let source = format!("rx {SERVER_DEVICE} ring=32MB | bpf \"ip and tcp port 7\"");
    let streams = Observer::start(&pair.server, &format!("{source} | tcp | files streams"));
    let frames = Observer::start(&pair.server, &format!("{source} | pcap seen.pcap"));
    assert!(send_over_tcp(pair, bytes) == bytes, "TCP carries");
    let (streams, frames) = (streams.stop(), frames.stop());
    streams.assert_lossless();
    frames.assert_lossless();
    assert!(
        single_stream_data(&streams) == bytes,
        "the stream is what was sent: {}",
        streams.ledger
    );
    frames.frames("seen.pcap")
}

/// Returns the only stream with data that a request wrote.
fn single_stream_data(ran: &ObserverResult) -> Vec<u8> {
    let folder = std::fs::read_dir(ran.path("streams")).expect("a folder").flatten();
    let files = folder.map(|entry| entry.path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_none_or(|end| end != "jsonl")).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    std::fs::read(files.remove(0)).expect("a file")
}

/// Asserts that every frame is as long as its IP header states.
fn assert_lengths_match_ip_headers(frames: &[Vec<u8>]) {
    for frame in frames {
        let length = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        assert_eq!(frame.len(), 14 + length, "{:x?}", &frame[..54]);
    }
}

/// Returns true if a segment's checksum is valid.
fn has_valid_checksum(frame: &[u8]) -> bool {
    let length = ((frame.len() - TCP_OFFSET) as u32).to_be_bytes();
    checksum(&[&frame[26..34], &length, &[0, 6], &frame[TCP_OFFSET..]]) == 0
}

#[test]
fn merged_frames_without_checksum_are_complete() {
    let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
    let bytes = Random::with_replayable_seed().bytes(TRANSFER_LENGTH);
    let frames = capture_transfer_frames(&pair, &bytes);
    assert_lengths_match_ip_headers(&frames);
    let data = data_frames(&frames);
    let longest = data.iter().map(|frame| frame.len()).max();
    assert!(longest > Some(1514), "frames are joined: {longest:?}");
    assert!(data.iter().any(|frame| !has_valid_checksum(frame)), "checksums are left to a device");
}

#[test]
fn jumbo_frames_are_complete() {
    let Some(pair) =
        NamespacePair::new(DevicePairSettings { mtu: 9000, ..DevicePairSettings::default() })
    else {
        return;
    };
    for (space, device) in [(&pair.client, CLIENT_DEVICE), (&pair.server, SERVER_DEVICE)] {
        let off = "tso off gso off gro off tx off rx off";
        let Some(()) = space.set_offload(device, off) else { return };
    }
    let bytes = Random::with_replayable_seed().bytes(TRANSFER_LENGTH);
    let frames = capture_transfer_frames(&pair, &bytes);
    assert_lengths_match_ip_headers(&frames);
    let data = data_frames(&frames);
    assert_eq!(data.iter().map(|frame| frame.len()).max(), Some(9014));
    assert!(data.iter().all(|frame| has_valid_checksum(frame)), "nothing is left to a device");
}

/// Returns tagged and untagged frames of many kinds, all different.
pub(crate) fn tagged_frames() -> Vec<Vec<u8>> {
    type FrameConstructor = fn() -> Frame;
    let starts: [(&str, FrameConstructor); 8] = [
        ("untagged", Frame::ethernet),
        ("5", || Frame::ethernet().append_vlan_tag(5)),
        ("6", || Frame::ethernet().append_vlan_tag(6)),
        ("priority alone", || Frame::ethernet().append_vlan_tag(0xe000)),
        ("5 in 7, 802.1ad", || {
            Frame::ethernet().append_tag_with_ethertype(0x88a8, 7).append_vlan_tag(5)
        }),
        ("6 in 5, 802.1Q twice", || Frame::ethernet().append_vlan_tag(5).append_vlan_tag(6)),
        ("three", || {
            Frame::ethernet()
                .append_tag_with_ethertype(0x88a8, 1)
                .append_vlan_tag(2)
                .append_vlan_tag(5)
        }),
        ("0x9100", || Frame::ethernet().append_tag_with_ethertype(0x9100, 5)),
    ];
    let mut frames = Vec::new();
    for (name, start) in starts {
        let segment = TcpHeader { source: 1000, target: 80, flags: 0x10, ..TcpHeader::default() };
        let payload = format!("tagged: {name}");
        let payload = payload.as_bytes();
        frames.push(start().ipv4("10.0.0.1", "10.0.0.2").tcp(&segment, payload));
        frames.push(start().ipv6("2001:db8::1", "2001:db8::2").tcp(&segment, payload));
        frames.push(start().ipv4("10.0.0.1", "10.0.0.2").udp(53, 1000, payload));
        frames.push(start().ipv4("10.0.0.1", "10.0.0.2").echo(true, 1, 2, payload));
        frames.push(start().arp(true, "10.0.0.1", "10.0.0.2"));
        frames.push(start().link_payload(0x88b5, payload));
        // As short as a device delivers them, and as long as allowed.
        frames.push(start().padded_to(60).ipv4("10.0.0.1", "10.0.0.2").udp(1, 2, b""));
        frames.push(start().ipv4("10.0.0.1", "10.0.0.2").udp(1, 2, &[7; 1400]));
    }
    frames
}

#[test]
fn tags_removed_by_device_or_driver_are_restored() {
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let frames = tagged_frames();
    let observers = [
        // On receive the kernel has removed the outer tag; on transmit it is inline.
        (&pair.server, format!("rx {SERVER_DEVICE}")),
        (&pair.client, format!("tx {CLIENT_DEVICE}")),
        (&pair.server, "rx".to_owned()),
    ];
    let mut started: Vec<Observer> = observers
        .iter()
        .map(|(space, source)| Observer::start(space, &format!("{source} | pcap seen.pcap")))
        .collect();
    send_frames(&pair.client, CLIENT_DEVICE, &frames);
    for observer in &mut started {
        observer.wait_until_file_has_length("seen.pcap", capture_length(&frames));
    }
    for (observer, (_, source)) in started.into_iter().zip(&observers) {
        let ran = observer.stop();
        ran.assert_lossless();
        let received = ran.frames("seen.pcap");
        assert_eq!(received.len(), frames.len(), "{source}");
        for (number, (received, sent)) in received.iter().zip(&frames).enumerate() {
            assert_eq!(received, sent, "{source}: frame {number}");
        }
    }
}

#[test]
fn multicast_copies_for_this_host_are_not_observed() {
    let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
    let group = Ipv4Addr::new(239, 1, 1, 1);
    pair.server.run_ip(&format!("route add 239.0.0.0/8 dev {SERVER_DEVICE}"));
    let observed = Observer::start(&pair.server, &format!("rx {SERVER_DEVICE} | pcap seen.pcap"));
    let sent = Observer::start(&pair.server, &format!("tx {SERVER_DEVICE} | pcap sent.pcap"));
    let member = pair.server.run_in_network_namespace(|| {
        let socket = UdpSocket::bind(("0.0.0.0", 5300)).expect("a port");
        let here = SERVER.parse().expect("an address");
        socket.join_multicast_v4(&group, &here).expect("it joins");
        socket.send_to(b"from this host", (group, 5300)).expect("it sends");
        socket
    });
    member.set_read_timeout(Some(WAIT_TIMEOUT)).expect("a time");
    let mut bytes = [0; 64];
    let length = member.recv(&mut bytes).expect("the copy for this host");
    assert_eq!(&bytes[..length], b"from this host");
    pair.client.run_in_network_namespace(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
        socket.send_to(b"from another", (SERVER, 5300)).expect("it sends");
    });
    member.recv(&mut bytes).expect("the datagram of another host");
    let udp = |frames: Vec<Vec<u8>>| -> Vec<Vec<u8>> {
        let is_udp = |frame: &Vec<u8>| frame[12..14] == [8, 0] && frame[23] == 17;
        assert!(frames.iter().all(|frame| frame[14] >> 4 == 4 || frame[12..14] != [8, 0]));
        assert!(frames.iter().all(|frame| frame[0] != 0x45), "no frame begins with a packet");
        frames.into_iter().filter(is_udp).collect()
    };
    let observed = udp(observed.stop().frames("seen.pcap"));
    assert_eq!(observed.len(), 1, "{observed:x?}");
    assert!(observed[0].ends_with(b"from another"));
    let sent = udp(sent.stop().frames("sent.pcap"));
    assert_eq!(sent.len(), 1, "{sent:x?}");
    assert!(sent[0].ends_with(b"from this host"));
}
