//! Tests of sockets that share a port (`SO_REUSEPORT`), and of processes that share a socket.

use super::{
    DATAGRAMS_UNTIL_PROMOTION, PORT, REPLY_TIMEOUT, Server, attached_ingress_program_count,
    exchange_datagram, exchange_numbered_datagrams, prepare_server_test, receive_datagram,
    reported_counts_per_socket, server_address,
};
use std::net::UdpSocket;
use testkit::net::SERVER_DEVICE;
use testkit::{need, wait_until};

/// Python server with two processes, each of which binds a separate socket to the same port. The
/// reply to a datagram is the number of the process, 1 or 2, followed by the bytes of the datagram.
/// The first argument is the script itself.
const TWO_PROCESS_SERVER: &str = "
import os, signal, socket, subprocess, sys
# A shell may have started the tests with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
is_first = len(sys.argv) == 2
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind(('', 5400))
if is_first:
    command = [sys.executable, '-c', sys.argv[1], sys.argv[1], 'second']
    other = subprocess.Popen(command, stdout=subprocess.PIPE, close_fds=False)
    other.stdout.readline()
    print('ready', file=sys.stderr, flush=True)
else:
    print('bound', flush=True)
try:
    while True:
        data, sender = s.recvfrom(65536)
        s.sendto(data if data == b'quit' else (b'1' if is_first else b'2') + data, sender)
        if data == b'quit':
            if not is_first: os.kill(os.getppid(), signal.SIGINT)
            break
except KeyboardInterrupt:
    pass
s.close()
if is_first:
    other.send_signal(signal.SIGINT)
    other.wait()
";

/// Sends a datagram to a server of [`TWO_PROCESS_SERVER`]. Returns the number of the process that
/// replied.
fn ask_for_process_number(client: &UdpSocket, bytes: &[u8]) -> u8 {
    client.send_to(bytes, server_address()).unwrap();
    let mut room = [0; 100];
    let (length, _) = receive_datagram(client, &mut room);
    assert_eq!(&room[1..length], bytes);
    room[0]
}

#[test]
fn c1_flow_stays_with_its_process_among_those_that_share_a_port() {
    let Some((pair, ..)) = prepare_server_test() else { return };
    if need::require_command("python3").is_none() {
        return;
    }
    let server = Server::start(&pair, &["python3", "-c", TWO_PROCESS_SERVER, TWO_PROCESS_SERVER]);
    let clients: Vec<UdpSocket> = (0..32).map(|_| server.open_client_socket()).collect();
    // These datagrams suffice to promote the socket of each process.
    for client in clients.iter().cycle().take(clients.len() * 20) {
        ask_for_process_number(client, b"warm");
    }
    let mut served = [0; 2];
    for client in &clients {
        let member = ask_for_process_number(client, b"x");
        assert!(
            (0..50_u32)
                .all(|number| ask_for_process_number(client, &number.to_be_bytes()) == member)
        );
        served[usize::from(member - b'1')] += 1;
    }
    assert!(served.iter().all(|flows| *flows >= 4), "{served:?}");
    let errors = server.finish(&clients[0]);
    let lines = reported_counts_per_socket(&errors);
    assert_eq!(lines.len(), 2, "{errors}");
    for (ring, all) in lines {
        println!("{ring} of {all} from the ring");
        assert!(ring * 100 >= all * 80, "{ring} of {all}");
    }
}

#[test]
fn flow_stays_with_its_process_while_processes_sleep() {
    let Some((pair, ..)) = prepare_server_test() else { return };
    if need::require_command("python3").is_none() {
        return;
    }
    let words = ["python3", "-c", TWO_PROCESS_SERVER, TWO_PROCESS_SERVER];
    let server = Server::start_with_options(&pair, "report,always", &words);
    let clients: Vec<UdpSocket> = (0..16).map(|_| server.open_client_socket()).collect();
    for client in clients.iter().cycle().take(clients.len() * 30) {
        ask_for_process_number(client, b"warm");
    }
    for client in &clients {
        let member = ask_for_process_number(client, b"x");
        for round in 0..10_u32 {
            // Several datagrams at once keep the process awake. Afterwards, it sleeps.
            (0..8)
                .for_each(|_| _ = client.send_to(&round.to_be_bytes(), server_address()).unwrap());
            let mut room = [0; 100];
            for _ in 0..8 {
                let (length, _) = receive_datagram(client, &mut room);
                assert_eq!((room[0], length), (member, 5), "round {round}");
            }
        }
    }
    server.finish(&clients[0]);
}

#[test]
fn socket_takes_over_the_flows_of_a_closed_one() {
    let Some((pair, ..)) = prepare_server_test() else { return };
    if need::require_command("python3").is_none() {
        return;
    }
    let script = "
import select, socket, sys
def bound():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(('', 5400))
    return s
all = [bound(), bound()]
print('ready', file=sys.stderr, flush=True)
data = b''
while data != b'quit':
    for s in select.select(all, [], [])[0]:
        data, sender = s.recvfrom(65536)
        if data == b'close' and len(all) == 2: all.pop().close()
        all[0].sendto(data, sender)
";
    let server = Server::start(&pair, &["python3", "-c", script]);
    let clients: Vec<UdpSocket> = (0..32).map(|_| server.open_client_socket()).collect();
    let exchange_by_all = || clients.iter().for_each(|client| exchange_datagram(client, b"warm"));
    (0..30).for_each(|_| exchange_by_all());
    exchange_datagram(&clients[0], b"close");
    // The closed socket reports the counts of its ring. Then the other socket reports the counts of
    // the ring for its own flows, before it is promoted again for all flows.
    wait_until("the other socket takes all flows", || {
        exchange_by_all();
        server.errors().matches("datagrams came from the ring").count() == 2
    });
    (0..30).for_each(|_| exchange_by_all());
    let lines = reported_counts_per_socket(&server.finish(&clients[0]));
    let [_, _, (ring, all)] = lines[..] else { panic!("{lines:?}") };
    println!("{ring} of {all} from the ring");
    assert!(ring >= 700 && ring * 100 >= all * 95, "{ring} of {all}");
}

