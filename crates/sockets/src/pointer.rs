//! Pointers into files, which a ring carries in place of bytes. [SL §5.3.2, §5.3.3; FEATURES E1,
//! G4]
//!
//! ```text
//! ring        ▪ bytes ▪ bytes ▪ (empty) ▪ file 0, offset, length ▪ …
//! rendezvous  file 0: a descriptor, sent once, before the first pointer into it
//! ```
//!
//! An empty block, which no write produces, announces a pointer. The reader copies the bytes out of
//! the page cache when the program reads them, or lends them to its next write, so they reach their
//! destination without having been copied before. A pointer stands for the contents of the file at
//! the moment of that copy or write, so pointers are written only with `--lazy`. If the file was
//! truncated, the read fails with `EIO`.

use crate::counts;
use crate::forward;
use crate::lazy::FileRange;
use crate::rendezvous;
use abi::Extent;
use abi::edge::{Edge, EdgeCount};
use buffer::Fault;
use buffer::stream::{BlockReadResult, Input, Output, ReadUntilMarkResult, WaitResult};
use iolite::file::CachedFile;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::time::Duration;
use sys::preload::{self, RendezvousResult};

/// The maximum number of files to which the pointers of one edge refer. Ranges of other files are
/// copied.
const SENT_FILES_MAX: usize = 64;
/// Number of free bytes in a ring that suffices for a pointer and the empty block that announces
/// it.
pub(crate) const POINTER_ROOM_BYTES: usize = 256;

/// The files whose descriptors a writer has sent to its reader.
#[derive(Debug, Default)]
pub(crate) struct SentFiles(Vec<CachedFile>);

impl SentFiles {
    /// Writes a pointer to the range into a ring that has room for it ([`POINTER_ROOM_BYTES`]).
    /// Returns false if the bytes must be copied, because the file has become shorter or cannot be
    /// sent.
    pub(crate) fn write_pointer(
        &mut self,
        edge: &Edge,
        output: &mut Output,
        range: &FileRange,
    ) -> Result<bool, Fault> {
        let end = range.at.saturating_add(range.len as u64);
        if range.file.size().map_or(true, |size| size < end) {
            return Ok(false);
        }
        let Some(number) = self.file_number(edge, &range.file) else { return Ok(false) };
        let words = [number as u64, range.at, range.len as u64];
        output.write(&[])?;
        output.write(words.map(u64::to_le_bytes).as_flattened())?;
        Ok(true)
    }

    /// Returns the number of a file on this edge, after sending its descriptor if necessary.
    /// Returns `None` if the file cannot be sent, or if [`SENT_FILES_MAX`] other files have been
    /// sent over the edge.
    fn file_number(&mut self, edge: &Edge, file: &CachedFile) -> Option<usize> {
        // The list keeps the descriptors open, so a number denotes one file.
        let same =
            |sent: &CachedFile| sent.descriptor().as_raw_fd() == file.descriptor().as_raw_fd();
        if let Some(at) = self.0.iter().position(same) {
            return Some(at);
        }
        if self.0.len() == SENT_FILES_MAX || !rendezvous::is_open(edge) {
            return None;
        }
        let socket = preload::borrow_descriptor(edge.socket)?;
        sys::descriptor::send(socket, b"file", &[file.descriptor()]).ok()?;
        self.0.push(file.clone());
        Some(self.0.len() - 1)
    }
}

/// The reading end of a ring that carries bytes and pointers.
#[derive(Debug)]
pub(crate) struct RingInput {
    input: Input,
    edge: Edge,
    files: Vec<CachedFile>,
    /// True if an empty block in the ring has announced a pointer that has not been read yet.
    has_announced_pointer: bool,
    /// File range that the next reads return; `None` if the next bytes are in the ring. The range
    /// is the unread part of the last pointer's range, joined with the ranges of later pointers
    /// that continue it in the same file.
    range: Option<FileRange>,
    /// File range of a pointer that has been read from the ring, but does not continue `range`.
    /// Reads return it after `range`.
    following_range: Option<FileRange>,
    /// Fault found in the ring after the pointers whose ranges `range` joins. It is reported once
    /// the bytes of `range` have been read.
    fault: Option<Fault>,
}

impl RingInput {
    pub(crate) const fn new(input: Input, edge: Edge) -> Self {
        Self {
            input,
            edge,
            files: Vec::new(),
            has_announced_pointer: false,
            range: None,
            following_range: None,
            fault: None,
        }
    }

