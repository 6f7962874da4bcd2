//! Transport layer filters: streams, datagrams and ports.

pub mod dport;
pub(crate) mod flows;
pub mod sport;
pub mod tcp;
pub mod token;
pub mod udp;
pub mod vxlan;

use crate::contract::{UsableInput, ValueRange};

/// Returns the inputs of a filter that can use only the packets of this transport protocol: one
/// [`UsableInput`] for each upstream filter that classifies by protocol.
pub(crate) const fn protocol_packet_inputs(protocol: u8, hint: &'static str) -> [UsableInput; 2] {
    let classes = ValueRange { low: protocol as u32, high: protocol as u32 };
    [
        UsableInput { upstream: "ip", classes, hint },
        UsableInput { upstream: "ipproto", classes, hint },
    ]
}

/// Names of well-known ports, for arcs and for printed classes: common services, mostly from the
/// IANA registry, with `_` instead of `-`.
pub(crate) const SERVICE_NAMES: &[(&str, u32)] = &[
    ("ftp_data", 20),
    ("ftp", 21),
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("dns", 53),
    ("dhcp", 67),
    ("dhcp_client", 68),
    ("tftp", 69),
    ("http", 80),
    ("kerberos", 88),
    ("pop3", 110),
    ("ntp", 123),
    ("imap", 143),
    ("snmp", 161),
    ("snmp_trap", 162),
    ("bgp", 179),
    ("ldap", 389),
    ("https", 443),
    ("smb", 445),
    ("syslog", 514),
    ("dhcp6_client", 546),
    ("dhcp6", 547),
    ("rtsp", 554),
    ("submission", 587),
    ("ldaps", 636),
    ("dns_tls", 853),
    ("imaps", 993),
    ("pop3s", 995),
    ("mqtt", 1883),
    ("nfs", 2049),
    ("etcd", 2379),
    ("mysql", 3306),
    ("rdp", 3389),
    ("nats", 4222),
    ("vxlan", 4789),
    ("sip", 5060),
    ("mdns", 5353),
    ("postgres", 5432),
    ("amqp", 5672),
    ("vnc", 5900),
    ("redis", 6379),
    ("http_alt", 8080),
    ("kafka", 9092),
    ("wireguard", 51820),
];
