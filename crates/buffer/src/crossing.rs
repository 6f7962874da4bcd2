//! Crossings between spaces of one process: rings of rich pointers to blocks that stay in place.
//! [SL §5.3.1, §5.3.3]
//!
//! The writer pushes entries together with the *origin* of their bytes: its pool, or the batch that
//! it is reading from another crossing, so a block passes through many spaces without a copy. Each
//! reader has its own position, accesses the bytes in place, and releases entries after reading
//! them. The pools bound the memory: the writer holds one lease per segment in flight, and returns
//! the lease when all readers have passed the last entry that points into the segment.
//!
//! A crossing supports only the policies `block` and `drop new`: entries are never overwritten, so
//! readers need not copy bytes out.
//!
//! `&[u8]` is sound here by these invariants, together with M1 to M6 of `pool`:
//! - C1 Only the three push methods of [`CrossingWriter`] put entries into the ring: the writer is
//!   created here together with the ring, whose memory belongs to this process and cannot be
//!   written by any other party.
//! - C2 An entry is pushed only if its view and frame are in the filled parts of segments on which
//!   the writer holds leases in `flight`. Each lease is recorded with the position after the last
//!   entry that needs it.
//! - C3 The writer drops such a lease only after it has seen (Acquire) that the cursors of all
//!   remaining readers passed that position. A writer that exits leaves its leases to the ring,
//!   which holds them until the last reader has left.
//! - C4 A reader advances its cursor only in [`CrossingReader::release`] and in `drop`, both of
//!   which need exclusive access to the reader. Hence no entry of a [`Batch`] is passed while the
//!   batch lives.
//! - C5 From C2 to C4: while a batch lives, the writer holds a lease on each segment that the batch
//!   points into; by M4 the bytes are not written. The ring's table `memories` keeps the memory
//!   alive under the id that entries name: the writer registers a memory before it pushes the first
//!   entry that points there, and never registers another memory under the same id.

use crate::ibuf;
use crate::signal::Doorbell;
use crate::{Fault, OverflowPolicy};
use shared::Shared;
use std::sync::Arc;

mod origin;
mod reader;
mod shared;
mod sizing;
mod writer;

pub use origin::{Origin, Pools};
pub use reader::{Batch, CrossingReader};
pub use writer::CrossingWriter;

/// Columns of entries to be pushed, and the dimensions and full-ring policy of a crossing.
pub use crate::ibuf::{Columns, RingConfig};

/// Creates a crossing with one reader per element of `reader_doorbells` (`config.readers` is
/// ignored). Each party sleeps on the doorbell of its space. Fails with [`Fault::Lossy`] for
/// [`OverflowPolicy::Overwrite`].
pub fn crossing(
    config: &RingConfig,
    writer_doorbell: Arc<Doorbell>,
    reader_doorbells: &[Arc<Doorbell>],
) -> Result<(CrossingWriter, Vec<CrossingReader>), Fault> {
    if config.policy == OverflowPolicy::Overwrite {
        return Err(Fault::Lossy);
    }
    let (writer, readers) = ibuf::ring(&RingConfig { readers: reader_doorbells.len(), ..*config });
    let shared = Arc::new(Shared::new(writer_doorbell, reader_doorbells));
    let reader = |ring| CrossingReader::new(ring, shared.clone());
    let readers = readers.into_iter().map(reader).collect();
    Ok((CrossingWriter::new(writer, shared), readers))
}

#[cfg(test)]
mod tests;
