//! Data that nobody can change any more, not even who made it: immutable across processes that do
//! not trust each other. [IOL §2.1, §2.2], RELIABILITY T6, CONTRACT 26
//!
//! In: bytes, written once into a memfd of their own; or such a memfd from another process. Out: an
//! aggregate like any other, on both sides, with no copy on the way. The source takes the write
//! permission for a buffer back when it is handed on; here a seal does (`F_SEAL_WRITE`), which the
//! kernel refuses as long as anybody could still write. So what was received may be looked at in
//! place, cached, and its checksum remembered, whoever made it.
//!
//! A seal is for ever and for a whole file, and takes the kernel its time (55 µs for 64 KB from the
//! first byte to the mapping, where copying them takes 0.7): this is for data of many pages that is
//! kept and looked at often (a document, an answer that was computed). What is small and comes
//! often goes through a pool and is copied out of it ([`Window`](super::owner::Window)).

use super::refusal::GrantRefusal;
use super::{Aggregate, Error, Slice};
use abi::ring::PAGE;
use abi::{Class, DbufId, Extent, RichPointer};
use buffer::pool::Memory;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use sys::memory::{Memfd, Seals};

/// Immutable data in a file of its own.
#[derive(Clone, Debug)]
pub struct Frozen {
    memory: Arc<Memory>,
    length: usize,
}

impl Frozen {
    /// Copies an aggregate into memory of its own, and freezes that. `id` is one that no other dbuf
    /// has.
    pub fn copy(id: DbufId, aggregate: &Aggregate) -> io::Result<Self> {
        Self::write(id, aggregate.len(), |file| {
            aggregate.write_to(file)?;
            Ok(aggregate.len())
        })
    }

    /// Reads up to `max` bytes into memory of its own, and freezes that. The file takes as many
    /// pages as were read.
    pub fn read(id: DbufId, from: impl Read, max: usize) -> io::Result<Self> {
        let max = max.min(SIZE_MAX);
        Self::write(id, max, |mut file| {
            let length = io::copy(&mut from.take(max as u64), &mut file)?;
            Ok(usize::try_from(length).unwrap_or(max))
        })
    }

    /// Maps what another process has frozen, of which the first `length` bytes are data. It is an
    /// allegation: the kernel is asked whether nobody can write it.
    pub fn map(id: DbufId, file: OwnedFd, length: usize) -> Result<Self, GrantRefusal> {
        let file = Memfd::from_fd(file)?;
        let seals = file.seals()?;
        if !seals.has(Seals::FROZEN) {
            return Err(GrantRefusal::Unsealed { dbuf: id, seals });
        }
        // Its size was read before the seals; now that it cannot change any more, it is read again.
        let file = Memfd::from_fd(file.into())?;
        let is = file.len();
        if is == 0 || is % PAGE != 0 || is > SIZE_MAX || length > is {
            return Err(GrantRefusal::Size { dbuf: id, is });
        }
        Ok(Self { memory: Arc::new(Memory::frozen(id, file)?), length })
    }

    /// All of the data, by reference: one slice for each 512 KB.
    pub fn aggregate(&self) -> Result<Aggregate, Error> {
        let segment = self.memory.segment();
        let mut all = Aggregate::new();
        for start in (0..self.length).step_by(segment) {
            let length = segment.min(self.length - start);
            let place = Extent::new(start as u64, u32::try_from(length).unwrap_or(0));
            let pointer = RichPointer::new(self.memory.id(), place, Class::YES);
            let Some(lease) = self.memory.lease_frozen(start / segment) else { break };
            all.extend(Slice::new(Arc::new(lease), pointer)?)?;
        }
        Ok(all)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns true if there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the id of the dbuf.
    #[must_use]
    pub fn dbuf(&self) -> DbufId {
        self.memory.id()
    }

    pub(crate) const fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The descriptor that is sent, with the length, to whoever may have it.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.memory.file().map(AsFd::as_fd)
    }

    fn write(
        id: DbufId,
        max: usize,
        fill: impl FnOnce(&File) -> io::Result<usize>,
    ) -> io::Result<Self> {
        let file = Memfd::create("streamline-frozen", whole_pages(max))?;
        let file = File::from(OwnedFd::from(file));
        let length = fill(&file)?;
        file.set_len(whole_pages(length) as u64)?;
        let file = Memfd::from_fd(file.into())?;
        file.seal(Seals::FROZEN)?;
        Self::map(id, file.into(), length).map_err(io::Error::other)
    }
}

/// The largest file that is mapped: far less than the positions that a rich pointer tells apart.
const SIZE_MAX: usize = 1 << 40;

const fn whole_pages(length: usize) -> usize {
    let pages = length.div_ceil(PAGE);
    (if pages == 0 { 1 } else { pages }) * PAGE
}
