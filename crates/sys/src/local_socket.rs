//! Unix sockets bound in a directory, and process descriptors. (RELIABILITY T10, T13)
//!
//! The directory is held open, so a later change to its path has no effect. A pidfd names a process
//! unambiguously even after its id has been reused.

use crate::error::{Error, ErrorContext as _, Result};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, listen, recv, socket_with,
};
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use crate::abstract_socket::{AcceptedContent, refuse_descriptors};
use crate::descriptor::{convert_send_error, send_with_flags};
use crate::packet::option;

/// The framing of a Unix socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// Message boundaries are kept (SOCK_SEQPACKET).
    Packets,
    /// A byte stream (SOCK_STREAM).
    Stream,
}

/// Opens a directory without following a symbolic link at the end of the path.
pub fn open_directory(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).context("open", path.display().to_string())
}

/// Opens a file in a directory for reading and writing, without following a symbolic link. Creates
/// the file with mode 0600 if it is missing.
pub fn open_private_file(directory: &OwnedFd, name: &str) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o600))
        .context("open", name.to_owned())
}

/// Locks a file until it is closed. Never blocks; returns false if another holder has the lock.
pub fn try_lock(file: &OwnedFd) -> Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(Error::new("flock", "", errno.raw_os_error())),
    }
}

/// Returns true if `name` in `directory` still refers to `file`. Does not follow a symbolic link.
pub fn is_same_file(directory: &OwnedFd, name: &str, file: &OwnedFd) -> bool {
    let named = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    let opened = rustix::fs::fstat(file);
    match (named, opened) {
        (Ok(named), Ok(opened)) => named.st_ino == opened.st_ino && named.st_dev == opened.st_dev,
        _ => false,
    }
}

/// Removes a name from a directory. Succeeds if the name does not exist.
pub fn remove_if_present(directory: &OwnedFd, name: &str) -> Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(Error::new("unlink", name.to_owned(), errno.raw_os_error())),
    }
}

/// Creates a nonblocking listening socket in a directory, with this name and file mode.
pub fn listen_in_directory(
    directory: &OwnedFd,
    name: &str,
    mode: u32,
    (form, accepted): (Framing, AcceptedContent),
    backlog: i32,
) -> Result<OwnedFd> {
    let socket = open_socket(form, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    if accepted == AcceptedContent::Bytes {
        refuse_descriptors(&socket)?;
    }
    let path = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
    let address = SocketAddrUnix::new(path.as_str()).context("bind", name.to_owned())?;
    bind(&socket, &address).context("bind", name.to_owned())?;
    rustix::fs::chmodat(directory, name, Mode::from_raw_mode(mode), AtFlags::empty())
        .context("chmod", name.to_owned())?;
    listen(&socket, backlog).context("listen", name.to_owned())?;
    Ok(socket)
}

/// Connects to a path. Connecting, sending and receiving block for at most `limit`.
pub fn connect_to(path: &Path, form: Framing, limit: Duration) -> Result<OwnedFd> {
    let socket = open_socket(form, SocketFlags::CLOEXEC)?;
    set_timeouts(&socket, limit)?;
    let operand = path.display().to_string();
    let socket_address =
        |path: &Path| SocketAddrUnix::new(path).context("connect", operand.clone());
    // A socket path has at most 107 bytes: connect to a longer one through its directory.
    let (address, _folder) = match (socket_address(path), path.parent().zip(path.file_name())) {
        (Err(error), Some((folder, name))) if error.errno == libc::ENAMETOOLONG => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = rustix::fs::open(folder, flags, Mode::empty())
                .context("open", folder.display().to_string())?;
            let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
            (socket_address(&short)?, Some(folder))
        }
        (address, _) => (address?, None),
    };
    retry_on_intr(|| connect(&socket, &address)).context("connect", operand.clone())?;
    Ok(socket)
}

/// Limits the time for which sends and receives on a socket block.
pub fn set_timeouts(socket: &OwnedFd, limit: Duration) -> Result<()> {
    for timeout in [Timeout::Send, Timeout::Recv] {
        sockopt::set_socket_timeout(socket, timeout, Some(limit))
            .context("setsockopt", "a limit in time")?;
    }
    Ok(())
}

