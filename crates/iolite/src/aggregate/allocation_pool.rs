//! Allocation from pools with access lists. The choice of the pool determines who may read the
//! data. [IOL §2.3, §2.4]

use super::{Aggregate, Error, Slice};
use abi::access::AccessList;
use abi::{Class, DbufId, Extent, RichPointer};
use buffer::Fault;
use buffer::pool::{Draft, Lease, Pool, PoolConfig, PoolUsage};
use std::io::{self, Read, Write};
use std::sync::Arc;

/// A pool for aggregates, with one access list for all data in the pool.
///
/// A producer chooses the pool, and thereby the readers, before it stores data, so granting access
/// needs no copy. When the pool is full, segments to which no aggregate refers are reused. A slice
/// keeps its entire segment from being reused, so long-lived data should not share a pool with
/// short-lived data.
#[derive(Debug)]
pub struct AllocationPool {
    pool: Pool,
    access: Arc<AccessList>,
    /// Lease on the open segment, which contains the last block and has room for later blocks.
    /// `None` if the next block begins a new segment.
    open: Option<Arc<Lease>>,
}

impl AllocationPool {
    /// Creates a pool whose data the users in `access` may read. `id` must be unique among all
    /// dbufs.
    pub fn new(id: DbufId, config: PoolConfig, access: AccessList) -> sys::Result<Self> {
        Ok(Self { pool: Pool::new(id, config)?, access: Arc::new(access), open: None })
    }

    /// Returns the access list of all data in this pool.
    #[must_use]
    pub const fn access_list(&self) -> &Arc<AccessList> {
        &self.access
    }

    /// Returns the underlying pool.
    #[must_use]
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the maximum length, in bytes, of a block, and thus of a slice.
    #[must_use]
    pub fn block_length_max(&self) -> usize {
        self.pool.block_length_max()
    }

    /// Returns the occupancy of the pool in segments.
    #[must_use]
    pub fn usage(&self) -> PoolUsage {
        let mut usage = self.pool.usage();
        // Our own lease on the last segment does not prevent its reuse.
        let is_unused = |open: &Arc<Lease>| Arc::strong_count(open) == 1 && open.is_only_lease();
        usage.leased -= usize::from(self.open.as_ref().is_some_and(is_unused));
        usage
    }

    /// Allocates a contiguous block of up to `length` bytes, and returns it as an aggregate. `fill`
    /// writes into the block, whose initial contents are unspecified, and returns the number of
    /// bytes written. The bytes are immutable once `fill` has returned. Fails if the block is too
    /// long or the pool is full.
    pub fn allocate(
        &mut self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<Aggregate, Error> {
        if length > self.block_length_max() {
            return Err(Fault::TooLong { length, limit: self.block_length_max() }.into());
        }
        let mut draft = self.draft(length, length)?;
        let used = draft.get_mut(..length).map_or(0, fill).min(length);
        let place = draft.commit(used);
        let (lease, pointer) = self.lease_block(place)?;
        Aggregate::from_leased(lease, pointer)
    }

    /// Allocates like [`AllocationPool::allocate`], but returns only a rich pointer. The caller
    /// must lease the block's segment before the next operation on the pool. Returns `None` if the
    /// block does not fit without reclaiming segments.
    #[inline]
    pub(crate) fn append_block(
        &mut self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Option<RichPointer> {
        let mut draft = self.pool.draft(length, length)?;
        let used = draft.get_mut(..length).map_or(0, fill).min(length);
        Some(RichPointer::new(self.pool.id(), draft.commit(used), Class::YES))
    }

    /// Reclaims segments to which no aggregate refers, so that the next block begins in the lowest
    /// free segment. Returns the number of segments that are still leased.
    pub(crate) fn reclaim_segments(&mut self) -> usize {
        // The exclusive borrow rules out unleased readers of the pool.
        self.open = None;
        self.pool.end_pass();
        self.pool.usage().leased
    }

    /// Returns true if a block of this length fits. Reclaims unreferenced segments if the block
    /// would not fit otherwise.
    pub(crate) fn make_room(&mut self, length: usize) -> bool {
        self.draft(length, length).is_ok()
    }

    /// Copies `bytes` into the pool, beginning after the last block in its segment. A slice ends
    /// only at the end of its segment or at [`AllocationPool::block_length_max`] bytes. Fails if
    /// the pool is full, or if the aggregate would exceed [`SLICES_MAX`](super::SLICES_MAX) slices.
    pub fn copy(&mut self, bytes: &[u8]) -> Result<Aggregate, Error> {
        let mut writer = self.writer();
        writer.put(bytes)?;
        Ok(writer.finish())
    }

    /// Reads up to `max` bytes from `from` into the pool, with a single call, which may return
    /// fewer bytes. Returns an empty aggregate at the end of the file. Fails with
    /// [`io::ErrorKind::StorageFull`] if the pool is full. This is `IOL_read` with a pool.
    pub fn read(&mut self, mut from: impl Read, max: usize) -> io::Result<Aggregate> {
        if max == 0 {
            return Ok(Aggregate::new());
        }
        let least = max.min(READ_SIZE_MIN).min(self.block_length_max());
        let mut draft = self.draft(least, max).map_err(to_io_error)?;
        let room = draft.get_mut(..).unwrap_or_default();
        let wanted = room.len().min(max);
        let used = from.read(room.get_mut(..wanted).unwrap_or_default())?;
        let place = draft.commit(used);
        let (lease, pointer) = self.lease_block(place).map_err(to_io_error)?;
        Aggregate::from_leased(lease, pointer).map_err(to_io_error)
    }

    /// Returns a writer that builds an aggregate in this pool.
    pub fn writer(&mut self) -> Writer<'_> {
        Writer { pool: self, aggregate: Aggregate::new() }
    }

    /// Reserves a block of `min` to `max` bytes, which the caller fills. Reclaims unreferenced
    /// segments if necessary. Fails if the pool is full.
    fn draft(&mut self, min: usize, max: usize) -> Result<Draft<'_>, Error> {
        if self.pool.draft(min, min).is_none() {
            // The exclusive borrow rules out unleased readers of the pool.
            self.open = None;
            self.pool.end_pass();
            if self.pool.draft(min, min).is_none() {
                self.abandon_open_segment();
            }
        }
        self.pool.draft(min, max).ok_or_else(|| Error::Full(self.pool.usage()))
    }

