//! An AF_XDP socket at one queue of an interface.

use super::ring::{CompletionRing, EntryRing, FillRing, RingLayout, RxRing, TxRing};
use super::setting::{self, AllOffsets, Registration};
use super::umem::Umem;
use crate::error::{ErrorContext as _, Result};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Transfer of frames into the memory: by the device or by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMode {
    /// Zero-copy, or the socket is refused.
    ZeroCopy,
    /// Copied by the kernel.
    Copy,
    /// Zero-copy if the driver supports it, else copied by the kernel; see
    /// [`XdpSocket::is_zero_copy`].
    Either,
}

/// Parameters of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketSettings {
    /// Interface index.
    pub interface: u32,
    /// Queue number; the socket receives frames of this queue alone.
    pub queue: u32,
    /// Copy mode.
    pub mode: CopyMode,
    /// Allows packets of several frames (Linux 6.6).
    pub fragments: bool,
    /// Entries of the fill ring: a power of two, or 0 for none. A socket that shares memory with
    /// another one at the same queue has neither fill nor completion ring.
    pub fill: u32,
    /// Entries of the completion ring.
    pub completion: u32,
    /// Entries of the receive ring.
    pub rx: u32,
    /// Entries of the send ring.
    pub tx: u32,
}

impl SocketSettings {
    /// Creates parameters with four rings of `entries` entries.
    #[must_use]
    pub const fn new(interface: u32, queue: u32, entries: u32) -> Self {
        let (mode, fragments) = (CopyMode::Either, false);
        let [fill, completion, rx, tx] = [entries; 4];
        Self { interface, queue, mode, fragments, fill, completion, rx, tx }
    }
}

/// Result of waking the kernel to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeOutcome {
    /// All packets are taken, or will be.
    Done,
    /// Some packets are taken; call again later.
    Again,
    /// The device had no room for the packet taken last, which is lost.
    Refused,
}

/// Counters since the creation of a socket (`struct xdp_statistics`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpStatistics {
    /// Frames dropped for other reasons, such as excessive length.
    pub rx_dropped: u64,
    /// Invalid descriptors in the fill ring.
    pub rx_invalid: u64,
    /// Invalid descriptors in the send ring.
    pub tx_invalid: u64,
    /// Frames dropped at a full receive ring.
    pub rx_full: u64,
    /// Frames that found the fill ring empty.
    pub fill_empty: u64,
    /// Times the send ring was found empty.
    pub tx_empty: u64,
}

/// A socket and its rings, whose contents are lost on drop.
#[derive(Debug)]
pub struct XdpSocket {
    /// Frames lent to the kernel.
    pub fill: Option<FillRing>,
    /// Frames that have been sent.
    pub completion: Option<CompletionRing>,
    /// Received descriptors.
    pub rx: Option<RxRing>,
    /// Descriptors to send.
    pub tx: Option<TxRing>,
    socket: Arc<OwnedFd>,
    umem: Arc<Umem>,
    zero_copy: bool,
}

impl XdpSocket {
    /// Opens a socket in the calling thread's network namespace and registers the memory. Needs
    /// CAP_NET_RAW.
    ///
    /// ENOBUFS: without CAP_IPC_LOCK the memory counts against the lock limit.
    pub fn open(umem: &Arc<Umem>, settings: SocketSettings) -> Result<Self> {
        let socket = open_unbound()?;
        let shape = umem.shape();
        let registration = Registration {
            address: umem.memory().base().as_ptr().expose_provenance() as u64,
            bytes: umem.bytes(),
            frame: shape.frame,
            headroom: shape.headroom,
            flags: 0,
            pad: 0,
        };
        setting::set(socket.as_fd(), setting::UMEM, &registration)?;
        Self::finish(socket, umem, settings, None)
    }

    /// Opens a socket that shares the memory and copy mode of this socket. At another queue or
    /// interface the new socket has fill and completion rings of its own, at the same queue none.
    pub fn share(&self, settings: SocketSettings) -> Result<Self> {
        Self::finish(open_unbound()?, &self.umem, settings, Some(self.socket.as_fd()))
    }

    /// Opens a socket that shares the memory registered with the socket `registered`.
    pub(super) fn open_sharing(
        umem: &Arc<Umem>,
        settings: SocketSettings,
        registered: BorrowedFd<'_>,
    ) -> Result<Self> {
        Self::finish(open_unbound()?, umem, settings, Some(registered))
    }

