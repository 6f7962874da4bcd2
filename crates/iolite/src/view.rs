//! Memory of others that is mapped here, and the space's translation of rich pointers into it.
//! [SL §5.3.1, "buffer fault", cached translation]
//!
//! In: rich pointers out of rings, which are allegations. Out: copies, or bytes in place, or the
//! [`Fault`] that says what is wrong. A [`Space`] knows the owners that it may ask and what it has
//! mapped; each reader has a [`Translation`] of its own, a small table that answers without a lock
//! and without a call.
//!
//! ```text
//! pointer ── Translation (16 lines) ── Space (a map) ── owner's grant server (a socket)
//!             every pointer              a miss           a buffer fault: once for each dbuf
//! ```
//!
//! Why `&[u8]` is allowed on memory that another process may have mapped for writing. Invariants,
//! cited below:
//! - V1 A view maps a file whose size can never change, which the kernel said ([`View::admit`]): an
//!   offset below its length is memory as long as the view lives.
//! - V2 Of a view that is *frozen* the kernel said that nobody can write it any more, for ever.
//! - V3 A view is *trusted* if its space trusts and the kernel says that its owner runs under our
//!   own user, or under root. Such a process may write our memory as it likes (ptrace(2), or as
//!   root): so to rely on it gives nobody a power that it does not have (RELIABILITY, threat
//!   model). It keeps the rules of `pool`: what was shown is written again only after it was
//!   released (M1 to M4).
//! - V4 All other bytes are foreign: they are copied (`foreign`), and no reference is made.
//! - V5 A file, which others may cut at any moment, is not even mapped here: it is read by system
//!   calls, and what they do not give is a fault (CONTRACT 26).

use crate::aggregate::GrantRefusal;
use crate::aggregate::owner::{Grant, MemoryKind};
use crate::aggregate::server::Client;
use crate::file::CachedFile;
use abi::ring::PAGE;
use abi::{DbufId, Extent, RichPointer};
use buffer::region::Region;
use buffer::trust::Trusted;
use buffer::{Fault, foreign};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sys::memory::{Memfd, Seals};

mod translation;

pub(crate) use translation::{BackOff, Translation};

/// The foreign memory of a space: the owners that it asks, and its mappings. Clones are the same
/// space.
///
/// Ids of dbufs must be unique among the owners of one space; they are asked in the order in which
/// they were introduced, and the first that has the dbuf decides.
#[derive(Clone, Debug, Default)]
pub struct Space(Arc<SharedSpace>);

#[derive(Debug, Default)]
struct SharedSpace {
    known: Mutex<KnownOwners>,
    trusts: bool,
}

#[derive(Debug, Default)]
struct KnownOwners {
    owners: Vec<Client>,
    views: BTreeMap<DbufId, Arc<View>>,
    faults: Faults,
}

/// Counts of the questions that a space asked its owners. [SL §5.3.1]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Dbufs that were mapped on demand.
    pub mapped: u64,
    /// Questions that were answered by no.
    pub refused: u64,
}

/// The most dbufs that a space maps (RELIABILITY T12).
const VIEWS_MAX: usize = 1024;
/// An owner that has not answered in this time counts as gone, whatever else its machine does.
const PATIENCE: Duration = Duration::from_secs(20);

impl Space {
    /// A space that trusts nobody: of what others can write it takes copies.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A space that looks in place at the memory of processes of its own user and of root, since
    /// these could write its memory anyway (V3). All others it trusts no more than [`Space::new`].
    #[must_use]
    pub fn trusting() -> Self {
        Self(Arc::new(SharedSpace { trusts: true, ..SharedSpace::default() }))
    }

    /// Makes an owner one that is asked, by the socket that its grant server handed over.
    pub fn introduce(&self, server: OwnedFd) {
        self.lock().owners.push(Client::new(server));
    }

    /// Returns true if a dbuf is mapped.
    #[must_use]
    pub fn has(&self, dbuf: DbufId) -> bool {
        self.lock().views.contains_key(&dbuf)
    }

    /// Unmaps a dbuf when the last reader that has it translated is gone; pointers into it are
    /// buffer faults again. `false`: it was not mapped.
    pub fn forget(&self, dbuf: DbufId) -> bool {
        self.lock().views.remove(&dbuf).is_some()
    }

