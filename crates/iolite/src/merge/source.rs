//! The readers whose streams can be merged: readers of blocks of any length, and readers of slots.

use buffer::dbuf::fixed_size;
use buffer::rate::SkippingReader;
use buffer::stream::{BlockReadResult, Input};
use buffer::{Fault, WriterCounts};
use std::fmt;
use std::os::fd::AsFd;

/// The reading end of a stream of entire blocks. This trait is sealed.
pub trait BlockSource: ProducerReader {}

impl BlockSource for Input {}
impl BlockSource for fixed_size::stream::SlotInput {}

/// The reading end of one producer's stream, as [`MergedReader`](super::MergedReader) uses it.
pub trait ProducerReader: SkippingReader + AsFd + fmt::Debug + Send {
    /// Copies and consumes one block without blocking.
    fn read_block(&mut self, out: &mut [u8]) -> Result<BlockReadResult, Fault>;
    /// Returns true if a block is available or the stream has ended.
    fn is_readable(&mut self) -> Result<bool, Fault>;
    /// Announces that the caller is about to sleep on the doorbell. Returns true if a block is
    /// already available.
    fn announce_sleep(&mut self) -> Result<bool, Fault>;
    /// Withdraws the announcement made by [`Self::announce_sleep`]. `notified` is true if the
    /// doorbell was readable.
    fn wake(&mut self, notified: bool);
    /// Returns the counts that the producer has published.
    fn writer_counts(&self) -> WriterCounts;
}

impl ProducerReader for Input {
    fn read_block(&mut self, out: &mut [u8]) -> Result<BlockReadResult, Fault> {
        Self::read_block(self, out)
    }

    fn is_readable(&mut self) -> Result<bool, Fault> {
        Self::is_readable(self)
    }

    fn announce_sleep(&mut self) -> Result<bool, Fault> {
        Self::announce_sleep(self)
    }

    fn wake(&mut self, notified: bool) {
        Self::announce_wake(self, notified);
    }

    fn writer_counts(&self) -> WriterCounts {
        self.writer_counts()
    }
}

impl ProducerReader for fixed_size::stream::SlotInput {
    fn read_block(&mut self, out: &mut [u8]) -> Result<BlockReadResult, Fault> {
        self.try_read(out)
    }

    fn is_readable(&mut self) -> Result<bool, Fault> {
        Self::is_readable(self)
    }

    fn announce_sleep(&mut self) -> Result<bool, Fault> {
        // One block suffices as a wakeup: the reader serves other streams in the meantime.
        Self::announce_sleep(self, 1)
    }

    fn wake(&mut self, notified: bool) {
        Self::announce_wake(self, notified);
    }

    fn writer_counts(&self) -> WriterCounts {
        self.writer_counts()
    }
}
