//! A bounded history of the most recent frames, for readers that start with earlier frames.
//! [SL §5.2]
//!
//! A history stores copies of the frames of arriving blocks, within limits on their total size and
//! age, and returns the oldest frame first. Frames are copied, because a packet ring would lose
//! packets if the history kept its slots in use.
//!
//! Before the byte limit is reached, the oldest frames are compressed, so that the same memory
//! holds a longer history. Frames within the time limit are evicted only if compression does not
//! save enough memory. Compression takes 2 ns per byte: more than the copy, and more than most
//! filters. For live traffic, a low-priority thread therefore compresses the frames
//! ([`compression_thread`]). If this thread falls behind, the history evicts frames. [SL §10],
//! FEATURES D16

mod cold_chunks;
mod compression_thread;

use abi::{BlockFlags, BlockMetadata, Class, DbufId, Extent, Marks, RichPointer};
use cold_chunks::ColdChunks;
use compression_thread::CompressionThread;
use filter::{Block, Time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use wire::capture::write;
use wire::link::LinkType;

/// Limits on the memory and the age of the frames that a history stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HistoryLimits {
    /// Maximum memory for stored frames, in bytes.
    pub bytes: usize,
    /// Maximum age of a stored frame in ns, relative to the newest frame.
    pub time: Time,
}

impl HistoryLimits {
    /// Limits of 0 bytes and 0 ns, with which a history retains no frames.
    pub const RETAIN_NOTHING: Self = Self { bytes: 0, time: 0 };
}

/// Selects the thread that compresses old frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompressionMode {
    /// The thread that stores frames, which waits for each compression. The number of stored frames
    /// then does not depend on timing.
    CallingThread,
    /// A separate thread of the history, for callers that must not wait.
    OwnThread,
}

/// Number and size of the frames that a history stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RetainedFrames {
    /// Number of stored frames.
    pub blocks: u64,
    /// Total length of the stored frames in bytes, before compression.
    pub bytes: u64,
    /// Memory in bytes that the stored frames use after the older ones have been compressed.
    pub stored: u64,
}

/// A FIFO of copied frames: compressed chunks of the oldest frames, followed by uncompressed
/// frames.
#[derive(Debug)]
pub struct History {
    limits: HistoryLimits,
    frames: VecDeque<FrameHeader>,
    cold: ColdChunks,
    bytes: VecDeque<u8>,
    /// Sum of the lengths of all stored frames, in bytes.
    frame_bytes: usize,
    /// The compression thread, or `None` if the thread that stores frames also compresses them.
    compression_thread: Option<CompressionThread>,
    /// Sequence number of the next frame that arrives, counted from 0.
    next_number: u64,
    newest: Time,
    /// Timestamp that ends the freeze: no stored frame is evicted until a block with this timestamp
    /// or a later one arrives. 0 if the history is not frozen.
    frozen_until: Time,
    /// Number of frames that arrived while the history was frozen and full, and that were therefore
    /// not stored. All of them arrived after the newest stored frame.
    skipped: u64,
}

/// Header that a history stores before each frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Timestamp of the frame's block.
    pub time: Time,
    /// Link type of the block's frame.
    pub link: LinkType,
    /// Length of the frame on the wire in bytes.
    pub wire_length: u32,
    /// Index of the frame's source.
    origin: u16,
    flags: BlockFlags,
    pub(super) length: usize,
}

/// Dbuf id in the pointers of blocks whose bytes are copies. These pointers are never dereferenced.
const COPIED_BYTES_DBUF_ID: DbufId = match DbufId::new(1) {
    Some(id) => id,
    None => DbufId::HOLE,
};

/// Memory used per stored frame in addition to the bytes of the frame, in bytes.
const FRAME_OVERHEAD_BYTES: usize = size_of::<FrameHeader>();

/// The frame at which a reader of a history starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HistoryStart {
    /// The oldest stored frame.
    Oldest,
    /// The first stored frame whose timestamp is at least this time.
    Time(Time),
    /// The frame with this sequence number, counted from 0.
    Number(u64),
}

impl History {
    /// Creates a history without frames.
    #[must_use]
    pub fn new(limits: HistoryLimits, compresses: CompressionMode) -> Self {
        Self {
            limits,
            frames: VecDeque::new(),
            cold: ColdChunks::new(limits.bytes),
            bytes: VecDeque::new(),
            frame_bytes: 0,
            compression_thread: (compresses == CompressionMode::OwnThread)
                .then(CompressionThread::default),
            next_number: 0,
            newest: 0,
            frozen_until: 0,
            skipped: 0,
        }
    }

    /// Returns the limits on the memory and the age of the stored frames.
    #[must_use]
    pub const fn limits(&self) -> HistoryLimits {
        self.limits
    }

