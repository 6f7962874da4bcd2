//! An aggregate as a readable stream: a file in memory. [SL §5.3.3, the disk cache as a dbuf]

use super::{LentBlock, StreamReader};
use crate::aggregate::{Aggregate, Slice};
use crate::indirect::lent_block::BlockHolder;
use abi::RichPointer;
use buffer::Fault;
use buffer::pool::Lease;
use buffer::stream::WaitResult;
use std::time::Duration;

/// A reader of an aggregate from its first byte to its last, in blocks of limited size. Peeked
/// bytes stay valid as long as the aggregate lives, because they are immutable.
#[derive(Debug)]
pub struct AggregateBlockReader<'a> {
    slices: Box<[(&'a [u8], RichPointer, &'a Lease)]>,
    /// Index, in the aggregate, of the slice that follows the current one.
    next: usize,
    block: usize,
    /// Unread part of the current slice.
    piece: &'a [u8],
    rest: RichPointer,
    lease: Option<&'a Lease>,
}

impl<'a> AggregateBlockReader<'a> {
    /// Creates a reader of the aggregate that returns blocks of up to `block` bytes.
    #[must_use]
    pub fn new(all: &'a Aggregate, block: usize) -> Self {
        let slices =
            all.slices().map(|slice: &Slice| (slice.bytes(), slice.pointer(), slice.lease()));
        let (slices, rest, block) = (slices.collect(), RichPointer::hole(0), block.max(1));
        let mut held = Self { slices, next: 0, block, piece: &[], rest, lease: None };
        held.advance_to_next_slice();
        held
    }

    /// Moves the read position back to the first byte of the aggregate.
    #[inline]
    pub fn rewind(&mut self) {
        self.next = 0;
        self.advance_to_next_slice();
    }

    /// Returns the current block: the unread bytes of the current slice, up to the block size. The
    /// block is empty at the end. It lives as long as the aggregate.
    #[inline]
    #[must_use]
    pub const fn current_block(&self) -> &'a [u8] {
        match self.piece.split_at_checked(self.block) {
            Some((block, _)) => block,
            None => self.piece,
        }
    }

    /// Consumes `count` bytes of the current block.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        match self.piece.split_at_checked(count) {
            Some((_, rest)) if !rest.is_empty() => self.piece = rest,
            _ => self.advance_to_next_slice(),
        }
    }

    /// Lends up to `max` bytes of the current slice as a pointer. Returns `None` at the end, or if
    /// the memory of the slice cannot be granted to other processes.
    #[inline]
    fn lend_piece(&self, max: usize) -> Option<LentBlock<'_>> {
        let lease = self.lease.filter(|lease| lease.memory().can_be_granted())?;
        if self.piece.is_empty() {
            return None;
        }
        let length = self.piece.len().min(max);
        let done = self.rest.length() as usize - self.piece.len();
        // Both are smaller than a segment.
        let number = |bytes: usize| u32::try_from(bytes).unwrap_or(0);
        let pointer = self.rest.subrange(number(done), number(length));
        Some(LentBlock { pointer, holder: BlockHolder::Lease(lease) })
    }

    #[inline]
    fn advance_to_next_slice(&mut self) {
        match self.slices.get(self.next) {
            Some(&(bytes, pointer, lease)) => {
                (self.piece, self.rest, self.lease) = (bytes, pointer, Some(lease));
                self.next += 1;
            }
            // An empty slice marks the end, as in a file.
            None => self.piece = &[],
        }
    }
}

impl StreamReader for AggregateBlockReader<'_> {
    fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        let mut count = 0;
        while count < out.len() && !self.piece.is_empty() {
            let room = out.get_mut(count..).unwrap_or_default();
            let length = room.len().min(self.piece.len());
            if let (Some(to), Some(from)) = (room.get_mut(..length), self.piece.get(..length)) {
                to.copy_from_slice(from);
            }
            count += length;
            self.consume(length);
        }
        Ok(Some(count))
    }

    #[inline]
    fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        Ok(Some(self.current_block()))
    }

    #[inline]
    fn take(&mut self, count: usize) {
        self.consume(count);
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
