//! Writes of frames directly from kernel memory. The frames are not copied into the buffer, and one
//! system call writes a batch.
//!
//! The buffer contains the bytes between the frames. A kernel program may overwrite a frame during
//! the write; the sink must then remove the written bytes from the file. This is possible only in a
//! regular file. It is not necessary for /dev/null.

use super::{BufferedBlock, BufferedOutputFile, FLUSH_SIZE, OldContents};
use crate::Failure;
use crate::failure::failure_from_io_error;
use crate::sink::line_repair;
use crate::source::kernel::frames_in_place::BatchInPlace;
use crate::source::kernel::reader::ExportedFrame;
use filter::Amount;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use sys::memory::GatherWrite;

/// A frame that is written directly from kernel memory, at a position between the buffered bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FramePiece {
    pub(crate) frame: ExportedFrame,
    /// Number of bytes to write, from the start of the frame.
    pub(crate) length: usize,
    at: usize,
}

/// A position in the buffer of an output, between two blocks. [`BufferedOutputFile::rewind`]
/// returns to this position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutCheckpoint {
    buffered: usize,
    blocks: usize,
}

impl BufferedOutputFile {
    /// Writes the buffer to the file if it is full.
    pub(crate) fn flush_if_full(&mut self) -> Result<(), Failure> {
        if self.buffer.len() >= FLUSH_SIZE { self.flush() } else { Ok(()) }
    }

    /// Returns true if frames can be written directly from kernel memory. This requires that the
    /// old contents of the file have already been replaced or repaired. It also requires that
    /// written bytes can be removed again, or that the output is /dev/null.
    pub(crate) fn can_write_in_place(&self) -> bool {
        let begun = matches!(self.old_contents, OldContents::Nothing);
        begun && !self.is_shared && (self.is_locked || self.is_null)
    }

    /// Returns the current end of the buffer, for [`Self::rewind`]. The caller must not flush the
    /// output between the two calls.
    pub(crate) const fn checkpoint(&self) -> OutCheckpoint {
        OutCheckpoint { buffered: self.buffer.len(), blocks: self.blocks.len() }
    }

    /// Removes everything that was appended to the buffer after `mark` was created.
    pub(crate) fn rewind(&mut self, mark: OutCheckpoint) {
        self.buffer.truncate(mark.buffered);
        self.blocks.truncate(mark.blocks);
        self.items_after_blocks = 0;
        self.bytes_outside_buffer = 0;
    }

    /// Marks the end of a block of `bytes` viewed bytes in the buffer, without writing the buffer.
    pub(crate) fn end_block_without_flush(&mut self, bytes: u32) {
        let end = self.buffer.len() + self.bytes_outside_buffer;
        let items = std::mem::take(&mut self.items_after_blocks);
        self.blocks.push(BufferedBlock { end, bytes, items });
    }

    /// Returns a piece for the first `length` bytes of a frame, to be written after the bytes now
    /// in the buffer.
    pub(crate) const fn add_frame_piece(
        &mut self,
        frame: ExportedFrame,
        length: usize,
    ) -> FramePiece {
        self.bytes_outside_buffer += length;
        FramePiece { frame, length, at: self.buffer.len() }
    }

    /// Writes the buffered bytes, with the frames in kernel memory that `pieces` lists inserted at
    /// their positions, and empties the buffer. Fails in the same cases as
    /// [`BufferedOutputFile::flush`].
    pub(crate) fn flush_in_place(
        &mut self,
        batch: &BatchInPlace<'_>,
        pieces: &[FramePiece],
    ) -> Result<(), Failure> {
        self.write_buffered_blocks(|out| {
            let mut gather = GatherWrite::with_capacity(2 * pieces.len() + 1);
            let mut from = 0;
            for piece in pieces {
                gather.push_bytes(out.buffer.get(from..piece.at).unwrap_or_default());
                from = piece.at;
                if !batch.gather_frame(&piece.frame, piece.length, &mut gather) {
                    return (0, Err(std::io::ErrorKind::InvalidData.into()));
                }
            }
            gather.push_bytes(out.buffer.get(from..).unwrap_or_default());
            gather.write_all(out.file.as_fd(), |fd| out.limit.wait_until_writable(fd))
        })
    }

    /// Removes the last `bytes` bytes from the file, and subtracts `blocks` from the amount
    /// written. Each of the removed blocks must have been written as one item.
    pub(crate) fn remove_written_bytes(
        &mut self,
        bytes: usize,
        blocks: Amount,
    ) -> Result<(), Failure> {
        self.written = self.written.saturating_sub(blocks);
        self.items_written = self.items_written.saturating_sub(blocks.blocks);
        line_repair::truncate_tail(&self.file, bytes)
            .map_err(|error| failure_from_io_error("shorten", &self.target, &error))
    }
}

/// Returns true if the file is /dev/null, for which written bytes need not be removed again.
pub(super) fn is_dev_null(file: &std::fs::File) -> bool {
    let null = rustix::fs::makedev(1, 3);
    file.metadata().is_ok_and(|metadata| {
        use std::os::unix::fs::FileTypeExt as _;
        metadata.file_type().is_char_device() && metadata.rdev() == null
    })
}
