//! Regular files that other processes may truncate or write at any time (CONTRACT 26): status
//! queries, and mappings that only the kernel accesses.
//!
//! A process that reads a mapped page beyond a truncated file's end is killed by SIGBUS; a system
//! call given the same address returns EFAULT. A [`FileMapping`] therefore hides its bytes: it only
//! passes addresses to `write`, `writev` and `vmsplice`, and returns the number of bytes processed.

use crate::error::{Error, ErrorContext as _, Result};
use crate::memory::ReadMapping;
use rustix::io::retry_on_intr;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

/// The status of an open file at the time of the query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileStatus {
    /// Type of the file.
    pub kind: FileKind,
    /// Size of the file in bytes.
    pub size: u64,
    /// Owner's user id.
    pub uid: u32,
    /// Id of the file's group.
    pub gid: u32,
    /// Permission bits, including set-user-ID, set-group-ID and the sticky bit.
    pub mode: u32,
}

/// The types of file that this crate distinguishes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A pipe or named pipe.
    Pipe,
    /// Any other type of file.
    Other,
}

/// Queries the status of the file that a descriptor refers to.
pub fn status(file: impl AsFd) -> Result<FileStatus> {
    let stat = rustix::fs::fstat(file).context("fstat", "")?;
    let kind = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::RegularFile => FileKind::Regular,
        rustix::fs::FileType::Fifo => FileKind::Pipe,
        _ => FileKind::Other,
    };
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    Ok(FileStatus { kind, size, uid: stat.st_uid, gid: stat.st_gid, mode: stat.st_mode & 0o7777 })
}

/// Returns true if the file is a memfd that can never shrink (`F_SEAL_SHRINK`).
pub fn has_shrink_seal(file: impl AsFd) -> bool {
    // Other files have no seals and fail the call.
    let seals = rustix::fs::fcntl_get_seals(file);
    seals.is_ok_and(|seals| seals.contains(rustix::fs::SealFlags::SHRINK))
}

/// The access mode of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessMode {
    /// The descriptor is readable but not writable.
    Read,
    /// The descriptor is readable and writable.
    ReadWrite,
    /// The descriptor is not readable, for example because it is write-only.
    NotReadable,
}

/// Returns the access mode of a descriptor.
pub fn access_mode(file: impl AsFd) -> Result<AccessMode> {
    use rustix::fs::OFlags;
    let flags = rustix::fs::fcntl_getfl(file).context("fcntl", "F_GETFL")?;
    Ok(match flags & OFlags::ACCMODE {
        _ if flags.contains(OFlags::PATH) => AccessMode::NotReadable,
        OFlags::RDONLY => AccessMode::Read,
        OFlags::RDWR => AccessMode::ReadWrite,
        _ => AccessMode::NotReadable,
    })
}

/// Opens a path without opening the file itself (O_PATH), for [`status`] and then
/// [`reopen_read_only`]. The call neither waits for the peer of a pipe nor activates a device.
pub fn open_path(path: &std::path::Path) -> Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let printable = path.display().to_string();
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).context("open", printable)
}

/// Reopens a descriptor's file for reading, regardless of the access mode of the descriptor. The
/// new descriptor is nonblocking. Needs permission to read the file, and `/proc`.
pub fn reopen_read_only(file: BorrowedFd<'_>) -> Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(&path, flags, Mode::empty()).context("open", path)
}

/// Returns true if the file is on a FUSE file system, whose server may be unprivileged and may
/// block readers indefinitely.
pub fn is_on_fuse(file: impl AsFd) -> Result<bool> {
    const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;
    let stat = rustix::fs::fstatfs(file).context("fstatfs", "")?;
    Ok(stat.f_type == FUSE_SUPER_MAGIC)
}

/// Returns true if the file has an access control list (acl(5)).
pub fn has_access_list(file: impl AsFd) -> bool {
    let name = c"system.posix_acl_access";
    rustix::fs::fgetxattr(file, name, &mut [0_u8; 0]).is_ok_and(|length| length > 0)
}

/// Returns true if the file grants capabilities to a process that executes it (capabilities(7)).
pub fn has_capabilities(file: impl AsFd) -> bool {
    let name = c"security.capability";
    rustix::fs::fgetxattr(file, name, &mut [0_u8; 0]).is_ok_and(|length| length > 0)
}

