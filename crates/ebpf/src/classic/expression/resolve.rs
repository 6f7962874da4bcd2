//! Name resolution: a trait for resolvers, and built-in tables of protocols and ports.
//!
//! Input: a name from an expression. Output: addresses or a number. A [`Resolver`] may read files
//! or use the network. This crate does neither, so [`NoResolver`] resolves only well-known ports
//! and protocols.

use std::fmt;
use std::net::IpAddr;

/// A resolver for the names in an expression. The default methods use the built-in tables.
pub trait Resolver: fmt::Debug {
    /// Returns the addresses of the host called `name`, or the reason why there are none, for the
    /// user.
    fn resolve_host(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        let _ = name;
        Err("host names are not resolved here: write the address".to_owned())
    }

    /// Returns the number of an IPv4 network as `getnetbyname` returns it, or `None` if the name is
    /// unknown. A number of fewer than four bytes consists of the first bytes of the address: 10 is
    /// 10.0.0.0.
    fn resolve_network(&self, name: &str) -> Option<u32> {
        let _ = name;
        None
    }

    /// Returns the link address of a host, as listed in `/etc/ethers`, or `None` if the name is
    /// unknown.
    fn resolve_link_address(&self, name: &str) -> Option<[u8; 6]> {
        let _ = name;
        None
    }

    /// Returns the port and transports of a service, or `None` if the name is unknown.
    fn resolve_port(&self, name: &str) -> Option<(u16, Transports)> {
        find_service(name)
    }

    /// Returns the number of an IP protocol, or `None` if the name is unknown.
    fn resolve_protocol(&self, name: &str) -> Option<u8> {
        find_protocol(name)
    }
}

/// A resolver that uses only the built-in tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoResolver;

impl Resolver for NoResolver {}

/// The transport protocols over which a service is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transports {
    /// The service is offered over TCP only.
    Tcp,
    /// The service is offered over UDP only.
    Udp,
    /// The service is offered over TCP and UDP.
    Both,
}

/// Returns the port and transports of a well-known service, or `None` if the name is unknown.
fn find_service(name: &str) -> Option<(u16, Transports)> {
    SERVICES.iter().find(|(known, ..)| *known == name).map(|(_, port, by)| (*port, *by))
}

fn find_protocol(name: &str) -> Option<u8> {
    IP_PROTOCOLS
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, number)| *number)
}

use Transports::{Both, Tcp, Udp};

