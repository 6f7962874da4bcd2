//! Frames into an interface, many with one call, straight from where they lie.
//!
//! The socket is bound to the interface with protocol 0, so that nothing comes in. A full queue is
//! no error: the caller waits until the descriptor can be written and sends the rest.

use super::option;
use crate::error::{Error, Named as _, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::{mem, ptr};

/// How many frames go with one call.
const BATCH: usize = 64;
/// A full socket answers EAGAIN; the socket does not block anyway.
const FLAGS: libc::c_int = libc::MSG_DONTWAIT;

/// Whether frames wait their turn among the others of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Qdisc {
    /// They pass the queueing discipline of the interface, as all of the host's frames do.
    Through,
    /// They go straight to the driver, which drops what it has no room for.
    Bypass,
}

/// The way into one interface.
#[derive(Debug)]
pub struct PacketSender(OwnedFd);

/// What became of the frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendReport {
    /// How many went, from the first on.
    pub frames: usize,
    /// Why the next one did not. None: all went.
    pub stopped: Option<SendStop>,
}

/// Why a frame did not go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendStop {
    /// There is no room at present (EAGAIN: in the socket's buffer; ENOBUFS: in the queue).
    Full(i32),
    /// The kernel does not take this frame: it is too long, or the interface is down or gone.
    Refused(i32),
}

impl PacketSender {
    /// Opens the way into the interface with this number in the network name space of the calling
    /// thread.
    pub fn open(index: u32, qdisc: Qdisc) -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .named("socket", "packets (AF_PACKET)")?;
        if qdisc == Qdisc::Bypass {
            option::set(socket.as_fd(), libc::SOL_PACKET, option::QDISC_BYPASS, &1_i32)?;
        }
        option::bind(socket.as_fd(), index, 0)?;
        Ok(Self(socket))
    }

    /// Sends frames in their order until one does not go.
    pub fn send(&mut self, frames: &[&[u8]]) -> SendReport {
        let mut sent = 0;
        while let Some(rest) = frames.get(sent..).filter(|rest| !rest.is_empty()) {
            let batch = rest.get(..BATCH).unwrap_or(rest);
            // A batch that ends early says no reason: the next begins with the frame that did it.
            match self.send_batch(batch) {
                Ok(count) => sent += count,
                Err(stop) => return SendReport { frames: sent, stopped: Some(stop) },
            }
        }
        SendReport { frames: sent, stopped: None }
    }

    /// Sends up to [`BATCH`] frames; at least one went if there is no reason why not.
    fn send_batch(&self, frames: &[&[u8]]) -> std::result::Result<usize, SendStop> {
        let mut parts = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH];
        // SAFETY: pointers and integers, for which zero is a value: null, and none.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
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
        let answer = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count, FLAGS) };
        match usize::try_from(answer) {
            Ok(went) if went > 0 => Ok(went),
            _ => Err(SendStop::of(Error::last("sendmmsg", "").errno)),
        }
    }
}

impl SendStop {
    const fn of(errno: i32) -> Self {
        match errno {
            libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR => Self::Full(errno),
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
    fn a_batch_goes_with_one_call() {
        let Some(space) = Namespace::new() else { return };
        let open = || PacketSender::open(crate::net::interface("lo").unwrap().index, Qdisc::Through);
        let sender = space.enter(open).unwrap();
        let frame = [0; 60];
        assert_eq!(sender.send_batch(&[&frame[..]; BATCH]), Ok(BATCH));
        let long = vec![0; 100_000];
        let mixed: Vec<&[u8]> = vec![&frame, &frame, &long, &frame];
        assert_eq!(sender.send_batch(&mixed), Ok(2), "up to the one that does not go");
        assert_eq!(sender.send_batch(&mixed[2..]), Err(SendStop::Refused(libc::EMSGSIZE)));
    }
}
