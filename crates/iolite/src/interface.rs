//! Traits for the two ends of any stream, so that callers need not know whether bytes or pointers
//! are transferred. [SL §4, §5.1, §5.3.2], FEATURES A19, D6
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
//! An end of a ring enters the kernel only to wait, to wake a waiter, or to map a dbuf. A writer
//! has no method that reads:
//!
//! ```compile_fail,E0599
//! use streamline_iolite::interface::{StreamReader as _, StreamWriter as _};
//! fn wrong_end(output: &mut buffer::stream::Output) {
//!     let _ = output.read(&mut [0; 8]);
//! }
//! ```

mod aggregate;
mod byte_reader;
mod frozen_reader;

pub use crate::indirect::lent_block::LentBlock;
pub use aggregate::AggregateBlockReader;
pub use byte_reader::ByteReader;
pub use frozen_reader::FrozenReader;

use buffer::Fault;
use buffer::stream::WaitResult;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The reading end of a stream.
pub trait StreamReader: fmt::Debug {
    /// Reads like `read(2)`: blocks until bytes are available. Returns the number of bytes copied,
    /// or 0 at the end of the stream.
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        loop {
            match self.try_read(out)? {
                Some(count) => return Ok(count),
                None => self.wait(None)?,
            };
        }
    }

    /// Reads without blocking. Returns `None` if no bytes are available.
    fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault>;

    /// Returns the unread part of the next block without consuming it. Returns `None` if no block
    /// is available, and an empty slice at the end of the stream. The slice is valid until the next
    /// call (a *weak move*); implementations may promise more.
    fn peek(&mut self) -> Result<Option<&[u8]>, Fault>;

    /// If [`StreamReader::peek`] would have to copy the next bytes, returns an upper bound on the
    /// number of bytes that a read can copy now. The caller can then read them directly into their
    /// destination. Returns 0 if a peek needs no copy, or if no bytes are available.
    fn copied_read_max(&mut self) -> Result<usize, Fault> {
        Ok(0)
    }

    /// Consumes `count` bytes that the caller has peeked or forwarded.
    fn take(&mut self, count: usize);

    /// Waits for input or the end of the stream, for at most `limit` (`None` means no limit).
    fn wait(&mut self, limit: Option<Duration>) -> Result<WaitResult, Fault>;

    /// Lends up to `max` bytes of the next block as a pointer, to be forwarded and then consumed.
    /// Returns `None` if no block is available or the stream does not lend blocks.
    fn lend(&mut self, _max: usize) -> Result<Option<LentBlock<'_>>, Fault> {
        Ok(None)
    }

    /// Lends up to `max` bytes of several adjacent blocks. Also returns the length of each block
    /// except the last one, which may be shorter. Returns `None` if there are not at least two such
    /// blocks; [`lend`] may then lend one.
    ///
    /// [`lend`]: StreamReader::lend
    fn lend_adjacent_blocks(
        &mut self,
        _max: usize,
    ) -> Result<Option<(LentBlock<'_>, usize)>, Fault> {
        Ok(None)
    }

    /// Checks for the end of a stream that lends blocks, without following pointers, because the
    /// caller may lack permission to read. Returns true at the end, and `None` if the stream does
    /// not lend blocks.
    fn has_lending_ended(&mut self) -> Result<Option<bool>, Fault> {
        Ok(None)
    }

    /// Releases blocks that are consumed and no longer lent, because the writer may be waiting for
    /// their memory. Returns the number of blocks still unreleased.
    fn release_consumed(&mut self) -> u64 {
        0
    }

    /// Waits like [`StreamReader::wait`] without a limit, but also returns when one of these
    /// descriptors is ready. The default implementation ignores the descriptors.
    fn wait_for_input_or_descriptors(
        &mut self,
        _others: &[BorrowedFd<'_>],
    ) -> Result<WaitResult, Fault> {
        self.wait(None)
    }
}

/// The writing end of a stream.
pub trait StreamWriter: fmt::Debug {
    /// Writes one block. Blocks until there is room, if the policy is to block; returns false if
    /// the policy drops the block.
    fn write(&mut self, block: &[u8]) -> Result<bool, Fault>;

    /// Writes a block of up to `length` bytes in place: `fill` writes into the block and returns
    /// its length in bytes. Blocks and returns like [`StreamWriter::write`].
    fn write_with(
        &mut self,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<bool, Fault>;

    /// Publishes all written blocks and wakes waiting readers.
    fn flush(&mut self);

    /// Returns the maximum length of a block in bytes.
    fn block_length_max(&self) -> usize;

    /// Returns the descriptors to poll for room. The list is empty if the writer waits only inside
    /// its own calls.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Forwards a lent block as a pointer. Returns false if the block was dropped, and `None` if
    /// the block cannot be forwarded now, so the caller must copy it.
    fn accept(&mut self, _lent: &LentBlock<'_>) -> Result<Option<bool>, Fault> {
        Ok(None)
    }

    /// Forwards lent blocks of `block` bytes each (the last one may be shorter), beginning with the
    /// first one, without waiting. Returns the number of bytes forwarded, which is 0 if the first
    /// block must be forwarded by [`accept`].
    ///
    /// [`accept`]: StreamWriter::accept
    fn accept_adjacent_blocks(
        &mut self,
        _lent: &LentBlock<'_>,
        _block: usize,
    ) -> Result<usize, Fault> {
        Ok(0)
    }

    /// Waits until readers have released some of the accepted blocks, and then returns true.
    /// Returns false immediately if no accepted block is held, or if the policy is not to block.
    fn wait_for_released_blocks(&mut self) -> Result<bool, Fault> {
        Ok(false)
    }

    /// Announces that the caller will sleep on the descriptors until readers release accepted
    /// blocks. Returns false if readers have already released some, or if no accepted block is
    /// held.
    fn announce_sleep(&mut self) -> Result<bool, Fault> {
        Ok(false)
    }

    /// Withdraws the announcement of [`StreamWriter::announce_sleep`].
    fn withdraw_sleep(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}
