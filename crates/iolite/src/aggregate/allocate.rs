//! A pool and who may read it: the choice of the pool decides that for all data in it.
//! [IOL §2.3, §2.4]

use super::{Aggregate, Error, Slice};
use abi::access::AccessList;
use abi::{Class, DbufId, Extent, RichPointer};
use buffer::Fault;
use buffer::pool::{Config, Draft, Lease, Pool, Usage};
use std::io::{self, Read, Write};
use std::sync::Arc;

/// A pool whose blocks become aggregates, with one access list for all of it.
///
/// Who may read is decided before data is stored, by choosing the pool; so nothing is copied when
/// it is handed on. Segments are used again by themselves when the pool is full and no aggregate
/// refers to them any more. A segment is kept as a whole: data that lives for long should not lie
/// in the pool of data that does not.
#[derive(Debug)]
pub struct AllocationPool {
    pool: Pool,
    access: Arc<AccessList>,
    /// Keeps the segment of the last block, for the blocks that follow in it.
    open: Option<Arc<Lease>>,
}

impl AllocationPool {
    /// Makes a pool with id `id`, which no other has.
    pub fn new(id: DbufId, config: Config, access: AccessList) -> sys::Result<Self> {
        Ok(Self { pool: Pool::new(id, config)?, access: Arc::new(access), open: None })
    }

    /// Returns the list of those who may read what is allocated here.
    #[must_use]
    pub const fn access(&self) -> &Arc<AccessList> {
        &self.access
    }

    /// The memory itself.
    #[must_use]
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The longest block, and so the longest slice.
    #[must_use]
    pub fn block_max(&self) -> usize {
        self.pool.block_max()
    }

    /// Returns the fill of the pool.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut usage = self.pool.usage();
        // Our own lease on the last segment keeps it from nobody.
        let is_unused = |open: &Arc<Lease>| Arc::strong_count(open) == 1 && open.is_only();
        usage.leased -= usize::from(self.open.as_ref().is_some_and(is_unused));
        usage
    }

    /// A block of up to `length` bytes next to each other: `fill` writes them and answers how many.
    /// What it finds there is of no meaning. Nobody else sees them before it returns, and nobody
    /// writes them after.
    pub fn allocate(
        &mut self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<Aggregate, Error> {
        if length > self.block_max() {
            return Err(Fault::TooLong { length, limit: self.block_max() }.into());
        }
        let mut draft = self.draft(length, length)?;
        let used = draft.get_mut(..length).map_or(0, fill).min(length);
        let place = draft.commit(used);
        let (lease, pointer) = self.keep(place)?;
        Aggregate::of(lease, pointer)
    }

    /// As [`AllocationPool::allocate`], as a rich pointer alone: the caller leases its segment
    /// before anything else is asked of the pool. `None`: there is no room without taking used
    /// segments back.
    #[inline]
    pub(crate) fn block(
        &mut self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Option<RichPointer> {
        let mut draft = self.pool.draft(length, length)?;
        let used = draft.get_mut(..length).map_or(0, fill).min(length);
        Some(RichPointer::new(self.pool.id(), draft.commit(used), Class::YES))
    }

    /// Takes used segments back; whether there is room for a block of this length then.
    pub(crate) fn make_room(&mut self, length: usize) -> bool {
        self.draft(length, length).is_ok()
    }

    /// A copy of these bytes, in as few slices as the pool allows.
    pub fn copy(&mut self, bytes: &[u8]) -> Result<Aggregate, Error> {
        let mut writer = self.writer();
        writer.put(bytes)?;
        Ok(writer.finish())
    }

    /// Reads once from a file into this pool, up to `max` bytes: `IOL_read` with a pool. May read
    /// less than asked for, as that does; nothing at the end of the file.
    pub fn read(&mut self, mut from: impl Read, max: usize) -> io::Result<Aggregate> {
        if max == 0 {
            return Ok(Aggregate::new());
        }
        let least = max.min(READ_MIN).min(self.block_max());
        let mut draft = self.draft(least, max).map_err(full)?;
        let room = draft.get_mut(..).unwrap_or_default();
        let wanted = room.len().min(max);
        let used = from.read(room.get_mut(..wanted).unwrap_or_default())?;
        let place = draft.commit(used);
        let (lease, pointer) = self.keep(place).map_err(full)?;
        Aggregate::of(lease, pointer).map_err(full)
    }

    /// Writes an aggregate as if it were a file.
    pub fn writer(&mut self) -> Writer<'_> {
        Writer { pool: self, aggregate: Aggregate::new() }
    }

    /// Room for at least `min` bytes; used segments are taken back if there is no other.
    fn draft(&mut self, min: usize, max: usize) -> Result<Draft<'_>, Error> {
        if self.pool.draft(min, min).is_none() {
            // No slice is borrowed from the pool (`&mut self`): what is looked at is leased.
            self.open = None;
            self.pool.turn();
            if self.pool.draft(min, min).is_none() {
                self.give_up_open();
            }
        }
        self.pool.draft(min, max).ok_or_else(|| Error::Full(self.pool.usage()))
    }

    /// A pool stays in a segment that is not half full yet. If nobody refers to it any more, what
    /// does not fit into the rest of it still fits into all of it.
    fn give_up_open(&mut self) {
        let Some(place) = self.pool.draft(1, 1).map(|rest| rest.commit(0)) else { return };
        if self.pool.lease(place).is_ok_and(|lease| lease.is_only()) {
            if let Some(rest) = self.pool.draft(1, self.block_max()) {
                let length = rest.len();
                rest.commit(length);
            }
            self.pool.turn();
        }
    }

    /// Leases the segment of a block, and names the block.
    fn keep(&mut self, place: Extent) -> Result<(Arc<Lease>, RichPointer), Error> {
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

/// The rest of a segment that is shorter than this is not worth a call to the kernel.
const READ_MIN: usize = 4096;

/// Writes an aggregate into a pool: what is written in turn lies in one slice as far as segments
/// allow.
#[derive(Debug)]
pub struct Writer<'a> {
    pool: &'a mut AllocationPool,
    aggregate: Aggregate,
}

impl Writer<'_> {
    /// Writes all of these bytes.
    pub fn put(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let written = self.put_some(bytes)?;
            bytes = bytes.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// Returns the bytes written so far as an aggregate.
    #[must_use]
    pub fn finish(self) -> Aggregate {
        self.aggregate
    }

    fn put_some(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let mut draft = self.pool.draft(1, bytes.len())?;
        let count = draft.len().min(bytes.len());
        if let (Some(to), Some(from)) = (draft.get_mut(..count), bytes.get(..count)) {
            to.copy_from_slice(from);
        }
        let place = draft.commit(count);
        let (lease, pointer) = self.pool.keep(place)?;
        self.aggregate.extend(Slice::new(lease, pointer)?)?;
        Ok(count)
    }
}

impl Write for Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        self.put_some(bytes).map_err(full)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn full(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, error)
}
