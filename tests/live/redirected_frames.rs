//! Tests of requests that redirect frames away from the host: the host does not receive the frames,
//! the ledger accounts for each of them, and existing programs stay attached. [FEATURES G1, G3, G5,
//! G7, V17; CONTRACT 2, 3]

use crate::frame_sending::{capture_length, send_frames};
use crate::numbered_frames::{frame_numbers, numbered_frames};
use crate::observer::{Observer, has_xdp_program};
use std::net::UdpSocket;
use sys::bpf::{ChainPosition, Link, LinkTarget, Program, ProgramKind, TrafficDirection, XdpMode};
use sys::net::RouteSocket;
use testkit::net::{
    CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER, SERVER_DEVICE, device_counters,
    wait_until,
};
use testkit::streamline_program;
use testkit::{Frame, need};

const FRAME_SIZE: usize = 100;

/// Returns a veth pair that carries only the test's traffic, or `None` if XDP programs cannot be
/// attached.
fn quiet_veth_pair(cable: DevicePairSettings) -> Option<NamespacePair> {
    need::require_bpf()?;
    let pair = NamespacePair::new(cable)?;
    let probe = pair.server.run_in_network_namespace(sys::probe::probe_xdp_socket);
    probe.or_else(|why| need::report_skip(&why.to_string()).ok_or(why)).ok()?;
    Some(pair)
}

fn quiet_pair() -> Option<NamespacePair> {
    quiet_veth_pair(DevicePairSettings { addresses: false, ..DevicePairSettings::default() })
}

fn start_redirecting(pair: &NamespacePair, line: &str) -> Observer {
    Observer::start_redirecting(&pair.server, SERVER_DEVICE, line)
}

/// Returns the number of frames that the server's device received or dropped.
fn frames_received(pair: &NamespacePair) -> u64 {
    let counters = device_counters(&pair.server, SERVER_DEVICE).expect("the device is there");
    counters.received + counters.receive_dropped
}

/// Redirects frames in groups of `bunch` frames. Sends each group after the request has written the
/// previous one. Returns the result of the request.
fn redirect_in_groups(
    pair: &NamespacePair,
    line: &str,
    frames: &[Vec<u8>],
    bunch: usize,
) -> crate::observer::ObserverResult {
    let mut redirecting = start_redirecting(pair, &format!("{line} | pcap -"));
    let mut written = capture_length(&[]);
    for bunch in frames.chunks(bunch) {
        send_frames(&pair.client, CLIENT_DEVICE, bunch);
        written += capture_length(bunch) - capture_length(&[]);
        redirecting.wait_until_file_has_length("out", written);
    }
    redirecting.stop()
}

#[test]
fn g1_redirected_frames_do_not_reach_the_host() {
    let Some(pair) = quiet_pair() else { return };
    let frames = numbered_frames(0..20_000, FRAME_SIZE);
    let host = Observer::start(&pair.server, &format!("rx {SERVER_DEVICE} | pcap seen.pcap"));
    let ran = redirect_in_groups(&pair, &format!("rx {SERVER_DEVICE} take"), &frames, 500);
    ran.assert_lossless();
    assert!(ran.frames("out") == frames, "each as it was sent, in order");
    let source = ran.source();
    assert_eq!((source.observed, source.given), (Some(20_000), 20_000), "{source:?}");
    assert!(!has_xdp_program(&pair.server, SERVER_DEVICE), "nothing is left there");
    // The host receives later frames again.
    let after = numbered_frames(20_000..20_010, FRAME_SIZE);
    send_frames(&pair.client, CLIENT_DEVICE, &after);
    wait_until("they have come", || frames_received(&pair) == 20_010);
    let host = host.stop();
    host.assert_lossless();
    assert!(host.frames("seen.pcap") == after, "of the others it saw none");
}

#[test]
fn g1_frames_have_their_receive_time() {
    let Some(pair) = quiet_pair() else { return };
    let before = sys::clock::realtime_ns();
    let ran = redirect_in_groups(
        &pair,
        &format!("rx {SERVER_DEVICE} take"),
        &numbered_frames(0..50, FRAME_SIZE),
        10,
    );
    let after = sys::clock::realtime_ns();
    let file = ran.file("out");
    let packets = wire::capture::packets(&file).map(|packet| packet.expect("a record").0);
    let times: Vec<u64> = packets.map(|packet| packet.time_ns).collect();
    assert!(times.is_sorted() && times.len() == 50, "{times:?}");
    // The timestamps of a capture have microseconds.
    let all = before - 1_000..=after;
    assert!(times.iter().all(|time| all.contains(time)), "{times:?} in {all:?}");
}

