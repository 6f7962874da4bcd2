//! Routing table of the host. The table identifies interfaces whose frames the user must not take
//! from the host by accident: those of the default route and of the user's own connection.
//! (CONTRACT 2)
//!
//! The names of these interfaces are derived from the tables in `/proc/net` and from the
//! environment variable that sshd sets. A table that cannot be read counts as empty, and then
//! protects no interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The routing table of this thread's network namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Routes(Vec<Route>);

/// An entry of the routing table.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Route {
    network: IpAddr,
    length: u32,
    interface: String,
}

/// RTF_REJECT: the route discards packets.
const RTF_REJECT: u32 = 0x200;

impl Routes {
    pub(super) fn read_tables() -> Self {
        let file = |name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        Self::parse_tables(
            &file("route").unwrap_or_default(),
            &file("ipv6_route").unwrap_or_default(),
        )
    }

    fn parse_tables(four: &str, six: &str) -> Self {
        let four = four.lines().skip(1).filter_map(parse_ipv4_route);
        Self(four.chain(six.lines().filter_map(parse_ipv6_route)).collect())
    }

    /// Returns true if the default route leads through this interface.
    pub(super) fn has_default_route(&self, interface: &str) -> bool {
        self.0.iter().any(|route| route.length == 0 && route.interface == interface)
    }

    /// Returns the interface of the route to an address, selected by longest prefix, or `None` if
    /// there is no route.
    pub(super) fn route_interface(&self, address: IpAddr) -> Option<&str> {
        let matching = self.0.iter().filter(|route| route.is_route_to(address));
        matching.max_by_key(|route| route.length).map(|route| route.interface.as_str())
    }
}

impl Route {
    fn is_route_to(&self, address: IpAddr) -> bool {
        match (self.network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - self.length).unwrap_or(0);
                network.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - self.length).unwrap_or(0);
                network.to_bits() & mask == address.to_bits() & mask
            }
            _ => false,
        }
    }
}

/// Parses a line of `/proc/net/route`, for example `eth0 00000000 0101A8C0 0003 0 0 100 00000000
/// …`: interface, network, gateway, flags, three counters and mask. Addresses are hexadecimal
/// numbers in native byte order. Returns `None` for any other line, and for a route that discards
/// packets.
fn parse_ipv4_route(line: &str) -> Option<Route> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [interface, network, _, flags, _, _, _, mask, ..] = words[..] else { return None };
    let number = |word| u32::from_str_radix(word, 16).ok();
    if number(flags)? & RTF_REJECT != 0 {
        return None;
    }
    let network = Ipv4Addr::from(number(network)?.to_ne_bytes()).into();
    Some(Route { network, length: number(mask)?.count_ones(), interface: interface.to_owned() })
}

/// Parses a line of `/proc/net/ipv6_route`: network, prefix length, six other fields, flags and
/// interface. Returns `None` for any other line, and for a route that discards packets.
fn parse_ipv6_route(line: &str) -> Option<Route> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [network, length, _, _, _, _, _, _, flags, interface] = words[..] else { return None };
    if u32::from_str_radix(flags, 16).ok()? & RTF_REJECT != 0 {
        return None;
    }
    let network = Ipv6Addr::from_bits(u128::from_str_radix(network, 16).ok()?).into();
    let length = u32::from_str_radix(length, 16).ok()?;
    Some(Route { network, length, interface: interface.to_owned() })
}

/// Returns the peer's address from the value of `SSH_CONNECTION`, for example `10.0.0.1 50000
/// 10.0.0.2 22`. Returns `None` if the value is missing or malformed.
pub(super) fn parse_ssh_peer(connection: Option<&str>) -> Option<IpAddr> {
    let address = connection?.split_whitespace().next()?;
    // A link-local address has its interface as a suffix.
    address.split('%').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IPV4_ROUTES: &str = "\
Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 00000000 010AA8C0 0003 0 0 100 00000000 0 0 0
eth1 000A0A0A 00000000 0001 0 0 0 00FFFFFF 0 0 0
eth2 050A0A0A 00000000 0005 0 0 0 FFFFFFFF 0 0 0
";
    const IPV6_ROUTES: &str = "\
fd770000000000000000000000000000 40 00000000000000000000000000000000 00 \
00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth1
00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
fd770000000000000000000000000001 00000400 00000001 00000000 00000003     eth3
00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
";

    #[test]
    fn longest_prefix_selects_the_route() {
        let routes = Routes::parse_tables(IPV4_ROUTES, IPV6_ROUTES);
        let to = |address: &str| routes.route_interface(address.parse().unwrap());
        if cfg!(target_endian = "little") {
            assert_eq!(to("10.10.10.9"), Some("eth1"));
            assert_eq!(to("10.10.10.5"), Some("eth2"));
            assert_eq!(to("192.0.2.1"), Some("eth0"));
        }
        assert_eq!((to("fd77::9"), to("2001:db8::1")), (Some("eth1"), Some("eth3")));
        let defaults =
            ["eth0", "eth1", "eth2", "eth3", "lo"].map(|name| routes.has_default_route(name));
        assert_eq!(defaults, [true, false, false, true, false]);
        assert_eq!(Routes::parse_tables("", "nonsense\n"), Routes::default());
    }

    #[test]
    fn ssh_connection_yields_peer_address() {
        assert_eq!(parse_ssh_peer(Some("10.0.0.1 50000 10.0.0.2 22")), "10.0.0.1".parse().ok());
        assert_eq!(parse_ssh_peer(Some("fe80::1%eth0 50000 fe80::2 22")), "fe80::1".parse().ok());
        assert_eq!(
            [parse_ssh_peer(None), parse_ssh_peer(Some("")), parse_ssh_peer(Some("x 1"))],
            [None; 3]
        );
    }
}
