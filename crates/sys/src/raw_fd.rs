//! Descriptors by number, for the C interface.
//!
//! An open descriptor number belongs to the C program that received it. These functions only
//! duplicate such a descriptor, or close it at the program's request.

use crate::error::{Error, Result};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// Duplicates a descriptor given by number. The duplicate is closed on exec.
pub fn duplicate(number: RawFd) -> Result<OwnedFd> {
    // SAFETY: fcntl(2) accepts any number, and returns EBADF for a descriptor that is not open.
    let fd = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if fd < 0 {
        return Err(Error::last_os_error("fcntl", format!("descriptor {number}")));
    }
    // SAFETY: the kernel has just created this descriptor, and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Passes ownership of a descriptor to a C program and returns its number.
#[must_use]
pub fn into_raw(fd: OwnedFd) -> RawFd {
    fd.into_raw_fd()
}

/// Closes a descriptor given by number, at the request of its owner.
pub fn close(number: RawFd) -> Result<()> {
    // SAFETY: close(2) accepts any number; the caller has no other use for this one, and no Rust
    // value of ours owns it.
    let done = unsafe { libc::close(number) };
    if done == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error("close", format!("descriptor {number}")))
    }
}

/// Clears FD_CLOEXEC of a descriptor given by number, so that it stays open across exec like
/// descriptors from pipe(2).
pub fn clear_close_on_exec(number: RawFd) -> Result<()> {
    // SAFETY: fcntl(2) accepts any number, and returns EBADF for a descriptor that is not open.
    let done = unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
    if done == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error("fcntl", format!("descriptor {number}")))
    }
}

pub use crate::preload::set_errno;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn descriptors_are_duplicated_and_closed_by_number() {
        let (one, other) = crate::descriptor::socket_pair().unwrap();
        let number = into_raw(duplicate(one.as_raw_fd()).unwrap());
        drop(one);
        clear_close_on_exec(number).unwrap();
        assert!(crate::descriptor::try_receive(&other, &mut [0; 9]).unwrap().is_none());
        close(number).unwrap();
        assert_eq!(crate::descriptor::receive(&other, &mut [0; 9]).unwrap().0, 0, "all are closed");
        for wrong in [-1, i32::MAX] {
            assert_eq!(duplicate(wrong).unwrap_err().errno, libc::EBADF);
            assert_eq!(close(wrong).unwrap_err().errno, libc::EBADF);
        }
        set_errno(libc::EPIPE);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPIPE));
    }
}
