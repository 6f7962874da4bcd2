//! The decision to promote a socket, that is, to give it a ring, and the reasons against it.

use crate::flow_share::FlowShare;
use crate::report;
use crate::ring::{Ring, RingFlows};
use crate::socket_origin::{self, Origin};
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::OnceLock;
use sys::holders::ObjectHolders;
use sys::net::{Interface, RouteSocket};
use sys::preload;
use sys::preload::udp::{self, UdpSocketFacts};

/// Device type of interfaces with Ethernet frames (`ARPHRD_ETHER`).
const ETHERNET_DEVICE_TYPE: u16 = 1;

/// A refusal to promote a socket, that is, to give it a ring.
#[derive(Debug)]
pub(crate) struct PromotionRefusal {
    pub(crate) why: String,
    /// True if the reason for the refusal may cease to apply, so that a later attempt may succeed.
    pub(crate) is_temporary: bool,
}

impl From<String> for PromotionRefusal {
    fn from(why: String) -> Self {
        Self { why, is_temporary: false }
    }
}

/// The conditions under which a socket was promoted, that is, got a ring. They determine which
/// datagrams the ring receives, and may change although the socket does not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PromotionConditions {
    /// The part of its port's flows that the socket receives.
    share: FlowShare,
    /// The addresses at which the socket receives datagrams on each interface, by interface index.
    hosts: Vec<(u32, Vec<IpAddr>)>,
}

impl PromotionConditions {
    /// Returns true if the socket may keep its ring: the conditions under which it got the ring
    /// still apply. There must also be no firewall rules, which datagrams in the ring would bypass,
    /// unless the user has requested `force`.
    pub(crate) fn still_apply(&self, number: i32) -> bool {
        let Some(facts) = udp::udp_socket_facts(number) else { return false };
        let found = find_receiving_interfaces(&facts);
        FlowShare::of_socket(number, &facts) == Ok(self.share)
            && found.is_ok_and(|found| list_interface_addresses(&found) == self.hosts)
            && (report::has_option("force") || !has_packet_rules().unwrap_or(false))
    }
}

/// Returns the addresses of interfaces, by interface index.
fn list_interface_addresses(found: &[(Interface, Vec<IpAddr>)]) -> Vec<(u32, Vec<IpAddr>)> {
    found.iter().map(|(interface, hosts)| (interface.index, hosts.clone())).collect()
}

/// Opens a ring for a socket. The ring receives the socket's share of the datagrams of its port.
/// Returns the ring, and the conditions under which it receives the right datagrams. Fails with the
/// reason if the socket cannot have a ring.
pub(crate) fn promote_socket(
    number: i32,
    facts: &UdpSocketFacts,
) -> Result<(Ring, PromotionConditions), PromotionRefusal> {
    if let Some(why) = facts.obstacle {
        return Err(why.to_owned().into());
    }
    let own = sys::net::namespace_cookie().map_err(|error| error.to_string())?;
    if udp::socket_namespace_cookie(number) != Some(own) {
        return Err("it belongs to another network namespace".to_owned().into());
    }
    if is_held_by_others(number) {
        let why = "another process has the socket, or may have inherited it".to_owned();
        return Err(PromotionRefusal { why, is_temporary: true });
    }
    let share = FlowShare::of_socket(number, facts)?;
    if !share.is_all() && !report::is_spin_requested() {
        // While the ring of a member is asleep, the kernel distributes its flows among all members.
        let why = "it shares its port, and its flows would change their socket whenever it sleeps \
                   (STREAMLINE_UDP=spin waits without sleeping)";
        return Err(PromotionRefusal { why: why.to_owned(), is_temporary: true });
    }
    if !report::has_option("force") {
        match has_packet_rules() {
            Ok(false) => {}
            Ok(true) => {
                return Err("firewall rules exist, which would not apply to it \
                            (STREAMLINE_UDP=force ignores them)"
                    .to_owned()
                    .into());
            }
            Err(error) => return Err(format!("firewall rules are unknown: {error}").into()),
        }
    }
    let (port, peer, receive_buffer) = (facts.local.port(), facts.peer, facts.receive_buffer);
    let flows = RingFlows { port, peer, share, receive_buffer };
    let interfaces = find_receiving_interfaces(facts)?;
    let conditions = PromotionConditions { share, hosts: list_interface_addresses(&interfaces) };
    Ok((Ring::open(interfaces, flows)?, conditions))
}

/// True if firewall rules existed when the program started; unset if this could not be determined.
static FIREWALL_RULES_AT_START: OnceLock<bool> = OnceLock::new();

/// Records whether firewall rules exist. Must be called at the start of the program, because the
/// program may later drop the privilege to read them.
pub(crate) fn record_firewall_rules() {
    if let Ok(rules) = sys::net::has_packet_rules() {
        let _ = FIREWALL_RULES_AT_START.set(rules);
    }
}

/// Returns true if firewall rules exist. If the program no longer has the privilege to read them,
/// returns true if they existed at its start. Fails if that is unknown, too.
fn has_packet_rules() -> sys::Result<bool> {
    sys::net::has_packet_rules()
        .or_else(|error| FIREWALL_RULES_AT_START.get().copied().ok_or(error))
}

/// Returns the Ethernet interfaces over which other hosts can reach the socket, each with the
/// addresses at which the socket receives datagrams there.
fn find_receiving_interfaces(
    facts: &UdpSocketFacts,
) -> Result<Vec<(Interface, Vec<IpAddr>)>, String> {
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
        let interface = routes.interface_by_index(index).map_err(|error| error.to_string())?;
        if interface.hatype != ETHERNET_DEVICE_TYPE || interface.flags.is_loopback() {
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

/// Returns true if another process has a descriptor of the socket, or if a process that cannot be
/// inspected, for example after a change of its user id, may have inherited one.
fn is_held_by_others(number: i32) -> bool {
    let Some(inode) = preload::inode(number) else { return true };
    let found = ObjectHolders::find(&HashSet::from([inode]), &HashSet::new());
    let own = std::process::id();
    let is_known = found.holders_of_socket(inode).iter().any(|holder| holder.process != own);
    // Without its first process, /proc shows this user only its own processes.
    let is_partial = !Path::new("/proc/1").exists();
    is_known
        || match socket_origin::find_origin(number) {
            Origin::Own => false,
            // Another process has the socket only if this one has started it.
            Origin::BeforeFork => is_partial || found.hidden_later > 0,
            Origin::Unknown => is_partial || found.hidden > 0,
        }
}
