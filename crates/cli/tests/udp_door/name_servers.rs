//! Tests of name servers from packages of the distribution. Their replies must be the same with and
//! without a ring.

use super::{
    PORT, REPLY_TIMEOUT, STREAMLINE, prepare_server_test, receive_datagram,
    reported_counts_per_socket,
};
use crate::common::{ChildGuard, Folder};
use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use testkit::net::{NamespacePair, SERVER, SERVER6};
use testkit::{need, wait_until};

/// A name server under test, with its arguments and the sockets that it opens.
struct NameServer<'s> {
    program: &'s str,
    /// Arguments of the name server that precede the name of its configuration file.
    arguments: &'s [&'s str],
    /// Text that the server prints when it is ready to reply.
    ready: &'s str,
    /// The addresses of the server to which the test sends queries.
    hosts: &'s [&'s str],
    /// Number of sockets that the name server opens at each address. They share a port.
    sockets: usize,
    /// True if several processes of the server share each socket. Such a socket cannot be promoted.
    shares_sockets: bool,
}

/// Returns a DNS query with the id `number` for the IPv4 address of `hN.example`, where N is
/// `number` modulo 50.
fn dns_query(number: u16) -> Vec<u8> {
    let mut bytes = [number.to_be_bytes(), [0, 0], [0, 1]].concat();
    bytes.extend([0; 6]);
    for label in [format!("h{}", number % 50), "example".to_owned()] {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// Number of client sockets, among which the queries are distributed.
const CLIENT_SOCKET_COUNT: usize = 64;

/// Sends `count` queries to a name server, and returns its replies.
fn ask_name_server(pair: &NamespacePair, host: &str, count: u16) -> Vec<Vec<u8>> {
    let server = SocketAddr::new(host.parse().unwrap(), PORT);
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let clients: Vec<UdpSocket> = pair.client.run_in_network_namespace(|| {
        (0..CLIENT_SOCKET_COUNT).map(|_| UdpSocket::bind(any).unwrap()).collect()
    });
    for client in &clients {
        client.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
    }
    let mut room = vec![0; 1 << 16];
    let answers = (0..count).map(|number| {
        let client = &clients[usize::from(number) % CLIENT_SOCKET_COUNT];
        client.send_to(&dns_query(number), server).unwrap();
        let (length, from) = receive_datagram(client, &mut room);
        assert_eq!(from, server);
        room[..length].to_vec()
    });
    answers.collect()
}

/// Runs a name server twice, without and with rings, and sends it the same queries. Asserts that
/// the replies are equal, and that the server received most datagrams of the second run from the
/// ring.
fn compare_answers_with_and_without_ring(
    configuration: impl Fn(&str) -> String,
    server: &NameServer<'_>,
) {
    let Some((pair, _folder, _)) = prepare_server_test() else { return };
    let Some(program) = need::require_command(server.program) else { return };
    let program = program.display().to_string();
    let folder = Folder::new();
    let hosts: String = (0..50).map(|n| format!("h{n} IN A 10.1.2.{n}\n")).collect();
    let zone =
        format!("$TTL 60\n@ IN SOA ns a 1 60 60 60 60\n@ IN NS ns\nns IN A {SERVER}\n{hosts}");
    std::fs::write(folder.path().join("zone"), zone).unwrap();
    let file = folder.path().join("configuration");
    std::fs::write(&file, configuration(&folder.path().display().to_string())).unwrap();
    // Name servers drop the privilege to load programs when they start, so a daemon loads them.
    let mut daemon = pair.server.command(STREAMLINE);
    folder.set_environment(&mut daemon);
    let socket = folder.path().join("no-daemon");
    let _daemon = ChildGuard(daemon.arg("daemon").arg("--socket").arg(socket).spawn().unwrap());
    wait_until("a daemon answers", || folder.run(&["ps"]).status == Some(0));
    let answers = [false, true].map(|is_ours| {
        let mut command = pair.server.command(if is_ours { STREAMLINE } else { &program });
        if is_ours {
            command.args(["exec", "--with=udp", &program]);
        }
        command.args(server.arguments).arg(&file);
        folder.set_environment(&mut command);
        command.env("STREAMLINE_UDP", "report,spin");
        let output = File::create(folder.path().join("output")).unwrap();
        command.stdout(output.try_clone().unwrap()).stderr(output);
        let mut process = ChildGuard(command.spawn().unwrap());
        wait_until("the server answers", || folder.read("output").contains(server.ready));
        let count = if server.sockets == 1 { 600 } else { 3000 };
        let asked = server.hosts.iter().map(|host| ask_name_server(&pair, host, count));
        let answers: Vec<_> = asked.collect();
        let number = process.0.id().to_string();
        assert!(Command::new("kill").arg(&number).status().unwrap().success());
        process.0.wait().unwrap();
        if is_ours && server.shares_sockets {
            let output = folder.read("output");
            eprintln!("{}: no datagram came from a ring: {output}", server.program);
            assert!(output.contains("another process has the socket"), "{output}");
            assert!(reported_counts_per_socket(&output).is_empty(), "{output}");
        } else if is_ours {
            let found = reported_counts_per_socket(&folder.read("output"));
            let expected = server.hosts.len() * server.sockets;
            assert_eq!(found.len(), expected, "{}", folder.read("output"));
            // Until all sockets of a port have a ring, each socket also receives datagrams for the
            // others.
            let least = if server.sockets == 1 { 95 } else { 80 };
            for (ring, all) in found {
                eprintln!("{}: {ring} of {all} datagrams from the ring", server.program);
                assert!(ring >= 100 && ring * 100 >= all * least, "{ring} of {all}");
            }
        }
        answers
    });
    assert_eq!(answers[0], answers[1]);
    for of_host in &answers[1] {
        assert!(of_host[7].windows(4).any(|address| address == [10, 1, 2, 7]));
    }
}

#[test]
fn named_answers_from_its_ring_as_from_its_socket() {
    compare_named_answers(1);
}

/// Each thread of the server has a separate socket, at the same port.
#[test]
fn threads_of_named_answer_each_from_a_ring() {
    compare_named_answers(2);
}

fn compare_named_answers(threads: usize) {
    let configuration = |place: &str| {
        format!(
            "options {{ directory \"{place}\"; listen-on port {PORT} {{ {SERVER}; }};\n\
             listen-on-v6 {{ none; }}; recursion no; pid-file none; session-keyfile none;\n\
             managed-keys-directory \"{place}\"; dnssec-validation no; }};\n\
             controls {{ }};\n\
             zone \"example\" {{ type primary; file \"{place}/zone\"; }};\n"
        )
    };
    let server = NameServer {
        program: "named",
        arguments: &["-g", "-4", "-n", &threads.to_string(), "-c"],
        ready: "all zones loaded",
        hosts: &[SERVER],
        sockets: threads,
        shares_sockets: false,
    };
    compare_answers_with_and_without_ring(configuration, &server);
}

/// Knot binds one socket per address family, and replies from the address that `IP_PKTINFO` or
/// `IPV6_PKTINFO` reports.
#[test]
fn knot_answers_from_its_rings_of_both_families() {
    compare_knot_answers(1);
}

#[test]
fn workers_of_knot_answer_each_from_a_ring() {
    compare_knot_answers(3);
}

fn compare_knot_answers(workers: usize) {
    let configuration = |place: &str| {
        format!(
            "server:\n  rundir: \"{place}\"\n  listen: [ 0.0.0.0@{PORT}, ::@{PORT} ]\n  \
             udp-workers: {workers}\n  tcp-workers: 1\n  background-workers: 1\n\
             database:\n  storage: \"{place}\"\n\
             log:\n  - target: stderr\n    any: info\n\
             zone:\n  - domain: example\n    storage: \"{place}\"\n    file: zone\n"
        )
    };
    let server = NameServer {
        program: "knotd",
        arguments: &["-c"],
        ready: "server started",
        hosts: &[SERVER, SERVER6],
        sockets: workers,
        shares_sockets: false,
    };
    compare_answers_with_and_without_ring(configuration, &server);
}

/// NSD opens its sockets before it forks its servers, so its processes share them.
#[test]
fn nsd_answers_from_its_sockets_with_a_note() {
    compare_nsd_answers(1);
}

#[test]
fn forked_servers_of_nsd_answer_with_a_note() {
    compare_nsd_answers(2);
}

fn compare_nsd_answers(servers: usize) {
    let reuses = if servers > 1 { "yes" } else { "no" };
    let configuration = |place: &str| {
        format!(
            "server:\n  ip-address: {SERVER}@{PORT}\n  server-count: {servers}\n  \
             rrl-ratelimit: 0\n  reuseport: {reuses}\n  username: \"\"\n  zonesdir: \"{place}\"\n  \
             database: \"\"\n  pidfile: \"\"\n  zonelistfile: \"{place}/zones\"\n  \
             xfrdfile: \"{place}/xfrd\"\n  \
             xfrdir: \"{place}\"\nremote-control:\n  control-enable: no\n\
             zone:\n  name: example\n  zonefile: zone\n"
        )
    };
    let server = NameServer {
        program: "nsd",
        arguments: &["-d", "-c"],
        ready: "nsd started",
        hosts: &[SERVER],
        sockets: servers,
        shares_sockets: true,
    };
    compare_answers_with_and_without_ring(configuration, &server);
}
