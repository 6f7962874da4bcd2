//! Passing of descriptors between processes over sockets that preserve message boundaries.
//!
//! Receiving 0 bytes means that the peer has closed its end (RELIABILITY T10). Received descriptors
//! are not trusted: the receiver checks seals and size before mapping a file.

use crate::descriptor_closer::ForeignDescriptor;
use crate::error::{Error, ErrorContext as _, Result};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, MMsgHdr, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Maximum number of descriptors that this process sends or accepts in one message.
pub const DESCRIPTORS_MAX: usize = 64;
/// Maximum number of descriptors that the kernel passes in one message (SCM_MAX_FD).
const PASSED_DESCRIPTORS_MAX: usize = 253;

/// Creates a connected pair of Unix SEQPACKET sockets. Both are closed on exec, except when passed
/// to a child as a standard stream.
pub fn socket_pair() -> Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).context("socketpair", "")
}

/// Returns the effective user and group ids of the process that created or connected the peer
/// socket, as recorded by the kernel. For a [`socket_pair`], these are the ids of the process that
/// created the pair, even if another process now holds the peer socket.
pub fn peer_uid_and_gid(socket: impl AsFd) -> Result<(u32, u32)> {
    let peer =
        rustix::net::sockopt::socket_peercred(socket).context("getsockopt", "SO_PEERCRED")?;
    Ok((peer.uid.as_raw(), peer.gid.as_raw()))
}

/// Returns the user id of a file's owner. The owner of a memfd is the effective user of its
/// creator, unless root changes it.
pub fn owner_uid(file: impl AsFd) -> Result<u32> {
    Ok(rustix::fs::fstat(file).context("fstat", "a file")?.st_uid)
}

/// Creates a pipe, closed on exec. Returns the read end, then the write end.
pub fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context("pipe2", "")
}

/// Sends one message with duplicates of `descriptors`. Blocks while the socket is full. The message
/// must not be empty.
pub fn send(socket: impl AsFd, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    // The call is repeated for the reason stated in `receive_with_flags`.
    let sent =
        retry_on_intr(|| send_with_flags(&socket, message, descriptors, SendFlags::NOSIGNAL));
    sent.map_err(convert_send_error).map(drop)
}

/// Sends messages, none of which may be empty, in one system call if the socket has room: a peer
/// that sleeps then finds all of them when it wakes. Blocks while the socket is full. On failure,
/// the peer may have received some of the messages.
pub fn send_all(socket: impl AsFd, messages: &[&[u8]]) -> Result<()> {
    let parts: Vec<[IoSlice<'_>; 1]> =
        messages.iter().map(|message| [IoSlice::new(message)]).collect();
    let mut sent = 0;
    while let Some(rest) = parts.get(sent..).filter(|rest| !rest.is_empty()) {
        let mut controls: Vec<_> = rest.iter().map(|_| SendAncillaryBuffer::new(&mut [])).collect();
        let headers = rest.iter().zip(&mut controls);
        let mut headers: Vec<_> =
            headers.map(|(part, control)| MMsgHdr::new(part, control)).collect();
        // The call is repeated for the reason stated in `receive_with_flags`.
        let more =
            retry_on_intr(|| rustix::net::sendmmsg(&socket, &mut headers, SendFlags::NOSIGNAL));
        sent += more.map_err(convert_send_error)?;
    }
    Ok(())
}

/// Sends one message with duplicates of `descriptors`, using the given send flags. Fails with E2BIG
/// if there are more than [`DESCRIPTORS_MAX`] descriptors.
pub(crate) fn send_with_flags(
    socket: impl AsFd,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut control, flags)
}

/// Converts an errno of [`send_with_flags`] to an error.
pub(crate) fn convert_send_error(errno: Errno) -> Error {
    let target = if errno == Errno::TOOBIG { "too many descriptors" } else { "a socket" };
    Error::new("sendmsg", target, errno.raw_os_error())
}

