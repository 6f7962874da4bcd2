//! A file in the page cache as a dbuf: read-only, of any size, filled by page faults.
//! [SL §5.3.3, §5.5], CONTRACT 26
//!
//! ```text
//! rich pointer   dbuf 9 | position 5 000 000 000 | length 4096      the offset is the position
//!                   |
//! CachedFile     ...█████████████████████....        pages of the kernel's cache, in no order
//!                   |               |
//!                 pread            write, writev, vmsplice of the mapped address
//!                   |               |
//!                 a local copy     another file, pipe or socket, without a local copy
//! ```
//!
//! Input: the descriptor of a regular file. Output: copies ([`CachedFile::copy`],
//! [`FileReader::read`]), and transfers from the cache to another descriptor
//! ([`CachedFile::splice`]). The mapping is created once and kept, because creating it for each use
//! would cost as much as it saves (BASELINES, file side).
//!
//! A file is *foreign memory*: other processes may truncate it (reading the mapping then raises
//! SIGBUS) and write to it. For this reason, no reference to the bytes of a file exists. Only `sys`
//! has the address of the mapping, and passes it to system calls, which fail with EFAULT if the
//! page is missing. The target of a rich pointer may change before it is read, so (dbuf, position)
//! is not a content id of a file. For bytes that never change, use a sealed copy
//! ([`FrozenData::read`](crate::aggregate::FrozenData::from_reader)).
//!
//! Peers receive a read-only descriptor if the mode of the file permits it at the time of the
//! request ([`CachedFile::grant`]); afterwards the peers read the current contents, as with any
//! open file.

mod reader;
mod splice;

pub use reader::FileReader;
pub use splice::{SpliceCall, TransferResult};

use abi::access::{AccessList, Credentials};
use abi::{BLOCK_LENGTH_MAX, Class, DbufId, Extent, RichPointer};
use buffer::Fault;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use sys::file::{AccessMode, FileKind, FileMapping};

/// A file as a dbuf. Clones share the same mapping.
#[derive(Clone, Debug)]
pub struct CachedFile {
    inner: Arc<CachedFileState>,
}

#[derive(Debug)]
struct CachedFileState {
    id: DbufId,
    /// Descriptor of the file, open for reading only.
    file: OwnedFd,
    /// True if a seal prevents truncation of the file.
    cannot_be_truncated: bool,
    view: RwLock<FileView>,
}

/// The current mapping of a file, and the file size at the last check.
#[derive(Clone, Debug, Default)]
struct FileView {
    /// The mapping, or `None` if the file is empty or cannot be mapped.
    mapping: Option<Arc<FileMapping>>,
    /// File size at the last check, in bytes.
    size: u64,
}

impl CachedFile {
    /// Opens a file for reading. `id` must be unique. Fails unless the file is a regular file.
    pub fn open(id: DbufId, path: impl AsRef<Path>) -> Result<Self, FileRefusal> {
        let target = || path.as_ref().display().to_string();
        let file = sys::open::RegularOpenOptions::read().open(&path).map_err(|e| {
            match e.raw_os_error() {
                Some(errno) => sys::Error::new("open", target(), errno).into(),
                None => FileRefusal::NotRegularFile,
            }
        })?;
        Self::from_descriptor(id, file.into())
    }

    /// Wraps a descriptor that this process has opened. Fails unless the descriptor refers to a
    /// regular file open for reading. If the file is also open for writing, reopens the file
    /// read-only, so that grants never include write access.
    pub fn from_descriptor(id: DbufId, file: OwnedFd) -> Result<Self, FileRefusal> {
        if sys::file::status(&file)?.kind != FileKind::Regular {
            return Err(FileRefusal::NotRegularFile);
        }
        let file = match sys::file::access_mode(&file)? {
            AccessMode::Read => file,
            AccessMode::ReadWrite => sys::file::reopen_read_only(file.as_fd())?,
            AccessMode::NotReadable => return Err(FileRefusal::NotReadable),
        };
        let cannot_be_truncated = sys::file::has_shrink_seal(&file);
        let inner = CachedFileState { id, file, cannot_be_truncated, view: RwLock::default() };
        let cached = Self { inner: Arc::new(inner) };
        cached.refresh_view()?;
        Ok(cached)
    }

    /// Wraps a descriptor received from a peer, which is not trusted. Fails for anything but a
    /// regular file, and for files in user-space file systems, which could block readers forever.
    pub fn from_untrusted_descriptor(id: DbufId, file: OwnedFd) -> Result<Self, FileRefusal> {
        if sys::file::is_on_fuse(&file)? {
            return Err(FileRefusal::InUserSpace);
        }
        Self::from_descriptor(id, file)
    }

    /// Returns the id by which rich pointers refer to this file.
    #[must_use]
    pub fn id(&self) -> DbufId {
        self.inner.id
    }

    /// Returns the current file size in bytes.
    pub fn size(&self) -> Result<u64, FileRefusal> {
        Ok(self.refresh_view()?.size)
    }

    /// Returns a pointer to `length` bytes at offset `at` of the file, but to at most
    /// [`BLOCK_LENGTH_MAX`] bytes. The range is not checked against the size of the file.
    #[must_use]
    pub fn pointer(&self, at: u64, length: usize) -> RichPointer {
        let length = u32::try_from(length.min(BLOCK_LENGTH_MAX)).unwrap_or(0);
        RichPointer::new(self.inner.id, Extent::new(at, length), Class::YES)
    }

