//! Mappings of foreign memory, and the translation of rich pointers into them. [SL §5.3.1, "buffer
//! fault", cached translation]
//!
//! Input: rich pointers from rings, which are allegations. Output: copies, or bytes in place, or a
//! [`Fault`] with the reason. A [`Space`] consists of mappings, and of the owners from which it
//! requests further ones. Each reader has its own [`TranslationCache`], a small table that needs
//! neither lock nor system call.
//!
//! ```text
//! pointer ── Translation (16 lines) ── Space (a map) ── owner's grant server (a socket)
//!             every pointer              a miss           a buffer fault: once for each dbuf
//! ```
//!
//! These invariants, cited below, allow `&[u8]` on memory that another process may have mapped for
//! writing:
//! - V1 A [`ForeignDbuf`] maps a file whose size can never change, as verified from its seals
//!   ([`ForeignDbuf::from_grant`]): an offset below its length is valid memory as long as the
//!   mapping exists.
//! - V2 A *frozen* dbuf can never be written again by any process, as verified from its seals.
//! - V3 A dbuf is *trusted* if its space is trusting and the kernel reports that its owner runs
//!   under the user of this process or root. Such a process could write the memory of this process
//!   anyway (ptrace(2), or as root), so relying on it grants no additional power (RELIABILITY,
//!   threat model). A trusted owner follows the rules of `pool`: published bytes are overwritten
//!   only after their release (M1 to M4).
//! - V4 All other bytes are foreign: they are copied (`foreign`), and no reference to them is
//!   created.
//! - V5 A file, which others may truncate at any time, is not mapped here: it is read by system
//!   calls, and missing bytes are a fault (CONTRACT 26).

use crate::aggregate::GrantRefusal;
use crate::aggregate::owner::{Grant, MemoryKind};
use crate::aggregate::server::Client;
use crate::file::CachedFile;
use abi::ring::PAGE_SIZE;
use abi::{DbufId, Extent, RichPointer};
use buffer::region::Region;
use buffer::trust::TrustProof;
use buffer::{Fault, foreign_memory};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sys::memory::{Memfd, Seals};

mod translation;

pub(crate) use translation::{BackOff, TranslationCache};

/// The foreign memory that a space can read: its mappings, and the owners from which it requests
/// further ones. Clones share the same state.
///
/// Ids of dbufs must be unique among the owners of one space. Owners are queried in the order of
/// introduction; the first owner that has the dbuf decides.
#[derive(Clone, Debug, Default)]
pub struct Space(Arc<SharedSpace>);

#[derive(Debug, Default)]
struct SharedSpace {
    known_owners: Mutex<SpaceState>,
    is_trusting: bool,
}

#[derive(Debug, Default)]
struct SpaceState {
    owners: Vec<Client>,
    dbufs: BTreeMap<DbufId, Arc<ForeignDbuf>>,
    faults: QueryCounts,
}

/// Counters of a space's queries to owners. [SL §5.3.1]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueryCounts {
    /// Number of dbufs that were mapped after a query.
    pub mapped: u64,
    /// Number of queries that did not result in a mapping, mostly because owners refused.
    pub refused: u64,
}

/// Maximum number of dbufs that a space maps (RELIABILITY T12).
const DBUFS_MAX: usize = 1024;
/// Time after which an owner that does not reply counts as departed.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

impl Space {
    /// Creates a space that trusts no peer: bytes that another process can write are copied.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a space that reads memory in place if the memory's owner runs under the user of this
    /// process or root: such an owner could write this process's memory anyway (V3). All other
    /// peers are untrusted, as with [`Space::new`].
    #[must_use]
    pub fn trusting() -> Self {
        Self(Arc::new(SharedSpace { is_trusting: true, ..SharedSpace::default() }))
    }

    /// Adds an owner, given the socket received from its grant server.
    pub fn add_owner(&self, server: OwnedFd) {
        self.lock_space_state().owners.push(Client::new(server));
    }

