//! Aggregates: data as a list of slices of immutable bytes. [IOL §2.1, §2.4, §2.8]
//!
//! In: blocks of pools, each with a [`Lease`] that keeps it; or bytes, which are written once into
//! an [`AllocationPool`]. Out: an [`Aggregate`], which is cut, joined, changed and handed on
//! without touching the bytes, and read in pieces, as a file, or by `writev`.
//!
//! ```text
//! aggregate   [ slice ][ slice ][ slice ]            24 + 9 + 1400 bytes, in this order
//!                 |        |        |
//! pool 7      ...█████.....|........|..............   leased: stays while anybody refers to it
//! pool 3      .............████....████████████████   another pool, other readers
//! ```
//!
//! The bytes are never written again, so any number of aggregates, in any thread, may refer to the
//! same ones, and none of them sees another change its data: *aggregates are passed by value, bytes
//! by reference*. What an aggregate refers to lives exactly as long as it does: each slice has a
//! lease, a count that safe code cannot forge (M4 of `pool`) and that a thread which panics gives
//! back like any other. Between processes an [`owner`] hands out pools, by their [`access`] lists,
//! at a [`server`]; [`holders`] counts what others refer to; what is [`Frozen`] they read in place.
//!
//! | operation | costs | of the source |
//! |---|---|---|
//! | [`AllocationPool::allocate`], `copy`, `read` | the bytes, once | create |
//! | `clone` | O(slices), no bytes | duplicate |
//! | [`truncate`](Aggregate::truncate), [`trim`](Aggregate::trim) | O(slices dropped) | truncate |
//! | [`prepend`], [`append`] | O(slices added) | prepend, append, concatenate |
//! | [`split_off`](Aggregate::split_off) | O(slices behind the cut) | split |
//! | [`part`](Aggregate::part), [`byte`](Aggregate::byte) | O(slices) | data access |
//! | [`replace`](Aggregate::replace) | O(slices) | mutate, by joining |
//! | [`mutate`], [`overwrite`] | O(slices), and the bytes of the range | mutate |
//! | [`gather`](Aggregate::gather) | all bytes, once | the contiguous form of §2.8 |
//!
//! [`prepend`]: Aggregate::prepend
//! [`append`]: Aggregate::append
//! [`mutate`]: Aggregate::mutate
//! [`overwrite`]: Aggregate::overwrite
//!
//! Up to four slices lie in the aggregate itself; more take memory from the heap, up to
//! [`SLICES_MAX`]. Slices are never joined behind the caller's back, even where their bytes happen
//! to follow each other: what is cached about a slice ([`ContentId`]) is found again.
//!
//! Deviation: bytes are never changed in place, not even when only one aggregate refers to them
//! (the source's footnote 2). Whoever has a pool may look at any of its blocks without a lease, so
//! no count proves that nobody looks. The place to change bytes is the draft, before they are shown
//! (docs/book/decisions/0013-aggregates-never-edit-in-place.md).

use abi::{BlockMetadata, Entry, Flags, Marks, RichPointer};
use buffer::Fault;
use buffer::crossing::Origin;
use buffer::pool::{Lease, Usage};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

mod allocate;
pub mod checksum;
mod content;
mod frozen;
pub mod holders;
mod list;
pub mod owner;
pub mod pipe;
mod refusal;
pub mod server;
mod slice;

pub use allocate::{AllocationPool, Writer};
pub use content::AggregateReader;
pub use frozen::Frozen;
use list::List;
pub use list::Slices;
pub use refusal::GrantRefusal;
pub use slice::{ContentId, Slice};

/// The most slices that one aggregate has.
pub const SLICES_MAX: usize = 1 << 16;

/// Data as an ordered list of slices. By default: none.
#[derive(Clone, Default)]
pub struct Aggregate {
    slices: List,
    /// Bytes of all slices.
    length: usize,
}

