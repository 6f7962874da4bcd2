//! Options, offsets and addresses of AF_XDP sockets (`linux/if_xdp.h`).

use crate::error::{Error, Result};
use crate::packet::option::{self, OptionValue, SocketOption};
use std::os::fd::{AsRawFd as _, BorrowedFd};

pub(super) const XDP_MMAP_OFFSETS: SocketOption = (1, "XDP_MMAP_OFFSETS");
pub(super) const XDP_RX_RING: SocketOption = (2, "XDP_RX_RING");
pub(super) const XDP_TX_RING: SocketOption = (3, "XDP_TX_RING");
pub(super) const XDP_UMEM_REG: SocketOption = (4, "XDP_UMEM_REG");
pub(super) const XDP_UMEM_FILL_RING: SocketOption = (5, "XDP_UMEM_FILL_RING");
pub(super) const XDP_UMEM_COMPLETION_RING: SocketOption = (6, "XDP_UMEM_COMPLETION_RING");
pub(super) const XDP_STATISTICS: SocketOption = (7, "XDP_STATISTICS");
pub(super) const XDP_OPTIONS: SocketOption = (8, "XDP_OPTIONS");

/// Offset in the socket at which mmap(2) maps the receive ring.
pub(super) const RX_MAP_OFFSET: u64 = 0;
/// Offset in the socket at which mmap(2) maps the send ring.
pub(super) const TX_MAP_OFFSET: u64 = 0x8000_0000;
/// Offset in the socket at which mmap(2) maps the fill ring.
pub(super) const FILL_MAP_OFFSET: u64 = 0x1_0000_0000;
/// Offset in the socket at which mmap(2) maps the completion ring.
pub(super) const COMPLETION_MAP_OFFSET: u64 = 0x1_8000_0000;

/// XDP_SHARED_UMEM: bind flag to share the memory of another socket.
pub(super) const XDP_SHARED_UMEM: u16 = 1;
/// XDP_COPY: the kernel copies frames.
pub(super) const XDP_COPY: u16 = 1 << 1;
/// XDP_ZEROCOPY: the device accesses the memory itself.
pub(super) const XDP_ZEROCOPY: u16 = 1 << 2;
/// XDP_USE_NEED_WAKEUP: the kernel sets flags that show when it must be woken.
pub(super) const XDP_USE_NEED_WAKEUP: u16 = 1 << 3;
/// XDP_USE_SG: packets may span several frames.
pub(super) const XDP_USE_SG: u16 = 1 << 4;

const SOL_XDP: libc::c_int = 283;

/// Byte offsets of the parts of a ring in its mapping.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct RingOffsets {
    pub(super) producer: u64,
    pub(super) consumer: u64,
    pub(super) entries: u64,
    pub(super) flags: u64,
}

/// Byte offsets of the parts of all four rings in their mappings.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct AllRingOffsets {
    pub(super) rx: RingOffsets,
    pub(super) tx: RingOffsets,
    pub(super) fill: RingOffsets,
    pub(super) completion: RingOffsets,
}

/// `struct xdp_umem_reg` without its last field, for which the kernel then assumes 0.
#[repr(C)]
pub(super) struct UmemRegistration {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) frame: u32,
    pub(super) headroom: u32,
    pub(super) flags: u32,
    pub(super) pad: u32,
}

// SAFETY: integers, laid out as `struct xdp_mmap_offsets`.
unsafe impl OptionValue for AllRingOffsets {}
// SAFETY: integers, laid out as `struct xdp_umem_reg`, whose last field is 0; the address is that
// of a mapping that `XdpSocket` keeps as long as the descriptor.
unsafe impl OptionValue for UmemRegistration {}
// SAFETY: integers, laid out as `struct xdp_statistics`.
unsafe impl OptionValue for [u64; 6] {}
// SAFETY: an integer, as `struct xdp_options`.
unsafe impl OptionValue for u32 {}

pub(super) fn set<T: OptionValue>(
    socket: BorrowedFd<'_>,
    name: SocketOption,
    value: &T,
) -> Result<()> {
    option::set(socket, SOL_XDP, name, value)
}

pub(super) fn get<T: OptionValue>(socket: BorrowedFd<'_>, name: SocketOption) -> Result<T> {
    option::get(socket, SOL_XDP, name)
}

/// Binds a socket to a queue of an interface. If `shared` is not `None`, the socket uses the memory
/// of the socket `shared`.
pub(super) fn bind(
    socket: BorrowedFd<'_>,
    interface: u32,
    queue: u32,
    flags: u16,
    shared: Option<BorrowedFd<'_>>,
) -> Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: shared.map_or(0, |socket| socket.as_raw_fd().cast_unsigned()),
    };
    let length = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: bind(2) reads `length` bytes at the address of a live value of that size.
    let answer = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast::<libc::sockaddr>(), length)
    };
    let target = || format!("AF_XDP queue {queue} of interface {interface}");
    if answer == 0 { Ok(()) } else { Err(Error::last_os_error("bind", target())) }
}
