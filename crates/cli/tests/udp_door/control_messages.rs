//! Tests of control messages for datagrams from the ring, and of sockets that receive from several
//! interfaces.

use super::{
    DATAGRAMS_UNTIL_PROMOTION, Server, exchange_numbered_datagrams, prepare_server_test,
    receive_datagram, reported_datagram_counts,
};
use crate::common::{ChildGuard, Folder};
use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use testkit::net::{CLIENT, SERVER, SERVER6};
use testkit::{need, wait_until};

/// Python server that replies to each datagram with the sender's address, and with the control
/// messages and the flags that it received with the datagram. In the reply, a correct timestamp is
/// `now`, or `seconds of now` if it is truncated to the low half of the seconds. The datagram `room
/// N` limits later control messages to N bytes; `set NUMBER` sets the IP option with this number.
/// The first argument is the IP version; the others are socket options in the form `LEVEL:NUMBER`.
const CONTROL_SERVER: &str = "
import socket, struct, sys, time
is_v6 = sys.argv[1] == '6'
s = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_DGRAM)
for name in sys.argv[2:]:
    level, number = map(int, name.split(':'))
    s.setsockopt(level, number, 1)
s.bind(('::' if is_v6 else '', 5400))
print('ready', file=sys.stderr, flush=True)
room = 1000
def described(level, kind, data):
    if (level, kind) == (1, 35) and len(data) == 16:
        seconds, rest = struct.unpack('qq', data)
        if abs(seconds * 10**9 + rest - time.time_ns()) < 60 * 10**9: return (level, kind, 'now')
    if (level, kind) == (1, 35) and len(data) == 4:
        seconds, = struct.unpack('I', data)
        if abs(seconds - time.time()) < 60: return (level, kind, 'seconds of now')
    return (level, kind, data.hex())
while True:
    data, control, flags, sender = s.recvmsg(65536, room)
    words = data.split()
    if words[:1] == [b'room']: room = int(words[1])
    if words[:1] == [b'set']: s.setsockopt(0, int(words[1]), 1)
    answer = repr((sender, [described(*one) for one in control], flags)).encode()
    s.sendto(data if words[:1] == [b'quit'] or words[:1] == [b'warm'] else answer, sender)
    if data == b'quit': break
";

/// Sends a datagram to an address of the server, and returns the reply.
fn ask_server_at(client: &UdpSocket, server: SocketAddr, bytes: &[u8]) -> String {
    client.send_to(bytes, server).unwrap();
    let mut room = [0; 4096];
    let (length, _) = receive_datagram(client, &mut room);
    String::from_utf8(room[..length].to_vec()).unwrap()
}

fn ask_server(client: &UdpSocket, bytes: &[u8]) -> String {
    ask_server_at(client, super::server_address(), bytes)
}

/// Sends so many datagrams that the server's socket is promoted to a ring.
fn promote_socket(client: &UdpSocket) {
    for _ in 0..DATAGRAMS_UNTIL_PROMOTION {
        assert_eq!(ask_server(client, b"warm"), "warm");
    }
}

#[test]
fn control_messages_from_the_ring_equal_those_of_the_kernel() {
    let Some((pair, ..)) = prepare_server_test() else { return };
    if need::require_command("python3").is_none() {
        return;
    }
    // The options are IP_PKTINFO, IP_RECVTTL, IP_RECVTOS, IP_RECVORIGDSTADDR and SO_TIMESTAMPNS.
    let options = ["0:8", "0:12", "0:13", "0:20", "1:35"];
    let words = [&["python3", "-c", CONTROL_SERVER, "4"], &options[..]].concat();
    let server = Server::start(&pair, &words);
    let client = server.open_client_socket();
    client.set_ttl(33).unwrap();
    let rounds: [&[u8]; 7] = [b"x", b"room 100", b"x", b"room 20", b"x", b"room 0", b"room 1000"];
    let answers = || rounds.map(|round| ask_server(&client, round));
    let by_kernel = answers();
    promote_socket(&client);
    let by_ring = answers();
    assert_eq!(by_kernel, by_ring);
    assert!(by_ring[0].contains("(1, 35, 'now')"), "{by_ring:?}");
    // The replies must contain the TTL 33 and, for truncated control messages, the flag MSG_CTRUNC.
    assert!(
        by_ring[0].contains("(0, 2, '21000000')") && by_ring[4].ends_with("], 8)"),
        "{by_ring:?}"
    );
    let (ring, all) = reported_datagram_counts(&server.finish(&client));
    assert!(ring * 100 >= all * 95, "{ring} of {all}");
}

