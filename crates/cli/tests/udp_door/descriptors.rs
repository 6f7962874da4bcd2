//! Tests of calls on the descriptor of a socket with a ring. The results must be the same as
//! without a ring.

use super::{
    DATAGRAMS_UNTIL_PROMOTION, Server, exchange_datagram, prepare_server_test, receive_datagram,
    server_address,
};
use crate::common::Folder;
use std::fs::File;
use std::net::UdpSocket;
use std::process::Command;
use testkit::{need, wait_until};

/// Python server. It replies to a datagram with the same bytes, except for these commands: `name`:
/// replies with the socket's address. `size N`: sets the size of the receive buffer, and replies
/// with the resulting size. `duplicate`: replaces the socket with a duplicate, through which it
/// replies. `pause F`: replies, and then waits until the FIFO F is opened for writing. `fill`: only
/// counts the datagram. `ask`: replies with the count. `shutdown`: shuts down reception, prints the
/// error number of the call and the result of a further receive, and exits.
const SERVER_SCRIPT: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 5400))
print('ready', file=sys.stderr, flush=True)
filled = 0
data = b''
while data != b'quit':
    data, sender = s.recvfrom(65536)
    words = data.split()
    answer = data
    if words[:1] == [b'fill']:
        filled += 1
        continue
    if data == b'ask': answer = b'%d' % filled
    if data == b'name': answer = repr(s.getsockname()).encode()
    if words[:1] == [b'size']:
        s.setsockopt(socket.SOL_SOCKET, 33, int(words[1]))
        answer = b'%d' % s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    if data == b'duplicate':
        copy = s.dup()
        s.close()
        s = copy
    if data == b'shutdown':
        try:
            s.shutdown(socket.SHUT_RD)
            error = 0
        except OSError as failure:
            error = failure.errno
        print('shutdown:', error, s.recv(100), file=sys.stderr, flush=True)
        s.sendto(data, sender)
        break
    s.sendto(answer, sender)
    if words[:1] == [b'pause']: open(words[1]).close()
";

fn ask_server(client: &UdpSocket, bytes: &[u8]) -> String {
    client.send_to(bytes, server_address()).unwrap();
    let mut room = [0; 1500];
    let (length, _) = receive_datagram(client, &mut room);
    String::from_utf8(room[..length].to_vec()).unwrap()
}

fn promote_socket(client: &UdpSocket) {
    for _ in 0..DATAGRAMS_UNTIL_PROMOTION {
        exchange_datagram(client, b"warm");
    }
}

/// Sends the commands `name`, `duplicate`, `size` and `shutdown` to [`SERVER`], which then exits.
/// If `is_promoted` is true, its socket receives from a ring. Returns the replies, the line that
/// the server prints about the shutdown, and its standard error.
fn send_all_commands(is_promoted: bool) -> Option<(Vec<String>, String, String)> {
    let (pair, ..) = prepare_server_test()?;
    need::require_command("python3")?;
    let mut server = Server::start(&pair, &["python3", "-c", SERVER_SCRIPT]);
    let client = server.open_client_socket();
    let mut answers = Vec::new();
    for call in [&b"name"[..], b"duplicate", b"name"] {
        if is_promoted {
            promote_socket(&client);
        }
        answers.push(ask_server(&client, call));
    }
    if is_promoted {
        promote_socket(&client);
    }
    exchange_datagram(&client, b"shutdown");
    wait_until("the server ends", || server.process.0.try_wait().unwrap().is_some());
    let errors = server.errors();
    let line = errors.lines().find(|line| line.starts_with("shutdown:")).unwrap().to_owned();
    Some((answers, line, errors))
}

#[test]
fn c1_getsockname_dup_and_shutdown_behave_like_the_kernel() {
    let Some((by_kernel, shutdown, errors)) = send_all_commands(false) else { return };
    assert!(!errors.contains("came from the ring"), "{errors}");
    let Some((by_ring, shutdown_of_ring, errors)) = send_all_commands(true) else { return };
    assert_eq!((by_kernel, shutdown), (by_ring, shutdown_of_ring));
    let (ring, all) = super::reported_datagram_counts(&errors);
    println!("{ring} of {all} datagrams from the ring: {errors}");
    // The ring is preserved across the duplication.
    assert!(
        ring as usize >= 3 * DATAGRAMS_UNTIL_PROMOTION && ring * 100 >= all * 95,
        "{ring} of {all}"
    );
}

/// Sends `count` datagrams of 1400 bytes while the server waits to open a FIFO, so that it does not
/// receive. Returns the number of these datagrams that the server receives afterwards.
fn fill_receive_buffer(client: &UdpSocket, count: usize) -> u64 {
    let count_received = || ask_server(client, b"ask").parse::<u64>().unwrap();
    let before = count_received();
    let folder = Folder::new();
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    exchange_datagram(client, format!("pause {}", fifo.display()).as_bytes());
    let mut bytes = [b' '; 1400];
    bytes[..4].copy_from_slice(b"fill");
    for _ in 0..count {
        client.send_to(&bytes, server_address()).unwrap();
    }
    drop(File::create(&fifo).unwrap());
    count_received() - before
}

#[test]
fn c1_receive_buffer_size_is_that_of_the_ring() {
    let Some((pair, ..)) = prepare_server_test() else { return };
    if need::require_command("python3").is_none() {
        return;
    }
    let server = Server::start(&pair, &["python3", "-c", SERVER_SCRIPT]);
    let client = server.open_client_socket();
    // The kernel returns twice the size that was set.
    assert_eq!(ask_server(&client, b"size 65536"), "131072");
    promote_socket(&client);
    let few = fill_receive_buffer(&client, 2000);
    // The size is set while the socket has a ring. A larger ring then replaces it.
    assert_eq!(ask_server(&client, b"size 16777216"), "33554432");
    promote_socket(&client);
    assert_eq!(ask_server(&client, b"size 16777216"), "33554432");
    promote_socket(&client);
    let all = fill_receive_buffer(&client, 2000);
    let errors = server.finish(&client);
    println!("{few} and {all} of 2000 datagrams received: {errors}");
    assert!(few < 1000, "{few}");
    assert_eq!(all, 2000);
    // The datagrams were in the last ring, and not in the socket, whose buffer has the same size.
    let last = errors.lines().rfind(|line| line.contains("datagrams came from the ring")).unwrap();
    let (before, _) = last.split_once(" of ").unwrap();
    let from_ring: u64 = before.split(' ').next_back().unwrap().parse().unwrap();
    assert!(from_ring >= 2000, "{errors}");
}
