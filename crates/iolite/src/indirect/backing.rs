//! The default dbuf of a space, for bytes that lie in no dbuf yet. [SL §5.3.2, D8]

use super::flight;
use crate::aggregate::AllocationPool;
use abi::{DbufId, RichPointer};
use buffer::Fault;
use buffer::pool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The dbuf that stands behind an indirect stream: copies go there. Its readers must be able to ask
/// for it: share it at the grant server before it is handed over. Its size bounds what is in
/// flight.
///
/// Clones are the same dbuf: several streams may stand on one, as those of a space do.
#[derive(Clone, Debug)]
pub struct Backing {
    pool: Arc<Mutex<AllocationPool>>,
    id: DbufId,
    block_max: usize,
}

/// The reason for which nothing was written.
#[derive(Debug)]
pub(super) enum Refused {
    /// There is no room now.
    Full,
    Fault(Fault),
}

impl Backing {
    /// Stands on this pool.
    #[must_use]
    pub fn new(pool: AllocationPool) -> Self {
        let (id, block_max) = (pool.pool().id(), pool.block_max());
        Self { pool: Arc::new(Mutex::new(pool)), id, block_max }
    }

    /// The pool itself: to share it, or to put other things there.
    pub fn pool<T>(&self, work: impl FnOnce(&mut AllocationPool) -> T) -> T {
        work(&mut self.lock())
    }

    /// Returns the memory that one stream writes to.
    pub(super) fn stand(self) -> Stand {
        let Self { pool, id, block_max } = self;
        let pool = match Arc::try_unwrap(pool) {
            Ok(own) => {
                Pool::Own(Box::new(own.into_inner().unwrap_or_else(PoisonError::into_inner)))
            }
            Err(shared) => Pool::Shared(shared),
        };
        Stand { pool, id, block_max }
    }

    fn lock(&self) -> MutexGuard<'_, AllocationPool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The backing dbuf of one stream, which may be that of others too.
#[derive(Debug)]
pub(super) struct Stand {
    pool: Pool,
    id: DbufId,
    block_max: usize,
}

#[derive(Debug)]
enum Pool {
    /// Used by one stream alone: no lock.
    Own(Box<AllocationPool>),
    Shared(Arc<Mutex<AllocationPool>>),
}

impl Stand {
    pub(super) const fn block_max(&self) -> usize {
        self.block_max
    }

    pub(super) const fn dbuf(&self) -> DbufId {
        self.id
    }

    /// Writes one block. `keep` gets its pointer and the pool, in which it is kept right now.
    #[inline]
    pub(super) fn write(
        &mut self,
        length: usize,
        fill: &mut Option<impl FnOnce(&mut [u8]) -> usize>,
        keep: impl FnOnce(RichPointer, &pool::Pool) -> Result<(), Fault>,
    ) -> Result<RichPointer, Refused> {
        let limit = self.block_max;
        if length > limit {
            return Err(Refused::Fault(Fault::TooLong { length, limit }));
        }
        match &mut self.pool {
            Pool::Own(pool) => write(pool, length, fill, keep),
            Pool::Shared(shared) => {
                let mut pool = shared.lock().unwrap_or_else(PoisonError::into_inner);
                write(&mut pool, length, fill, keep)
            }
        }
    }
}

#[inline]
fn write(
    pool: &mut AllocationPool,
    length: usize,
    fill: &mut Option<impl FnOnce(&mut [u8]) -> usize>,
    keep: impl FnOnce(RichPointer, &pool::Pool) -> Result<(), Fault>,
) -> Result<RichPointer, Refused> {
    let mut fill = |room: &mut [u8]| fill.take().map_or(0, |fill| fill(room));
    let pointer = match pool.block(length, &mut fill) {
        Some(pointer) => pointer,
        None => {
            make_room(pool, length)?;
            pool.block(length, &mut fill).ok_or(Refused::Full)?
        }
    };
    keep(pointer, pool.pool()).map_err(Refused::Fault)?;
    Ok(pointer)
}

#[cold]
fn make_room(pool: &mut AllocationPool, length: usize) -> Result<(), Refused> {
    if pool.make_room(length) {
        return Ok(());
    }
    // Other streams that stand here may keep what their readers have passed.
    flight::sweep();
    if pool.make_room(length) { Ok(()) } else { Err(Refused::Full) }
}
