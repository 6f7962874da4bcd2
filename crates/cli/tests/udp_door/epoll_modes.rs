//! Tests of servers whose epoll sets report a socket only once: for each arrival (`EPOLLET`), until
//! the socket is registered again (`EPOLLONESHOT`), or to one of several sets (`EPOLLEXCLUSIVE`).

use super::{
    DATAGRAMS_UNTIL_PROMOTION, PORT, Server, attached_ingress_program_count, compile_server,
    exchange_datagram, exchange_datagrams_at_once, exchange_numbered_datagrams,
    prepare_server_test, receive_datagram, reported_datagram_counts, server_address,
};
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use testkit::net::{NamespacePair, SERVER};
use testkit::wait_until;

/// Number of datagrams that the server leaves in its socket or ring until [`release`] is called.
const UNREAD_DATAGRAMS: u32 = 10;
/// Number of control messages to a server that leaves datagrams unread.
const CONTROL_MESSAGE_COUNT: u64 = 50;

/// Part of the note about a socket that is not promoted to a ring because of its epoll set.
const EPOLL_NOTE: &str = "an epoll set reports it once, or to one of several waiters";

/// The counts that a server reports in its reply to a control message.
#[derive(Clone, Copy, Debug)]
struct EpollCounts {
    /// Number of the server's calls of `epoll_wait` that have returned.
    returns: u64,
    /// Number of `EPOLLIN` events that the server has received for the socket.
    readable: u64,
}

fn prepare_edge_server() -> Option<(NamespacePair, crate::common::Folder, PathBuf)> {
    let (pair, folder, _) = prepare_server_test()?;
    let program = compile_server("edges.c", &folder);
    Some((pair, folder, program))
}

/// Sends a control message to the port after the server's port, and returns the counts in the
/// reply.
fn send_control_message(client: &UdpSocket, word: &str) -> EpollCounts {
    let port = SocketAddr::new(SERVER.parse().unwrap(), PORT + 1);
    client.send_to(word.as_bytes(), port).unwrap();
    let mut room = [0; 100];
    let (length, from) = receive_datagram(client, &mut room);
    assert_eq!(from, port);
    let text = String::from_utf8(room[..length].to_vec()).unwrap();
    let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().unwrap()).collect();
    EpollCounts { returns: numbers[0], readable: numbers[1] }
}

/// Sends `before` datagrams, the datagram `hold`, and [`UNREAD_DATAGRAMS`] further datagrams, all
/// at once. The datagram `hold` makes the server stop reading. Receives the replies up to the reply
/// to `hold`.
fn send_held_datagrams(client: &UdpSocket, before: u32) {
    for _ in 0..before {
        client.send_to(b"before", server_address()).unwrap();
    }
    client.send_to(b"hold", server_address()).unwrap();
    for number in 0..UNREAD_DATAGRAMS {
        client.send_to(&number.to_be_bytes(), server_address()).unwrap();
    }
    let mut room = [0; 100];
    let answers = (0..=before).map(|_| receive_datagram(client, &mut room).0);
    assert_eq!(answers.last(), Some(4));
}

/// Makes the server read the datagrams that it left unread. Asserts that the replies to `count`
/// datagrams arrive in order.
fn release_datagrams(client: &UdpSocket, control_client: &UdpSocket, count: u32) {
    send_control_message(control_client, "go");
    let mut room = [0; 100];
    for number in 0..count {
        let (length, _) = receive_datagram(client, &mut room);
        assert_eq!(room[..length], number.to_be_bytes());
    }
}

