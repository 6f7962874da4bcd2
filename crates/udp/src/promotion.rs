//! The decision to promote a socket, and the reasons against it.

use crate::report;
use crate::ring::Ring;
use crate::table;
use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use sys::holders::Holders;
use sys::net::{Interface, RouteSocket};
use sys::preload;
use sys::preload::udp::{self, UdpSocketFacts};

/// Device type of interfaces with Ethernet frames (`ARPHRD_ETHER`).
const ETHERNET_TYPE: u16 = 1;

/// Opens the ring of a socket. Fails with the reason why the socket cannot have a ring.
pub(crate) fn promote(number: i32, facts: &UdpSocketFacts) -> Result<Ring, String> {
    if let Some(why) = facts.obstacle {
        return Err(why.to_owned());
    }
    let own = sys::net::namespace_cookie().map_err(|error| error.to_string())?;
    if udp::namespace_cookie_of(number) != Some(own) {
        return Err("it belongs to another network namespace".to_owned());
    }
    if is_held_by_others(number) {
        return Err("another process has the socket, too".to_owned());
    }
    // The datagrams of its peer are a connected socket's alone.
    if facts.peer.is_none() && facts.may_share && count_sockets(facts) != 1 {
        return Err("other sockets have the same port and address".to_owned());
    }
    if !report::has_word("force") {
        match has_packet_rules() {
            Ok(false) => {}
            Ok(true) => {
                return Err("firewall rules exist, which would not apply to it \
                            (STREAMLINE_UDP=force ignores them)"
                    .to_owned());
            }
            Err(error) => return Err(format!("firewall rules are unknown: {error}")),
        }
    }
    Ring::open(find_interfaces(facts)?, (facts.local.port(), facts.peer))
}

/// True if firewall rules existed when the program started; empty if this could not be determined.
static RULES_AT_START: OnceLock<bool> = OnceLock::new();

/// Records whether firewall rules exist. Called at the start of the program, which may later drop
/// the right to read them.
pub(crate) fn look_for_rules() {
    if let Ok(rules) = sys::net::has_packet_rules() {
        let _ = RULES_AT_START.set(rules);
    }
}

/// Returns true if firewall rules exist, or, if this program no longer has the right to read them,
/// if they existed at its start.
fn has_packet_rules() -> sys::Result<bool> {
    sys::net::has_packet_rules().or_else(|error| RULES_AT_START.get().copied().ok_or(error))
}

/// Finds the interfaces with Ethernet frames over which other hosts can reach the socket, each with
/// those of its addresses for which the socket receives datagrams.
fn find_interfaces(facts: &UdpSocketFacts) -> Result<Vec<(Interface, Vec<IpAddr>)>, String> {
    let routes = RouteSocket::open().map_err(|error| error.to_string())?;
    let all = routes.addresses().map_err(|error| error.to_string())?;
    let wanted = facts.local.ip().to_canonical();
    let mut hosts: BTreeMap<u32, Vec<IpAddr>> = BTreeMap::new();
    for (index, address) in all {
        let is_of_family = address.is_ipv4() == wanted.is_ipv4() || facts.has_both_families;
        let is_served = (wanted.is_unspecified() && is_of_family) || wanted == address;
        if is_served && (facts.device == 0 || facts.device == index) {
            hosts.entry(index).or_default().push(address);
        }
    }
    if hosts.is_empty() {
        return Err("no interface has its address".to_owned());
    }
    let mut found = Vec::new();
    let mut others = Vec::new();
    for (index, hosts) in hosts {
        let interface = routes.by_index(index).map_err(|error| error.to_string())?;
        if interface.hatype != ETHERNET_TYPE || interface.flags.loopback() {
            others.push(interface.name);
        } else {
            found.push((interface, hosts));
        }
    }
    match found.is_empty() {
        true => Err(format!("{} has no Ethernet frames", others.join(", "))),
        false => Ok(found),
    }
}

/// Returns true if another process has a descriptor of the socket.
fn is_held_by_others(number: i32) -> bool {
    let Some(inode) = preload::inode(number) else { return true };
    let found = Holders::find(&HashSet::from([inode]), &HashSet::new());
    let own = std::process::id();
    found.holders_of_socket(inode).iter().any(|holder| holder.process != own)
}

/// Returns the number of UDP sockets of the namespace that may receive datagrams for the address of
/// the socket, including the socket itself.
fn count_sockets(facts: &UdpSocketFacts) -> usize {
    let read = |name: &str| {
        std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default()
    };
    let receives_v4 = facts.local.is_ipv4() || facts.has_both_families;
    let of_v4 = if receives_v4 { read("udp") } else { String::new() };
    let of_v6 = read("udp6");
    let is_counted = |line: &str, is_v6: bool| {
        let mut words = line.split_whitespace();
        let (bound, inode) = (words.nth(1), words.nth(7));
        let may_receive = bound.is_some_and(|bound| may_receive(bound, facts.local));
        let is_apart = || {
            let inode = inode.and_then(|inode| inode.parse().ok());
            facts.local.is_ipv4() && is_v6 && inode.is_some_and(table::is_own_v6_only)
        };
        may_receive && !is_apart()
    };
    of_v4.lines().filter(|line| is_counted(line, false)).count()
        + of_v6.lines().filter(|line| is_counted(line, true)).count()
}

/// Returns true if a socket bound to `bound`, an address in the format of procfs, may receive
/// datagrams for `local`.
fn may_receive(bound: &str, local: SocketAddr) -> bool {
    let Some((host, port)) = bound.split_once(':') else { return false };
    if u16::from_str_radix(port, 16) != Ok(local.port()) {
        return false;
    }
    let word = |bytes: &[u8; 4]| format!("{:08X}", u32::from_ne_bytes(*bytes));
    let own: String = match local.ip().to_canonical() {
        IpAddr::V4(own) => word(&own.octets()),
        IpAddr::V6(own) => own.octets().as_chunks::<4>().0.iter().map(word).collect(),
    };
    let is_everywhere = host.bytes().all(|digit| digit == b'0');
    is_everywhere || local.ip().is_unspecified() || host.ends_with(&own)
}
