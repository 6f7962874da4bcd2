//! Socket options and addresses of packet sockets.

use super::ClassicBpfInstruction;
use crate::error::{Error, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Number of a socket option, and its name for errors.
pub(crate) type SocketOption = (libc::c_int, &'static str);

pub(super) const ATTACH_FILTER: SocketOption = (libc::SO_ATTACH_FILTER, "SO_ATTACH_FILTER");
pub(super) const ATTACH_PROGRAM: SocketOption = (libc::SO_ATTACH_BPF, "SO_ATTACH_BPF");
pub(super) const MEMORY: SocketOption = (libc::SO_MEMINFO, "SO_MEMINFO");
pub(super) const ERROR: SocketOption = (libc::SO_ERROR, "SO_ERROR");
pub(super) const ADD_MEMBERSHIP: SocketOption =
    (libc::PACKET_ADD_MEMBERSHIP, "PACKET_ADD_MEMBERSHIP");
/// Cookie of a network namespace (Linux 5.14).
pub(crate) const NETNS_COOKIE: SocketOption = (71, "SO_NETNS_COOKIE");
pub(super) const RX_RING: SocketOption = (libc::PACKET_RX_RING, "PACKET_RX_RING");
pub(super) const STATISTICS: SocketOption = (libc::PACKET_STATISTICS, "PACKET_STATISTICS");
pub(super) const AUXILIARY_DATA: SocketOption = (libc::PACKET_AUXDATA, "PACKET_AUXDATA");
pub(super) const TIMESTAMPS: SocketOption = (libc::SO_TIMESTAMPNS, "SO_TIMESTAMPNS");
pub(super) const RECEIVE_BUFFER: SocketOption = (libc::SO_RCVBUF, "SO_RCVBUF");
pub(super) const RECEIVE_BUFFER_FORCE: SocketOption = (libc::SO_RCVBUFFORCE, "SO_RCVBUFFORCE");
pub(super) const VERSION: SocketOption = (libc::PACKET_VERSION, "PACKET_VERSION");
pub(super) const RESERVE: SocketOption = (libc::PACKET_RESERVE, "PACKET_RESERVE");
pub(super) const QDISC_BYPASS: SocketOption = (libc::PACKET_QDISC_BYPASS, "PACKET_QDISC_BYPASS");
pub(super) const IGNORE_OUTGOING: SocketOption = (23, "PACKET_IGNORE_OUTGOING");
/// PACKET_MR_PROMISC: membership that makes the interface promiscuous.
pub(super) const PACKET_MR_PROMISC: libc::c_ushort = 1;
/// ETH_P_ALL: protocol number that stands for all protocols.
pub(super) const ETH_P_ALL: u16 = 3;

/// Instruction `ret #0`, which alone is a program that drops every frame.
pub(super) const DROP_ALL: ClassicBpfInstruction = (6, 0, 0, 0);

/// A value of a socket option.
///
/// # Safety
///
/// The type must be `repr(C)` with the kernel's layout of the option. Zero, and every other bit
/// pattern that the kernel writes, must be a valid value of the type. Addresses in a value must
/// point to memory that is valid for the duration of the call.
pub(crate) unsafe trait OptionValue {}

// SAFETY: an integer.
unsafe impl OptionValue for libc::c_int {}
// SAFETY: an integer.
unsafe impl OptionValue for u64 {}
// SAFETY: nine integers, SK_MEMINFO_VARS of them.
unsafe impl OptionValue for [u32; 9] {}
// SAFETY: laid out by libc; `attach` makes it alone, from a vector that outlives the call.
unsafe impl OptionValue for libc::sock_fprog {}
// SAFETY: integers, laid out by libc.
unsafe impl OptionValue for libc::packet_mreq {}
// SAFETY: integers, laid out by libc.
unsafe impl OptionValue for libc::tpacket_req3 {}
// SAFETY: integers, laid out by libc.
unsafe impl OptionValue for libc::tpacket_stats {}
// SAFETY: integers, laid out by libc.
unsafe impl OptionValue for libc::tpacket_stats_v3 {}

/// Sets a socket option, given by its level and number. An error contains the option's name.
pub(crate) fn set<T: OptionValue>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    (number, name): SocketOption,
    value: &T,
) -> Result<()> {
    let length = length_of::<T>();
    // SAFETY: setsockopt(2) reads `length` bytes at the address of a live reference of that size,
    // and the memory to which its fields point, which is valid (`OptionValue`).
    let answer = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, number, (&raw const *value).cast(), length)
    };
    if answer == 0 { Ok(()) } else { Err(Error::last_os_error("setsockopt", name)) }
}

/// Returns the value of a socket option. Bytes that the kernel does not write are zero.
pub(crate) fn get<T: OptionValue>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    (number, name): SocketOption,
) -> Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = length_of::<T>();
    // SAFETY: getsockopt(2) writes at most `length` bytes to a buffer of that size, and stores the
    // number of bytes written in `length`.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            number,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if answer != 0 {
        return Err(Error::last_os_error("getsockopt", name));
    }
    // SAFETY: zero is a value of the type and so is every value that the kernel writes
    // (`OptionValue`).
    Ok(unsafe { value.assume_init() })
}

/// Attaches a classic BPF program to a socket, in place of the program attached before.
pub(super) fn attach_filter(
    socket: BorrowedFd<'_>,
    program: &[ClassicBpfInstruction],
) -> Result<()> {
    let length = u16::try_from(program.len()).ok().filter(|length| *length > 0);
    let length = length.ok_or_else(|| Error::new("setsockopt", ATTACH_FILTER.1, libc::EINVAL))?;
    let mut code: Vec<libc::sock_filter> =
        program.iter().map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k }).collect();
    let program = libc::sock_fprog { len: length, filter: code.as_mut_ptr() };
    set(socket, libc::SOL_SOCKET, ATTACH_FILTER, &program)
}

/// Binds a socket to an interface (0 for all) and a protocol (0 for none).
pub(super) fn bind(socket: BorrowedFd<'_>, index: u32, protocol: u16) -> Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET.cast_unsigned() as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: index.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = length_of::<libc::sockaddr_ll>();
    // SAFETY: bind(2) reads `length` bytes at the address of a live value of that size.
    let answer = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast::<libc::sockaddr>(), length)
    };
    if answer == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error("bind", format!("interface {index}")))
    }
}

const fn length_of<T>() -> libc::socklen_t {
    assert!(size_of::<T>() < 4096, "an option is small");
    size_of::<T>() as libc::socklen_t
}
