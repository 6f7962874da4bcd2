//! Reception of frames from a queue into shared memory.
//!
//! A receiver lends free frames from [`Frames`] to the kernel and returns received descriptors,
//! whose frames belong to this process until the pool gives them back. The socket is not exposed,
//! so no other code lends frames of this memory (F1 of `frames`).

use super::frames::Frames;
use super::ring::XdpDescriptor;
use super::socket::{SocketSettings, XdpSocket, XdpStatistics};
use crate::error::{Error, Result};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A receiver of frames from one queue of an interface.
#[derive(Debug)]
pub struct XdpReceiver {
    socket: XdpSocket,
    frames: Arc<Frames>,
    /// Number of frames that this receiver has lent to the kernel and not yet received.
    lent: usize,
    addresses: Vec<u64>,
}

impl XdpReceiver {
    /// Opens a receiver. Frames arrive once a program redirects them to this receiver.
    pub fn open(frames: &Arc<Frames>, settings: SocketSettings) -> Result<Self> {
        let settings = SocketSettings {
            completion: settings.fill.min(COMPLETION_RING_ENTRIES),
            tx: 0,
            ..settings
        };
        let socket = frames.bind(settings)?;
        Ok(Self { socket, frames: Arc::clone(frames), lent: 0, addresses: Vec::new() })
    }

    /// Returns the receiver's socket, for
    /// [`redirect_to_socket`](super::XdpRedirect::redirect_to_socket).
    pub(super) const fn socket(&self) -> &XdpSocket {
        &self.socket
    }

    /// Returns the frames in shared memory that this receiver lends to the kernel.
    #[must_use]
    pub const fn frames(&self) -> &Arc<Frames> {
        &self.frames
    }

    /// Returns the number of frames lent to the kernel for this queue and not yet received.
    #[must_use]
    pub const fn lent_count(&self) -> usize {
        self.lent
    }

    /// Lends free frames to the kernel until `target` frames are lent or the fill ring is full.
    /// Returns the number of frames newly lent. Takes time proportional to that number.
    pub fn lend_free_frames(&mut self, target: usize) -> Result<usize> {
        let Some(fill) = self.socket.fill.as_mut() else { return Ok(0) };
        let wanted = target.saturating_sub(self.lent).min(fill.free_entries()? as usize);
        if wanted == 0 {
            return Ok(0);
        }
        self.addresses.clear();
        if self.frames.take_free_frames(wanted, &mut self.addresses) == 0 {
            return Ok(0);
        }
        let lent = match fill.lend(&self.addresses) {
            Ok(lent) => lent,
            Err(error) => {
                self.frames.return_to_free_list(&self.addresses);
                return Err(error);
            }
        };
        self.frames.return_to_free_list(self.addresses.get(lent..).unwrap_or_default());
        self.lent += lent;
        if fill.needs_wakeup() {
            self.socket.wake_rx()?;
        }
        Ok(lent)
    }

    /// Appends up to `most` received descriptors to `into`, and marks their frames as received.
    /// Returns the number of descriptors appended. Fails with EBADMSG if a frame has already been
    /// received or is being sent.
    pub fn receive(&mut self, into: &mut Vec<XdpDescriptor>, most: usize) -> Result<usize> {
        let Some(rx) = self.socket.rx.as_mut() else { return Ok(0) };
        let before = into.len();
        let count = rx.take(into, most)?;
        for piece in into.get(before..).unwrap_or_default() {
            if !self.frames.mark_frame_received(piece.address) {
                let what = format!("a frame at {} that was not lent", piece.address);
                return Err(Error::new("AF_XDP", what, libc::EBADMSG));
            }
        }
        self.lent = self.lent.saturating_sub(count);
        Ok(count)
    }

    /// Returns the number of received descriptors that wait in the receive ring.
    pub fn received_count(&self) -> Result<u32> {
        self.socket.rx.as_ref().map_or(Ok(0), super::ring::RxRing::pending_entries)
    }

    /// Returns the socket's counters.
    pub fn statistics(&self) -> Result<XdpStatistics> {
        self.socket.statistics()
    }

    /// Returns true if the device writes into the shared memory without a copy by the kernel.
    #[must_use]
    pub const fn is_zero_copy(&self) -> bool {
        self.socket.is_zero_copy()
    }

    /// Removes and returns the pending error of the receiver's socket, like
    /// [`XdpSocket::take_error`].
    #[must_use]
    pub fn take_error(&self) -> Option<i32> {
        self.socket.take_error()
    }
}

impl AsFd for XdpReceiver {
    /// Returns the descriptor, which is readable when a frame has been received.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Number of entries of the completion ring. The kernel requires this ring alongside a fill ring,
/// although a receiver sends nothing.
const COMPLETION_RING_ENTRIES: u32 = 64;
