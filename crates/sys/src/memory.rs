//! Memory: sealed memfds and owned mappings.
//!
//! A dbuf is one memfd (DESIGN, memory; RELIABILITY facts 1 to 4), which is created, mapped,
//! sealed, and only then shared. [`Seals::READER`] makes a descriptor harmless; the receiver checks
//! seals, size and geometry before its first access. A mapping yields an address, never a
//! reference; the crate `buffer` defines which party may access the bytes at which time. Memory
//! whose segments the kernel fills and takes back after use (a packet ring) implements
//! [`SegmentLender`].

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub mod foreign;
mod gather;
mod words;

pub use gather::GatherWrite;

use crate::error::{ErrorContext as _, Result};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

/// The seals of a memfd. Each seal permanently forbids an operation to every process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seals(u32);

impl Seals {
    /// The empty set of seals.
    pub const NONE: Self = Self(0);
    /// The file cannot shrink, so no reader is killed by SIGBUS.
    pub const SHRINK: Self = Self(libc::F_SEAL_SHRINK as u32);
    /// The file cannot grow.
    pub const GROW: Self = Self(libc::F_SEAL_GROW as u32);
    /// The file cannot be written; refused while a writable mapping exists.
    pub const WRITE: Self = Self(libc::F_SEAL_WRITE as u32);
    /// New writable mappings and writes are refused; existing writable mappings stay writable.
    pub const FUTURE_WRITE: Self = Self(libc::F_SEAL_FUTURE_WRITE as u32);
    /// No seal can be added.
    pub const SEAL: Self = Self(libc::F_SEAL_SEAL as u32);
    /// Seals of a file whose descriptor is passed to a reader. The reader cannot write, truncate or
    /// punch the file.
    pub const READER: Self =
        Self(Self::SHRINK.0 | Self::GROW.0 | Self::FUTURE_WRITE.0 | Self::SEAL.0);
    /// Seals of a file whose descriptor is passed to a writer. The writer cannot change the size.
    pub const SIZE: Self = Self(Self::SHRINK.0 | Self::GROW.0 | Self::SEAL.0);
    /// Seals of a file that can never change again.
    pub const FROZEN: Self = Self(Self::SHRINK.0 | Self::GROW.0 | Self::WRITE.0 | Self::SEAL.0);

    /// Returns true if this set contains all seals of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the seals that are in `self` or in `other`.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// An anonymous file of fixed size (memfd_create(2)).
#[derive(Debug)]
pub struct Memfd {
    fd: OwnedFd,
    len: usize,
}

impl Memfd {
    /// Creates a zeroed file of `len` bytes that allows sealing. Allocates no pages
    /// ([`Memfd::allocate`] does). `name` appears in `/proc/PID/maps`.
    pub fn create(name: &str, len: usize) -> Result<Self> {
        Self::create_with_flags(name, len, MemfdFlags::empty())
    }

    /// Creates a file of reserved 2 MB huge pages and allocates these pages. `len` must be a
    /// multiple of 2 MB. Fails if too few pages are reserved.
    pub fn create_with_huge_pages(name: &str, len: usize) -> Result<Self> {
        let file = Self::create_with_flags(name, len, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)?;
        file.allocate(0, len)?;
        Ok(file)
    }

    fn create_with_flags(name: &str, len: usize, kind: MemfdFlags) -> Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind;
        let fd = rustix::fs::memfd_create(name, flags).context("memfd_create", name.to_owned())?;
        rustix::fs::ftruncate(&fd, len as u64).context("ftruncate", format!("{len} bytes"))?;
        Ok(Self { fd, len })
    }

