//! The crate's error: the refused call, its target, the errno, and advice.
//!
//! All modules use one error type, so that every front end prints refusals in the same way.

use std::borrow::Cow;
use std::fmt;

/// A call refused by the kernel or the C library.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// Name of the call as in its manual page, for example `mmap`.
    pub call: &'static str,
    /// Object of the call, such as a file, an interface or a size; empty if there is none.
    pub target: Cow<'static, str>,
    /// Error number (`errno`) with which the call failed.
    pub errno: i32,
}

/// The result of a call to the kernel or the C library.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Creates an error for `call` on `target`.
    pub fn new(call: &'static str, target: impl Into<Cow<'static, str>>, errno: i32) -> Self {
        Self { call, target: target.into(), errno }
    }

    /// Creates an error for the call `call` on `target`, with the error number in the thread's
    /// `errno`.
    pub fn last_os_error(call: &'static str, target: impl Into<Cow<'static, str>>) -> Self {
        Self::new(call, target, std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// Returns true if the arguments of the call exceed what the kernel accepts at once (E2BIG).
    #[must_use]
    pub const fn is_too_large(&self) -> bool {
        self.errno == libc::E2BIG
    }

    /// Returns advice for the user; `None` if no advice is known for this error.
    #[must_use]
    pub fn advice(&self) -> Option<&'static str> {
        match (self.call, self.errno) {
            ("bpf", libc::EPERM) => {
                Some("run as root, or give the program CAP_BPF and CAP_NET_ADMIN")
            }
            ("bpf", libc::EBUSY | libc::EEXIST) if self.target.starts_with("LINK_CREATE") => Some(
                "another program is already attached there; `ip link` and `bpftool net` show it",
            ),
            ("bpf", libc::EOPNOTSUPP) if self.target.starts_with("LINK_CREATE") => {
                Some("the driver of this interface does not support it; generic XDP or TCX does")
            }
            ("bpf", libc::E2BIG) => {
                Some("this exceeds the size of one program: run some of it `@thread0`")
            }
            ("socket", libc::EPERM) => Some("run as root, or give the program CAP_NET_RAW"),
            ("seccomp", libc::EPERM | libc::ENOSYS) => {
                Some("`streamline doctor` shows what is missing, and what to do")
            }
            ("setns" | "unshare", libc::EPERM) => Some("run as root (CAP_SYS_ADMIN)"),
            ("netlink", libc::ENODEV) => Some("`ip link` lists the interfaces"),
            ("open", libc::ENOENT) if self.target.starts_with("namespace") => {
                Some("`ip netns` lists the names; a path or a process id also works")
            }
            ("dlopen", libc::ENOENT) => Some("install libpcap (on Debian the package libpcap0.8)"),
            ("mount" | "open", libc::EACCES) if self.target.contains("/dev/fuse") => {
                Some("run as root, or let root permit it with `chmod 666 /dev/fuse`")
            }
            (_, libc::EPERM) => Some("run as root, or as the owner"),
            (_, libc::EACCES) => Some("check the permissions and run as a user who has them"),
            (_, libc::ENOMEM) => Some("free memory, or request smaller buffers"),
            ("clone" | "execve", libc::EAGAIN) => {
                Some("end other programs, or raise the limit of processes (ulimit -u)")
            }
            (_, libc::EMFILE) => Some("raise the limit of open files (ulimit -n)"),
            (_, libc::ENFILE) => Some("the whole system is out of open files (fs.file-max)"),
            (_, libc::ENOSPC) => Some("free space there, or choose another place"),
            (_, libc::ENOSYS) => Some("this kernel lacks the call; a newer kernel has it"),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.call)?;
        if !self.target.is_empty() {
            write!(f, " on {}", self.target)?;
        }
        write!(f, ": {}", std::io::Error::from_raw_os_error(self.errno))?;
        match self.advice() {
            Some(advice) => write!(f, ": {advice}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::from_raw_os_error(error.errno)
    }
}

/// Conversion of errors of `rustix` and of the standard library to [`Error`], with the call and its
/// target.
pub(crate) trait ErrorContext<T> {
    /// Converts the error to [`Error`], naming `call` and `target`.
    fn context(self, call: &'static str, target: impl Into<Cow<'static, str>>) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> ErrorContext<T> for std::result::Result<T, E> {
    fn context(self, call: &'static str, target: impl Into<Cow<'static, str>>) -> Result<T> {
        self.map_err(|error| Error::new(call, target, error.into().raw_os_error().unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_error_names_call_target_cause_and_advice() {
        let text = Error::new("mmap", "a segment of 4096 bytes", libc::ENOMEM).to_string();
        assert!(text.starts_with("mmap on a segment of 4096 bytes: "), "{text}");
        assert!(text.ends_with("request smaller buffers"), "{text}");
        assert_eq!(Error::new("close", "", libc::EBADF).advice(), None);
    }
}
