//! Aggregates: data as a list of slices of immutable bytes. [IOL §2.1, §2.4, §2.8]
//!
//! Input: blocks of pools, each with a [`Lease`] that holds it; or bytes, which are written once
//! into an [`AllocationPool`]. Output: an [`Aggregate`], which is split, joined, changed and passed
//! on without access to the bytes. Its bytes are read piece by piece, through the file traits, or
//! by `writev`.
//!
//! ```text
//! aggregate   [ slice ][ slice ][ slice ]            24 + 9 + 1400 bytes, in this order
//!                 |        |        |
//! pool 7      ...█████.....|........|..............   leased: kept while referenced
//! pool 3      .............████....████████████████   another pool, other readers
//! ```
//!
//! The bytes are never written again, so any number of aggregates, in any thread, may refer to the
//! same bytes, and no aggregate observes a change by another: *aggregates are passed by value,
//! bytes by reference*. The referenced memory lives exactly as long as the aggregate: each slice
//! has a lease, a counted reference that safe code cannot forge (M4 of `pool`) and that is released
//! even if the thread panics. Between processes, an [`owner`] grants pools according to their
//! [`access`](abi::access) lists through a [`server`]; [`holders`] counts the references of other
//! processes; [`FrozenData`] is read in place.
//!
//! | operation | cost | name in the paper |
//! |---|---|---|
//! | [`AllocationPool::allocate`], `copy`, `read` | the bytes, once | create |
//! | `clone` | O(slices), no bytes | duplicate |
//! | [`truncate`](Aggregate::truncate), [`trim`](Aggregate::trim) | O(slices dropped) | truncate |
//! | [`prepend`], [`append`] | O(slices added) | prepend, append, concatenate |
//! | [`split_off`](Aggregate::split_off) | O(slices after the split) | split |
//! | [`subrange`](Aggregate::subrange), [`byte`](Aggregate::byte) | O(slices) | data access |
//! | [`replace`](Aggregate::replace) | O(slices) | mutate, by joining |
//! | [`mutate`], [`overwrite`] | O(slices), and the bytes of the range | mutate |
//! | [`gather`](Aggregate::gather) | all bytes, once | the contiguous form of §2.8 |
//!
//! [`prepend`]: Aggregate::prepend
//! [`append`]: Aggregate::append
//! [`mutate`]: Aggregate::mutate
//! [`overwrite`]: Aggregate::overwrite
//!
//! Up to four slices are stored inline; more are allocated on the heap, up to [`SLICES_MAX`]. Only
//! a [`Writer`] joins adjacent slices, while it writes them. Operations on aggregates never join
//! slices, so that properties cached under the [`ContentId`] of a slice can be found again.
//!
//! Deviation: bytes are never changed in place, not even if only one aggregate refers to them (the
//! paper's footnote 2). The owner of a pool may read any of its blocks without a lease, so no
//! reference count proves that there is no reader. Bytes can be changed in the draft, before they
//! are published (docs/book/decisions/0013-aggregates-never-edit-in-place.md).

use abi::{BlockFlags, BlockMetadata, Entry, Marks, RichPointer};
use buffer::Fault;
use buffer::crossing::Origin;
use buffer::pool::{Lease, PoolUsage};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

mod allocation_pool;
mod byte_access;
pub mod checksum;
mod frozen;
pub mod holders;
pub mod owner;
pub mod pipe;
mod refusal;
pub mod server;
mod slice;
mod slice_list;

pub use allocation_pool::{AllocationPool, Writer};
pub use byte_access::AggregateReader;
pub use frozen::FrozenData;
pub use refusal::GrantRefusal;
pub use slice::{ContentId, Slice};
use slice_list::SliceList;
pub use slice_list::Slices;

/// Maximum number of slices in an aggregate.
pub const SLICES_MAX: usize = 1 << 16;

/// Data as an ordered list of slices. The default is empty.
#[derive(Clone, Default)]
pub struct Aggregate {
    slices: SliceList,
    /// Total length of all slices in bytes.
    length: usize,
}

impl Aggregate {
    /// Creates an empty aggregate.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an aggregate of one slice: the block that `pointer` names, in the segment that
    /// `lease` holds ([`Pool::lease`](buffer::pool::Pool::lease),
    /// [`Batch::lease`](buffer::crossing::Batch::lease)). Fails if the pointer is a hole or names a
    /// block outside the segment.
    pub fn from_block(lease: Lease, pointer: RichPointer) -> Result<Self, Error> {
        Self::from_leased(Arc::new(lease), pointer)
    }

    fn from_leased(lease: Arc<Lease>, pointer: RichPointer) -> Result<Self, Error> {
        let slice = Slice::new(lease, pointer)?;
        let mut aggregate = Self::new();
        if slice.len() > 0 {
            aggregate.push_slice(slice);
        }
        Ok(aggregate)
    }

