//! Regular files that others may cut and write at any moment (CONTRACT 26): what they are, and a
//! mapping whose address only the kernel ever uses.
//!
//! Who reads a mapped file that was cut short dies of SIGBUS; a system call that is given the same
//! address answers EFAULT. So a [`FileMapping`] has no way to its bytes: it hands its address to
//! `write`, `writev` and `vmsplice`, and says how far they came.

use crate::error::{Error, Named as _, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

/// What the kernel says about a file right now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileStatus {
    /// What it is.
    pub kind: FileKind,
    /// Bytes that it has.
    pub size: u64,
    /// Whose it is.
    pub uid: u32,
    /// The group that the middle permission bits are for.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
}

/// What a descriptor leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A file with bytes at offsets.
    Regular,
    /// A pipe, named or not.
    Pipe,
    /// Anything else.
    Other,
}

/// Looks at what a descriptor leads to.
pub fn status(file: impl AsFd) -> Result<FileStatus> {
    let stat = rustix::fs::fstat(file).named("fstat", "")?;
    let kind = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::RegularFile => FileKind::Regular,
        rustix::fs::FileType::Fifo => FileKind::Pipe,
        _ => FileKind::Other,
    };
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    Ok(FileStatus { kind, size, uid: stat.st_uid, gid: stat.st_gid, mode: stat.st_mode & 0o7777 })
}

/// Whether nobody can cut the file: memory that was sealed so (`F_SEAL_SHRINK`).
pub fn cannot_shrink(file: impl AsFd) -> bool {
    // No file but such memory has seals to be asked for.
    let seals = rustix::fs::fcntl_get_seals(file);
    seals.is_ok_and(|seals| seals.contains(rustix::fs::SealFlags::SHRINK))
}

/// How a descriptor was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It can be read and not written.
    Read,
    /// It can be read and written.
    ReadWrite,
    /// It cannot be read.
    None,
}

/// How a descriptor was opened.
pub fn access(file: impl AsFd) -> Result<Access> {
    use rustix::fs::OFlags;
    let flags = rustix::fs::fcntl_getfl(file).named("fcntl", "F_GETFL")?;
    Ok(match flags & OFlags::ACCMODE {
        _ if flags.contains(OFlags::PATH) => Access::None,
        OFlags::RDONLY => Access::Read,
        OFlags::RDWR => Access::ReadWrite,
        _ => Access::None,
    })
}

/// A place in the file system, whatever lies there: nothing of it is opened, so no pipe is waited
/// for and no device begins to work. For [`status`], and then [`read_only`].
pub fn open_path(path: &std::path::Path) -> Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let shown = path.display().to_string();
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).named("open", shown)
}

/// The same file opened anew for reading alone, whatever can be done with this descriptor. Needs
/// the permission to read it, and `/proc`.
pub fn reopen_read_only(file: BorrowedFd<'_>) -> Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(&path, flags, Mode::empty()).named("open", path)
}

/// Whether a user without rights may be behind this file system, and let whoever reads wait for
/// ever.
pub fn is_in_user_space(file: impl AsFd) -> Result<bool> {
    const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;
    let stat = rustix::fs::fstatfs(file).named("fstatfs", "")?;
    Ok(stat.f_type == FUSE_SUPER_MAGIC)
}

/// Whether more than owner, group and others is said about who may read (acl(5)).
pub fn has_access_list(file: impl AsFd) -> bool {
    let name = c"system.posix_acl_access";
    rustix::fs::fgetxattr(file, name, &mut [0_u8; 0]).is_ok_and(|length| length > 0)
}

/// A file mapped for reading: an address for system calls, and for nobody else.
#[derive(Debug)]
pub struct FileMapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; the kernel lets any thread use or unmap the range, and nothing
// here reads or writes the bytes.
unsafe impl Send for FileMapping {}
// SAFETY: as above; no method changes the mapping through a shared reference.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// Maps the first `len` bytes, of which some may not be there (yet): the mapping shows them
    /// when they are.
    pub fn map(file: impl AsFd, len: usize) -> Result<Self> {
        // SAFETY: a null hint lets the kernel choose an unused range, so no memory of ours is
        // replaced.
        let base = unsafe {
            rustix::mm::mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0)
        };
        let base = base.named("mmap", format!("{len} bytes of a file"))?;
        let base = NonNull::new(base.cast::<u8>());
        let base = base.ok_or_else(|| Error::new("mmap", "address 0", libc::EFAULT))?;
        Ok(Self { base, len })
    }

    /// The size in bytes, whether or not the file is as long.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "the kernel maps no empty range")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Writes these bytes (`write(2)`) and answers how many; 0: of the first none is there.
    pub fn write_to(&self, at: usize, len: usize, to: impl AsFd) -> Result<usize> {
        let (to, from) = (to.as_fd().as_raw_fd(), self.address(at, len)?);
        // SAFETY: the kernel reads the range, which lies in this mapping (`address`), and answers
        // EFAULT where the file has no such page (write(2), mmap(2)).
        answered("write", || unsafe { libc::write(to, from, len) })
    }

    /// Writes these ranges (place, length) one behind the other by one call (`writev(2)`), and
    /// answers how many bytes. At most [`RANGES_MAX`].
    pub fn write_ranges(&self, pieces: &[(usize, usize)], to: impl AsFd) -> Result<usize> {
        let vectors = self.vectors(pieces)?;
        let (to, count) = (to.as_fd().as_raw_fd(), small(vectors.len()));
        // SAFETY: as in `write_to`; the list lives through the call.
        answered("writev", || unsafe { libc::writev(to, vectors.as_ptr(), count) })
    }

    /// Lets a pipe refer to these ranges with no copy (`vmsplice(2)`), and answers how many bytes.
    /// What is written to the file before the pipe is read may be seen there.
    pub fn splice_to(&self, pieces: &[(usize, usize)], pipe: impl AsFd) -> Result<usize> {
        let vectors = self.vectors(pieces)?;
        let pipe = pipe.as_fd().as_raw_fd();
        // SAFETY: as in `write_ranges`; the pages are not given away (no SPLICE_F_GIFT), so the
        // pipe only reads them.
        answered("vmsplice", || unsafe { libc::vmsplice(pipe, vectors.as_ptr(), vectors.len(), 0) })
    }

    /// Has these bytes read from the disk and mapped now, rather than page by page when they are
    /// used. That some are not there is no mistake.
    pub fn populate(&self, at: usize, len: usize) -> Result<()> {
        let from = self.address(at, len)?.cast_mut();
        // SAFETY: the range lies in this mapping; the advice changes nothing that can be seen
        // (madvise(2): MADV_POPULATE_READ answers EFAULT where there is no page).
        let done = unsafe { rustix::mm::madvise(from, len, Advice::LinuxPopulateRead) };
        match done {
            Err(rustix::io::Errno::FAULT | rustix::io::Errno::INVAL) => Ok(()),
            done => done.named("madvise", format!("{len} bytes of a file")),
        }
    }

    fn vectors(&self, pieces: &[(usize, usize)]) -> Result<Vec<libc::iovec>> {
        let pieces = pieces.iter().take(RANGES_MAX);
        pieces
            .map(|&(at, len)| {
                let iov_base = self.address(at, len)?.cast_mut();
                Ok(libc::iovec { iov_base, iov_len: len })
            })
            .collect()
    }

    fn address(&self, at: usize, len: usize) -> Result<*const c_void> {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        if !inside {
            return Err(Error::new("mmap", "a range outside of it", libc::EINVAL));
        }
        Ok(self.base.as_ptr().cast_const().wrapping_add(at).cast())
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: the range came from mmap and is unmapped only here; its address was given to
        // nobody but system calls, which have come back.
        let gone = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(gone.is_ok(), "unmapping what was mapped");
    }
}

