//! Adapters from byte streams to the common stream interface.

use super::{StreamReader, StreamWriter};
use buffer::Fault;
use buffer::stream::{Input, Output, WaitResult};
use std::time::Duration;

/// The reading end of a byte stream. A peek reads the memory of a trusted writer in place. A block
/// of an untrusted writer is copied, because the writer could overwrite the block.
/// [`ByteReader::locate`] never copies.
#[derive(Debug)]
pub struct ByteReader {
    input: Input,
    /// Bytes that [`StreamReader::peek`] has copied and that are not consumed yet.
    peeked: Vec<u8>,
    from: usize,
}

/// Maximum number of bytes that one call of [`StreamReader::peek`] copies.
const PEEK_MAX: usize = 64 << 10;

impl ByteReader {
    /// Wraps the reading end of a byte stream.
    #[must_use]
    pub const fn new(input: Input) -> Self {
        Self { input, peeked: Vec::new(), from: 0 }
    }

    /// Returns the underlying byte stream, on which the caller can wait. Do not read from it: such
    /// a read would miss the bytes that a peek has copied.
    pub const fn input(&mut self) -> &mut Input {
        &mut self.input
    }

    /// Returns the address and the length of the next unread bytes: in the stream's memory, like
    /// [`Input::locate`], or in this reader's copy if a peek has copied them. Works with any writer
    /// and any policy. Returns `None` if no bytes are published, and length 0 at the end of the
    /// stream.
    pub fn locate(&mut self) -> Result<Option<(*const u8, usize)>, Fault> {
        match self.peeked_bytes() {
            [] => self.input.locate(),
            ahead => Ok(Some((ahead.as_ptr(), ahead.len()))),
        }
    }

    /// Consumes `count` located bytes, like [`Input::take_checked`]. Returns false if the writer
    /// may have overwritten the bytes since they were located.
    pub fn take_checked(&mut self, count: usize) -> Result<bool, Fault> {
        if self.peeked_bytes().is_empty() {
            return self.input.take_checked(count);
        }
        self.take(count);
        Ok(true)
    }

    fn peeked_bytes(&self) -> &[u8] {
        self.peeked.get(self.from..).unwrap_or_default()
    }
}

impl StreamReader for ByteReader {
    fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        if self.peeked_bytes().is_empty() || out.is_empty() {
            return self.input.try_read(out);
        }
        let count = out.len().min(self.peeked_bytes().len());
        if let (Some(to), Some(from)) = (out.get_mut(..count), self.peeked_bytes().get(..count)) {
            to.copy_from_slice(from);
        }
        self.take(count);
        Ok(Some(count))
    }

    fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        if self.input.can_peek() {
            return self.input.peek();
        }
        if self.peeked_bytes().is_empty() {
            self.from = 0;
            self.peeked.resize(PEEK_MAX, 0);
            let read = self.input.try_read(&mut self.peeked);
            let count = read.as_ref().map_or(0, |count| count.unwrap_or(0));
            self.peeked.truncate(count);
            if read?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(self.peeked_bytes()))
    }

    fn copied_read_max(&mut self) -> Result<usize, Fault> {
        match self.peeked_bytes() {
            _ if self.input.can_peek() => Ok(0),
            [] => Ok(self.input.readable_bytes_estimate()?.min(PEEK_MAX)),
            _ => Ok(0),
        }
    }

    fn take(&mut self, count: usize) {
        if self.input.can_peek() {
            return self.input.take(count);
        }
        self.from = self.from.saturating_add(count).min(self.peeked.len());
    }

    fn wait(&mut self, limit: Option<Duration>) -> Result<WaitResult, Fault> {
        if self.peeked_bytes().is_empty() { self.input.wait(limit) } else { Ok(WaitResult::Ready) }
    }
}

impl StreamWriter for Output {
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

    fn block_length_max(&self) -> usize {
        Self::block_length_max(self)
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::splice::{splice, splice_all};
    use abi::DbufId;
    use buffer::stream::{Config, stream};
    use testkit::Random;

    fn stream_pair(capacity: usize) -> (Output, ByteReader) {
        let config = Config::new(DbufId::new(3).unwrap()).capacity(capacity);
        let (output, mut offers) = stream(&config).unwrap();
        (output, ByteReader::new(offers.remove(0).open().unwrap()))
    }

    /// Splices bytes from ring to ring with random block and ring sizes. Expects all bytes to
    /// arrive in order, copied only once, directly from one ring to the other.
    #[test]
    fn e2_splice_from_byte_stream_copies_once() {
        let mut random = Random::with_replayable_seed();
        let (mut first, mut second) = (stream_pair(8192), stream_pair(4096));
        let (mut sent, mut received, mut moved, mut blocks) = (Vec::new(), Vec::new(), 0, 0);
        let mut out = vec![0; 10_000];
        while sent.len() < 300_000 {
            while first.0.is_ready(2000).unwrap() {
                let block = random.bytes(random.clone().within(0..2000));
                assert!(first.0.write(&block).unwrap());
                sent.extend_from_slice(&block);
            }
            first.0.flush();
            // At most the number of bytes that certainly fit.
            let most = random.within(1..900);
            moved += splice(&mut first.1, &mut second.0, most).unwrap().bytes;
            blocks = second.0.counts().blocks;
            second.0.flush();
            let count = second.1.try_read(&mut out).unwrap().unwrap();
            received.extend_from_slice(&out[..count]);
        }
        assert_eq!(first.1.peeked.capacity(), 0, "nothing was copied to be looked at");
        drop(first.0);
        let reading = std::thread::spawn(move || {
            let mut rest = Vec::new();
            loop {
                match second.1.read(&mut out).unwrap() {
                    0 => return rest,
                    count => rest.extend_from_slice(&out[..count]),
                }
            }
        });
        moved += splice_all(&mut first.1, &mut second.0).unwrap().bytes;
        drop(second.0);
        received.extend(reading.join().unwrap());
        assert!(received == sent && moved == sent.len() && blocks > 100);
    }
}
