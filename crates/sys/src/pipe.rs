//! Transfer of bytes between descriptors inside the kernel, with splice(2), tee(2) and vmsplice(2).

use crate::error::{Error, ErrorContext as _, Result};
use rustix::pipe::{IoSliceRaw, SpliceFlags};
use std::os::fd::AsFd;

/// Moves up to `length` bytes of a file, starting at offset `at`, into a pipe. Returns the number
/// of bytes moved.
pub fn splice_in(file: impl AsFd, mut at: u64, pipe: impl AsFd, length: usize) -> Result<usize> {
    rustix::pipe::splice(file, Some(&mut at), pipe, None, length, SpliceFlags::empty())
        .context("splice", "from a file into a pipe")
}

/// Moves up to `length` bytes out of a pipe. Returns the number of bytes moved.
pub fn splice_out(pipe: impl AsFd, to: impl AsFd, length: usize) -> Result<usize> {
    rustix::pipe::splice(pipe, None, to, None, length, SpliceFlags::empty())
        .context("splice", "out of a pipe")
}

/// Puts references to up to `length` bytes at the front of a pipe into another pipe, and leaves the
/// bytes where they are. Returns the number of bytes.
pub fn tee(pipe: impl AsFd, to: impl AsFd, length: usize) -> Result<usize> {
    rustix::pipe::tee(pipe, to, length, SpliceFlags::empty()).context("tee", "a pipe")
}

/// Puts references to the memory of these bytes into a pipe. Does not block; fails with EAGAIN if
/// the pipe is full. Returns the number of bytes.
///
/// A reader of the pipe reads the memory as it is at that time. So the bytes must stay unchanged,
/// and their memory unused for anything else, as long as a pipe refers to them.
pub fn lend(pipe: impl AsFd, bytes: &[u8]) -> Result<usize> {
    let flags = rustix::fs::fcntl_getfl(&pipe).context("fcntl", "F_GETFL")?;
    if !flags.contains(rustix::fs::OFlags::WRONLY) {
        return Err(Error::new("vmsplice", "memory into a reading end", libc::EBADF));
    }
    let bytes = [IoSliceRaw::from_slice(bytes)];
    // SAFETY: to the writing end of a pipe, vmsplice(2) reads the memory of `bytes`, and writes
    // nothing there. Other ends were refused above.
    let lent = unsafe { rustix::pipe::vmsplice(pipe, &bytes, SpliceFlags::NONBLOCK) };
    lent.context("vmsplice", "memory into a pipe")
}

/// Returns the number of bytes that a pipe holds. Does not block.
pub fn readable_length(pipe: impl AsFd) -> Result<usize> {
    let length = rustix::io::ioctl_fionread(pipe).context("ioctl", "FIONREAD")?;
    Ok(usize::try_from(length).unwrap_or(usize::MAX))
}

/// Writes bytes into a pipe. Returns the number of bytes written.
pub fn write(pipe: impl AsFd, bytes: &[u8]) -> Result<usize> {
    rustix::io::write(pipe, bytes).context("write", "a pipe")
}

/// Sets the capacity of a pipe in bytes, rounded up to a number of pages that is a power of two,
/// and returns the new capacity. Fails with EPERM if the user is not allowed pipes of this size.
pub fn set_capacity(pipe: impl AsFd, bytes: usize) -> Result<usize> {
    rustix::pipe::fcntl_setpipe_size(pipe, bytes).context("fcntl", "F_SETPIPE_SZ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memfd;
    use std::io::Read as _;
    use std::os::fd::OwnedFd;

    #[test]
    fn file_bytes_pass_through_a_pipe() {
        let file = std::fs::File::from(OwnedFd::from(Memfd::create("sys-splice", 8192).unwrap()));
        std::os::unix::fs::FileExt::write_all_at(&file, b"middle", 4000).unwrap();
        let (mut reading, writing) = std::io::pipe().unwrap();
        assert_eq!(splice_in(&file, 4000, &writing, 6).unwrap(), 6);
        let mut out = [0; 6];
        reading.read_exact(&mut out).unwrap();
        assert_eq!(&out, b"middle");
        assert_eq!(splice_in(&file, 4002, &writing, 4).unwrap(), 4);
        let (mut second, into) = std::io::pipe().unwrap();
        assert_eq!(splice_out(&reading, &into, 100).unwrap(), 4);
        second.read_exact(&mut out[..4]).unwrap();
        assert_eq!(&out[..4], b"ddle");
        assert!(splice_out(&file, &file, 1).is_err(), "neither is a pipe");
    }

    #[test]
    fn lent_bytes_are_read_twice_and_only_from_the_writing_end() {
        let (mut reading, writing) = std::io::pipe().unwrap();
        let (mut second, into) = std::io::pipe().unwrap();
        let bytes = *b"lent bytes";
        assert_eq!(lend(&writing, &bytes).unwrap(), 10);
        assert_eq!(tee(&reading, &into, 4).unwrap(), 4);
        let mut out = [0; 10];
        second.read_exact(&mut out[..4]).unwrap();
        assert_eq!(&out[..4], b"lent");
        reading.read_exact(&mut out).unwrap();
        assert_eq!(out, bytes);
        assert!(lend(&reading, &bytes).is_err());
    }

    #[test]
    fn capacity_and_length_of_a_pipe() {
        let (reading, mut writing) = std::io::pipe().unwrap();
        assert_eq!(set_capacity(&writing, 8192).unwrap(), 8192);
        std::io::Write::write_all(&mut writing, b"four").unwrap();
        assert_eq!(readable_length(&reading).unwrap(), 4);
    }
}
