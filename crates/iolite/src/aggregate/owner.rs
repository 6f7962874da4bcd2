//! Owners, which grant pools to other processes. [IOL §2.2, §2.3], [SL §8], CONTRACT 21
//!
//! Input: pools with access lists, peers with credentials. Output: a [`Grant`] (one descriptor of
//! sealed memory or of a file), or a [`GrantRefusal`] with the reason. Permission is checked only
//! when a pool is granted: a peer that has mapped a pool can read the entire pool. The receiver
//! maps a pool once and keeps the mapping ([`DbufWindow`]), so later data in the same pool needs no
//! system call. This corresponds to the paper's lazily built pool of mapped buffers.
//!
//! The process that created the pools owns them ([`PoolOwner`]) and handles requests at a
//! [`server`](super::server). A granted descriptor cannot be used to write or truncate the memory,
//! but the owner can still write through its own mapping: to the receiver the bytes are foreign,
//! and [`DbufWindow::copy`] copies them. The paper toggles the writer's permission for each buffer;
//! here, data that justifies a separate file can be [`FrozenData`] and is then read in place.

use super::holders::{Holders, PeerId};
use super::refusal::GrantRefusal;
use super::{Aggregate, AllocationPool, Error, FrozenData};
use crate::file::{self, CachedFile};
use abi::access::{AccessList, Credentials};
use abi::ring::PAGE_SIZE;
use abi::{DbufId, RichPointer};
use buffer::region::Region;
use buffer::{Fault, foreign_memory};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use sys::memory::{Memfd, Seals};

/// The authority that grants memory to peers.
pub trait MemoryOwner {
    /// Returns the grant that a permitted peer needs to map this dbuf. If the peer is refused,
    /// fails with the reason.
    fn grant(&mut self, dbuf: DbufId, peer: PeerId) -> Result<Grant, GrantRefusal>;
}

/// The owner of the pools created by this process.
#[derive(Debug)]
pub struct PoolOwner {
    pools: BTreeMap<DbufId, SharedPool>,
    files: BTreeMap<DbufId, CachedFile>,
    holders: Holders,
}

/// A pool or frozen data that its owner can grant to peers.
#[derive(Debug)]
struct SharedPool {
    access: Arc<AccessList>,
    file: OwnedFd,
}

impl PoolOwner {
    /// Creates an owner that shares no memory yet. Each of its peers may hold up to `limit`
    /// segments. A pool must have more segments than all peers together may hold; otherwise the
    /// peers can exhaust the pool (T8).
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self { pools: BTreeMap::new(), files: BTreeMap::new(), holders: Holders::new(limit) }
    }

    /// Makes a pool available for grants and seals its file, after which no new writable mapping
    /// can be created. Fails if the pool's id is in use or its memory is not a file.
    pub fn share(&mut self, pool: &AllocationPool) -> Result<(), GrantRefusal> {
        let dbuf = pool.pool().id();
        self.check_id_free(dbuf)?;
        let file = pool.pool().file().ok_or(GrantRefusal::NoFile(dbuf))?;
        if !file.seals()?.contains(Seals::READER) {
            file.seal(Seals::READER)?;
        }
        let shared = SharedPool {
            access: pool.access_list().clone(),
            file: duplicate_descriptor(file.as_fd())?,
        };
        self.pools.insert(dbuf, shared);
        Ok(())
    }

    /// Makes frozen data available for grants to users permitted by `access`. Fails if the data's
    /// id is in use or its memory is not a file.
    pub fn share_frozen(
        &mut self,
        frozen: &FrozenData,
        access: AccessList,
    ) -> Result<(), GrantRefusal> {
        let dbuf = frozen.dbuf();
        self.check_id_free(dbuf)?;
        let file = duplicate_descriptor(frozen.descriptor().ok_or(GrantRefusal::NoFile(dbuf))?)?;
        self.pools.insert(dbuf, SharedPool { access: Arc::new(access), file });
        Ok(())
    }

    /// Makes a file available for grants. At each request, the current mode of the file decides
    /// whether the requesting user may read it. Fails if the file's id is in use.
    pub fn share_file(&mut self, file: &CachedFile) -> Result<(), GrantRefusal> {
        self.check_id_free(file.id())?;
        self.files.insert(file.id(), file.clone());
        Ok(())
    }

    /// Makes memory or a file, which another owner has granted to this process, available for
    /// grants by this owner. Memory is granted to users permitted by `access`; for a file, the
    /// file's mode decides instead. Readers validate the memory themselves, as they do with any
    /// owner.
    pub(crate) fn share_granted(
        &mut self,
        grant: Grant,
        access: AccessList,
    ) -> Result<(), GrantRefusal> {
        let Grant { dbuf, file, kind } = grant;
        self.check_id_free(dbuf)?;
        match kind {
            MemoryKind::Memory => {
                self.pools.insert(dbuf, SharedPool { access: Arc::new(access), file });
            }
            MemoryKind::File => {
                let file = CachedFile::from_untrusted_descriptor(dbuf, file);
                self.files.insert(dbuf, file.map_err(|why| file_refusal(dbuf, why))?);
            }
        }
        Ok(())
    }

    /// Stops granting a pool or file. Peers that have mapped it keep their access (T11), so later
    /// data should be stored in a new pool. Returns false if the dbuf was not shared.
    pub fn withdraw(&mut self, dbuf: DbufId) -> bool {
        self.pools.remove(&dbuf).is_some() || self.files.remove(&dbuf).is_some()
    }

    /// Fails unless a peer may read all pools that contain slices of an aggregate (CONTRACT 21). A
    /// pool that is not shared is readable by no peer, not even by root.
    pub fn may_read(&self, aggregate: &Aggregate, peer: &Credentials) -> Result<(), GrantRefusal> {
        let mut checked = DbufId::HOLE;
        for slice in aggregate.slices() {
            let dbuf = slice.pointer().dbuf();
            if dbuf != checked {
                self.check_readable(dbuf, peer)?;
                checked = dbuf;
            }
        }
        Ok(())
    }

    /// Holds an aggregate for a peer, so that the aggregate's pointers can be sent to the peer.
    /// Fails if the peer may not read the aggregate, would exceed its limit, or has departed.
    pub fn lend(&mut self, aggregate: &Aggregate, peer: PeerId) -> Result<(), GrantRefusal> {
        let credentials = self.holders.credentials(peer).ok_or(GrantRefusal::UnknownPeer(peer))?;
        self.may_read(aggregate, credentials)?;
        self.holders.hold(peer, aggregate)
    }

    /// Returns the peers of this owner, with the segments that the owner holds for each.
    #[must_use]
    pub const fn holders(&self) -> &Holders {
        &self.holders
    }

    /// Returns the peers of this owner, with the segments that the owner holds for each, for
    /// modification.
    pub const fn holders_mut(&mut self) -> &mut Holders {
        &mut self.holders
    }

    fn check_id_free(&self, dbuf: DbufId) -> Result<(), GrantRefusal> {
        let taken = self.pools.contains_key(&dbuf) || self.files.contains_key(&dbuf);
        if taken { Err(GrantRefusal::Taken(dbuf)) } else { Ok(()) }
    }

    fn check_readable(
        &self,
        dbuf: DbufId,
        peer: &Credentials,
    ) -> Result<&SharedPool, GrantRefusal> {
        let shared = self.pools.get(&dbuf).ok_or(GrantRefusal::UnknownDbuf(dbuf))?;
        if shared.access.may_read(peer) {
            Ok(shared)
        } else {
            Err(GrantRefusal::Forbidden { dbuf, uid: peer.uid })
        }
    }
}

