//! Reading a file from front to back: the same calls as on any other dbuf.

use super::{CachedFile, Refusal, Sent};
use crate::indirect::{Home, Lent};
use crate::interface::StreamReader;
use abi::{BLOCK_MAX, RichPointer};
use buffer::Fault;
use buffer::stream::Ready;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::time::Duration;

/// Bytes that are copied for a look.
const AHEAD: usize = 64 << 10;

/// As much is lent as one pointer: a reader copies it in one go.
const LENT_MAX: usize = 64 << 10;

/// A place in a file. Dropping it changes nothing.
#[derive(Clone, Debug)]
pub struct FileReader {
    file: CachedFile,
    at: u64,
    /// A copy to be looked at ([`StreamReader::peek`]), and where it begins.
    ahead: Vec<u8>,
    ahead_at: u64,
    /// True if its bytes are lent as pointers.
    lends: bool,
}

impl CachedFile {
    /// Opens the file for reading from the beginning.
    #[must_use]
    pub fn reader(&self) -> FileReader {
        FileReader { file: self.clone(), at: 0, ahead: Vec::new(), ahead_at: 0, lends: false }
    }
}

impl FileReader {
    /// Lends pointers into the file to who splices from it, instead of copies: for streams whose
    /// readers can ask for it ([`Creator::share_file`](crate::aggregate::owner::Creator)). They
    /// find what the file contains when they look.
    #[must_use]
    pub const fn by_pointer(mut self) -> Self {
        self.lends = true;
        self
    }

    /// Returns the offset of the next read.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.at
    }

    /// Goes to this offset, wherever it is.
    pub const fn go_to(&mut self, at: u64) {
        self.at = at;
    }

    /// Returns the rest of the copy made for a look.
    fn ahead(&self) -> &[u8] {
        let from = self.at.checked_sub(self.ahead_at).and_then(|from| usize::try_from(from).ok());
        from.and_then(|from| self.ahead.get(from..)).unwrap_or_default()
    }

    /// Names the bytes that come next, at most `max`, without taking or touching them; `None`: the
    /// end, for now. A name and no slice, as files are foreign memory.
    pub fn next(&self, max: usize) -> Result<Option<RichPointer>, Refusal> {
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
        let Some(next) = self.next(max)? else { return Ok(Sent::End) };
        let sent = self.file.splice(next.place, to)?;
        if let Sent::Bytes(count) = sent {
            self.skip(count as u64);
        }
        Ok(sent)
    }
}

impl StreamReader for FileReader {
    fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.read(out).map(Some).map_err(|_| self.fault())
    }

    /// A copy, good until the next call: there is no reference to a file.
    fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        if self.ahead().is_empty() {
            self.ahead_at = self.at;
            self.ahead.resize(AHEAD, 0);
            let read = self.file.read_at(self.at, &mut self.ahead);
            self.ahead.truncate(*read.as_ref().unwrap_or(&0));
            read.map_err(|_| self.fault())?;
        }
        Ok(Some(self.ahead()))
    }

    fn take(&mut self, count: usize) {
        self.skip(count as u64);
    }

    fn lend(&mut self, max: usize) -> Result<Option<Lent<'_>>, Fault> {
        if !self.lends {
            return Ok(None);
        }
        let pointer = self.next(max.min(LENT_MAX)).map_err(|_| self.fault())?;
        Ok(pointer.map(|pointer| Lent { pointer, home: Home::File }))
    }

    /// A file never lets its reader wait; at its end is the end, for now.
    fn wait(&mut self, _limit: Option<Duration>) -> Result<Ready, Fault> {
        Ok(Ready::Something)
    }
}

impl FileReader {
    fn fault(&self) -> Fault {
        Fault::OutOfWindow(self.file.pointer(self.at, 0).place)
    }
}

impl Read for FileReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        Self::read(self, out).map_err(io::Error::other)
    }
}

impl Seek for FileReader {
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