    /// Adopts a received file; the kernel reports its size.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        let stat = rustix::fs::fstat(&fd).context("fstat", "a received descriptor")?;
        Ok(Self { fd, len: usize::try_from(stat.st_size).unwrap_or(0) })
    }

    /// Returns the size in bytes at the time when the file was created or adopted. The size cannot
    /// change once [`Seals::SIZE`] is set.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "no caller needs to know whether a file is empty"
    )]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Allocates the pages of a range, so that a shortage of memory is an error here instead of a
    /// SIGBUS later.
    pub fn allocate(&self, offset: usize, len: usize) -> Result<()> {
        let mode = rustix::fs::FallocateFlags::empty();
        let allocate = || rustix::fs::fallocate(&self.fd, mode, offset as u64, len as u64);
        rustix::io::retry_on_intr(allocate).context("fallocate", format!("{len} bytes of memory"))
    }

    /// Frees the pages of a range, which then reads as zeros. Refused under [`Seals::WRITE`], and
    /// by some kernels under [`Seals::FUTURE_WRITE`].
    pub fn punch_hole(&self, offset: usize, len: usize) -> Result<()> {
        let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.fd, mode, offset as u64, len as u64)
            .context("fallocate", format!("to give back {len} bytes of memory"))
    }

    /// Returns the number of bytes of the file that are currently allocated.
    pub fn allocated_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::fstat(&self.fd).context("fstat", "a memfd")?;
        Ok(u64::try_from(stat.st_blocks).unwrap_or(0) * 512)
    }

    /// Adds `seals` to the file permanently.
    pub fn seal(&self, seals: Seals) -> Result<()> {
        rustix::fs::fcntl_add_seals(&self.fd, SealFlags::from_bits_retain(seals.0))
            .context("fcntl", "F_ADD_SEALS")
    }

    /// Returns the seals of the file. Fails for a descriptor that does not support sealing.
    pub fn seals(&self) -> Result<Seals> {
        let seals =
            rustix::fs::fcntl_get_seals(&self.fd).context("fcntl", "F_GET_SEALS: not a memfd?")?;
        Ok(Seals(seals.bits()))
    }

    /// Maps the whole file for reading and writing.
    pub fn map(&self) -> Result<Mapping> {
        Mapping::shared(self.fd.as_fd(), self.len, "a memfd")
    }

    /// Maps the whole file for reading.
    pub fn map_read(&self) -> Result<ReadMapping> {
        ReadMapping::shared(self.fd.as_fd(), 0, self.len, "a memfd")
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Memfd> for OwnedFd {
    fn from(file: Memfd) -> Self {
        file.fd
    }
}

/// A readable and writable mapping, unmapped on drop. Dereferences to [`ReadMapping`] for reads.
#[derive(Debug)]
pub struct Mapping(ReadMapping);

impl Deref for Mapping {
    type Target = ReadMapping;

    #[inline]
    fn deref(&self) -> &ReadMapping {
        &self.0
    }
}

impl Mapping {
    /// Creates a private anonymous mapping of `len` bytes, initially zero.
    pub fn anonymous(len: usize) -> Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint lets the kernel choose an unused range, so no memory of ours is
        // replaced.
        let base =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) };
        let base = address(base.context("mmap", format!("{len} bytes"))?)?;
        Ok(Self(ReadMapping(Span { base, len })))
    }

    /// Maps the first `len` bytes of a descriptor as shared memory. `what` names the memory in
    /// errors.
    pub(crate) fn shared(fd: BorrowedFd<'_>, len: usize, what: &str) -> Result<Self> {
        Self::shared_at_offset(fd, 0, len, what)
    }

    /// Maps like [`Mapping::shared`], but starting at `offset`.
    pub(crate) fn shared_at_offset(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        what: &str,
    ) -> Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        Ok(Self(ReadMapping(Span::shared(fd, offset, len, access, what)?)))
    }

    /// Faults in the pages of a range for writing.
    pub fn populate(&self, offset: usize, len: usize) -> Result<()> {
        self.0.0.advise(offset, len, Advice::LinuxPopulateWrite)
    }

    /// Asks the kernel to back the mapping with transparent huge pages.
    pub fn request_huge_pages(&self) -> Result<()> {
        self.0.0.advise(0, self.len(), Advice::LinuxHugepage)
    }
}

/// A read-only mapping, unmapped on drop.
#[derive(Debug)]
pub struct ReadMapping(Span);

impl ReadMapping {
    /// Maps `len` bytes of a descriptor, starting at `offset`, as shared memory, which other
    /// parties may write. `what` names the memory in errors.
    pub(crate) fn shared(fd: BorrowedFd<'_>, offset: u64, len: usize, what: &str) -> Result<Self> {
        Ok(Self(Span::shared(fd, offset, len, ProtFlags::READ, what)?))
    }

    /// Returns the address of the mapping's first byte, which is page-aligned.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.0.base
    }

    /// Returns the size of the mapping in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "the kernel maps no empty range")]
    pub const fn len(&self) -> usize {
        self.0.len
    }

    /// Makes the mapping writable. If the file's seals forbid writing, fails and unmaps the memory.
    pub fn into_writable(self) -> Result<Mapping> {
        let at = self.0.base.as_ptr().cast::<c_void>();
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the range is this mapping, which no other code uses at this time, because this
        // value owns it.
        let changed = unsafe { rustix::mm::mprotect(at, self.0.len, access) };
        changed.context("mprotect", format!("{} bytes", self.0.len))?;
        Ok(Mapping(self))
    }

    /// Faults in the pages of a range for reading.
    pub fn populate(&self, offset: usize, len: usize) -> Result<()> {
        self.0.advise(offset, len, Advice::LinuxPopulateRead)
    }
}

