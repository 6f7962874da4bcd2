//! Tests of captures on the device `any`, in which a cooked header replaces the link-layer header
//! of each packet.

use super::overload::{parse_tcpdump_counts, signal_program, wait_for_process_state};
use super::*;

/// Number of packets of each kind that [`TRAFFIC_SCRIPT`] sends.
const PACKETS_PER_KIND: usize = 20;
/// Name of a tun interface, which has no Ethernet headers.
pub(super) const TUN_DEVICE: &str = "tun0";

/// Python program that sends packets of many kinds in the namespace of the server: over loopback,
/// to and from another host, to a multicast group, and to and from the tun interface. Arguments:
/// the number of packets of each kind, the device, and the tun device.
const TRAFFIC_SCRIPT: &str = r#"
import fcntl, os, socket, struct, sys
count, device, tun = int(sys.argv[1]), sys.argv[2], sys.argv[3]
packet = bytes.fromhex("4500001c0001000040110000" "0a4d0001" "0a4d0002" "14b414b400080000")
def open_tun():
    file = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(file, 0x400454ca, struct.pack("16sH", tun.encode(), 0x1001))
    return file
tunnel = open_tun()
# The kernel drops packets until it has processed the change of state.
while open(f"/sys/class/net/{tun}/operstate").read().strip() == "down":
    pass
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(count):
    sender.sendto(b"l" * number, ("127.0.0.1", 5300))
    sender.sendto(b"z" * number * 60, ("10.77.0.1", 5300))
    sender.sendto(b"o" * number, ("10.99.0.9", 5300))
    os.write(tunnel, packet)
sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("10.77.0.2"))
member = socket.inet_aton("239.1.1.1") + socket.inet_aton("10.77.0.2")
sender.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
sender.sendto(b"to a group", ("239.1.1.1", 5300))
"#;

/// Python program that sends frames from the client to the server, to the broadcast address, to a
/// multicast group and to another host: with a VLAN tag, without a tag, and with a length in place
/// of the EtherType. Arguments: the device, and the MAC address of the server.
const FRAMES_SCRIPT: &str = r#"
import socket, sys
packet = bytes.fromhex("4500001c0001000040110000" "0a4d0001" "0a4d0002" "14b414b400080000")
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind((sys.argv[1], 0x8100))
server = bytes.fromhex(sys.argv[2].replace(":", ""))
for target in server, b"\xff" * 6, bytes.fromhex("01005e000005"), bytes.fromhex("021122334455"):
    for between in "8100 2007 0800", "0800":
        raw.send(target + bytes.fromhex("020000000001" + between.replace(" ", "")) + packet)
    raw.send(target + bytes.fromhex("020000000001" "0026 4242 03".replace(" ", "")) + bytes(35))
"#;

/// Numbers of frames with and without a UDP packet that [`FRAMES`] sends.
const FRAMES_SENT: [usize; 2] = [8, 4];

/// Adds a tun interface to the namespace of the server.
pub(super) fn add_tun_device(pair: &NamespacePair) {
    pair.server.run_ip(&format!("tuntap add dev {TUN_DEVICE} mode tun"));
    pair.server.run_ip(&format!("addr add 10.99.0.2/24 dev {TUN_DEVICE}"));
    pair.server.run_ip(&format!("link set {TUN_DEVICE} up"));
}

