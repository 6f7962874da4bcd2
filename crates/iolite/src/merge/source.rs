//! Readers that can be merged: of a stream of blocks, or of slots.

use buffer::dbuf::fixed;
use buffer::pace::Skip;
use buffer::stream::{Input, Piece};
use buffer::{Fault, Put, Taken};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

/// The reading end of a stream that gives whole blocks; of this crate alone.
pub trait Source: Reads {}

impl Source for Input {}
impl Source for fixed::stream::Input {}

/// The reading end of one producer, as [`Merged`](super::Merged) needs it.
pub trait Reads: fmt::Debug + Send {
    /// Copies one block and takes it; waits for nothing.
    fn read_block(&mut self, out: &mut [u8]) -> Result<Piece, Fault>;
    /// Returns true if there is something to read, or the end.
    fn has_something(&mut self) -> Result<bool, Fault>;
    /// Says that we are about to sleep; answers whether there is something after all.
    fn fall_asleep(&mut self) -> Result<bool, Fault>;
    /// Says that we are awake.
    fn wake(&mut self, rang: bool);
    /// The doorbell.
    fn doorbell(&self) -> BorrowedFd<'_>;
    /// Returns the counts that the producer claims to have put.
    fn put(&self) -> Put;
    /// Returns the counts that were taken.
    fn taken(&self) -> Taken;
}

impl Reads for Input {
    fn read_block(&mut self, out: &mut [u8]) -> Result<Piece, Fault> {
        Self::read_block(self, out)
    }

    fn has_something(&mut self) -> Result<bool, Fault> {
        Self::has_something(self)
    }

    fn fall_asleep(&mut self) -> Result<bool, Fault> {
        Self::fall_asleep(self)
    }

    fn wake(&mut self, rang: bool) {
        Self::wake(self, rang);
    }

    fn doorbell(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn put(&self) -> Put {
        self.written()
    }

    fn taken(&self) -> Taken {
        self.count()
    }
}

impl Reads for fixed::stream::Input {
    fn read_block(&mut self, out: &mut [u8]) -> Result<Piece, Fault> {
        self.try_read(out)
    }

    fn has_something(&mut self) -> Result<bool, Fault> {
        Self::has_something(self)
    }

    fn fall_asleep(&mut self) -> Result<bool, Fault> {
        // Whatever comes: who reads many streams turns to others meanwhile.
        Self::fall_asleep(self, 1)
    }

    fn wake(&mut self, rang: bool) {
        Self::wake(self, rang);
    }

    fn doorbell(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn put(&self) -> Put {
        self.written()
    }

    fn taken(&self) -> Taken {
        self.count()
    }
}
