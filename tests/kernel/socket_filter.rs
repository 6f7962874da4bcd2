//! Tests of packet socket filters with the real kernel as judge: the socket filter derived from
//! `bpf` passes exactly the frames that `bpf` accepts.
//!
//! For each expression, a socket is open at each end of a veth pair while the same frames pass
//! once. At the sending end VLAN tags are inline; at the receiving end the kernel has removed the
//! outermost tag. Another socket, without a filter, was opened first and is therefore served last
//! by the kernel: when it has counted all frames, all sockets have.

use crate::corpus::boundaries::{boundary_frames, ethernet_bytes};
use crate::corpus::generated_frames;
use ebpf::classic::{ClassicMetadata, ClassicProgram};
use filter::Arguments;
use filter::general::bpf::{self, BPF, Direction};
use filter::testing::parse_arguments;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use sys::packet::{
    ClassicBpfInstruction, PacketRing, PacketRingParameters, PacketSender, PacketSocket, QdiscMode,
};
use testkit::net::{
    CLIENT_DEVICE, DevicePairSettings, Namespace, NamespacePair, SERVER_DEVICE, wait_until,
};
use testkit::{Frame, Random, need};

const EXPRESSIONS: &[&str] = &[
    "",
    "ip",
    "ip6",
    "arp or udp",
    "tcp port 80",
    "tcp dst port 80 or udp port 53",
    "not tcp",
    "vlan",
    "not vlan",
    "vlan 5",
    "vlan 5 and tcp",
    "vlan and vlan",
    "vlan and vlan 5 and ip",
    "not vlan and ip or vlan 0",
    "vlan and (tcp or udp)",
    "ether proto 0x8100",
    "ether proto 0x88a8",
    "ether[12:4] & 0xffff0fff = 0x81000005",
    "ether[14:4] > 7 and ether[15:2] != 0",
    "ether[10:4] & 0xffff = 0x8100 or ether[13:2] = 5",
    "ether[ether[5] & 15:4] & 7 = 1 or ether[(ether[0] & 3) + 11:2] & 3 = 2",
    "ether host 02:00:00:00:00:01",
    "greater 100",
    "less 100",
    "len % 7 = 3",
    "1 << (ether[5] & 63) = 8 or len >> (ether[5] & 63) = 0",
    "ip[8] = 64 and len > 100",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420",
    "ip6 and ip6[6] = 17",
    "icmp or icmp6",
    "ether multicast",
];

/// Returns a filter expression whose jump offsets exceed the 8-bit fields of classic BPF.
fn expression_with_long_jumps() -> String {
    let hosts: Vec<String> = (0..60).map(|n| format!("host 192.0.2.{n}")).collect();
    format!("{} or tcp port 80", hosts.join(" or "))
}

/// Parameters of a packet ring of minimum size, for sockets that only count: the kernel counts a
/// frame even if it does not fit in the ring.
const SMALL_RING: PacketRingParameters =
    PacketRingParameters { segment: 4096, segments: 2, retire_ms: 1, reserve: 0 };

fn device_index(space: &Namespace, device: &str) -> u32 {
    let file = format!("/sys/class/net/{device}/ifindex");
    space.run_program("cat", &file).trim().parse().expect("a number")
}

/// Opens a packet socket with the given filter on a device.
fn open_filtered_packet_ring(
    filter: &ClassicProgram,
    space: &Namespace,
    device: &str,
) -> PacketRing {
    let instructions: Vec<ClassicBpfInstruction> =
        filter.instructions().iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect();
    let socket = space.run_in_network_namespace(PacketSocket::open).expect("a packet socket");
    if let Err(error) = socket.attach_filter(&instructions) {
        panic!("{error}: {} instructions\n{filter}", instructions.len());
    }
    let ring = socket.into_ring(SMALL_RING).expect("a small ring");
    ring.bind(device_index(space, device)).expect("the device is there");
    ring
}

fn frames_counted(ring: &PacketRing) -> u64 {
    ring.statistics().expect("they can be read").packets
}

