//! IP addresses of interfaces, queried with RTM_GETADDR.

use super::RouteSocket;
use super::links::{array_at, encode_message, parse_attributes};
use crate::error::Result;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Size of `struct ifaddrmsg` in bytes.
const ADDRESS_MESSAGE_SIZE: usize = 8;

/// Constants of `linux/rtnetlink.h` and `linux/if_addr.h`.
mod rtnetlink {
    pub(super) const NEW_ADDRESS: u16 = 20;
    pub(super) const GET_ADDRESS: u16 = 22;
    pub(super) const REQUEST_DUMP: u16 = 0x301;
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const LOCAL_ADDRESS: u16 = 2;
    /// The narrowest scope, as the kernel numbers it, of addresses that are valid beyond the link.
    pub(super) const SCOPE_SITE: u8 = 200;
}

impl RouteSocket {
    /// Lists the addresses at which other hosts can reach this one, each with its interface index.
    /// Excludes link-local and loopback addresses.
    pub fn addresses(&self) -> Result<Vec<(u32, IpAddr)>> {
        let mut found = Vec::new();
        self.request_dump("the list of addresses", encode_request, |kind, body| {
            if kind == rtnetlink::NEW_ADDRESS {
                found.extend(parse_address(body));
            }
        })?;
        Ok(found)
    }
}

fn encode_request(sequence: u32) -> Vec<u8> {
    encode_message(
        rtnetlink::GET_ADDRESS,
        rtnetlink::REQUEST_DUMP,
        sequence,
        &[0; ADDRESS_MESSAGE_SIZE],
    )
}

/// Parses `struct ifaddrmsg` and its attributes. Returns the interface index and the address, or
/// `None` if the message is malformed or other hosts cannot reach the address.
fn parse_address(body: &[u8]) -> Option<(u32, IpAddr)> {
    let scope = *body.get(3)?;
    let index = u32::from_ne_bytes(array_at(body, 4)?);
    if scope > rtnetlink::SCOPE_SITE {
        return None;
    }
    let of = |wanted| {
        let mut all = parse_attributes(body.get(ADDRESS_MESSAGE_SIZE..)?);
        all.find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
    };
    // On a point-to-point link, ADDRESS is the address of the peer.
    let value = of(rtnetlink::LOCAL_ADDRESS).or_else(|| of(rtnetlink::ADDRESS))?;
    let address = match value.len() {
        4 => IpAddr::V4(Ipv4Addr::from(array_at::<4>(value, 0)?)),
        16 => IpAddr::V6(Ipv6Addr::from(array_at::<16>(value, 0)?)),
        _ => return None,
    };
    Some((index, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address_message(scope: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![2, 24, 0, scope, 7, 0, 0, 0];
        for (kind, value) in attributes {
            body.extend((4 + value.len() as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        body
    }

    #[test]
    fn local_address_is_preferred_and_link_scopes_are_excluded() {
        let (local, peer) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let link =
            address_message(0, &[(rtnetlink::ADDRESS, &peer), (rtnetlink::LOCAL_ADDRESS, &local)]);
        assert_eq!(parse_address(&link), Some((7, IpAddr::from(local))));
        let long = address_message(0, &[(rtnetlink::ADDRESS, &[0x20; 16])]);
        assert_eq!(parse_address(&long), Some((7, IpAddr::from([0x20; 16]))));
        assert_eq!(
            parse_address(&address_message(253, &[(rtnetlink::ADDRESS, &[0xfe; 16])])),
            None
        );
        assert_eq!(parse_address(&address_message(0, &[(rtnetlink::ADDRESS, &local[..3])])), None);
        for cut in 0..link.len() {
            parse_address(&link[..cut]);
        }
    }

    #[test]
    fn loopback_addresses_are_excluded() {
        let found = RouteSocket::open().unwrap().addresses().unwrap();
        assert!(found.iter().all(|(_, address)| !address.is_loopback()), "{found:?}");
    }
}
