//! Owners, which hand pools to other processes, and the grants by which they do. [IOL §2.2, §2.3],
//! [SL §8], CONTRACT 21
//!
//! In: pools with their access lists, peers with their credentials. Out: a [`Grant`] (one sealed
//! descriptor), or a [`GrantRefusal`] that says why. Permission is asked here and nowhere else,
//! when a pool is handed over: who has mapped it reads all of it. The receiver maps a pool once and
//! keeps it ([`Window`]), so data that comes later in the same pool costs no system call: the
//! lazily built pool of mapped buffers of the source.
//!
//! Here the process that made the pools owns them ([`Creator`]), and answers at a
//! [`server`](super::server). What it hands out is no way to
//! write, cut or empty the memory, but its own mapping still writes: to the receiver the bytes are
//! foreign, and [`Window::copy`] copies them. The source toggles the writer's permission for each
//! buffer; what is worth a file of its own can be [`Frozen`], and is then looked at in place.

use super::holders::{Holders, PeerId};
use super::refusal::GrantRefusal;
use super::{Aggregate, AllocationPool, Error, Frozen};
use crate::file::{self, CachedFile};
use abi::access::{AccessList, Credentials};
use abi::ring::PAGE;
use abi::{DbufId, RichPointer};
use buffer::region::Region;
use buffer::{Fault, foreign};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use sys::memory::{Memfd, Seals};

/// Decides who gets which memory.
pub trait Owner {
    /// Returns the grant by which a permitted peer maps this dbuf.
    fn grant(&mut self, dbuf: DbufId, peer: PeerId) -> Result<Grant, GrantRefusal>;
}

/// The owner of the pools that this process made.
#[derive(Debug)]
pub struct Creator {
    pools: BTreeMap<DbufId, SharedPool>,
    files: BTreeMap<DbufId, CachedFile>,
    holders: Holders,
}

/// A pool that can be granted.
#[derive(Debug)]
struct SharedPool {
    access: Arc<AccessList>,
    file: OwnedFd,
}

impl Creator {
    /// Owns nothing yet; each peer will keep up to `limit` segments from being used again. A pool
    /// needs more of them than its peers together may keep, or one peer stops it (T8).
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self { pools: BTreeMap::new(), files: BTreeMap::new(), holders: Holders::new(limit) }
    }

    /// Makes a pool one that can be granted, and seals it: from here on there is no new way to
    /// write it.
    pub fn share(&mut self, pool: &AllocationPool) -> Result<(), GrantRefusal> {
        let dbuf = pool.pool().id();
        self.is_free(dbuf)?;
        let file = pool.pool().file().ok_or(GrantRefusal::NoFile(dbuf))?;
        if !file.seals()?.has(Seals::READER) {
            file.seal(Seals::READER)?;
        }
        let shared = SharedPool { access: pool.access().clone(), file: copy(file.as_fd())? };
        self.pools.insert(dbuf, shared);
        Ok(())
    }

    /// Makes frozen data such that can be granted, to whom this list lets read.
    pub fn share_frozen(
        &mut self,
        frozen: &Frozen,
        access: AccessList,
    ) -> Result<(), GrantRefusal> {
        let dbuf = frozen.dbuf();
        self.is_free(dbuf)?;
        let file = copy(frozen.descriptor().ok_or(GrantRefusal::NoFile(dbuf))?)?;
        self.pools.insert(dbuf, SharedPool { access: Arc::new(access), file });
        Ok(())
    }

    /// Makes a file one that can be granted, to whom its own mode lets read when it is asked for.
    pub fn share_file(&mut self, file: &CachedFile) -> Result<(), GrantRefusal> {
        self.is_free(file.id())?;
        self.files.insert(file.id(), file.clone());
        Ok(())
    }

    /// Grants a pool or file no more. Who has it already keeps it (T11): later data belongs in a
    /// new pool.
    pub fn withdraw(&mut self, dbuf: DbufId) -> bool {
        self.pools.remove(&dbuf).is_some() || self.files.remove(&dbuf).is_some()
    }

    /// Checks that a peer may read every pool that a slice of the aggregate lies in (CONTRACT 21).
    /// A pool that is not shared may be read by no peer, not even root.
    pub fn may_read(&self, aggregate: &Aggregate, peer: &Credentials) -> Result<(), GrantRefusal> {
        let mut asked = DbufId::HOLE;
        for slice in aggregate.slices() {
            let dbuf = slice.pointer().dbuf();
            if dbuf != asked {
                self.readable(dbuf, peer)?;
                asked = dbuf;
            }
        }
        Ok(())
    }

    /// Keeps an aggregate for a peer, if it may read it; then its pointers can be sent.
    pub fn lend(&mut self, aggregate: &Aggregate, peer: PeerId) -> Result<(), GrantRefusal> {
        let credentials = self.holders.credentials(peer).ok_or(GrantRefusal::UnknownPeer(peer))?;
        self.may_read(aggregate, credentials)?;
        self.holders.hold(peer, aggregate)
    }

    /// The peers, and what they keep.
    #[must_use]
    pub const fn holders(&self) -> &Holders {
        &self.holders
    }

    /// The peers: who joins, what they give back, who is gone.
    pub const fn holders_mut(&mut self) -> &mut Holders {
        &mut self.holders
    }

    fn is_free(&self, dbuf: DbufId) -> Result<(), GrantRefusal> {
        let taken = self.pools.contains_key(&dbuf) || self.files.contains_key(&dbuf);
        if taken { Err(GrantRefusal::Taken(dbuf)) } else { Ok(()) }
    }

    fn readable(&self, dbuf: DbufId, peer: &Credentials) -> Result<&SharedPool, GrantRefusal> {
        let shared = self.pools.get(&dbuf).ok_or(GrantRefusal::UnknownDbuf(dbuf))?;
        if shared.access.may_read(peer) {
            Ok(shared)
        } else {
            Err(GrantRefusal::Forbidden { dbuf, uid: peer.uid })
        }
    }
}

