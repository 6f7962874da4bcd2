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
//!                 a copy for us    another file, pipe or socket: no byte passes through us
//! ```
//!
//! In: a descriptor of a regular file. Out: copies ([`CachedFile::copy`], [`FileReader::read`]),
//! and bytes handed from the cache to another descriptor ([`CachedFile::splice`]). The mapping is
//! made once and kept, because to make one for each use costs what it saves (BASELINES, file side).
//!
//! A file is *foreign memory*: others cut it (who reads the mapping then dies of SIGBUS) and write
//! it. So there is no reference to its bytes, and no way to make one: the address of the mapping is
//! known to `sys` alone, which hands it to system calls; these answer EFAULT. What was named by a
//! rich pointer may be something else when it is read: (dbuf, position) is no content id here. Who
//! needs bytes that stay takes a sealed copy ([`Frozen::read`](crate::aggregate::Frozen::read)).
//!
//! Peers get a descriptor that cannot write, if the mode of the file lets them read when they ask
//! ([`CachedFile::grant`]); from then on they read what the file contains, as with any open file.

mod reader;
mod splice;

pub use reader::FileReader;
pub use splice::{Sent, SpliceCall};

use abi::access::{AccessList, Credentials};
use abi::{BLOCK_MAX, Class, DbufId, Extent, RichPointer};
use buffer::Fault;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use sys::file::{Access, FileKind, FileMapping};

/// A file as a dbuf. Clones are the same file with the same mapping.
#[derive(Clone, Debug)]
pub struct CachedFile {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    id: DbufId,
    /// Opened for reading and for nothing else.
    file: OwnedFd,
    /// True if a seal keeps the file from being cut.
    is_uncut: bool,
    view: RwLock<FileView>,
}

/// The mapping of a file.
#[derive(Clone, Debug, Default)]
struct FileView {
    /// None for a file that has no bytes, or that cannot be mapped.
    mapping: Option<Arc<FileMapping>>,
    /// Bytes that the file had when we last looked.
    size: u64,
}

impl CachedFile {
    /// Opens a file. `id` is one that no other dbuf has.
    pub fn open(id: DbufId, path: impl AsRef<Path>) -> Result<Self, Refusal> {
        let target = || path.as_ref().display().to_string();
        let file =
            sys::open::OpenRegular::read().open(&path).map_err(|e| match e.raw_os_error() {
                Some(errno) => sys::Error::new("open", target(), errno).into(),
                None => Refusal::NoFile,
            })?;
        Self::of(id, file.into())
    }

    /// Takes a descriptor that we opened ourselves. One that can write is opened anew, so that
    /// nobody gets a way to write.
    pub fn of(id: DbufId, file: OwnedFd) -> Result<Self, Refusal> {
        if sys::file::status(&file)?.kind != FileKind::Regular {
            return Err(Refusal::NoFile);
        }
        let file = match sys::file::access(&file)? {
            Access::Read => file,
            Access::ReadWrite => sys::file::reopen_read_only(file.as_fd())?,
            Access::None => return Err(Refusal::Unreadable),
        };
        let is_uncut = sys::file::cannot_shrink(&file);
        let inner = Inner { id, file, is_uncut, view: RwLock::default() };
        let cached = Self { inner: Arc::new(inner) };
        cached.look()?;
        Ok(cached)
    }

    /// Takes a descriptor that somebody sent. It is an allegation: what is no regular file, or lies
    /// in a file system that any user may stand behind, who could let us wait for ever, is refused.
    pub fn received(id: DbufId, file: OwnedFd) -> Result<Self, Refusal> {
        if sys::file::is_in_user_space(&file)? {
            return Err(Refusal::InUserSpace);
        }
        Self::of(id, file)
    }

    /// The id by which rich pointers name this file.
    #[must_use]
    pub fn id(&self) -> DbufId {
        self.inner.id
    }

    /// Bytes that the file has now.
    pub fn size(&self) -> Result<u64, Refusal> {
        Ok(self.look()?.size)
    }

    /// The pointer to up to [`BLOCK_MAX`] bytes from `at` on. It proves nothing, as any.
    #[must_use]
    pub fn pointer(&self, at: u64, length: usize) -> RichPointer {
        let length = u32::try_from(length.min(BLOCK_MAX)).unwrap_or(0);
        RichPointer::new(self.inner.id, Extent::new(at, length), Class::YES)
    }

    /// Copies the bytes that a place names into `out`, which must be as long.
    /// [`Fault::OutOfWindow`]: the file is not (or no longer) as long.
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

