//! Network layer filters: IPv4 and IPv6.

pub mod ip;
pub mod ipproto;
pub mod rewrite;

use wire::ip::protocol;

/// Names of IP protocols, for arcs and for printed classes.
pub(crate) const PROTOCOL_NAMES: &[(&str, u32)] = &[
    ("icmp", protocol::ICMP as u32),
    ("igmp", 2),
    ("ipip", 4),
    ("tcp", protocol::TCP as u32),
    ("udp", protocol::UDP as u32),
    ("dccp", 33),
    ("ip6ip", 41),
    ("gre", protocol::GRE as u32),
    ("esp", protocol::ESP as u32),
    ("ah", protocol::AH as u32),
    ("icmp6", protocol::ICMPV6 as u32),
    ("none", protocol::NONE as u32),
    ("eigrp", 88),
    ("ospf", 89),
    ("pim", 103),
    ("vrrp", 112),
    ("l2tp", 115),
    ("sctp", protocol::SCTP as u32),
    ("udplite", 136),
];