    /// Copies the bytes of an extent into `out`, which must have the same length. Fails with
    /// [`Fault::OutOfWindow`] if the file ends before the end of the extent or cannot be read.
    pub fn copy(&self, place: Extent, out: &mut [u8]) -> Result<(), Fault> {
        let (length, limit) = (place.length() as usize, out.len());
        if length != limit {
            return Err(Fault::TooLong { length, limit });
        }
        match sys::file::read_at(&self.inner.file, place.position(), out) {
            Ok(count) if count == length => Ok(()),
            _ => Err(Fault::OutOfWindow(place)),
        }
    }

    /// Copies bytes at offset `at` into `out`, like `pread(2)`. Returns the number of bytes copied,
    /// which is 0 beyond the end of the file.
    pub fn read_at(&self, at: u64, out: &mut [u8]) -> Result<usize, FileRefusal> {
        Ok(sys::file::read_at(&self.inner.file, at, out)?)
    }

    /// Reads the bytes of an extent from disk and maps their pages now, instead of by page faults
    /// at their first use. Does nothing if the file is not mapped.
    pub fn populate(&self, place: Extent) -> Result<(), FileRefusal> {
        let view = self.view(place.position().saturating_add(place.length().into()))?;
        match (view.mapping, usize::try_from(place.position())) {
            (Some(mapping), Ok(at)) => Ok(mapping.populate(at, place.length() as usize)?),
            _ => Ok(()),
        }
    }

    /// Returns a descriptor for a peer that may read the file. The file's current mode and owner
    /// decide, not the rights of this process. If the file has an access control list, which cannot
    /// be evaluated for another user, only the owner and root get a descriptor.
    pub fn grant(&self, peer: &Credentials) -> Result<OwnedFd, FileRefusal> {
        let status = sys::file::status(&self.inner.file)?;
        let has_list = sys::file::has_access_list(&self.inner.file);
        let mode = if has_list { status.mode & OWNER_READ } else { status.mode };
        if !AccessList::new(status.uid, status.gid, mode).may_read(peer) {
            return Err(FileRefusal::Forbidden { uid: peer.uid });
        }
        self.descriptor()
            .try_clone_to_owned()
            .map_err(|e| system_refusal("fcntl", e.raw_os_error().unwrap_or(0)))
    }

    /// Returns the read-only descriptor of the file.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }

    /// Returns the mapping of the file and the file size. `end` is the end of the range that the
    /// caller needs. If it exceeds the size at the last check, checks the size again, and remaps
    /// the file if it has grown.
    fn view(&self, end: u64) -> Result<FileView, FileRefusal> {
        let view = self.inner.view.read().unwrap_or_else(PoisonError::into_inner).clone();
        if end <= view.size { Ok(view) } else { self.refresh_view() }
    }

    /// Updates the file size, and remaps the file if it has grown beyond the mapping. Returns the
    /// mapping and the file size.
    fn refresh_view(&self) -> Result<FileView, FileRefusal> {
        let size = sys::file::status(&self.inner.file)?.size;
        let known = self.inner.view.read().unwrap_or_else(PoisonError::into_inner);
        if known.size == size {
            return Ok(known.clone());
        }
        drop(known);
        let mut view = self.inner.view.write().unwrap_or_else(PoisonError::into_inner);
        view.size = size;
        let is_mapped = |mapping: &Arc<FileMapping>| mapping.len() as u64 >= size;
        if !view.mapping.as_ref().is_some_and(is_mapped) {
            view.mapping = self.map(size);
        }
        Ok(view.clone())
    }

    /// Maps the file with its size rounded up to a power of two, so that a growing file is seldom
    /// remapped. The old mapping lives until the last system call that uses it has returned.
    /// Returns `None` if the file cannot be mapped.
    fn map(&self, size: u64) -> Option<Arc<FileMapping>> {
        let room = size.checked_next_power_of_two()?.max(MAPPING_SIZE_MIN);
        let mapped = |len: u64| {
            FileMapping::map(&self.inner.file, usize::try_from(len).ok()?).map(Arc::new).ok()
        };
        (size > 0).then(|| mapped(room).or_else(|| mapped(size)))?
    }
}

/// Minimum size of a mapping in bytes; unused address space costs nothing.
const MAPPING_SIZE_MIN: u64 = 1 << 16;
/// Mode bit of a file that permits its owner to read.
const OWNER_READ: u32 = 0o400;

fn system_refusal(call: &'static str, errno: i32) -> FileRefusal {
    FileRefusal::System(sys::Error::new(call, "a file", errno))
}

/// Reason why a file cannot be a dbuf, or is not readable by a peer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FileRefusal {
    /// The descriptor refers to a directory, pipe, socket or device.
    #[error("not a regular file: read it through a stream")]
    NotRegularFile,
    /// The descriptor is not open for reading.
    #[error("the file is not open for reading")]
    NotReadable,
    /// The file is in a user-space file system, possibly of an untrusted user.
    #[error(
        "the file is in a user-space file system, which may block readers for ever: ask for a copy"
    )]
    InUserSpace,
    /// The mode of the file denies this user read access.
    #[error("user {uid} may not read this file")]
    Forbidden {
        /// User ID of the peer that may not read the file.
        uid: u32,
    },
    /// The file was truncated during a transfer.
    #[error(
        "the file was truncated while it was sent: of {sent} bytes only the first {valid} are its \
         contents"
    )]
    Truncated {
        /// Number of bytes that the transfer wrote to its target.
        sent: usize,
        /// Number of transferred bytes that are file contents. They come first; the remaining
        /// transferred bytes are zeros.
        valid: usize,
    },
    /// A system call failed.
    #[error("{0}")]
    System(#[from] sys::Error),
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