/// A read-only mapping of a file, whose bytes only system calls read.
#[derive(Debug)]
pub struct FileMapping(ReadMapping);

impl FileMapping {
    /// Maps the first `len` bytes of a file. The range may extend beyond the present end of the
    /// file; pages beyond the end become accessible when the file grows.
    pub fn map(file: impl AsFd, len: usize) -> Result<Self> {
        ReadMapping::shared(file.as_fd(), 0, len, "a file").map(Self)
    }

    /// Returns the size of the mapping in bytes, which is independent of the file's size.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "the kernel maps no empty range")]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Writes a range of the file to a descriptor (`write(2)`). Returns the number of bytes
    /// written, which is 0 if the range begins on a page beyond the end of the file. Bytes between
    /// the end of the file and the end of its last page are zero.
    pub fn write_to(&self, at: usize, len: usize, to: impl AsFd) -> Result<usize> {
        let (to, from) = (to.as_fd().as_raw_fd(), self.address(at, len)?);
        // SAFETY: the kernel reads the range, which is in this mapping (`address`), and returns
        // EFAULT where the file has no such page (write(2), mmap(2)).
        retry_interrupted("write", || unsafe { libc::write(to, from, len) })
    }

    /// Writes several ranges of the file, each given as offset and length, with one call
    /// (`writev(2)`). Returns the number of bytes written. Only the first [`RANGES_PER_CALL_MAX`]
    /// ranges are written.
    pub fn write_ranges(&self, pieces: &[(usize, usize)], to: impl AsFd) -> Result<usize> {
        let io_vectors = self.io_vectors(pieces)?;
        let (to, count) = (to.as_fd().as_raw_fd(), saturate_to_i32(io_vectors.len()));
        // SAFETY: as in `write_to`; the list outlives the call.
        retry_interrupted("writev", || unsafe { libc::writev(to, io_vectors.as_ptr(), count) })
    }

    /// Maps ranges of the file, each given as offset and length, into a pipe without copying
    /// (`vmsplice(2)`). Returns the number of bytes spliced. Later writes to the file may become
    /// visible in the pipe.
    pub fn splice_to(&self, pieces: &[(usize, usize)], pipe: impl AsFd) -> Result<usize> {
        let io_vectors = self.io_vectors(pieces)?;
        let pipe = pipe.as_fd().as_raw_fd();
        // SAFETY: as in `write_ranges`; the pages are not gifted to the kernel (no SPLICE_F_GIFT),
        // so the pipe only reads them.
        retry_interrupted("vmsplice", || unsafe {
            libc::vmsplice(pipe, io_vectors.as_ptr(), io_vectors.len(), 0)
        })
    }

    /// Reads a range from disk and maps its pages before their first use. Skips pages beyond the
    /// end of the file without an error.
    pub fn populate(&self, at: usize, len: usize) -> Result<()> {
        self.address(at, len)?;
        match self.0.populate(at, len) {
            Err(Error { errno: libc::EFAULT | libc::EINVAL, .. }) => Ok(()),
            done => done,
        }
    }

    fn io_vectors(&self, pieces: &[(usize, usize)]) -> Result<Vec<libc::iovec>> {
        let pieces = pieces.iter().take(RANGES_PER_CALL_MAX);
        pieces
            .map(|&(at, len)| {
                let iov_base = self.address(at, len)?.cast_mut();
                Ok(libc::iovec { iov_base, iov_len: len })
            })
            .collect()
    }

    fn address(&self, at: usize, len: usize) -> Result<*const c_void> {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len());
        if !inside {
            return Err(Error::new("mmap", "a range outside of it", libc::EINVAL));
        }
        Ok(self.0.base().as_ptr().cast_const().wrapping_add(at).cast())
    }
}

/// Maximum number of ranges per call (IOV_MAX).
pub const RANGES_PER_CALL_MAX: usize = 1024;

/// Sends up to `len` bytes of a file that cannot be mapped, starting at offset `at`
/// (`sendfile(2)`). Returns the number of bytes sent; 0 at the end of the file.
pub fn send_file(from: impl AsFd, at: u64, len: usize, to: impl AsFd) -> Result<usize> {
    let done = retry_on_intr(|| rustix::fs::sendfile(&to, &from, Some(&mut at.clone()), len));
    done.context("sendfile", format!("{len} bytes of a file"))
}