    /// Closes the segment with the last block if no aggregate refers to this segment. A block that
    /// is too long for the remaining bytes can then reuse the segment from its start.
    fn abandon_open_segment(&mut self) {
        let Some(place) = self.pool.draft(1, 1).map(|rest| rest.commit(0)) else { return };
        if self.pool.lease(place).is_ok_and(|lease| lease.is_only_lease()) {
            if let Some(rest) = self.pool.draft(1, self.block_length_max()) {
                let length = rest.len();
                rest.commit(length);
            }
            self.pool.end_pass();
        }
    }

    /// Leases the segment of a block, and returns the lease with the block's pointer.
    fn lease_block(&mut self, place: Extent) -> Result<(Arc<Lease>, RichPointer), Error> {
        let dbuf = self.pool.id();
        let pointer = RichPointer::new(dbuf, place, Class::YES);
        match &self.open {
            Some(open) if open.covers(dbuf, place) => Ok((open.clone(), pointer)),
            _ => {
                let lease = Arc::new(self.pool.lease(place)?);
                self.open = Some(lease.clone());
                Ok((lease, pointer))
            }
        }
    }
}

/// Minimum number of bytes to reserve for a read call. If the rest of the open segment is shorter,
/// the read uses another segment.
const READ_SIZE_MIN: usize = 4096;

/// A writer that builds an aggregate in a pool. Consecutive writes share a slice if they are in the
/// same segment.
#[derive(Debug)]
pub struct Writer<'a> {
    pool: &'a mut AllocationPool,
    aggregate: Aggregate,
}

impl Writer<'_> {
    /// Writes all of these bytes. Fails if the pool is full, or if the aggregate would exceed
    /// [`SLICES_MAX`](super::SLICES_MAX) slices; part of the bytes may then have been written.
    pub fn put(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let written = self.write_part(bytes)?;
            bytes = bytes.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// Returns the bytes written so far as an aggregate.
    #[must_use]
    pub fn finish(self) -> Aggregate {
        self.aggregate
    }

    fn write_part(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let mut draft = self.pool.draft(1, bytes.len())?;
        let count = draft.len().min(bytes.len());
        if let (Some(to), Some(from)) = (draft.get_mut(..count), bytes.get(..count)) {
            to.copy_from_slice(from);
        }
        let place = draft.commit(count);
        let (lease, pointer) = self.pool.lease_block(place)?;
        self.aggregate.append_slice(Slice::new(lease, pointer)?)?;
        Ok(count)
    }
}

impl Write for Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        self.write_part(bytes).map_err(to_io_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn to_io_error(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, error)
}
