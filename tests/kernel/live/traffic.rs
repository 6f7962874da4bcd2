//! Generator of traffic that BPF_PROG_TEST_RUN cannot produce, for twins on real interfaces. All
//! packets are sent on one processor, so that their order is defined.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;

use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use sys::net::RouteSocket;
use sys::packet::{PacketSender, QdiscMode};
use testkit::net::{
    CLIENT_DEVICE, DevicePairSettings, Namespace, NamespacePair, SERVER_DEVICE, WAIT_TIMEOUT,
    wait_until,
};

/// Length of a stream in bytes, enough for several frames of maximum size.
const STREAM_LENGTH: usize = 150_000;
/// Minimum length, in bytes, of frames that a packet socket stores as non-linear data: the first 14
/// bytes are linear, and the rest is in pages.
pub(super) const FRAGMENTED_LENGTH_MIN: usize = 4_500;

/// Pairs of client and server addresses: untagged IPv4 and IPv6, one VLAN tag (IPv4), two tags
/// (IPv4, IPv6).
const ADDRESS_PAIRS: [[&str; 2]; 5] = [
    [testkit::net::CLIENT, testkit::net::SERVER],
    [testkit::net::CLIENT6, testkit::net::SERVER6],
    ["10.78.0.1", "10.78.0.2"],
    ["10.79.0.1", "10.79.0.2"],
    ["fd79::1", "fd79::2"],
];

/// The network that twins are attached to: a veth pair with a client and a server.
pub(super) struct TestNetwork {
    pub(super) pair: NamespacePair,
    ends: &'static [[&'static str; 2]],
}

impl TestNetwork {
    /// Creates a veth pair with a large MTU and, if the kernel supports them, VLAN devices at both
    /// ends. Reports a skip and returns `None` without the required privileges.
    pub(super) fn new() -> Option<Self> {
        let cable = DevicePairSettings { mtu: 9000, ..DevicePairSettings::default() };
        let pair = NamespacePair::new(cable)?;
        let tags = add_vlan_devices(&pair.client, CLIENT_DEVICE, 0)
            && add_vlan_devices(&pair.server, SERVER_DEVICE, 1);
        if !tags {
            println!("this kernel has no VLAN devices: only a program puts tags beside frames");
        }
        Some(Self { pair, ends: if tags { &ADDRESS_PAIRS } else { &ADDRESS_PAIRS[..2] } })
    }

    /// Sends streams and datagrams from the client's sockets, with and without tags.
    pub(super) fn send_from_sockets(&self) {
        for [client, server] in self.ends {
            send_stream(&self.pair, client, server);
            send_datagrams(&self.pair, client, server);
        }
    }

    /// Sends each frame twice: unchanged, and padded with zeros so that the kernel stores it in
    /// page fragments. Returns the sent frames.
    pub(super) fn send_frames(&self, frames: &[&[u8]]) -> Vec<Vec<u8>> {
        let each = frames.iter().flat_map(|frame| {
            let mut long = frame.to_vec();
            // Parity of the length is preserved: the tagger depends on it.
            long.resize(FRAGMENTED_LENGTH_MIN + frame.len() % 2, 0);
            [frame.to_vec(), long]
        });
        let sent: Vec<Vec<u8>> = each.collect();
        let slices: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
        send_raw_frames(&self.pair, &slices);
        sent
    }

    /// Sends the frame that marks the end of a run, which receivers recognize by its content.
    /// Returns the frame.
    pub(super) fn send_end_marker(&self) -> Vec<u8> {
        let last = [&[0xff; 12][..], &[0x88, 0xb5], b"the last frame, known by its content"];
        let last = last.concat();
        send_raw_frames(&self.pair, &[&last]);
        last
    }
}

/// Adds VLAN devices with one tag and with two tags on a device. `end` selects their addresses: 0
/// for the client, 1 for the server. Returns false if the kernel does not support them.
fn add_vlan_devices(space: &Namespace, device: &str, end: usize) -> bool {
    let add = [
        format!("{device} name one type vlan id 7"),
        format!("{device} name outer type vlan proto 802.1ad id 5"),
        "outer name two type vlan id 4095".to_owned(),
    ];
    for words in add {
        let mut ip = space.command("ip");
        ip.args("link add link".split(' ')).args(words.split(' ')).stderr(Stdio::null());
        if !ip.status().unwrap().success() {
            return false;
        }
    }
    for device in ["one", "outer", "two"] {
        space.run_ip(&format!("link set dev {device} addrgenmode none up"));
    }
    space.run_ip(&format!("address add {}/24 dev one", ADDRESS_PAIRS[2][end]));
    space.run_ip(&format!("address add {}/24 dev two", ADDRESS_PAIRS[3][end]));
    space.run_ip(&format!("address add {}/64 dev two nodad", ADDRESS_PAIRS[4][end]));
    true
}

/// Sends a stream, first from memory, then with `sendfile`, which sends the file's pages without a
/// copy.
fn send_stream(pair: &NamespacePair, client: &str, server: &str) {
    let listener =
        pair.server.run_in_network_namespace(|| TcpListener::bind((server, 80)).unwrap());
    let receive = || {
        let (mut end, from) = listener.accept().unwrap();
        assert_eq!(from.ip().to_string(), client);
        end.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        let mut got = Vec::new();
        end.read_to_end(&mut got).unwrap();
        got.len()
    };
    std::thread::scope(|scope| {
        let received = scope.spawn(receive);
        pair.client.run_in_network_namespace(|| {
            let mut stream = TcpStream::connect((server, 80)).unwrap();
            stream.set_write_timeout(Some(WAIT_TIMEOUT)).unwrap();
            stream.write_all(&vec![b'm'; STREAM_LENGTH]).unwrap();
            send_with_sendfile(&stream);
        });
        assert_eq!(received.join().unwrap(), 2 * STREAM_LENGTH);
    });
}

fn send_with_sendfile(stream: &TcpStream) {
    let file = memfd_create("pages", MemfdFlags::CLOEXEC).unwrap();
    let mut file = std::fs::File::from(file);
    file.write_all(&vec![b'f'; STREAM_LENGTH]).unwrap();
    let (mut from, mut left) = (0, STREAM_LENGTH);
    while left > 0 {
        let sent = sendfile(stream, &file, Some(&mut from), left).unwrap();
        assert!(sent > 0);
        left -= sent;
    }
}

/// Sends datagrams of various sizes with partial checksums.
fn send_datagrams(pair: &NamespacePair, client: &str, server: &str) {
    let receiver = pair.server.run_in_network_namespace(|| UdpSocket::bind((server, 53)).unwrap());
    receiver.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    let sender = pair.client.run_in_network_namespace(|| UdpSocket::bind((client, 4000)).unwrap());
    for size in [0, 1, 18, 1_000, 8_000] {
        sender.send_to(&vec![b'u'; size], (server, 53)).unwrap();
        let mut got = [0; 9_000];
        assert_eq!(receiver.recv(&mut got).unwrap(), size);
    }
}

fn send_raw_frames(pair: &NamespacePair, frames: &[&[u8]]) {
    pair.client.run_in_network_namespace(|| {
        let index = RouteSocket::open().unwrap().interface_by_name(CLIENT_DEVICE).unwrap().index;
        let mut sender = PacketSender::open(index, QdiscMode::Through).unwrap();
        let mut sent = 0;
        wait_until("there is room for frames", || {
            let done = sender.send(&frames[sent..]);
            sent += done.frames;
            sent == frames.len()
        });
    });
}