    /// Returns the counts of questions so far.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.lock().faults
    }

    /// Returns true if a process of this user could write our memory anyway (V3).
    pub(crate) fn trusts(&self, user: u32) -> bool {
        self.0.trusts && Trusted::of(user).is_some()
    }

    /// The view of a dbuf that is mapped.
    fn mapped(&self, dbuf: DbufId) -> Option<Arc<View>> {
        self.lock().views.get(&dbuf).cloned()
    }

    /// Asks the owner of a dbuf for it, and maps it.
    fn map(&self, dbuf: DbufId) -> Result<Arc<View>, Fault> {
        let mut known = self.lock();
        if let Some(view) = known.views.get(&dbuf) {
            return Ok(view.clone());
        }
        if known.views.len() >= VIEWS_MAX {
            return Err(Fault::UnknownDbuf(dbuf));
        }
        match self.ask(&mut known, dbuf) {
            Ok(view) => {
                let view = Arc::new(view);
                known.views.insert(dbuf, view.clone());
                known.faults.mapped += 1;
                Ok(view)
            }
            Err(fault) => {
                known.faults.refused += 1;
                Err(fault)
            }
        }
    }

    /// Asks one owner after the other. A dbuf that is not known to one may be known to another; one
    /// that is forbidden is forbidden.
    fn ask(&self, known: &mut KnownOwners, dbuf: DbufId) -> Result<View, Fault> {
        let mut fault = Fault::UnknownDbuf(dbuf);
        if known.owners.is_empty() {
            return Err(fault);
        }
        let mut at = 0;
        while let Some(owner) = known.owners.get_mut(at) {
            match owner.ask_within(dbuf, PATIENCE) {
                Ok(grant) => {
                    let trusted = owner.owner().is_ok_and(|(user, _)| self.trusts(user));
                    return View::admit(&grant, trusted);
                }
                Err(GrantRefusal::Forbidden { uid, .. }) => {
                    return Err(Fault::Forbidden { dbuf, uid });
                }
                Err(GrantRefusal::System(error)) => {
                    fault = Fault::Unmapped { dbuf, errno: error.errno }
                }
                Err(GrantRefusal::Abandoned) => {
                    // A late answer would be taken for that to the next question.
                    known.owners.remove(at);
                    fault = Fault::OwnerGone(dbuf);
                    continue;
                }
                Err(_) => {}
            }
            at += 1;
        }
        Err(fault)
    }

    fn lock(&self) -> MutexGuard<'_, KnownOwners> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A dbuf of another process, to be read.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) id: DbufId,
    /// Empty where it is a file.
    region: Region,
    file: Option<CachedFile>,
    /// A position lies at its value under this mask.
    mask: u64,
    frozen: bool,
    trusted: bool,
}

/// The longest file that is mapped: far less than the positions that a rich pointer tells apart.
const SIZE_MAX: usize = 1 << 40;

impl View {
    /// Maps what was granted, if nobody can cut or empty it any more (V1), or it is a file (V5).
    fn admit(grant: &Grant, trusted: bool) -> Result<Self, Fault> {
        let id = grant.dbuf();
        let failed = |errno| Fault::Unmapped { dbuf: id, errno };
        let fd = grant.descriptor().try_clone_to_owned();
        let fd = fd.map_err(|error| failed(error.raw_os_error().unwrap_or(0)))?;
        if grant.kind() == MemoryKind::File {
            let file = CachedFile::received(id, fd).map_err(|_| failed(0))?;
            let (region, mask) = (Region::heap(0), u64::MAX);
            return Ok(Self { id, region, file: Some(file), mask, frozen: false, trusted: false });
        }
        let file = Memfd::from_fd(fd).map_err(|error| failed(error.errno))?;
        let seals = file.seals().map_err(|error| failed(error.errno))?;
        let frozen = seals.has(Seals::FROZEN);
        if !frozen && !seals.has(Seals::READER) {
            return Err(failed(0));
        }
        // Its size was read before the seals; now that it cannot change any more, it is read again.
        let file = Memfd::from_fd(file.into()).map_err(|error| failed(error.errno))?;
        let length = file.len();
        // Of a frozen file the position is the offset; what lies beyond its end is refused.
        let plausible = length.is_power_of_two() || frozen && length.is_multiple_of(PAGE);
        if !plausible || !(PAGE..=SIZE_MAX).contains(&length) {
            return Err(failed(0));
        }
        let mask = if frozen { u64::MAX } else { length as u64 - 1 };
        let mapping = file.map_read().map_err(|error| failed(error.errno))?;
        Ok(Self { id, region: Region::reading(mapping), file: None, mask, frozen, trusted })
    }

