//! Deduplication of frames that several blocks view, and counters of frames.

use crate::history::{self, FrameHeader};
use crate::sink::recent_frames::RecentFrames;
use crate::{Failure, OpenArguments};
use filter::{Block, Report};
use wire::capture::write;

/// State for writing a frame only once, even if several blocks view it, with counters of frames and
/// blocks.
#[derive(Debug)]
pub(super) struct FrameDeduplication {
    recent_frames: RecentFrames,
    /// Number of frames appended to the output, including frames that a failed write has lost.
    pub(super) appended: u64,
    pub(super) cut: u64,
    repeated: u64,
    /// Number of blocks that belong to no frame, including holes.
    blocks_without_frame: u64,
    /// Number of blocks that belong to no frame, excluding holes.
    non_hole_blocks: u64,
}

impl FrameDeduplication {
    /// Creates an empty state for blocks of the forms in these arguments.
    pub(super) fn new(opening: &OpenArguments<'_>) -> Self {
        Self {
            recent_frames: RecentFrames::new(opening),
            appended: 0,
            cut: 0,
            repeated: 0,
            blocks_without_frame: 0,
            non_hole_blocks: 0,
        }
    }

    /// Returns true if several blocks may view the same frame.
    pub(super) const fn may_share_frames(&self) -> bool {
        self.recent_frames.may_have_shared_frames()
    }

    /// Records the frame of a block. Returns true if the block has a frame that has not been
    /// written yet; otherwise counts the block and returns false.
    pub(super) fn record_frame_if_new(&mut self, block: &Block<'_>) -> bool {
        if !block.marks.is_frame() {
            self.blocks_without_frame += 1;
            self.non_hole_blocks += u64::from(!block.pointer.is_hole());
            return false;
        }
        let is_new = self.recent_frames.add(block);
        self.repeated += u64::from(!is_new);
        is_new
    }

    /// Appends the frame of a block as a pcap record.
    pub(super) fn append_frame(&mut self, block: &Block<'_>, to: &mut Vec<u8>) {
        let captured = block.frame.len().min(write::SNAP_LENGTH_MAX as usize);
        self.appended += 1;
        self.cut += u64::from(captured < block.marks.captured as usize);
        history::append_record(&FrameHeader::for_block(block), block.frame, to);
    }

    /// Returns the report rows of a sink that has written this number of frames. Fails if blocks
    /// other than holes arrived but none of them had a frame.
    pub(super) fn rows(&self, written: u64, target: &str) -> Result<Report, Failure> {
        if self.appended == 0 && self.non_hole_blocks > 0 {
            let why = "no block that it received is part of a frame";
            let hint = "put `pcap` before the filter that makes new bytes, or write them with \
                        `files`";
            return Err(Failure::new("write", target, why).with_hint(hint));
        }
        let always = [("frames", written), ("cut", self.cut)];
        let others = [("repeated", self.repeated), ("not frames", self.blocks_without_frame)];
        Ok(Report::from_rows(always).with_nonzero_rows(others))
    }
}
