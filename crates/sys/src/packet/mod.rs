//! Packet sockets (packet(7)): receiving through a ring mapped into this process, and sending.
//!
//! The order of setup keeps unwanted frames out of the ring: a [`PacketSocket`] is opened with
//! protocol 0, so that no frame arrives; then the filter is attached, the [`PacketRing`] is
//! created, and the socket is bound to an interface last (RELIABILITY T12). [`layout`] parses the
//! ring's segments; [`PacketSender`] sends. A [`CookedSocket`] receives the packets of many
//! interfaces without a ring. Opening needs CAP_NET_RAW in the user namespace that owns the network
//! namespace.

mod cooked;
pub mod layout;
pub(crate) mod option;
mod ring;
mod sender;

pub use cooked::{CookedPacket, CookedSocket, EXCLUDED_INTERFACES_MAX};
pub use ring::{Gap, PacketRing, PacketRingParameters, RingStatistics};
pub use sender::{PacketSender, QdiscMode, SendReport, SendStopReason};

use crate::bpf::Program;
use crate::error::{ErrorContext as _, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

/// A classic BPF instruction (`struct sock_filter`): code, jump if true, jump if false, operand.
pub type ClassicBpfInstruction = (u16, u8, u8, u32);

/// A packet socket that is not bound yet and receives nothing.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map(Self)
            .context("socket", "packets (AF_PACKET)")
    }

    /// Attaches a classic BPF filter. The filter returns the captured length in bytes, or 0 to drop
    /// the frame. The kernel runs the filter on frames without their outermost VLAN tag.
    pub fn attach_filter(&self, program: &[ClassicBpfInstruction]) -> Result<()> {
        option::attach_filter(self.0.as_fd(), program)
    }

    /// Attaches a loaded socket filter program, which stays attached as long as the socket exists.
    pub fn attach_program(&self, program: &Program) -> Result<()> {
        let number = program.as_fd().as_raw_fd();
        option::set(self.as_fd(), libc::SOL_SOCKET, option::ATTACH_PROGRAM, &number)
    }

    /// Makes the socket ignore frames that this host sends.
    pub fn ignore_outgoing(&self) -> Result<()> {
        option::set(self.as_fd(), libc::SOL_PACKET, option::IGNORE_OUTGOING, &1_i32)
    }

    /// Makes an interface promiscuous for as long as the socket exists.
    pub fn make_promiscuous(&self, index: u32) -> Result<()> {
        let request = libc::packet_mreq {
            mr_ifindex: index.cast_signed(),
            mr_type: option::PACKET_MR_PROMISC,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        option::set(self.as_fd(), libc::SOL_PACKET, option::ADD_MEMBERSHIP, &request)
    }

    /// Creates and maps the ring.
    ///
    /// Fails with ENOMEM if the ring is too large; retry on a new socket with half the size.
    pub fn into_ring(self, shape: PacketRingParameters) -> Result<PacketRing> {
        PacketRing::create(self.0, shape)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_filter_is_rejected() {
        let Some(()) = testkit::need::require_net_raw() else { return };
        let socket = PacketSocket::open().unwrap();
        assert_eq!(socket.attach_filter(&[]).unwrap_err().errno, libc::EINVAL);
        assert_eq!(
            socket.attach_filter(&vec![(6, 0, 0, 0); 70_000]).unwrap_err().errno,
            libc::EINVAL
        );
        assert_eq!(socket.attach_filter(&[(0x15, 9, 9, 0)]).unwrap_err().errno, libc::EINVAL);
        socket.attach_filter(&[(6, 0, 0, 0xffff)]).unwrap();
    }
}
