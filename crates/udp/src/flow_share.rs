//! The part of a port's datagrams that a socket receives, when several sockets share the port
//! (`SO_REUSEPORT`).
//!
//! The kernel delivers each datagram to one member of such a group, chosen by a hash of the flow
//! with a secret key. A member with a ring takes the flows that a second, public hash assigns to
//! it; all other flows stay with the kernel, which distributes them among all members. So a
//! datagram reaches exactly one member, whichever of them have rings, and the datagrams of a flow
//! reach the same member as long as the group stays the same (docs/book/decisions/0119). Sockets
//! bound to different interfaces do not form a group.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use sys::preload;
use sys::preload::udp::{self, UdpSocketFacts};

/// Odd factor that spreads the sum of address and port over the upper bits of a 32-bit word
/// (Fibonacci hashing).
const HASH_FACTOR: u32 = 0x9e37_79b1;
/// Number of bits by which the hash shifts the product with [`HASH_FACTOR`] to the right.
const HASH_SHIFT: u32 = 16;

/// The share of flows that one member of a group of sockets receives: the flows whose hash modulo
/// `members` equals `member`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlowShare {
    member: u32,
    members: u32,
}

impl FlowShare {
    /// All flows, for a socket that does not share its port.
    pub(crate) const ALL: Self = Self { member: 0, members: 1 };

    /// Determines the share of a socket among the sockets of the namespace that may receive
    /// datagrams for its address. Fails with the reason if this library cannot determine which
    /// of them the kernel would choose.
    pub(crate) fn of_socket(number: i32, facts: &UdpSocketFacts) -> Result<Self, String> {
        // A connected socket shares the datagrams of its peer with no other socket.
        if facts.peer.is_some() || !(facts.shares_address || facts.shares_port) {
            return Ok(Self::ALL);
        }
        let mut sockets = receiving_sockets(facts);
        if sockets.len() == 1 {
            return Ok(Self::ALL);
        }
        let others = "other sockets have the same port and address";
        let own = preload::inode(number).ok_or(others)?;
        let known = descriptors_by_inode();
        sockets = competing_sockets(sockets, facts, &known)?;
        if sockets.len() == 1 {
            return Ok(Self::ALL);
        }
        let bound =
            &sockets.iter().find(|socket| socket.inode == own).ok_or(others)?.family_and_address;
        let is_equal =
            |socket: &ReceivingSocket| socket.family_and_address == *bound && !socket.is_connected;
        if !facts.shares_port || !sockets.iter().all(is_equal) {
            return Err(others.to_owned());
        }
        // Without SO_REUSEADDR, the kernel lets only members bind to the address.
        let is_member = |socket: &ReceivingSocket| match known.get(&socket.inode) {
            Some(number) => udp::shares_port(*number),
            None => !facts.shares_address,
        };
        if !sockets.iter().all(is_member) {
            return Err(others.to_owned());
        }
        if has_port_selector(facts.local.port()) {
            return Err("a program chooses among the sockets of its port".to_owned());
        }
        let mut inodes: Vec<u64> = sockets.iter().map(|socket| socket.inode).collect();
        inodes.sort_unstable();
        let member = inodes.iter().position(|inode| *inode == own).ok_or(others)?;
        match (u32::try_from(member), u32::try_from(inodes.len())) {
            (Ok(member), Ok(members)) => Ok(Self { member, members }),
            _ => Err(others.to_owned()),
        }
    }

    /// Returns true if the share contains all flows, because the socket does not share its port.
    pub(crate) fn is_all(self) -> bool {
        self.members == 1
    }

    /// Returns a pcap-filter(7) condition that selects the frames of the flows in this share, for
    /// IPv4 if `is_v4` is true, else for IPv6. The text begins with ` and `; it is empty if the
    /// share contains all flows. The condition assumes an IP header without options and extension
    /// headers, so that the ports follow the header directly.
    pub(crate) fn pcap_condition(self, is_v4: bool) -> String {
        let Self { member, members } = self;
        if self.is_all() {
            return String::new();
        }
        // Low bits of the source address, and source port.
        let flow = if is_v4 { "ip[12:4] + ip[20:2]" } else { "ip6[20:4] + ip6[40:2]" };
        format!(" and ((({flow}) * {HASH_FACTOR}) >> {HASH_SHIFT}) % {members} = {member}")
    }
}

/// A UDP socket that may receive datagrams for the address of the socket that is to be promoted.
struct ReceivingSocket {
    /// Local address of the socket: true for IPv6, and the address and port in the notation of
    /// `/proc/net/udp`.
    family_and_address: (bool, String),
    inode: u64,
    is_connected: bool,
}

