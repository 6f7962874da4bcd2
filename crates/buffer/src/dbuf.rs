//! A ring of blocks of any length: what an IPC stream between spaces is made of. [SL §5.1, §5.2]
//!
//! One writer, several readers, each at its own pace. A block never wraps: where it would, a pad
//! record fills the end of the ring, so `peek` always gives one piece. Three policies: block (the
//! writer waits for the slowest reader), drop new, overwrite oldest. Deviation from the source:
//! `read` is not `peek` plus memcpy where the memory is foreign or lossy; it copies word by word
//! and looks at the lap again.
//!
//! Two kinds of reader. [`Reader`] lives in the writer's process: it trusts the writer and may
//! peek. [`Visitor`] attached to a ring of another process ([`crate::share`]): to it all bytes are
//! foreign, it only copies, and it takes nothing for granted that the ring says.
//!
//! Why `&[u8]` is allowed here (rings that block or drop new, in one process). Invariants, cited
//! below:
//! - D1 The words of a ring made by [`ring`] are written only by this crate: the writer's and the
//!   data by the one [`Writer`], each reader's by its one [`Reader`].
//! - D2 The writer writes data only between its head and the oldest cursor of all readers that have
//!   not left plus the capacity, and shows blocks (Release) when they are written.
//! - D3 A reader looks only at blocks that are shown (Acquire) and not yet behind its published
//!   cursor.
//! - D4 A reader publishes its cursor only in methods that take `&mut self` and in `drop`: so while
//!   a slice lives, the writer, who has not seen the cursor pass, does not write there (D2).
//! - D6 A [`Visitor`] gives slices only for a [`Trusted`] maker of the memory: one that could write
//!   all memory of ours anyway (V3 of `view`), and so is relied on to keep D2.
//! - D5 In a ring that overwrites nobody gets a slice of the ring: reservations are private memory
//!   that commit copies in, word by word, and readers copy out.

use crate::cursor::{Consumer, Store};
use crate::{Fault, Policy};
use abi::DbufId;
use abi::ring::PAGE;
use walk::{Walk, block_max};

#[expect(unsafe_code, reason = "turns positions into addresses; numbered invariants in the file")]
mod data;
pub mod fixed;
mod readers;
pub(crate) mod walk;
mod writer;

pub use writer::{Reservation, Writer};

/// The shape of a ring of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The id by which rich pointers name it.
    pub id: DbufId,
    /// Bytes that it holds, headers included; rounded up to a power of two, at least a page.
    pub capacity: usize,
    /// Policy of a full ring.
    pub policy: Policy,
    /// Number of readers.
    pub readers: usize,
}

impl Config {
    /// A blocking ring of 1 MB with one reader: 512 KB to 1 MB is best on one processor
    /// (BASELINES).
    #[must_use]
    pub const fn new(id: DbufId) -> Self {
        Self { id, capacity: 1 << 20, policy: Policy::Block, readers: 1 }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.capacity.max(PAGE).next_power_of_two()
    }
}

/// Makes a ring for threads of this process.
#[must_use]
pub fn ring(config: &Config) -> (Writer, Vec<Reader>) {
    let bytes = config.bytes();
    let store = Store::heap(bytes / 8, bytes as u64, config.policy, config.readers);
    let reader = |index| readers::Reader(Walk::new(Consumer::new(store.clone(), index)));
    let readers = (0..config.readers).map(reader).collect();
    (Writer::new(store, config.id), readers)
}

/// A reader in the writer's process.
pub type Reader = readers::Reader<Walk>;

/// A reader in another process than the writer's. All it gets are copies.
pub type Visitor = readers::Visitor<Walk>;

impl Visitor {
    pub(crate) fn new(side: Consumer) -> Self {
        Self(Walk::new(side))
    }

    /// Returns the walk, for a caller that waits on the ring.
    pub(crate) const fn walk(&mut self) -> &mut Walk {
        &mut self.0
    }

    /// Goes on with what is written from now on, and counts nothing that came before.
    pub fn join_now(&mut self) -> Result<(), Fault> {
        self.0.join_now()
    }

    /// The longest block that the ring can hold.
    #[must_use]
    pub fn block_max(&self) -> usize {
        block_max(self.0.data.capacity())
    }
}

#[cfg(test)]
mod tests;