#[test]
fn c1_edge_triggered_events_are_neither_lost_nor_repeated() {
    let Some((pair, _folder, program)) = prepare_edge_server() else { return };
    let program = program.display().to_string();
    for options in ["report,spin", "report,always", "report,always,delay=300"] {
        let server =
            Server::start_with_options(&pair, options, &[&program, &PORT.to_string(), "both"]);
        let (client, asker) = (server.open_client_socket(), server.open_client_socket());
        exchange_numbered_datagrams(&client, 400);
        for _ in 0..20 {
            exchange_datagrams_at_once(&client, 64);
        }
        // The kernel reports at most two events per datagram: its arrival, and the departure of the
        // reply.
        let counts = send_control_message(&asker, "count");
        println!("{options}: {counts:?} for {} datagrams", 400 + 20 * 64);
        assert!(counts.returns <= 2 * (400 + 20 * 64) + 10, "{options}: {counts:?}");
        for round in 0..10 {
            send_held_datagrams(&client, round);
            let before = send_control_message(&asker, "count");
            for _ in 0..CONTROL_MESSAGE_COUNT {
                send_control_message(&asker, "count");
            }
            let after = send_control_message(&asker, "count");
            let returns = after.returns - before.returns;
            assert!(
                returns <= CONTROL_MESSAGE_COUNT + 1 + 2,
                "{options}, {round}: {before:?}, {after:?}"
            );
            // The server gets an event for a further datagram, although it has not read the others.
            client.send_to(&UNREAD_DATAGRAMS.to_be_bytes(), server_address()).unwrap();
            wait_until("the server is told", || {
                send_control_message(&asker, "count").readable > after.readable
            });
            release_datagrams(&client, &asker, UNREAD_DATAGRAMS + 1);
            exchange_datagrams_at_once(&client, 8);
        }
        let errors = server.finish(&client);
        let (ring, all) = reported_datagram_counts(&errors);
        println!("{options}: {ring} of {all} datagrams from the ring");
        let least = if options.contains("spin") { 95 } else { 1 };
        assert!(ring * 100 >= all * least, "{options}: {ring} of {all}");
    }
}

#[test]
fn one_shot_and_exclusive_registrations_stay_with_the_kernel() {
    let Some((pair, _folder, program)) = prepare_edge_server() else { return };
    let program = program.display().to_string();
    for way in ["once", "exclusive"] {
        let server = Server::start(&pair, &[&program, &PORT.to_string(), way]);
        let client = server.open_client_socket();
        exchange_numbered_datagrams(&client, 2 * DATAGRAMS_UNTIL_PROMOTION);
        exchange_datagrams_at_once(&client, 64);
        assert_eq!(attached_ingress_program_count(&pair), 0, "{way}");
        let errors = server.finish(&client);
        assert_eq!(errors.matches(EPOLL_NOTE).count(), 1, "{way}: {errors}");
    }
}

#[test]
fn one_shot_registration_reports_unread_ring_datagrams() {
    let Some((pair, _folder, program)) = prepare_edge_server() else { return };
    let program = program.display().to_string();
    for options in ["report,spin", "report,always"] {
        let server =
            Server::start_with_options(&pair, options, &[&program, &PORT.to_string(), "turning"]);
        let (client, asker) = (server.open_client_socket(), server.open_client_socket());
        exchange_numbered_datagrams(&client, DATAGRAMS_UNTIL_PROMOTION);
        exchange_datagrams_at_once(&client, 64);
        send_held_datagrams(&client, 20);
        let before = send_control_message(&asker, "count");
        for _ in 0..CONTROL_MESSAGE_COUNT {
            send_control_message(&asker, "count");
        }
        let after = send_control_message(&asker, "count");
        // At most one event is reported, because the server does not register the socket again.
        assert!(after.readable <= before.readable + 1, "{options}: {before:?}, {after:?}");
        assert!(
            after.returns <= before.returns + CONTROL_MESSAGE_COUNT + 2,
            "{options}: {after:?}"
        );
        release_datagrams(&client, &asker, UNREAD_DATAGRAMS);
        exchange_datagrams_at_once(&client, 64);
        wait_until("the ring has ended, and the socket gets no other", || {
            exchange_datagram(&client, b"more");
            let errors = server.errors();
            errors.contains("came from the ring") && errors.contains(EPOLL_NOTE)
        });
        server.finish(&client);
    }
}