/// Reads from offset `at` until `out` is full or the file ends (`pread(2)`). Returns the number of
/// bytes read.
pub fn read_at(from: impl AsFd, mut at: u64, mut out: &mut [u8]) -> Result<usize> {
    let mut count = 0;
    while !out.is_empty() {
        let read = retry_on_intr(|| rustix::io::pread(&from, &mut *out, at));
        match read.context("pread", "a file")? {
            0 => break,
            read => {
                count += read;
                at = at.saturating_add(read as u64);
                out = out.get_mut(read..).unwrap_or_default();
            }
        }
    }
    Ok(count)
}

fn saturate_to_i32(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Makes the system call `make`, repeats it while signals interrupt it, and returns its byte count.
/// The error EFAULT counts as 0 bytes.
fn retry_interrupted(call: &'static str, mut make: impl FnMut() -> isize) -> Result<usize> {
    loop {
        if let Ok(count) = usize::try_from(make()) {
            return Ok(count);
        }
        match Error::last_os_error(call, "bytes of a file") {
            error if error.errno == libc::EINTR => {}
            error if error.errno == libc::EFAULT => return Ok(0),
            error => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read as _, Write as _};

    /// Creates an unnamed file with these bytes.
    fn create_unnamed_file(bytes: &[u8]) -> File {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open("/tmp", flags, Mode::RUSR).unwrap());
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn mapped_bytes_are_written_to_a_pipe_by_every_call() {
        let file = create_unnamed_file(&[b'a'; 5000]);
        let mapping = FileMapping::map(&file, 8192).unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let mut read = File::from(read);
        let mut out = [0; 200];
        assert_eq!(mapping.write_to(4990, 10, &write).unwrap(), 10);
        assert_eq!(mapping.write_ranges(&[(0, 20), (4090, 30)], &write).unwrap(), 50);
        assert_eq!(mapping.splice_to(&[(4000, 96), (1, 4)], &write).unwrap(), 100);
        assert_eq!(send_file(&file, 4995, 40, &write).unwrap(), 5);
        read.read_exact(&mut out[..165]).unwrap();
        assert_eq!(out[..165], [b'a'; 165]);
        assert!(mapping.write_to(8190, 3, &write).is_err(), "outside");
        assert!(mapping.write_to(usize::MAX, 3, &write).is_err(), "outside");
    }

    #[test]
    fn truncated_file_causes_no_sigbus() {
        let file = create_unnamed_file(&[b'a'; 3 * 4096]);
        let mapping = FileMapping::map(&file, 3 * 4096).unwrap();
        let (_read, write) = rustix::pipe::pipe().unwrap();
        mapping.populate(0, 3 * 4096).unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(mapping.write_to(4096, 4096, &write).unwrap(), 0);
        assert_eq!(mapping.splice_to(&[(8192, 10)], &write).unwrap(), 0);
        assert_eq!(mapping.write_ranges(&[(8192, 10)], &write).unwrap(), 0);
        assert_eq!(mapping.write_to(0, 8192, &write).unwrap(), 4096, "as far as it goes");
        mapping.populate(0, 3 * 4096).unwrap();
        assert_eq!(read_at(&file, 4090, &mut [0; 100]).unwrap(), 6);
    }

    #[test]
    fn file_status_and_access_mode_are_reported() {
        let file = create_unnamed_file(&[1; 100]);
        let facts = status(&file).unwrap();
        assert_eq!((facts.kind, facts.size, facts.mode), (FileKind::Regular, 100, 0o400));
        assert_eq!(access_mode(&file).unwrap(), AccessMode::ReadWrite);
        let again = reopen_read_only(file.as_fd()).unwrap();
        assert_eq!(access_mode(&again).unwrap(), AccessMode::Read);
        let (read, write) = rustix::pipe::pipe().unwrap();
        assert_eq!(status(&read).unwrap().kind, FileKind::Pipe);
        assert_eq!(access_mode(&write).unwrap(), AccessMode::NotReadable);
        assert_eq!(status(File::open("/dev/null").unwrap()).unwrap().kind, FileKind::Other);
        assert!(!is_on_fuse(&file).unwrap() && !has_access_list(&file));
    }
}