#[test]
fn g1_frames_without_ring_space_are_counted_as_lost() {
    let Some(pair) = quiet_pair() else { return };
    let line = format!("rx {SERVER_DEVICE} take ring=512K | pcap seen.pcap");
    let observer = start_redirecting(&pair, &line);
    observer.signal("STOP");
    send_frames(&pair.client, CLIENT_DEVICE, &numbered_frames(0..20_000, FRAME_SIZE));
    wait_until("all have come", || frames_received(&pair) >= 20_000);
    observer.signal("CONT");
    let ran = observer.stop();
    ran.assert_balanced();
    let source = ran.source();
    assert_eq!(source.observed, Some(20_000), "{source:?}");
    assert_eq!(source.losses_at_location("ring"), Some(20_000 - source.given), "{source:?}");
    // 128 frames are lent at a time.
    assert!((1..20_000).contains(&source.given), "{source:?}");
    let numbers = frame_numbers(&ran.frames("seen.pcap"));
    assert_eq!(numbers, (0..source.given).collect::<Vec<_>>(), "those that came first");
}

#[test]
fn g3_each_queue_has_its_own_ring() {
    let Some(pair) =
        quiet_veth_pair(DevicePairSettings { queues: 4, ..DevicePairSettings::default() })
    else {
        return;
    };
    let Some(_) = need::require_command("ethtool") else { return };
    let listing = pair.server.run_ip(&format!("-o link show dev {SERVER_DEVICE}"));
    let mac = listing.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next());
    let mac = mac.expect("an address");
    // The server does not answer ARP requests.
    pair.client
        .run_ip(&format!("neigh replace {SERVER} lladdr {mac} dev {CLIENT_DEVICE} nud permanent"));
    let line = format!("rx {SERVER_DEVICE} take | bpf \"udp port 9\" | pcap -");
    let mut redirecting = start_redirecting(&pair, &line);
    let mut written = capture_length(&[]);
    let payload = [7; 64];
    for _ in 0..40 {
        // Each socket has its own port, so the frames are spread over the queues.
        let socket = || UdpSocket::bind("0.0.0.0:0").expect("a port");
        pair.client.run_in_network_namespace(|| {
            for _ in 0..50 {
                socket().send_to(&payload, (SERVER, 9)).expect("it is sent");
            }
        });
        written += 50 * (16 + 42 + payload.len() as u64);
        redirecting.wait_until_file_has_length("out", written);
    }
    let statistics = pair.server.run_program("ethtool", &format!("-S {SERVER_DEVICE}"));
    let ran = redirecting.stop();
    ran.assert_lossless();
    assert_eq!(ran.frames("out").len(), 2_000);
    let redirected = |line: &&str| line.contains("xdp_redirect") && !line.contains("errors");
    let busy = statistics.lines().filter(redirected).filter(|line| !line.ends_with(": 0")).count();
    assert!(busy > 1, "they came by several queues: {statistics}");
}

#[test]
fn g1_frames_longer_than_a_buffer_arrive_whole() {
    let Some(pair) = quiet_veth_pair(DevicePairSettings { mtu: 9000, addresses: false, queues: 1 })
    else {
        return;
    };
    let payload = |length: usize| (0..length).map(|at| (at * 7) as u8).collect::<Vec<u8>>();
    let lengths = [46, 3_826, 3_827, 4_082, 7_700, 8_986, 60, 9_000, 1_500];
    let frame = |length: &usize| Frame::ethernet().link_payload(0x88b5, &payload(*length));
    let frames: Vec<Vec<u8>> = lengths.iter().cycle().take(900).map(frame).collect();
    let ran = redirect_in_groups(&pair, &format!("rx {SERVER_DEVICE} take"), &frames, 9);
    ran.assert_lossless();
    assert!(ran.frames("out") == frames);
}

/// A Python program that sends one long datagram, which the device must split into segments.
const SEGMENTED_SENDER_SCRIPT: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(17, 103, 1400)
s.sendto(bytes(i * 7 % 256 for i in range(60000)), (sys.argv[1], 9))
";

