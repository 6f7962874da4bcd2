//! The one function that turns rich pointers into bytes. [SL §5.3.1, "buffer fault"]
//!
//! A rich pointer is an allegation: plain data that came out of a ring, a table, or another
//! process. What a space can look into right now it puts into a [`Table`] (its pool, the batches
//! that it is reading, the leases that it keeps, the rings of others that it visits).
//! [`Table::resolve`] answers bytes that stay as long as the table, or the [`Fault`] that says what
//! is wrong; [`Table::copy`] reaches foreign memory too, of which no slice may ever be made.
//! Deviation: there is no mapping on demand yet, a pointer to a dbuf that was not put into the
//! table is a fault.

use crate::file::CachedFile;
use abi::{DbufId, RichPointer};
use buffer::Fault;
use buffer::crossing::Batch;
use buffer::dbuf::Visitor;
use buffer::pool::{Lease, Pool};

/// The memory that one space can read right now.
#[derive(Debug, Default)]
pub struct Table<'a> {
    held: Vec<HeldMemory<'a>>,
    foreign: Vec<(DbufId, &'a mut Visitor)>,
    files: Vec<&'a CachedFile>,
}

/// Something that keeps bytes from being overwritten as long as it is borrowed.
#[derive(Clone, Copy, Debug)]
pub enum HeldMemory<'a> {
    /// The space's own memory.
    Pool(&'a Pool),
    /// Blocks that another space has sent.
    Batch(Batch<'a>),
    /// A segment that is kept longer.
    Lease(&'a Lease),
}

impl<'a> Table<'a> {
    /// A table that knows nothing: every pointer is a fault.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes held memory known. Put first what is asked for most: it is looked up in this order.
    pub fn hold(&mut self, held: HeldMemory<'a>) {
        self.held.push(held);
    }

    /// Makes a ring of another process known, under the id by which its writer was introduced.
    pub fn visit(&mut self, dbuf: DbufId, visitor: &'a mut Visitor) {
        self.foreign.push((dbuf, visitor));
    }

    /// Makes a file known, of which only copies are given.
    pub fn read(&mut self, file: &'a CachedFile) {
        self.files.push(file);
    }

    /// The bytes that a pointer names.
    pub fn resolve(&self, pointer: RichPointer) -> Result<&'a [u8], Fault> {
        if pointer.is_hole() {
            return Err(Fault::Hole);
        }
        let mut fault = Fault::UnknownDbuf(pointer.dbuf());
        for held in &self.held {
            match held.resolve(pointer) {
                Ok(bytes) => return Ok(bytes),
                Err(Fault::UnknownDbuf(_)) => {}
                // Several batches may keep different segments of one pool: look on.
                Err(other) => fault = other,
            }
        }
        Err(fault)
    }

    /// Copies the bytes that a pointer names into `out`, which must be as long as the view.
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

impl<'a> HeldMemory<'a> {
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
