//! Rate policies: where a reader starts in a ring, and whether it takes every block. [SL §5.2: each
//! reader at its own pace]
//!
//! In: the wish of one reader, beside which others have theirs; the writer and its policy do not
//! know it. Out: blocks, and a ledger that balances: what a reader did not want is counted as
//! *skipped*, what was overwritten before it came as *lost*, so that put = taken + lost + skipped +
//! resident for every reader of every ring.
//!
//! | wish | what it gets | holds up a writer that blocks |
//! |---|---|---|
//! | [`Start::Oldest`] | all that is still there | until it has read it |
//! | [`Start::Now`] | what is written from now on | from then on |
//! | [`Pace::Everything`] | every block, in order | until it has read it |
//! | [`Pace::Latest`] | the newest block each time it asks | only while it does not ask |

use crate::dbuf::{self, fixed};
use crate::stream::{Input, Piece};
use crate::{Fault, Taken};

/// The start of a reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    /// With the oldest block that is still there.
    #[default]
    Oldest,
    /// Behind the newest one.
    Now,
}

/// The blocks that a reader takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pace {
    /// All of them, in order.
    #[default]
    Everything,
    /// Each time the newest there is; those before it are skipped.
    Latest,
}

/// A reader that can leave blocks out: any of this crate.
pub trait Skip {
    /// Copies the next block into `out` and takes it; `None`: nothing is there.
    fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault>;
    /// Passes over all blocks but the newest; answers how many, which are counted as skipped.
    fn skip_to_latest(&mut self) -> Result<u64, Fault>;
    /// Goes on with what is written from now on; answers how many blocks were skipped.
    fn skip_to_now(&mut self) -> Result<u64, Fault>;
    /// Returns the counts of this side.
    fn count(&self) -> Taken;
}

/// A reader with wishes of its own.
#[derive(Debug)]
pub struct Paced<R> {
    reader: R,
    pace: Pace,
}

impl<R: Skip> Paced<R> {
    /// A reader that begins there and goes on so.
    pub fn new(mut reader: R, start: Start, pace: Pace) -> Result<Self, Fault> {
        if start == Start::Now {
            reader.skip_to_now()?;
        }
        Ok(Self { reader, pace })
    }

    /// Copies the next block that it wants into `out` and takes it; `None`: nothing is there. Where
    /// `out` is too short the block stays, until there is a newer one.
    pub fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        if self.pace == Pace::Latest {
            self.reader.skip_to_latest()?;
        }
        self.reader.read(out)
    }

    /// Returns the counts of this side.
    pub fn count(&self) -> Taken {
        self.reader.count()
    }

    /// The reader itself.
    pub const fn reader(&mut self) -> &mut R {
        &mut self.reader
    }
}

impl Skip for Input {
    fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        Ok(match self.read_block(out)? {
            Piece::Block(length) => Some(length),
            Piece::Nothing | Piece::End => None,
        })
    }

    fn skip_to_latest(&mut self) -> Result<u64, Fault> {
        self.skip_to_latest()
    }

    fn skip_to_now(&mut self) -> Result<u64, Fault> {
        self.skip_to_now()
    }

    fn count(&self) -> Taken {
        self.count()
    }
}

macro_rules! skips {
    ($($reader:ty),*) => {$(
        impl Skip for $reader {
            fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
                self.read(out)
            }

            fn skip_to_latest(&mut self) -> Result<u64, Fault> {
                self.skip_to_latest()
            }

            fn skip_to_now(&mut self) -> Result<u64, Fault> {
                self.skip_to_now()
            }

            fn count(&self) -> Taken {
                self.count()
            }
        }
    )*};
}

skips!(dbuf::Reader, dbuf::Visitor, fixed::Reader, fixed::Visitor);