    /// Returns true if the dbuf is mapped.
    #[must_use]
    pub fn is_mapped(&self, dbuf: DbufId) -> bool {
        self.lock_space_state().dbufs.contains_key(&dbuf)
    }

    /// Removes a dbuf. The dbuf is unmapped when the last reader drops its translation, and a later
    /// pointer into it causes a new fault. Returns false if the dbuf was not mapped.
    pub fn unmap(&self, dbuf: DbufId) -> bool {
        self.lock_space_state().dbufs.remove(&dbuf).is_some()
    }

    /// Returns the numbers of granted and refused queries that the space has sent to owners.
    #[must_use]
    pub fn query_counts(&self) -> QueryCounts {
        self.lock_space_state().faults
    }

    /// Returns true if the space trusts this user, whose processes could write the memory of this
    /// process anyway (V3).
    pub(crate) fn trusts(&self, user: u32) -> bool {
        self.0.is_trusting && TrustProof::for_user(user).is_some()
    }

    /// Returns the mapping of a dbuf, or `None` if the dbuf is not mapped.
    fn mapped(&self, dbuf: DbufId) -> Option<Arc<ForeignDbuf>> {
        self.lock_space_state().dbufs.get(&dbuf).cloned()
    }

    /// Returns the mapping of a dbuf. If the dbuf is not mapped, requests it from the owners and
    /// blocks until they reply. Fails if no owner grants it, or if the space already maps
    /// [`DBUFS_MAX`] dbufs.
    fn map(&self, dbuf: DbufId) -> Result<Arc<ForeignDbuf>, Fault> {
        let mut known = self.lock_space_state();
        if let Some(foreign) = known.dbufs.get(&dbuf) {
            return Ok(foreign.clone());
        }
        if known.dbufs.len() >= DBUFS_MAX {
            return Err(Fault::UnknownDbuf(dbuf));
        }
        let queried = self.query_owners(&mut known, dbuf);
        match queried.and_then(|(grant, trusted)| ForeignDbuf::from_grant(&grant, trusted)) {
            Ok(foreign) => {
                let foreign = Arc::new(foreign);
                known.dbufs.insert(dbuf, foreign.clone());
                known.faults.mapped += 1;
                Ok(foreign)
            }
            Err(fault) => {
                known.faults.refused += 1;
                Err(fault)
            }
        }
    }

    /// Obtains a grant of a dbuf that is to be passed on, without mapping the dbuf. Waits for the
    /// owners' replies.
    pub(crate) fn request_grant(&self, dbuf: DbufId) -> Result<Grant, Fault> {
        let mut known = self.lock_space_state();
        Ok(self.query_owners(&mut known, dbuf)?.0)
    }