impl Owner for Creator {
    fn grant(&mut self, dbuf: DbufId, peer: PeerId) -> Result<Grant, GrantRefusal> {
        let credentials = self.holders.credentials(peer).ok_or(GrantRefusal::UnknownPeer(peer))?;
        if let Some(file) = self.files.get(&dbuf) {
            let file = file.grant(credentials).map_err(|why| of_file(dbuf, why))?;
            return Ok(Grant { dbuf, file, kind: MemoryKind::File });
        }
        let shared = self.readable(dbuf, credentials)?;
        Ok(Grant { dbuf, file: copy(shared.file.as_fd())?, kind: MemoryKind::Memory })
    }
}

fn copy(file: BorrowedFd<'_>) -> sys::Result<OwnedFd> {
    let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(0);
    file.try_clone_to_owned().map_err(|e| sys::Error::new("fcntl", "F_DUPFD_CLOEXEC", errno(e)))
}

/// The memory of a pool, or a file, granted for reading.
#[derive(Debug)]
pub struct Grant {
    dbuf: DbufId,
    file: OwnedFd,
    kind: MemoryKind,
}

/// The sort of granted memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// Memory, sealed.
    Memory,
    /// A file, which others may cut and write.
    File,
}

impl Grant {
    /// Returns the id of the dbuf.
    #[must_use]
    pub const fn dbuf(&self) -> DbufId {
        self.dbuf
    }

    /// The descriptor that is sent.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// A grant that was received as the answer to the question for this dbuf. It proves nothing
    /// yet.
    #[must_use]
    pub const fn from_descriptor(dbuf: DbufId, file: OwnedFd) -> Self {
        Self { dbuf, file, kind: MemoryKind::Memory }
    }

    /// As [`Grant::from_descriptor`], of what is said to be a file.
    #[must_use]
    pub const fn of_file(dbuf: DbufId, file: OwnedFd) -> Self {
        Self { dbuf, file, kind: MemoryKind::File }
    }

