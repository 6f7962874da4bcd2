//! Tests of `rx IF take EXPRESSION`: the request takes the selected flows from the host, and the
//! host keeps all other traffic.

use crate::daemon_fixture::{ALICE_UID, BOB_UID, DaemonFixture};
use crate::frame_sending::{capture_length, send_frames};
use crate::numbered_frames::{FRAME_LENGTH, frame_numbers, numbered_frames};
use crate::observer::{Observer, ObserverResult};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use sys::bpf::{TrafficDirection, tcx_chain};
use sys::net::RouteSocket;
use testkit::net::{
    CLIENT, CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER, SERVER_DEVICE, WAIT_TIMEOUT,
    wait_until,
};
use testkit::streamline_program;
use testkit::{Frame, need};

/// Returns a veth pair with addresses, or `None` if programs cannot be loaded.
fn addressed_pair() -> Option<NamespacePair> {
    need::require_bpf()?;
    NamespacePair::new(DevicePairSettings::default())
}

/// Returns a veth pair that carries only the test's frames, or `None` if programs cannot be loaded.
fn quiet_pair() -> Option<NamespacePair> {
    need::require_bpf()?;
    NamespacePair::new(DevicePairSettings { addresses: false, ..DevicePairSettings::default() })
}

/// Two sockets that communicate over the veth pair: one of the client, and one of the server at a
/// port.
struct SocketPair {
    near: UdpSocket,
    far: UdpSocket,
}

impl SocketPair {
    fn new(pair: &NamespacePair, port: u16) -> Self {
        let near = pair
            .client
            .run_in_network_namespace(|| UdpSocket::bind((CLIENT, 0)).expect("a socket"));
        let far = pair
            .server
            .run_in_network_namespace(|| UdpSocket::bind((SERVER, port)).expect("a socket"));
        near.connect((SERVER, port)).expect("an address");
        far.set_read_timeout(Some(WAIT_TIMEOUT)).expect("a time");
        Self { near, far }
    }

    fn send(&self, text: &[u8]) {
        assert_eq!(self.near.send(text).expect("sent"), text.len());
    }

    /// Receives a datagram, which must contain this text. No earlier datagram may be in transit.
    fn assert_receives(&self, text: &[u8]) {
        let mut bytes = vec![0; 1 << 16];
        let length = self.far.recv(&mut bytes).expect("a datagram");
        assert!(bytes[..length] == *text, "{length} bytes, not {}", text.len());
    }
}

/// Returns the number of programs at the ingress of the server's device.
fn ingress_program_count(pair: &NamespacePair) -> usize {
    pair.server.run_in_network_namespace(|| {
        let index =
            RouteSocket::open().expect("links").interface_by_name(SERVER_DEVICE).expect("it").index;
        tcx_chain(index, TrafficDirection::Ingress).expect("a chain").members.len()
    })
}

/// Starts a request that takes flows; returns once its program is attached.
fn start_request_with_take(pair: &NamespacePair, line: &str) -> Observer {
    let before = ingress_program_count(pair);
    let mut observer = Observer::spawn(pair.server.command(streamline_program()), line);
    wait_until(line, || {
        observer.assert_running();
        ingress_program_count(pair) > before
    });
    observer
}

/// Returns the remark in the report about the source with the index `number`.
fn source_note(ran: &ObserverResult, number: usize) -> String {
    ran.ledger["sources"][number]["remark"].as_str().unwrap_or_default().to_owned()
}

/// Sends bytes over TCP to the server. Panics if a byte is missing or wrong.
fn transfer_over_tcp(pair: &NamespacePair, bytes: usize) {
    let listener =
        pair.server.run_in_network_namespace(|| TcpListener::bind((SERVER, 7)).expect("a port"));
    let byte = |at: usize| (at % 251) as u8;
    let mut near = pair
        .client
        .run_in_network_namespace(|| TcpStream::connect((SERVER, 7)).expect("a connection"));
    let (mut far, _) = listener.accept().expect("a connection");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let all: Vec<u8> = (0..bytes).map(byte).collect();
            near.write_all(&all).expect("it takes all");
            near.shutdown(Shutdown::Write).expect("an end");
        });
        let mut all = Vec::new();
        far.read_to_end(&mut all).expect("all of it");
        assert_eq!(all.len(), bytes);
        assert!(all.iter().enumerate().all(|(at, found)| *found == byte(at)));
    });
}