/// Accepts a pending connection as a nonblocking socket; returns `None` if none is pending.
pub fn accept(listener: impl AsFd) -> Result<Option<OwnedFd>> {
    accept_with_flags(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

pub(crate) fn accept_with_flags(
    listener: impl AsFd,
    flags: SocketFlags,
) -> Result<Option<OwnedFd>> {
    match accept_with(listener, flags) {
        Ok(socket) => Ok(Some(socket)),
        // A client that has disconnected before the accept does not count.
        Err(Errno::AGAIN | Errno::CONNABORTED) => Ok(None),
        Err(errno) => Err(Error::new("accept", "a socket", errno.raw_os_error())),
    }
}

/// Returns the framing of a Unix socket. Fails with EPROTOTYPE for a socket of any other type.
pub fn framing(socket: impl AsFd) -> Result<Framing> {
    let failed = |errno| Err(Error::new("getsockopt", "SO_TYPE", errno));
    match (sockopt::socket_domain(&socket), sockopt::socket_type(&socket)) {
        (Ok(AddressFamily::UNIX), Ok(SocketType::SEQPACKET)) => Ok(Framing::Packets),
        (Ok(AddressFamily::UNIX), Ok(SocketType::STREAM)) => Ok(Framing::Stream),
        (Err(errno), _) | (_, Err(errno)) => failed(errno.raw_os_error()),
        _ => failed(libc::EPROTOTYPE),
    }
}

/// Sends without blocking. Returns the number of bytes sent, which for packets is all of them, or
/// `None` if the peer's queue is full.
pub fn send_nonblocking(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<Option<usize>> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match send_with_flags(socket, bytes, descriptors, flags) {
        Ok(sent) => Ok(Some(sent)),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(None),
        Err(errno) => Err(convert_send_error(errno)),
    }
}

/// Sets the maximum number of bytes that may be queued for the peer, including the kernel's memory
/// for each packet. Only root may exceed the machine's limit.
pub fn set_send_buffer(socket: impl AsFd, bytes: usize) -> Result<()> {
    let forced = sockopt::set_socket_send_buffer_size_force(&socket, bytes);
    forced
        .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, bytes))
        .context("setsockopt", "SO_SNDBUF")
}

/// Refuses further packets or bytes from the peer, whose sends then fail with EPIPE. Data that has
/// already arrived can still be received.
pub fn shutdown_input(socket: impl AsFd) -> Result<()> {
    rustix::net::shutdown(socket, rustix::net::Shutdown::Read).context("shutdown", "a socket")
}

/// Ends both directions of a connection, also for duplicates of the descriptor. The peer can still
/// receive data sent before.
pub fn hang_up(socket: impl AsFd) -> Result<()> {
    rustix::net::shutdown(socket, rustix::net::Shutdown::Both).context("shutdown", "a socket")
}

/// Returns true if the peer has closed its end and all data from it has been received, or if the
/// descriptor is not a connected socket. Consumes nothing.
#[must_use]
pub fn is_peer_gone(socket: impl AsFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match recv(socket, &mut [0; 1], flags) {
        Ok((bytes, _)) => bytes == 0,
        Err(Errno::AGAIN | Errno::INTR) => false,
        Err(_) => true,
    }
}

/// Opens a pidfd of the process that created the peer socket. The pidfd becomes readable when that
/// process ends. Before Linux 6.5 the pidfd is opened by process id, which may already have been
/// reused.
pub fn open_peer_pidfd(socket: impl AsFd) -> Result<OwnedFd> {
    const SO_PEERPIDFD: option::SocketOption = (77, "SO_PEERPIDFD");
    match option::get::<c_int>(socket.as_fd(), libc::SOL_SOCKET, SO_PEERPIDFD) {
        // SAFETY: the kernel has just made this descriptor, and no other value owns it.
        Ok(found) => return Ok(unsafe { OwnedFd::from_raw_fd(found) }),
        Err(Error { errno: libc::ENOPROTOOPT, .. }) => {}
        Err(error) => return Err(error),
    }
    let credentials = sockopt::socket_peercred(socket).context("getsockopt", "SO_PEERCRED")?;
    open_pidfd(credentials.pid.as_raw_nonzero().get())
}

