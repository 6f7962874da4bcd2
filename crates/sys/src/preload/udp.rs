//! Facts about a UDP socket of the program.

use super::{borrow_descriptor, errno, set_errno};
use rustix::net::{SocketAddrAny, sockopt};
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::time::Duration;

/// Number of descriptors, counted from 0, that are searched for sockets: the limit of select(2)
/// (`FD_SETSIZE`).
pub const DESCRIPTORS_MAX: c_int = 1024;

/// Properties of a bound UDP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpSocketFacts {
    /// The address to which the socket is bound.
    pub local: SocketAddr,
    /// Address of the peer; `None` if the socket is not connected. A connected socket receives from
    /// no other address.
    pub peer: Option<SocketAddr>,
    /// True for an IPv6 socket that also receives IPv4 datagrams.
    pub has_both_families: bool,
    /// True if other sockets with the same option may be bound to the same address
    /// (`SO_REUSEADDR`).
    pub shares_address: bool,
    /// True if the socket shares its port with a group of sockets, each of which receives some of
    /// the datagrams (`SO_REUSEPORT`).
    pub shares_port: bool,
    /// Property of the socket that only the kernel can implement, as text; `None` if the socket has
    /// no such property.
    pub obstacle: Option<&'static str>,
    /// Index of the interface to which the socket is bound; 0 for none.
    pub device: u32,
    /// Size of the receive buffer in bytes, as the kernel accounts for it: twice what the program
    /// has set. `None` if the program has kept the system's default.
    pub receive_buffer: Option<u32>,
}

/// A control message (cmsg(3)) about a received datagram, which a program requests with a socket
/// option. The kernel adds the message to datagrams that the socket delivers; for datagrams from a
/// ring, the preloaded library adds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlMessage {
    /// The time of reception in microseconds (`SO_TIMESTAMP`).
    Microseconds,
    /// The time of reception in nanoseconds (`SO_TIMESTAMPNS`).
    Nanoseconds,
    /// The number of datagrams that the socket has dropped (`SO_RXQ_OVFL`).
    Drops,
    /// The destination address of the datagram and the interface (`IP_PKTINFO`).
    Destination,
    /// The remaining hops of the datagram (`IP_RECVTTL`).
    Hops,
    /// The type of service of the datagram (`IP_RECVTOS`).
    ServiceType,
    /// The destination address and port of the datagram (`IP_RECVORIGDSTADDR`).
    DestinationPort,
    /// The destination address of the IPv6 datagram and the interface (`IPV6_RECVPKTINFO`).
    Destination6,
    /// The remaining hops of the IPv6 datagram (`IPV6_RECVHOPLIMIT`).
    Hops6,
    /// The traffic class of the IPv6 datagram (`IPV6_RECVTCLASS`).
    TrafficClass,
}

/// The socket options that request a [`ControlMessage`], each with its level, its number and the
/// message.
const CONTROL_OPTIONS: [(c_int, c_int, ControlMessage); 10] = [
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP, ControlMessage::Microseconds),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, ControlMessage::Nanoseconds),
    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, ControlMessage::Drops),
    (libc::IPPROTO_IP, libc::IP_PKTINFO, ControlMessage::Destination),
    (libc::IPPROTO_IP, libc::IP_RECVTTL, ControlMessage::Hops),
    (libc::IPPROTO_IP, libc::IP_RECVTOS, ControlMessage::ServiceType),
    (libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR, ControlMessage::DestinationPort),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, ControlMessage::Destination6),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, ControlMessage::Hops6),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, ControlMessage::TrafficClass),
];

/// The set of control messages that a socket requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ControlMessages(u16);

impl ControlMessages {
    /// The set without control messages.
    pub const NONE: Self = Self(0);

    /// Returns the control messages that the options of a socket request.
    #[must_use]
    pub fn requested_by(number: c_int) -> Self {
        let is_set = |(level, name, _): &&(c_int, c_int, ControlMessage)| {
            socket_option(number, *level, *name).is_some_and(|value| value != 0)
        };
        let wanted = CONTROL_OPTIONS.iter().filter(is_set);
        Self(wanted.fold(0, |set, (.., message)| set | 1 << *message as u8))
    }

    /// Returns true if the set contains `message`.
    #[must_use]
    pub const fn contains(self, message: ControlMessage) -> bool {
        self.0 & 1 << message as u8 != 0
    }
}

