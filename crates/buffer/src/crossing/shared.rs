//! The state that the writer and the readers of a crossing share. Invariants: C3 and C5 of
//! [`crossing`](super).

use super::writer::InFlightSegment;
use crate::Fault;
use crate::pool::PoolMemory;
use crate::signal::Doorbell;
use abi::DbufId;
use std::sync::{Arc, Mutex, OnceLock};

/// The state that the writer and all readers of a crossing share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Memories into which entries may point (C5).
    memories: [OnceLock<Arc<PoolMemory>>; CROSSING_POOLS_MAX],
    /// Leases of a writer that has exited, held for the remaining readers (C3).
    pub(super) orphaned: Mutex<Vec<InFlightSegment>>,
    pub(super) writer_doorbell: Arc<Doorbell>,
    pub(super) reader_doorbells: Box<[Arc<Doorbell>]>,
}

/// Maximum number of pools whose blocks one crossing can carry.
const CROSSING_POOLS_MAX: usize = 64;

impl Shared {
    /// Creates the state of a crossing without any registered memory.
    pub(super) fn new(writer_doorbell: Arc<Doorbell>, reader_doorbells: &[Arc<Doorbell>]) -> Self {
        Self {
            memories: std::array::from_fn(|_| OnceLock::new()),
            orphaned: Mutex::new(Vec::new()),
            writer_doorbell,
            reader_doorbells: reader_doorbells.into(),
        }
    }

    /// Returns the memory of a dbuf; `None` if the dbuf is not registered.
    pub(super) fn find_memory(&self, dbuf: DbufId) -> Option<&Arc<PoolMemory>> {
        self.memories.iter().map_while(OnceLock::get).find(|memory| memory.id == dbuf)
    }

    /// Registers a memory under its id. Only the writer calls this. Fails with
    /// [`Fault::UnknownDbuf`] if the table is full or another memory has the same id.
    pub(super) fn register(&self, memory: &Arc<PoolMemory>) -> Result<(), Fault> {
        for entry in &self.memories {
            let registered = entry.get_or_init(|| memory.clone());
            if Arc::ptr_eq(registered, memory) {
                return Ok(());
            }
            if registered.id == memory.id {
                break;
            }
        }
        Err(Fault::UnknownDbuf(memory.id))
    }
}