impl Aggregate {
    /// Nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The block that a pointer names, of a segment that this lease keeps
    /// ([`Pool::lease`](buffer::pool::Pool::lease),
    /// [`Batch::lease`](buffer::crossing::Batch::lease)). Refused for holes, and for what does not
    /// lie in the segment.
    pub fn over(lease: Lease, pointer: RichPointer) -> Result<Self, Error> {
        Self::of(Arc::new(lease), pointer)
    }

    fn of(lease: Arc<Lease>, pointer: RichPointer) -> Result<Self, Error> {
        let slice = Slice::new(lease, pointer)?;
        let mut aggregate = Self::new();
        if slice.len() > 0 {
            aggregate.push(slice);
        }
        Ok(aggregate)
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

    /// The slices in order; none of them is empty.
    #[must_use]
    pub fn slices(&self) -> Slices<'_> {
        self.slices.iter()
    }

    /// The bytes in order, piece by piece; no piece is empty.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.slices().map(Slice::bytes)
    }

    /// Returns the entries by which this aggregate is sent to another space: a block for each
    /// slice, the first and the last marked (CONTRACT 6). The aggregate is the origin for
    /// [`crossing::Writer::push`](buffer::crossing::Writer::push).
    pub fn entries(&self, context: BlockMetadata) -> impl Iterator<Item = Entry> {
        let last = self.slices.len().saturating_sub(1);
        self.slices().enumerate().map(move |(index, slice)| {
            let first = if index == 0 { Flags::FIRST } else { Flags::NONE };
            let ending = if index == last { Flags::LAST } else { Flags::NONE };
            let flags = context.flags.with(first).with(ending);
            let pointer = slice.pointer();
            Entry::new(pointer, BlockMetadata { flags, ..context }, Marks::bare(pointer.length()))
        })
    }

    /// Cuts off all behind the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        while self.length > length
            && let Some(mut last) = self.slices.pop_back()
        {
            self.length -= last.len();
            if self.length < length {
                last.narrow(0, length - self.length);
                self.push(last);
            }
        }
    }

    /// Cuts off the first `count` bytes.
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

    /// Puts another aggregate behind this one: *append* and *concatenate*. Refused, and nothing
    /// changed, for more than [`SLICES_MAX`] slices together.
    pub fn append(&mut self, mut other: Self) -> Result<(), Error> {
        self.has_room(other.slices.len())?;
        while let Some(slice) = other.slices.pop_front() {
            self.push(slice);
        }
        Ok(())
    }

    /// Puts another aggregate before this one: a header before its data. Refused as
    /// [`Aggregate::append`].
    pub fn prepend(&mut self, mut other: Self) -> Result<(), Error> {
        self.has_room(other.slices.len())?;
        while let Some(slice) = other.slices.pop_back() {
            self.length += slice.len();
            self.slices.push_front(slice);
        }
        Ok(())
    }

    /// Splits in two: keeps the first `at` bytes and answers the rest, which is nothing where `at`
    /// lies beyond the end.
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
                self.push(front);
            }
            rest.length += last.len();
            rest.slices.push_front(last);
        }
        rest
    }

    /// A duplicate of these bytes of it.
    pub fn part(&self, range: Range<usize>) -> Result<Self, Error> {
        self.is_inside(&range)?;
        let mut part = Self::new();
        let mut before = 0;
        for slice in self.slices() {
            let (from, to) = (range.start.max(before), range.end.min(before + slice.len()));
            if from < to {
                let mut piece = slice.clone();
                piece.narrow(from - before, to - from);
                part.push(piece);
            }
            before += slice.len();
            if before >= range.end {
                break;
            }
        }
        Ok(part)
    }

    /// Puts another aggregate in the place of these bytes: inserts where the range is empty,
    /// deletes where the other is. Unchanged where it is refused.
    pub fn replace(&mut self, range: Range<usize>, other: Self) -> Result<(), Error> {
        self.is_inside(&range)?;
        // Cutting adds one slice at most on either side.
        self.has_room(other.slices.len() + 2)?;
        let behind = self.split_off(range.end);
        self.truncate(range.start);
        for mut part in [other, behind] {
            while let Some(slice) = part.slices.pop_front() {
                self.push(slice);
            }
        }
        Ok(())
    }

    /// Changes these bytes: copies them, and no others, into a new block of `pool`, lets `edit`
    /// write there, and joins it with what is around. Nobody else who refers to the old bytes sees
    /// it. The range is at most [`AllocationPool::block_max`] long. Unchanged where it is refused.
    pub fn mutate(
        &mut self,
        range: Range<usize>,
        pool: &mut AllocationPool,
        edit: impl FnOnce(&mut [u8]),
    ) -> Result<(), Error> {
        self.is_inside(&range)?;
        if range.is_empty() {
            return Ok(());
        }
        self.has_room(3)?;
        let length = range.len();
        let changed = pool.allocate(length, |room| {
            self.copy(range.start, room);
            edit(room);
            length
        })?;
        self.replace(range, changed)
    }

    /// Puts other bytes in the place of as many from `at` on; of what was there nothing is read.
    /// Unchanged where it is refused.
    pub fn overwrite(
        &mut self,
        at: usize,
        bytes: &[u8],
        pool: &mut AllocationPool,
    ) -> Result<(), Error> {
        let range = at..at.saturating_add(bytes.len());
        self.is_inside(&range)?;
        let changed = pool.copy(bytes)?;
        self.replace(range, changed)
    }

    /// Copies all of it into as few slices as the pool allows: for data that has been changed in
    /// so many places that finding a byte costs more than copying them (§2.8, third case).
    /// Unchanged where it is refused.
    pub fn gather(&mut self, pool: &mut AllocationPool) -> Result<(), Error> {
        let mut writer = pool.writer();
        for piece in self.pieces() {
            writer.put(piece)?;
        }
        let gathered = writer.finish();
        *self = gathered;
        Ok(())
    }

    fn push(&mut self, slice: Slice) {
        self.length += slice.len();
        self.slices.push_back(slice);
    }

    /// Makes the last slice longer by a slice that follows it in its segment, or puts it behind.
    fn extend(&mut self, slice: Slice) -> Result<(), Error> {
        let length = slice.len();
        if self.slices.back_mut().is_some_and(|last| last.join(&slice)) {
            self.length += length;
            return Ok(());
        }
        self.has_room(1)?;
        self.push(slice);
        Ok(())
    }

    fn has_room(&self, count: usize) -> Result<(), Error> {
        let slices = self.slices.len().saturating_add(count);
        if slices > SLICES_MAX { Err(Error::TooMany { slices }) } else { Ok(()) }
    }

    const fn is_inside(&self, range: &Range<usize>) -> Result<(), Error> {
        if range.start <= range.end && range.end <= self.length {
            Ok(())
        } else {
            Err(Error::OutOfRange { from: range.start, to: range.end, length: self.length })
        }
    }
}