impl MemoryOwner for PoolOwner {
    fn grant(&mut self, dbuf: DbufId, peer: PeerId) -> Result<Grant, GrantRefusal> {
        let credentials = self.holders.credentials(peer).ok_or(GrantRefusal::UnknownPeer(peer))?;
        if let Some(file) = self.files.get(&dbuf) {
            let file = file.grant(credentials).map_err(|why| file_refusal(dbuf, why))?;
            return Ok(Grant { dbuf, file, kind: MemoryKind::File });
        }
        let shared = self.check_readable(dbuf, credentials)?;
        Ok(Grant {
            dbuf,
            file: duplicate_descriptor(shared.file.as_fd())?,
            kind: MemoryKind::Memory,
        })
    }
}

fn duplicate_descriptor(file: BorrowedFd<'_>) -> sys::Result<OwnedFd> {
    let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(0);
    file.try_clone_to_owned().map_err(|e| sys::Error::new("fcntl", "F_DUPFD_CLOEXEC", errno(e)))
}

/// Read access to the memory of a pool, or to a file.
#[derive(Debug)]
pub struct Grant {
    dbuf: DbufId,
    file: OwnedFd,
    kind: MemoryKind,
}

/// The kind of memory to which a grant gives access: sealed memory or a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// Memory of a pool or of frozen data, sealed against truncation.
    Memory,
    /// A file, which other processes may truncate and write.
    File,
}

impl Grant {
    /// Returns the id of the dbuf to which the grant gives access.
    #[must_use]
    pub const fn dbuf(&self) -> DbufId {
        self.dbuf
    }

    /// Returns the descriptor of the granted memory or file, to be sent to the peer.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Creates a grant of a pool or of frozen data from the descriptor received in reply to a
    /// request for this dbuf. The descriptor is not validated yet.
    #[must_use]
    pub const fn from_descriptor(dbuf: DbufId, file: OwnedFd) -> Self {
        Self { dbuf, file, kind: MemoryKind::Memory }
    }

    /// Creates a grant of a file from the descriptor received in reply to a request for this dbuf.
    /// The descriptor is not validated yet.
    #[must_use]
    pub const fn from_file_descriptor(dbuf: DbufId, file: OwnedFd) -> Self {
        Self { dbuf, file, kind: MemoryKind::File }
    }

    /// Returns the kind of memory to which the descriptor refers. The kind is sent along with the
    /// descriptor.
    #[must_use]
    pub const fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Maps a grant of frozen memory, whose first `length` bytes are data, for reading in place.
    /// Fails in the same cases as [`FrozenData::map`].
    pub fn into_frozen(self, length: usize) -> Result<FrozenData, GrantRefusal> {
        FrozenData::map(self.dbuf, self.file, length)
    }

