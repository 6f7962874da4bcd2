//! Doorbells between processes that do not trust each other. (CONTRACT 24, RELIABILITY T8, T10)
//!
//! A pair of doorbells is a pair of connected sockets. Neither end can make the other wait, because
//! each call passes `MSG_DONTWAIT`. Calls on a shared eventfd have no such flag: either process can
//! fill the counter and clear `O_NONBLOCK`, and the next write of the other process then blocks.
//! When a process exits for any reason, the kernel makes the other end readable.

use crate::descriptor;
use crate::error::Result;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendFlags, recv, recvmsg, send};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One end of a pair of connected doorbells. Its descriptor is readable when the other end has sent
/// a notification or has been closed.
#[derive(Debug)]
pub struct SocketDoorbell(OwnedFd);

/// Maximum number of payload bytes in one notification.
const NOTIFICATION_BYTES_MAX: usize = 16;
/// Maximum number of descriptors in one notification.
const NOTIFICATION_DESCRIPTORS_MAX: usize = 4;

/// The outcome of [`SocketDoorbell::drain`].
#[derive(Debug)]
pub enum DrainResult {
    /// No notification is pending.
    Nothing,
    /// A notification, with its bytes and descriptors, neither of which has been checked.
    Notification(Vec<u8>, Vec<OwnedFd>),
    /// The process that held the other end has closed it.
    Gone,
}

/// The outcome of [`SocketDoorbell::send`], which never blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendResult {
    /// The notification has been queued at the other end.
    Queued,
    /// The notification was discarded: the queue of the other end is full, memory is short, or
    /// there are too many descriptors.
    Full,
    /// The process that held the other end has closed it.
    Gone,
}

/// The state of the other end of a doorbell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerState {
    /// A process holds the other end of the doorbell.
    Present,
    /// The other end of the doorbell is closed, or the received descriptor is not a doorbell.
    Gone,
}

impl SocketDoorbell {
    /// Creates a connected pair of doorbells.
    pub fn pair() -> Result<(Self, Self)> {
        descriptor::socket_pair().map(|(one, other)| (Self(one), Self(other)))
    }

