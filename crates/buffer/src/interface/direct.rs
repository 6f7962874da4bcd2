//! Streams of bytes behind the interface.

use super::{Ready, Stream};
use crate::Fault;
use crate::stream::{Input, Output};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The reading end of a stream of bytes. To peek at a block it takes a copy: the writer may be a
/// stranger, who may write there at any moment.
#[derive(Debug)]
pub struct Reading {
    input: Input,
    /// What was copied and not taken.
    ahead: Vec<u8>,
    from: usize,
}

/// How much is copied ahead to be looked at.
const AHEAD: usize = 64 << 10;

impl Reading {
    /// Reads this stream.
    #[must_use]
    pub const fn new(input: Input) -> Self {
        Self { input, ahead: Vec::new(), from: 0 }
    }

    /// The stream itself, for who waits on it. Reading from it passes over what was copied ahead.
    pub const fn input(&mut self) -> &mut Input {
        &mut self.input
    }

    fn ahead(&self) -> &[u8] {
        self.ahead.get(self.from..).unwrap_or_default()
    }
}

impl Stream for Reading {
    fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        if self.ahead().is_empty() || out.is_empty() {
            return self.input.try_read(out);
        }
        let count = out.len().min(self.ahead().len());
        if let (Some(to), Some(from)) = (out.get_mut(..count), self.ahead().get(..count)) {
            to.copy_from_slice(from);
        }
        self.take(count);
        Ok(Some(count))
    }

    /// A copy, good until the next call.
    fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        if self.ahead().is_empty() {
            self.from = 0;
            self.ahead.resize(AHEAD, 0);
            let read = self.input.try_read(&mut self.ahead);
            let count = read.as_ref().map_or(0, |count| count.unwrap_or(0));
            self.ahead.truncate(count);
            if read?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(self.ahead()))
    }

    fn take(&mut self, count: usize) {
        self.from = self.from.saturating_add(count).min(self.ahead.len());
    }

    fn wait(&mut self, limit: Option<Duration>) -> Result<Ready, Fault> {
        if self.ahead().is_empty() { self.input.wait(limit) } else { Ok(Ready::Something) }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.input.as_fd()]
    }
}

impl Stream for Output {
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

    /// None: a writer of bytes waits by itself.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}
