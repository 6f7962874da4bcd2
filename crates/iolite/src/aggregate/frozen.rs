//! Data that no process, including its creator, can change: immutable across processes that do not
//! trust each other. [IOL §2.1, §2.2], RELIABILITY T6, CONTRACT 26
//!
//! Input: bytes, which are written once into a separate memfd; or such a memfd from another
//! process. Output: an ordinary aggregate on both sides, without a copy. The paper revokes the
//! write permission of a buffer that is passed on. Here a seal (`F_SEAL_WRITE`) revokes it; the
//! kernel grants the seal only if no writable mapping exists. Received frozen data may therefore be
//! read in place, and the data and its checksum may be cached, whichever process created it.
//!
//! A seal is permanent, applies to a whole file, and is slow (55 µs for 64 KB from the first byte
//! to the mapping, compared to 0.7 µs for copying them): so it suits data of many pages that is
//! long-lived and read often (a document, a computed response). Small and frequent data is sent in
//! a pool and copied from there ([`DbufWindow`](super::owner::DbufWindow)).

use super::refusal::GrantRefusal;
use super::{Aggregate, Error, Slice};
use abi::ring::PAGE_SIZE;
use abi::{Class, DbufId, Extent, RichPointer};
use buffer::pool::PoolMemory;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use sys::memory::{Memfd, Seals};

/// Immutable data in a separate memfd.
#[derive(Clone, Debug)]
pub struct FrozenData {
    memory: Arc<PoolMemory>,
    length: usize,
}

impl FrozenData {
    /// Copies an aggregate into a new memfd and freezes it. `id` must be unique among all dbufs.
    pub fn from_aggregate(id: DbufId, aggregate: &Aggregate) -> io::Result<Self> {
        Self::create_filled(id, aggregate.len(), |file| {
            aggregate.write_to(file)?;
            Ok(aggregate.len())
        })
    }

    /// Reads up to `max` bytes into a new memfd and freezes it. The memfd is truncated to the pages
    /// that the bytes need. `id` must be unique among all dbufs.
    pub fn from_reader(id: DbufId, from: impl Read, max: usize) -> io::Result<Self> {
        let max = max.min(MAPPED_SIZE_MAX);
        Self::create_filled(id, max, |mut file| {
            let length = io::copy(&mut from.take(max as u64), &mut file)?;
            Ok(usize::try_from(length).unwrap_or(max))
        })
    }

    /// Maps the frozen file of another process, whose first `length` bytes are data. Fails unless
    /// its seals prove that no process can write the file, and its size is a multiple of a page and
    /// at least `length`.
    pub fn map(id: DbufId, file: OwnedFd, length: usize) -> Result<Self, GrantRefusal> {
        let file = Memfd::from_fd(file)?;
        let seals = file.seals()?;
        if !seals.contains(Seals::FROZEN) {
            return Err(GrantRefusal::Unsealed { dbuf: id, seals });
        }
        // The size was read before the seals; it is final now, so read it again.
        let file = Memfd::from_fd(file.into())?;
        let is = file.len();
        if is == 0 || is % PAGE_SIZE != 0 || is > MAPPED_SIZE_MAX || length > is {
            return Err(GrantRefusal::Size { dbuf: id, is });
        }
        Ok(Self { memory: Arc::new(PoolMemory::frozen(id, file)?), length })
    }

    /// Returns all data by reference, one slice per 512 KB.
    pub fn aggregate(&self) -> Result<Aggregate, Error> {
        let segment = self.memory.segment_size();
        let mut all = Aggregate::new();
        for start in (0..self.length).step_by(segment) {
            let length = segment.min(self.length - start);
            let place = Extent::new(start as u64, u32::try_from(length).unwrap_or(0));
            let pointer = RichPointer::new(self.memory.id(), place, Class::YES);
            let Some(lease) = self.memory.lease_frozen(start / segment) else { break };
            all.append_slice(Slice::new(Arc::new(lease), pointer)?)?;
        }
        Ok(all)
    }

    /// Returns the number of bytes of data.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns true if there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the id of the dbuf that consists of this data.
    #[must_use]
    pub fn dbuf(&self) -> DbufId {
        self.memory.id()
    }

    pub(crate) const fn memory(&self) -> &Arc<PoolMemory> {
        &self.memory
    }

    /// Returns the descriptor to send to permitted readers, together with the length of the data;
    /// `None` if the memory has no file.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.memory.file().map(AsFd::as_fd)
    }

    fn create_filled(
        id: DbufId,
        max: usize,
        fill: impl FnOnce(&File) -> io::Result<usize>,
    ) -> io::Result<Self> {
        let file = Memfd::create("streamline-frozen", round_up_to_pages(max))?;
        let file = File::from(OwnedFd::from(file));
        let length = fill(&file)?;
        file.set_len(round_up_to_pages(length) as u64)?;
        let file = Memfd::from_fd(file.into())?;
        file.seal(Seals::FROZEN)?;
        Self::map(id, file.into(), length).map_err(io::Error::other)
    }
}

/// Maximum length in bytes of a memfd that can be mapped. It is far below the maximum position in a
/// rich pointer.
const MAPPED_SIZE_MAX: usize = 1 << 40;

const fn round_up_to_pages(length: usize) -> usize {
    let pages = length.div_ceil(PAGE_SIZE);
    (if pages == 0 { 1 } else { pages }) * PAGE_SIZE
}
