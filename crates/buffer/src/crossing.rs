//! Crossings of blocks from one space to another: rings of rich pointers whose bytes stay where
//! they are. [SL §5.3.1, §5.3.3]
//!
//! The writer pushes entries together with the *origin* of their bytes: its pool, or the batch that
//! it is reading from another crossing (so a block goes through many spaces and is never copied).
//! The readers look at the bytes in place, each at its own pace, and release what they have read.
//! Memory is bounded by the pools: the writer keeps one lease per segment in flight, and gives it
//! back when all readers have passed the last entry that points there.
//!
//! Only `block` and `drop new` make sense here: a crossing never overwrites, so it never copies.
//!
//! Why `&[u8]` is allowed. With M1 to M6 of `pool`:
//! - C1 Only the three pushes of [`Writer`] put entries into the ring: it is made here with the
//!   ring, lives in this process, and no other party can write its memory.
//! - C2 An entry is pushed only if view and frame lie, filled, in segments on which the writer
//!   holds a lease in `flight`, recorded with the position after the last entry that needs it.
//! - C3 The writer drops such a lease only after it has seen (Acquire) that the cursors of all
//!   readers that have not left passed that position. A writer that goes away leaves its leases to
//!   the ring, which keeps them until the last reader is gone.
//! - C4 A reader moves its cursor only in [`Reader::release`] and when it is dropped, both of which
//!   need the reader for themselves: so while a [`Batch`] lives, its entries are not passed.
//! - C5 From C2 to C4: while a batch lives, the writer holds a lease on each segment that the batch
//!   points into; by M4 the bytes stay as they are. The memory itself lives because the ring knows
//!   it (`known`), under the id by which the entry names it: the writer puts it there before it
//!   pushes the first entry, and never another memory under the same id.

use crate::ibuf;
use crate::pool::{Lease, Memory, Pool};
use crate::signal::Doorbell;
use crate::{Fault, Policy};
use abi::{DbufId, RichPointer};
use std::sync::{Arc, Mutex, OnceLock};
use writer::Flight;

mod reader;
mod writer;

pub use reader::{Batch, Reader};
pub use writer::Writer;

/// The shape of a crossing.
pub use crate::ibuf::{Columns, Config};

/// Makes a crossing. The writer's space sleeps on `writer_doorbell`; each reader's space on its
/// own, and there is one reader per doorbell (`config.readers` does not count).
pub fn crossing(
    config: &Config,
    writer_doorbell: Arc<Doorbell>,
    reader_bells: &[Arc<Doorbell>],
) -> Result<(Writer, Vec<Reader>), Fault> {
    if config.policy == Policy::Overwrite {
        return Err(Fault::Lossy);
    }
    let (writer, readers) = ibuf::ring(&Config { readers: reader_bells.len(), ..*config });
    let shared = Arc::new(Shared {
        known: std::array::from_fn(|_| OnceLock::new()),
        left: Mutex::new(Vec::new()),
        writer_doorbell,
        reader_bells: reader_bells.into(),
    });
    let reader = |ring| Reader::new(ring, shared.clone());
    let readers = readers.into_iter().map(reader).collect();
    Ok((Writer::new(writer, shared), readers))
}

/// The shared state of a crossing.
#[derive(Debug)]
struct Shared {
    /// The memories that entries may point into (C5).
    known: [OnceLock<Arc<Memory>>; KNOWN],
    /// The leases that a writer left behind (C3).
    left: Mutex<Vec<Flight>>,
    writer_doorbell: Arc<Doorbell>,
    reader_bells: Box<[Arc<Doorbell>]>,
}

/// Pools whose blocks one crossing can carry.
const KNOWN: usize = 64;

impl Shared {
    fn memory(&self, dbuf: DbufId) -> Option<&Arc<Memory>> {
        self.known.iter().map_while(OnceLock::get).find(|memory| memory.id == dbuf)
    }

    /// Makes a memory known under its id. Only the writer calls this.
    fn introduce(&self, memory: &Arc<Memory>) -> Result<(), Fault> {
        for place in &self.known {
            let known = place.get_or_init(|| memory.clone());
            if Arc::ptr_eq(known, memory) {
                return Ok(());
            }
            if known.id == memory.id {
                break;
            }
        }
        Err(Fault::UnknownDbuf(memory.id))
    }
}

/// A keeper of blocks that a writer may send on: a pool, a batch that is being read, an aggregate.
pub trait Origin {
    /// Returns a lease on the segment that a pointer names, if this keeps the segment. The writer
    /// checks that the lease covers the pointer.
    fn lease(&self, pointer: RichPointer) -> Result<Lease, Fault>;
}

/// Several pools that stand for one origin.
#[derive(Clone, Copy, Debug)]
pub struct Pools<'a>(pub &'a [Pool]);

impl Origin for Pool {
    fn lease(&self, pointer: RichPointer) -> Result<Lease, Fault> {
        if pointer.dbuf() == self.id() {
            self.lease(pointer.place)
        } else {
            Err(Fault::UnknownDbuf(pointer.dbuf()))
        }
    }
}

impl Origin for Pools<'_> {
    fn lease(&self, pointer: RichPointer) -> Result<Lease, Fault> {
        let pool = self.0.iter().find(|pool| pool.id() == pointer.dbuf());
        pool.ok_or_else(|| Fault::UnknownDbuf(pointer.dbuf()))?.lease(pointer.place)
    }
}

#[cfg(test)]
mod tests;
