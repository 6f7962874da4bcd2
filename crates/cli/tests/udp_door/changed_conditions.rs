//! Tests of conditions that change after the promotion of a socket. If the kernel would no longer
//! deliver a datagram to the socket, the server must not receive it from the ring either.

use super::*;

/// Number of datagrams that a test sends before it checks if the server still replies.
const DATAGRAMS_PER_ROUND: usize = 200;
/// Time without a reply after which the server is considered unreachable.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_millis(300);

/// Sends rounds of datagrams until the server no longer replies.
fn send_until_unanswered(client: &UdpSocket) {
    client.set_read_timeout(Some(UNREACHABLE_TIMEOUT)).unwrap();
    wait_until("the server no longer answers", || {
        let mut answers = 0;
        let mut room = [0; 100];
        for _ in 0..DATAGRAMS_PER_ROUND {
            client.send_to(b"request", server_address()).unwrap();
            if client.recv_from(&mut room).is_err() {
                break;
            }
            answers += 1;
        }
        answers == 0
    });
    client.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
}

#[test]
fn firewall_rule_added_later_applies_to_a_promoted_socket() {
    let Some((pair, _folder, program)) = prepare_server_test() else { return };
    if need::require_command("iptables").is_none() {
        return;
    }
    let program = program.display().to_string();
    let server = Server::start(&pair, &[&program, "5400", "level", "recvfrom"]);
    let client = server.open_client_socket();
    exchange_numbered_datagrams(&client, DATAGRAMS_UNTIL_PROMOTION);
    assert_eq!(attached_ingress_program_count(&pair), 1);
    pair.server.run_program("iptables", "-A INPUT -p udp --dport 5400 -j DROP");
    send_until_unanswered(&client);
    wait_until("the ring has ended", || attached_ingress_program_count(&pair) == 0);
    pair.server.run_program("iptables", "-F INPUT");
    exchange_numbered_datagrams(&client, 10);
    server.finish(&client);
}

#[test]
fn datagrams_for_a_removed_address_do_not_reach_the_server() {
    let Some((pair, _folder, program)) = prepare_server_test() else { return };
    let program = program.display().to_string();
    let server = Server::start(&pair, &[&program, "5400", "level", "recvfrom"]);
    let client = server.open_client_socket();
    exchange_numbered_datagrams(&client, DATAGRAMS_UNTIL_PROMOTION);
    let path = format!("/sys/class/net/{SERVER_DEVICE}/address");
    let hardware = pair.server.run_program("cat", &path);
    pair.server.run_ip(&format!("address add 10.77.0.22/24 dev {SERVER_DEVICE}"));
    pair.client.run_ip(&format!(
        "neigh replace {SERVER} lladdr {} nud permanent dev {CLIENT_DEVICE}",
        hardware.trim()
    ));
    pair.server.run_ip(&format!("address del {SERVER}/24 dev {SERVER_DEVICE}"));
    pair.server.run_ip(&format!("address replace 10.77.0.22/24 dev {SERVER_DEVICE}"));
    send_until_unanswered(&client);
    pair.server.run_ip(&format!("address del 10.77.0.22/24 dev {SERVER_DEVICE}"));
    pair.server.run_ip(&format!("address add {SERVER}/24 dev {SERVER_DEVICE}"));
    exchange_numbered_datagrams(&client, 10);
    server.finish(&client);
}