impl Origin for Aggregate {
    fn lease(&self, pointer: RichPointer) -> Result<Lease, Fault> {
        // M4: made from a lease.
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

/// The reason for which an aggregate was not made or not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The lease does not cover the block, or the block is longer than the pool allows.
    Fault(Fault),
    /// The pool has no room.
    Full(Usage),
    /// It would have more than [`SLICES_MAX`] slices.
    TooMany {
        /// Slices that the result would have.
        slices: usize,
    },
    /// The range does not lie in the aggregate.
    OutOfRange {
        /// Start of the range.
        from: usize,
        /// End of the range.
        to: usize,
        /// Bytes of the aggregate.
        length: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::Full(usage) => write!(
                f,
                "the pool is full: of its {} segments {} are kept by leases and {} by pins; drop \
                 aggregates, or make the pool larger",
                usage.segments, usage.leased, usage.pinned
            ),
            Self::TooMany { slices } => write!(
                f,
                "an aggregate of {slices} slices is longer than the {SLICES_MAX} that it may \
                 have: gather it"
            ),
            Self::OutOfRange { from, to, length } => {
                write!(f, "bytes {from} to {to} do not lie in an aggregate of {length}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Fault(fault) => Some(fault),
            _ => None,
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

#[cfg(test)]
mod tests;