fn send_frames(space: &Namespace, device: &str, frames: &[Vec<u8>]) {
    let index = device_index(space, device);
    let mut sender = space
        .run_in_network_namespace(|| PacketSender::open(index, QdiscMode::Through))
        .expect("a way in");
    for frame in frames {
        wait_until("there is room", || sender.send(&[frame]).frames == 1);
    }
}

/// Returns the frame with the given VLAN tags inline.
fn insert_vlan_tags(frame: &[u8], tags: &[(u16, u16)]) -> Vec<u8> {
    let bytes =
        |(protocol, control): &(u16, u16)| [protocol.to_be_bytes(), control.to_be_bytes()].concat();
    [&frame[..12], &tags.iter().flat_map(bytes).collect::<Vec<_>>(), &frame[12..]].concat()
}

/// Returns frames that a veth pair can carry: generated frames, some of them truncated within a
/// header, and each frame also with VLAN tags.
fn socket_filter_test_frames() -> Vec<Vec<u8>> {
    let mut random = Random::with_replayable_seed();
    let mut plain = ethernet_bytes(generated_frames(1));
    plain.extend(
        testkit::mixed_traffic(random.next_u64(), 20).frames.into_iter().map(|(_, frame)| frame),
    );
    plain.extend(boundary_frames());
    // The kernel drops a tagged frame without a type.
    plain.retain(|frame| (24..1400).contains(&frame.len()));
    random.shuffle(&mut plain);
    plain.truncate(500);
    let mut frames = plain.clone();
    for frame in plain {
        let number = *random.pick(&[0, 5, 5, 6, 0x6005, 0x2000, 0x1005, 0xffff]);
        let tags: &[(u16, u16)] = match random.next_u64() % 4 {
            0 => &[(0x88a8, number), (0x8100, 5)],
            1 => &[(0x88a8, number)],
            2 => &[(0x8100, number), (0x8100, 5)],
            _ => &[(0x8100, number)],
        };
        frames.push(insert_vlan_tags(&frame, tags));
    }
    frames
}

#[test]
fn h9_socket_filter_passes_the_frames_bpf_accepts() {
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let ends = [
        (&pair.client, CLIENT_DEVICE, Direction::Sent, Direction::Received),
        (&pair.server, SERVER_DEVICE, Direction::Received, Direction::Sent),
    ];
    let filter = |way, asked| bpf::socket_filter(way, asked).0;
    let all = ends.map(|(space, device, way, _)| {
        open_filtered_packet_ring(&filter(way, None), space, device)
    });
    let none = ends.map(|(space, device, _, other)| {
        open_filtered_packet_ring(&filter(other, None), space, device)
    });
    let texts: Vec<String> =
        EXPRESSIONS.iter().map(ToString::to_string).chain([expression_with_long_jumps()]).collect();
    let asked: Vec<Arguments> =
        texts.iter().map(|text| parse_arguments(&BPF, &[text]).expect("an expression")).collect();
    let sockets = |asked| {
        ends.map(|(space, device, way, _)| {
            open_filtered_packet_ring(&filter(way, Some(asked)), space, device)
        })
    };
    let sockets: Vec<[PacketRing; 2]> = asked.iter().map(sockets).collect();
    let frames = socket_filter_test_frames();
    send_frames(&pair.client, CLIENT_DEVICE, &frames);
    for ring in &all {
        wait_until("all frames have passed", || frames_counted(ring) == frames.len() as u64);
    }
    assert_eq!(none.each_ref().map(frames_counted), [0, 0], "the other way round");
    let mut report = String::new();
    let (mut some, mut wrong) = (0, 0);
    for ((text, asked), rings) in texts.iter().zip(&asked).zip(&sockets) {
        let program = bpf::compile_program(asked, wire::LinkType::ETHERNET.0).expect("a program");
        let accepts =
            |frame: &&Vec<u8>| program.run(frame, frame.len() as u32, &ClassicMetadata::EMPTY) > 0;
        let wanted = frames.iter().filter(accepts).count() as u64;
        let found = rings.each_ref().map(frames_counted);
        some += u32::from(wanted > 0 && wanted < frames.len() as u64);
        wrong += u32::from(found != [wanted, wanted]);
        let _ = writeln!(report, "{text:?}: {wanted} of {}, the kernel {found:?}", frames.len());
    }
    print!("{report}");
    assert_eq!(wrong, 0, "sent and received:\n{report}");
    assert!(some * 10 > 8 * texts.len() as u32, "most accept some and refuse others:\n{report}");
}

