//! Socket addresses in the form in which the kernel writes them (`struct sockaddr_in`,
//! `sockaddr_in6`).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Address family of IPv4 on Linux.
const AF_INET: u16 = 2;
/// Address family of IPv6 on Linux.
const AF_INET6: u16 = 10;
/// Length of `struct sockaddr_in6` in bytes.
const SOCKADDR_LENGTH_MAX: usize = 28;

/// A socket address, encoded as the kernel's structure for its family.
#[derive(Debug)]
pub(crate) struct EncodedAddress {
    bytes: [u8; SOCKADDR_LENGTH_MAX],
    length: usize,
}

impl EncodedAddress {
    /// Encodes an address for an IPv4 or an IPv6 socket. `interface` is the index of the interface,
    /// which becomes the scope of a link-local IPv6 address.
    pub(crate) fn new(address: SocketAddr, is_v6: bool, interface: u32) -> Self {
        let mut encoded = Self { bytes: [0; SOCKADDR_LENGTH_MAX], length: 0 };
        let port = address.port().to_be_bytes();
        match (address.ip(), is_v6) {
            (IpAddr::V4(host), false) => {
                encoded.put(&[&AF_INET.to_ne_bytes(), &port, &host.octets(), &[0; 8]]);
            }
            (host, _) => {
                let host = to_ipv6_mapped(host);
                let scope = if host.is_unicast_link_local() { interface } else { 0 };
                let (family, scope) = (AF_INET6.to_ne_bytes(), scope.to_ne_bytes());
                encoded.put(&[&family, &port, &[0; 4], &host.octets(), &scope]);
            }
        }
        encoded
    }

    fn put(&mut self, parts: &[&[u8]]) {
        let source = parts.iter().flat_map(|part| part.iter());
        self.bytes.iter_mut().zip(source).for_each(|(to, from)| *to = *from);
        self.length = parts.iter().map(|part| part.len()).sum();
    }

    /// Returns the encoded structure.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Returns an address in the form that an IPv6 socket reports. An IPv4 address becomes an
/// IPv4-mapped IPv6 address.
pub(crate) const fn to_ipv6_mapped(host: IpAddr) -> Ipv6Addr {
    match host {
        IpAddr::V4(host) => host.to_ipv6_mapped(),
        IpAddr::V6(host) => host,
    }
}
