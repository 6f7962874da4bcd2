//! Objects that a descriptor number can identify: ends of streams, regions (memory that other
//! processes open by name), inboxes (to which other processes write by name), files in memory,
//! states and runs.

use crate::failure::{EAGAIN, ENOBUFS, ENOSPC, Failure, Outcome, wrong_end_error};
use crate::pointers::{FileEnd, PointerReader, PointerWriter};
use crate::request::Run;
use crate::state_reader::StateReader;
use buffer::name::{Inbox, SharedRegion};
use buffer::stream::{Input, Output, ReservedRoom, WaitResult};
use iolite::interface::{ByteReader, StreamReader as _};
use std::time::Duration;

/// An object that a descriptor number identifies, and its blocking mode.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) kind: EndKind,
    /// True if calls fail with `EAGAIN` instead of waiting.
    pub(crate) nonblocking: bool,
}

#[derive(Debug)]
pub(crate) enum EndKind {
    Reader(Reader),
    Writer(Writer),
    Region(Region),
    Inbox(Inbox),
    /// The published state of a filter.
    State(StateReader),
    /// A running or finished request.
    Run(Run),
    PointerReader(PointerReader),
    PointerWriter(PointerWriter),
    /// A file that was copied into memory when it was opened.
    File(FileEnd),
    /// Reading end of a pipe whose writing end was closed before its first use.
    Closed,
}

impl End {
    pub(crate) const fn new(kind: EndKind) -> Self {
        Self { kind, nonblocking: false }
    }

    /// Returns the writing end of a stream that this object contains. Fails if the object is of
    /// another kind.
    #[inline]
    pub(crate) fn writer(&mut self) -> Outcome<&mut Writer> {
        match &mut self.kind {
            EndKind::Writer(writer) => Ok(writer),
            EndKind::PointerWriter(_) => {
                Err(wrong_end_error("one on which room can be reserved: use streamline_write()"))
            }
            _ => Err(wrong_end_error("one to write to")),
        }
    }

    /// Returns the region that this object contains. Fails if the object is of another kind.
    pub(crate) fn region(&mut self) -> Outcome<&mut Region> {
        match &mut self.kind {
            EndKind::Region(region) => Ok(region),
            _ => Err(wrong_end_error("a region")),
        }
    }
}

/// Reading end of a stream.
#[derive(Debug)]
pub(crate) struct Reader {
    from: ByteReader,
    /// True if this end has asked the writer for a notification of new bytes through the
    /// descriptor.
    watching: bool,
}

/// Writing end of a stream.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) output: Output,
    /// True if each write is published at once and wakes waiting readers; otherwise, blocks are
    /// published in groups.
    pub(crate) publishes_at_once: bool,
    pub(crate) room: Option<ReservedRoom>,
}

/// A region of shared memory, with the position of the next read or write.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) memory: SharedRegion,
    pub(crate) at: u64,
    /// False if the region was opened for reading only.
    pub(crate) writable: bool,
}

impl Reader {
    pub(crate) const fn new(input: Input) -> Self {
        Self { from: ByteReader::new(input), watching: false }
    }

    /// Returns the stream for reading. Withdraws the request of [`watch`](Self::watch), if there is
    /// one.
    #[inline]
    pub(crate) fn stream(&mut self) -> &mut ByteReader {
        if self.watching {
            self.watching = false;
            self.from.input().unwatch();
        }
        &mut self.from
    }

    /// Asks the writer to notify this end through its descriptor when new bytes arrive, and returns
    /// false. If there are unread bytes, makes no request and returns true.
    fn watch(&mut self) -> Result<bool, Failure> {
        let something = self.from.input().watch()?;
        self.watching = !something;
        Ok(something)
    }

    #[inline]
    pub(crate) fn read(&mut self, out: &mut [u8], nonblocking: bool) -> Result<usize, Failure> {
        if !nonblocking {
            return Ok(self.stream().read(out)?);
        }
        loop {
            if let Some(count) = self.stream().try_read(out)? {
                return Ok(count);
            }
            if !self.watch()? {
                return Err(no_input_error());
            }
        }
    }

    /// Returns the address and the length of the next readable bytes, in the memory of the stream.
    /// At the end of the stream, the length is 0. If there are no bytes, blocks or, if
    /// `nonblocking` is true, fails with `EAGAIN`.
    pub(crate) fn locate(&mut self, nonblocking: bool) -> Result<(*const u8, usize), Failure> {
        loop {
            if let Some(found) = self.stream().locate()? {
                return Ok(found);
            }
            if !nonblocking {
                self.stream().wait(None)?;
            } else if !self.watch()? {
                return Err(no_input_error());
            }
        }
    }

    /// Consumes the first `count` bytes at the address that [`Self::locate`] has returned. If the
    /// ring overwrites its oldest blocks, consumes the whole block. Fails with `ESTALE` if the
    /// writer may have overwritten the bytes in the meantime.
    pub(crate) fn release(&mut self, count: usize) -> Result<(), Failure> {
        if self.stream().take_checked(count)? { Ok(()) } else { Err(overwritten_error()) }
    }

    /// Returns true if the ring overwrites its oldest blocks.
    pub(crate) fn is_lossy(&mut self) -> bool {
        self.from.input().is_lossy()
    }

    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> Result<bool, Failure> {
        Ok(self.stream().wait(limit)? == WaitResult::Ready)
    }
}

