//! Rate policies: the position at which a reader starts in a ring, and the blocks that the reader
//! selects. [SL §5.2: each reader at its own pace]
//!
//! Each reader has its own rate policy, of which the writer is not aware. Counts still balance:
//! blocks that a reader chose not to take are *skipped*, blocks overwritten before the reader could
//! read them are *lost*, so put = taken + lost + skipped + resident for every reader of every ring.
//!
//! | choice | blocks read | stalls a blocking writer |
//! |---|---|---|
//! | [`StartPosition::Oldest`] | all still in the ring | until it has read them |
//! | [`StartPosition::Now`] | blocks written from now on | from then on |
//! | [`RatePolicy::EveryBlock`] | every block, in order | until it has read each |
//! | [`RatePolicy::Latest`] | the newest at each read | only between reads |

use crate::dbuf::readers::{BlockWalk, RingReader};
use crate::{Fault, ReaderCounts};

/// The position at which a reader starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StartPosition {
    /// The reader starts at the oldest block in the ring.
    #[default]
    Oldest,
    /// The reader starts after the newest block.
    Now,
}

/// The selection of the blocks that a reader reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RatePolicy {
    /// All blocks, in order.
    #[default]
    EveryBlock,
    /// The newest block at each read; earlier blocks are skipped.
    Latest,
}

/// A reader that can skip blocks; implemented by all readers of blocks in this crate.
pub trait SkippingReader {
    /// Copies the next block into `out` and advances past it. Returns its length in bytes, or
    /// `None` if no block is published.
    fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault>;
    /// Skips all blocks but the newest. Returns the number of skipped blocks, which is also added
    /// to the reader's `skipped` count.
    fn skip_to_latest(&mut self) -> Result<u64, Fault>;
    /// Skips all published blocks. Returns the number of skipped blocks, which is also added to the
    /// reader's `skipped` count.
    fn skip_to_now(&mut self) -> Result<u64, Fault>;
    /// Returns the counts of this reader: blocks and bytes taken, blocks lost and skipped.
    fn counts(&self) -> ReaderCounts;
}

/// A reader with a rate policy.
#[derive(Debug)]
pub struct RatedReader<R> {
    reader: R,
    rate: RatePolicy,
}

impl<R: SkippingReader> RatedReader<R> {
    /// Creates a reader with a rate policy from `reader`. With [`StartPosition::Now`], immediately
    /// skips all published blocks.
    pub fn new(mut reader: R, start: StartPosition, rate: RatePolicy) -> Result<Self, Fault> {
        if start == StartPosition::Now {
            reader.skip_to_now()?;
        }
        Ok(Self { reader, rate })
    }

    /// Copies the next block that the policy selects into `out` and advances past it. Returns its
    /// length in bytes, or `None` if no block is published. Fails with [`Fault::TooLong`] if `out`
    /// is too short. The block then remains unread; under [`RatePolicy::Latest`], the next read
    /// skips it if a newer block is published.
    pub fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        if self.rate == RatePolicy::Latest {
            self.reader.skip_to_latest()?;
        }
        self.reader.read(out)
    }

    /// Returns the counts of this reader: blocks and bytes taken, blocks lost and skipped.
    pub fn counts(&self) -> ReaderCounts {
        self.reader.counts()
    }

    /// Returns the underlying reader, for operations to which the policy does not apply.
    pub const fn reader(&mut self) -> &mut R {
        &mut self.reader
    }
}

impl<W: BlockWalk, P> SkippingReader for RingReader<W, P> {
    fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.read(out)
    }

    fn skip_to_latest(&mut self) -> Result<u64, Fault> {
        self.skip_to_latest()
    }

    fn skip_to_now(&mut self) -> Result<u64, Fault> {
        self.skip_to_now()
    }

    fn counts(&self) -> ReaderCounts {
        self.counts()
    }
}
