//! An AF_XDP socket bound to one queue of an interface.

use super::ring::{CompletionRing, EntryRing, FillRing, RingLayout, RxRing, TxRing};
use super::uapi::{self, AllRingOffsets, UmemRegistration};
use super::umem::Umem;
use crate::error::{ErrorContext as _, Result};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The party that transfers frames between device and memory: the device itself, or the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMode {
    /// The device accesses the memory itself; opening the socket fails if the driver does not
    /// support that.
    ZeroCopy,
    /// The kernel copies each frame between device and memory.
    Copy,
    /// Zero-copy if the driver supports it, otherwise copies by the kernel.
    /// [`XdpSocket::is_zero_copy`] returns the mode in effect.
    Auto,
}

/// Parameters with which an AF_XDP socket is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketSettings {
    /// Index of the interface to which the socket is bound.
    pub interface: u32,
    /// Number of the interface's queue. The socket receives only frames of this queue.
    pub queue: u32,
    /// Copy mode in which the socket is opened.
    pub mode: CopyMode,
    /// True to allow packets that span several frames (Linux 6.6).
    pub fragments: bool,
    /// Number of entries of the fill ring: a power of two, or 0 for no ring. A socket that shares
    /// memory with another one on the same queue has neither fill ring nor completion ring.
    pub fill: u32,
    /// Number of entries of the completion ring: a power of two, or 0 for no ring.
    pub completion: u32,
    /// Number of entries of the receive ring: a power of two, or 0 for no ring.
    pub rx: u32,
    /// Number of entries of the send ring: a power of two, or 0 for no ring.
    pub tx: u32,
}

impl SocketSettings {
    /// Creates the parameters of a socket with four rings of `entries` entries each.
    #[must_use]
    pub const fn new(interface: u32, queue: u32, entries: u32) -> Self {
        let (mode, fragments) = (CopyMode::Auto, false);
        let [fill, completion, rx, tx] = [entries; 4];
        Self { interface, queue, mode, fragments, fill, completion, rx, tx }
    }
}

/// The result of waking the kernel to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeOutcome {
    /// The kernel has taken all packets, or will do so without another call.
    Done,
    /// The kernel has taken some packets. The caller must wake it again later for the remaining
    /// packets.
    Retry,
    /// The device had no room for the packet that the kernel took last, and dropped the packet.
    Refused,
}

/// Counters since the creation of a socket (`struct xdp_statistics`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpStatistics {
    /// Received frames dropped for a reason other than a full receive ring, such as excessive
    /// length.
    pub rx_dropped: u64,
    /// Number of invalid descriptors that the kernel found in the fill ring.
    pub rx_invalid: u64,
    /// Number of invalid descriptors that the kernel found in the send ring.
    pub tx_invalid: u64,
    /// Received frames dropped because the receive ring was full.
    pub rx_full: u64,
    /// Received frames for which the fill ring had no free frame.
    pub fill_empty: u64,
    /// Number of times that the kernel found the send ring empty.
    pub tx_empty: u64,
}

/// An AF_XDP socket and its rings. Dropping the socket discards the contents of the rings.
#[derive(Debug)]
pub struct XdpSocket {
    /// Ring of frames lent to the kernel; `None` if the settings request no such ring.
    pub fill: Option<FillRing>,
    /// Ring of frames that the kernel has sent; `None` if the settings request no such ring.
    pub completion: Option<CompletionRing>,
    /// Ring of received descriptors; `None` if the settings request no such ring.
    pub rx: Option<RxRing>,
    /// Ring of descriptors to send; `None` if the settings request no such ring.
    pub tx: Option<TxRing>,
    socket: Arc<OwnedFd>,
    umem: Arc<Umem>,
    zero_copy: bool,
}

impl XdpSocket {
    /// Opens a socket in the calling thread's network namespace and registers `umem` as its memory.
    /// Needs CAP_NET_RAW.
    ///
    /// Fails with ENOBUFS if the memory exceeds the limit on locked memory, which applies without
    /// CAP_IPC_LOCK.
    pub fn open(umem: &Arc<Umem>, settings: SocketSettings) -> Result<Self> {
        let socket = open_unbound_socket()?;
        let shape = umem.sizes();
        let registration = UmemRegistration {
            address: umem.memory().base().as_ptr().expose_provenance() as u64,
            bytes: umem.bytes(),
            frame: shape.frame,
            headroom: shape.headroom,
            flags: 0,
            pad: 0,
        };
        uapi::set(socket.as_fd(), uapi::XDP_UMEM_REG, &registration)?;
        Self::finish_open(socket, umem, settings, None)
    }

    /// Opens another socket with the memory and copy mode of this one. On another queue or
    /// interface, the new socket has its own fill and completion rings; on the same queue, it has
    /// none.
    pub fn open_sharing_memory(&self, settings: SocketSettings) -> Result<Self> {
        Self::finish_open(open_unbound_socket()?, &self.umem, settings, Some(self.socket.as_fd()))
    }

    /// Opens a socket that shares the memory registered with the socket `registered`.
    pub(super) fn open_with_shared_memory(
        umem: &Arc<Umem>,
        settings: SocketSettings,
        registered: BorrowedFd<'_>,
    ) -> Result<Self> {
        Self::finish_open(open_unbound_socket()?, umem, settings, Some(registered))
    }

