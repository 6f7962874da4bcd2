//! Network interfaces and their counters, the receive backlog, and network namespaces.
//!
//! Queries go over rtnetlink(7), synchronously ([`RouteSocket`]). A socket belongs to the namespace
//! of the thread that opens it; [`run_in_namespace`] opens sockets in another namespace.
//! [`LinkEvents`] reports changes of interfaces.

mod addresses;
mod backlog;
mod device_rules;
mod features;
mod firewall;
mod link_events;
mod links;
mod namespace;
mod packet_sockets;
mod tc_filters;
mod udp_sockets;

pub use backlog::BacklogCounters;
pub use device_rules::classification_rule_count;
pub use features::accepts_xdp_frames;
pub use firewall::has_packet_rules;
pub use link_events::LinkEvents;
pub use links::RouteSocket;
pub use namespace::{Namespace, namespace_cookie, run_in_namespace, run_in_new_namespace};
pub use packet_sockets::{PacketSocketInfo, packet_sockets};
pub use tc_filters::TcFilter;
pub use udp_sockets::udp_socket_interfaces;

use crate::bpf::XdpMode;
use crate::error::Result;

/// A network interface, as the kernel described it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interface {
    /// Interface index, which survives a rename and is not soon reused.
    pub index: u32,
    /// Current name of the interface.
    pub name: String,
    /// Alternative names of the interface.
    pub alternative: Vec<String>,
    /// Link type (ARPHRD_*: 1 Ethernet, 772 loopback, 65534 none).
    pub hatype: u16,
    /// MTU of the interface: maximum number of layer 3 bytes per frame.
    pub mtu: u32,
    /// State flags, such as up and running.
    pub flags: InterfaceFlags,
    /// Link-layer address; empty if the interface has none.
    pub mac: Vec<u8>,
    /// Kind of virtual device: `veth`, `vlan`, `bridge`, `tun`, …; `None` for hardware and for
    /// `lo`.
    pub kind: Option<String>,
    /// Index of the lower device or peer, which may be in another namespace; `None` if the
    /// interface has neither.
    pub lower_index: Option<u32>,
    /// Operational state (RFC 2863): 6 up, 2 down, 7 dormant, 0 unknown.
    pub operstate: u8,
    /// Attached XDP program, regardless of which process attached it; `None` if there is none.
    pub xdp: Option<XdpProgram>,
    /// Traffic counters of the interface.
    pub counters: InterfaceCounters,
}

/// An XDP program attached to an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XdpProgram {
    /// Program id; 0 if several programs are attached.
    pub program: u32,
    /// Mode of the program; `None` if several programs are attached.
    pub mode: Option<XdpMode>,
}

/// Interface flags (netdevice(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InterfaceFlags(pub u32);

impl InterfaceFlags {
    /// Returns true if the interface is administratively up.
    #[must_use]
    pub const fn is_up(self) -> bool {
        self.0 & libc::IFF_UP.cast_unsigned() != 0
    }

    /// Returns true if the interface is operational, for example has a carrier.
    #[must_use]
    pub const fn is_running(self) -> bool {
        self.0 & libc::IFF_RUNNING.cast_unsigned() != 0
    }

    /// Returns true if the interface is a loopback device.
    #[must_use]
    pub const fn is_loopback(self) -> bool {
        self.0 & libc::IFF_LOOPBACK.cast_unsigned() != 0
    }

    /// Returns true if an administrator made the interface promiscuous. Requests by sockets do not
    /// set this flag.
    #[must_use]
    pub const fn is_promiscuous(self) -> bool {
        self.0 & libc::IFF_PROMISC.cast_unsigned() != 0
    }
}

/// Counters of an interface since its creation (`struct rtnl_link_stats64`, documented in
/// `linux/if_link.h`). `rx_dropped` and the more specific `rx_` fields after it count receive
/// losses; drivers differ in which of these fields they use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InterfaceCounters {
    /// Frames received, excluding frames dropped by the device.
    pub rx_packets: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames received with an error. The sum includes at least some of the more specific receive
    /// errors.
    pub rx_errors: u64,
    /// Number of frames that could not be sent because of an error.
    pub tx_errors: u64,
    /// Received frames dropped by the driver, or by the kernel for lack of buffers.
    pub rx_dropped: u64,
    /// Frames dropped before being sent.
    pub tx_dropped: u64,
    /// Multicast frames received.
    pub multicast: u64,
    /// Received frames of invalid length.
    pub rx_length_errors: u64,
    /// Number of overflows of the device's receive buffer.
    pub rx_over_errors: u64,
    /// Received frames with an invalid checksum.
    pub rx_crc_errors: u64,
    /// Received frames with invalid alignment.
    pub rx_frame_errors: u64,
    /// Number of overflows of the device's receive queue.
    pub rx_fifo_errors: u64,
    /// Frames missed because the host supplied too few buffers.
    pub rx_missed_errors: u64,
    /// Frames not sent because the carrier was lost while sending.
    pub tx_carrier_errors: u64,
    /// Frames not sent because the device's queue ran empty while sending.
    pub tx_fifo_errors: u64,
    /// Frames dropped because the interface was not meant to receive, such as the backup of a bond.
    pub rx_nohandler: u64,
}

impl InterfaceCounters {
    /// Returns the number of frames that reached the device but not the host, as reported by the
    /// driver. Excludes `rx_errors`, because drivers count some of these frames there as well.
    #[must_use]
    pub const fn lost_rx_frames(&self) -> u64 {
        self.rx_dropped
            .saturating_add(self.rx_missed_errors)
            .saturating_add(self.rx_fifo_errors)
            .saturating_add(self.rx_over_errors)
    }
}

/// Returns the interface with this name in the calling thread's namespace.
pub fn interface(name: &str) -> Result<Interface> {
    RouteSocket::open()?.interface_by_name(name)
}

/// Lists the interfaces of the calling thread's namespace.
pub fn interfaces() -> Result<Vec<Interface>> {
    RouteSocket::open()?.list_interfaces()
}

/// Returns the current name of the interface with this index in the calling thread's namespace.
pub fn interface_name(index: u32) -> Result<String> {
    Ok(RouteSocket::open()?.interface_by_index(index)?.name)
}
