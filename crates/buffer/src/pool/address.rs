//! Translation from an address in this process back to a place. [SL §5.3.3]

use super::{Lease, Memory};
use abi::{Extent, RichPointer};
use std::sync::Arc;

/// The memory around some bytes: a segment, as far as it is filled; of frozen memory all of it.
#[derive(Debug)]
pub struct Around {
    /// Keeps it.
    pub lease: Lease,
    /// SegmentStart of the segment, in this process.
    pub address: usize,
    /// The same as a place tells it.
    pub position: u64,
    /// Bytes of it that are filled.
    pub filled: usize,
    /// Bytes of it.
    pub segment: usize,
}

impl Memory {
    /// The first byte in this process, and how many there are.
    pub fn extent(&self) -> (usize, usize) {
        (self.region.words().as_ptr().addr(), self.region.len())
    }

    /// The segment that a slice of these bytes lies in, leased; `None`: all of it is not shown
    /// there.
    ///
    /// The caller has the slice at hand. Safe code gets slices of shown bytes only from the pool
    /// (which is then borrowed: M3), from a lease, or from a batch whose writer has one (C5). Each
    /// of them keeps the segment in its slot as long as the slice lives, so a lease can be made
    /// (M4). Of bytes that are still written (M2) nothing is shown, and here they are refused.
    pub fn around_slice(self: &Arc<Self>, slice: &[u8]) -> Option<Around> {
        if self.editing.is_set() {
            // The slice may be what is being changed (M9).
            return None;
        }
        let (base, len) = self.extent();
        let at = slice.as_ptr().addr().checked_sub(base)?;
        if slice.is_empty() || at.checked_add(slice.len())? > len {
            return None;
        }
        if self.is_frozen() {
            // M8: as one, since no slot is ever given another segment.
            let lease = Lease::new(self, 0);
            return Some(Around { lease, address: base, position: 0, filled: len, segment: len });
        }
        let segment = self.segment();
        let (slot, inside) = (at / segment, at % segment);
        let number = self.slots.resident(slot);
        let position = number.checked_mul(segment as u64)?;
        let length = u32::try_from(slice.len()).ok()?;
        // Whether the segment is there, and filled so far, is looked at as for any pointer.
        let place = Extent::new(position.checked_add(inside as u64)?, length);
        let found = self.locate(place).ok()?;
        if found != (slot, at) || place.length() != length {
            return None;
        }
        let lease = Lease::new(self, slot);
        let (start, filled) = (place.position() - inside as u64, self.slots.filled(slot));
        let address = base + (at - inside);
        Some(Around { lease, address, position: start, filled, segment })
    }

    /// Returns true if this memory can be handed to other processes.
    pub const fn can_be_granted(&self) -> bool {
        self.file().is_some()
    }
}

impl Lease {
    /// Returns true if this keeps the bytes of a block: those of its segment, or of all frozen
    /// memory (M8).
    pub fn keeps(&self, pointer: RichPointer) -> bool {
        let frozen = self.memory().is_frozen() && self.dbuf() == pointer.dbuf();
        frozen || self.covers(pointer.dbuf(), pointer.place)
    }

    /// Returns the memory around a block that this keeps and that has bytes.
    pub fn around(&self, pointer: RichPointer) -> Option<Around> {
        let memory = self.memory();
        let (base, len) = memory.extent();
        let lease = self.clone();
        if memory.is_frozen() {
            return Some(Around { lease, address: base, position: 0, filled: len, segment: len });
        }
        let (slot, start) = memory.around(pointer)?;
        let (filled, segment) = (memory.slots.filled(slot), memory.segment());
        let address = base + start.at;
        Some(Around { lease, address, position: start.position, filled, segment })
    }
}
