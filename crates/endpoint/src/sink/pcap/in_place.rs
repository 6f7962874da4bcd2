//! `pcap` behind a kernel ring: frames go into the file from where the program put them, with one
//! call for a batch.
//!
//! A program may overwrite a frame while it is written. This is checked after the call: the batch
//! is then taken out of the file again, and what is left of it is copied, checked and written. The
//! other frames are counted as `lapped`, like those that the source finds overwritten.

use super::Pcap;
use crate::sink::out::FramePiece;
use crate::source::kernel::in_place::{BatchInPlace, FramesInPlace, is_tagged};
use crate::{DropReason, Failure};
use filter::{Amount, Batch, Block};
use std::sync::Arc;
use wire::capture::write;

/// Length in bytes from which a frame is not copied into the buffer. For shorter ones, the copy
/// costs less than another part of the write.
const LENGTH_MIN: usize = 256;

/// The frames that `pcap` takes in place.
#[derive(Debug, Default)]
pub(super) struct InPlace {
    sources: Vec<Arc<FramesInPlace>>,
    /// Memory for the pieces of a batch.
    pieces: Vec<FramePiece>,
    /// Frames that were overwritten before they were written.
    lapped: Amount,
}

impl InPlace {
    /// Adds a source. Returns true.
    pub(super) fn accept(&mut self, frames: &Arc<FramesInPlace>) -> bool {
        if self.sources.iter().all(|known| known.id() != frames.id()) {
            self.sources.push(Arc::clone(frames));
        }
        true
    }

    /// Returns the frames of a batch whose blocks have no bytes; `None` for other batches.
    pub(super) fn of(&self, batch: &Batch<'_>) -> Option<Arc<FramesInPlace>> {
        let (_, first) = batch.blocks().next().filter(|_| !self.sources.is_empty())?;
        let dbuf = first.pointer.dbuf();
        self.sources.iter().find(|frames| frames.id() == dbuf).cloned()
    }

    /// Returns the frames that were taken, but not written.
    pub(super) fn dropped(&self) -> Vec<(DropReason, Amount)> {
        let some = (self.lapped.blocks > 0).then(|| ("lapped".into(), self.lapped));
        some.into_iter().collect()
    }
}

impl Pcap {
    /// Writes the frames of a batch without bytes.
    pub(super) fn take_in_place(
        &mut self,
        batch: &Batch<'_>,
        frames: &FramesInPlace,
    ) -> Result<(), Failure> {
        // The blocks of a batch come from one source, and so have one link type.
        if let Some((_, first)) = batch.blocks().next() {
            self.check_link_type(&first)?;
        }
        let frames = frames.batch();
        let (begin, counts) = (self.out.mark(), (self.frames.written, self.frames.cut));
        let mut pieces = std::mem::take(&mut self.in_place.pieces);
        pieces.clear();
        let in_place = self.out.writes_in_place();
        let mut bytes = 0;
        for (_, block) in batch.blocks() {
            bytes += self.add_in_place(&block, &frames, in_place, &mut pieces);
        }
        let outcome = match pieces.as_slice() {
            [] => Ok(()),
            pieces => self.out.flush_in_place(&frames, pieces),
        };
        let was_written = !pieces.is_empty();
        self.in_place.pieces = pieces;
        outcome?;
        let whole = batch.blocks().filter_map(|(_, block)| frames.frame(block.entry().frame()));
        if frames.are_whole(whole) {
            return self.out.flush_full();
        }
        (self.frames.written, self.frames.cut) = counts;
        match was_written {
            true => self.out.take_back(bytes, batch.amount_in(batch.live()))?,
            false => self.out.rewind(begin),
        }
        self.copy_what_is_left(batch, &frames)
    }

    /// Adds a block to the buffer or to the pieces; returns the number of bytes added.
    fn add_in_place(
        &mut self,
        block: &Block<'_>,
        frames: &BatchInPlace<'_>,
        in_place: bool,
        pieces: &mut Vec<FramePiece>,
    ) -> usize {
        let length = self.add_header(block);
        if let Some(frame) = frames.frame(block.entry().frame()) {
            if in_place && length >= LENGTH_MIN && !is_tagged(&frame.header) {
                pieces.push(self.out.piece(*frame, length));
            } else {
                frames.copy(frame, length, self.out.buffer());
            }
        }
        self.out.end_buffered(block.length());
        write::RECORD + length
    }

    /// Adds the header of a record to the buffer; returns the length of the frame behind it.
    fn add_header(&mut self, block: &Block<'_>) -> usize {
        let captured = block.marks.captured.min(write::SNAP_LENGTH);
        self.frames.written += 1;
        self.frames.cut += u64::from(captured < block.marks.captured);
        let header = write::record(block.context.time, captured, block.marks.wire_length);
        self.out.buffer().extend_from_slice(&header);
        captured as usize
    }

    /// Writes those frames of a batch that have not been overwritten, one by one.
    #[cold]
    fn copy_what_is_left(
        &mut self,
        batch: &Batch<'_>,
        frames: &BatchInPlace<'_>,
    ) -> Result<(), Failure> {
        for (_, block) in batch.blocks() {
            let (begin, counts) = (self.out.mark(), (self.frames.written, self.frames.cut));
            let length = self.add_header(&block);
            let frame = frames.frame(block.entry().frame());
            if let Some(frame) = frame {
                frames.copy(frame, length, self.out.buffer());
            }
            if frame.is_some_and(|frame| frames.is_whole(frame)) {
                self.out.end_block(block.length())?;
            } else {
                self.out.rewind(begin);
                (self.frames.written, self.frames.cut) = counts;
                self.in_place.lapped.add(block.length());
            }
        }
        Ok(())
    }
}
