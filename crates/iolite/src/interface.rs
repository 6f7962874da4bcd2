//! Two interfaces for the two ends of every stream: callers do not know whether bytes or pointers
//! travel. [SL §4, §5.1, §5.3.2], FEATURES A19, D6
//!
//! | call | in Unix | |
//! |---|---|---|
//! | [`read`], [`write`], [`flush`] | read, write | copies; bytes in a dbuf become a pointer |
//! | [`wait`], [`descriptors`] | poll | |
//! | [`peek`], [`take`] | | read without a copy |
//! | [`write_with`] | | reserve, fill, commit: write without a copy |
//! | [`lend`], [`accept`] | splice | the parts of [`crate::splice`] |
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
//! All are calls in this process; only a caller that waits, or wakes a waiter, enters the kernel. A
//! writer has no call that reads:
//!
//! ```compile_fail,E0599
//! use streamline_iolite::interface::{StreamReader as _, StreamWriter as _};
//! fn wrong_end(output: &mut buffer::stream::Output) {
//!     let _ = output.read(&mut [0; 8]);
//! }
//! ```

mod aggregate;
mod direct;

pub use crate::indirect::Lent;
pub use aggregate::Held;
pub use direct::Reading;

use crate::indirect;
use buffer::Fault;
use buffer::stream::Ready;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The reading end of a stream.
pub trait StreamReader: fmt::Debug {
    /// Reads like `read(2)`: waits until there is something; 0 at the end of the stream.
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        loop {
            match self.try_read(out)? {
                Some(count) => return Ok(count),
                None => self.wait(None)?,
            };
        }
    }

    /// Reads without waiting; `None` if nothing is there.
    fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault>;

    /// Returns the rest of the next block without taking it. `None`: nothing is there; no bytes:
    /// the stream has ended. Valid until the next call (a *weak move*; the implementation says
    /// more).
    fn peek(&mut self) -> Result<Option<&[u8]>, Fault>;

    /// Returns how many bytes the next read copies at most where a peek would copy them too, so
    /// that a caller copies them once, to where it needs them; 0 if a peek is free or nothing is
    /// there.
    fn copies(&mut self) -> Result<usize, Fault> {
        Ok(0)
    }

    /// Takes this many of the bytes that were peeked at or lent.
    fn take(&mut self, count: usize);

    /// Waits until there is something to read, or the end, for at most `limit`.
    fn wait(&mut self, limit: Option<Duration>) -> Result<Ready, Fault>;

    /// Lends up to `max` bytes of the next block as a pointer, to be passed on and then taken.
    /// `None`: nothing is there, or this stream does not lend.
    fn lend(&mut self, _max: usize) -> Result<Option<Lent<'_>>, Fault> {
        Ok(None)
    }

    /// Returns true if a stream that lends has ended, without following pointers, which the caller
    /// may not be allowed to. `None`: this stream does not lend.
    fn is_lent_out(&mut self) -> Result<Option<bool>, Fault> {
        Ok(None)
    }

    /// Gives back what was taken and is not lent any more; returns how many blocks still are. The
    /// writer may wait for them.
    fn give_back(&mut self) -> u64 {
        0
    }

    /// Waits like [`StreamReader::wait`], or until one of these descriptors is ready.
    fn wait_among(&mut self, _others: &[BorrowedFd<'_>]) -> Result<Ready, Fault> {
        self.wait(None)
    }
}

/// The writing end of a stream.
pub trait StreamWriter: fmt::Debug {
    /// Writes one block; waits for room if the policy is to block. Returns false if the block was
    /// dropped, as the policy says.
    fn write(&mut self, block: &[u8]) -> Result<bool, Fault>;

    /// Lets `fill` write a block of up to `length` bytes in place and return its length.
    fn write_with(
        &mut self,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<bool, Fault>;

    /// Publishes what was written, and wakes waiting readers.
    fn flush(&mut self);

    /// Returns the longest block that can be written.
    fn block_max(&self) -> usize;

    /// Returns the descriptors to poll; none for a writer that waits by itself.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Passes on as a pointer what a reader lends; returns false if it was dropped. `None`: not
    /// possible (now), copy instead.
    fn accept(&mut self, _lent: &Lent<'_>) -> Result<Option<bool>, Fault> {
        Ok(None)
    }

    /// Waits until some of what was accepted is released; returns false if nothing is held.
    fn settle(&mut self) -> Result<bool, Fault> {
        Ok(false)
    }

    /// Announces a sleep on the descriptors until readers have passed something. Returns false if
    /// they have, or hold nothing.
    fn falls_asleep(&mut self) -> Result<bool, Fault> {
        Ok(false)
    }

    /// Withdraws the announcement.
    fn wakes(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}

impl StreamReader for indirect::Input {
    #[inline]
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        Self::read(self, out)
    }

    #[inline]
    fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        Self::try_read(self, out)
    }

    #[inline]
    fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        Self::peek(self)
    }

    fn copies(&mut self) -> Result<usize, Fault> {
        Self::copies(self)
    }

    #[inline]
    fn take(&mut self, count: usize) {
        Self::take(self, count);
    }

    fn wait(&mut self, limit: Option<Duration>) -> Result<Ready, Fault> {
        Self::wait(self, limit)
    }

    #[inline]
    fn lend(&mut self, max: usize) -> Result<Option<Lent<'_>>, Fault> {
        Self::lend(self, max)
    }

    fn is_lent_out(&mut self) -> Result<Option<bool>, Fault> {
        Self::is_lent_out(self)
    }

    fn give_back(&mut self) -> u64 {
        Self::give_back(self);
        self.kept()
    }

    fn wait_among(&mut self, others: &[BorrowedFd<'_>]) -> Result<Ready, Fault> {
        Self::wait_among(self, others, None)
    }
}

impl StreamWriter for indirect::Output {
    #[inline]
    fn write(&mut self, block: &[u8]) -> Result<bool, Fault> {
        Self::write(self, block)
    }

    fn write_with(
        &mut self,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<bool, Fault> {
        Self::write_with(self, length, fill)
    }

    fn flush(&mut self) {
        Self::flush(self);
    }

    fn block_max(&self) -> usize {
        Self::block_max(self)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Self::descriptors(self)
    }

    #[inline]
    fn accept(&mut self, lent: &Lent<'_>) -> Result<Option<bool>, Fault> {
        self.put_lent(lent)
    }

    fn settle(&mut self) -> Result<bool, Fault> {
        self.settle_some()
    }

    fn falls_asleep(&mut self) -> Result<bool, Fault> {
        Self::falls_asleep(self)
    }

    fn wakes(&mut self) -> Result<(), Fault> {
        Self::wakes(self)
    }
}