fn run_python(space: &testkit::net::Namespace, script: &str, words: &[&str]) {
    let output = space.command("python3").args(["-c", script]).args(words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Sends the packets of [`TRAFFIC_SCRIPT`] and [`FRAMES`].
fn send_packets(pair: &NamespacePair) {
    let count = PACKETS_PER_KIND.to_string();
    run_python(&pair.server, TRAFFIC_SCRIPT, &[&count, SERVER_DEVICE, TUN_DEVICE]);
    let path = format!("/sys/class/net/{SERVER_DEVICE}/address");
    let address = pair.server.run_program("cat", &path);
    run_python(&pair.client, FRAMES_SCRIPT, &[CLIENT_DEVICE, address.trim()]);
}

/// Captures on `any` twice, through libpcap and from the rings. Returns both lists of packets, and
/// the standard error of the second program.
fn capture_any_from_libpcap_and_rings(
    words: &[&str],
    count: usize,
) -> Option<([Vec<Packet>; 2], String)> {
    need::require_command("python3")?;
    capture_on_device_with_libpcap_and_rings("any", words, count, add_tun_device, send_packets)
}

#[test]
fn c5_any_has_the_packets_of_all_interfaces_like_libpcap() {
    // Four kinds of packets are sent `PACKETS_PER_KIND` times, and the multicast packet once.
    let count = 4 * PACKETS_PER_KIND + 1 + FRAMES_SENT[0];
    for link in ["LINUX_SLL2", "LINUX_SLL"] {
        let words = ["-y", link, "udp port 5300"];
        let Some((packets, errors)) = capture_any_from_libpcap_and_rings(&words, count) else {
            return;
        };
        assert_same_packets(&packets);
        assert_eq!(packets[0].len(), count, "{link}");
        let from_ring = count - 2 * PACKETS_PER_KIND;
        let report = format!(
            "streamline: any: {from_ring} of {count} packets came from the ring; 0 lost, \
             0 unread, filtered in the kernel"
        );
        assert!(errors.contains(&report), "{errors}");
        assert_eq!(number_before(&errors, " packets captured"), count as u64, "{errors}");
        assert_eq!(number_before(&errors, " packets dropped by kernel"), 0, "{errors}");
    }
}

#[test]
fn any_cuts_packets_to_the_snapshot_length_like_libpcap() {
    let count = 4 * PACKETS_PER_KIND + 1 + FRAMES_SENT[0];
    let Some((packets, _)) = capture_any_from_libpcap_and_rings(&["-s", "60", "udp"], count) else {
        return;
    };
    assert_same_packets(&packets);
    assert!(packets[1].iter().any(|packet| packet.bytes.len() == 60 && packet.length > 1000));
}

#[test]
fn any_captures_frames_with_a_length_instead_of_a_type() {
    let words = ["not ip and not ip6 and not arp"];
    let Some((packets, errors)) = capture_any_from_libpcap_and_rings(&words, FRAMES_SENT[1]) else {
        return;
    };
    assert_same_packets(&packets);
    assert_eq!(packets[1].len(), FRAMES_SENT[1], "{errors}");
    assert!(errors.contains("filtered in the kernel"), "{errors}");
}

#[test]
fn any_filters_by_direction_in_user_space() {
    let Some((packets, errors)) =
        capture_any_from_libpcap_and_rings(&["udp and outbound"], 2 * PACKETS_PER_KIND + 1)
    else {
        return;
    };
    assert_same_packets(&packets);
    assert_eq!(packets[1].len(), 2 * PACKETS_PER_KIND + 1, "{errors}");
    let reason = "filtered in the program: it reads a field that frames in the kernel do not have";
    assert!(errors.contains(reason), "{errors}");
}

/// Returns true if a kernel program is attached to the ingress of an interface of the server.
fn has_ingress_capture_program(pair: &NamespacePair, device: &str) -> bool {
    pair.server.run_in_network_namespace(|| {
        let index = sys::net::interface(device).unwrap().index;
        !sys::bpf::tcx_chain(index, sys::bpf::TrafficDirection::Ingress).unwrap().members.is_empty()
    })
}

#[test]
fn any_follows_added_and_removed_interfaces() {
    let Some((pair, folder)) = prepare_capture_test("tcpdump") else { return };
    let file = folder.path().join("ours.pcap");
    let name = file.display().to_string();
    let words = ["tcpdump", "-Z", "root", "-U", "-n", "-i", "any", "-w", &name, "udp port 5300"];
    let ours = CaptureProgram::start((&pair, &folder), true, (&words, LISTENING_TEXT));
    let received = |count: usize| {
        wait_until("the packets are written", || read_packets(&file).len() >= count);
    };
    let client = pair.client.path().display().to_string();
    for round in 1..=2 {
        pair.server.run_ip("link add late0 type veth peer name late1");
        pair.server.run_ip(&format!("link set late1 netns {client}"));
        pair.server.run_ip("addr add 10.78.0.2/24 dev late0");
        pair.server.run_ip("link set late0 up");
        // Packets that arrive before the program is attached would be missed.
        wait_until("the new interface is captured", || has_ingress_capture_program(&pair, "late0"));
        pair.client.run_ip("addr add 10.78.0.1/24 dev late1");
        pair.client.run_ip("link set late1 up");
        pair.client.wait_until_up("late1");
        send_datagrams(&pair, PORT, [64; 5]);
        pair.client.run_in_network_namespace(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            (0..5).for_each(|_| {
                socket.send_to(b"over the new interface", ("10.78.0.2", PORT)).unwrap();
            });
        });
        received(10 * round);
        pair.client.run_ip("link del late1");
    }
    send_datagrams(&pair, PORT, [64; 5]);
    received(25);
    let errors = ours.interrupt();
    assert!(errors.contains("25 of 25 packets came from the ring; 0 lost"), "{errors}");
}

/// Python program that makes the host receive packets from a tun interface, which has no Ethernet
/// frames. Arguments: the number of packets, and the device.
const TUNNEL_PACKETS_SCRIPT: &str = r#"
import fcntl, os, struct, sys
packet = bytes.fromhex("4500001c0001000040110000" "0a4d0001" "0a4d0002" "14b414b400080000")
tunnel = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tunnel, 0x400454ca, struct.pack("16sH", sys.argv[2].encode(), 0x1001))
while open(f"/sys/class/net/{sys.argv[2]}/operstate").read().strip() == "down":
    pass