/// The most ranges that one call takes (IOV_MAX).
pub const RANGES_MAX: usize = 1024;

/// Writes bytes of a file that cannot be mapped (`sendfile(2)`), and answers how many.
pub fn send(from: impl AsFd, at: u64, len: usize, to: impl AsFd) -> Result<usize> {
    loop {
        let mut offset = at;
        match rustix::fs::sendfile(&to, &from, Some(&mut offset), len) {
            Err(rustix::io::Errno::INTR) => {}
            done => return done.named("sendfile", format!("{len} bytes of a file")),
        }
    }
}

/// Copies bytes of a file (`pread(2)`), as many as are there; fewer only at its end.
pub fn read_at(from: impl AsFd, mut at: u64, mut out: &mut [u8]) -> Result<usize> {
    let mut count = 0;
    while !out.is_empty() {
        match rustix::io::pread(&from, &mut *out, at) {
            Ok(0) => break,
            Ok(read) => {
                count += read;
                at = at.saturating_add(read as u64);
                out = out.get_mut(read..).unwrap_or_default();
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::new("pread", "a file", error.raw_os_error())),
        }
    }
    Ok(count)
}

fn small(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// What a call answered: EFAULT is nothing, an interrupted call is made again.
fn answered(call: &'static str, mut make: impl FnMut() -> isize) -> Result<usize> {
    loop {
        if let Ok(count) = usize::try_from(make()) {
            return Ok(count);
        }
        match Error::last(call, "bytes of a file") {
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

    /// A file of no name with these bytes.
    fn file(bytes: &[u8]) -> File {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open("/tmp", flags, Mode::RUSR).unwrap());
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn bytes_go_from_the_mapping_into_a_pipe_by_every_call() {
        let file = file(&[b'a'; 5000]);
        let mapping = FileMapping::map(&file, 8192).unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let mut read = File::from(read);
        let mut out = [0; 200];
        assert_eq!(mapping.write_to(4990, 10, &write).unwrap(), 10);
        assert_eq!(mapping.write_ranges(&[(0, 20), (4090, 30)], &write).unwrap(), 50);
        assert_eq!(mapping.splice_to(&[(4000, 96), (1, 4)], &write).unwrap(), 100);
        assert_eq!(send(&file, 4995, 40, &write).unwrap(), 5);
        read.read_exact(&mut out[..165]).unwrap();
        assert_eq!(out[..165], [b'a'; 165]);
        assert!(mapping.write_to(8190, 3, &write).is_err(), "outside");
        assert!(mapping.write_to(usize::MAX, 3, &write).is_err(), "outside");
    }

    #[test]
    fn what_is_cut_off_is_no_signal() {
        let file = file(&[b'a'; 3 * 4096]);
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
    fn what_a_descriptor_is_and_how_it_was_opened_is_told() {
        let file = file(&[1; 100]);
        let told = status(&file).unwrap();
        assert_eq!((told.kind, told.size, told.mode), (FileKind::Regular, 100, 0o400));
        assert_eq!(access(&file).unwrap(), Access::ReadWrite);
        let again = reopen_read_only(file.as_fd()).unwrap();
        assert_eq!(access(&again).unwrap(), Access::Read);
        let (read, write) = rustix::pipe::pipe().unwrap();
        assert_eq!(status(&read).unwrap().kind, FileKind::Pipe);
        assert_eq!(access(&write).unwrap(), Access::None);
        assert_eq!(status(File::open("/dev/null").unwrap()).unwrap().kind, FileKind::Other);
        assert!(!is_in_user_space(&file).unwrap() && !has_access_list(&file));
    }
}
