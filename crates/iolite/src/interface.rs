//! One interface for every stream: whoever reads or writes does not know whether bytes or pointers
//! travel. [SL §4, §5.1, §5.3.2], FEATURES A19, D6
//!
//! | call | of Unix | |
//! |---|---|---|
//! | [`read`], [`write`], [`flush`] | read, write | copies; bytes in a dbuf become a pointer |
//! | [`wait`], [`descriptors`] | poll | |
//! | [`peek`], [`take`] | | read without a copy |
//! | [`write_with`] | | reserve, fill, commit: write without a copy |
//! | [`lend`], [`accept`] | splice | what [`crate::splice`] is made of |
//! | drop | close | |
//!
//! [`read`]: Stream::read
//! [`write`]: Stream::write
//! [`flush`]: Stream::flush
//! [`wait`]: Stream::wait
//! [`descriptors`]: Stream::descriptors
//! [`peek`]: Stream::peek
//! [`take`]: Stream::take
//! [`write_with`]: Stream::write_with
//! [`lend`]: Stream::lend
//! [`accept`]: Stream::accept
//!
//! All are calls in this process; only who has to wait, and who wakes one who waits, calls the
//! kernel. An end goes in one direction: in the other it answers [`Fault::WrongEnd`].

mod aggregate;
mod direct;

pub use crate::indirect::{Lent, Ready};
pub use aggregate::Held;
pub use direct::Reading;

use crate::indirect;
use buffer::Fault;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// An end of a stream, as a file descriptor is one.
pub trait Stream: fmt::Debug {
    /// Reads as `read(2)` does: waits until there is something; 0: the stream has ended.
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        loop {
            match self.try_read(out)? {
                Some(count) => return Ok(count),
                None => self.wait(None)?,
            };
        }
    }

    /// As [`Stream::read`], without waiting: `None` where nothing is there.
    fn try_read(&mut self, _out: &mut [u8]) -> Result<Option<usize>, Fault> {
        Err(Fault::WrongEnd)
    }

    /// The rest of the next block, without taking it. `None`: nothing is there; no bytes: the
    /// stream has ended. Good until the next call: a *weak move*, of which the implementation says
    /// more.
    fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        Err(Fault::WrongEnd)
    }

    /// How many bytes a read copies now, one for sure and no more than this, where a look would be
    /// a copy too; 0: it is none, or nothing is there. For who copies to somewhere else: once, and
    /// not twice.
    fn copies(&mut self) -> Result<usize, Fault> {
        Ok(0)
    }

    /// Takes so many bytes of what was peeked at or lent.
    fn take(&mut self, _count: usize) {}

    /// Waits until there is something to read, or the end, for at most `limit`.
    fn wait(&mut self, _limit: Option<Duration>) -> Result<Ready, Fault> {
        Err(Fault::WrongEnd)
    }

    /// Writes one block; waits while there is no room and the policy is to block. `false`: it was
    /// dropped, as the policy says.
    fn write(&mut self, _block: &[u8]) -> Result<bool, Fault> {
        Err(Fault::WrongEnd)
    }

    /// Has a block of up to `length` bytes written in place: `fill` answers how many it wrote.
    fn write_with(
        &mut self,
        _length: usize,
        _fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<bool, Fault> {
        Err(Fault::WrongEnd)
    }

    /// Shows readers all that was written, and wakes those that wait.
    fn flush(&mut self) {}

    /// The longest block that can be written; 0 where none can.
    fn block_max(&self) -> usize {
        0
    }

    /// What to poll.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Up to `max` bytes of the next block as a pointer, to be passed on and then taken. `None`:
    /// nothing is there, or it is not of the kind that can be lent.
    fn lend(&mut self, _max: usize) -> Result<Option<Lent<'_>>, Fault> {
        Ok(None)
    }

    /// Where blocks are lent: whether the stream has ended, without a look at what a pointer leads
    /// to, which whoever passes it on may not be allowed. `None`: they are not lent here.
    fn is_lent_out(&mut self) -> Result<Option<bool>, Fault> {
        Ok(None)
    }

    /// Passes on what another stream lends, as a pointer. `None`: that cannot be done (now): copy.
    fn accept(&mut self, _lent: &Lent<'_>) -> Result<Option<bool>, Fault> {
        Ok(None)
    }

    /// Waits until some of what was accepted is needed no longer. `false`: nothing is.
    fn settle(&mut self) -> Result<bool, Fault> {
        Ok(false)
    }

    /// Gives back what was taken and is not lent any more; answers how many blocks still are.
    /// Whoever writes here may be waiting for them.
    fn give_back(&mut self) -> u64 {
        0
    }

    /// As [`Stream::wait`], or until one of these is ready.
    fn wait_among(&mut self, _others: &[BorrowedFd<'_>]) -> Result<Ready, Fault> {
        self.wait(None)
    }

    /// Says that we are about to sleep on the descriptors until readers have passed something.
    /// `false`: they have, or there is nothing that they could.
    fn falls_asleep(&mut self) -> Result<bool, Fault> {
        Ok(false)
    }

    /// Says that we are awake again.
    fn wakes(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}

impl Stream for indirect::Input {
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

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.as_fd()]
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

impl Stream for indirect::Output {
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