#[test]
fn g7_taken_flow_and_transfer_beside_it_are_complete() {
    const DATAGRAM_COUNT: u64 = 20_000;
    let Some(pair) = addressed_pair() else { return };
    let line = format!("rx {SERVER_DEVICE} take \"udp port 9\" | pcap taken.pcap");
    let mut observer = start_request_with_take(&pair, &line);
    let whole = capture_length(&numbered_frames(0..DATAGRAM_COUNT, FRAME_LENGTH));
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let line =
                format!("generate count={DATAGRAM_COUNT} rate=20000 seq=yes | tx {CLIENT_DEVICE}");
            let mut command = pair.client.command(streamline_program());
            let ran = command.args(["run", &line]).output().expect("the program");
            assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        });
        transfer_over_tcp(&pair, 64 << 20);
        sender.join().expect("it has sent all");
    });
    observer.wait_until_file_has_length("taken.pcap", whole);
    let ran = observer.stop();
    ran.assert_lossless();
    assert_eq!(frame_numbers(&ran.frames("taken.pcap")), Vec::from_iter(0..DATAGRAM_COUNT));
    assert_eq!(ran.source().given, DATAGRAM_COUNT, "{}", ran.ledger);
    assert_eq!(ingress_program_count(&pair), 0);
}

#[test]
fn g7_flow_returns_to_the_host_after_any_exit() {
    let Some(pair) = addressed_pair() else { return };
    let (ours, other) = (SocketPair::new(&pair, 5300), SocketPair::new(&pair, 5301));
    ours.send(b"before");
    ours.assert_receives(b"before");
    for end in ["INT", "KILL"] {
        let line = format!("rx {SERVER_DEVICE} take \"udp port 5300\" | count");
        let observer = start_request_with_take(&pair, &line);
        for _ in 0..10 {
            ours.send(b"taken");
            other.send(b"left");
            other.assert_receives(b"left");
        }
        observer.signal(end);
        match end {
            "INT" => {
                let ran = observer.wait();
                ran.assert_lossless();
                assert_eq!(ran.source().given, 10, "{}", ran.ledger);
            }
            _ => drop(observer.wait()),
        }
        wait_until("nothing is attached", || ingress_program_count(&pair) == 0);
        ours.send(end.as_bytes());
        ours.assert_receives(end.as_bytes());
    }
}

#[test]
fn g7_fragments_stay_with_the_host_and_are_counted() {
    let Some(pair) = addressed_pair() else { return };
    let sockets = SocketPair::new(&pair, 5300);
    let long: Vec<u8> = (0..4000_u32).map(|at| at as u8).collect();
    let line = format!("rx {SERVER_DEVICE} take \"udp port 5300\" | count");
    let observer = start_request_with_take(&pair, &line);
    sockets.send(b"short");
    sockets.send(&long);
    // The host reassembles the three fragments.
    sockets.assert_receives(&long);
    let ran = observer.stop();
    ran.assert_lossless();
    assert_eq!(ran.source().given, 1, "{}", ran.ledger);
    assert_eq!(source_note(&ran, 0), "3 fragments stayed with the host");
    // A condition on an address also decides fragments.
    let line = format!("rx {SERVER_DEVICE} take \"udp and src host {CLIENT}\" | ip | udp | count");
    let observer = start_request_with_take(&pair, &line);
    sockets.send(&long);
    sockets.send(b"short");
    let ran = observer.stop();
    ran.assert_lossless();
    assert_eq!(ran.source().given, 4, "{}", ran.ledger);
    assert_eq!(source_note(&ran, 0), "");
    sockets.send(b"after");
    sockets.assert_receives(b"after");
}

/// Returns a frame with a UDP datagram to a port.
fn datagram(port: u16) -> Vec<u8> {
    Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(4000, port, &[port as u8; 30])
}

#[test]
fn g7_first_of_overlapping_takers_gets_a_frame_and_others_count_it() {
    let Some(pair) = quiet_pair() else { return };
    let takes = |expression: &str, file: &str| {
        format!("rx {SERVER_DEVICE} take \"{expression}\" | pcap {file}")
    };
    // One program for both, in the order of the line.
    let line = format!(
        "{} ; {}",
        takes("udp port 53", "one.pcap"),
        takes("udp portrange 50-60 or udp port 80", "two.pcap")
    );
    let mut observer = start_request_with_take(&pair, &line);
    assert_eq!(ingress_program_count(&pair), 1, "both are one program");
    let ports: Vec<u16> = (0..300).map(|number| [53, 55, 80, 443][number % 4]).collect();
    let frames: Vec<Vec<u8>> = ports.iter().map(|port| datagram(*port)).collect();
    let of = |wanted: &[u16]| -> Vec<Vec<u8>> {
        ports.iter().filter(|port| wanted.contains(port)).map(|port| datagram(*port)).collect()
    };
    let (first, second, rest) = (of(&[53]), of(&[55, 80]), of(&[443]));
    let mut host = start_request_with_take(&pair, &format!("rx {SERVER_DEVICE} | pcap all.pcap"));
    send_frames(&pair.client, CLIENT_DEVICE, &frames);
    observer.wait_until_file_has_length("one.pcap", capture_length(&first));
    observer.wait_until_file_has_length("two.pcap", capture_length(&second));
    host.wait_until_file_has_length("all.pcap", capture_length(&frames));
    let (ran, on_host) = (observer.stop(), host.stop());
    ran.assert_lossless();
    assert!(ran.frames("one.pcap") == first && ran.frames("two.pcap") == second, "{}", ran.ledger);
    assert_eq!(source_note(&ran, 0), "");
    let note = format!("{} matching frames had been taken by an earlier request", first.len());
    assert_eq!(source_note(&ran, 1), note, "{}", ran.ledger);
    // Lines that watch see what others take; it is no loss of theirs.
    on_host.assert_lossless();
    assert!(on_host.frames("all.pcap") == frames);
    assert_eq!(rest.len(), 75, "what nobody took");
}

