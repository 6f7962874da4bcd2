//! Sequential reading of a file, through the common stream interface.

use super::{CachedFile, FileRefusal, TransferResult};
use crate::indirect::lent_block::{BlockHolder, LentBlock};
use crate::interface::StreamReader;
use abi::{BLOCK_LENGTH_MAX, RichPointer};
use buffer::Fault;
use buffer::stream::WaitResult;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::time::Duration;

/// Maximum number of bytes that one call of [`StreamReader::peek`] copies.
const PEEK_MAX: usize = 64 << 10;

/// Maximum length in bytes of a block lent as a pointer. A reader that follows the pointer copies
/// such a block in one step.
const LENT_BLOCK_SIZE_MAX: usize = 64 << 10;

/// A read position in a file, used as the reading end of a stream.
#[derive(Clone, Debug)]
pub struct FileReader {
    file: CachedFile,
    at: u64,
    /// Bytes copied by [`StreamReader::peek`].
    peeked: Vec<u8>,
    peeked_at: u64,
    /// True if blocks are lent as pointers ([`FileReader::with_pointer_splices`]); false if none
    /// are lent, so that a splice copies them.
    lends_pointers: bool,
}

impl CachedFile {
    /// Returns a reader positioned at the beginning of the file.
    #[must_use]
    pub fn reader(&self) -> FileReader {
        FileReader {
            file: self.clone(),
            at: 0,
            peeked: Vec::new(),
            peeked_at: 0,
            lends_pointers: false,
        }
    }
}

impl FileReader {
    /// Makes splices from this reader transfer pointers into the file instead of copies. This is
    /// suitable for streams whose readers can request the file
    /// ([`PoolOwner::share_file`](crate::aggregate::owner::PoolOwner)). Such readers see the
    /// contents of the file at the time of their access.
    #[must_use]
    pub const fn with_pointer_splices(mut self) -> Self {
        self.lends_pointers = true;
        self
    }

    /// Returns the offset of the next read.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.at
    }

    /// Sets the offset of the next read, possibly beyond the end.
    pub const fn seek_to(&mut self, at: u64) {
        self.at = at;
    }

    /// Returns the bytes that a peek has copied and that have not been consumed.
    fn peeked_bytes(&self) -> &[u8] {
        let from = self.at.checked_sub(self.peeked_at).and_then(|from| usize::try_from(from).ok());
        from.and_then(|from| self.peeked.get(from..)).unwrap_or_default()
    }

    /// Returns a pointer to the next bytes, at most `max`, without consuming or reading them.
    /// Returns `None` at the current end of the file. The result is a pointer and not a slice,
    /// because files are foreign memory.
    pub fn next_pointer(&self, max: usize) -> Result<Option<RichPointer>, FileRefusal> {
        let view = self.file.view(self.at.saturating_add(max.min(BLOCK_LENGTH_MAX) as u64))?;
        let left = usize::try_from(view.size.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let length = left.min(max);
        Ok((length > 0).then(|| self.file.pointer(self.at, length)))
    }

    /// Advances the read position by `count` bytes without reading them.
    pub const fn skip(&mut self, count: u64) {
        self.at = self.at.saturating_add(count);
    }

    /// Copies the next bytes, like `read(2)`. Returns 0 at the current end of the file.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, FileRefusal> {
        let count = self.file.read_at(self.at, out)?;
        self.skip(count as u64);
        Ok(count)
    }

    /// Transfers the next bytes, at most `max`, to another descriptor, and advances by the number
    /// of bytes accepted ([`CachedFile::splice`]). Returns [`TransferResult::End`] at the current
    /// end of the file.
    pub fn splice(&mut self, max: usize, to: impl AsFd) -> Result<TransferResult, FileRefusal> {
        let Some(next) = self.next_pointer(max)? else { return Ok(TransferResult::End) };
        let sent = self.file.splice(next.place, to)?;
        if let TransferResult::Bytes(count) = sent {
            self.skip(count as u64);
        }
        Ok(sent)
    }
}

impl StreamReader for FileReader {
    fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.read(out).map(Some).map_err(|_| self.fault())
    }

    /// Returns a copy of the next bytes, valid until the next call; empty at the current end of the
    /// file. Never returns `None`. A slice of the file itself cannot be created.
    fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        if self.peeked_bytes().is_empty() {
            self.peeked_at = self.at;
            self.peeked.resize(PEEK_MAX, 0);
            let read = self.file.read_at(self.at, &mut self.peeked);
            self.peeked.truncate(*read.as_ref().unwrap_or(&0));
            read.map_err(|_| self.fault())?;
        }
        Ok(Some(self.peeked_bytes()))
    }

    fn take(&mut self, count: usize) {
        self.skip(count as u64);
    }

    fn lend(&mut self, max: usize) -> Result<Option<LentBlock<'_>>, Fault> {
        if !self.lends_pointers {
            return Ok(None);
        }
        let pointer = self.next_pointer(max.min(LENT_BLOCK_SIZE_MAX)).map_err(|_| self.fault())?;
        Ok(pointer.map(|pointer| LentBlock { pointer, holder: BlockHolder::File }))
    }

    /// Returns immediately: a file never blocks, even at its end.
    fn wait(&mut self, _limit: Option<Duration>) -> Result<WaitResult, Fault> {
        Ok(WaitResult::Ready)
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