impl Writer {
    pub(crate) const fn new(output: Output, publishes_at_once: bool) -> Self {
        Self { output, publishes_at_once, room: None }
    }

    /// Writes all bytes as one block, or as several blocks if they exceed the maximum block size;
    /// returns the number of bytes. Blocks until all blocks fit; if `nonblocking`, writes only the
    /// blocks that fit now. If the ring drops a block, ends before it, and fails with `ENOBUFS` if
    /// it was the first.
    #[inline]
    pub(crate) fn write(&mut self, bytes: &[u8], nonblocking: bool) -> Result<usize, Failure> {
        if nonblocking {
            return self.write_fitting_blocks(bytes);
        }
        let longest = self.output.block_length_max().max(1);
        let count = if bytes.len() <= longest {
            self.put(bytes)?;
            bytes.len()
        } else {
            self.write_blocks(bytes, longest)?
        };
        if self.publishes_at_once {
            self.output.flush();
        }
        Ok(count)
    }

    /// Writes the bytes in blocks of `longest` bytes, up to the first block that the ring drops.
    /// Returns the number of bytes written. Fails with `ENOBUFS` if this number is 0.
    fn write_blocks(&mut self, bytes: &[u8], longest: usize) -> Result<usize, Failure> {
        let mut count = 0;
        for block in bytes.chunks(longest) {
            if !self.output.write(block)? {
                return if count > 0 { Ok(count) } else { Err(dropped_block_error()) };
            }
            count += block.len();
        }
        Ok(count)
    }

    /// Writes as many of the bytes as the ring has room for, in blocks; returns their number. Fails
    /// with `EAGAIN` if no block fits.
    fn write_fitting_blocks(&mut self, bytes: &[u8]) -> Result<usize, Failure> {
        let longest = self.output.block_length_max().max(1);
        let mut count = 0;
        for block in bytes.chunks(longest) {
            if !self.output.is_ready(block.len())? {
                break;
            }
            if !self.output.write(block)? {
                if count > 0 {
                    break;
                }
                return Err(dropped_block_error());
            }
            count += block.len();
        }
        // Readers can make room only after they see the written blocks.
        if self.publishes_at_once || count < bytes.len() {
            self.output.flush();
        }
        if count == 0 && !bytes.is_empty() { Err(no_room_error()) } else { Ok(count) }
    }

    /// Blocks without limit until there is room for one byte. Returns true.
    pub(crate) fn wait(&mut self) -> Result<bool, Failure> {
        while !self.output.is_ready(1)? {
            self.output.wait(1)?;
        }
        Ok(true)
    }

    #[inline]
    fn put(&mut self, block: &[u8]) -> Result<(), Failure> {
        if self.output.write(block)? { Ok(()) } else { Err(dropped_block_error()) }
    }

    pub(crate) fn reserve(&mut self, length: usize, wait: bool) -> Result<*mut u8, Failure> {
        if !wait && !self.output.is_ready(length)? {
            self.output.flush();
            return Err(no_room_error());
        }
        let Some((room, at)) = self.output.reserve_room(length)? else {
            return Err(dropped_block_error());
        };
        self.room = Some(room);
        Ok(at.as_ptr())
    }

    pub(crate) fn commit(&mut self, used: usize) -> Result<(), Failure> {
        let Some(room) = self.room.take() else {
            return Err(Failure::invalid("nothing is reserved at this end"));
        };
        if used > room.length() {
            let length = room.length();
            return Err(Failure::invalid(format!(
                "{used} bytes exceed the {length} that were \
                                                 reserved"
            )));
        }
        if !self.output.commit(room, used)? {
            return Err(Failure::invalid("another write came between reserve and commit"));
        }
        if self.publishes_at_once {
            self.output.flush();
        }
        Ok(())
    }
}

impl Region {
    /// Returns the number of bytes from position `at` to the end of the region, at most `length`.
    pub(crate) fn available_length(&self, at: u64, length: usize) -> usize {
        let left = (self.memory.len() as u64).saturating_sub(at);
        usize::try_from(left).unwrap_or(usize::MAX).min(length)
    }

    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<usize, Failure> {
        let count = self.available_length(at, out.len());
        let (out, _) = out.split_at_mut(count);
        self.memory.read_at(at.min(self.memory.len() as u64), out)?;
        Ok(count)
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<usize, Failure> {
        if !self.writable {
            return Err(wrong_end_error("one to write to: it was opened for reading"));
        }
        let count = self.available_length(at, bytes.len());
        if count == 0 && !bytes.is_empty() {
            let text = format!("the region ends at {}: nothing fits at {at}", self.memory.len());
            return Err(Failure::new(ENOSPC, text));
        }
        let (bytes, _) = bytes.split_at(count);
        self.memory.write_at(at.min(self.memory.len() as u64), bytes)?;
        Ok(count)
    }
}

const ESTALE: i32 = 116;

#[cold]
pub(crate) fn no_input_error() -> Failure {
    Failure::new(EAGAIN, "there is nothing to read: poll the descriptor")
}

#[cold]
fn overwritten_error() -> Failure {
    let text = "the writer has overwritten the block since it was read in place: discard all \
                results from it";
    Failure::new(ESTALE, text)
}

#[cold]
pub(crate) fn no_room_error() -> Failure {
    Failure::new(EAGAIN, "there is no room: wait for it with streamline_wait()")
}

#[cold]
fn dropped_block_error() -> Failure {
    Failure::new(ENOBUFS, "the ring is full: the block was dropped and counted")
}