    /// Copies what is there from `at` on, as `pread(2)` does; 0 behind the end.
    pub fn read_at(&self, at: u64, out: &mut [u8]) -> Result<usize, Refusal> {
        Ok(sys::file::read_at(&self.inner.file, at, out)?)
    }

    /// Has these bytes read from the disk and mapped now, and not page by page when they are used.
    pub fn populate(&self, place: Extent) -> Result<(), Refusal> {
        let view = self.view(place.position().saturating_add(place.length().into()))?;
        match (view.mapping, usize::try_from(place.position())) {
            (Some(mapping), Ok(at)) => Ok(mapping.populate(at, place.length() as usize)?),
            _ => Ok(()),
        }
    }

    /// The descriptor for a peer, if the file may be read by it now: the mode and the owner that
    /// the file has at this moment decide, not how we opened it. Where an access control list says
    /// more than they do, which cannot be asked in somebody else's name, only owner and root get
    /// it.
    pub fn grant(&self, peer: &Credentials) -> Result<OwnedFd, Refusal> {
        let status = sys::file::status(&self.inner.file)?;
        let has_list = sys::file::has_access_list(&self.inner.file);
        let mode = if has_list { status.mode & OWNER } else { status.mode };
        if !AccessList::new(status.uid, status.gid, mode).may_read(peer) {
            return Err(Refusal::Forbidden { uid: peer.uid });
        }
        self.descriptor()
            .try_clone_to_owned()
            .map_err(|e| system("fcntl", e.raw_os_error().unwrap_or(0)))
    }

    /// The file itself: it can be read and not written.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }

    /// Returns the mapping, made anew if it does not reach to `end`.
    fn view(&self, end: u64) -> Result<FileView, Refusal> {
        let view = self.inner.view.read().unwrap_or_else(PoisonError::into_inner).clone();
        if end <= view.size { Ok(view) } else { self.look() }
    }

    /// Looks how long the file is, and maps what is new of it.
    fn look(&self) -> Result<FileView, Refusal> {
        let size = sys::file::status(&self.inner.file)?.size;
        let seen = self.inner.view.read().unwrap_or_else(PoisonError::into_inner);
        if seen.size == size {
            return Ok(seen.clone());
        }
        drop(seen);
        let mut view = self.inner.view.write().unwrap_or_else(PoisonError::into_inner);
        view.size = size;
        let is_mapped = |mapping: &Arc<FileMapping>| mapping.len() as u64 >= size;
        if !view.mapping.as_ref().is_some_and(is_mapped) {
            view.mapping = self.map(size);
        }
        Ok(view.clone())
    }

    /// A mapping with room for as much again, so that a file that grows is mapped seldom. The old
    /// one lives until the last system call with it has come back.
    fn map(&self, size: u64) -> Option<Arc<FileMapping>> {
        let room = size.checked_next_power_of_two()?.max(ROOM_MIN);
        let mapped = |len: u64| {
            FileMapping::map(&self.inner.file, usize::try_from(len).ok()?).map(Arc::new).ok()
        };
        (size > 0).then(|| mapped(room).or_else(|| mapped(size)))?
    }
}

/// So much is mapped of a shorter file: an address costs nothing.
const ROOM_MIN: u64 = 1 << 16;
/// The bit that lets the owner read.
const OWNER: u32 = 0o400;

fn system(call: &'static str, errno: i32) -> Refusal {
    Refusal::System(sys::Error::new(call, "a file", errno))
}

/// The reason for which a file is no dbuf, or not readable by a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It is a directory, a pipe, a socket or a device.
    NoFile,
    /// The descriptor was not opened for reading.
    Unreadable,
    /// Its file system is a program that any user may have started.
    InUserSpace,
    /// The mode of the file does not let this user read it.
    Forbidden {
        /// The user.
        uid: u32,
    },
    /// The file was cut while its bytes were handed on.
    Cut {
        /// Bytes that were handed on.
        sent: usize,
        /// The first of them that are what the file contained: what follows are zeros.
        good: usize,
    },
    /// The kernel refused a call.
    System(sys::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile => f.write_str("not a regular file: read it through a stream"),
            Self::Unreadable => f.write_str("the file is not open for reading"),
            Self::InUserSpace => f.write_str(
                "the file lies in a file system in user space, which may let readers wait for \
                 ever: ask for a copy",
            ),
            Self::Forbidden { uid } => write!(f, "user {uid} may not read this file"),
            Self::Cut { sent, good } => write!(
                f,
                "the file was cut while it was sent: of {sent} bytes the first {good} are its own"
            ),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System(error) => Some(error),
            _ => None,
        }
    }
}

impl From<sys::Error> for Refusal {
    fn from(error: sys::Error) -> Self {
        Self::System(error)
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
