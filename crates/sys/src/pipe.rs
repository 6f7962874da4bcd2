//! Transfer of bytes between descriptors inside the kernel, with splice(2).

use crate::error::{ErrorContext as _, Result};
use rustix::pipe::SpliceFlags;
use std::os::fd::AsFd;

/// Moves up to `length` bytes of a file, starting at offset `at`, into a pipe. Returns the number
/// of bytes moved; 0 at the end of the file.
pub fn splice_in(file: impl AsFd, mut at: u64, pipe: impl AsFd, length: usize) -> Result<usize> {
    rustix::pipe::splice(file, Some(&mut at), pipe, None, length, SpliceFlags::empty())
        .context("splice", "from a file into a pipe")
}

/// Moves up to `length` bytes out of a pipe, to `to`. Returns the number of bytes moved; 0 if the
/// pipe is empty and no process can write to it.
pub fn splice_out(pipe: impl AsFd, to: impl AsFd, length: usize) -> Result<usize> {
    rustix::pipe::splice(pipe, None, to, None, length, SpliceFlags::empty())
        .context("splice", "out of a pipe")
}

/// Returns the number of bytes that a pipe holds. Does not block.
pub fn readable_length(pipe: impl AsFd) -> Result<usize> {
    let length = rustix::io::ioctl_fionread(pipe).context("ioctl", "FIONREAD")?;
    Ok(usize::try_from(length).unwrap_or(usize::MAX))
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
    fn pipe_reports_its_capacity_and_length() {
        let (reading, mut writing) = std::io::pipe().unwrap();
        assert_eq!(set_capacity(&writing, 8192).unwrap(), 8192);
        std::io::Write::write_all(&mut writing, b"four").unwrap();
        assert_eq!(readable_length(&reading).unwrap(), 4);
    }
}