#[test]
fn g1_unsegmented_frames_arrive_complete() {
    let Some(pair) = quiet_veth_pair(DevicePairSettings::default()) else { return };
    let Some(python) = need::require_command("python3") else { return };
    let listing = pair.server.run_ip(&format!("-o link show dev {SERVER_DEVICE}"));
    let mac = listing.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next());
    let mac = mac.expect("an address");
    pair.client
        .run_ip(&format!("neigh replace {SERVER} lladdr {mac} dev {CLIENT_DEVICE} nud permanent"));
    let observer =
        start_redirecting(&pair, &format!("rx {SERVER_DEVICE} take | bpf \"udp port 9\" | pcap -"));
    let mut observer = observer;
    let sent = pair.client.command(python).args(["-c", SEGMENTED_SENDER_SCRIPT, SERVER]).status();
    if !sent.expect("python").success() {
        need::report_skip::<()>("needs a kernel that cuts datagrams (UDP_SEGMENT)");
        return;
    }
    observer.wait_until_file_has_length("out", 24 + 60_000);
    let ran = observer.stop();
    ran.assert_lossless();
    let frames = ran.frames("out");
    let all: Vec<u8> = frames.iter().flat_map(|frame| frame[42..].to_vec()).collect();
    let expected: Vec<u8> = (0..60_000_u32).map(|i| (i * 7 % 256) as u8).collect();
    println!(
        "in {} frames, the longest of {:?} bytes",
        frames.len(),
        frames.iter().map(Vec::len).max()
    );
    assert!(all == expected, "{} bytes in {} frames", all.len(), frames.len());
}