    /// Returns the sort of memory behind the descriptor; the receiver must be sent it too.
    #[must_use]
    pub const fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Maps a grant of frozen memory, of which the first `length` bytes are data: it is read
    /// without a copy.
    pub fn frozen(self, length: usize) -> Result<Frozen, GrantRefusal> {
        Frozen::map(self.dbuf, self.file, length)
    }

    /// Maps memory if nobody can cut or empty it any more, and its size is one that a pool can
    /// have; a file if it is one.
    fn map(self) -> Result<MappedPool, GrantRefusal> {
        if self.kind == MemoryKind::File {
            let file = CachedFile::received(self.dbuf, self.file);
            return file.map(MappedPool::File).map_err(|why| of_file(self.dbuf, why));
        }
        let file = Memfd::from_fd(self.file)?;
        let seals = file.seals()?;
        if !seals.has(Seals::READER) {
            return Err(GrantRefusal::Unsealed { dbuf: self.dbuf, seals });
        }
        // Its size was read before the seals; now that it cannot change any more, it is read again.
        let file = Memfd::from_fd(file.into())?;
        if !file.len().is_power_of_two() || !(PAGE..=SIZE_MAX).contains(&file.len()) {
            return Err(GrantRefusal::Size { dbuf: self.dbuf, is: file.len() });
        }
        Ok(MappedPool::Memory(Region::reading(file.map_read()?)))
    }
}

/// A refusal of a file as one of a dbuf.
fn of_file(dbuf: DbufId, why: file::Refusal) -> GrantRefusal {
    match why {
        file::Refusal::Forbidden { uid } => GrantRefusal::Forbidden { dbuf, uid },
        file::Refusal::System(error) => GrantRefusal::System(error),
        _ => GrantRefusal::NoFile(dbuf),
    }
}

/// The largest pool that is mapped: far less than the positions that a rich pointer tells apart.
const SIZE_MAX: usize = 1 << 40;

/// The pools of others that this process has mapped: each once, when it was first needed.
/// [IOL §2.2, §2.3, the IO-Lite window]
#[derive(Debug, Default)]
pub struct Window {
    views: BTreeMap<DbufId, MappedPool>,
}

/// A mapping of another process's dbuf.
#[derive(Debug)]
enum MappedPool {
    /// Memory of a pool: foreign bytes of a size that stays.
    Memory(Region),
    /// A file: not even that.
    File(CachedFile),
}

impl Window {
    /// Nothing is mapped.
    #[must_use]
    pub const fn new() -> Self {
        Self { views: BTreeMap::new() }
    }

    /// Maps what was granted. What was mapped before under the same id stays: its owner gives no id
    /// twice.
    pub fn admit(&mut self, grant: Grant) -> Result<(), GrantRefusal> {
        if let Entry::Vacant(place) = self.views.entry(grant.dbuf) {
            place.insert(grant.map()?);
        }
        Ok(())
    }

    /// Copies the bytes that a pointer names into `out`, which must be as long as the view.
    /// [`Fault::UnknownDbuf`] says that a grant must be asked for. The bytes are those that the
    /// owner sent as long as the pointer has not been given back to it.
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
            MappedPool::Memory(memory) => memory,
            MappedPool::File(file) => return file.copy(pointer.place, out),
        };
        // A position lies at its value modulo the size of the pool, which is a power of two.
        let at = pointer.place.position() & (view.len() as u64 - 1);
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        if at.saturating_add(length) > view.len() {
            return Err(Fault::CrossesSegment(pointer.place));
        }
        foreign::copy_out(view.words(), at, out);
        Ok(())
    }

    /// Copies what these pointers name into a pool of our own, as one aggregate: what was another's
    /// to change is immutable from here on, and the pointers can be given back.
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

    /// Returns true if a pool is mapped.
    #[must_use]
    pub fn has(&self, dbuf: DbufId) -> bool {
        self.views.contains_key(&dbuf)
    }

    /// Unmaps a pool; `false`: it was not mapped.
    pub fn forget(&mut self, dbuf: DbufId) -> bool {
        self.views.remove(&dbuf).is_some()
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
