//! The interfaces to which UDP sockets of a network namespace are bound, queried by sock_diag(7).

use super::links::{NETLINK_CALL, encode_message, exchange_request, split_message};
use crate::error::{Error, ErrorContext as _, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};
use std::collections::HashMap;

/// Target of the query, for error messages.
const ERROR_TARGET: &str = "the UDP sockets";
/// Constants of `linux/netlink.h` and `linux/sock_diag.h`.
mod sock_diag {
    pub(super) const ERROR: u16 = 2;
    pub(super) const DONE: u16 = 3;
    pub(super) const SOCK_DIAG_BY_FAMILY: u16 = 20;
    pub(super) const REQUEST: u16 = 0x1;
    pub(super) const INTERRUPTED: u16 = 0x10;
    pub(super) const DUMP: u16 = 0x300;
}
/// Byte offset of the bound interface's index in `struct inet_diag_msg`.
const INTERFACE_OFFSET: usize = 40;
/// Byte offset of the socket's inode in `struct inet_diag_msg`.
const INODE_OFFSET: usize = 68;

/// Lists the UDP sockets of this thread's network namespace that are bound to `port`, over both
/// IPv4 and IPv6. The result maps the inode of a socket to the index of the interface to which the
/// socket is bound; 0 means no interface. Fails if the kernel cannot list sockets, or if the list
/// changes during the query.
pub fn udp_socket_interfaces(port: u16) -> Result<HashMap<u64, u32>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = (AddressFamily::NETLINK, SocketType::RAW);
    let socket = socket_with(kind.0, kind.1, flags, Some(netlink::SOCK_DIAG));
    let socket = socket.context("socket", "sock_diag")?;
    let mut found = HashMap::new();
    for (sequence, family) in (1..).zip([libc::AF_INET, libc::AF_INET6]) {
        let flags = sock_diag::REQUEST | sock_diag::DUMP;
        let body = encode_socket_request(family as u8, port);
        let request = encode_message(sock_diag::SOCK_DIAG_BY_FAMILY, flags, sequence, &body);
        let mut refused = None;
        exchange_request(&socket, &request, ERROR_TARGET, |mut bytes| {
            while let Some((kind, flags, number, body, rest)) = split_message(bytes) {
                bytes = rest;
                if number != sequence {
                    continue;
                }
                if flags & sock_diag::INTERRUPTED != 0 {
                    refused = Some(libc::EINTR);
                }
                match kind {
                    sock_diag::SOCK_DIAG_BY_FAMILY => found.extend(parse_socket(body)),
                    sock_diag::ERROR | sock_diag::DONE => {
                        let code = word(body, 0).map_or(0, u32::cast_signed);
                        refused = refused.or_else(|| (code < 0).then(|| code.wrapping_neg()));
                        return true;
                    }
                    _ => {}
                }
            }
            false
        })?;
        if let Some(errno) = refused {
            return Err(Error::new(NETLINK_CALL, ERROR_TARGET, errno));
        }
    }
    Ok(found)
}

/// Encodes `struct inet_diag_req_v2` for the UDP sockets of a port, in all states.
fn encode_socket_request(family: u8, port: u16) -> Vec<u8> {
    /// Length of `struct inet_diag_sockid` after its first port, in bytes.
    const SOCKET_ID_REST_LENGTH: usize = 46;
    let protocol = libc::IPPROTO_UDP as u8;
    let states = u32::MAX.to_ne_bytes();
    [&[family, protocol, 0, 0][..], &states, &port.to_be_bytes(), &[0; SOCKET_ID_REST_LENGTH]]
        .concat()
}

/// Parses the inode and the interface of `struct inet_diag_msg`; `None` if `body` is too short.
fn parse_socket(body: &[u8]) -> Option<(u64, u32)> {
    Some((word(body, INODE_OFFSET)?.into(), word(body, INTERFACE_OFFSET)?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preload;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn device_of_a_bound_socket_is_found_by_its_inode() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let other = UdpSocket::bind("[::1]:0").unwrap();
        let inode = |socket: &UdpSocket| preload::inode(socket.as_raw_fd()).unwrap();
        for socket in [&socket, &other] {
            let port = socket.local_addr().unwrap().port();
            let found = match udp_socket_interfaces(port) {
                Ok(found) => found,
                Err(error) => return println!("skipped: {error}"),
            };
            assert_eq!(found.get(&inode(socket)), Some(&0));
        }
        assert_eq!(parse_socket(&[0; 71]), None);
    }
}