/// Returns true if setting this option requests a [`ControlMessage`].
#[must_use]
pub fn is_control_message_option(level: c_int, name: c_int) -> bool {
    CONTROL_OPTIONS.iter().any(|(l, n, _)| (*l, *n) == (level, name))
}

/// Socket options whose effect only the kernel can implement, each with its level, its number, and
/// the reason to state in messages.
const KERNEL_ONLY_OPTIONS: &[(c_int, c_int, &str)] = &[
    (libc::SOL_SOCKET, SO_TIMESTAMP_NEW, "it asks for timestamps (SO_TIMESTAMP_NEW)"),
    (libc::SOL_SOCKET, SO_TIMESTAMPNS_NEW, "it asks for timestamps (SO_TIMESTAMPNS_NEW)"),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, "it asks for timestamps (SO_TIMESTAMPING)"),
    (libc::IPPROTO_IP, libc::IP_RECVOPTS, "it asks for options (IP_RECVOPTS)"),
    (libc::IPPROTO_IP, libc::IP_RETOPTS, "it asks for options (IP_RETOPTS)"),
    (libc::IPPROTO_IP, IP_PASSSEC, "it asks for security contexts (IP_PASSSEC)"),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT, "it serves other hosts' addresses (IP_TRANSPARENT)"),
    (libc::IPPROTO_IP, IP_CHECKSUM, "it asks for checksums (IP_CHECKSUM)"),
    (libc::IPPROTO_IP, IP_RECVFRAGSIZE, "it asks for fragments (IP_RECVFRAGSIZE)"),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVRTHDR, "it asks for headers (IPV6_RECVRTHDR)"),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPOPTS, "it asks for options (IPV6_RECVHOPOPTS)"),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVDSTOPTS, "it asks for options (IPV6_RECVDSTOPTS)"),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPATHMTU, "it asks for packet sizes (IPV6_RECVPATHMTU)"),
    (libc::IPPROTO_IPV6, IPV6_2292PKTINFO, "it asks for addresses (IPV6_2292PKTINFO)"),
    (libc::IPPROTO_IPV6, IPV6_2292HOPOPTS, "it asks for options (IPV6_2292HOPOPTS)"),
    (libc::IPPROTO_IPV6, IPV6_2292DSTOPTS, "it asks for options (IPV6_2292DSTOPTS)"),
    (libc::IPPROTO_IPV6, IPV6_2292RTHDR, "it asks for headers (IPV6_2292RTHDR)"),
    (libc::IPPROTO_IPV6, IPV6_2292HOPLIMIT, "it asks for hops (IPV6_2292HOPLIMIT)"),
    (libc::IPPROTO_IPV6, IPV6_FLOWINFO, "it asks for flow labels (IPV6_FLOWINFO)"),
    (libc::IPPROTO_IPV6, IPV6_FLOWINFO_SEND, "it uses flow labels (IPV6_FLOWINFO_SEND)"),
    (libc::IPPROTO_IPV6, IPV6_ORIGDSTADDR, "it asks for addresses (IPV6_RECVORIGDSTADDR)"),
    (libc::IPPROTO_IPV6, IPV6_TRANSPARENT, "it serves other hosts' addresses (IPV6_TRANSPARENT)"),
    (libc::IPPROTO_IPV6, IPV6_RECVFRAGSIZE, "it asks for fragments (IPV6_RECVFRAGSIZE)"),
    (libc::SOL_UDP, UDP_NO_CHECK6_RX, "it accepts datagrams without checksum (UDP_NO_CHECK6_RX)"),
    (libc::SOL_UDP, libc::UDP_GRO, "it receives several datagrams at once (UDP_GRO)"),
    (libc::SOL_UDP, libc::UDP_ENCAP, "it serves a tunnel (UDP_ENCAP)"),
];
const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
const IP_PASSSEC: c_int = 18;
const IP_CHECKSUM: c_int = 23;
const IP_RECVFRAGSIZE: c_int = 25;
const IPV6_2292PKTINFO: c_int = 2;
const IPV6_2292HOPOPTS: c_int = 3;
const IPV6_2292DSTOPTS: c_int = 4;
const IPV6_2292RTHDR: c_int = 5;
const IPV6_2292HOPLIMIT: c_int = 8;
const IPV6_FLOWINFO: c_int = 11;
const IPV6_FLOWINFO_SEND: c_int = 33;
const IPV6_ORIGDSTADDR: c_int = 74;
const IPV6_TRANSPARENT: c_int = 75;
const IPV6_RECVFRAGSIZE: c_int = 77;
const UDP_NO_CHECK6_RX: c_int = 102;