#[test]
fn loopback_frames_arrive_once_at_a_packet_socket() {
    let Some(space) = Namespace::new() else { return };
    let udp = parse_arguments(&BPF, &["udp"]).expect("an expression");
    let rings = [Direction::Received, Direction::Sent, Direction::Both].map(|way| {
        [None, Some(&udp)]
            .map(|asked| open_filtered_packet_ring(&bpf::socket_filter(way, asked).0, &space, "lo"))
    });
    let udp = Frame::ethernet().ipv4("127.0.0.1", "127.0.0.1").udp(1, 2, b"to myself");
    let other = Frame::ethernet().link_payload(0x88b5, &[0; 60]);
    let frames: Vec<Vec<u8>> = (0..20).flat_map(|_| [udp.clone(), other.clone()]).collect();
    send_frames(&space, "lo", &frames);
    let found = || rings.each_ref().map(|both| both.each_ref().map(frames_counted));
    wait_until("each has come once", || found() == [[40, 20]; 3]);
    send_frames(&space, "lo", &frames);
    wait_until("and once again", || found() == [[80, 40]; 3]);
}

/// A script that creates a device without Ethernet headers and sends packets from it, one for each
/// line of hexadecimal digits on its input. The device disappears when the process exits.
const TUNNEL_SCRIPT: &str = "
import fcntl, os, struct, sys
tunnel = os.open('/dev/net/tun', os.O_RDWR)
fcntl.ioctl(tunnel, 0x400454ca, struct.pack('16sH22x', b'over0', 0x1001))
print('there', flush=True)
for line in sys.stdin:
    os.write(tunnel, bytes.fromhex(line))
";

#[test]
fn raw_ip_device_gets_a_program_without_link_header() {
    let Some(space) = Namespace::new() else { return };
    let Some(python) = need::require_command("python3") else { return };
    let Some(_) = need::require_file("/dev/net/tun") else { return };
    let mut command = space.command(python);
    let command = command.args(["-c", TUNNEL_SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = command.spawn().expect("python runs");
    let mut there = String::new();
    let stdout = holder.stdout.take().expect("it is ours");
    BufReader::new(stdout).read_line(&mut there).expect("it says something");
    assert_eq!(there, "there\n");
    space.run_ip("link set dev over0 up addrgenmode none");
    let asked = |text| parse_arguments(&BPF, &[text]).expect("an expression");
    let [udp, ethernet] = [asked("udp port 53"), asked("ether host 1:2:3:4:5:6")];
    let rings = [Direction::Sent, Direction::Received].map(|way| {
        [None, Some(&udp), Some(&ethernet)].map(|asked| {
            open_filtered_packet_ring(&bpf::socket_filter(way, asked).0, &space, "over0")
        })
    });
    let packet = |port| Frame::raw().ipv4("10.1.0.1", "10.1.0.2").udp(9, port, b"");
    let packets: Vec<Vec<u8>> = [53, 54, 55, 53].map(packet).into();
    send_frames(&space, "over0", &packets);
    let mut tunnel = holder.stdin.take().expect("it is ours");
    for packet in &packets[..3] {
        let hex: String = packet.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(tunnel, "{hex}").expect("it listens");
    }
    let found = || rings.each_ref().map(|all| all.each_ref().map(frames_counted));
    wait_until("all have passed", || found().map(|[all, ..]| all) == [4, 3]);
    assert_eq!(found(), [[4, 2, 0], [3, 1, 0]]);
    drop(tunnel);
    assert!(holder.wait().expect("a child").success());
}
