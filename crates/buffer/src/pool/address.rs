//! Translation of addresses in this process to segments and dbuf positions. [SL §5.3.3]

use super::{Lease, PoolMemory};
use abi::{Extent, RichPointer};
use std::sync::Arc;

/// A leased segment that encloses a given slice or block. An entire frozen memory counts as one
/// segment.
#[derive(Debug)]
pub struct EnclosingSegment {
    /// Lease that keeps the segment in place.
    pub lease: Lease,
    /// Address of the segment's first byte in this process.
    pub address: usize,
    /// Position of the segment's first byte.
    pub position: u64,
    /// Number of filled bytes, from the start of the segment.
    pub filled: usize,
    /// Segment size in bytes.
    pub segment: usize,
}

impl PoolMemory {
    /// Returns the address of this memory's first byte in this process, and the size of the memory
    /// in bytes.
    pub fn address_and_size(&self) -> (usize, usize) {
        (self.region.words().as_ptr().addr(), self.region.len())
    }

    /// Leases the segment that contains a slice. Returns `None` if the slice is empty, not in this
    /// memory, or not entirely published, or if a block is being edited in place.
    ///
    /// The caller borrows the slice. Safe code gets slices of published bytes only from the pool
    /// (which is then borrowed: M3), from a lease, or from a batch whose writer has a lease (C5).
    /// Each of these keeps the segment in its slot while the slice lives, so a lease can be created
    /// (M4). Bytes of an open draft (M2) are not published and are refused here.
    pub fn lease_slice(self: &Arc<Self>, slice: &[u8]) -> Option<EnclosingSegment> {
        if self.editing.is_set() {
            // The slice may be the block being edited (M9).
            return None;
        }
        let (base, len) = self.address_and_size();
        let at = slice.as_ptr().addr().checked_sub(base)?;
        if slice.is_empty() || at.checked_add(slice.len())? > len {
            return None;
        }
        if self.is_frozen() {
            // M8: frozen memory counts as one segment, because no slot is ever assigned another
            // one.
            let lease = Lease::new(self, 0);
            return Some(EnclosingSegment {
                lease,
                address: base,
                position: 0,
                filled: len,
                segment: len,
            });
        }
        let segment = self.segment_size();
        let (slot, inside) = (at / segment, at % segment);
        let number = self.slots.segment_number_in(slot);
        let position = number.checked_mul(segment as u64)?;
        let length = u32::try_from(slice.len()).ok()?;
        // Resident segment and filled length are checked as for any pointer.
        let place = Extent::new(position.checked_add(inside as u64)?, length);
        let found = self.locate(place).ok()?;
        if found != (slot, at) || place.length() != length {
            return None;
        }
        let lease = Lease::new(self, slot);
        let (start, filled) = (place.position() - inside as u64, self.slots.filled_len(slot));
        let address = base + (at - inside);
        Some(EnclosingSegment { lease, address, position: start, filled, segment })
    }

    /// Returns true if this memory can be shared with other processes.
    pub const fn can_be_granted(&self) -> bool {
        self.file().is_some()
    }
}

impl Lease {
    /// Returns true if this lease keeps a block in place: the block is in the leased segment or, in
    /// frozen memory, anywhere in the memory (M8).
    pub fn keeps_in_place(&self, pointer: RichPointer) -> bool {
        let frozen = self.memory().is_frozen() && self.dbuf() == pointer.dbuf();
        frozen || self.covers(pointer.dbuf(), pointer.place)
    }

    /// Returns the leased segment that encloses a block. The caller must ensure that this lease
    /// covers the block. Returns `None` if the block has no bytes, except in frozen memory.
    pub fn enclosing_segment(&self, pointer: RichPointer) -> Option<EnclosingSegment> {
        let memory = self.memory();
        let (base, len) = memory.address_and_size();
        let lease = self.clone();
        if memory.is_frozen() {
            return Some(EnclosingSegment {
                lease,
                address: base,
                position: 0,
                filled: len,
                segment: len,
            });
        }
        let (slot, start) = memory.enclosing_segment(pointer)?;
        let (filled, segment) = (memory.slots.filled_len(slot), memory.segment_size());
        let address = base + start.at;
        Some(EnclosingSegment { lease, address, position: start.position, filled, segment })
    }
}