/// Opens a pidfd by process id. The pidfd becomes readable when the process ends.
pub fn open_pidfd(number: i32) -> Result<OwnedFd> {
    let operand = format!("process {number}");
    let no_process = || Error::new("pidfd_open", operand.clone(), libc::ESRCH);
    let pid = rustix::process::Pid::from_raw(number).ok_or_else(no_process)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
        .context("pidfd_open", operand)
}

/// Kills the process that a pidfd names.
pub fn kill(process: impl AsFd) -> Result<()> {
    rustix::process::pidfd_send_signal(process, rustix::process::Signal::KILL)
        .context("pidfd_send_signal", "a process")
}

pub(crate) fn open_socket(form: Framing, flags: SocketFlags) -> Result<OwnedFd> {
    let kind = match form {
        Framing::Packets => SocketType::SEQPACKET,
        Framing::Stream => SocketType::STREAM,
    };
    socket_with(AddressFamily::UNIX, kind, flags, None).context("socket", "AF_UNIX")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor;
    use std::path::PathBuf;

    /// A temporary directory, removed on drop.
    struct TempDirectory(PathBuf);

    impl TempDirectory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for TempDirectory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const LIMIT: Duration = testkit::wait::WAIT_TIMEOUT;

    #[test]
    fn peer_process_of_a_local_socket_is_known() {
        let folder = TempDirectory::new("sys-local");
        let held = open_directory(&folder.0).unwrap();
        for (form, name) in [(Framing::Packets, "packets"), (Framing::Stream, "stream")] {
            let listener =
                listen_in_directory(&held, name, 0o666, (form, AcceptedContent::Descriptors), 4)
                    .unwrap();
            assert!(accept(&listener).unwrap().is_none());
            let client = connect_to(&folder.0.join(name), form, LIMIT).unwrap();
            let accepted = accept(&listener).unwrap().unwrap();
            assert_eq!(framing(&accepted).unwrap(), form);
            let process = open_peer_pidfd(&accepted).unwrap();
            assert_eq!(
                crate::poll::wait_until_readable(&[process.as_fd()], Some(Duration::ZERO)),
                [false]
            );
            assert_eq!(send_nonblocking(&accepted, b"hello", &[held.as_fd()]).unwrap(), Some(5));
            let (length, files) = descriptor::receive(&client, &mut [0; 9]).unwrap();
            assert_eq!((length, files.len()), (5, 1));
            let full = (0..1_000_000)
                .find(|_| send_nonblocking(&accepted, &[0; 999], &[]).unwrap().is_none());
            assert!(full.is_some(), "a full peer never blocks the sender");
            assert!(!is_peer_gone(&accepted));
            drop(client);
            testkit::wait_until_closed(&accepted);
            assert!(is_peer_gone(&accepted) && send_nonblocking(&accepted, b"x", &[]).is_err());
            remove_if_present(&held, name).unwrap();
            remove_if_present(&held, name).unwrap();
        }
        assert!(framing(&held).is_err());
    }

    #[test]
    fn file_lock_has_one_holder() {
        let folder = TempDirectory::new("sys-lock");
        let held = open_directory(&folder.0).unwrap();
        let one = open_private_file(&held, "lock").unwrap();
        let other = open_private_file(&held, "lock").unwrap();
        assert!(try_lock(&one).unwrap() && !try_lock(&other).unwrap());
        assert!(is_same_file(&held, "lock", &one));
        drop(one);
        testkit::wait_until("no child has a copy of the lock", || try_lock(&other).unwrap());
        remove_if_present(&held, "lock").unwrap();
        assert!(!is_same_file(&held, "lock", &other));
        std::os::unix::fs::symlink("elsewhere", folder.0.join("link")).unwrap();
        assert_eq!(open_private_file(&held, "link").unwrap_err().errno, libc::ELOOP);
        assert_eq!(open_directory(&folder.0.join("link")).unwrap_err().errno, libc::ENOTDIR);
    }

    #[test]
    fn pidfd_becomes_readable_when_its_process_ends() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = open_pidfd(i32::try_from(child.id()).unwrap()).unwrap();
        assert_eq!(
            crate::poll::wait_until_readable(&[process.as_fd()], Some(Duration::ZERO)),
            [false]
        );
        kill(&process).unwrap();
        assert_eq!(crate::poll::wait_until_readable(&[process.as_fd()], Some(LIMIT)), [true]);
        child.wait().unwrap();
    }
}
