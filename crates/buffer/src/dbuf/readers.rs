//! The readers of rings, generic over the kind of ring and over the reader's process.

use super::walk::{CheckedRecord, RecordWalk};
use crate::cursor::ReaderCursor;
use crate::trust::TrustProof;
use crate::{Fault, OverflowPolicy, ReaderCounts, WriterCounts};
use abi::Extent;
use std::fmt;
use std::marker::PhantomData;

/// The operations of a reader that depend on the kind of ring: finding the next block, copying it,
/// and advancing past it. Internal to this crate.
pub trait BlockWalk: fmt::Debug {
    /// A block that has been located and checked.
    type LocatedBlock: Copy;

    /// Returns the cursor of this reader.
    fn cursor(&self) -> &ReaderCursor;
    /// Returns a mutable reference to this reader's cursor.
    fn cursor_mut(&mut self) -> &mut ReaderCursor;
    /// Returns the counts of all blocks passed, released or not.
    fn counts(&self) -> ReaderCounts {
        self.cursor().taken
    }
    /// Returns the next block if a single comparison shows that the block is published and valid.
    /// Otherwise returns `None`, and the caller must call [`BlockWalk::find`]. Always returns
    /// `None` in a ring that overwrites.
    #[inline]
    fn find_on_fast_path(&mut self) -> Option<Self::LocatedBlock> {
        None
    }
    /// Locates and checks the next block. Returns `None` if no unread block is published.
    fn find(&mut self) -> Result<Option<Self::LocatedBlock>, Fault>;
    /// Advances past a block that [`BlockWalk::find`] or [`BlockWalk::find_on_fast_path`] has
    /// returned.
    fn advance_past(&mut self, found: &Self::LocatedBlock);
    /// Returns the address and the length in bytes of a located block.
    fn location(&self, found: &Self::LocatedBlock) -> (*const u8, usize);
    /// Copies the next block into `out` and releases it. Returns its length in bytes, or `None` if
    /// no block is published.
    fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault>;
    /// Copies the bytes of an extent into `out`, which must have the same length.
    fn copy(&mut self, place: Extent, out: &mut [u8]) -> Result<(), Fault>;
    /// Skips all blocks but the newest. Returns the number of skipped blocks.
    fn skip_to_latest(&mut self) -> Result<u64, Fault>;
    /// Skips all published blocks. Returns the number of skipped blocks.
    fn skip_to_now(&mut self) -> Result<u64, Fault>;
    /// Releases to the writer all blocks that this reader has passed.
    fn release(&mut self) {
        self.cursor_mut().release();
    }
}

/// A reader of a ring. `W` is the [`BlockWalk`] of one kind of ring; `P` is [`Local`] or
/// [`Foreign`].
#[derive(Debug)]
pub struct RingReader<W, P>(pub(super) W, PhantomData<fn() -> P>);

/// The type tag of readers in the writer's process.
#[derive(Debug)]
pub enum Local {}

/// The type tag of readers in a process other than the writer's. Such readers copy blocks, and
/// return references only if the creator of the memory is trusted (D6).
#[derive(Debug)]
pub enum Foreign {}

impl<W: BlockWalk> RingReader<W, Local> {
    /// Returns the next block in place without taking it, or `None` if no block is published. Fails
    /// with [`Fault::Lossy`] in a ring that overwrites.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        let Some(found) = self.find_next()? else { return Ok(None) };
        Ok(Some(self.unread_bytes(&found)))
    }

    /// Returns the next block in place and advances past it, or returns `None` if no block is
    /// published. The next [`RingReader::release`] releases all blocks passed so far. Fails in the
    /// same cases as [`RingReader::peek`].
    #[inline]
    pub fn next_block(&mut self) -> Result<Option<&[u8]>, Fault> {
        let Some(found) = self.find_next()? else { return Ok(None) };
        self.0.advance_past(&found);
        Ok(Some(self.unread_bytes(&found)))
    }

    /// Advances past the next block, which counts as taken. Returns false if no block is published.
    pub fn skip(&mut self) -> Result<bool, Fault> {
        let found = self.find_next()?;
        if let Some(found) = &found {
            self.0.advance_past(found);
        }
        Ok(found.is_some())
    }

    /// Releases all blocks that this reader has passed, so that the writer may reuse their memory.
    pub fn release(&mut self) {
        self.0.release();
    }

    #[inline]
    fn find_next(&mut self) -> Result<Option<W::LocatedBlock>, Fault> {
        match self.0.find_on_fast_path() {
            Some(found) => Ok(Some(found)),
            None if self.0.cursor().policy == OverflowPolicy::Overwrite => Err(Fault::Lossy),
            None => self.0.find(),
        }
    }

    #[inline]
    fn unread_bytes(&self, found: &W::LocatedBlock) -> &[u8] {
        block_in_place(&self.0, found)
    }
}

