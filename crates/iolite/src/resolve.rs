//! Resolution of rich pointers to bytes. [SL §5.3.1, "buffer fault"]
//!
//! A rich pointer is an allegation: plain data from a ring, a table, or another process. A space
//! registers all memory that it can currently read in a [`PointerTable`]: its pool, the batches
//! being read, its leases, and the rings of other processes. [`PointerTable::resolve`] returns
//! bytes that live as long as the table's borrows, or a [`Fault`] with the reason.
//! [`PointerTable::copy`] also reads foreign memory, of which no slice may ever be created.
//! Deviation: the table maps nothing on demand, so a pointer into an unregistered dbuf is a fault.

use crate::file::CachedFile;
use abi::{DbufId, RichPointer};
use buffer::Fault;
use buffer::crossing::Batch;
use buffer::dbuf::ForeignBlockReader;
use buffer::pool::{Lease, Pool};

/// The memory that a space can currently read.
#[derive(Debug, Default)]
pub struct PointerTable<'a> {
    held: Vec<BorrowedMemory<'a>>,
    foreign: Vec<(DbufId, &'a mut ForeignBlockReader)>,
    files: Vec<&'a CachedFile>,
}

/// Borrowed memory whose bytes cannot be overwritten while the borrow lives.
#[derive(Clone, Copy, Debug)]
pub enum BorrowedMemory<'a> {
    /// The pool of the space that resolves the pointers.
    Pool(&'a Pool),
    /// Blocks that the space has received over a ring from another space.
    Batch(Batch<'a>),
    /// A leased segment.
    Lease(&'a Lease),
}

impl<'a> PointerTable<'a> {
    /// Creates an empty table, for which every pointer is a fault.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers memory whose bytes stay unchanged while the table borrows it. The table searches
    /// its memories in the order of registration, so register the most frequently used memory
    /// first.
    pub fn register_memory(&mut self, held: BorrowedMemory<'a>) {
        self.held.push(held);
    }

    /// Registers a ring of another process, under the id that its writer announced.
    pub fn register_ring(&mut self, dbuf: DbufId, visitor: &'a mut ForeignBlockReader) {
        self.foreign.push((dbuf, visitor));
    }

    /// Registers a file, whose bytes can be copied but not borrowed.
    pub fn register_file(&mut self, file: &'a CachedFile) {
        self.files.push(file);
    }

    /// Returns the bytes named by a pointer. Fails with a [`Fault`] if no held memory contains
    /// them.
    pub fn resolve(&self, pointer: RichPointer) -> Result<&'a [u8], Fault> {
        if pointer.is_hole() {
            return Err(Fault::Hole);
        }
        let mut fault = Fault::UnknownDbuf(pointer.dbuf());
        for held in &self.held {
            match held.resolve(pointer) {
                Ok(bytes) => return Ok(bytes),
                Err(Fault::UnknownDbuf(_)) => {}
                // Several batches may hold different segments of one pool: continue the search.
                Err(other) => fault = other,
            }
        }
        Err(fault)
    }

    /// Copies the bytes named by a pointer into `out`, which must have the pointer's length. Fails
    /// with a [`Fault`] if no registered memory or file contains the bytes.
    pub fn copy(&mut self, pointer: RichPointer, out: &mut [u8]) -> Result<(), Fault> {
        let (length, limit) = (pointer.length() as usize, out.len());
        if length != limit && !pointer.is_hole() {
            return Err(Fault::TooLong { length, limit });
        }
        match self.resolve(pointer) {
            Ok(bytes) => {
                out.copy_from_slice(bytes);
                Ok(())
            }
            Err(Fault::UnknownDbuf(dbuf)) => {
                if let Some(file) = self.files.iter().find(|file| file.id() == dbuf) {
                    return file.copy(pointer.place, out);
                }
                let ring = self.foreign.iter_mut().find(|(id, _)| *id == dbuf);
                let (_, visitor) = ring.ok_or(Fault::UnknownDbuf(dbuf))?;
                visitor.copy(pointer.place, out)
            }
            Err(fault) => Err(fault),
        }
    }
}

impl<'a> BorrowedMemory<'a> {
    fn resolve(&self, pointer: RichPointer) -> Result<&'a [u8], Fault> {
        match self {
            Self::Pool(pool) => pool.resolve(pointer),
            Self::Batch(batch) => batch.resolve(pointer),
            Self::Lease(lease) if lease.dbuf() == pointer.dbuf() => lease.bytes(pointer.place),
            Self::Lease(_) => Err(Fault::UnknownDbuf(pointer.dbuf())),
        }
    }
}

#[cfg(test)]
mod tests;