/// Removes and returns the descriptors of a received message.
pub(crate) fn take_descriptors(control: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    descriptors
}

/// Blocks until a message arrives. Returns its length in bytes, which is 0 if the peer has closed
/// its end, and its descriptors, which are closed on exec. Fails with EMSGSIZE if the message or
/// its descriptors were truncated.
pub fn receive(socket: impl AsFd, message: &mut [u8]) -> Result<(usize, Vec<OwnedFd>)> {
    receive_with_flags(socket, message, RecvFlags::empty())
}

/// Receives like [`receive`], but returns `None` instead of blocking if no message is pending.
pub fn try_receive(socket: impl AsFd, message: &mut [u8]) -> Result<Option<(usize, Vec<OwnedFd>)>> {
    match receive_with_flags(socket, message, RecvFlags::DONTWAIT) {
        Err(error) if error.errno == libc::EAGAIN => Ok(None),
        got => got.map(Some),
    }
}

fn receive_with_flags(
    socket: impl AsFd,
    message: &mut [u8],
    flags: RecvFlags,
) -> Result<(usize, Vec<OwnedFd>)> {
    // If the buffer lacked space for some descriptors, the kernel would close them before it
    // returns, which may take long.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(message)];
    // A socket with a timeout is not restarted after a signal (signal(7)), so retry here.
    let flags = RecvFlags::CMSG_CLOEXEC | flags;
    let received = retry_on_intr(|| rustix::net::recvmsg(&socket, &mut parts, &mut control, flags));
    let received = received.context("recvmsg", "a socket")?;
    let descriptors = take_descriptors(&mut control);
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        || descriptors.len() > DESCRIPTORS_MAX
    {
        let uid = peer_uid_and_gid(&socket).map_or(u32::MAX, |(uid, _)| uid);
        drop(ForeignDescriptor::wrap_all(descriptors, uid));
        return Err(Error::new("recvmsg", "a message longer than agreed", libc::EMSGSIZE));
    }
    Ok((received.bytes, descriptors))
}

/// Blocks until a message arrives, and copies its beginning without consuming the message or its
/// descriptors. Returns the number of bytes copied, which is 0 if the peer has closed its end.
pub fn peek(socket: impl AsFd, message: &mut [u8]) -> Result<usize> {
    let received = retry_on_intr(|| rustix::net::recv(&socket, &mut *message, RecvFlags::PEEK));
    received.map(|(bytes, _)| bytes).context("recv", "a socket")
}

/// Returns true if the descriptor is a Unix SEQPACKET socket.
pub fn is_seqpacket_socket(descriptor: impl AsFd) -> bool {
    let kind = rustix::net::sockopt::socket_type(&descriptor);
    let family = rustix::net::sockopt::socket_domain(&descriptor);
    kind == Ok(SocketType::SEQPACKET) && family == Ok(AddressFamily::UNIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memfd;

    #[test]
    fn sent_descriptors_arrive_with_their_message() {
        let (local, peer) = socket_pair().unwrap();
        let files = [Memfd::create("one", 4096).unwrap(), Memfd::create("two", 8192).unwrap()];
        send(&local, b"two files", &[files[0].as_fd(), files[1].as_fd()]).unwrap();
        send(&local, b"none", &[]).unwrap();
        let mut message = [0; 64];
        let (length, received) = receive(&peer, &mut message).unwrap();
        assert_eq!(&message[..length], b"two files");
        let lengths: Vec<_> =
            received.into_iter().map(|fd| Memfd::from_fd(fd).unwrap().len()).collect();
        assert_eq!(lengths, [4096, 8192]);
        assert_eq!(receive(&peer, &mut [0; 2]).unwrap_err().errno, libc::EMSGSIZE);
        assert_eq!(peer_uid_and_gid(&peer).unwrap(), crate::process::effective_ids());
        assert!(peer_uid_and_gid(&files[0]).is_err(), "no socket");
        drop(local);
        assert_eq!(receive(&peer, &mut message).unwrap().0, 0, "closed");
    }
}
