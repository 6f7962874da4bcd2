//! Network interfaces and their counters, the backlog, and name spaces.
//!
//! Asked by rtnetlink(7), synchronously and by hand: there is one question ([`RouteSocket`]), and it
//! tells everything. Whatever is opened belongs to the name space of the thread that opens it;
//! [`run_in`] opens in another.

mod addresses;
mod backlog;
mod features;
mod filters;
mod links;
mod namespace;

pub use backlog::Backlog;
pub use features::accepts_xdp_frames;
pub use filters::TcFilter;
pub use links::RouteSocket;
pub use namespace::{Namespace, namespace_cookie, run_in, run_in_new};

use crate::bpf::XdpMode;
use crate::error::Result;

/// A network interface, as the kernel told of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interface {
    /// Its number: stays when it is renamed, and is not used again for long.
    pub index: u32,
    /// Its name now.
    pub name: String,
    /// Other names that it has.
    pub alternative: Vec<String>,
    /// What kind of link it is (ARPHRD_*: 1 Ethernet, 772 loopback, 65534 none).
    pub hatype: u16,
    /// The largest packet of layer 3.
    pub mtu: u32,
    /// What state it is in.
    pub flags: InterfaceFlags,
    /// Its address in layer 2; empty where it has none.
    pub mac: Vec<u8>,
    /// What made it: `veth`, `vlan`, `bridge`, `tun`. None for hardware.
    pub kind: Option<String>,
    /// The interface below it or at its other end, which may be in another name space.
    pub link: Option<u32>,
    /// RFC 2863: 6 is up, 2 down, 7 dormant, 0 unknown.
    pub operstate: u8,
    /// The XDP program that is there, whoever put it there.
    pub xdp: Option<XdpProgram>,
    /// What it has counted.
    pub counters: Counters,
}

/// An XDP program at an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XdpProgram {
    /// Its number; 0 where there are several.
    pub program: u32,
    /// Who runs it; none where there are several.
    pub mode: Option<XdpMode>,
}

/// Flags of an interface (netdevice(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InterfaceFlags(pub u32);

impl InterfaceFlags {
    /// It has been switched on.
    #[must_use]
    pub const fn up(self) -> bool {
        self.0 & libc::IFF_UP.cast_unsigned() != 0
    }

    /// It has what it needs to carry frames, for example a cable.
    #[must_use]
    pub const fn running(self) -> bool {
        self.0 & libc::IFF_RUNNING.cast_unsigned() != 0
    }

    /// What is sent into it comes out of it.
    #[must_use]
    pub const fn loopback(self) -> bool {
        self.0 & libc::IFF_LOOPBACK.cast_unsigned() != 0
    }

    /// It takes frames that are for others. Only where an administrator asked for that by name;
    /// what sockets ask for is not seen here.
    #[must_use]
    pub const fn promiscuous(self) -> bool {
        self.0 & libc::IFF_PROMISC.cast_unsigned() != 0
    }

    /// There is one other end, and no addresses in layer 2.
    #[must_use]
    pub const fn point_to_point(self) -> bool {
        self.0 & libc::IFF_POINTOPOINT.cast_unsigned() != 0
    }
}

/// What an interface has counted since it was made (`struct rtnl_link_stats64`, whose comments in
/// `linux/if_link.h` say more). What was dropped on the way to the host is in the fields from
/// `rx_dropped` on; drivers differ in which they use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Frames that came, without those that the device had to drop.
    pub rx_packets: u64,
    /// Frames that went.
    pub tx_packets: u64,
    /// Bytes that came.
    pub rx_bytes: u64,
    /// Bytes that went.
    pub tx_bytes: u64,
    /// Frames that came damaged: the sum of several fields below, or more than that.
    pub rx_errors: u64,
    /// Frames that could not be sent.
    pub tx_errors: u64,
    /// Frames that came and were dropped by the driver or, since it had no room, by the kernel.
    pub rx_dropped: u64,
    /// Frames that were dropped on their way out.
    pub tx_dropped: u64,
    /// Frames that came for a group.
    pub multicast: u64,
    /// Frames of a wrong length.
    pub rx_length_errors: u64,
    /// The device's buffer overflowed.
    pub rx_over_errors: u64,
    /// Frames with a wrong checksum.
    pub rx_crc_errors: u64,
    /// Frames with a wrong end.
    pub rx_frame_errors: u64,
    /// The device's queue overflowed.
    pub rx_fifo_errors: u64,
    /// The host gave the device too few buffers.
    pub rx_missed_errors: u64,
    /// The cable was lost while sending.
    pub tx_carrier_errors: u64,
    /// The device's queue ran empty while sending.
    pub tx_fifo_errors: u64,
    /// Frames that came while the interface above was off.
    pub rx_nohandler: u64,
}

impl Counters {
    /// Frames that came to the device and did not come to the host, by what the driver tells.
    /// `rx_errors` is not among them: it repeats some of them.
    #[must_use]
    pub const fn rx_lost(&self) -> u64 {
        self.rx_dropped
            .saturating_add(self.rx_missed_errors)
            .saturating_add(self.rx_fifo_errors)
            .saturating_add(self.rx_over_errors)
    }
}

/// The interface with this name in the name space of the calling thread.
pub fn interface(name: &str) -> Result<Interface> {
    RouteSocket::open()?.named(name)
}

/// All interfaces of the name space of the calling thread.
pub fn interfaces() -> Result<Vec<Interface>> {
    RouteSocket::open()?.all()
}

/// What the interface with this number is called now, in the name space of the calling thread.
pub fn name_of(index: u32) -> Result<String> {
    Ok(RouteSocket::open()?.indexed(index)?.name)
}