    /// Returns the descriptor, for sharing the memory.
    pub(super) const fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Returns the memory.
    #[must_use]
    pub const fn umem(&self) -> &Arc<Umem> {
        &self.umem
    }

    /// Returns true if the device accesses the memory itself.
    #[must_use]
    pub const fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Wakes the kernel to send. Packets that it cannot send now wait for a later call. Always
    /// needed in copy mode.
    pub fn wake_tx(&self) -> Result<WakeOutcome> {
        use rustix::io::Errno;
        match rustix::net::send(&*self.socket, &[], SendFlags::DONTWAIT) {
            Ok(_) => Ok(WakeOutcome::Done),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Ok(WakeOutcome::Again),
            Err(Errno::BUSY) => Ok(WakeOutcome::Refused),
            Err(error) => Err(error).context("sendto", "an AF_XDP socket"),
        }
    }

    /// Takes the socket's pending error, such as ENETDOWN once the interface is gone; `None` if
    /// there is none.
    #[must_use]
    pub fn error(&self) -> Option<i32> {
        use rustix::net::sockopt::socket_error;
        socket_error(&*self.socket)
            .ok()
            .and_then(std::result::Result::err)
            .map(|e| e.raw_os_error())
    }

    /// Wakes the kernel to use the fill ring.
    pub fn wake_rx(&self) -> Result<()> {
        use rustix::io::Errno;
        match rustix::net::recv(&*self.socket, &mut [0_u8; 0][..], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("recvfrom", "an AF_XDP socket"),
        }
    }

    /// Returns the counters so far.
    pub fn statistics(&self) -> Result<XdpStatistics> {
        let all: [u64; 6] = setting::get(self.socket.as_fd(), setting::STATISTICS)?;
        let [rx_dropped, rx_invalid, tx_invalid, rx_full, fill_empty, tx_empty] = all;
        Ok(XdpStatistics { rx_dropped, rx_invalid, tx_invalid, rx_full, fill_empty, tx_empty })
    }

    fn finish(
        socket: OwnedFd,
        umem: &Arc<Umem>,
        settings: SocketSettings,
        shared: Option<BorrowedFd<'_>>,
    ) -> Result<Self> {
        use setting::{COMPLETION_AT, COMPLETION_RING, FILL_AT, FILL_RING};
        use setting::{RX_AT, RX_RING, TX_AT, TX_RING};
        let fd = socket.as_fd();
        let sizes = [
            (FILL_RING, settings.fill),
            (COMPLETION_RING, settings.completion),
            (RX_RING, settings.rx),
            (TX_RING, settings.tx),
        ];
        for (name, size) in sizes.into_iter().filter(|(_, size)| *size > 0) {
            setting::set(fd, name, &size)?;
        }
        let offsets: AllOffsets = setting::get(fd, setting::OFFSETS)?;
        let ring = |name, at, offsets, entry, size| {
            let form = RingLayout { name, at, offsets, entry, size, umem };
            (size > 0).then(|| EntryRing::map(fd, &form)).transpose()
        };
        let fill = ring("fill ring", FILL_AT, offsets.fill, 8, settings.fill)?;
        let completion =
            ring("completion ring", COMPLETION_AT, offsets.completion, 8, settings.completion)?;
        let rx = ring("receive ring", RX_AT, offsets.rx, 16, settings.rx)?;
        let tx = ring("send ring", TX_AT, offsets.tx, 16, settings.tx)?;
        setting::bind(fd, settings.interface, settings.queue, flags(settings, shared), shared)?;
        let options: u32 = setting::get(fd, setting::OPTIONS)?;
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

/// Returns the flags of bind(2). The kernel rejects all other flags together with the sharing flag.
fn flags(settings: SocketSettings, shared: Option<BorrowedFd<'_>>) -> u16 {
    if shared.is_some() {
        return setting::SHARED;
    }
    let mode = match settings.mode {
        CopyMode::ZeroCopy => setting::ZERO_COPY,
        CopyMode::Copy => setting::COPY,
        CopyMode::Either => 0,
    };
    let fragments = if settings.fragments { setting::FRAGMENTS } else { 0 };
    setting::NEED_WAKEUP | mode | fragments
}

fn open_unbound() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
        .context("socket", "AF_XDP")
}

impl AsFd for XdpSocket {
    /// Readable when a frame has been received, writable when there is room to send.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