/// Returns true if a descriptor is a UDP socket.
#[must_use]
pub fn is_udp_socket(number: c_int) -> bool {
    let is = |name, value| socket_option(number, libc::SOL_SOCKET, name) == Some(value);
    is(libc::SO_TYPE, libc::SOCK_DGRAM)
        && (is(libc::SO_DOMAIN, libc::AF_INET) || is(libc::SO_DOMAIN, libc::AF_INET6))
        && is(libc::SO_PROTOCOL, libc::IPPROTO_UDP)
}

/// Returns the facts about a descriptor; `None` if it is not a bound UDP socket.
#[must_use]
pub fn udp_socket_facts(number: c_int) -> Option<UdpSocketFacts> {
    let socket = borrow_descriptor(number).filter(|_| is_udp_socket(number))?;
    let local = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
    let peer: Option<SocketAddrAny> = rustix::net::getpeername(socket).ok().flatten();
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    let filtered = has_filter(number).then_some("it has a filter of its own");
    let is_on = |level, name| socket_option(number, level, name).is_some_and(|value| value != 0);
    let is_set =
        |(level, name, why): &(c_int, c_int, &'static str)| is_on(*level, *name).then_some(*why);
    let obstacle = filtered.or_else(|| KERNEL_ONLY_OPTIONS.iter().find_map(is_set));
    (local.port() != 0).then_some(UdpSocketFacts {
        local,
        peer,
        has_both_families: local.is_ipv6() && !is_v6_only(number),
        shares_address: is_on(libc::SOL_SOCKET, libc::SO_REUSEADDR),
        shares_port: shares_port(number),
        obstacle,
        device: bound_interface_index(number),
        receive_buffer: explicit_receive_buffer_size(number),
    })
}

/// Returns the size of a socket's receive buffer in bytes; `None` if the size is the system's
/// default or unknown.
fn explicit_receive_buffer_size(number: c_int) -> Option<u32> {
    let size = socket_option(number, libc::SOL_SOCKET, libc::SO_RCVBUF)?;
    let default = std::fs::read_to_string("/proc/sys/net/core/rmem_default").ok()?;
    let is_default = default.trim().parse() == Ok(size);
    u32::try_from(size).ok().filter(|_| !is_default)
}

/// Returns true if a socket shares its port with others (`SO_REUSEPORT`).
#[must_use]
pub fn shares_port(number: c_int) -> bool {
    socket_option(number, libc::SOL_SOCKET, libc::SO_REUSEPORT).is_some_and(|value| value != 0)
}

/// Returns true if this option attaches a BPF program that chooses among the sockets of a port.
#[must_use]
pub fn is_reuseport_program_option(level: c_int, name: c_int) -> bool {
    let names = [libc::SO_ATTACH_REUSEPORT_CBPF, libc::SO_ATTACH_REUSEPORT_EBPF];
    level == libc::SOL_SOCKET && names.contains(&name)
}

/// Returns true if a socket receives IPv6 only (`IPV6_V6ONLY`).
#[must_use]
pub fn is_v6_only(number: c_int) -> bool {
    socket_option(number, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY).is_some_and(|value| value != 0)
}

/// Returns the index of the interface to which a socket is bound; 0 for none.
#[must_use]
pub fn bound_interface_index(number: c_int) -> u32 {
    socket_option(number, libc::SOL_SOCKET, SO_BINDTOIFINDEX).unwrap_or(0).unsigned_abs()
}

/// Returns true if this option binds a socket to an interface.
#[must_use]
pub fn is_device_binding_option(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET && [SO_BINDTOIFINDEX, libc::SO_BINDTODEVICE].contains(&name)
}

/// `SO_BINDTOIFINDEX`: option that binds a socket to an interface by index.
const SO_BINDTOIFINDEX: c_int = 62;

/// Returns true if setting this option may give the socket a property that only the kernel can
/// implement.
#[must_use]
pub fn is_kernel_only_option(level: c_int, name: c_int) -> bool {
    let filters =
        level == libc::SOL_SOCKET && [libc::SO_ATTACH_FILTER, libc::SO_ATTACH_BPF].contains(&name);
    filters
        || is_device_binding_option(level, name)
        || KERNEL_ONLY_OPTIONS.iter().any(|(l, n, _)| (*l, *n) == (level, name))
}

/// Returns true if an option sets the size of the receive buffer.
#[must_use]
pub fn is_receive_buffer_option(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET && [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE].contains(&name)
}

/// Sets the size of a socket's receive buffer in bytes, even beyond the system's maximum if the
/// program has CAP_NET_ADMIN. Returns the previous size in the form that setsockopt(2) takes, which
/// is half of the size that the kernel reports. Returns `None` if the previous size is unknown or
/// the size has not been changed.
#[must_use]
pub fn replace_receive_buffer_size(number: c_int, bytes: c_int) -> Option<c_int> {
    let socket = borrow_descriptor(number)?;
    // The kernel returns twice the size that was set.
    let before = socket_option(number, libc::SOL_SOCKET, libc::SO_RCVBUF)? / 2;
    let (saved, size) = (errno(), usize::try_from(bytes).ok()?);
    let set = sockopt::set_socket_recv_buffer_size_force(socket, size)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, size));
    set_errno(saved);
    set.ok().map(|()| before)
}

