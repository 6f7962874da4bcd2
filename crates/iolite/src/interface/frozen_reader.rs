//! A readable stream that owns frozen data: a file in memory, with a position. [SL §5.3.3]

use super::{LentBlock, StreamReader};
use crate::aggregate::{Error, FrozenData, Slice};
use crate::indirect::lent_block::BlockHolder;
use buffer::Fault;
use buffer::stream::WaitResult;
use std::time::Duration;

/// A reader of frozen data from a position to its end, in blocks of limited size. Peeked bytes stay
/// valid as long as the reader lives, because they are immutable.
#[derive(Debug)]
pub struct FrozenReader {
    slices: Vec<Slice>,
    /// Index of the slice that contains the read position.
    slice: usize,
    /// Number of consumed bytes in the current slice.
    consumed: usize,
    block: usize,
    length: usize,
}

impl FrozenReader {
    /// Creates a reader that returns blocks of up to `block` bytes.
    pub fn new(frozen: &FrozenData, block: usize) -> Result<Self, Error> {
        let slices = frozen.aggregate()?.slices().cloned().collect();
        Ok(Self { slices, slice: 0, consumed: 0, block: block.max(1), length: frozen.len() })
    }

    /// Returns the length of the frozen data in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns true if there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Continues reading at byte `at`, or at the end if there are fewer bytes.
    pub fn seek(&mut self, at: usize) {
        let (mut slice, mut left) = (0, at.min(self.length));
        while let Some(length) = self.slices.get(slice).map(Slice::len).filter(|of| *of <= left) {
            (slice, left) = (slice + 1, left - length);
        }
        (self.slice, self.consumed) = (slice, left);
    }

    /// Lends up to `max` bytes of the current slice as a pointer. Returns `None` at the end of the
    /// data.
    #[inline]
    fn lend_piece(&self, max: usize) -> Option<LentBlock<'_>> {
        let slice = self.slices.get(self.slice)?;
        let length = (slice.len() - self.consumed).min(max);
        // Both are smaller than a segment.
        let number = |bytes: usize| u32::try_from(bytes).unwrap_or(0);
        let pointer = slice.pointer().subrange(number(self.consumed), number(length));
        Some(LentBlock { pointer, holder: BlockHolder::Lease(slice.lease()) })
    }

    #[inline]
    fn rest(&self) -> &[u8] {
        let slice = self.slices.get(self.slice).map_or(&[][..], Slice::bytes);
        slice.get(self.consumed..).unwrap_or_default()
    }
}

impl StreamReader for FrozenReader {
    fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        let mut count = 0;
        while let Some(room) = out.get_mut(count..).filter(|room| !room.is_empty()) {
            let rest = self.rest();
            let length = room.len().min(rest.len());
            if length == 0 {
                break;
            }
            if let (Some(to), Some(from)) = (room.get_mut(..length), rest.get(..length)) {
                to.copy_from_slice(from);
            }
            count += length;
            self.take(length);
        }
        Ok(Some(count))
    }

    #[inline]
    fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        let block = self.block;
        let rest = self.rest();
        Ok(Some(rest.get(..block).unwrap_or(rest)))
    }

    #[inline]
    fn take(&mut self, count: usize) {
        self.consumed += count;
        if self.slices.get(self.slice).is_none_or(|slice| self.consumed >= slice.len()) {
            (self.slice, self.consumed) = (self.slice + 1, 0);
        }
    }

    fn wait(&mut self, _limit: Option<Duration>) -> Result<WaitResult, Fault> {
        Ok(WaitResult::Ready)
    }

    #[inline]
    fn lend(&mut self, max: usize) -> Result<Option<LentBlock<'_>>, Fault> {
        Ok(self.lend_piece(self.block.min(max)))
    }

    #[inline]
    fn lend_adjacent_blocks(
        &mut self,
        max: usize,
    ) -> Result<Option<(LentBlock<'_>, usize)>, Fault> {
        let block = self.block;
        if max <= block {
            return Ok(None);
        }
        Ok(self.lend_piece(max).filter(|lent| lent.len() > block).map(|lent| (lent, block)))
    }
}