    /// Copies the frame of a block into the history, and evicts old frames that exceed the limits.
    /// Clears the history if the block has no frame, or if the frame alone exceeds the byte limit,
    /// because the sequence numbers of stored frames must be consecutive. While the history is
    /// frozen, evicts nothing, and skips the block if there is no memory for its frame.
    pub fn push(&mut self, block: &Block<'_>) {
        self.next_number += 1;
        self.newest = self.newest.max(block.context.time);
        if self.newest < self.frozen_until {
            self.push_while_frozen(block);
            return;
        }
        if self.skipped > 0 {
            self.clear();
        }
        if self.can_store(block) {
            self.store(block);
        } else {
            // The sequence numbers of stored frames must be consecutive.
            self.clear();
        }
        let since = self.newest.saturating_sub(self.limits.time);
        while self.frames.front().is_some_and(|oldest| oldest.time < since) {
            self.evict_oldest();
        }
        while !self.make_room(0) && !self.frames.is_empty() {
            self.evict_oldest();
        }
    }

    /// Returns true if the block has a frame that does not exceed the byte limit by itself.
    #[must_use]
    pub fn can_store(&self, block: &Block<'_>) -> bool {
        block.marks.is_frame() && block.frame.len() + FRAME_OVERHEAD_BYTES <= self.limits.bytes
    }

    fn store(&mut self, block: &Block<'_>) {
        self.frames.push_back(FrameHeader::for_block(block));
        self.bytes.extend(block.frame);
        self.frame_bytes += block.frame.len();
    }

    /// Makes room for `needed` bytes: compresses the oldest frames, in this thread or in the
    /// compression thread. Returns false if there is not enough room. With a compression thread, a
    /// later call may then succeed.
    fn make_room(&mut self, needed: usize) -> bool {
        let fits = |history: &Self| history.memory_used() + needed <= history.limits.bytes;
        let Some(mut packer) = self.compression_thread.take() else {
            while !fits(self) && self.cold.compress_oldest_chunk(&self.frames, &mut self.bytes) {}
            return fits(self);
        };
        self.cold.collect_results();
        // Chunks are sent early, so that the thread has finished before the limit is reached.
        if self.memory_used() + needed > self.limits.bytes / 4 * 3 {
            self.cold.send_oldest_chunk(&self.frames, &mut self.bytes, &mut packer);
        }
        self.compression_thread = Some(packer);
        fits(self)
    }

    /// Freezes the history: all stored frames are kept until a block with time `until` or later
    /// arrives. Frames that arrive before then are skipped if there is no memory for them. A time
    /// of 0 ends the freeze immediately.
    pub const fn freeze(&mut self, until: Time) {
        self.frozen_until = until;
    }

    /// Returns the number of frames that were skipped because the history was frozen and full. The
    /// skipped frames follow the newest stored frame.
    #[must_use]
    pub const fn skipped_frame_count(&self) -> u64 {
        self.skipped
    }

    /// Stores the frame of a block while the history is frozen. Skips the block if it has no frame,
    /// or if storing the frame requires an eviction. After a skipped block, skips all further
    /// blocks, because the sequence numbers of stored frames must be consecutive.
    fn push_while_frozen(&mut self, block: &Block<'_>) {
        let needed = block.frame.len() + FRAME_OVERHEAD_BYTES;
        if block.marks.is_frame() && self.skipped == 0 && self.make_room(needed) {
            self.store(block);
        } else {
            self.skipped += 1;
        }
    }

    /// Evicts the oldest frame. The memory of a compressed chunk is freed with its last frame.
    fn evict_oldest(&mut self) {
        let Some(oldest) = self.frames.pop_front() else { return };
        self.frame_bytes -= oldest.length;
        if !self.cold.evict_oldest_frame(oldest.length) {
            self.bytes.drain(..oldest.length);
        }
    }

    /// Evicts all frames from the history.
    fn clear(&mut self) {
        self.frames.clear();
        self.cold.clear();
        self.bytes.clear();
        (self.frame_bytes, self.skipped) = (0, 0);
    }

    /// Returns the memory that the stored frames use, in bytes.
    #[must_use]
    pub fn memory_used(&self) -> usize {
        self.bytes.len() + self.cold.stored_size() + self.frames.len() * FRAME_OVERHEAD_BYTES
    }

    /// Returns the number of stored frames and their size before and after compression.
    #[must_use]
    pub fn retained_frame_counts(&self) -> RetainedFrames {
        let (blocks, bytes) = (self.frames.len() as u64, self.frame_bytes as u64);
        RetainedFrames { blocks, bytes, stored: self.memory_used() as u64 }
    }

    /// Returns the size in bytes that all stored frames would have as records of a capture file.
    #[must_use]
    pub fn capture_size(&self) -> usize {
        self.frame_bytes + self.frames.len() * RECORD_HEADER_SIZE
    }

