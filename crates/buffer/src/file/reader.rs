//! Reading a file from front to back: the same calls as on any other dbuf.

use super::{CachedFile, Refusal, Sent};
use abi::{BLOCK_MAX, RichPointer};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;

/// A place in a file. Dropping it changes nothing.
#[derive(Clone, Debug)]
pub struct Reader {
    file: CachedFile,
    at: u64,
}

impl Reader {
    pub(super) const fn new(file: CachedFile) -> Self {
        Self { file, at: 0 }
    }

    /// Where the next byte is read.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.at
    }

    /// Goes to this offset, wherever it is.
    pub const fn go_to(&mut self, at: u64) {
        self.at = at;
    }

    /// Names the bytes that come next, at most `max`, without taking or touching them; `None`: the
    /// end, for now. A name and no slice, as files are foreign memory.
    pub fn peek(&self, max: usize) -> Result<Option<RichPointer>, Refusal> {
        let view = self.file.view(self.at.saturating_add(max.min(BLOCK_MAX) as u64))?;
        let left = usize::try_from(view.size.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let length = left.min(max);
        Ok((length > 0).then(|| self.file.pointer(self.at, length)))
    }

    /// Passes over so many bytes.
    pub const fn skip(&mut self, count: u64) {
        self.at = self.at.saturating_add(count);
    }

    /// Copies what comes next, as `read(2)` does; 0: the end, for now.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, Refusal> {
        let count = self.file.read_at(self.at, out)?;
        self.skip(count as u64);
        Ok(count)
    }

    /// Hands what comes next, at most `max` bytes, to another descriptor, and passes over as much
    /// as that took ([`CachedFile::splice`]). [`Sent::End`]: the end, for now.
    pub fn splice(&mut self, max: usize, to: impl AsFd) -> Result<Sent, Refusal> {
        let Some(next) = self.peek(max)? else { return Ok(Sent::End) };
        let sent = self.file.splice(next.place, to)?;
        if let Sent::Bytes(count) = sent {
            self.skip(count as u64);
        }
        Ok(sent)
    }
}

impl Read for Reader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        Self::read(self, out).map_err(io::Error::other)
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (from, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::End(by) => (self.file.size().map_err(io::Error::other)?, by),
            SeekFrom::Current(by) => (self.at, by),
        };
        let at = from.checked_add_signed(by);
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}