/// Memory in segments of equal size. Another party, such as the kernel, fills a segment, passes it
/// to this process, and takes it back after use.
///
/// # Safety
///
/// 1. The `segment_size() * segment_count()` bytes starting at `base()` must be page-aligned and
///    stay mapped for reading and writing as long as the value exists. The results of these three
///    methods must never change.
///
/// 2. After `has_arrived(slot)` has returned true, the other party must not write the segment until
///    `give_back(slot)` is called.
pub unsafe trait SegmentLender: Any + fmt::Debug + Send + Sync {
    /// Returns the address of the first byte of the first segment.
    fn base(&self) -> NonNull<u8>;
    /// Returns the size of a segment in bytes: a power of two, at least a page.
    fn segment_size(&self) -> usize;
    /// Returns the number of segments: a power of two.
    fn segment_count(&self) -> usize;
    /// Returns true if the other party has filled this segment and passed it to this process. Has
    /// Acquire ordering: all earlier writes of the other party are visible after this call.
    fn has_arrived(&self, slot: usize) -> bool;
    /// Returns an arrived segment to the other party. Has Release ordering: this process's earlier
    /// reads precede the other party's next writes.
    fn give_back(&self, slot: usize);
}

/// A mapped address range that this value owns and unmaps on drop.
#[derive(Debug)]
struct Span {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a span is an address and a length; the kernel lets any thread unmap or advise the range,
// and nothing here reads or writes the bytes.
unsafe impl Send for Span {}
// SAFETY: as above; no method changes the span through a shared reference.
unsafe impl Sync for Span {}

impl Span {
    fn shared(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        access: ProtFlags,
        what: &str,
    ) -> Result<Self> {
        // SAFETY: a null hint lets the kernel choose an unused range, so no memory of ours is
        // replaced (mmap(2): "if addr is NULL, then the kernel chooses").
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd, offset) };
        Ok(Self { base: address(base.context("mmap", format!("{len} bytes of {what}"))?)?, len })
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice) -> Result<()> {
        let end = offset.checked_add(len).filter(|&end| end <= self.len);
        if end.is_none() {
            return Err(crate::Error::new("madvise", "a range outside of it", libc::EINVAL));
        }
        let at = self.base.as_ptr().wrapping_add(offset).cast::<c_void>();
        // SAFETY: the range is in this mapping (checked above), and the kinds of advice used here
        // keep its contents (madvise(2): MADV_POPULATE_*, MADV_HUGEPAGE).
        let result = unsafe { rustix::mm::madvise(at, len, advice) };
        result.context("madvise", format!("{len} bytes"))
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // SAFETY: the range came from mmap, is unmapped only here, and all code that got its
        // address promised (in an unsafe block) not to use it longer than the owner lives.
        let gone = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(gone.is_ok(), "unmapping what was mapped");
    }
}

fn address(base: *mut c_void) -> Result<NonNull<u8>> {
    NonNull::new(base.cast::<u8>())
        .ok_or_else(|| crate::Error::new("mmap", "address 0", libc::EFAULT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memfd_keeps_size_and_seals() {
        let file = Memfd::create("sys-test", 8192).unwrap();
        assert_eq!(file.seals().unwrap(), Seals::NONE);
        let writable = file.map().unwrap();
        writable.populate(4096, 4096).unwrap();
        assert!(writable.populate(4096, 8192).is_err());
        file.seal(Seals::READER).unwrap();
        assert!(file.seals().unwrap().contains(Seals::READER));
        assert!(file.seal(Seals::WRITE).is_err(), "sealed against sealing");
        assert!(file.map().is_err(), "sealed against writing");
        assert!(file.map_read().unwrap().into_writable().is_err());
        let readable = file.map_read().unwrap();
        assert_eq!((writable.len(), readable.len()), (8192, 8192));
        let fd = file.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(Memfd::from_fd(fd).unwrap().len(), 8192);
    }

    #[test]
    fn writable_mapping_prevents_freezing() {
        let file = Memfd::create("sys-test", 4096).unwrap();
        let mapping = file.map_read().unwrap().into_writable().unwrap();
        assert_eq!(file.seal(Seals::FROZEN).unwrap_err().errno, libc::EBUSY);
        drop(mapping);
        testkit::wait_until("no child has a copy of the mapping", || {
            file.seal(Seals::FROZEN).is_ok()
        });
    }

    #[test]
    fn pipe_cannot_be_adopted_as_memfd() {
        let (read, _write) = rustix::pipe::pipe().unwrap();
        assert!(Memfd::from_fd(read).unwrap().seals().is_err());
    }
}
