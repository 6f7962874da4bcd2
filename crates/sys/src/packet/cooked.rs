//! A packet socket for the packets of many interfaces, without their link-layer headers
//! (`SOCK_DGRAM` of packet(7)).
//!
//! The kernel removes the link-layer header of each packet and describes it in an address instead,
//! so that packets of interfaces of all types look alike. The socket receives nothing until
//! [`CookedSocket::start`].

use super::layout::VlanTag;
use super::option::{self, ETH_P_ALL};
use crate::error::{Error, ErrorContext as _, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

/// Maximum number of interfaces that [`CookedSocket::start`] can exclude. Each is an instruction of
/// a classic BPF program whose jumps reach 255 instructions.
pub const EXCLUDED_INTERFACES_MAX: usize = 250;
/// Offset in classic BPF programs at which the interface index of a packet can be loaded
/// (`SKF_AD_OFF + SKF_AD_IFINDEX`).
const INTERFACE_INDEX_OFFSET: u32 = 0xffff_f008;
/// Protocol number that no packet has. A socket bound to this protocol receives nothing, and the
/// kernel spends no time on it.
const PROTOCOL_NONE: u16 = 0;
/// Size of the buffer for control messages in bytes: a timestamp and the auxiliary data.
const CONTROL_BUFFER_SIZE: usize = 128;

/// A packet socket for the packets of many interfaces.
#[derive(Debug)]
pub struct CookedSocket(OwnedFd);

/// Metadata of a received packet; the caller's buffer has the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CookedPacket {
    /// Time of day of the packet, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Length of the packet in bytes, without its link-layer header.
    pub length: usize,
    /// Number of received bytes, less than `length` if the buffer was too short.
    pub captured: usize,
    /// Index of the interface that received or sent the packet.
    pub interface: u32,
    /// Link type of the interface (ARPHRD_*).
    pub hatype: u16,
    /// Packet type (PACKET_*): the addressee, or whether this host sent the packet.
    pub kind: u8,
    /// EtherType, or the number that the kernel uses instead (ETH_P_*).
    pub protocol: u16,
    /// Link-layer address of the sender, padded with zeros.
    pub sender: [u8; 8],
    /// Length of the sender's link-layer address in bytes.
    pub sender_length: u8,
    /// VLAN tag that the kernel has removed from the packet; `None` if there was none.
    pub vlan: Option<VlanTag>,
}

impl CookedSocket {
    /// Opens a socket in the calling thread's network namespace. Needs CAP_NET_RAW.
    pub fn open() -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)
                .context("socket", "packets without headers (AF_PACKET)")?;
        option::set(socket.as_fd(), libc::SOL_PACKET, option::AUXILIARY_DATA, &1_i32)?;
        option::set(socket.as_fd(), libc::SOL_SOCKET, option::TIMESTAMPS, &1_i32)?;
        Ok(Self(socket))
    }

    /// Starts receiving the packets of all interfaces except the interfaces with the indices in
    /// `excluded`. Needs no privilege.
    ///
    /// Fails with EINVAL if more than [`EXCLUDED_INTERFACES_MAX`] interfaces are excluded.
    pub fn start(&self, excluded: &[u32]) -> Result<()> {
        let Some(program) = interface_exclusion_program(excluded) else {
            return Err(Error::new("setsockopt", option::ATTACH_FILTER.1, libc::EINVAL));
        };
        option::attach_filter(self.0.as_fd(), &program)?;
        option::bind(self.0.as_fd(), 0, ETH_P_ALL)
    }

    /// Receives no further packets. Packets received earlier can still be read.
    pub fn stop(&self) -> Result<()> {
        option::attach_filter(self.0.as_fd(), &[option::DROP_ALL])?;
        option::bind(self.0.as_fd(), 0, PROTOCOL_NONE)
    }

    /// Sets the size of the receive buffer in bytes. Without CAP_NET_ADMIN the kernel limits it to
    /// `net.core.rmem_max`.
    pub fn set_buffer_size(&self, bytes: i32) -> Result<()> {
        let set = |name| option::set(self.0.as_fd(), libc::SOL_SOCKET, name, &bytes);
        set(option::RECEIVE_BUFFER_FORCE).or_else(|_| set(option::RECEIVE_BUFFER))
    }

    /// Returns the number of packets that have been dropped since the last call because the receive
    /// buffer was full.
    pub fn take_drop_count(&self) -> Result<u32> {
        let statistics: libc::tpacket_stats =
            option::get(self.0.as_fd(), libc::SOL_PACKET, option::STATISTICS)?;
        Ok(statistics.tp_drops)
    }

    /// Receives a packet into `to`, without waiting. Returns `None` if no packet is available.
    pub fn receive(&self, to: &mut [u8]) -> Option<CookedPacket> {
        let mut address = MaybeUninit::<libc::sockaddr_ll>::zeroed();
        let mut control = ControlBuffer([0; CONTROL_BUFFER_SIZE]);
        let mut part = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
        // SAFETY: a `msghdr` consists of integers and pointers, for which zero is a value.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_name = address.as_mut_ptr().cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_BUFFER_SIZE;
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: recvmsg(2) writes to the address, the part and the control buffer, each of which
        // is live and has the length given beside it.
        let length = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut message, flags) };
        let length = usize::try_from(length).ok()?;
        // SAFETY: zero is a value of the type, and so is whatever the kernel wrote over it.
        let address = unsafe { address.assume_init() };
        let mut packet = CookedPacket {
            time_ns: 0,
            length,
            captured: length.min(to.len()),
            interface: address.sll_ifindex.cast_unsigned(),
            hatype: address.sll_hatype,
            kind: address.sll_pkttype,
            protocol: u16::from_be(address.sll_protocol),
            sender: address.sll_addr,
            sender_length: address.sll_halen,
            vlan: None,
        };
        let used = message.msg_controllen.min(CONTROL_BUFFER_SIZE);
        packet.read_control_messages(control.0.get(..used).unwrap_or_default());
        Some(packet)
    }
}

