//! Protection of the user's own SSH connection: an expression after `take` must not select its
//! packets, because the host would no longer receive them. [CONTRACT 2]
//!
//! An environment variable set by sshd describes the connection. Opening the source fails if the
//! expression matches a segment of that connection. The link-layer addresses of the segment are
//! unknown, so the check assumes zero.

use super::routes::Routes;
use crate::Failure;
use filter::Arguments;
use filter::general::bpf::flow_selection;
use std::net::{IpAddr, SocketAddr};

/// Fails if a source would take the packets of the user's own SSH connection: the connection uses
/// the source's interface, in this network namespace, and the source's expression matches its
/// packets.
pub fn check_ssh_connection_unmatched(arguments: &Arguments) -> Result<(), Failure> {
    let connection = std::env::var("SSH_CONNECTION").ok();
    let ours = arguments.text("netns").is_none();
    let Some((peer, own)) = connection.filter(|_| ours).as_deref().and_then(parse_ssh_connection)
    else {
        return Ok(());
    };
    let interface = arguments.text("interface").unwrap_or_default();
    let is_on_interface = Routes::read_tables().route_interface(peer.ip()) == Some(interface);
    if !is_on_interface
        || !flow_selection::matches_frame(arguments, &tcp_segment_between(peer, own))
    {
        return Ok(());
    }
    let why = format!(
        "the expression matches your own connection from {peer}: you would be disconnected"
    );
    Err(Failure::new("take from", interface, why).with_hint(
        "exclude it (`… and not port 22`), or write `--force` before the request; `rx` without \
         `take` only observes",
    ))
}

/// Parses the value of `SSH_CONNECTION`, for example `10.0.0.1 50000 10.0.0.2 22`. Returns the
/// address of the peer and the address of this host. Returns `None` if the value is malformed.
fn parse_ssh_connection(connection: &str) -> Option<(SocketAddr, SocketAddr)> {
    let words: Vec<&str> = connection.split_whitespace().collect();
    let [peer, peer_port, own, own_port] = words[..] else { return None };
    // A link-local address has its interface as a suffix.
    let address = |text: &str| text.split('%').next()?.parse::<IpAddr>().ok();
    let peer = SocketAddr::new(address(peer)?, peer_port.parse().ok()?);
    Some((peer, SocketAddr::new(address(own)?, own_port.parse().ok()?)))
}

/// Returns a TCP segment without data, from `peer` to `own`, as an Ethernet frame.
fn tcp_segment_between(peer: SocketAddr, own: SocketAddr) -> Vec<u8> {
    const TCP: u8 = 6;
    const ACK: u8 = 0x10;
    let mut frame = vec![0; 12];
    match (peer.ip(), own.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, TCP, 0, 0]);
            frame.extend(from.octets().into_iter().chain(to.octets()));
        }
        (from, to) => {
            let six = |address: IpAddr| match address {
                IpAddr::V4(four) => four.to_ipv6_mapped().octets(),
                IpAddr::V6(six) => six.octets(),
            };
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, TCP, 64]);
            frame.extend(six(from).into_iter().chain(six(to)));
        }
    }
    frame.extend(peer.port().to_be_bytes().into_iter().chain(own.port().to_be_bytes()));
    frame.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, ACK, 0xff, 0xff, 0, 0, 0, 0]);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::rx::RX;
    use filter::Value;

    #[test]
    fn expression_is_tested_on_a_segment_of_the_connection() {
        let matches = |connection: &str, expression: &str| {
            let mut arguments = Arguments::from_parameter_defaults(RX.parameters);
            arguments.set("expression", Value::Text(expression.to_owned()));
            let (peer, own) = parse_ssh_connection(connection).unwrap();
            flow_selection::matches_frame(&arguments, &tcp_segment_between(peer, own))
        };
        for connection in ["10.0.0.1 50000 10.0.0.2 22", "fe80::1%eth0 50000 fe80::2 22"] {
            for expression in ["tcp", "port 22", "tcp src port 50000", "not udp", "len < 100"] {
                assert!(matches(connection, expression), "{expression}");
            }
            for expression in
                ["udp", "port 23", "tcp dst port 50000", "tcp[tcpflags] & tcp-syn != 0"]
            {
                assert!(!matches(connection, expression), "{expression}");
            }
        }
        assert!(matches("10.0.0.1 50000 10.0.0.2 22", "host 10.0.0.1 and dst host 10.0.0.2"));
        assert_eq!(["", "x", "10.0.0.1 a 10.0.0.2 22"].map(parse_ssh_connection), [None; 3]);
    }
}