/// Returns the receive timeout of a socket; `None` if no timeout is set.
#[must_use]
pub fn receive_timeout(number: c_int) -> Option<Duration> {
    sockopt::socket_timeout(borrow_descriptor(number)?, sockopt::Timeout::Recv).ok().flatten()
}

/// Returns the number of datagrams that the kernel has dropped for a socket; 0 if the number is
/// unknown.
#[must_use]
pub fn kernel_drop_count(number: c_int) -> u32 {
    /// Number of words of `SO_MEMINFO`.
    const MEMINFO_WORDS: usize = 9;
    /// Index of the word of `SO_MEMINFO` that counts drops (`SK_MEMINFO_DROPS`).
    const MEMINFO_DROPS_INDEX: usize = 8;
    let mut words = [0u32; MEMINFO_WORDS];
    let mut size = size_of_val(&words) as libc::socklen_t;
    let saved = errno();
    let place = words.as_mut_ptr().cast::<c_void>();
    // SAFETY: getsockopt(2) writes at most `size` bytes to `words`.
    let result = unsafe {
        libc::getsockopt(number, libc::SOL_SOCKET, libc::SO_MEMINFO, place, &raw mut size)
    };
    set_errno(saved);
    if result == 0 { words[MEMINFO_DROPS_INDEX] } else { 0 }
}

/// Returns the network namespace cookie of a socket; `None` before Linux 5.14.
#[must_use]
pub fn socket_namespace_cookie(number: c_int) -> Option<u64> {
    const SO_NETNS_COOKIE: c_int = 71;
    let mut cookie = 0u64;
    let mut size = 8;
    let place = (&raw mut cookie).cast::<c_void>();
    // SAFETY: getsockopt(2) writes at most `size` bytes to `cookie`.
    let result = unsafe {
        libc::getsockopt(number, libc::SOL_SOCKET, SO_NETNS_COOKIE, place, &raw mut size)
    };
    (result == 0).then_some(cookie)
}

fn socket_option(number: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut size = 4;
    let saved = errno();
    let place = (&raw mut value).cast::<c_void>();
    // SAFETY: getsockopt(2) writes at most `size` bytes to `value`.
    let result = unsafe { libc::getsockopt(number, level, name, place, &raw mut size) };
    set_errno(saved);
    (result == 0).then_some(value)
}

/// Returns true if a classic BPF filter is attached to the socket.
fn has_filter(number: c_int) -> bool {
    let mut count = 0;
    let saved = errno();
    let (name, no_buffer) = (libc::SO_GET_FILTER, std::ptr::null_mut());
    // SAFETY: with a size of 0, getsockopt(2) only returns the number of instructions.
    let result =
        unsafe { libc::getsockopt(number, libc::SOL_SOCKET, name, no_buffer, &raw mut count) };
    set_errno(saved);
    result == 0 && count > 0
}
