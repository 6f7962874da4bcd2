//! Tests of the default mode of `exec --with=udp`, in which the ring is used only at high rates and
//! while the server is awake. While the server sleeps, datagrams arrive at its socket.

use super::{
    PORT, Server, attached_ingress_program_count, exchange_datagram, exchange_datagrams_at_once,
    exchange_numbered_datagrams, prepare_server_test, receive_datagram, reported_datagram_counts,
    server_address,
};
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};
use testkit::wait_until;

/// Maximum number of datagrams in flight, that is, without a reply. With so many, the server always
/// finds the next datagram without sleeping.
const DATAGRAMS_IN_FLIGHT: u32 = 32;

/// Sends `count` numbered datagrams, with up to [`DATAGRAMS_IN_FLIGHT`] in flight. Asserts that the
/// replies arrive in the order of the datagrams.
fn exchange_datagrams_in_order(client: &UdpSocket, count: u32) {
    let (mut sent, mut answered) = (0, 0);
    let mut room = [0; 100];
    while answered < count {
        while sent < count && sent - answered < DATAGRAMS_IN_FLIGHT {
            client.send_to(&sent.to_be_bytes(), server_address()).unwrap();
            sent += 1;
        }
        let (length, _) = receive_datagram(client, &mut room);
        assert_eq!(room[..length], answered.to_be_bytes());
        answered += 1;
    }
}

/// Exchanges datagrams at the highest rate until the server's socket is promoted. Returns false if
/// this machine does not reach the rate at which sockets are promoted.
fn exchange_until_promoted(server: &Server<'_>, client: &UdpSocket) -> bool {
    (0..50).any(|_| {
        exchange_datagrams_in_order(client, 2000);
        attached_ingress_program_count(server.pair) == 1
    })
}

const WAIT_METHODS: [(&str, &str); 6] = [
    ("none", "recvfrom"),
    ("none", "recvmmsg"),
    ("poll", "recvmsg"),
    ("select", "recvfrom"),
    ("level", "syscall"),
    ("edge", "recvmmsg"),
];

/// Exchanges datagrams with servers that wait and receive in different ways. The pauses between
/// groups of datagrams are 0 to 39 times `step`. Asserts that the replies are in order, and that
/// some datagrams came from the ring and some from the socket.
fn exchange_with_pauses(options: &str, step: Duration) {
    let Some((pair, _folder, program)) = prepare_server_test() else { return };
    let program = program.display().to_string();
    for (wait, call) in WAIT_METHODS {
        let words = [&program, &PORT.to_string(), wait, call];
        let server = Server::start_with_options(&pair, options, &words);
        let client = server.open_client_socket();
        assert!(exchange_until_promoted(&server, &client));
        for round in 0..400_u32 {
            exchange_datagrams_in_order(&client, 1 + round % 50);
            let begun = Instant::now();
            while begun.elapsed() < step * (round % 40) {
                std::hint::spin_loop();
            }
        }
        // This datagram arrives in fragments, which the kernel reassembles, so it does not come
        // from the ring.
        exchange_datagram(&client, &[7; 3000]);
        let errors = server.finish(&client);
        let (ring, all) = reported_datagram_counts(&errors);
        assert!(ring > 0 && ring < all, "{wait} {call}: {errors}");
        assert_eq!(attached_ingress_program_count(&pair), 0, "{wait} {call}");
    }
}

#[test]
fn sleeping_server_receives_from_its_socket_in_order() {
    // The pauses cover all lengths around the time after which the server falls asleep.
    exchange_with_pauses("report,always", Duration::from_micros(3));
}

#[test]
fn late_registration_wakes_the_thread_that_sleeps_in_the_set() {
    let Some((pair, _folder, program)) = prepare_server_test() else { return };
    let program = program.display().to_string();
    for (options, call) in [
        ("report,always", "recvfrom"),
        ("report,always", "recvmmsg"),
        ("report,always,spin", "recvfrom"),
    ] {
        let words = [&program, &PORT.to_string(), "late", call];
        let server = Server::start_with_options(&pair, options, &words);
        let client = server.open_client_socket();
        assert!(exchange_until_promoted(&server, &client));
        // With these options, the ring stays in use after each datagram.
        exchange_datagram(&client, b"late");
        exchange_datagrams_in_order(&client, DATAGRAMS_IN_FLIGHT);
        exchange_datagrams_in_order(&client, 2000);
        server.finish(&client);
    }
}

#[test]
fn server_with_a_delay_receives_in_order_from_ring_and_socket() {
    // The pauses are shorter and longer than the delay.
    exchange_with_pauses("report,always,delay=300", Duration::from_micros(15));
}

#[test]
fn socket_that_receives_few_datagrams_is_not_promoted() {
    let Some((pair, _folder, program)) = prepare_server_test() else { return };
    let program = program.display().to_string();
    let words = [&program, &PORT.to_string(), "level", "recvfrom"];
    let server = Server::start_with_options(&pair, "report", &words);
    let client = server.open_client_socket();
    for _ in 0..50 {
        exchange_numbered_datagrams(&client, 20);
        thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(attached_ingress_program_count(&pair), 0);
    if !exchange_until_promoted(&server, &client) {
        println!("skipped the end of a ring: 20,000 datagrams a second are not reached");
        return;
    }
    // At a low rate, the socket is no longer served from a ring.
    wait_until("the program is gone", || {
        exchange_numbered_datagrams(&client, 1);
        thread::sleep(Duration::from_millis(1));
        attached_ingress_program_count(&pair) == 0
    });
    exchange_datagrams_at_once(&client, 64);
    server.finish(&client);
}

#[test]
fn thread_that_sleeps_is_woken_while_another_one_works() {
    let Some((pair, _folder, program)) = prepare_server_test() else { return };
    let program = program.display().to_string();
    let words = [&program, &PORT.to_string(), "threads", "recvfrom"];
    for options in ["report", "report,always", "report,spin"] {
        let server = Server::start_with_options(&pair, options, &words);
        let client = server.open_client_socket();
        for _ in 0..20 {
            exchange_datagrams_at_once(&client, 200);
        }
        for _ in 0..3 {
            // One thread pauses for 1 s; the other one replies in the meantime.
            client.send_to(b"pause", server_address()).unwrap();
            exchange_datagram(&client, b"other");
            let mut room = [0; 100];
            let (length, _) = receive_datagram(&client, &mut room);
            assert_eq!(&room[..length], b"pause");
        }
        server.finish(&client);
    }
}

#[test]
fn socket_of_a_nested_epoll_set_stays_with_the_kernel() {
    let Some((pair, _folder, program)) = prepare_server_test() else { return };
    let program = program.display().to_string();
    let words = [&program, &PORT.to_string(), "nested", "recvmmsg"];
    let server = Server::start(&pair, &words);
    let client = server.open_client_socket();
    (0..20).for_each(|_| exchange_datagrams_at_once(&client, 64));
    assert_eq!(attached_ingress_program_count(&pair), 0);
    server.finish(&client);
}
