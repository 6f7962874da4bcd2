//! Traits for the two ends of any stream, so that callers are independent of whether bytes or
//! pointers are transferred. [SL §4, §5.1, §5.3.2], FEATURES A19, D6
//!
//! | call | in Unix | |
//! |---|---|---|
//! | [`read`], [`write`], [`flush`] | read, write | copies; bytes in a dbuf become a pointer |
//! | [`wait`], [`descriptors`] | poll | |
//! | [`peek`], [`take`] | | read without a copy |
//! | [`write_with`] | | reserve, fill, commit: write without a copy |
//! | [`lend`], [`accept`] | splice | used by [`crate::splice`] |
//! | drop | close | |
//!
//! [`read`]: StreamReader::read
//! [`write`]: StreamWriter::write
//! [`flush`]: StreamWriter::flush
//! [`wait`]: StreamReader::wait
//! [`descriptors`]: StreamWriter::descriptors
//! [`peek`]: StreamReader::peek
//! [`take`]: StreamReader::take
//! [`write_with`]: StreamWriter::write_with
//! [`lend`]: StreamReader::lend
//! [`accept`]: StreamWriter::accept
//!
//! All are calls within this process; only a caller that waits, or wakes a waiter, enters the
//! kernel. A writer has no call that reads:
//!
//! ```compile_fail,E0599
//! use streamline_iolite::interface::{StreamReader as _, StreamWriter as _};
//! fn wrong_end(output: &mut buffer::stream::Output) {
//!     let _ = output.read(&mut [0; 8]);
//! }
//! ```

mod aggregate;
mod direct;

pub use crate::indirect::lent::Lent;
pub use aggregate::AggregateBlocks;
pub use direct::Reading;

use buffer::Fault;
use buffer::stream::WaitResult;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The read end of a stream.
pub trait StreamReader: fmt::Debug {
    /// Reads like `read(2)`: blocks until bytes are available; returns 0 at the end of the stream.
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        loop {
            match self.try_read(out)? {
                Some(count) => return Ok(count),
                None => self.wait(None)?,
            };
        }
    }

    /// Reads without blocking; `None` if no bytes are available.
    fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault>;

    /// Returns the unread part of the next block without consuming it. `None` if no block is
    /// available; empty at the end of the stream. The slice is valid until the next call (a *weak
    /// move*; implementations may promise more).
    fn peek(&mut self) -> Result<Option<&[u8]>, Fault>;

    /// Returns an upper bound on the number of bytes that the next read will copy in any case, so
    /// that the caller can let it copy them directly to their destination instead of peeking.
    /// Returns 0 if a peek needs no copy or no bytes are available.
    fn copies(&mut self) -> Result<usize, Fault> {
        Ok(0)
    }

    /// Consumes `count` of the bytes that were peeked at or lent.
    fn take(&mut self, count: usize);

    /// Waits for input or the end of the stream, for at most `limit`; `None` waits indefinitely.
    fn wait(&mut self, limit: Option<Duration>) -> Result<WaitResult, Fault>;

    /// Lends up to `max` bytes of the next block as a pointer, to be forwarded and then consumed.
    /// `None` if no block is available or the stream does not support lending.
    fn lend(&mut self, _max: usize) -> Result<Option<Lent<'_>>, Fault> {
        Ok(None)
    }

    /// Returns true if a lending stream has ended, without following pointers, for which the caller
    /// may lack permission. Returns `None` if the stream does not support lending.
    fn is_lent_out(&mut self) -> Result<Option<bool>, Fault> {
        Ok(None)
    }

    /// Releases blocks that are consumed and no longer lent, for which the writer may be waiting.
    /// Returns the number of blocks still unreleased.
    fn give_back(&mut self) -> u64 {
        0
    }

    /// Waits as [`StreamReader::wait`], or until one of these descriptors is ready.
    fn wait_among(&mut self, _others: &[BorrowedFd<'_>]) -> Result<WaitResult, Fault> {
        self.wait(None)
    }
}

/// The write end of a stream.
pub trait StreamWriter: fmt::Debug {
    /// Writes one block. Blocks until there is room if the policy is to block; else returns false
    /// if the block was dropped.
    fn write(&mut self, block: &[u8]) -> Result<bool, Fault>;

    /// Reserves up to `length` bytes in place and lets `fill` write them; `fill` returns the length
    /// of the block. Blocks and returns as [`StreamWriter::write`].
    fn write_with(
        &mut self,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<bool, Fault>;

    /// Publishes all written blocks and wakes waiting readers.
    fn flush(&mut self);

    /// Returns the maximum length of a block in bytes.
    fn block_max(&self) -> usize;

    /// Returns the descriptors to poll for room; empty if the writer blocks internally.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Forwards a lent block as a pointer; returns false if it was dropped. Returns `None` if that
    /// is not possible now; the caller then copies.
    fn accept(&mut self, _lent: &Lent<'_>) -> Result<Option<bool>, Fault> {
        Ok(None)
    }

    /// Waits until readers have released some of the accepted blocks; returns false if none is
    /// held.
    fn settle(&mut self) -> Result<bool, Fault> {
        Ok(false)
    }

    /// Announces a sleep on the descriptors until readers have released something. Returns false if
    /// they already have, or if nothing is held.
    fn announce_sleep(&mut self) -> Result<bool, Fault> {
        Ok(false)
    }

    /// Withdraws the announcement of [`StreamWriter::announce_sleep`].
    fn wakes(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}