/// Code of a program that pushes a VLAN tag: `bpf_skb_vlan_push(skb, htons(ETH_P_8021Q), 7); return
/// TCX_NEXT`.
const PUSH_TAG_CODE: [[u8; 8]; 5] = [
    [0xb7, 2, 0, 0, 0x81, 0, 0, 0],
    [0xb7, 3, 0, 0, 7, 0, 0, 0],
    [0x85, 0, 0, 0, 18, 0, 0, 0],
    [0xb7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
    [0x95, 0, 0, 0, 0, 0, 0, 0],
];

#[test]
fn g2_tags_are_inline_wherever_the_driver_puts_them() {
    let Some(pair) = quiet_veth_pair(DevicePairSettings { mtu: 9000, addresses: false, queues: 1 })
    else {
        return;
    };
    let inside = crate::frames::tagged_frames();
    let ran = redirect_in_groups(&pair, &format!("rx {SERVER_DEVICE} take"), &inside, 10);
    ran.assert_lossless();
    assert!(ran.frames("out") == inside, "{:x?}", ran.frames("out"));
    if sys::bpf::find_kernel_function("bpf_xdp_metadata_rx_vlan_tag").is_none() {
        need::report_skip::<()>("needs drivers that tell of tags (Linux 6.8)");
        return;
    }
    let _push = pair.client.run_in_network_namespace(|| {
        let index = RouteSocket::open().expect("root may ask").interface_by_name(CLIENT_DEVICE);
        let index = index.expect("it is there").index;
        let program =
            Program::load(ProgramKind::Tc, "push", &PUSH_TAG_CODE.concat()).expect("it is right");
        Link::attach_tcx(&program, index, TrafficDirection::Egress, ChainPosition::Head, None)
            .expect("it is there")
    });
    // One of the frames is longer than a buffer.
    let plain = [
        numbered_frames(0..5, FRAME_SIZE),
        numbered_frames(5..7, 8_000),
        numbered_frames(7..9, 3_840),
    ]
    .concat();
    let tagged = |frame: &Vec<u8>| [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
    let expected: Vec<Vec<u8>> = plain.iter().map(tagged).collect();
    let mut observer = start_redirecting(&pair, &format!("rx {SERVER_DEVICE} take | pcap -"));
    send_frames(&pair.client, CLIENT_DEVICE, &plain);
    observer.wait_until_file_has_length("out", capture_length(&expected));
    let ran = observer.stop();
    ran.assert_lossless();
    let frames = ran.frames("out");
    let lengths: Vec<usize> = frames.iter().map(Vec::len).collect();
    assert!(frames == expected, "{lengths:?} {:x?}", &frames[0][..20]);
}

/// Code of a program that passes every frame: `return XDP_PASS`.
const PASS_CODE: [u8; 16] = [0xb7, 0, 0, 0, 2, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];

fn device_index(pair: &NamespacePair) -> u32 {
    pair.server.run_in_network_namespace(|| {
        let links = RouteSocket::open().expect("root may ask");
        links.interface_by_name(SERVER_DEVICE).expect("it is there").index
    })
}

#[test]
fn v17_existing_xdp_program_is_kept_and_named() {
    let Some(pair) = quiet_pair() else { return };
    let index = device_index(&pair);
    let link = pair.server.run_in_network_namespace(|| {
        let foreign = Program::load(ProgramKind::Xdp, "somebody_else", &PASS_CODE).unwrap();
        Link::attach_xdp(&foreign, index, XdpMode::Native).unwrap()
    });
    let line = format!("rx {SERVER_DEVICE} take | count");
    let output = pair.server.command(streamline_program()).args(["run", &line]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for word in
        ["cannot take from server0", "`somebody_else`", "already attached", "without `take`"]
    {
        assert!(stderr.contains(word), "{word} is not said: {stderr}");
    }
    assert_eq!(link.info().unwrap().target, LinkTarget::Xdp(index), "it is where it was");
    // Another path can still observe the frames.
    let watch = Observer::start(&pair.server, &format!("rx {SERVER_DEVICE} | count"));
    send_frames(&pair.client, CLIENT_DEVICE, &numbered_frames(0..3, FRAME_SIZE));
    wait_until("they have come", || frames_received(&pair) == 3);
    let ran = watch.stop();
    ran.assert_lossless();
    assert_eq!(ran.source().given, 3);
}

#[test]
fn g7_killed_receiver_leaves_no_program_attached() {
    let Some(pair) = quiet_pair() else { return };
    for _ in 0..3 {
        let mut observer = start_redirecting(&pair, &format!("rx {SERVER_DEVICE} take | count"));
        send_frames(&pair.client, CLIENT_DEVICE, &numbered_frames(0..10, FRAME_SIZE));
        observer.signal("KILL");
        wait_until("it is gone", || !observer.is_running());
        wait_until("nothing is attached", || !has_xdp_program(&pair.server, SERVER_DEVICE));
    }
    let host = Observer::start(&pair.server, &format!("rx {SERVER_DEVICE} | pcap -"));
    let frames = numbered_frames(0..10, FRAME_SIZE);
    send_frames(&pair.client, CLIENT_DEVICE, &frames);
    let mut host = host;
    host.wait_until_file_has_length("out", capture_length(&frames));
    let ran = host.stop();
    ran.assert_lossless();
    assert!(ran.frames("out") == frames);
}

#[test]
fn g7_default_route_interface_needs_force() {
    let Some(pair) = quiet_veth_pair(DevicePairSettings::default()) else { return };
    pair.server.run_ip(&format!("route add default dev {SERVER_DEVICE}"));
    let line = format!("rx {SERVER_DEVICE} take | count");
    let output = pair.server.command(streamline_program()).args(["run", &line]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("default route") && stderr.contains("--force"), "{stderr}");
    assert!(!has_xdp_program(&pair.server, SERVER_DEVICE));
    start_redirecting(&pair, &format!("--force {line}")).stop().assert_balanced();
}

#[test]
fn refused_interfaces_are_reported() {
    let Some(pair) = quiet_pair() else { return };
    let refused = |line: &str| {
        let output =
            pair.server.command(streamline_program()).args(["run", line]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let all = refused("rx how=take | count");
    assert!(all.contains("rx eth0 take"), "{all}");
    let both = refused(&format!("rx {SERVER_DEVICE} take both=yes | count"));
    assert!(both.contains("frames that the host sends cannot be taken"), "{both}");
    let none = refused("rx eth7 take | count");
    assert!(none.contains("there are lo, server0"), "{none}");
}

#[test]
fn vanished_interface_ends_the_path_with_a_balanced_ledger() {
    let Some(pair) = quiet_pair() else { return };
    let frames = numbered_frames(0..10, FRAME_SIZE);
    let mut observer = start_redirecting(&pair, &format!("rx {SERVER_DEVICE} take | pcap -"));
    send_frames(&pair.client, CLIENT_DEVICE, &frames);
    observer.wait_until_file_has_length("out", capture_length(&frames));
    pair.client.run_ip(&format!("link delete dev {CLIENT_DEVICE}"));
    let ran = observer.wait();
    assert_eq!(ran.status, Some(1), "{}", ran.err);
    assert!(ran.err.contains("the interface was removed after 10 frames"), "{}", ran.err);
    assert_eq!(ran.ledger["balanced"], true, "{}", ran.ledger);
}

/// Returns a counter from the report of the sink `tx`, or `None` if the report does not contain it.
fn tx_counter(ran: &crate::observer::ObserverResult, name: &str) -> Option<u64> {
    let filters = ran.ledger["filters"].as_array()?;
    let tx = filters.iter().find(|filter| filter["name"] == "tx")?;
    let rows = tx["report"].as_array()?;
    rows.iter().find(|row| row["what"] == name)?["value"].as_u64()
}

/// Adds a second veth pair between the same namespaces, from `back0` at the server to `back1` at
/// the client.
fn add_return_link(pair: &NamespacePair) {
    let client = pair.client.name();
    pair.server.run_ip(&format!("link add back0 type veth peer name back1 netns {client}"));
    for (space, device) in [(&pair.server, "back0"), (&pair.client, "back1")] {
        space.run_ip(&format!("link set dev {device} addrgenmode none arp off up"));
    }
    pair.server.wait_until_up("back0");
}

/// Sends frames over one veth pair while a request forwards them to a second veth pair. Returns the
/// request's result and the forwarded frames.
fn run_forwarding(
    pair: &NamespacePair,
    line: &str,
    back: bool,
    frames: &[Vec<u8>],
) -> (crate::observer::ObserverResult, Vec<Vec<u8>>) {
    let (near, taken, far) = match back {
        false => (CLIENT_DEVICE, SERVER_DEVICE, "back1"),
        true => ("back1", "back0", CLIENT_DEVICE),
    };
    let mut ear = Observer::start(&pair.client, &format!("rx {far} ring=16M | pcap -"));
    let middle = Observer::start_redirecting(&pair.server, taken, line);
    let mut written = capture_length(&[]);
    for bunch in frames.chunks(250) {
        send_frames(&pair.client, near, bunch);
        written += capture_length(bunch) - capture_length(&[]);
        ear.wait_until_file_has_length("out", written);
    }
    let ran = middle.stop();
    let ear = ear.stop();
    ear.assert_lossless();
    (ran, ear.frames("out"))
}

#[test]
fn g6_descriptors_move_between_interfaces_without_a_copy() {
    let Some(pair) = quiet_pair() else { return };
    add_return_link(&pair);
    let frames = numbered_frames(0..5_000, FRAME_SIZE);
    for (line, way) in [
        (format!("rx {SERVER_DEVICE} take | tx back0 qdisc=no"), false),
        (format!("rx back0 take | tx {SERVER_DEVICE} qdisc=no"), true),
    ] {
        let (ran, arrived) = run_forwarding(&pair, &line, way, &frames);
        ran.assert_lossless();
        assert!(arrived == frames, "each once, in order, as it was: {}", arrived.len());
        let counters = ["moved by AF_XDP", "copied to AF_XDP"].map(|name| tx_counter(&ran, name));
        assert_eq!(counters, [Some(5_000), Some(0)], "{}", ran.ledger);
    }
}

#[test]
fn g6_changed_or_joined_frames_are_copied() {
    let Some(pair) = quiet_veth_pair(DevicePairSettings { mtu: 9000, addresses: false, queues: 1 })
    else {
        return;
    };
    add_return_link(&pair);
    pair.server.run_ip("link set dev back0 mtu 9000");
    pair.client.run_ip("link set dev back1 mtu 9000");
    let frames = numbered_frames(0..500, FRAME_SIZE);
    let line = format!("rx {SERVER_DEVICE} take | blank from=50 length=10 | tx back0 qdisc=no");
    let (ran, arrived) = run_forwarding(&pair, &line, false, &frames);
    ran.assert_lossless();
    assert!(arrived.iter().zip(&frames).all(|(one, other)| one[..50] == other[..50]));
    assert!(arrived.iter().all(|frame| frame[50..60] == [0; 10]) && arrived.len() == 500);
    assert_eq!(tx_counter(&ran, "moved by AF_XDP"), Some(0), "{}", ran.ledger);
    let payload =
        |number: usize| vec![number as u8; if number.is_multiple_of(3) { 8_000 } else { 50 }];
    let long = |number| Frame::ethernet().link_payload(0x88b5, &payload(number));
    let frames: Vec<Vec<u8>> = (0..300).map(long).collect();
    let line = format!("rx {SERVER_DEVICE} take | tx back0 qdisc=no");
    let (ran, arrived) = run_forwarding(&pair, &line, false, &frames);
    ran.assert_lossless();
    assert!(arrived == frames, "{}", arrived.len());
    let counters = ["moved by AF_XDP", "copied to AF_XDP"].map(|name| tx_counter(&ran, name));
    assert_eq!(counters, [Some(200), Some(100)], "{}", ran.ledger);
}
