//! Packet sockets (packet(7)): frames of interfaces through a ring that the kernel maps into this
//! process, and frames into interfaces.
//!
//! The order is what keeps the ring clean: a [`PacketSocket`] is opened with protocol 0, so that nothing
//! arrives; then comes the filter, then the [`PacketRing`], and last the bind to an interface
//! (RELIABILITY T12). What a ring's segment holds is read by [`layout`]; [`PacketSender`] is the way out.
//! Opening needs CAP_NET_RAW in the user name space that owns the network name space.

pub mod layout;
pub(crate) mod option;
mod ring;
mod sender;

pub use ring::{Gap, PacketRing, RingShape, RingStatistics};
pub use sender::{Qdisc, PacketSender, SendReport, SendStop};

use crate::bpf::Program;
use crate::error::{Named as _, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

/// A classic instruction as `struct sock_filter` has it: code, jump if true, jump if false, value.
pub type Instruction = (u16, u8, u8, u32);

/// A packet socket at which nothing arrives yet.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Opens a socket in the network name space of the calling thread.
    pub fn open() -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map(Self)
            .named("socket", "packets (AF_PACKET)")
    }

    /// Lets only those frames in for which the program answers more than 0; the answer cuts what
    /// is kept of them. The kernel runs it on frames without their outermost VLAN tag.
    pub fn attach(&self, program: &[Instruction]) -> Result<()> {
        option::attach(self.0.as_fd(), program)
    }

    /// As [`PacketSocket::attach`], with a program that was loaded as a socket filter. It stays with the
    /// socket, whoever else holds it.
    pub fn attach_program(&self, program: &Program) -> Result<()> {
        let number = program.as_fd().as_raw_fd();
        option::set(self.as_fd(), libc::SOL_SOCKET, option::ATTACH_PROGRAM, &number)
    }

    /// Leaves out what this host sends.
    pub fn ignore_outgoing(&self) -> Result<()> {
        option::set(self.as_fd(), libc::SOL_PACKET, option::IGNORE_OUTGOING, &1_i32)
    }

    /// Has an interface take frames that are for others, as long as the socket lives.
    pub fn promiscuous(&self, index: u32) -> Result<()> {
        let request = libc::packet_mreq {
            mr_ifindex: index.cast_signed(),
            mr_type: option::PROMISCUOUS,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        option::set(self.as_fd(), libc::SOL_PACKET, option::ADD_MEMBERSHIP, &request)
    }

    /// Makes the ring and maps it. The kernel refuses with ENOMEM what it has no memory for: ask a
    /// new socket for half as much.
    pub fn ring(self, shape: RingShape) -> Result<PacketRing> {
        PacketRing::make(self.0, shape)
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
    fn a_filter_that_is_none_is_refused() {
        let Some(()) = testkit::need::net_raw() else { return };
        let socket = PacketSocket::open().unwrap();
        assert_eq!(socket.attach(&[]).unwrap_err().errno, libc::EINVAL);
        assert_eq!(socket.attach(&vec![(6, 0, 0, 0); 70_000]).unwrap_err().errno, libc::EINVAL);
        assert_eq!(socket.attach(&[(0x15, 9, 9, 0)]).unwrap_err().errno, libc::EINVAL);
        socket.attach(&[(6, 0, 0, 0xffff)]).unwrap();
    }
}
