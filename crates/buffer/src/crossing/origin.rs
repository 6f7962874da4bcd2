//! Owners of blocks, from which the writer of a crossing leases the blocks that it forwards.

use crate::Fault;
use crate::pool::{Lease, Pool};
use abi::RichPointer;

/// An owner of blocks that a writer may forward: a pool, a batch being read, or an aggregate.
pub trait Origin {
    /// Returns a lease on the segment of a block. Fails with a [`Fault`] if this origin does not
    /// own the block. The caller must check that the lease covers the block.
    fn lease(&self, pointer: RichPointer) -> Result<Lease, Fault>;
}

/// Several pools that act as one origin of blocks.
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