#[test]
fn control_message_asked_for_after_promotion_is_delivered() {
    let Some((pair, ..)) = prepare_server_test() else { return };
    if need::require_command("python3").is_none() {
        return;
    }
    let server = Server::start(&pair, &["python3", "-c", CONTROL_SERVER, "4"]);
    let client = server.open_client_socket();
    promote_socket(&client);
    assert!(ask_server(&client, b"x").ends_with(" [], 0)"));
    assert!(ask_server(&client, b"set 12").ends_with(" [], 0)"));
    assert!(ask_server(&client, b"x").ends_with(" [(0, 2, '40000000')], 0)"));
    let (ring, all) = reported_datagram_counts(&server.finish(&client));
    assert!(ring * 100 >= all * 95, "{ring} of {all}");
}

#[test]
fn dual_stack_socket_receives_both_families_from_rings() {
    let Some((pair, ..)) = prepare_server_test() else { return };
    if need::require_command("python3").is_none() {
        return;
    }
    // The options are IPV6_RECVPKTINFO, IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS, IP_RECVTTL and
    // SO_TIMESTAMPNS.
    let options = ["41:49", "41:51", "41:66", "0:12", "1:35"];
    let words = [&["python3", "-c", CONTROL_SERVER, "6"], &options[..]].concat();
    let server = Server::start(&pair, &words);
    let client = server.open_client_socket();
    let client_of_v6 = pair.client.run_in_network_namespace(|| UdpSocket::bind("[::]:0").unwrap());
    client_of_v6.set_read_timeout(Some(super::REPLY_TIMEOUT)).unwrap();
    let v6: SocketAddr = format!("[{SERVER6}]:{}", super::PORT).parse().unwrap();
    let answers = || {
        let of_v6 = [&b"x"[..], b"room 70", b"x", b"room 1000"];
        let of_v6 = of_v6.map(|round| ask_server_at(&client_of_v6, v6, round));
        (of_v6, ask_server(&client, b"x"))
    };
    let by_kernel = answers();
    promote_socket(&client);
    let by_ring = answers();
    assert_eq!(by_kernel, by_ring);
    assert!(by_ring.0[0].contains("(41, 52, '40000000')"), "{by_ring:?}");
    assert!(
        by_ring.1.contains(&format!("::ffff:{CLIENT}")) && by_ring.1.contains("(0, 2, "),
        "{by_ring:?}"
    );
    // The datagrams have 5 to 1457 bytes.
    for length in [0, 1, 1000, 1452] {
        let bytes = [&b"warm "[..], &vec![b'x'; length]].concat();
        assert_eq!(ask_server_at(&client_of_v6, v6, &bytes).len(), bytes.len());
    }
    let (ring, all) = reported_datagram_counts(&server.finish(&client));
    assert!(ring * 100 >= all * 95, "{ring} of {all}");
}