impl<W: BlockWalk> RingReader<W, Foreign> {
    /// Copies the bytes of an extent into `out`, which must have the same length. Fails with
    /// [`Fault::OutOfWindow`] if this reader has released the extent or the writer has overwritten
    /// it.
    pub fn copy(&mut self, place: Extent, out: &mut [u8]) -> Result<(), Fault> {
        self.0.copy(place, out)
    }
}

impl RingReader<RecordWalk, Foreign> {
    /// Returns the unread part of a located block in place. The caller passes a [`TrustProof`],
    /// because the writer is relied on not to change unread blocks (D2, D6).
    #[inline]
    pub(crate) fn unread_bytes(&self, found: &CheckedRecord, _: TrustProof) -> &[u8] {
        match self.0.side.policy {
            OverflowPolicy::Overwrite => &[],
            OverflowPolicy::Block | OverflowPolicy::DropNew => block_in_place(&self.0, found),
        }
    }
}

/// Returns a located block in place. The ring must not overwrite, and its writer must be in this
/// process or trusted, so that the block does not change while it is unread (D2).
#[inline]
fn block_in_place<'a, W: BlockWalk>(walk: &'a W, found: &W::LocatedBlock) -> &'a [u8] {
    let (first, length) = walk.location(found);
    // SAFETY: `find` checked that the block is in the ring and is published (D3); it is not before
    // the published cursor, which cannot move while `walk` is borrowed (D4); both callers have
    // excluded rings that overwrite.
    unsafe { std::slice::from_raw_parts(first, length) }
}

impl<W: BlockWalk, P> RingReader<W, P> {
    pub(super) const fn from_walk(walk: W) -> Self {
        Self(walk, PhantomData)
    }

    /// Copies the next block into `out` and releases it. Returns its length in bytes, or `None` if
    /// no block is published. Fails with [`Fault::TooLong`] if `out` is too short; the block then
    /// remains unread.
    pub fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.0.read(out)
    }

    /// Skips all blocks but the newest. Returns the number of skipped blocks, which is also added
    /// to the reader's `skipped` count.
    pub fn skip_to_latest(&mut self) -> Result<u64, Fault> {
        self.0.skip_to_latest()
    }

    /// Skips all published blocks. Returns the number of skipped blocks, which is also added to the
    /// reader's `skipped` count.
    pub fn skip_to_now(&mut self) -> Result<u64, Fault> {
        self.0.skip_to_now()
    }

    /// Returns true if the writer has closed the ring and all blocks have been read. A killed
    /// writer in another process does not close the ring; its exit is reported by the control
    /// socket (RELIABILITY T10).
    pub fn is_finished(&mut self) -> Result<bool, Fault> {
        self.0.cursor_mut().is_finished()
    }

    /// Returns the counts of this reader: blocks and bytes taken, blocks lost and skipped.
    #[must_use]
    pub fn counts(&self) -> ReaderCounts {
        self.0.counts()
    }

    /// Returns the counts that the writer has published. Counts from another process are not
    /// validated.
    #[must_use]
    pub fn writer_counts(&self) -> WriterCounts {
        self.0.cursor().store.writer_counts()
    }

    /// Returns the number of blocks that the writer's program has reported as lost before it could
    /// put them into the ring.
    #[must_use]
    pub fn lost_before_ring(&self) -> u64 {
        self.0.cursor().store.lost_before_ring()
    }
}
