//! Writes that produce pointers, and forwarding of blocks lent by other streams.

use super::{HotSegment, Output};
use crate::indirect::range_table::RANGE_COUNT;
use abi::{Class, Extent, RichPointer};
use buffer::{Fault, foreign_memory};

impl Output {
    /// Writes a block outside the hot segment, in which the last write found its bytes. Blocks,
    /// returns and fails like `StreamWriter::write`.
    pub(super) fn write_outside_hot_segment(&mut self, block: &[u8]) -> Result<bool, Fault> {
        if let Some(index) = self.ranges.find(block.as_ptr().addr())
            && self.write_registered_pointer(index, block)
        {
            return Ok(true);
        }
        if let Some((upstream, pointer)) = self.flights.find_peeked(block)
            && !block.is_empty()
            && self.flights.claim_entry(upstream, pointer, self.ring.cursor.head + 1)
        {
            self.append_pointer(pointer);
            return Ok(true);
        }
        if let Some(index) = self.find_uncached_dbuf(block)
            && self.write_registered_pointer(index, block)
        {
            return Ok(true);
        }
        self.write_into_backing(block.len(), |room| {
            foreign_memory::copy(block, room);
            block.len()
        })
    }

    /// Appends a pointer to the bytes of `block` if the registered dbuf `index` contains them.
    /// Returns false, and appends nothing, if the bytes are not published, or while searches in
    /// this dbuf are suspended because recent ones failed.
    fn write_registered_pointer(&mut self, index: usize, block: &[u8]) -> bool {
        let Some(known) = self.known_dbufs.get_mut(index) else { return false };
        // After a miss in an expected dbuf, the next attempts are skipped. [SL §5.3.3]
        if !known.back_off.admit_attempt() {
            return false;
        }
        let Some(enclosing) = known.memory.lease_slice(block) else {
            known.back_off.record_failure();
            return false;
        };
        known.back_off.record_success();
        let home = RichPointer::new(enclosing.lease.dbuf(), Extent::default(), Class::YES);
        let until = self.ring.cursor.head + 1;
        self.hot = HotSegment {
            address: enclosing.address,
            filled: enclosing.filled,
            segment: enclosing.segment,
            position: enclosing.position,
            dbuf_pointer: home,
        };
        let from = block.as_ptr().addr().wrapping_sub(enclosing.address);
        let pointer = self.hot.pointer(from, block.len());
        // F1, S3: held before the pointer is published.
        if self.flights.hold_segment(pointer, until, || Ok(enclosing.lease)).is_err() {
            return false;
        }
        self.append_pointer(pointer);
        true
    }

    /// Searches the registered dbufs that have no entry in the range table. If one of them contains
    /// the block, inserts its range into the table and returns its index. Returns `None` if no dbuf
    /// contains the block.
    fn find_uncached_dbuf(&mut self, block: &[u8]) -> Option<usize> {
        if self.known_dbufs.len() <= RANGE_COUNT {
            return None;
        }
        let at = block.as_ptr().addr();
        let extents = self.known_dbufs.iter().map(|known| known.memory.address_and_size());
        let is_in = |(from, length): (usize, usize)| at.wrapping_sub(from) < length;
        let (index, (from, length)) = extents.enumerate().find(|(_, extent)| is_in(*extent))?;
        self.ranges.insert(from, length, index);
        Some(index)
    }
}
