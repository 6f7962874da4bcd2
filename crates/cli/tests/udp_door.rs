//! Tests of `streamline exec --with=udp` with servers over a virtual cable. The replies of the
//! servers must match the datagrams sent, and the servers must receive most datagrams from the
//! ring.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

#[path = "udp_door/changed_conditions.rs"]
mod changed_conditions;
mod common;
#[path = "udp_door/control_messages.rs"]
mod control_messages;
#[path = "udp_door/descriptors.rs"]
mod descriptors;
#[path = "udp_door/drops.rs"]
mod drops;
#[path = "udp_door/epoll_modes.rs"]
mod epoll_modes;
#[path = "udp_door/name_servers.rs"]
mod name_servers;
#[path = "udp_door/quic.rs"]
mod quic;
#[path = "udp_door/services.rs"]
mod services;
#[path = "udp_door/shared_sockets.rs"]
mod shared_sockets;
#[path = "udp_door/sleeping_servers.rs"]
mod sleeping_servers;

use common::{ChildGuard, Folder};
use std::fs::File;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use sys::bpf::{TrafficDirection, tcx_chain};
use sys::net::RouteSocket;
use testkit::net::{CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER, SERVER_DEVICE};
use testkit::{need, wait_until};

const STREAMLINE: &str = env!("CARGO_BIN_EXE_streamline");
/// UDP port on which the servers of these tests listen.
const PORT: u16 = 5400;
/// Number of datagrams after which a server's socket has certainly been promoted, that is, receives
/// from a ring.
const DATAGRAMS_UNTIL_PROMOTION: usize = 160;
/// Maximum time that a test waits for a reply of the server.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// A server that runs under `streamline exec --with=udp` in the server's namespace.
struct Server<'p> {
    pair: &'p NamespacePair,
    folder: Folder,
    process: ChildGuard,
}

/// Creates a cable, and compiles the C server. Reports a skip and returns `None` if the machine
/// does not permit the test.
fn prepare_server_test() -> Option<(NamespacePair, Folder, PathBuf)> {
    need::require_bpf()?;
    need::require_command("cc")?;
    let pair = NamespacePair::new(DevicePairSettings::default())?;
    common::build_pipes_library();
    common::build_udp_library();
    let folder = Folder::new();
    let program = compile_server("echo.c", &folder);
    Some((pair, folder, program))
}

/// Compiles a C program of these tests in a directory. Returns the path of the executable.
fn compile_server(source: &str, folder: &Folder) -> PathBuf {
    let program = folder.path().join("server");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/udp_door").join(source);
    let mut command = Command::new("cc");
    command.args(["-O1", "-Wall", "-Werror", "-o"]).arg(&program).arg(source);
    let built = command.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}

impl<'p> Server<'p> {
    /// Starts a server, and waits until it is ready. The option `spin` makes the server use its
    /// ring even at a low rate of datagrams.
    fn start(pair: &'p NamespacePair, words: &[&str]) -> Self {
        Self::start_with_options(pair, "report,spin", words)
    }

    /// Starts a server with `options` in the environment variable `STREAMLINE_UDP`, and waits until
    /// it is ready.
    fn start_with_options(pair: &'p NamespacePair, options: &str, words: &[&str]) -> Self {
        let folder = Folder::new();
        let mut command = pair.server.command(STREAMLINE);
        command.args(["exec", "--with=udp"]).args(words).current_dir(folder.path());
        folder.set_environment(&mut command);
        command.env("STREAMLINE_UDP", options);
        command.stderr(File::create(folder.path().join("err")).unwrap());
        let process = ChildGuard(command.spawn().unwrap());
        let server = Self { pair, folder, process };
        wait_until("the server is ready", || server.errors().contains("ready"));
        server
    }

    fn errors(&self) -> String {
        self.folder.read("err")
    }

    /// Opens a socket in the client's namespace.
    fn open_client_socket(&self) -> UdpSocket {
        let socket =
            self.pair.client.run_in_network_namespace(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        socket.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
        socket
    }

    /// Sends `quit` to the server, and waits until it has exited. Returns its standard error.
    fn finish(mut self, client: &UdpSocket) -> String {
        exchange_datagram(client, b"quit");
        wait_until("the server ends", || self.process.0.try_wait().unwrap().is_some());
        let status = self.process.0.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.errors());
        self.errors()
    }
}

fn server_address() -> SocketAddr {
    SocketAddr::new(SERVER.parse().unwrap(), PORT)
}

/// Sends a datagram to the server. Asserts that the server replies with the same bytes.
fn exchange_datagram(client: &UdpSocket, bytes: &[u8]) {
    client.send_to(bytes, server_address()).unwrap();
    let mut room = vec![0; 1 << 16];
    let (length, from) = receive_datagram(client, &mut room);
    assert_eq!((&room[..length], from), (bytes, server_address()));
}