    /// Returns the number of bytes in the aggregate.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns true if there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the slices of the aggregate in order. No slice is empty.
    #[must_use]
    pub fn slices(&self) -> Slices<'_> {
        self.slices.iter()
    }

    /// Returns the bytes of the aggregate in order, as one nonempty byte slice for each slice of
    /// the aggregate.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.slices().map(Slice::bytes)
    }

    /// Returns the entries that send this aggregate to another space: one block per slice, each
    /// with the metadata `context`. In addition, the first block has [`BlockFlags::FIRST`] and the
    /// last block has [`BlockFlags::LAST`] (CONTRACT 6). Pass the aggregate as the origin of these
    /// entries to [`crossing::CrossingWriter::push`](buffer::crossing::CrossingWriter::push).
    pub fn entries(&self, context: BlockMetadata) -> impl Iterator<Item = Entry> {
        let last = self.slices.len().saturating_sub(1);
        self.slices().enumerate().map(move |(index, slice)| {
            let first = if index == 0 { BlockFlags::FIRST } else { BlockFlags::NONE };
            let last_flag = if index == last { BlockFlags::LAST } else { BlockFlags::NONE };
            let flags = context.flags.with(first).with(last_flag);
            let pointer = slice.pointer();
            Entry::new(
                pointer,
                BlockMetadata { flags, ..context },
                Marks::for_plain_block(pointer.length()),
            )
        })
    }

    /// Shortens the aggregate to its first `length` bytes. Does nothing if the aggregate is not
    /// longer.
    pub fn truncate(&mut self, length: usize) {
        while self.length > length
            && let Some(mut last) = self.slices.pop_back()
        {
            self.length -= last.len();
            if self.length < length {
                last.narrow(0, length - self.length);
                self.push_slice(last);
            }
        }
    }

    /// Removes the first `count` bytes, or all bytes if there are fewer.
    pub fn trim(&mut self, count: usize) {
        let keep = self.length.saturating_sub(count);
        while self.length > keep
            && let Some(mut first) = self.slices.pop_front()
        {
            self.length -= first.len();
            if self.length < keep {
                first.narrow(first.len() - (keep - self.length), keep - self.length);
                self.length += first.len();
                self.slices.push_front(first);
            }
        }
    }

    /// Appends another aggregate. Fails, without a change, if the result would exceed
    /// [`SLICES_MAX`] slices.
    pub fn append(&mut self, mut other: Self) -> Result<(), Error> {
        self.check_slice_count(other.slices.len())?;
        while let Some(slice) = other.slices.pop_front() {
            self.push_slice(slice);
        }
        Ok(())
    }

    /// Prepends another aggregate, such as a header. Fails in the same cases as
    /// [`Aggregate::append`].
    pub fn prepend(&mut self, mut other: Self) -> Result<(), Error> {
        self.check_slice_count(other.slices.len())?;
        while let Some(slice) = other.slices.pop_back() {
            self.length += slice.len();
            self.slices.push_front(slice);
        }
        Ok(())
    }

    /// Splits the aggregate in two: keeps the first `at` bytes and returns the rest, which is empty
    /// if `at` is beyond the end.
    #[must_use = "use `truncate` to drop the rest"]
    pub fn split_off(&mut self, at: usize) -> Self {
        let mut rest = Self::new();
        while self.length > at
            && let Some(mut last) = self.slices.pop_back()
        {
            self.length -= last.len();
            let keep = at.saturating_sub(self.length);
            if keep > 0 {
                let mut front = last.clone();
                front.narrow(0, keep);
                last.narrow(keep, last.len() - keep);
                self.push_slice(front);
            }
            rest.length += last.len();
            rest.slices.push_front(last);
        }
        rest
    }

    /// Returns an aggregate of the bytes in `range`, without copying them. Fails if the range is
    /// out of bounds.
    pub fn subrange(&self, range: Range<usize>) -> Result<Self, Error> {
        self.check_range(&range)?;
        let mut part = Self::new();
        let mut before = 0;
        for slice in self.slices() {
            let (from, to) = (range.start.max(before), range.end.min(before + slice.len()));
            if from < to {
                let mut piece = slice.clone();
                piece.narrow(from - before, to - from);
                part.push_slice(piece);
            }
            before += slice.len();
            if before >= range.end {
                break;
            }
        }
        Ok(part)
    }

    /// Replaces the bytes in `range` with another aggregate. An empty range inserts `other`; an
    /// empty `other` deletes the range. Fails if the range is out of bounds, or if the result could
    /// exceed [`SLICES_MAX`] slices. On failure the aggregate is unchanged.
    pub fn replace(&mut self, range: Range<usize>, other: Self) -> Result<(), Error> {
        self.check_range(&range)?;
        // Cutting adds at most one slice on either side.
        self.check_slice_count(other.slices.len() + 2)?;
        let behind = self.split_off(range.end);
        self.truncate(range.start);
        for mut part in [other, behind] {
            while let Some(slice) = part.slices.pop_front() {
                self.push_slice(slice);
            }
        }
        Ok(())
    }

    /// Changes the bytes in `range`: copies them into a new block of `pool`, calls `edit` on the
    /// copy, and joins the new block with the surrounding slices. Other aggregates still refer to
    /// the old bytes. Does nothing if the range is empty. Fails like [`Aggregate::replace`], or if
    /// the range is longer than [`AllocationPool::block_length_max`], or the pool is full. On
    /// failure the aggregate is unchanged.
    pub fn mutate(
        &mut self,
        range: Range<usize>,
        pool: &mut AllocationPool,
        edit: impl FnOnce(&mut [u8]),
    ) -> Result<(), Error> {
        self.check_range(&range)?;
        if range.is_empty() {
            return Ok(());
        }
        self.check_slice_count(3)?;
        let length = range.len();
        let changed = pool.allocate(length, |room| {
            self.copy(range.start, room);
            edit(room);
            length
        })?;
        self.replace(range, changed)
    }

    /// Replaces the bytes at offset `at` with `bytes`, without reading the old bytes. Fails like
    /// [`Aggregate::replace`], or if the pool is full. On failure the aggregate is unchanged.
    pub fn overwrite(
        &mut self,
        at: usize,
        bytes: &[u8],
        pool: &mut AllocationPool,
    ) -> Result<(), Error> {
        let range = at..at.saturating_add(bytes.len());
        self.check_range(&range)?;
        let changed = pool.copy(bytes)?;
        self.replace(range, changed)
    }

    /// Copies all bytes into `pool` like [`AllocationPool::copy`], and replaces the slices by the
    /// slices of the copy, which are usually few. This is useful if the data has so many small
    /// slices that traversing them costs more than a copy (§2.8, third case). On failure the
    /// aggregate is unchanged.
    pub fn gather(&mut self, pool: &mut AllocationPool) -> Result<(), Error> {
        let mut writer = pool.writer();
        for piece in self.pieces() {
            writer.put(piece)?;
        }
        let gathered = writer.finish();
        *self = gathered;
        Ok(())
    }

    fn push_slice(&mut self, slice: Slice) {
        self.length += slice.len();
        self.slices.push_back(slice);
    }

    /// Appends `slice`. If `slice` directly follows the last slice in the same segment, extends the
    /// last slice instead of adding one. Fails if the aggregate has [`SLICES_MAX`] slices.
    fn append_slice(&mut self, slice: Slice) -> Result<(), Error> {
        let length = slice.len();
        if self.slices.back_mut().is_some_and(|last| last.join(&slice)) {
            self.length += length;
            return Ok(());
        }
        self.check_slice_count(1)?;
        self.push_slice(slice);
        Ok(())
    }

    fn check_slice_count(&self, count: usize) -> Result<(), Error> {
        let slices = self.slices.len().saturating_add(count);
        if slices > SLICES_MAX { Err(Error::TooMany { slices }) } else { Ok(()) }
    }

    const fn check_range(&self, range: &Range<usize>) -> Result<(), Error> {
        if range.start <= range.end && range.end <= self.length {
            Ok(())
        } else {
            Err(Error::OutOfRange { from: range.start, to: range.end, length: self.length })
        }
    }
}