    /// Notifies the other end, and returns its state. Does nothing if the queue of the other end is
    /// full, because notifications are then already pending.
    pub fn notify(&self) -> PeerState {
        match send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => PeerState::Present,
            Err(_) => PeerState::Gone,
        }
    }

    /// Sends a notification with a few bytes and descriptors. The first byte must not be 1, which
    /// marks the notifications of [`SocketDoorbell::notify`].
    pub fn send(&self, note: &[u8], descriptors: &[BorrowedFd<'_>]) -> SendResult {
        use rustix::io::Errno;
        if descriptors.len() > NOTIFICATION_DESCRIPTORS_MAX {
            return SendResult::Full;
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match descriptor::send_with_flags(&self.0, note, descriptors, flags) {
            Ok(_) => SendResult::Queued,
            Err(Errno::AGAIN | Errno::INTR | Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => {
                SendResult::Full
            }
            Err(_) => SendResult::Gone,
        }
    }

    /// Removes one pending notification and returns its bytes and descriptors. Returns
    /// [`DrainResult::Nothing`] if none is pending, or [`DrainResult::Gone`] if the other end is
    /// closed.
    pub fn drain(&self) -> DrainResult {
        match self.drain_once() {
            // The kernel reports this error once, before the queued notifications, if the other end
            // was closed with unread bytes (unix(7)).
            Err(rustix::io::Errno::CONNRESET) => self.drain_once(),
            drained => drained,
        }
        .unwrap_or(DrainResult::Gone)
    }

    fn drain_once(&self) -> rustix::io::Result<DrainResult> {
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(NOTIFICATION_DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut note = vec![0; NOTIFICATION_BYTES_MAX];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.0, &mut [IoSliceMut::new(&mut note)], &mut control, flags);
        let descriptors = descriptor::take_descriptors(&mut control);
        match received {
            Ok(received) if received.bytes == 0 => Ok(DrainResult::Gone),
            Ok(received) => {
                note.truncate(received.bytes);
                Ok(DrainResult::Notification(note, descriptors))
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(DrainResult::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Discards one pending notification, if there is one, and returns the state of the other end.
    /// If more are pending, this end stays readable.
    pub fn clear(&self) -> PeerState {
        match recv(&self.0, &mut [0; 8], RecvFlags::DONTWAIT) {
            Ok((0, _)) => PeerState::Gone,
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => PeerState::Present,
            Err(_) => PeerState::Gone,
        }
    }
}

impl AsFd for SocketDoorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for SocketDoorbell {
    /// Wraps a received descriptor without checking its type: every method tolerates descriptors of
    /// other types.
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<SocketDoorbell> for OwnedFd {
    fn from(doorbell: SocketDoorbell) -> Self {
        doorbell.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn doorbell_is_readable_until_cleared() {
        let (local, peer) = SocketDoorbell::pair().unwrap();
        let ready = |limit| crate::poll::wait_until_readable(&[peer.as_fd()], limit) == [true];
        assert!(!ready(Some(Duration::ZERO)));
        assert_eq!(local.notify(), PeerState::Present);
        assert!(ready(None));
        assert_eq!(peer.clear(), PeerState::Present);
        assert!(!ready(Some(Duration::ZERO)));
        drop(local);
        testkit::wait_until_closed(&peer);
        assert!(ready(None), "a closed end is readable");
        assert_eq!((peer.clear(), peer.notify()), (PeerState::Gone, PeerState::Gone));
    }

    #[test]
    fn doorbell_delivers_bytes_and_descriptors() {
        let (local, peer) = SocketDoorbell::pair().unwrap();
        let file = crate::memory::Memfd::create("sys-test", 4096).unwrap();
        assert_eq!(local.notify(), PeerState::Present);
        assert_eq!(local.send(b"\x02note", &[file.as_fd(), file.as_fd()]), SendResult::Queued);
        let DrainResult::Notification(note, files) = peer.drain() else { panic!("a notification") };
        assert_eq!((note.as_slice(), files.len()), (&[1][..], 0));
        let DrainResult::Notification(note, files) = peer.drain() else { panic!("a note") };
        assert_eq!((note.as_slice(), files.len()), (&b"\x02note"[..], 2));
        assert!(matches!(peer.drain(), DrainResult::Nothing));
        let full = (0..100_000)
            .map(|_| local.send(&[2], &[file.as_fd()]))
            .find(|t| *t != SendResult::Queued);
        assert_eq!(full, Some(SendResult::Full), "never blocks");
        drop(peer);
        testkit::wait_until_closed(&local);
        assert_eq!(local.send(&[2], &[]), SendResult::Gone);
        let (local, peer) = SocketDoorbell::pair().unwrap();
        peer.notify();
        local.send(&[7], &[]);
        drop(local);
        testkit::wait_until_closed(&peer);
        assert!(
            matches!(peer.drain(), DrainResult::Notification(note, _) if note == [7]),
            "and is not lost"
        );
        assert!(matches!(peer.drain(), DrainResult::Gone));
    }

    #[test]
    fn full_doorbell_queue_never_blocks_the_notifier() {
        let (local, peer) = SocketDoorbell::pair().unwrap();
        for _ in 0..100_000 {
            assert_eq!(local.notify(), PeerState::Present);
        }
        while crate::poll::wait_until_readable(&[peer.as_fd()], Some(Duration::ZERO)) == [true] {
            assert_eq!(peer.clear(), PeerState::Present);
        }
    }

    #[test]
    fn descriptor_that_is_no_doorbell_counts_as_closed() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        assert_eq!(SocketDoorbell::from(write).notify(), PeerState::Gone);
        assert_eq!(SocketDoorbell::from(read).clear(), PeerState::Gone);
    }
}