/// Receives a datagram. Repeats the call if a signal interrupts it.
fn receive_datagram(client: &UdpSocket, room: &mut [u8]) -> (usize, SocketAddr) {
    loop {
        match client.recv_from(room) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => return received.unwrap(),
        }
    }
}

/// Exchanges numbered datagrams of different sizes.
fn exchange_numbered_datagrams(client: &UdpSocket, count: usize) {
    for number in 0..count {
        let mut bytes = vec![number as u8; 4 + number % 1400];
        bytes[..4].copy_from_slice(&(number as u32).to_be_bytes());
        exchange_datagram(client, &bytes);
    }
}

/// Sends several datagrams at once. Asserts that the server replies once to each of them.
fn exchange_datagrams_at_once(client: &UdpSocket, count: u32) {
    for number in 0..count {
        client.send_to(&number.to_be_bytes(), server_address()).unwrap();
    }
    let mut room = [0; 100];
    let mut answers: Vec<u32> = (0..count)
        .map(|_| {
            let (length, _) = receive_datagram(client, &mut room);
            u32::from_be_bytes(room[..length].try_into().unwrap())
        })
        .collect();
    answers.sort_unstable();
    assert_eq!(answers, (0..count).collect::<Vec<_>>());
}

/// Returns two counts from the report of the first socket that was promoted to a ring: the
/// datagrams from the ring, and all datagrams since the promotion.
fn reported_datagram_counts(errors: &str) -> (u64, u64) {
    reported_counts_per_socket(errors)
        .first()
        .copied()
        .unwrap_or_else(|| panic!("no report: {errors}"))
}

/// Returns, for each promoted socket, the two counts that [`reported_datagram_counts`] describes.
fn reported_counts_per_socket(errors: &str) -> Vec<(u64, u64)> {
    let is_report = |line: &&str| line.contains("datagrams came from the ring");
    let numbers = |line: &str| {
        assert!(line.ends_with("; 0 lost, 0 damaged"), "{line}");
        let words: Vec<&str> = line.split_whitespace().collect();
        let of = words.iter().position(|word| *word == "of").unwrap();
        (words[of - 1].parse().unwrap(), words[of + 1].parse().unwrap())
    };
    errors.lines().filter(is_report).map(numbers).collect()
}

/// Returns the number of BPF programs attached to the ingress of the server's interface.
fn attached_ingress_program_count(pair: &NamespacePair) -> usize {
    pair.server.run_in_network_namespace(|| {
        let index = RouteSocket::open().unwrap().interface_by_name(SERVER_DEVICE).unwrap().index;
        tcx_chain(index, TrafficDirection::Ingress).unwrap().members.len()
    })
}

#[test]
fn c1_udp_servers_receive_from_their_ring_with_each_call() {
    let Some((pair, _folder, program)) = prepare_server_test() else { return };
    let program = program.display().to_string();
    let ways = [
        ("none", "recvfrom"),
        ("none", "recvmmsg"),
        ("poll", "recvmsg"),
        ("select", "recvfrom"),
        ("level", "recvfrom"),
        ("level", "syscall"),
        ("edge", "recvmsg"),
        ("edge", "recvmmsg"),
    ];
    for (wait, call) in ways {
        let server = Server::start(&pair, &[&program, &PORT.to_string(), wait, call]);
        let client = server.open_client_socket();
        exchange_numbered_datagrams(&client, 400);
        exchange_datagrams_at_once(&client, 64);
        exchange_datagram(&client, b"");
        // This datagram arrives in fragments, which the kernel reassembles, so it does not come
        // from the ring.
        exchange_datagram(&client, &[7; 3000]);
        exchange_datagrams_at_once(&client, 8);
        let errors = server.finish(&client);
        let (ring, all) = reported_datagram_counts(&errors);
        assert!(ring * 100 >= all * 95 && all - ring >= 1, "{wait} {call}: {errors}");
        assert_eq!(attached_ingress_program_count(&pair), 0, "{wait} {call}");
    }
}

#[test]
fn socket_that_other_processes_share_returns_to_the_kernel() {
    let Some((pair, _folder, program)) = prepare_server_test() else { return };
    let program = program.display().to_string();
    let server = Server::start(&pair, &[&program, &PORT.to_string(), "poll", "recvfrom"]);
    let client = server.open_client_socket();
    exchange_numbered_datagrams(&client, DATAGRAMS_UNTIL_PROMOTION);
    assert_eq!(attached_ingress_program_count(&pair), 1);
    exchange_datagram(&client, b"fork");
    // Until the program is detached, datagrams are copied to the ring of the parent, which does not
    // read while it waits for its child.
    wait_until("the program is gone", || attached_ingress_program_count(&pair) == 0);
    exchange_numbered_datagrams(&client, 50);
    // The child's socket is not promoted, because its parent could receive the same datagrams.
    exchange_numbered_datagrams(&client, 2 * DATAGRAMS_UNTIL_PROMOTION);
    assert_eq!(attached_ingress_program_count(&pair), 0);
    let errors = server.finish(&client);
    assert!(errors.contains("another process has the socket"), "{errors}");
}