/// A buffer for control messages, aligned as the kernel aligns them.
#[repr(C, align(8))]
struct ControlBuffer([u8; CONTROL_BUFFER_SIZE]);

impl CookedPacket {
    /// Reads the time and the VLAN tag from the control messages.
    fn read_control_messages(&mut self, mut rest: &[u8]) {
        const HEADER_SIZE: usize = size_of::<libc::cmsghdr>();
        while let Some((length, level, kind)) = control_header(rest) {
            let data = rest.get(HEADER_SIZE..length).unwrap_or_default();
            match (level, kind) {
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                    let [seconds, nanoseconds] = [0, 8].map(|at| u64_at(data, at).unwrap_or(0));
                    self.time_ns = seconds.wrapping_mul(1_000_000_000).wrapping_add(nanoseconds);
                }
                (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                    self.vlan = VlanTag::from_auxiliary_data(data);
                }
                _ => {}
            }
            rest = rest.get(length.next_multiple_of(size_of::<usize>())..).unwrap_or_default();
        }
    }
}

/// Returns the length, level and type of the control message at the beginning of `bytes`; `None` if
/// there is no complete message.
fn control_header(bytes: &[u8]) -> Option<(usize, i32, i32)> {
    let length = usize::try_from(u64_at(bytes, 0)?).ok()?;
    let integer = |at: usize| Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let is_complete = (size_of::<libc::cmsghdr>()..=bytes.len()).contains(&length);
    is_complete.then_some((length, integer(8)?, integer(12)?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Returns a program that accepts the packets of all interfaces but the excluded ones; `None` if
/// more than [`EXCLUDED_INTERFACES_MAX`] are excluded.
fn interface_exclusion_program(excluded: &[u32]) -> Option<Vec<super::ClassicBpfInstruction>> {
    let count = excluded.len();
    if count > EXCLUDED_INTERFACES_MAX {
        return None;
    }
    let mut program = vec![(0x20, 0, 0, INTERFACE_INDEX_OFFSET)];
    for (number, index) in excluded.iter().enumerate() {
        // The last two instructions accept and drop.
        program.push((0x15, u8::try_from(count - number).ok()?, 0, *index));
    }
    program.extend([(6, 0, 0, u32::MAX), option::DROP_ALL]);
    Some(program)
}

impl AsFd for CookedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn send(bytes: &[u8]) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(bytes, to.local_addr().unwrap()).unwrap();
    }

    #[test]
    fn packets_of_excluded_interfaces_are_not_received() {
        let Some(space) = testkit::net::Namespace::new() else { return };
        let (sent, received, bytes) = space.run_in_network_namespace(|| {
            let socket = CookedSocket::open().unwrap();
            let mut bytes = [0; 64];
            send(b"before the start");
            assert_eq!(socket.receive(&mut bytes), None);
            socket.start(&[]).unwrap();
            send(b"received");
            let sent = socket.receive(&mut bytes).unwrap();
            let received = socket.receive(&mut bytes).unwrap();
            socket.start(&[7, sent.interface, 9]).unwrap();
            send(b"excluded");
            assert_eq!(socket.receive(&mut bytes), None);
            socket.start(&[7]).unwrap();
            send(b"of another interface");
            assert!(socket.receive(&mut bytes).is_some());
            socket.stop().unwrap();
            send(b"after the end");
            while socket.receive(&mut bytes).is_some_and(|packet| packet.length == 28 + 20) {}
            assert_eq!(socket.receive(&mut bytes), None);
            (sent, received, bytes)
        });
        assert_eq!((sent.kind, received.kind), (4, 0), "outgoing, then to this host");
        assert_eq!((received.hatype, received.protocol), (772, 0x0800));
        assert_eq!((received.length, received.captured), (28 + 8, 28 + 8));
        assert!(received.time_ns > 1_600_000_000_000_000_000, "{received:?}");
        assert_eq!(bytes[0], 0x45, "an IPv4 header");
    }

    #[test]
    fn program_accepts_all_but_the_excluded_interfaces() {
        assert_eq!(interface_exclusion_program(&[]).unwrap().len(), 3);
        let program = interface_exclusion_program(&[4, 5]).unwrap();
        assert_eq!(program[1..3], [(0x15, 2, 0, 4), (0x15, 1, 0, 5)]);
        assert!(interface_exclusion_program(&vec![1; EXCLUDED_INTERFACES_MAX]).is_some());
        assert!(interface_exclusion_program(&vec![1; EXCLUDED_INTERFACES_MAX + 1]).is_none());
    }

    #[test]
    fn incomplete_control_messages_end_the_list() {
        assert_eq!(control_header(&[]), None);
        assert_eq!(control_header(&[0xff; 16]), None);
        assert_eq!(control_header(&[0; 16]), None, "shorter than its own header");
    }
}
