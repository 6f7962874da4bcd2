//! `pcap` downstream of a kernel ring. Frames are written to the file directly from kernel memory,
//! with one system call for a batch.
//!
//! A kernel program may overwrite a frame during the write, which is detected after the call. If a
//! frame was overwritten, the batch is removed from the file, and its intact frames are copied,
//! checked and written one by one. The overwritten frames are counted as `lapped`, as are the
//! frames that the source finds overwritten.

use super::PcapSink;
use crate::sink::buffered_output::FramePiece;
use crate::source::kernel::frames_in_place::{BatchInPlace, FramesInPlace, has_removed_vlan_tag};
use crate::{DropReason, Failure};
use filter::{Amount, Batch, Block};
use std::sync::Arc;
use wire::capture::write;

/// Minimum length in bytes of a frame that is written directly from kernel memory. Copying a
/// shorter frame to the buffer costs less than an additional element of the vectored write.
const IN_PLACE_LENGTH_MIN: usize = 256;

/// The sources of kernel frames that `pcap` writes without copying them, with counters.
#[derive(Debug, Default)]
pub(super) struct InPlaceSources {
    sources: Vec<Arc<FramesInPlace>>,
    /// Reusable memory for the list of frames that a single write copies from kernel memory.
    pieces: Vec<FramePiece>,
    /// Amount of frames that were overwritten before they were written to the file.
    lapped: Amount,
}

impl InPlaceSources {
    /// Registers a source, so that its frames are written directly from kernel memory. Always
    /// returns true, which tells the caller that the sink accepts such frames.
    pub(super) fn add_source(&mut self, frames: &Arc<FramesInPlace>) -> bool {
        if self.sources.iter().all(|known| known.id() != frames.id()) {
            self.sources.push(Arc::clone(frames));
        }
        true
    }

    /// Returns the kernel frames of the source from which a batch comes. Returns `None` if the
    /// bytes of the batch's blocks are in a pool instead.
    pub(super) fn find_batch_frames(&self, batch: &Batch<'_>) -> Option<Arc<FramesInPlace>> {
        let (_, first) = batch.blocks().next().filter(|_| !self.sources.is_empty())?;
        let dbuf = first.pointer.dbuf();
        self.sources.iter().find(|frames| frames.id() == dbuf).cloned()
    }

    /// Returns the amount of frames that a kernel program overwrote before the sink wrote them to
    /// the file, with the drop reason. The list is empty if there are none.
    pub(super) fn drops_by_reason(&self) -> Vec<(DropReason, Amount)> {
        let some = (self.lapped.blocks > 0).then(|| ("lapped".into(), self.lapped));
        some.into_iter().collect()
    }
}

impl PcapSink {
    /// Writes the frames of a batch directly from kernel memory. If the kernel overwrites a frame
    /// during the write, removes the batch from the output, and then writes copies of the intact
    /// frames.
    pub(super) fn write_in_place(
        &mut self,
        batch: &Batch<'_>,
        frames: &FramesInPlace,
    ) -> Result<(), Failure> {
        // The blocks of a batch come from one source, and so have one link type.
        if let Some((_, first)) = batch.blocks().next() {
            self.check_link_type(&first)?;
        }
        let frames = frames.batch();
        let (begin, counts) = (self.out.checkpoint(), (self.frames.appended, self.frames.cut));
        let mut pieces = std::mem::take(&mut self.in_place.pieces);
        pieces.clear();
        let in_place = self.out.can_write_in_place();
        let mut bytes = 0;
        for (_, block) in batch.blocks() {
            bytes += self.add_record(&block, &frames, in_place, &mut pieces);
        }
        let outcome = match pieces.as_slice() {
            [] => Ok(()),
            pieces => self.out.flush_in_place(&frames, pieces),
        };
        let was_written = !pieces.is_empty();
        self.in_place.pieces = pieces;
        outcome?;
        let whole =
            batch.blocks().filter_map(|(_, block)| frames.find_frame(block.entry().frame()));
        if frames.are_intact(whole) {
            return self.out.flush_if_full();
        }
        (self.frames.appended, self.frames.cut) = counts;
        match was_written {
            true => {
                self.out.remove_written_bytes(bytes, batch.amount_in_lanes(batch.live_lanes()))?
            }
            false => self.out.rewind(begin),
        }
        self.copy_intact_frames(batch, &frames)
    }

    /// Adds the pcap record of a block to the output, and returns the length of the record in
    /// bytes. The header of the record is appended to the buffer. If `in_place` is true, the frame
    /// is added to the pieces that are written directly from kernel memory. Otherwise, a copy of
    /// the frame is appended to the buffer.
    fn add_record(
        &mut self,
        block: &Block<'_>,
        frames: &BatchInPlace<'_>,
        in_place: bool,
        pieces: &mut Vec<FramePiece>,
    ) -> usize {
        let length = self.add_record_header(block);
        if let Some(frame) = frames.find_frame(block.entry().frame()) {
            if in_place && length >= IN_PLACE_LENGTH_MIN && !has_removed_vlan_tag(&frame.header) {
                pieces.push(self.out.add_frame_piece(*frame, length));
            } else {
                frames.copy_frame(frame, length, self.out.buffer());
            }
        }
        self.out.end_item();
        self.out.end_block_without_flush(block.length());
        write::RECORD_HEADER_SIZE + length
    }

    /// Adds the header of a record to the buffer. Returns the length of the frame that must follow
    /// the header.
    fn add_record_header(&mut self, block: &Block<'_>) -> usize {
        let captured = block.marks.captured.min(write::SNAP_LENGTH_MAX);
        self.frames.appended += 1;
        self.frames.cut += u64::from(captured < block.marks.captured);
        let header =
            write::encode_record_header(block.context.time, captured, block.marks.wire_length);
        self.out.buffer().extend_from_slice(&header);
        captured as usize
    }

    /// Copies and writes the frames of a batch that have not been overwritten, one by one.
    #[cold]
    fn copy_intact_frames(
        &mut self,
        batch: &Batch<'_>,
        frames: &BatchInPlace<'_>,
    ) -> Result<(), Failure> {
        for (_, block) in batch.blocks() {
            let (begin, counts) = (self.out.checkpoint(), (self.frames.appended, self.frames.cut));
            let length = self.add_record_header(&block);
            let frame = frames.find_frame(block.entry().frame());
            if let Some(frame) = frame {
                frames.copy_frame(frame, length, self.out.buffer());
            }
            if frame.is_some_and(|frame| frames.is_intact(frame)) {
                self.out.end_item();
                self.out.end_block(block.length())?;
            } else {
                self.out.rewind(begin);
                (self.frames.appended, self.frames.cut) = counts;
                self.in_place.lapped.add_block(block.length());
            }
        }
        Ok(())
    }
}