for number in range(int(sys.argv[1])):
    os.write(tunnel, packet)
"#;

/// Sends more packets than a socket's default receive buffer holds (256 small packets), but fewer
/// than the ring of libpcap holds. Asserts that none is dropped.
#[test]
fn any_keeps_many_packets_of_an_interface_without_ring() {
    const PACKETS: u64 = 1500;
    let Some((pair, folder)) = prepare_capture_test("tcpdump") else { return };
    if need::require_command("python3").is_none() {
        return;
    }
    add_tun_device(&pair);
    let words = "tcpdump -n -Z root -w /dev/null -i any udp port 5300";
    let words: Vec<&str> = words.split_whitespace().collect();
    let observer = CaptureProgram::start((&pair, &folder), true, (&words, LISTENING_TEXT));
    signal_program(&observer, "-STOP");
    wait_for_process_state(&observer, "T");
    run_python(&pair.server, TUNNEL_PACKETS_SCRIPT, &[&PACKETS.to_string(), TUN_DEVICE]);
    signal_program(&observer, "-CONT");
    wait_for_process_state(&observer, "SR");
    wait_until("all packets are captured or dropped", || {
        signal_program(&observer, "-USR1");
        parse_tcpdump_counts(&observer.errors())
            .is_some_and(|[captured, _, dropped]| captured + dropped >= PACKETS)
    });
    let errors = observer.interrupt();
    assert_eq!(parse_tcpdump_counts(&errors), Some([PACKETS, PACKETS, 0]), "{errors}");
}

/// Python program that prints the properties in which a handle of `any` differs from a handle of an
/// interface. Then reads five packets, whenever the descriptor is readable.
const HANDLE_PROPERTIES_SCRIPT: &str = r#"
import ctypes, select, sys
p = ctypes.CDLL("libpcap.so.0.8")
p.pcap_create.restype = p.pcap_geterr.restype = ctypes.c_void_p
e = ctypes.create_string_buffer(256)
h = ctypes.c_void_p(p.pcap_create(b"any", e))
text = lambda: ctypes.string_at(p.pcap_geterr(h)).decode()
p.pcap_set_promisc(h, 1)
p.pcap_set_immediate_mode(h, 1)
print("activate", p.pcap_activate(h), text())
links = ctypes.POINTER(ctypes.c_int)()
count = p.pcap_list_datalinks(h, ctypes.byref(links))
print("links", p.pcap_datalink(h), links[:count])
print("set", p.pcap_set_datalink(h, 1), p.pcap_set_datalink(h, 276), p.pcap_datalink(h))
print("inject", p.pcap_inject(h, b"0" * 60, 60), text())
program = (ctypes.c_char * 16)()
print("compile", p.pcap_compile(h, program, b"vlan 7", 1, 0), text())
print("compile", p.pcap_compile(h, program, b"udp port 5300", 1, 0), p.pcap_setfilter(h, program))
p.pcap_setnonblock(h, 1, e)
fd = p.pcap_get_selectable_fd(h)
print("ready", file=sys.stderr, flush=True)
seen = []
@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_ubyte))
def take(user, header, data):
    seen.append(bytes(data[:20])[:2].hex())
while len(seen) < 5:
    select.select([fd], [], [])
    assert p.pcap_dispatch(h, -1, take, None) >= 0
stat = (ctypes.c_uint * 3)()
print("read", seen, p.pcap_stats(h, stat), list(stat))
p.pcap_close(h)
"#;

#[test]
fn any_handle_has_the_same_properties_as_in_libpcap() {
    let Some((pair, folder)) = prepare_capture_test("python3") else { return };
    for is_ours in [false, true] {
        let all = ["--with=pcap", "python3", "-c", HANDLE_PROPERTIES_SCRIPT];
        let words = if is_ours { &all[..] } else { &all[1..] };
        let observer = CaptureProgram::start((&pair, &folder), is_ours, (words, "ready"));
        send_datagrams(&pair, PORT, [64; 5]);
        let errors = observer.finish();
        assert!(!is_ours || errors.contains("5 of 5 packets came from the ring"), "{errors}");
    }
    let [real, ours] = ["real.out", "ours.out"].map(|name| folder.read(name));
    assert_eq!(ours, real);
    assert!(real.contains("read ['0800', '0800', '0800', '0800', '0800'] 0 [5, 0, 0]"), "{real}");
}