#[test]
fn g7_takers_in_different_processes_keep_their_order() {
    let Some(pair) = quiet_pair() else { return };
    let line = |file| format!("rx {SERVER_DEVICE} take \"udp port 53\" | pcap {file}");
    let mut first = start_request_with_take(&pair, &line("first.pcap"));
    let second = start_request_with_take(&pair, &line("second.pcap"));
    let frames = vec![datagram(53); 20];
    send_frames(&pair.client, CLIENT_DEVICE, &frames);
    first.wait_until_file_has_length("first.pcap", capture_length(&frames));
    let (first, second) = (first.stop(), second.stop());
    for ran in [&first, &second] {
        ran.assert_lossless();
    }
    assert_eq!((first.source().given, second.source().given), (20, 0));
}

#[test]
fn g7_filters_behind_a_taken_flow_run_in_the_kernel() {
    let Some(pair) = quiet_pair() else { return };
    let line = format!("rx {SERVER_DEVICE} take \"udp\" | ip | udp | dport |53 pcap taken.pcap");
    let mut observer = start_request_with_take(&pair, &line);
    let frames: Vec<Vec<u8>> = (0..40).map(|number| datagram([53, 80][number % 2])).collect();
    send_frames(&pair.client, CLIENT_DEVICE, &frames);
    let wanted = vec![datagram(53); 20];
    observer.wait_until_file_has_length("taken.pcap", capture_length(&wanted));
    let ran = observer.stop();
    ran.assert_lossless();
    assert_eq!(ran.source().given, 40, "what the line does not want is taken all the same");
    assert!(ran.frames("taken.pcap") == wanted);
}

#[test]
fn g7_expression_matching_own_connection_is_refused() {
    let Some(pair) = addressed_pair() else { return };
    let run = |options: &[&str], expression: &str| {
        let line = format!("rx {SERVER_DEVICE} take \"{expression}\" | count");
        let mut command = pair.server.command(streamline_program());
        command.env("SSH_CONNECTION", format!("{CLIENT} 50000 {SERVER} 22"));
        let ran = command.args(["run", "--for=100ms"]).args(options).arg(line).output();
        let ran = ran.expect("the program");
        (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    let (status, stderr) = run(&[], "tcp");
    assert_eq!(status, Some(1), "{stderr}");
    for part in ["cannot take from server0", "your own connection", "--force"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    for (options, expression) in [(&[][..], "tcp and not port 22"), (&["--force"], "tcp")] {
        let (status, stderr) = run(options, expression);
        assert_eq!(status, Some(0), "{stderr}");
    }
}

/// Policy under which Alice may take flows, and Bob may only observe.
const POLICY_FOR_ALICE: &str = "
[[open]]
users = [41101]
interfaces = [\"server0\"]
take = true
[[open]]
groups = [41200]
interfaces = [\"server0\"]
";

#[test]
fn g7_users_take_flows_by_the_daemons_grant_alone() {
    let Some(fixture) = DaemonFixture::new(POLICY_FOR_ALICE) else { return };
    if need::require_command("setpriv").is_none() {
        return;
    }
    let pair = &fixture.pair;
    let (ours, other) = (SocketPair::new(pair, 5300), SocketPair::new(pair, 5301));
    let line = |port: u16| format!("rx {SERVER_DEVICE} take \"udp port {port}\" | count");
    let refused = Observer::spawn(fixture.command(BOB_UID), &line(5301)).wait();
    assert_eq!(refused.status, Some(1), "{}", refused.err);
    let message = refused.err.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [testkit::user::describe_user(BOB_UID).as_str(), "not take from it", "take = true"]
    {
        assert!(message.contains(part), "{part}: {message}");
    }
    for end in ["INT", "KILL"] {
        let alice = fixture.run_request(ALICE_UID, &line(5300));
        for _ in 0..10 {
            ours.send(b"taken");
            other.send(b"left");
            other.assert_receives(b"left");
        }
        alice.signal(end);
        let ran = alice.wait();
        if end == "INT" {
            ran.assert_lossless();
            assert_eq!(ran.source().given, 10, "{}", ran.ledger);
        }
        wait_until("nothing is attached", || ingress_program_count(pair) == 0);
        ours.send(end.as_bytes());
        ours.assert_receives(end.as_bytes());
    }
}
