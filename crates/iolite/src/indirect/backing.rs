//! The default dbuf of a space, which receives written bytes that are not in a dbuf. [SL §5.3.2,
//! D8]

use super::held_segments;
use crate::aggregate::AllocationPool;
use abi::{DbufId, RichPointer};
use buffer::Fault;
use buffer::pool;
use buffer::scale::{SegmentWindow, SidePlacement, SizingState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The dbuf into which an indirect stream copies blocks. The readers of the stream must be able to
/// request this dbuf, so share it through the grant server before passing it to
/// [`indirect`](super::indirect_stream()). Its size limits the memory in flight.
///
/// Clones share the same dbuf, so several streams of a space can use one. A dbuf of a single stream
/// can size itself ([`Backing::with_window`]).
#[derive(Clone, Debug)]
pub struct Backing {
    pool: Arc<Mutex<AllocationPool>>,
    id: DbufId,
    block_max: usize,
    window: Option<Arc<SegmentWindow>>,
}

/// Reason why a block was not written.
#[derive(Debug)]
pub(super) enum WriteRefusal {
    /// The pool has no room until readers release blocks.
    Full,
    /// The stream has used as many segments as its part of the pool has, and there is still room.
    /// The caller must end the round ([`BackingHandle::end_round`]).
    RoundOver,
    Fault(Fault),
}

impl Backing {
    /// Makes this pool the backing dbuf of one or several streams.
    #[must_use]
    pub fn new(pool: AllocationPool) -> Self {
        let (id, block_max) = (pool.pool().id(), pool.block_length_max());
        Self { pool: Arc::new(Mutex::new(pool)), id, block_max, window: None }
    }

    /// Limits the stream to a part of the pool, whose size `window` adapts to the number of
    /// segments that readers still need. Has no effect if the dbuf has clones, because the size
    /// then depends on several streams. [SL §5.4]
    #[must_use]
    pub fn with_window(self, window: SegmentWindow) -> Self {
        Self { window: Some(Arc::new(window)), ..self }
    }

    /// Calls `work` with the pool, to share the pool or to store other data in it.
    pub fn with_pool<T>(&self, work: impl FnOnce(&mut AllocationPool) -> T) -> T {
        work(&mut self.lock_pool())
    }

    /// Converts the dbuf into the handle of one stream. If there are no clones, the handle needs no
    /// lock.
    pub(super) fn into_handle(self) -> BackingHandle {
        let Self { pool, id, block_max, window } = self;
        let pool = match Arc::try_unwrap(pool) {
            Ok(own) => BackingPool::Own {
                pool: Box::new(own.into_inner().unwrap_or_else(PoisonError::into_inner)),
                window: window.and_then(Arc::into_inner).map(Box::new),
            },
            Err(shared) => BackingPool::Shared(shared),
        };
        BackingHandle { pool, id, block_max }
    }

    fn lock_pool(&self) -> MutexGuard<'_, AllocationPool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The handle through which one stream writes to its backing dbuf, the pool for copied blocks.
#[derive(Debug)]
pub(super) struct BackingHandle {
    pool: BackingPool,
    id: DbufId,
    block_max: usize,
}

#[derive(Debug)]
enum BackingPool {
    /// The pool of a single stream, which needs no lock. `window` limits the part of the pool that
    /// the stream uses; `None` means no limit.
    Own {
        pool: Box<AllocationPool>,
        window: Option<Box<SegmentWindow>>,
    },
    Shared(Arc<Mutex<AllocationPool>>),
}

impl BackingHandle {
    pub(super) const fn block_length_max(&self) -> usize {
        self.block_max
    }

    pub(super) const fn dbuf(&self) -> DbufId {
        self.id
    }

    /// Writes one block, and returns its pointer. Calls `keep` with the pointer and the pool while
    /// the block is in the pool's open segment; `keep` must hold the segment.
    #[inline]
    pub(super) fn write(
        &mut self,
        length: usize,
        fill: &mut Option<impl FnOnce(&mut [u8]) -> usize>,
        keep: impl FnOnce(RichPointer, &pool::Pool) -> Result<(), Fault>,
    ) -> Result<RichPointer, WriteRefusal> {
        let limit = self.block_max;
        if length > limit {
            return Err(WriteRefusal::Fault(Fault::TooLong { length, limit }));
        }
        match &mut self.pool {
            BackingPool::Own { pool, window } => {
                if let Some(window) = window
                    && !pool.pool().fits_open_segment(length)
                    && let Some(refusal) = open_segment(window, pool)
                {
                    return Err(refusal);
                }
                write(pool, length, fill, keep)
            }
            BackingPool::Shared(shared) => {
                let mut pool = shared.lock().unwrap_or_else(PoisonError::into_inner);
                write(&mut pool, length, fill, keep)
            }
        }
    }
}

impl BackingHandle {
    /// Adapts the size of the part of the pool that the stream may use. Called when the stream has
    /// used as many segments as this part has. `sides` returns whether writer and readers share a
    /// processor. Returns true if the part has grown, so that the stream need not wait for its
    /// readers.
    pub(super) fn end_round(&mut self, sides: impl FnOnce() -> SidePlacement) -> bool {
        match &mut self.pool {
            BackingPool::Own { pool, window: Some(window) } => {
                window.end_round(pool.reclaim_segments(), sides())
            }
            _ => false,
        }
    }

    /// Returns the size in bytes of the part of the pool that the stream uses. Also returns the
    /// state of the automatic sizing, or `None` if the size is fixed.
    pub(super) fn memory_size(&self) -> (usize, Option<&SizingState>) {
        match &self.pool {
            BackingPool::Own { window: Some(window), .. } => (window.bytes(), Some(window.state())),
            BackingPool::Own { pool, .. } => (pool.pool().size(), None),
            BackingPool::Shared(shared) => {
                let pool = shared.lock().unwrap_or_else(PoisonError::into_inner);
                (pool.pool().size(), None)
            }
        }
    }
}

/// Counts a segment that the stream opens. Returns a refusal, and counts nothing, if the window is
/// used up or the round is over.
fn open_segment(window: &mut SegmentWindow, pool: &mut AllocationPool) -> Option<WriteRefusal> {
    let held = pool.reclaim_segments();
    if window.has_room(held) && window.is_round_over() {
        return Some(WriteRefusal::RoundOver);
    }
    (!window.try_count_opened_segment(held)).then_some(WriteRefusal::Full)
}

#[inline]
fn write(
    pool: &mut AllocationPool,
    length: usize,
    fill: &mut Option<impl FnOnce(&mut [u8]) -> usize>,
    keep: impl FnOnce(RichPointer, &pool::Pool) -> Result<(), Fault>,
) -> Result<RichPointer, WriteRefusal> {
    let mut fill = |room: &mut [u8]| fill.take().map_or(0, |fill| fill(room));
    let pointer = match pool.append_block(length, &mut fill) {
        Some(pointer) => pointer,
        None => {
            make_room(pool, length)?;
            pool.append_block(length, &mut fill).ok_or(WriteRefusal::Full)?
        }
    };
    keep(pointer, pool.pool()).map_err(WriteRefusal::Fault)?;
    Ok(pointer)
}

#[cold]
fn make_room(pool: &mut AllocationPool, length: usize) -> Result<(), WriteRefusal> {
    if pool.make_room(length) {
        return Ok(());
    }
    // Other streams over this dbuf may hold blocks that their readers have passed.
    held_segments::sweep_held_segments();
    if pool.make_room(length) { Ok(()) } else { Err(WriteRefusal::Full) }
}