    /// Returns the descriptor of the socket, through which other sockets share its memory.
    pub(super) const fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Returns the memory (UMEM) that holds the socket's frames.
    #[must_use]
    pub const fn umem(&self) -> &Arc<Umem> {
        &self.umem
    }

    /// Returns true if the device accesses the memory without a copy by the kernel.
    #[must_use]
    pub const fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Wakes the kernel to send. Packets that the kernel cannot send now wait for a later call. In
    /// copy mode, the kernel sends packets only during this call.
    pub fn wake_tx(&self) -> Result<WakeOutcome> {
        use rustix::io::Errno;
        match rustix::net::send(&*self.socket, &[], SendFlags::DONTWAIT) {
            Ok(_) => Ok(WakeOutcome::Done),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Ok(WakeOutcome::Retry),
            Err(Errno::BUSY) => Ok(WakeOutcome::Refused),
            Err(error) => Err(error).context("sendto", "an AF_XDP socket"),
        }
    }

    /// Removes and returns the pending error of the socket, such as ENETDOWN after the interface
    /// was removed; `None` if there is no error.
    #[must_use]
    pub fn take_error(&self) -> Option<i32> {
        use rustix::net::sockopt::socket_error;
        socket_error(&*self.socket)
            .ok()
            .and_then(std::result::Result::err)
            .map(|e| e.raw_os_error())
    }

    /// Wakes the kernel to use the frames in the fill ring.
    pub fn wake_rx(&self) -> Result<()> {
        use rustix::io::Errno;
        match rustix::net::recv(&*self.socket, &mut [0_u8; 0][..], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("recvfrom", "an AF_XDP socket"),
        }
    }

    /// Returns the counters since the creation of the socket.
    pub fn statistics(&self) -> Result<XdpStatistics> {
        let all: [u64; 6] = uapi::get(self.socket.as_fd(), uapi::XDP_STATISTICS)?;
        let [rx_dropped, rx_invalid, tx_invalid, rx_full, fill_empty, tx_empty] = all;
        Ok(XdpStatistics { rx_dropped, rx_invalid, tx_invalid, rx_full, fill_empty, tx_empty })
    }

    fn finish_open(
        socket: OwnedFd,
        umem: &Arc<Umem>,
        settings: SocketSettings,
        shared: Option<BorrowedFd<'_>>,
    ) -> Result<Self> {
        use uapi::{
            COMPLETION_MAP_OFFSET, FILL_MAP_OFFSET, XDP_UMEM_COMPLETION_RING, XDP_UMEM_FILL_RING,
        };
        use uapi::{RX_MAP_OFFSET, TX_MAP_OFFSET, XDP_RX_RING, XDP_TX_RING};
        let fd = socket.as_fd();
        let sizes = [
            (XDP_UMEM_FILL_RING, settings.fill),
            (XDP_UMEM_COMPLETION_RING, settings.completion),
            (XDP_RX_RING, settings.rx),
            (XDP_TX_RING, settings.tx),
        ];
        for (name, size) in sizes.into_iter().filter(|(_, size)| *size > 0) {
            uapi::set(fd, name, &size)?;
        }
        let offsets: AllRingOffsets = uapi::get(fd, uapi::XDP_MMAP_OFFSETS)?;
        let ring = |name, at, offsets, entry, size| {
            let form = RingLayout { name, at, offsets, entry, size, umem };
            (size > 0).then(|| EntryRing::map(fd, &form)).transpose()
        };
        let fill = ring("fill ring", FILL_MAP_OFFSET, offsets.fill, 8, settings.fill)?;
        let completion = ring(
            "completion ring",
            COMPLETION_MAP_OFFSET,
            offsets.completion,
            8,
            settings.completion,
        )?;
        let rx = ring("receive ring", RX_MAP_OFFSET, offsets.rx, 16, settings.rx)?;
        let tx = ring("send ring", TX_MAP_OFFSET, offsets.tx, 16, settings.tx)?;
        uapi::bind(fd, settings.interface, settings.queue, bind_flags(settings, shared), shared)?;
        let options: u32 = uapi::get(fd, uapi::XDP_OPTIONS)?;
        Ok(Self {
            fill: fill.map(FillRing),
            completion: completion.map(CompletionRing),
            rx: rx.map(RxRing),
            tx: tx.map(TxRing),
            umem: Arc::clone(umem),
            zero_copy: options & 1 != 0,
            socket: Arc::new(socket),
        })
    }
}

/// Returns the flags for bind(2). With the sharing flag the kernel rejects all other flags.
fn bind_flags(settings: SocketSettings, shared: Option<BorrowedFd<'_>>) -> u16 {
    if shared.is_some() {
        return uapi::XDP_SHARED_UMEM;
    }
    let mode = match settings.mode {
        CopyMode::ZeroCopy => uapi::XDP_ZEROCOPY,
        CopyMode::Copy => uapi::XDP_COPY,
        CopyMode::Auto => 0,
    };
    let fragments = if settings.fragments { uapi::XDP_USE_SG } else { 0 };
    uapi::XDP_USE_NEED_WAKEUP | mode | fragments
}

fn open_unbound_socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
        .context("socket", "AF_XDP")
}

impl AsFd for XdpSocket {
    /// Returns the descriptor, which is readable when a frame has been received, and writable when
    /// the send ring has room.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