/// Returns the UDP sockets of the namespace that may receive datagrams for the address of a socket,
/// including the socket itself.
fn receiving_sockets(facts: &UdpSocketFacts) -> Vec<ReceivingSocket> {
    let read = |name: &str| {
        std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default()
    };
    let receives_v4 = facts.local.is_ipv4() || facts.has_both_families;
    let of_v4 = if receives_v4 { read("udp") } else { String::new() };
    let of_v6 = read("udp6");
    let of_v6 = of_v6.lines().map(|line| (line, true));
    let lines = of_v4.lines().map(|line| (line, false)).chain(of_v6);
    let mut found: Vec<ReceivingSocket> = lines
        .filter_map(|(line, is_v6)| parse_socket(line, is_v6))
        .filter(|socket| may_receive(&socket.family_and_address.1, facts.local))
        .collect();
    // An IPv6 socket that receives IPv6 only does not compete with an IPv4 socket.
    if facts.local.is_ipv4() && found.iter().any(|socket| socket.family_and_address.0) {
        let known = descriptors_by_inode();
        let is_apart = |socket: &ReceivingSocket| {
            socket.family_and_address.0
                && known.get(&socket.inode).is_some_and(|own| udp::is_v6_only(*own))
        };
        found.retain(|socket| !is_apart(socket));
    }
    found
}

/// Returns those of `sockets` that compete with the socket described by `facts` for the same
/// datagrams: all that are bound to the same interface, because a datagram arrives at one interface
/// only. Fails if only some of `sockets` are bound to an interface, because the kernel then prefers
/// some of them. Also fails if the interface of a socket is unknown. `known` maps inode numbers to
/// descriptors of the program.
fn competing_sockets(
    sockets: Vec<ReceivingSocket>,
    facts: &UdpSocketFacts,
    known: &HashMap<u64, i32>,
) -> Result<Vec<ReceivingSocket>, String> {
    let devices = match sockets.iter().all(|socket| known.contains_key(&socket.inode)) {
        true => HashMap::new(),
        false => sys::net::udp_socket_interfaces(facts.local.port()).map_err(|error| {
            format!("the interfaces of the other sockets of its port are unknown: {error}")
        })?,
    };
    let mut found = Vec::new();
    for socket in sockets {
        let device = match known.get(&socket.inode) {
            Some(number) => Some(udp::bound_interface_index(*number)),
            None => devices.get(&socket.inode).copied(),
        };
        match device {
            Some(device) if device == facts.device => found.push(socket),
            Some(device) if device != 0 && facts.device != 0 => {}
            Some(_) => {
                return Err("of the sockets with its port, some are bound to an interface and \
                            others are not"
                    .to_owned());
            }
            None => return Err("the sockets with its port are changing".to_owned()),
        }
    }
    Ok(found)
}

/// Parses a line of `/proc/net/udp` or `udp6`. Returns `None` if the line describes no socket.
fn parse_socket(line: &str, is_v6: bool) -> Option<ReceivingSocket> {
    let mut words = line.split_whitespace().skip(1);
    let (bound, peer) = (words.next()?, words.next()?);
    let inode = words.nth(6)?.parse().ok()?;
    let is_connected = peer.bytes().any(|byte| byte != b'0' && byte != b':');
    Some(ReceivingSocket { family_and_address: (is_v6, bound.to_owned()), inode, is_connected })
}

/// Returns true if a socket bound to `bound`, an address and port in the notation of
/// `/proc/net/udp`, may receive datagrams sent to `local`.
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

/// Returns the descriptors of the program by their inode numbers.
fn descriptors_by_inode() -> HashMap<u64, i32> {
    let numbers = 0..udp::DESCRIPTORS_MAX;
    numbers.filter_map(|number| Some((preload::inode(number)?, number))).collect()
}

/// Ports for which the user has attached a program that selects the receiving socket
/// (`SO_ATTACH_REUSEPORT_EBPF`).
static PORTS_WITH_SELECTOR: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// Records that an attached program selects the receiving socket of a port. The sockets of the port
/// are then not promoted.
pub(crate) fn record_port_selector(port: u16) {
    lock_ports_with_selector().get_or_insert_default().insert(port);
}

fn has_port_selector(port: u16) -> bool {
    lock_ports_with_selector().as_ref().is_some_and(|ports| ports.contains(&port))
}

fn lock_ports_with_selector() -> MutexGuard<'static, Option<HashSet<u16>>> {
    PORTS_WITH_SELECTOR.lock().unwrap_or_else(PoisonError::into_inner)
}