    /// Maps sealed memory of a valid pool size, or wraps a regular file. Fails for anything else.
    fn map(self) -> Result<MappedDbuf, GrantRefusal> {
        if self.kind == MemoryKind::File {
            let file = CachedFile::from_untrusted_descriptor(self.dbuf, self.file);
            return file.map(MappedDbuf::File).map_err(|why| file_refusal(self.dbuf, why));
        }
        let file = Memfd::from_fd(self.file)?;
        let seals = file.seals()?;
        if !seals.contains(Seals::READER) {
            return Err(GrantRefusal::Unsealed { dbuf: self.dbuf, seals });
        }
        // The size was read before the seals; it is final now, so read it again.
        let file = Memfd::from_fd(file.into())?;
        if !file.len().is_power_of_two() || !(PAGE_SIZE..=MAPPED_SIZE_MAX).contains(&file.len()) {
            return Err(GrantRefusal::Size { dbuf: self.dbuf, is: file.len() });
        }
        Ok(MappedDbuf::Memory(Region::read_only(file.map_read()?)))
    }
}

/// Converts a reason why a file cannot be shared into the reason why the owner does not grant
/// `dbuf`.
fn file_refusal(dbuf: DbufId, why: file::FileRefusal) -> GrantRefusal {
    match why {
        file::FileRefusal::Forbidden { uid } => GrantRefusal::Forbidden { dbuf, uid },
        file::FileRefusal::System(error) => GrantRefusal::System(error),
        _ => GrantRefusal::NoFile(dbuf),
    }
}

/// Maximum size in bytes of a pool that can be mapped. It is far below the maximum position in a
/// rich pointer.
const MAPPED_SIZE_MAX: usize = 1 << 40;

/// The pools of other processes that this process has mapped. Each is mapped once, at its first
/// use. [IOL §2.2, §2.3, the IO-Lite window]
#[derive(Debug, Default)]
pub struct DbufWindow {
    views: BTreeMap<DbufId, MappedDbuf>,
}

/// A mapping of another process's dbuf.
#[derive(Debug)]
enum MappedDbuf {
    /// Memory of a pool: foreign bytes of constant size.
    Memory(Region),
    /// A file: foreign bytes of variable size.
    File(CachedFile),
}

impl DbufWindow {
    /// Creates a window in which no dbuf is mapped yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { views: BTreeMap::new() }
    }

    /// Maps granted memory. An existing mapping with the same id is kept, since owners do not reuse
    /// ids.
    pub fn admit(&mut self, grant: Grant) -> Result<(), GrantRefusal> {
        if let Entry::Vacant(place) = self.views.entry(grant.dbuf) {
            place.insert(grant.map()?);
        }
        Ok(())
    }

    /// Copies the bytes named by a pointer into `out`, which must have the pointer's length. Fails
    /// with [`Fault::UnknownDbuf`] if the dbuf is not mapped, so the caller must request a grant
    /// first. An honest owner does not change the bytes until the pointer is released.
    pub fn copy(&self, pointer: RichPointer, out: &mut [u8]) -> Result<(), Fault> {
        if pointer.is_hole() {
            return Err(Fault::Hole);
        }
        let (length, limit) = (pointer.length() as usize, out.len());
        if length != limit {
            return Err(Fault::TooLong { length, limit });
        }
        let view = self.views.get(&pointer.dbuf());
        let view = match view.ok_or_else(|| Fault::UnknownDbuf(pointer.dbuf()))? {
            MappedDbuf::Memory(memory) => memory,
            MappedDbuf::File(file) => return file.copy(pointer.place, out),
        };
        // Position p is stored at p modulo the pool size, which is a power of two.
        let at = pointer.place.position() & (view.len() as u64 - 1);
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        if at.saturating_add(length) > view.len() {
            return Err(Fault::CrossesSegment(pointer.place));
        }
        foreign_memory::copy_out(view.words(), at, out);
        Ok(())
    }

    /// Copies the bytes named by `pointers` into a pool of this process, as one aggregate, which is
    /// immutable. The caller can then release the pointers. Fails if a pointer is invalid, its dbuf
    /// is not mapped, or `pool` is full.
    pub fn receive(
        &self,
        pointers: &[RichPointer],
        pool: &mut AllocationPool,
    ) -> Result<Aggregate, Error> {
        let mut received = Aggregate::new();
        for pointer in pointers {
            let mut copied = Ok(());
            let block = pool.allocate(pointer.length() as usize, |room| {
                copied = self.copy(*pointer, room);
                room.len()
            })?;
            copied?;
            received.append(block)?;
        }
        Ok(received)
    }

    /// Returns true if this dbuf is mapped.
    #[must_use]
    pub fn is_mapped(&self, dbuf: DbufId) -> bool {
        self.views.contains_key(&dbuf)
    }

    /// Unmaps a dbuf. Returns false if the dbuf was not mapped.
    pub fn unmap(&mut self, dbuf: DbufId) -> bool {
        self.views.remove(&dbuf).is_some()
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