/// Connects one of two sockets at the same port to a client, while the other socket serves a second
/// client. Asserts that the connected socket receives from its ring.
#[test]
fn connected_socket_receives_from_its_peer_over_its_ring() {
    let Some((pair, ..)) = prepare_server_test() else { return };
    if need::require_command("python3").is_none() {
        return;
    }
    let script = "
import os, socket, sys
def bound():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(('', 5400))
    return s
s = bound()
print('ready', file=sys.stderr, flush=True)
data, sender = s.recvfrom(65536)
s.connect(sender)
s.send(data)
other = bound()
while data != b'quit':
    data = os.read(s.fileno(), 65536)
    s.send(data)
    if data == b'other':
        data, sender = other.recvfrom(65536)
        other.sendto(data, sender)
";
    let server = Server::start(&pair, &["python3", "-c", script]);
    let client = server.open_client_socket();
    exchange_numbered_datagrams(&client, 400);
    // The connected socket does not receive the datagrams of another client.
    let other_client = server.open_client_socket();
    super::exchange_datagram(&client, b"other");
    super::exchange_datagram(&other_client, b"hello");
    exchange_numbered_datagrams(&client, 400);
    let (ring, all) = reported_datagram_counts(&server.finish(&client));
    assert!(ring >= 600 && ring * 100 >= all * 95, "{ring} of {all}");
}

#[test]
fn iperf3_receives_from_a_ring() {
    let Some((pair, ..)) = prepare_server_test() else { return };
    let Some(iperf3) = need::require_command("iperf3") else { return };
    let folder = Folder::new();
    let mut command = pair.server.command(super::STREAMLINE);
    command.args(["exec", "--with=udp"]).arg(&iperf3).args(["-s", "-1", "--forceflush"]);
    folder.set_environment(&mut command);
    command.env("STREAMLINE_UDP", "report,spin");
    command.stdout(File::create(folder.path().join("output")).unwrap());
    command.stderr(File::create(folder.path().join("errors")).unwrap());
    let mut server = ChildGuard(command.spawn().unwrap());
    wait_until("iperf3 listens", || folder.read("output").contains("Server listening"));
    let mut client = pair.client.command(iperf3.display().to_string());
    client.args(["-u", "-c", SERVER, "-b", "40M", "-n", "8M", "-l", "1400", "--json"]);
    let sent = client.output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stdout));
    wait_until("iperf3 ends", || server.0.try_wait().unwrap().is_some());
    let summary: serde_json::Value = serde_json::from_slice(&sent.stdout).unwrap();
    let sum = &summary["end"]["sum"];
    let (ring, all) = reported_datagram_counts(&folder.read("errors"));
    println!("{ring} of {all} datagrams from the ring; iperf3: {sum}");
    let received = sum["packets"].as_u64().unwrap() - sum["lost_packets"].as_u64().unwrap();
    // The report does not count the datagrams before the promotion, which takes longer on a busy
    // machine.
    let is_plausible = all <= received && received <= all * 2;
    assert!(ring * 100 >= all * 95 && is_plausible, "{ring} of {all}: {sum}");
}

#[test]
fn socket_on_two_interfaces_receives_from_both_rings() {
    let Some((pair, _folder, program)) = prepare_server_test() else { return };
    let client_name = pair.client.name();
    pair.server.run_ip(&format!("link add second type veth peer name other netns {client_name}"));
    pair.server.run_ip("address add 10.78.0.1/24 dev second");
    pair.server.run_ip("link set second up");
    pair.client.run_ip("address add 10.78.0.2/24 dev other");
    pair.client.run_ip("link set other up");
    let program = program.display().to_string();
    let server = Server::start(&pair, &[&program, "5400", "level", "recvmsg"]);
    let client = server.open_client_socket();
    exchange_numbered_datagrams(&client, DATAGRAMS_UNTIL_PROMOTION);
    let second: SocketAddr = "10.78.0.1:5400".parse().unwrap();
    for number in 0..200_u32 {
        client.send_to(&number.to_be_bytes(), second).unwrap();
        let mut room = [0; 100];
        let (length, from) = receive_datagram(&client, &mut room);
        // The server replies from the address of the route.
        assert_eq!((&room[..length], from), (&number.to_be_bytes()[..], second));
        exchange_numbered_datagrams(&client, 1);
    }
    let errors = server.finish(&client);
    let (ring, all) = reported_datagram_counts(&errors);
    assert!(ring >= 390 && ring * 100 >= all * 95, "{ring} of {all}");
    assert!(errors.contains(", second since") || errors.contains("ring of second, "), "{errors}");
}