    /// Reads like [`Input::try_read`]. Fails with [`Fault::OutOfWindow`] if a file was truncated
    /// before its bytes were read.
    pub(crate) fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        loop {
            self.join_following_ranges(out.len());
            if let Some(range) = &self.range {
                let length = out.len().min(range.len);
                let to = out.get_mut(..length).unwrap_or_default();
                let count = range.file.read_at(range.at, to).unwrap_or(0);
                if count == 0 && length > 0 {
                    let length = u32::try_from(range.len).unwrap_or(0);
                    return Err(Fault::OutOfWindow(Extent::new(range.at, length)));
                }
                self.advance(count);
                counts::add(&self.edge, EdgeCount::CopiedOut, count);
                return Ok(Some(count));
            }
            if let Some(fault) = self.fault.take() {
                return Err(fault);
            }
            if !self.has_announced_pointer {
                match self.input.read_until_mark(out)? {
                    ReadUntilMarkResult::Bytes(count) => {
                        counts::add(&self.edge, EdgeCount::CopiedOut, count);
                        return Ok(Some(count));
                    }
                    ReadUntilMarkResult::Nothing => return Ok(None),
                    ReadUntilMarkResult::End => return Ok(Some(0)),
                    ReadUntilMarkResult::Mark => self.has_announced_pointer = true,
                }
            }
            if !self.read_pointer()? {
                return Ok(None);
            }
        }
    }

    /// Returns the file range that the next read would copy. Returns `None` if the next bytes are
    /// in the ring, or if there are none.
    pub(crate) fn next_range(&mut self) -> Result<Option<&FileRange>, Fault> {
        if self.range.is_none() && self.fault.is_none() {
            self.read_announced_pointer()?;
        }
        Ok(self.range.as_ref())
    }

    /// Marks the first `count` bytes of the range that [`Self::next_range`] returned as read.
    /// Called after the program has copied or forwarded them.
    pub(crate) fn advance(&mut self, count: usize) {
        self.range = self.range.take().filter(|range| count < range.len).map(|range| FileRange {
            at: range.at + count as u64,
            len: range.len - count,
            ..range
        });
        if self.range.is_none() {
            self.range = self.following_range.take();
        }
    }

    /// Joins the ranges of several pointers to one range, so that one read of the file can return
    /// more bytes. Reads further pointers as long as each continues the current range in the same
    /// file, and until the range has `wanted` bytes. Does nothing in the programs of `forward`,
    /// whose writes pass on each pointer separately.
    fn join_following_ranges(&mut self, wanted: usize) {
        let is_short = |range: &FileRange| range.len < wanted;
        while !forward::is_enabled()
            && self.following_range.is_none()
            && self.fault.is_none()
            && self.range.as_ref().is_some_and(is_short)
        {
            match self.read_announced_pointer() {
                Ok(true) => {}
                Ok(false) => break,
                Err(fault) => self.fault = Some(fault),
            }
        }
    }

    /// Reads the next pointer, if one was announced. Returns false if none was read.
    fn read_announced_pointer(&mut self) -> Result<bool, Fault> {
        if !self.has_announced_pointer {
            self.has_announced_pointer = self.input.take_mark()?;
        }
        Ok(self.has_announced_pointer && self.read_pointer()?)
    }

    /// Reads the pointer that an empty block has announced; returns false if the pointer has not
    /// been published yet.
    fn read_pointer(&mut self) -> Result<bool, Fault> {
        let mut bytes = [0; 24];
        match self.input.read_block(&mut bytes)? {
            BlockReadResult::Nothing => return Ok(false),
            BlockReadResult::Block(24) => {}
            BlockReadResult::Block(_) | BlockReadResult::End => {
                return Err(Fault::Damaged { position: 0 });
            }
        }
        self.has_announced_pointer = false;
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| words.get(at).map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let (number, at) = (usize::try_from(word(0)).unwrap_or(usize::MAX), word(1));
        let len = usize::try_from(word(2)).unwrap_or(usize::MAX);
        let Some(file) = self.receive_file(number) else {
            return Err(Fault::Damaged { position: 0 });
        };
        match &mut self.range {
            _ if len == 0 => {}
            Some(range) if range.is_continued_by(&file, at) => {
                range.len = range.len.saturating_add(len);
            }
            Some(_) => self.following_range = Some(FileRange { file, at, len }),
            None => self.range = Some(FileRange { file, at, len }),
        }
        Ok(true)
    }

    /// Returns a file by its number on this edge, after receiving the descriptors that have
    /// arrived. Returns `None` if the file has not arrived or cannot be read.
    fn receive_file(&mut self, number: usize) -> Option<CachedFile> {
        while self.files.len() <= number {
            if self.files.len() >= SENT_FILES_MAX || !rendezvous::is_open(&self.edge) {
                return None;
            }
            let RendezvousResult::Message(descriptors) =
                preload::receive_from_rendezvous(self.edge.socket)
            else {
                return None;
            };
            let id = buffer::ids::allocate_id()?;
            let received = descriptors.into_iter().next()?;
            self.files.push(CachedFile::from_untrusted_descriptor(id, received).ok()?);
        }
        self.files.get(number).cloned()
    }

    /// Waits like [`Input::wait`], but returns [`WaitResult::Ready`] at once while a file range has
    /// bytes left to read.
    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> Result<WaitResult, Fault> {
        if self.range.is_some() { Ok(WaitResult::Ready) } else { self.input.wait(limit) }
    }

    /// Waits like [`Input::wait_with_descriptors`] without a limit, but returns
    /// [`WaitResult::Ready`] at once while a file range has bytes left to read.
    pub(crate) fn wait_beside(&mut self, others: &[BorrowedFd<'_>]) -> Result<WaitResult, Fault> {
        match self.range {
            Some(_) => Ok(WaitResult::Ready),
            None => self.input.wait_with_descriptors(others, None),
        }
    }

    /// Returns the descriptor of the ring's doorbell.
    pub(crate) fn doorbell(&self) -> i32 {
        self.input.as_fd().as_raw_fd()
    }

    /// Returns all descriptors that the reading end uses.
    pub(crate) fn descriptors(&self) -> Vec<i32> {
        let files = self.files.iter().map(|file| file.descriptor().as_raw_fd());
        files.chain([self.edge.socket, self.doorbell()]).collect()
    }
}
