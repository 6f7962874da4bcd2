//! A socket of AF_XDP at one queue of an interface.

use super::ring::{CompletionRing, FillRing, RingLayout, EntryRing, RxRing, TxRing};
use super::setting::{self, AllOffsets, Registration};
use super::umem::Umem;
use crate::error::{Named as _, Result};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// How frames come into the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMode {
    /// The device writes and reads it, or the socket is refused.
    ZeroCopy,
    /// The kernel copies.
    Copy,
    /// Whichever the driver can; the socket says which it became.
    Either,
}

/// What a socket is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketSettings {
    /// The number of the interface.
    pub interface: u32,
    /// The queue: a socket is given frames of this one alone.
    pub queue: u32,
    /// How frames come into the memory.
    pub mode: CopyMode,
    /// Whether packets may lie in several frames (Linux 6.6).
    pub fragments: bool,
    /// Entries of the rings: powers of two, or 0 for a ring that is not needed. A socket that
    /// shares memory with another one at the same queue has neither fill nor completion ring.
    pub fill: u32,
    /// See `fill`.
    pub completion: u32,
    /// See `fill`.
    pub rx: u32,
    /// See `fill`.
    pub tx: u32,
}

impl SocketSettings {
    /// All four rings of so many entries, at a queue of an interface.
    #[must_use]
    pub const fn new(interface: u32, queue: u32, entries: u32) -> Self {
        let (mode, fragments) = (CopyMode::Either, false);
        let [fill, completion, rx, tx] = [entries; 4];
        Self { interface, queue, mode, fragments, fill, completion, rx, tx }
    }
}

/// What became of telling the kernel that there are packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeOutcome {
    /// It has taken them, or will do so by itself.
    Done,
    /// It has taken some and no more for now.
    Again,
    /// The device had no room for the one that it has taken last: that one is lost.
    Refused,
}

/// What became of frames, since the socket was made (`struct xdp_statistics`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpStatistics {
    /// Dropped for a reason that has no counter of its own, for example a frame that is too long.
    pub rx_dropped: u64,
    /// Descriptors in the fill ring that make no sense.
    pub rx_invalid: u64,
    /// Descriptors in the send ring that make no sense.
    pub tx_invalid: u64,
    /// Dropped because the receive ring was full.
    pub rx_full: u64,
    /// Frames that found the fill ring empty.
    pub fill_empty: u64,
    /// How often the send ring was found empty.
    pub tx_empty: u64,
}

/// A socket and its rings. What is not taken out of them goes with it.
#[derive(Debug)]
pub struct XdpSocket {
    /// Frames lent to the kernel.
    pub fill: Option<FillRing>,
    /// Frames that come back from being sent.
    pub completion: Option<CompletionRing>,
    /// What was received.
    pub rx: Option<RxRing>,
    /// What is to be sent.
    pub tx: Option<TxRing>,
    socket: Arc<OwnedFd>,
    umem: Arc<Umem>,
    zero_copy: bool,
}

impl XdpSocket {
    /// Opens one in the network name space of the calling thread, and registers the memory with it.
    /// Needs CAP_NET_RAW; without CAP_IPC_LOCK the memory counts as locked (ENOBUFS).
    pub fn open(umem: &Arc<Umem>, settings: SocketSettings) -> Result<Self> {
        let socket = raw()?;
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

    /// Opens one that shares the memory of another: at another queue or interface with fill and
    /// completion rings of its own, at the same queue without. How frames come is as with the
    /// other.
    pub fn share(&self, settings: SocketSettings) -> Result<Self> {
        Self::finish(raw()?, &self.umem, settings, Some(self.socket.as_fd()))
    }

    /// Opens one that shares memory which was registered with another.
    pub(super) fn beside(
        umem: &Arc<Umem>,
        settings: SocketSettings,
        registered: BorrowedFd<'_>,
    ) -> Result<Self> {
        Self::finish(raw()?, umem, settings, Some(registered))
    }

    /// The descriptor, for those who share the memory.
    pub(super) const fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// The memory.
    #[must_use]
    pub const fn umem(&self) -> &Arc<Umem> {
        &self.umem
    }

    /// Whether the device writes and reads the memory itself.
    #[must_use]
    pub const fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Tells the kernel that there are packets to be sent. What it cannot send now it sends at a
    /// later call. Needed always where the kernel copies.
    pub fn wake_tx(&self) -> Result<WakeOutcome> {
        use rustix::io::Errno;
        match rustix::net::send(&*self.socket, &[], SendFlags::DONTWAIT) {
            Ok(_) => Ok(WakeOutcome::Done),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Ok(WakeOutcome::Again),
            Err(Errno::BUSY) => Ok(WakeOutcome::Refused),
            Err(error) => Err(error).named("sendto", "an AF_XDP socket"),
        }
    }

    /// The error that waits at the socket, which is gone then: ENETDOWN when the interface went
    /// away.
    #[must_use]
    pub fn error(&self) -> Option<i32> {
        use rustix::net::sockopt::socket_error;
        socket_error(&*self.socket)
            .ok()
            .and_then(std::result::Result::err)
            .map(|e| e.raw_os_error())
    }

    /// Tells the kernel that there are frames to receive into.
    pub fn wake_rx(&self) -> Result<()> {
        use rustix::io::Errno;
        match rustix::net::recv(&*self.socket, &mut [0_u8; 0][..], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::INTR) => Ok(()),
            Err(error) => Err(error).named("recvfrom", "an AF_XDP socket"),
        }
    }

    /// What became of frames.
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
            fill: fill.map(Into::into),
            completion: completion.map(Into::into),
            rx: rx.map(Into::into),
            tx: tx.map(Into::into),
            umem: Arc::clone(umem),
            zero_copy: options & 1 != 0,
            socket: Arc::new(socket),
        })
    }
}

/// The flags of bind(2). The kernel refuses all others beside the one that shares.
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

fn raw() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
        .named("socket", "AF_XDP")
}

impl AsFd for XdpSocket {
    /// Readable when something was received, writable when there is room to send.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
