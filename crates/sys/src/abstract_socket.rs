//! Abstract Unix sockets, and the credentials of the processes that connect to them. (RELIABILITY
//! T10, T13)
//!
//! An abstract name exists while a process holds the listening socket open, leaves nothing in a
//! file system, and is visible in one network namespace. Any process can claim a name first, so
//! client and server each verify the peer's credentials, which the kernel records and the peer
//! cannot forge.

use crate::error::{Error, ErrorContext as _, Result};
use crate::local_socket::{Framing, accept_with_flags, open_socket, set_timeouts};
use crate::packet::option;
use rustix::net::sockopt;
use rustix::net::{SocketAddrUnix, SocketFlags, bind, connect};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

/// Maximum length of an abstract name in bytes.
pub const NAME_LENGTH_MAX: usize = 107;

/// Creates a nonblocking listening socket with an abstract name and a queue of at most `backlog`
/// connections. `accepted` selects the message content that its connections accept.
///
/// Fails with EADDRINUSE if another socket has the name.
pub fn listen(name: &[u8], backlog: i32, accepted: AcceptedContent) -> Result<OwnedFd> {
    let socket = open_socket(Framing::Packets, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    if accepted == AcceptedContent::Bytes {
        refuse_descriptors(&socket)?;
    }
    bind(&socket, &abstract_address(name)?).context("bind", format_abstract_name(name))?;
    rustix::net::listen(&socket, backlog).context("listen", format_abstract_name(name))?;
    Ok(socket)
}

/// The message content that a listening socket accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AcceptedContent {
    /// The socket accepts bytes only: since Linux 6.16, the kernel rejects descriptors. Otherwise a
    /// client could send its own socket over its connection, which would keep the connection open
    /// after the client's death.
    Bytes,
    /// The socket accepts bytes and descriptors.
    Descriptors,
}

/// Connects to an abstract name. If the listener's queue is full, waits for at most `limit`, then
/// fails with EAGAIN. Sends and receives on the new socket also time out after `limit`.
pub fn connect_to(name: &[u8], limit: Duration) -> Result<OwnedFd> {
    let socket = open_socket(Framing::Packets, SocketFlags::CLOEXEC)?;
    set_timeouts(&socket, limit)?;
    connect(&socket, &abstract_address(name)?).context("connect", format_abstract_name(name))?;
    Ok(socket)
}

/// Connects like [`connect_to`], but returns `None` instead of blocking if the listener's queue is
/// full.
pub fn try_connect(name: &[u8], limit: Duration) -> Result<Option<OwnedFd>> {
    let socket = open_socket(Framing::Packets, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    match connect(&socket, &abstract_address(name)?) {
        Err(rustix::io::Errno::AGAIN) => return Ok(None),
        connected => connected.context("connect", format_abstract_name(name))?,
    }
    set_timeouts(&socket, limit)?;
    rustix::io::ioctl_fionbio(&socket, false).context("ioctl", format_abstract_name(name))?;
    Ok(Some(socket))
}

/// Accepts a pending connection; returns `None` if none is pending.
pub fn accept(listener: impl AsFd) -> Result<Option<OwnedFd>> {
    accept_with_flags(listener, SocketFlags::CLOEXEC)
}

/// The credentials of the process at the other end of a socket. The kernel records them when that
/// process connects or, if it is the listener, when it claims its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerCredentials {
    /// Process id. For display only, because ids are reused.
    pub process: i32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
}

/// Returns the credentials of the peer of a socket, as recorded by the kernel.
pub fn peer_credentials(socket: impl AsFd) -> Result<PeerCredentials> {
    let credentials = sockopt::socket_peercred(&socket).context("getsockopt", "SO_PEERCRED")?;
    let groups = supplementary_groups(&socket)?;
    Ok(PeerCredentials {
        process: credentials.pid.as_raw_nonzero().get(),
        uid: credentials.uid.as_raw(),
        gid: credentials.gid.as_raw(),
        groups,
    })
}

fn supplementary_groups(socket: &impl AsFd) -> Result<Vec<u32>> {
    // The maximum number of groups (NGROUPS_MAX).
    let mut groups = vec![0u32; 65536];
    let mut bytes = libc::socklen_t::try_from(size_of_val(groups.as_slice())).unwrap_or(0);
    let (fd, level) = (socket.as_fd().as_raw_fd(), libc::SOL_SOCKET);
    let to = groups.as_mut_ptr().cast::<c_void>();
    // SAFETY: the kernel writes at most `bytes` bytes, which is the size of the list, and stores in
    // `bytes` how many it wrote (socket(7), SO_PEERGROUPS).
    let done: c_int =
        unsafe { libc::getsockopt(fd, level, libc::SO_PEERGROUPS, to, &raw mut bytes) };
    if done != 0 {
        return Err(Error::last_os_error("getsockopt", "SO_PEERGROUPS"));
    }
    groups.truncate(bytes as usize / size_of::<u32>());
    Ok(groups)
}

/// Makes the kernel reject descriptors sent to this socket or, if it is a listener, to the sockets
/// that it accepts. Has no effect before Linux 6.16.
pub fn refuse_descriptors(socket: impl AsFd) -> Result<()> {
    const SO_PASSRIGHTS: option::SocketOption = (83, "SO_PASSRIGHTS");
    match option::set::<c_int>(socket.as_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, &0) {
        Err(Error { errno: libc::ENOPROTOOPT, .. }) => Ok(()),
        done => done,
    }
}

fn abstract_address(name: &[u8]) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name).context("bind", format_abstract_name(name))
}

/// Formats an abstract name as `@` and the name, as in `/proc/net/unix`.
fn format_abstract_name(name: &[u8]) -> String {
    format!("@{}", String::from_utf8_lossy(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor;

    const LIMIT: Duration = testkit::wait::WAIT_TIMEOUT;

    #[test]
    fn name_has_one_owner_and_both_ends_learn_credentials() {
        let name = format!("streamline-test/{}", std::process::id());
        let gone = connect_to(name.as_bytes(), LIMIT).unwrap_err();
        assert_eq!(gone.errno, libc::ECONNREFUSED, "{gone}");
        let listener = listen(name.as_bytes(), 4, AcceptedContent::Bytes).unwrap();
        assert_eq!(
            listen(name.as_bytes(), 4, AcceptedContent::Bytes).unwrap_err().errno,
            libc::EADDRINUSE
        );
        assert!(accept(&listener).unwrap().is_none());
        let client = connect_to(name.as_bytes(), LIMIT).unwrap();
        let accepted = accept(&listener).unwrap().unwrap();
        let (uid, gid) = crate::process::effective_ids();
        for end in [&accepted, &client] {
            let peer = peer_credentials(end).unwrap();
            let process = i32::try_from(std::process::id()).unwrap();
            assert_eq!((peer.process, peer.uid, peer.gid), (process, uid, gid));
        }
        descriptor::send(&accepted, b"hello", &[]).unwrap();
        assert_eq!(descriptor::receive(&client, &mut [0; 9]).unwrap().0, 5);
        let sent = descriptor::send(&client, b"itself", &[client.as_fd()]);
        println!("a socket that is sent to its own other end: {sent:?}");
        drop((listener, accepted));
        assert_eq!(descriptor::receive(&client, &mut [0; 9]).unwrap().0, 0);
        testkit::wait_until("the name is free", || {
            listen(name.as_bytes(), 4, AcceptedContent::Bytes).is_ok()
        });
        assert!(listen(&[b'x'; NAME_LENGTH_MAX + 1], 4, AcceptedContent::Bytes).is_err());
    }
}
