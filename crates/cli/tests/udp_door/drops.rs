//! Test of the number of dropped datagrams, which a program requests with `SO_RXQ_OVFL`.

use super::{
    DATAGRAMS_UNTIL_PROMOTION, Server, exchange_datagram, prepare_server_test, receive_datagram,
    server_address,
};
use std::net::UdpSocket;
use std::process::Command;
use testkit::need;

/// Python server whose commands are datagrams. It counts the datagrams `fill`, and reads the number
/// of dropped datagrams from control messages. It replies to `ask` with both numbers, pauses after
/// `pause`, and echoes any other datagram. `kernel` sets an option that only the kernel can
/// implement.
const DROP_COUNTING_SERVER: &str = "
import socket, struct, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 40, 1)
s.bind(('', 5400))
print('ready', file=sys.stderr, flush=True)
filled = drops = 0
data = b''
while data != b'quit':
    data, control, flags, sender = s.recvmsg(65536, 24)
    for level, kind, value in control:
        if (level, kind) == (1, 40): drops, = struct.unpack('I', value)
    if data[:4] == b'fill':
        filled += 1
        continue
    if data == b'pause':
        s.sendto(data, sender)
        time.sleep(1)
        continue
    if data == b'kernel': s.setsockopt(socket.IPPROTO_IP, 6, 1)
    if data == b'ask': data = b'%d %d' % (filled, drops)
    s.sendto(data, sender)
";

/// Sends `count` datagrams of 1400 bytes while the server is stopped. Returns the total number of
/// datagrams `fill` that the server has received, and the number of drops that was reported to it.
fn fill_stopped_server(server: &Server<'_>, client: &UdpSocket, count: usize) -> (u64, u64) {
    let number = server.process.0.id().to_string();
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &number]).status().unwrap().success());
    };
    signal("-STOP");
    send_fill_datagrams(client, count);
    signal("-CONT");
    read_drop_counts(client)
}

/// Sends `count` datagrams of 1400 bytes during a pause of the server, in which it runs but does
/// not receive. Returns the same numbers as [`fill_stopped_server`].
fn fill_awake_server(client: &UdpSocket, count: usize) -> (u64, u64) {
    exchange_datagram(client, b"pause");
    send_fill_datagrams(client, count);
    read_drop_counts(client)
}

fn send_fill_datagrams(client: &UdpSocket, count: usize) {
    let mut bytes = [b' '; 1400];
    bytes[..4].copy_from_slice(b"fill");
    for _ in 0..count {
        client.send_to(&bytes, server_address()).unwrap();
    }
}

/// Returns the two numbers in the server's reply to `ask`.
fn read_drop_counts(client: &UdpSocket) -> (u64, u64) {
    // The server reads the number of drops together with this datagram.
    exchange_datagram(client, b"next");
    client.send_to(b"ask", server_address()).unwrap();
    let mut room = [0; 100];
    let (length, _) = receive_datagram(client, &mut room);
    let text = String::from_utf8(room[..length].to_vec()).unwrap();
    let mut counts = text.split(' ').map(|word| word.parse().unwrap());
    (counts.next().unwrap(), counts.next().unwrap())
}

#[test]
fn c1_reported_drops_include_those_of_ring_and_kernel() {
    let Some((pair, ..)) = prepare_server_test() else { return };
    if need::require_command("python3").is_none() {
        return;
    }
    let server = Server::start(&pair, &["python3", "-c", DROP_COUNTING_SERVER]);
    let client = server.open_client_socket();
    // At first the kernel drops datagrams, then the ring, and then the kernel again.
    let (received, dropped_first) = fill_stopped_server(&server, &client, 5000);
    assert_eq!(received + dropped_first, 5000);
    assert!(dropped_first > 0);
    for _ in 0..DATAGRAMS_UNTIL_PROMOTION {
        exchange_datagram(&client, b"warm");
    }
    let (received, dropped) = fill_awake_server(&client, 20_000);
    assert_eq!(received + dropped, 25_000);
    assert!(dropped > dropped_first);
    exchange_datagram(&client, b"kernel");
    let (received, dropped_last) = fill_stopped_server(&server, &client, 5000);
    assert_eq!(received + dropped_last, 30_000);
    assert!(dropped_last > dropped);
    let errors = server.finish(&client);
    println!("{dropped_first}, {dropped}, {dropped_last} dropped: {errors}");
    assert!(errors.contains("datagrams came from the ring"), "{errors}");
    let lost = errors.split("; ").nth(1).and_then(|text| text.split(' ').next()).unwrap();
    assert_eq!(lost.parse::<u64>().unwrap(), dropped - dropped_first);
}
