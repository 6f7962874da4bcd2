//! Readers of a ring of slots, in the writer's process and in other processes.

use super::SlotLayout;
use crate::atomic::{Ordering, load_acquire};
use crate::cursor::ReaderCursor;
use crate::dbuf::readers::{self, BlockWalk};
use crate::dbuf::reserve::BlockLayout as _;
use crate::{Fault, OverflowPolicy, foreign_memory};
use abi::Extent;
use abi::ring::writer;

/// The state of a reader of a ring of slots, which reads the slots in order.
#[derive(Debug)]
pub struct SlotWalk {
    /// Position before which all blocks are known to be published. Blocks before this position take
    /// the fast path, which skips the other checks. Always 0 in a lossy ring.
    fast_limit: u64,
    side: ReaderCursor,
    shape: SlotLayout,
    /// Position after the last block taken or skipped. Blocks between this position and the next
    /// block taken are counted as lost.
    expected: u64,
}

/// A slot whose table entry has been copied and checked.
#[derive(Clone, Copy, Debug)]
pub struct CheckedSlot {
    /// Byte offset of the slot's block in the writer's memory.
    at: usize,
    length: usize,
}

/// Maximum number of times that a reader of an overwriting ring tries to read a block that the
/// writer overwrites meanwhile. After that, the reader reports that no block is available.
const READ_ATTEMPTS_MAX: usize = 8;

impl SlotWalk {
    fn new(side: ReaderCursor, shape: SlotLayout) -> Self {
        Self { fast_limit: 0, expected: side.next, side, shape }
    }

    const fn is_lossy(&self) -> bool {
        matches!(self.side.policy, OverflowPolicy::Overwrite)
    }

    /// Copies the next block like [`BlockWalk::read`], but does not release it. Returns its length
    /// in bytes, or `None` if no block is published.
    #[inline]
    fn take_block(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        match self.take_on_fast_path(out) {
            None => self.take_checked(out),
            taken => Ok(taken),
        }
    }

    /// Copies the next block into `out` and advances past it, if the block is before `fast_limit`
    /// and fits into `out`. Returns its length in bytes; otherwise changes nothing and returns
    /// `None`. Equivalent to the checks of [`BlockWalk::find`] in fewer instructions.
    #[inline]
    fn take_on_fast_path(&mut self, out: &mut [u8]) -> Option<usize> {
        let (position, shape) = (self.side.next, self.shape);
        if position >= self.fast_limit {
            return None;
        }
        let region = &self.side.store.writer;
        let word = region.word(shape.length_word_index(position)).load(Ordering::Relaxed);
        let length =
            usize::try_from(word).ok().filter(|&length| length <= shape.block_length_max())?;
        let to = out.get_mut(..length)?;
        foreign_memory::copy_out(region.words(), shape.slot_offset(position), to);
        self.advance_past(&CheckedSlot { at: 0, length });
        Some(length)
    }

    #[cold]
    fn take_checked(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        for _ in 0..READ_ATTEMPTS_MAX {
            let position = self.side.next;
            let Some(found) = self.find()? else { return Ok(None) };
            let limit = out.len();
            let fits = out.get_mut(..found.length);
            let copied = fits.is_some();
            if let Some(to) = fits {
                foreign_memory::copy_out(self.side.store.writer.words(), found.at, to);
            }
            if self.is_lossy() && self.side.is_overtaken(position) {
                match self.resume_position(position)? {
                    Some(next) => self.side.next = next,
                    None => return Ok(None),
                }
                continue;
            }
            if !copied {
                return Err(Fault::TooLong { length: found.length, limit });
            }
            self.advance_past(&found);
            return Ok(Some(found.length));
        }
        Ok(None)
    }

    /// Returns the position at which a reader resumes after it was lapped at `position`: the oldest
    /// slot that the writer will not overwrite soon. In a ring of slots, the writer need not store
    /// such a position, because every slot begins a block. Returns `None` if the writer is
    /// overwriting all published slots.
    fn resume_position(&mut self, position: u64) -> Result<Option<u64>, Fault> {
        let (commit, slots) = (self.side.refresh_published_position()?, self.shape.slots as u64);
        let reserve = load_acquire(self.side.store.writer.word(writer::RESERVED_POSITION));
        let ahead = reserve.wrapping_sub(commit);
        let left = slots.saturating_sub(ahead).saturating_sub(slots / 8);
        let next = commit.saturating_sub(left.min((slots / 4 * 3).max(1)));
        Ok((next > position && next < commit).then_some(next))
    }

    /// Advances to a published position, and counts the blocks on the way as skipped. Does nothing
    /// if the reader is already there or beyond.
    fn skip_to(&mut self, position: u64) {
        if position > self.side.next {
            self.side.taken.skipped += position - self.expected;
            self.side.next = position;
            self.expected = position;
            self.side.release();
        }
    }
}

impl BlockWalk for SlotWalk {
    type LocatedBlock = CheckedSlot;