    /// Returns the offset of a block in this dbuf. Every pointer is checked here.
    #[inline]
    pub(crate) fn locate(&self, pointer: RichPointer) -> Result<usize, Fault> {
        let at = pointer.place.position() & self.mask;
        let end = at + u64::from(pointer.length());
        if end > self.region.len() as u64 {
            self.beyond(pointer.place, end)?;
        }
        #[expect(clippy::cast_possible_truncation, reason = "less than the length, see above")]
        Ok(at as usize)
    }

    /// Checks a block beyond the mapping: in a file it is there if the file reaches that far now.
    #[cold]
    fn beyond(&self, place: Extent, end: u64) -> Result<(), Fault> {
        match &self.file {
            Some(file) if file.size().is_ok_and(|size| end <= size) => Ok(()),
            None if !self.frozen => Err(Fault::CrossesSegment(place)),
            _ => Err(Fault::OutOfWindow(place)),
        }
    }

    /// Not 0, if a pointer leads into another dbuf, has flags that nobody knows, or runs over the
    /// end: what [`View::locate`] asks, without a branch.
    #[inline]
    pub(crate) const fn is_out(&self, pointer: RichPointer) -> u64 {
        let home = RichPointer::new(self.id, pointer.place, pointer.class);
        let other = (pointer.words()[1] ^ home.words()[1]) >> 32;
        let end = (pointer.place.position() & self.mask) + pointer.length() as u64;
        // Both are far less than half of what a word counts: the sign tells which is more.
        let beyond = (self.region.len() as u64).wrapping_sub(end) >> 63;
        other | beyond
    }

    /// Copies from an offset that [`View::locate`] has found. [`Fault::OutOfWindow`]: the file was
    /// cut meanwhile.
    #[inline]
    pub(crate) fn copy(&self, at: usize, out: &mut [u8]) -> Result<(), Fault> {
        if let Some(file) = &self.file {
            let length = u32::try_from(out.len()).unwrap_or(u32::MAX);
            return file.copy(Extent::new(at as u64, length), out);
        }
        foreign::copy_out(self.region.words(), at, out);
        Ok(())
    }

    /// Returns true if the holder of a pointer may read the bytes in place (V2, V3).
    #[inline]
    pub(crate) const fn is_direct(&self) -> bool {
        self.frozen || self.trusted
    }

    /// Returns true if the bytes stay without a keeper: frozen memory, or a file.
    pub(crate) const fn stays(&self) -> bool {
        self.frozen || self.file.is_some()
    }

    /// Returns true if the bytes can never be written again (V2).
    pub(crate) const fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Returns the address of an offset that [`View::locate`] has returned; `None` if the bytes
    /// there are foreign (V4).
    pub(crate) fn in_place(&self, at: usize) -> Option<InPlace> {
        // Inside the region, as `locate` has found.
        let first = self.region.words().as_ptr().cast::<u8>().wrapping_add(at);
        NonNull::new(first.cast_mut()).filter(|_| self.is_direct()).map(InPlace)
    }

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.region.words().as_ptr().addr()
    }

    /// Bytes that are mapped.
    pub(crate) const fn len(&self) -> usize {
        self.region.len()
    }
}

/// The address of bytes that may be read in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InPlace(NonNull<u8>);

// SAFETY: it is where something lies, and reaches nothing without a promise; what lies there
// belongs to a view, which may be sent and shared.
unsafe impl Send for InPlace {}
// SAFETY: as above.
unsafe impl Sync for InPlace {}

impl InPlace {
    /// The bytes without the first `done`.
    ///
    /// # Safety
    /// 1. [`View::locate`] has found the place for a pointer to `done + length` bytes.
    /// 2. As long as the slice lives, so does the view.
    /// 3. Where that is not frozen: as long as the slice lives, the entry of the ring in which the
    ///    pointer came is not released, and the writer of that ring is trusted too (V3).
    #[inline]
    pub(crate) unsafe fn bytes<'a>(self, done: usize, length: usize) -> &'a [u8] {
        let first = self.0.as_ptr().wrapping_add(done);
        // SAFETY: promises 1 and 2 put the range into memory that is alive (V1). Nobody writes it:
        // by V2, or by promise 3 and V3.
        unsafe { std::slice::from_raw_parts(first, length) }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