/// Services by IANA name or common alias: a subset of IANA's list, with the transports of Debian's
/// services file, so that a word means the same ports as in tcpdump.
const SERVICES: &[(&str, u16, Transports)] = &[
    ("tcpmux", 1, Tcp),
    ("echo", 7, Both),
    ("discard", 9, Both),
    ("systat", 11, Tcp),
    ("daytime", 13, Both),
    ("netstat", 15, Tcp),
    ("qotd", 17, Tcp),
    ("chargen", 19, Both),
    ("ftp-data", 20, Tcp),
    ("ftp", 21, Tcp),
    ("ssh", 22, Tcp),
    ("telnet", 23, Tcp),
    ("smtp", 25, Tcp),
    ("mail", 25, Tcp),
    ("time", 37, Both),
    ("whois", 43, Tcp),
    ("tacacs", 49, Both),
    ("domain", 53, Both),
    ("bootps", 67, Udp),
    ("bootpc", 68, Udp),
    ("tftp", 69, Udp),
    ("gopher", 70, Tcp),
    ("finger", 79, Tcp),
    ("http", 80, Tcp),
    ("www", 80, Tcp),
    ("kerberos", 88, Both),
    ("pop3", 110, Tcp),
    ("sunrpc", 111, Both),
    ("portmapper", 111, Both),
    ("auth", 113, Tcp),
    ("ident", 113, Tcp),
    ("nntp", 119, Tcp),
    ("ntp", 123, Udp),
    ("epmap", 135, Tcp),
    ("netbios-ns", 137, Udp),
    ("netbios-dgm", 138, Udp),
    ("netbios-ssn", 139, Tcp),
    ("imap2", 143, Tcp),
    ("imap", 143, Tcp),
    ("snmp", 161, Both),
    ("snmp-trap", 162, Both),
    ("snmptrap", 162, Both),
    ("bgp", 179, Tcp),
    ("irc", 194, Both),
    ("ldap", 389, Both),
    ("https", 443, Both),
    ("microsoft-ds", 445, Tcp),
    ("submissions", 465, Tcp),
    ("isakmp", 500, Udp),
    ("exec", 512, Tcp),
    ("login", 513, Tcp),
    ("who", 513, Udp),
    ("shell", 514, Tcp),
    ("syslog", 514, Both),
    ("printer", 515, Tcp),
    ("route", 520, Udp),
    ("dhcpv6-client", 546, Udp),
    ("dhcpv6-server", 547, Udp),
    ("rtsp", 554, Both),
    ("nntps", 563, Tcp),
    ("submission", 587, Tcp),
    ("ipp", 631, Tcp),
    ("ldaps", 636, Both),
    ("rsync", 873, Tcp),
    ("domain-s", 853, Both),
    ("ftps-data", 989, Tcp),
    ("ftps", 990, Tcp),
    ("imaps", 993, Tcp),
    ("pop3s", 995, Tcp),
    ("socks", 1080, Tcp),
    ("openvpn", 1194, Both),
    ("ms-sql-s", 1433, Tcp),
    ("radius", 1812, Both),
    ("radius-acct", 1813, Both),
    ("nfs", 2049, Both),
    ("mysql", 3306, Tcp),
    ("ms-wbt-server", 3389, Tcp),
    ("stun", 3478, Both),
    ("svn", 3690, Tcp),
    ("ipsec-nat-t", 4500, Udp),
    ("vxlan", 4789, Udp),
    ("sip", 5060, Both),
    ("sips", 5061, Both),
    ("xmpp-client", 5222, Tcp),
    ("xmpp-server", 5269, Tcp),
    ("mdns", 5353, Udp),
    ("postgresql", 5432, Tcp),
    ("amqp", 5672, Tcp),
    ("x11", 6000, Tcp),
    ("geneve", 6081, Udp),
    ("redis", 6379, Tcp),
    ("http-alt", 8080, Tcp),
    ("git", 9418, Tcp),
];

/// IP protocols by IANA name.
const IP_PROTOCOLS: &[(&str, u8)] = &[
    ("ip", 0),
    ("hopopt", 0),
    ("icmp", 1),
    ("igmp", 2),
    ("ggp", 3),
    ("ipencap", 4),
    ("st", 5),
    ("tcp", 6),
    ("egp", 8),
    ("igp", 9),
    ("pup", 12),
    ("udp", 17),
    ("hmp", 20),
    ("xns-idp", 22),
    ("rdp", 27),
    ("iso-tp4", 29),
    ("dccp", 33),
    ("xtp", 36),
    ("ddp", 37),
    ("idpr-cmtp", 38),
    ("ipv6", 41),
    ("ipv6-route", 43),
    ("ipv6-frag", 44),
    ("idrp", 45),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("skip", 57),
    ("ipv6-icmp", 58),
    ("icmp6", 58),
    ("ipv6-nonxt", 59),
    ("ipv6-opts", 60),
    ("rspf", 73),
    ("vmtp", 81),
    ("eigrp", 88),
    ("ospf", 89),
    ("ax.25", 93),
    ("ipip", 94),
    ("etherip", 97),
    ("encap", 98),
    ("pim", 103),
    ("ipcomp", 108),
    ("vrrp", 112),
    ("carp", 112),
    ("l2tp", 115),
    ("isis", 124),
    ("sctp", 132),
    ("fc", 133),
    ("mobility-header", 135),
    ("udplite", 136),
    ("mpls-in-ip", 137),
    ("hip", 139),
    ("shim6", 140),
    ("wesp", 141),
    ("rohc", 142),
    ("ethernet", 143),
];
