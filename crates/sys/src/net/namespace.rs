//! Network namespaces, opened by name, path or process id, and entered by short-lived threads.

use crate::error::{Error, ErrorContext as _, Result};
use crate::open::RegularOpenOptions;
use crate::packet::option;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

/// Directory in which `ip netns` keeps its named namespaces.
const NAMES_DIRECTORY: &str = "/run/netns";
/// Path of the calling thread's namespace, which may differ from the namespace of its process.
const CURRENT_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// A network namespace, kept alive by this value.
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
    what: String,
}

impl Namespace {
    /// Opens the network namespace of the calling thread.
    pub fn current() -> Result<Self> {
        Self::open_at(Path::new(CURRENT_NAMESPACE), "this namespace")
    }

    /// Opens the network namespace named by `text`. A text that contains `/` is a path. Any other
    /// text is a name used by `ip netns` or, if it is a number and no such name exists, a process
    /// id.
    pub fn open(text: &str) -> Result<Self> {
        let known = Path::new(NAMES_DIRECTORY).join(text);
        let path = if text.contains('/') {
            PathBuf::from(text)
        } else if text.parse::<u32>().is_ok() && !known.exists() {
            PathBuf::from(format!("/proc/{text}/ns/net"))
        } else {
            known
        };
        Self::open_at(&path, text)
    }

    /// Returns the inode number of the namespace, which is unique on this machine while the
    /// namespace exists.
    pub fn inode(&self) -> Result<u64> {
        let stat = rustix::fs::fstat(&self.fd).context("fstat", self.what.clone())?;
        Ok(stat.st_ino)
    }

    /// Returns true if the namespace belongs to this process's user namespace. A user id then
    /// denotes the same user in the namespace as in this process.
    pub fn is_in_our_user_namespace(&self) -> Result<bool> {
        /// Path of this process's user namespace.
        const USER_NAMESPACE: &str = "/proc/self/ns/user";
        let ours = rustix::fs::stat(USER_NAMESPACE).context("stat", USER_NAMESPACE)?;
        let owner = match owner_user_namespace(&self.fd) {
            Ok(owner) => owner,
            // The owner is a parent of our user namespace.
            Err(error) if error.errno == libc::EPERM => return Ok(false),
            Err(error) => return Err(error),
        };
        let theirs = rustix::fs::fstat(&owner).context("fstat", self.what.clone())?;
        Ok((ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino))
    }

    /// Returns true if this is the namespace of the calling thread.
    pub fn is_current(&self) -> Result<bool> {
        Ok(self.inode()? == Self::current()?.inode()?)
    }

    fn open_at(path: &Path, what: &str) -> Result<Self> {
        let target = || format!("namespace {what}");
        // `RegularOpenOptions` is used because the path may lead to a pipe, which would block a
        // plain open.
        let file =
            RegularOpenOptions::read().open(path).map_err(|error| match error.raw_os_error() {
                Some(errno) => Error::new("open", target(), errno),
                None => Error::new("open", format!("{} ({error})", target()), libc::EINVAL),
            })?;
        Ok(Self { fd: file.into(), what: target() })
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the user namespace that owns a network namespace.
fn owner_user_namespace(space: &OwnedFd) -> Result<OwnedFd> {
    /// NS_GET_USERNS: ioctl that returns the user namespace that owns a namespace (ioctl_ns(2)).
    const NS_GET_USERNS: libc::Ioctl = 0xb701;
    // SAFETY: NS_GET_USERNS takes no argument, and the descriptor is open.
    let answer = unsafe { libc::ioctl(space.as_raw_fd(), NS_GET_USERNS) };
    if answer < 0 {
        return Err(Error::last_os_error("ioctl", "NS_GET_USERNS"));
    }
    // SAFETY: ioctl_ns(2): a new descriptor, which no other value owns.
    Ok(unsafe { OwnedFd::from_raw_fd(answer) })
}

/// Returns the cookie with which BPF programs identify the network namespace of this thread's
/// sockets (SO_NETNS_COOKIE, Linux 5.14). The kernel never reuses a cookie.
pub fn namespace_cookie() -> Result<u64> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
    let socket = socket.context("socket", "to ask for the namespace")?;
    option::get(socket.as_fd(), libc::SOL_SOCKET, option::NETNS_COOKIE)
}

/// Runs `work` in a new thread inside the namespace `space`. Sockets opened by `work` belong to
/// `space`; the calling thread stays in its namespace. Needs CAP_SYS_ADMIN both in the user
/// namespace of this process and in the user namespace that owns `space`.
///
/// # Panics
/// If `work` panics.
pub fn run_in_namespace<T: Send>(space: &Namespace, work: impl FnOnce() -> T + Send) -> Result<T> {
    run_in_thread(|| {
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))
            .context("setns", space.what.clone())?;
        Ok(work())
    })
}

/// Runs `work` in a new thread inside a new network namespace. The namespace exists as long as a
/// socket opened by `work`, or another descriptor of the namespace, stays open. Needs
/// CAP_SYS_ADMIN.
///
/// # Panics
/// If `work` panics.
pub fn run_in_new_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    run_in_thread(|| {
        // SAFETY: the thread begins and ends here, and only its network namespace is unshared, not
        // its descriptors.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
            .context("unshare", "a new namespace of networks")?;
        Ok(work())
    })
}

fn run_in_thread<T: Send>(inside: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let done: std::io::Result<_> = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".to_owned());
        Ok(thread.spawn_scoped(scope, inside)?.join())
    });
    done.context("clone", "a thread")?.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_opens_by_path_process_id_and_as_current() {
        let here = Namespace::current().unwrap();
        assert!(here.is_current().unwrap());
        let by_process = Namespace::open(&std::process::id().to_string()).unwrap();
        let by_path = Namespace::open("/proc/self/ns/net").unwrap();
        for other in [by_process, by_path] {
            assert_eq!(other.inode().unwrap(), here.inode().unwrap());
        }
        let error = Namespace::open("no-such-space").unwrap_err();
        assert_eq!((error.call, error.errno), ("open", libc::ENOENT));
        assert_eq!(error.target, "namespace no-such-space");
    }

    #[test]
    fn files_other_than_namespaces_are_rejected() {
        let pipe = std::env::temp_dir().join(format!("sys-namespace-{}", std::process::id()));
        let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, mode, 0).unwrap();
        let refused = Namespace::open(pipe.to_str().unwrap()).unwrap_err().to_string();
        std::fs::remove_file(&pipe).unwrap();
        assert!(refused.contains("it is a named pipe"), "{refused}");
        let file = Namespace::open("/proc/self/stat").unwrap();
        let error = run_in_namespace(&file, || ()).unwrap_err();
        assert_eq!(error.call, "setns", "{error}");
    }
}