    /// Returns the total number of bytes that have been compressed so far, and their total size
    /// after compression.
    #[must_use]
    pub const fn compressed_totals(&self) -> (u64, u64) {
        self.cold.compression_totals()
    }

    /// Returns the number of stored frames, and the sequence number of the oldest one. If no frame
    /// is stored, returns the sequence number of the first skipped frame. If no frame was skipped
    /// either, returns that of the next frame.
    #[must_use]
    pub fn count_and_first_number(&self) -> (u64, u64) {
        let stored = self.frames.len() as u64;
        (stored, self.next_number - self.skipped - stored)
    }

    /// Calls `each` for every stored frame, oldest first, beginning at position `from`. Returns the
    /// number of calls.
    pub fn visit_frames_since(
        &self,
        from: HistoryStart,
        mut each: impl FnMut(&FrameHeader, &[u8]),
    ) -> u64 {
        let (_, first) = self.count_and_first_number();
        let (mut at, mut count) = (0, 0);
        let mut joined = Vec::new();
        let mut cold = self.cold.reader();
        for (number, header) in (first..).zip(&self.frames) {
            let cold_frame = cold.next_frame(header.length);
            let end = if cold_frame.is_some() { at } else { at + header.length };
            let wanted = match from {
                HistoryStart::Oldest => true,
                HistoryStart::Time(time) => header.time >= time,
                HistoryStart::Number(wanted) => number >= wanted,
            };
            if let (true, Some(frame)) = (wanted, cold_frame) {
                each(header, frame);
                count += 1;
            } else if wanted {
                joined.clear();
                joined.extend(self.bytes.range(at..end));
                each(header, &joined);
                count += 1;
            }
            at = end;
        }
        count
    }
}

/// Appends a pcap record of the frame to `to`. The record is truncated to the maximum length that
/// readers of capture files accept.
pub fn append_record(header: &FrameHeader, frame: &[u8], to: &mut Vec<u8>) {
    let bytes = frame.get(..write::SNAP_LENGTH_MAX as usize).unwrap_or(frame);
    let captured = u32::try_from(bytes.len()).unwrap_or(write::SNAP_LENGTH_MAX);
    to.extend_from_slice(&write::encode_record_header(header.time, captured, header.wire_length));
    to.extend_from_slice(bytes);
}

/// Size of a pcap record header in bytes.
pub const RECORD_HEADER_SIZE: usize = write::RECORD_HEADER_SIZE;
/// Size of a pcap file header in bytes.
pub const FILE_HEADER_SIZE: usize = write::FILE_HEADER_SIZE;

/// Returns the offset in `records` at which the first record at or after offset `at` begins, or the
/// length of `records` if there is none. Returns 0 if `at` is 0. `first` is the offset of the first
/// record, which follows the file header if there is one.
#[must_use]
pub fn find_record_boundary(records: &[u8], first: usize, at: usize) -> usize {
    let mut end = if at == 0 { 0 } else { first };
    while end < at {
        let length = records.get(end + 8..).and_then(|record| record.first_chunk());
        end += RECORD_HEADER_SIZE + length.map_or(0, |length| u32::from_le_bytes(*length) as usize);
    }
    end.min(records.len())
}

/// Returns a capture file without packets: a header with the link type of Ethernet.
#[must_use]
pub fn empty_capture() -> [u8; FILE_HEADER_SIZE] {
    file_header(LinkType::ETHERNET)
}

/// Returns the header of a pcap file for frames of this link type ([`LinkType::file_link_type`]).
#[must_use]
pub fn file_header(link: LinkType) -> [u8; write::FILE_HEADER_SIZE] {
    write::encode_file_header(link.file_link_type())
}

impl FrameHeader {
    /// Creates the header under which a history stores the frame of `block`.
    #[must_use]
    pub fn for_block(block: &Block<'_>) -> Self {
        Self {
            time: block.context.time,
            link: LinkType(block.marks.link),
            wire_length: block.marks.wire_length,
            origin: block.context.origin,
            flags: block.context.flags,
            length: block.frame.len(),
        }
    }

    /// Returns the frame as a block with this header. The view is the entire frame, as in blocks
    /// emitted by a source.
    #[must_use]
    pub fn block<'f>(&self, frame: &'f [u8]) -> Block<'f> {
        let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let (time, origin, flags) = (self.time, self.origin, self.flags);
        Block {
            pointer: RichPointer::new(COPIED_BYTES_DBUF_ID, Extent::new(0, length), Class::YES),
            frame,
            marks: Marks::frame(self.link.0, length, self.wire_length),
            context: BlockMetadata { time, session: 0, origin, flags },
        }
    }
}

#[cfg(test)]
mod tests;