#[test]
fn socket_is_promoted_again_after_its_forked_child_exits() {
    let Some((pair, ..)) = prepare_server_test() else { return };
    if need::require_command("python3").is_none() {
        return;
    }
    let script = "
import os, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 5400))
print('ready', file=sys.stderr, flush=True)
data = b''
while data != b'quit':
    data, sender = s.recvfrom(65536)
    if data == b'fork':
        child = os.fork()
        if child == 0: os._exit(0)
        os.waitpid(child, 0)
    s.sendto(data, sender)
";
    let server = Server::start(&pair, &["python3", "-c", script]);
    let client = server.open_client_socket();
    exchange_numbered_datagrams(&client, DATAGRAMS_UNTIL_PROMOTION);
    assert_eq!(attached_ingress_program_count(&pair), 1);
    exchange_datagram(&client, b"fork");
    assert_eq!(attached_ingress_program_count(&pair), 0);
    exchange_numbered_datagrams(&client, 2 * DATAGRAMS_UNTIL_PROMOTION);
    assert_eq!(attached_ingress_program_count(&pair), 1);
    let lines = reported_counts_per_socket(&server.finish(&client));
    let [_, (ring, all)] = lines[..] else { panic!("{lines:?}") };
    assert!(ring >= 200 && ring * 100 >= all * 95, "{ring} of {all}");
}

/// Python server with two sockets at one port. The kernel delivers datagrams from the cable only to
/// the first socket, because this socket is bound to the interface, and was bound after the second
/// one. The second socket may belong to another process. The reply is the number of the socket, 1
/// or 2, followed by the bytes of the datagram.
const DEVICE_BOUND_SERVER: &str = "
import select, socket, subprocess, sys
device = sys.argv[2].encode()
role = sys.argv[3]
def bound(is_bound):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if is_bound: s.setsockopt(socket.SOL_SOCKET, 25, device)
    s.bind(('', 5400))
    return s
names = {}
if role == 'second':
    names[bound(False)] = b'2'
    print('bound', flush=True)
else:
    if role == 'apart':
        command = [sys.executable, '-c', sys.argv[1], sys.argv[1], sys.argv[2], 'second']
        other = subprocess.Popen(command, stdout=subprocess.PIPE)
        other.stdout.readline()
    else:
        names[bound(False)] = b'2'
    names[bound(True)] = b'1'
    print('ready', file=sys.stderr, flush=True)
data = b''
while data != b'quit':
    for s in select.select(list(names), [], [])[0]:
        data, sender = s.recvfrom(65536)
        s.sendto(data if data == b'quit' else names[s] + data, sender)
if role == 'apart':
    other.kill()
    other.wait()
";

#[test]
fn datagrams_of_an_interface_reach_the_socket_bound_to_it() {
    let Some((pair, ..)) = prepare_server_test() else { return };
    if need::require_command("python3").is_none() {
        return;
    }
    for role in ["together", "apart"] {
        let script = DEVICE_BOUND_SERVER;
        let words = ["python3", "-c", script, script, SERVER_DEVICE, role];
        let server = Server::start(&pair, &words);
        let clients: Vec<UdpSocket> = (0..16).map(|_| server.open_client_socket()).collect();
        // The other socket receives datagrams from the host itself.
        let local =
            pair.server.run_in_network_namespace(|| UdpSocket::bind("127.0.0.1:0").unwrap());
        local.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
        let mut room = [0; 100];
        for _ in 0..2 * DATAGRAMS_UNTIL_PROMOTION {
            local.send_to(b"local", ("127.0.0.1", PORT)).unwrap();
            receive_datagram(&local, &mut room);
        }
        for client in clients.iter().cycle().take(40 * 16) {
            assert_eq!(ask_for_process_number(client, b"cable"), b'1', "{role}");
        }
        server.finish(&clients[0]);
    }
}

#[test]
fn socket_that_a_hidden_child_may_have_stays_with_the_kernel() {
    let Some((pair, ..)) = prepare_server_test() else { return };
    if need::require_command("python3").is_none() || need::require_command("setpriv").is_none() {
        return;
    }
    // Without CAP_SYS_PTRACE, the parent cannot inspect a child that is not dumpable.
    let script = "
import ctypes, os, signal, socket, sys
libc = ctypes.CDLL(None)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 5400))
print('ready', file=sys.stderr, flush=True)
data = b''
while data != b'quit':
    data, sender = s.recvfrom(65536)
    if data == b'fork':
        child = os.fork()
        if child == 0:
            libc.prctl(4, 0, 0, 0, 0)
            print('hidden', file=sys.stderr, flush=True)
            signal.pause()
    s.sendto(data, sender)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
";
    let words = ["setpriv", "--bounding-set", "-sys_ptrace", "python3", "-c", script];
    let server = Server::start(&pair, &words);
    let client = server.open_client_socket();
    exchange_numbered_datagrams(&client, DATAGRAMS_UNTIL_PROMOTION);
    assert_eq!(attached_ingress_program_count(&pair), 1);
    exchange_datagram(&client, b"fork");
    wait_until("the child is hidden", || server.errors().contains("hidden"));
    exchange_numbered_datagrams(&client, 2 * DATAGRAMS_UNTIL_PROMOTION);
    assert_eq!(attached_ingress_program_count(&pair), 0);
    let errors = server.finish(&client);
    assert!(errors.contains("may have inherited"), "{errors}");
}
