//! Blocks whose bytes an output writes from where they lie, with one call for a batch.
//!
//! The buffer holds the bytes around them. What may be overwritten while it is written must not
//! stay in the file, so this is for files that can be shortened, and for /dev/null.

use super::{FLUSH_SIZE, OldContents, Out};
use crate::Failure;
use crate::failure::io_failure;
use crate::sink::tail;
use crate::source::kernel::in_place::BatchInPlace;
use crate::source::kernel::reader::ExportedFrame;
use filter::Amount;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use sys::memory::GatherWrite;

/// The bytes of a frame, behind so many bytes of the buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FramePiece {
    pub(crate) frame: ExportedFrame,
    /// Number of its first bytes that are written.
    pub(crate) length: usize,
    at: usize,
}

/// A position in an output between two blocks, to which [`Out::rewind`] returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutMark {
    buffered: usize,
    blocks: usize,
}

impl Out {
    /// Writes the buffer if it is full.
    pub(crate) fn flush_full(&mut self) -> Result<(), Failure> {
        if self.buffer.len() >= FLUSH_SIZE { self.flush() } else { Ok(()) }
    }

    /// Returns true if blocks can be written from where they lie: what was overwritten meanwhile
    /// can be taken back.
    pub(crate) fn writes_in_place(&self) -> bool {
        let begun = matches!(self.before, OldContents::Nothing);
        begun && !self.shared && (self.locked || self.is_null)
    }

    /// Returns the present end of the buffer. Nothing may be written before [`Self::rewind`].
    pub(crate) const fn mark(&self) -> OutMark {
        OutMark { buffered: self.buffer.len(), blocks: self.ends.len() }
    }

    /// Removes from the buffer what came after the mark.
    pub(crate) fn rewind(&mut self, mark: OutMark) {
        self.buffer.truncate(mark.buffered);
        self.ends.truncate(mark.blocks);
        self.beside = 0;
    }

    /// Marks the end of a block in the buffer, which is not written yet.
    pub(crate) fn end_buffered(&mut self, bytes: u32) {
        self.ends.push((self.buffer.len() + self.beside, bytes));
    }

    /// Returns a piece that is written behind what is in the buffer now.
    pub(crate) const fn piece(&mut self, frame: ExportedFrame, length: usize) -> FramePiece {
        self.beside += length;
        FramePiece { frame, length, at: self.buffer.len() }
    }

    /// Writes the buffer with these pieces between its bytes, and empties it. Fails as
    /// [`Out::flush`].
    pub(crate) fn flush_in_place(
        &mut self,
        batch: &BatchInPlace<'_>,
        pieces: &[FramePiece],
    ) -> Result<(), Failure> {
        self.write_out(|out| {
            let mut gather = GatherWrite::with_capacity(2 * pieces.len() + 1);
            let mut from = 0;
            for piece in pieces {
                gather.push_bytes(out.buffer.get(from..piece.at).unwrap_or_default());
                from = piece.at;
                if !batch.gather(&piece.frame, piece.length, &mut gather) {
                    return (0, Err(std::io::ErrorKind::InvalidData.into()));
                }
            }
            gather.push_bytes(out.buffer.get(from..).unwrap_or_default());
            gather.write_all(out.file.as_fd())
        })
    }

    /// Takes the last `bytes` bytes, which are these blocks, out of the file again.
    pub(crate) fn take_back(&mut self, bytes: usize, blocks: Amount) -> Result<(), Failure> {
        self.written = self.written.saturating_sub(blocks);
        tail::truncate_tail(&self.file, bytes)
            .map_err(|error| io_failure("shorten", &self.target, &error))
    }
}

/// Returns true for /dev/null, where nothing that is written can be wrong.
pub(super) fn is_null(file: &std::fs::File) -> bool {
    let null = rustix::fs::makedev(1, 3);
    file.metadata().is_ok_and(|about| {
        use std::os::unix::fs::FileTypeExt as _;
        about.file_type().is_char_device() && about.rdev() == null
    })
}
