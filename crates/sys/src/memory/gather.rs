//! Gathering writes, which combine ordinary memory of this process with mappings that another party
//! may overwrite.
//!
//! The kernel copies the bytes, so no Rust reference to the mapped bytes exists. Bytes that another
//! party overwrites during the call may be torn, as with [`ReadMapping::copy`]. The protocol of
//! each caller detects torn bytes afterwards.

use super::ReadMapping;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

/// Maximum number of memory ranges that one system call writes (UIO_MAXIOV).
const RANGES_PER_CALL_MAX: usize = 1024;

/// A list of memory ranges, in the order in which they are to be written.
#[derive(Debug, Default)]
pub struct GatherWrite<'a> {
    parts: Vec<libc::iovec>,
    length: usize,
    lifetime: PhantomData<&'a [u8]>,
}

impl<'a> GatherWrite<'a> {
    /// Creates an empty list with room for `parts` memory ranges.
    #[must_use]
    pub fn with_capacity(parts: usize) -> Self {
        Self { parts: Vec::with_capacity(parts), length: 0, lifetime: PhantomData }
    }

    /// Appends ordinary memory of this process.
    pub fn push_bytes(&mut self, bytes: &'a [u8]) {
        self.push(bytes.as_ptr(), bytes.len());
    }

    /// Appends bytes of a mapping. Returns false, and appends nothing, if the range is not inside
    /// the mapping.
    #[must_use]
    pub fn push_mapped(&mut self, memory: &'a ReadMapping, offset: usize, length: usize) -> bool {
        let inside = offset.checked_add(length).is_some_and(|end| end <= memory.len());
        if inside {
            self.push(memory.base().as_ptr().wrapping_add(offset), length);
        }
        inside
    }

    fn push(&mut self, from: *const u8, length: usize) {
        if length > 0 {
            self.parts.push(libc::iovec { iov_base: from.cast_mut().cast(), iov_len: length });
            self.length += length;
        }
    }

    /// Returns the total length of the ranges in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns true if there is nothing to write.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Writes all ranges, at most 1024 of them per system call. Blocks. If the descriptor is
    /// nonblocking and not writable, calls `wait`, which must return once the descriptor accepts
    /// bytes, or fail. Returns the number of bytes written, and the error if one stopped the
    /// writing.
    pub fn write_all(
        mut self,
        fd: impl AsFd,
        wait: impl Fn(BorrowedFd<'_>) -> io::Result<()>,
    ) -> (usize, io::Result<()>) {
        let borrowed = fd.as_fd();
        let fd = borrowed.as_raw_fd();
        let (mut first, mut done) = (0, 0);
        while let Some(rest) = self.parts.get(first..).filter(|rest| !rest.is_empty()) {
            let count = libc::c_int::try_from(rest.len().min(RANGES_PER_CALL_MAX)).unwrap_or(1);
            // SAFETY: writev(2) reads `count` parts, which are in `rest`, and the bytes that they
            // name: borrowed slices, or ranges of borrowed mappings. It writes to none of them.
            let wrote = unsafe { libc::writev(fd, rest.as_ptr(), count) };
            match usize::try_from(wrote) {
                Ok(0) => return (done, Err(io::ErrorKind::WriteZero.into())),
                Ok(wrote) => {
                    done += wrote;
                    first += self.remove_written_bytes(first, wrote);
                }
                Err(_) => {
                    let error = io::Error::last_os_error();
                    let outcome = match error.kind() {
                        io::ErrorKind::Interrupted => Ok(()),
                        io::ErrorKind::WouldBlock => wait(borrowed),
                        _ => Err(error),
                    };
                    if outcome.is_err() {
                        return (done, outcome);
                    }
                }
            }
        }
        (done, Ok(()))
    }

    /// Removes the first `written` bytes from the list, counted from the range with index `first`.
    /// Returns the number of ranges that have now been written completely.
    fn remove_written_bytes(&mut self, first: usize, mut written: usize) -> usize {
        let mut whole = 0;
        for part in self.parts.iter_mut().skip(first) {
            if written < part.iov_len {
                part.iov_base = part.iov_base.cast::<u8>().wrapping_add(written).cast();
                part.iov_len -= written;
                break;
            }
            written -= part.iov_len;
            whole += 1;
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memfd;
    use std::io::Read as _;

    #[test]
    fn gathered_parts_are_written_in_order() {
        let file = Memfd::create("sys-test", 1 << 20).unwrap();
        let (writable, readable) = (file.map().unwrap(), file.map_read().unwrap());
        assert!(writable.store_bytes(100, &[7; 1 << 19]));
        let (mut reader, writer) = io::pipe().unwrap();
        let mut gather = GatherWrite::with_capacity(4);
        gather.push_bytes(b"begin");
        // More bytes than a pipe holds.
        assert!(gather.push_mapped(&readable, 100, 1 << 19));
        gather.push_bytes(b"");
        for _ in 0..2 * RANGES_PER_CALL_MAX {
            gather.push_bytes(b"x");
        }
        assert!(!gather.push_mapped(&readable, 1 << 20, 1), "behind the end");
        assert!(!gather.push_mapped(&readable, usize::MAX, 2));
        let length = gather.len();
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all
        });
        let (done, outcome) = gather.write_all(&writer, |_| Ok(()));
        assert_eq!((done, outcome.is_ok()), (length, true));
        drop(writer);
        let expected = [&b"begin"[..], &[7; 1 << 19], &[b'x'; 2 * RANGES_PER_CALL_MAX]].concat();
        assert!(reading.join().unwrap() == expected);
    }

    #[test]
    fn gather_write_to_full_disk_is_an_error() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut gather = GatherWrite::default();
        gather.push_bytes(b"too much");
        let (done, outcome) = gather.write_all(&full, |_| Ok(()));
        assert_eq!((done, outcome.unwrap_err().raw_os_error()), (0, Some(libc::ENOSPC)));
    }
}