#[test]
fn server_outlives_daemon_and_leaves_nothing_when_killed() {
    let Some((pair, _folder, program)) = prepare_server_test() else { return };
    let program = program.display().to_string();
    let mut server = Server::start(&pair, &[&program, &PORT.to_string(), "level", "recvfrom"]);
    let client = server.open_client_socket();
    exchange_numbered_datagrams(&client, DATAGRAMS_UNTIL_PROMOTION);
    assert_eq!(attached_ingress_program_count(&pair), 1);
    server.process.0.kill().unwrap();
    server.process.0.wait().unwrap();
    wait_until("the program is gone", || attached_ingress_program_count(&pair) == 0);

    let shared = Folder::new();
    let mut command = pair.server.command(STREAMLINE);
    shared.set_environment(&mut command);
    let place = shared.path().join("no-daemon").display().to_string();
    let mut daemon = ChildGuard(command.args(["daemon", "--socket", &place]).spawn().unwrap());
    wait_until("a daemon answers", || shared.run(&["ps"]).status == Some(0));
    let mut command = pair.server.command(STREAMLINE);
    command.args(["exec", "--with=udp", &program, &PORT.to_string(), "level", "recvfrom"]);
    shared.set_environment(&mut command);
    command.env("STREAMLINE_UDP", "report,spin");
    command.stderr(File::create(shared.path().join("err")).unwrap());
    let process = ChildGuard(command.spawn().unwrap());
    let server = Server { pair: &pair, folder: shared, process };
    wait_until("the server is ready", || server.errors().contains("ready"));
    exchange_numbered_datagrams(&client, DATAGRAMS_UNTIL_PROMOTION);
    let listing = server.folder.run(&["ps"]).out;
    assert!(listing.contains("server["), "{listing}");
    daemon.0.kill().unwrap();
    daemon.0.wait().unwrap();
    wait_until("the program is gone", || attached_ingress_program_count(&pair) == 0);
    exchange_numbered_datagrams(&client, 50);
    let errors = server.finish(&client);
    let (ring, all) = reported_datagram_counts(&errors);
    // The ring was detached when the daemon was killed.
    assert!(ring > 0 && all < DATAGRAMS_UNTIL_PROMOTION as u64, "{errors}");
}

#[test]
fn sockets_that_only_the_kernel_serves_are_reported() {
    let Some((pair, _folder, _)) = prepare_server_test() else { return };
    if need::require_command("python3").is_none() {
        return;
    }
    let script = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, 6, 1)
s.bind(('', 5400))
print('ready', file=sys.stderr, flush=True)
while True:
    b, _, _, a = s.recvmsg(65536, 1000)
    s.sendto(b, a)
    if b == b'quit': break
";
    let server = Server::start(&pair, &["python3", "-c", script]);
    let client = server.open_client_socket();
    exchange_numbered_datagrams(&client, DATAGRAMS_UNTIL_PROMOTION);
    assert_eq!(attached_ingress_program_count(&pair), 0);
    let errors = server.finish(&client);
    let note = "streamline: udp 0.0.0.0:5400: received by the kernel, not from a ring: it asks for \
                options (IP_RECVOPTS)";
    assert_eq!(errors.matches(note).count(), 1, "{errors}");
}

#[test]
fn python_server_with_selectors_receives_from_its_ring() {
    let Some((pair, _folder, _)) = prepare_server_test() else { return };
    if need::require_command("python3").is_none() {
        return;
    }
    let script = "
import asyncio, sys
class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport): self.transport = transport
    def datagram_received(self, data, address):
        self.transport.sendto(data, address)
        if data == b'quit': done.set_result(None)
async def main():
    global done
    done = asyncio.get_running_loop().create_future()
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        Echo, local_addr=('0.0.0.0', 5400))
    print('ready', file=sys.stderr, flush=True)
    await done
    transport.close()
asyncio.run(main())
";
    let server = Server::start(&pair, &["python3", "-c", script]);
    let client = server.open_client_socket();
    exchange_numbered_datagrams(&client, 400);
    exchange_datagrams_at_once(&client, 64);
    let (ring, all) = reported_datagram_counts(&server.finish(&client));
    assert!(ring * 100 >= all * 95, "{ring} of {all}");
}