impl Origin for Aggregate {
    fn lease(&self, pointer: RichPointer) -> Result<Lease, Fault> {
        // M4: derived from a lease.
        let covers = |slice: &&Slice| slice.lease().covers(pointer.dbuf(), pointer.place);
        let slice = self.slices().find(covers).ok_or_else(|| Fault::UnknownDbuf(pointer.dbuf()))?;
        Ok(slice.lease().clone())
    }
}

impl fmt::Debug for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aggregate({} bytes in {} slices)", self.length, self.slices.len())
    }
}

/// Reason why an operation on aggregates failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The lease does not cover the block, or the block is longer than the pool allows.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// The pool has no free segment for the copied or allocated bytes. Contains the occupancy of
    /// the pool.
    #[error(
        "the pool is full: of its {} segments, {} are held by leases and {} by pins; drop \
         aggregates, or make the pool larger",
        .0.segments, .0.leased, .0.pinned
    )]
    Full(PoolUsage),
    /// The aggregate would have more than [`SLICES_MAX`] slices.
    #[error("an aggregate of {slices} slices exceeds the maximum of {SLICES_MAX}: gather it")]
    TooMany {
        /// Number of slices that the aggregate would have.
        slices: usize,
    },
    /// The requested range is not within the aggregate.
    #[error("bytes {from} to {to} exceed an aggregate of {length}")]
    OutOfRange {
        /// Start of the requested range, in bytes.
        from: usize,
        /// End of the requested range, in bytes.
        to: usize,
        /// Length of the aggregate in bytes.
        length: usize,
    },
}

#[cfg(test)]
mod tests;