    fn cursor(&self) -> &ReaderCursor {
        &self.side
    }

    fn cursor_mut(&mut self) -> &mut ReaderCursor {
        &mut self.side
    }

    fn find(&mut self) -> Result<Option<CheckedSlot>, Fault> {
        let position = self.side.next;
        let commit = self.side.available_position()?;
        if commit == position {
            return Ok(None);
        }
        self.fast_limit = if self.is_lossy() { 0 } else { commit };
        let (region, shape) = (&self.side.store.writer, self.shape);
        let word = region.word(shape.length_word_index(position)).load(Ordering::Relaxed);
        match usize::try_from(word) {
            Ok(length) if length <= shape.block_length_max() => {
                Ok(Some(CheckedSlot { at: shape.slot_offset(position), length }))
            }
            _ if self.is_lossy() && self.side.is_overtaken(position) => {
                Ok(Some(CheckedSlot { at: shape.slot_offset(position), length: 0 }))
            }
            _ => {
                self.fast_limit = 0;
                Err(self.side.poison(Fault::Damaged { position }))
            }
        }
    }

    #[inline]
    fn advance_past(&mut self, found: &CheckedSlot) {
        let position = self.side.next;
        self.side.taken.lost += position - self.expected;
        self.side.taken.blocks += 1;
        self.side.taken.bytes += found.length as u64;
        self.side.next = position + 1;
        self.expected = position + 1;
    }

    fn location(&self, found: &CheckedSlot) -> (*const u8, usize) {
        let first = self.side.store.writer.words().as_ptr().cast::<u8>();
        (first.wrapping_add(found.at), found.length)
    }

    fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        let taken = self.take_block(out)?;
        if taken.is_some() {
            self.side.release();
        }
        Ok(taken)
    }

    fn skip_to_latest(&mut self) -> Result<u64, Fault> {
        let (before, newest) = (self.side.taken.skipped, self.side.refresh_published_position()?);
        self.skip_to(newest.saturating_sub(1));
        Ok(self.side.taken.skipped - before)
    }

    fn skip_to_now(&mut self) -> Result<u64, Fault> {
        let (before, newest) = (self.side.taken.skipped, self.side.refresh_published_position()?);
        self.skip_to(newest);
        Ok(self.side.taken.skipped - before)
    }

    fn copy(&mut self, place: Extent, out: &mut [u8]) -> Result<(), Fault> {
        let (commit, slots, slot) = (
            self.side.refresh_published_position()?,
            self.shape.slots as u64,
            self.shape.slot as u64,
        );
        let start = place.position_near(commit.wrapping_mul(slot));
        let (position, inside) = (start / slot, start % slot);
        let oldest = if self.is_lossy() {
            commit.saturating_sub(slots)
        } else {
            self.side.released_position()
        };
        if !(oldest..commit).contains(&position) {
            return Err(Fault::OutOfWindow(place));
        }
        if inside + u64::from(place.length()) > slot {
            return Err(Fault::CrossesSegment(place));
        }
        if out.len() != place.length() as usize {
            return Err(Fault::TooLong { length: place.length() as usize, limit: out.len() });
        }
        let inside = usize::try_from(inside).unwrap_or(usize::MAX);
        let at = self.shape.slot_offset(position).saturating_add(inside);
        foreign_memory::copy_out(self.side.store.writer.words(), at, out);
        if self.is_lossy() && self.side.is_overtaken(position) {
            return Err(Fault::OutOfWindow(place));
        }
        Ok(())
    }
}

impl Drop for SlotWalk {
    fn drop(&mut self) {
        self.side.leave();
    }
}

/// A reader of a ring of slots in the writer's process.
pub type SlotReader = readers::RingReader<SlotWalk, readers::Local>;

/// A reader in a process other than the writer's. Copies blocks, and never returns references into
/// the ring.
pub type ForeignSlotReader = readers::RingReader<SlotWalk, readers::Foreign>;

impl<P> readers::RingReader<SlotWalk, P> {
    pub(crate) fn new(side: ReaderCursor, shape: SlotLayout) -> Self {
        Self::from_walk(SlotWalk::new(side, shape))
    }
}

impl ForeignSlotReader {
    /// Returns the cursor of this reader, with which a stream that wraps the ring waits for blocks.
    pub(super) const fn cursor_mut(&mut self) -> &mut ReaderCursor {
        &mut self.0.side
    }

    /// Returns the number of slots in the ring.
    pub(super) const fn slots(&self) -> u64 {
        self.0.shape.slots as u64
    }

    /// Returns the number of slots that this reader has passed but not yet released to the writer.
    pub(super) const fn unreleased_slots(&self) -> u64 {
        self.0.side.next - self.0.side.released_position()
    }

    /// Copies the next block like [`ForeignSlotReader::read`], but does not release it. Returns its
    /// length in bytes, or `None` if no block is published.
    #[inline]
    pub(super) fn take_block(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.0.take_block(out)
    }
}