    /// Queries the owners one after the other. If an owner does not have the dbuf, queries the next
    /// one; a refusal of access is final. Removes an owner that does not reply in time. Returns the
    /// grant, and true if the owner that granted the dbuf is trusted.
    fn query_owners(&self, known: &mut SpaceState, dbuf: DbufId) -> Result<(Grant, bool), Fault> {
        let mut fault = Fault::UnknownDbuf(dbuf);
        if known.owners.is_empty() {
            return Err(fault);
        }
        let mut at = 0;
        while let Some(owner) = known.owners.get_mut(at) {
            match owner.request_grant_with_timeout(dbuf, REPLY_TIMEOUT) {
                Ok(grant) => {
                    let trusted =
                        owner.owner_uid_and_gid().is_ok_and(|(user, _)| self.trusts(user));
                    return Ok((grant, trusted));
                }
                Err(GrantRefusal::Forbidden { uid, .. }) => {
                    return Err(Fault::Forbidden { dbuf, uid });
                }
                Err(GrantRefusal::System(error)) => {
                    fault = Fault::Unmapped { dbuf, errno: error.errno }
                }
                Err(GrantRefusal::Abandoned) => {
                    // A late reply would be mistaken for the reply to the next query.
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

    fn lock_space_state(&self) -> MutexGuard<'_, SpaceState> {
        self.0.known_owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A dbuf of another process that this process can read.
#[derive(Debug)]
pub(crate) struct ForeignDbuf {
    pub(crate) id: DbufId,
    /// The mapping, or an empty region for a file.
    region: Region,
    file: Option<CachedFile>,
    /// Bit mask that converts a position in the dbuf to an offset in the mapping.
    mask: u64,
    frozen: bool,
    trusted: bool,
}

/// Maximum length in bytes of a dbuf that can be mapped. It is far below the maximum position in a
/// rich pointer.
const MAPPED_SIZE_MAX: usize = 1 << 40;

impl ForeignDbuf {
    /// Maps granted memory after verifying that it can no longer be truncated (V1), or wraps a file
    /// (V5). `trusted` is true if the owner of the memory is trusted (V3).
    fn from_grant(grant: &Grant, trusted: bool) -> Result<Self, Fault> {
        let id = grant.dbuf();
        let failed = |errno| Fault::Unmapped { dbuf: id, errno };
        let fd = grant.descriptor().try_clone_to_owned();
        let fd = fd.map_err(|error| failed(error.raw_os_error().unwrap_or(0)))?;
        if grant.kind() == MemoryKind::File {
            let file = CachedFile::from_untrusted_descriptor(id, fd).map_err(|_| failed(0))?;
            let (region, mask) = (Region::heap(0), u64::MAX);
            return Ok(Self { id, region, file: Some(file), mask, frozen: false, trusted: false });
        }
        let file = Memfd::from_fd(fd).map_err(|error| failed(error.errno))?;
        let seals = file.seals().map_err(|error| failed(error.errno))?;
        let frozen = seals.contains(Seals::FROZEN);
        if !frozen && !seals.contains(Seals::READER) {
            return Err(failed(0));
        }
        // The size was read before the seals; it is final now, so read it again.
        let file = Memfd::from_fd(file.into()).map_err(|error| failed(error.errno))?;
        let length = file.len();
        // In a frozen file, the position is the offset; offsets beyond the end are rejected.
        let plausible = length.is_power_of_two() || frozen && length.is_multiple_of(PAGE_SIZE);
        if !plausible || !(PAGE_SIZE..=MAPPED_SIZE_MAX).contains(&length) {
            return Err(failed(0));
        }
        let mask = if frozen { u64::MAX } else { length as u64 - 1 };
        let mapping = file.map_read().map_err(|error| failed(error.errno))?;
        Ok(Self { id, region: Region::read_only(mapping), file: None, mask, frozen, trusted })
    }

    /// Validates a pointer. Returns the offset of its block in this dbuf, or fails with the fault.
    #[inline]
    pub(crate) fn locate(&self, pointer: RichPointer) -> Result<usize, Fault> {
        let at = pointer.place.position() & self.mask;
        let end = at + u64::from(pointer.length());
        if end > self.region.len() as u64 {
            self.check_file_extent(pointer.place, end)?;
        }
        #[expect(clippy::cast_possible_truncation, reason = "less than the length, see above")]
        Ok(at as usize)
    }

    /// Checks a block that extends beyond the mapping; `end` is the offset of its end. Such a block
    /// is valid only in a file whose current size includes it.
    #[cold]
    fn check_file_extent(&self, place: Extent, end: u64) -> Result<(), Fault> {
        match &self.file {
            Some(file) if file.size().is_ok_and(|size| end <= size) => Ok(()),
            None if !self.frozen => Err(Fault::CrossesSegment(place)),
            _ => Err(Fault::OutOfWindow(place)),
        }
    }

    /// Returns 0 if a pointer refers to this dbuf, has no unknown flags, and does not exceed the
    /// mapping; otherwise another value. Checks without a branch. Blocks of a file always exceed
    /// the mapping.
    #[inline]
    pub(crate) const fn nonzero_if_outside(&self, pointer: RichPointer) -> u64 {
        let home = RichPointer::new(self.id, pointer.place, pointer.class);
        let other = (pointer.words()[1] ^ home.words()[1]) >> 32;
        let end = (pointer.place.position() & self.mask) + pointer.length() as u64;
        // Both values are far below 2^63: the sign of the difference is the comparison.
        let beyond = (self.region.len() as u64).wrapping_sub(end) >> 63;
        other | beyond
    }

    /// Copies bytes, beginning at an offset returned by [`ForeignDbuf::locate`], into `out`. Fails
    /// with [`Fault::OutOfWindow`] if the file has been truncated in the meantime.
    #[inline]
    pub(crate) fn copy(&self, at: usize, out: &mut [u8]) -> Result<(), Fault> {
        if let Some(file) = &self.file {
            let length = u32::try_from(out.len()).unwrap_or(u32::MAX);
            return file.copy(Extent::new(at as u64, length), out);
        }
        foreign_memory::copy_out(self.region.words(), at, out);
        Ok(())
    }

    /// Returns true if validated bytes may be read in place (V2, V3).
    #[inline]
    pub(crate) const fn can_read_in_place(&self) -> bool {
        self.frozen || self.trusted
    }

    /// Returns true if the bytes need no lease, which holds for frozen memory and for files.
    pub(crate) const fn needs_no_lease(&self) -> bool {
        self.frozen || self.file.is_some()
    }

    /// Returns true if the bytes can never be written again (V2).
    pub(crate) const fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Returns the address of the byte at an offset returned by [`ForeignDbuf::locate`], or `None`
    /// for foreign bytes (V4).
    pub(crate) fn in_place_address(&self, at: usize) -> Option<InPlaceAddress> {
        // Inside the region, as checked by `locate`.
        let first = self.region.words().as_ptr().cast::<u8>().wrapping_add(at);
        NonNull::new(first.cast_mut()).filter(|_| self.can_read_in_place()).map(InPlaceAddress)
    }

    /// Returns the address of the mapping's first byte.
    pub(crate) fn address(&self) -> usize {
        self.region.words().as_ptr().addr()
    }

    /// Returns the length of the mapping in bytes.
    pub(crate) const fn len(&self) -> usize {
        self.region.len()
    }
}

/// Returns the number of leading pointers for which `is_out` returns 0, and the sum of their view
/// lengths in bytes.
#[inline(always)]
pub(crate) fn count_leading_inside(
    pointers: &[RichPointer],
    is_out: impl Fn(RichPointer) -> u64,
) -> (usize, u64) {
    let (mut any, mut bytes) = (0, 0);
    // Checked without a branch in between; a pointer outside is rare.
    for pointer in pointers {
        any |= is_out(*pointer);
        bytes += u64::from(pointer.length());
    }
    if any == 0 {
        return (pointers.len(), bytes);
    }
    let good = pointers.iter().take_while(|pointer| is_out(**pointer) == 0);
    good.fold((0, 0), |(count, bytes), p| (count + 1, bytes + u64::from(p.length())))
}

/// The address of bytes that may be read in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InPlaceAddress(NonNull<u8>);

// SAFETY: an address alone gives no access; it is dereferenced only under the promises of `bytes`,
// and the dbuf that it points into may be sent and shared.
unsafe impl Send for InPlaceAddress {}
// SAFETY: as above.
unsafe impl Sync for InPlaceAddress {}

impl InPlaceAddress {
    /// Returns `length` bytes, starting `done` bytes after the address.
    ///
    /// # Safety
    /// 1. [`ForeignDbuf::locate`] must have returned the address for a pointer to `done + length`
    ///    bytes.
    /// 2. The dbuf must outlive the slice.
    /// 3. Unless the dbuf is frozen, the ring entry of the pointer must not be released while the
    ///    slice lives, and the writer of that ring must be trusted too (V3).
    #[inline]
    pub(crate) unsafe fn bytes<'a>(self, done: usize, length: usize) -> &'a [u8] {
        let first = self.0.as_ptr().wrapping_add(done);
        // SAFETY: promises 1 and 2 place the range in live memory (V1). It is not written: by V2,
        // or by promise 3 and V3.
        unsafe { std::slice::from_raw_parts(first, length) }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
