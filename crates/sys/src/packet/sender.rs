//! A sender of frames to an interface, in batches and without copying the frames first.
//!
//! The socket is bound with protocol 0, so it receives nothing. A full queue is not an error: the
//! caller waits until the descriptor is writable and sends the rest.

use super::option;
use crate::error::{Error, ErrorContext as _, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::{mem, ptr};

/// Maximum number of frames sent with one system call.
const BATCH_FRAMES_MAX: usize = 64;
/// Flags that make a send to a full socket return EAGAIN.
const SEND_FLAGS: libc::c_int = libc::MSG_DONTWAIT;

/// The treatment of sent frames by the interface's queueing discipline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QdiscMode {
    /// Frames pass through the queueing discipline of the interface, like other frames of the host.
    Through,
    /// Frames go directly to the driver, which drops frames when it has no room.
    Bypass,
}

/// A socket that sends to one interface.
#[derive(Debug)]
pub struct PacketSender(OwnedFd);

/// The result of sending frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendReport {
    /// Number of frames sent, which are the first frames of the batch.
    pub frames: usize,
    /// Reason why the next frame was not sent; `None` if all frames were sent.
    pub stopped: Option<SendStopReason>,
}

/// A reason why a frame was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendStopReason {
    /// The frame cannot be sent at present. The errno is EAGAIN if the socket's buffer is full,
    /// ENOBUFS if a queue is full, ENOMEM, or EINTR if a signal arrived.
    NoRoom(i32),
    /// The frame was refused, with this errno: it is too long, or the interface is down or no
    /// longer exists.
    Refused(i32),
}

impl PacketSender {
    /// Opens a socket for sending to an interface in the calling thread's network namespace.
    pub fn open(index: u32, qdisc: QdiscMode) -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .context("socket", "packets (AF_PACKET)")?;
        if qdisc == QdiscMode::Bypass {
            option::set(socket.as_fd(), libc::SOL_PACKET, option::QDISC_BYPASS, &1_i32)?;
        }
        option::bind(socket.as_fd(), index, 0)?;
        Ok(Self(socket))
    }

    /// Sends frames in order, up to the first that cannot be sent.
    pub fn send(&mut self, frames: &[&[u8]]) -> SendReport {
        let mut sent = 0;
        while let Some(rest) = frames.get(sent..).filter(|rest| !rest.is_empty()) {
            let batch = rest.get(..BATCH_FRAMES_MAX).unwrap_or(rest);
            // If only a part of a batch is sent, the kernel reports no error. The next call starts
            // with the first unsent frame and returns the error.
            match self.send_batch(batch) {
                Ok(count) => sent += count,
                Err(stop) => return SendReport { frames: sent, stopped: Some(stop) },
            }
        }
        SendReport { frames: sent, stopped: None }
    }

    /// Sends up to [`BATCH_FRAMES_MAX`] frames. Returns the number sent, at least 1, or the reason
    /// why the first frame was not sent.
    fn send_batch(&self, frames: &[&[u8]]) -> std::result::Result<usize, SendStopReason> {
        let mut parts = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH_FRAMES_MAX];
        // SAFETY: all fields are pointers and integers, for which zero is a valid value.
        let mut messages: [libc::mmsghdr; BATCH_FRAMES_MAX] = unsafe { mem::zeroed() };
        let mut count: libc::c_uint = 0;
        for ((frame, part), message) in frames.iter().zip(&mut parts).zip(&mut messages) {
            part.iov_base = frame.as_ptr().cast_mut().cast();
            part.iov_len = frame.len();
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        let fd = self.0.as_raw_fd();
        // SAFETY: sendmmsg(2) reads `count` messages, each with one part, and the bytes of the
        // part, which are live slices; it writes only to `msg_len` of the messages.
        let answer = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count, SEND_FLAGS as _) };
        match usize::try_from(answer) {
            Ok(went) if went > 0 => Ok(went),
            _ => Err(SendStopReason::from_errno(Error::last_os_error("sendmmsg", "").errno)),
        }
    }
}

impl SendStopReason {
    const fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR => Self::NoRoom(errno),
            other => Self::Refused(other),
        }
    }
}

impl AsFd for PacketSender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::net::Namespace;

    #[test]
    fn frame_batch_is_sent_with_one_call() {
        let Some(space) = Namespace::new() else { return };
        let open =
            || PacketSender::open(crate::net::interface("lo").unwrap().index, QdiscMode::Through);
        let sender = space.run_in_network_namespace(open).unwrap();
        let frame = [0; 60];
        assert_eq!(sender.send_batch(&[&frame[..]; BATCH_FRAMES_MAX]), Ok(BATCH_FRAMES_MAX));
        let long = vec![0; 100_000];
        let mixed: Vec<&[u8]> = vec![&frame, &frame, &long, &frame];
        assert_eq!(sender.send_batch(&mixed), Ok(2), "up to the one that does not go");
        assert_eq!(sender.send_batch(&mixed[2..]), Err(SendStopReason::Refused(libc::EMSGSIZE)));
    }
}
