//! A bounded history of the most recent frames, for readers that begin in the past. [SL §5.2]
//!
//! A history stores copies of the frames of arriving blocks, within a byte limit and a time limit,
//! and returns them oldest first. It copies them because a packet ring whose slots waited for the
//! history would lose packets.

use filter::{Block, Time};
use std::collections::VecDeque;
use wire::capture::write;
use wire::link::LinkType;

/// Limits on the memory and the age of the frames that a history stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HistoryLimits {
    /// Maximum memory for frames, in bytes.
    pub bytes: usize,
    /// Maximum age relative to the newest frame, in nanoseconds.
    pub time: Time,
}

impl HistoryLimits {
    /// Limits that retain no frames.
    pub const NONE: Self = Self { bytes: 0, time: 0 };
}

/// A FIFO of the most recent frames, stored as copies.
#[derive(Debug)]
pub struct History {
    limits: HistoryLimits,
    frames: VecDeque<FrameHeader>,
    bytes: VecDeque<u8>,
    /// Sequence number of the next frame, counted from 0.
    next: u64,
    newest: Time,
}

/// Header of a stored frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Time of arrival.
    pub time: Time,
    /// Link type of the frame.
    pub link: LinkType,
    /// Length on the wire in bytes.
    pub wire_length: u32,
    length: usize,
}

/// Memory of a stored frame in addition to its bytes.
const OVERHEAD: usize = size_of::<FrameHeader>();

/// Start position of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HistoryStart {
    /// The oldest stored frame.
    Oldest,
    /// The first frame at or after this time.
    Time(Time),
    /// The frame with this sequence number, counted from 0.
    Number(u64),
}

impl History {
    /// Creates an empty history.
    #[must_use]
    pub const fn new(limits: HistoryLimits) -> Self {
        Self { limits, frames: VecDeque::new(), bytes: VecDeque::new(), next: 0, newest: 0 }
    }

    /// Copies the frame of a block into the history and evicts frames beyond the limits. A block
    /// without a frame, or longer than the byte limit, clears the history, because sequence numbers
    /// of stored frames are consecutive.
    pub fn push(&mut self, block: &Block<'_>) {
        self.next += 1;
        self.newest = self.newest.max(block.context.time);
        let length = block.frame.len();
        let fits = block.marks.is_frame() && length + OVERHEAD <= self.limits.bytes;
        if fits {
            let (time, wire_length) = (block.context.time, block.marks.wire_length);
            let link = LinkType(block.marks.link);
            self.frames.push_back(FrameHeader { time, link, wire_length, length });
            self.bytes.extend(block.frame);
        } else {
            // A gap in the sequence numbers ends the stored run.
            self.clear();
        }
        while let Some(oldest) = self.frames.front()
            && (self.used() > self.limits.bytes
                || oldest.time < self.newest.saturating_sub(self.limits.time))
        {
            self.bytes.drain(..oldest.length);
            self.frames.pop_front();
        }
    }

    /// Evicts all frames.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.bytes.clear();
    }

    /// Returns the memory in use, in bytes.
    #[must_use]
    pub fn used(&self) -> usize {
        self.bytes.len() + self.frames.len() * OVERHEAD
    }

    /// Returns the number of stored frames and the sequence number of the oldest of them, or of the
    /// next frame if none is stored.
    #[must_use]
    pub fn numbers(&self) -> (u64, u64) {
        let stored = self.frames.len() as u64;
        (stored, self.next - stored)
    }

    /// Returns the time of the newest frame, stored or not; 0 before the first.
    #[must_use]
    pub const fn newest(&self) -> Time {
        self.newest
    }

    /// Calls `each` for every stored frame from `from` on, oldest first; returns the number of
    /// calls.
    pub fn since(&self, from: HistoryStart, mut each: impl FnMut(&FrameHeader, &[u8])) -> u64 {
        let (_, first) = self.numbers();
        let (mut at, mut count) = (0, 0);
        let mut joined = Vec::new();
        for (number, header) in (first..).zip(&self.frames) {
            let end = at + header.length;
            let wanted = match from {
                HistoryStart::Oldest => true,
                HistoryStart::Time(time) => header.time >= time,
                HistoryStart::Number(wanted) => number >= wanted,
            };
            if wanted {
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

/// Appends a pcap record of the frame to `to`, truncated to the snap length that readers accept.
pub fn record(header: &FrameHeader, frame: &[u8], to: &mut Vec<u8>) {
    let bytes = frame.get(..write::SNAP_LENGTH as usize).unwrap_or(frame);
    let captured = u32::try_from(bytes.len()).unwrap_or(write::SNAP_LENGTH);
    to.extend_from_slice(&write::record(header.time, captured, header.wire_length));
    to.extend_from_slice(bytes);
}

/// Size of a pcap record header in bytes.
pub const RECORD_HEADER_SIZE: usize = write::RECORD;
/// Size of a pcap file header in bytes.
pub const FILE_HEADER_SIZE: usize = write::HEADER;

/// Returns the offset of the first boundary between records at or after offset `at`. The first
/// record starts at offset `first`, after the file header if there is one.
#[must_use]
pub fn boundary(records: &[u8], first: usize, at: usize) -> usize {
    let mut end = if at == 0 { 0 } else { first };
    while end < at {
        let length = records.get(end + 8..).and_then(|record| record.first_chunk());
        end += RECORD_HEADER_SIZE + length.map_or(0, |length| u32::from_le_bytes(*length) as usize);
    }
    end.min(records.len())
}

/// Returns the pcap file header for this link type.
#[must_use]
pub fn header(link: LinkType) -> [u8; write::HEADER] {
    write::header(link)
}

impl FrameHeader {
    /// Returns the header under which the frame of a block is stored.
    #[must_use]
    pub fn of(block: &Block<'_>) -> Self {
        Self {
            time: block.context.time,
            link: LinkType(block.marks.link),
            wire_length: block.marks.wire_length,
            length: block.frame.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{bare, frame};
    use abi::BlockMetadata;

    fn at(time: Time, bytes: &[u8]) -> Block<'_> {
        Block { context: BlockMetadata { time, ..BlockMetadata::default() }, ..frame(bytes) }
    }

    fn all(history: &History, from: HistoryStart) -> Vec<(Time, Vec<u8>)> {
        let mut all = Vec::new();
        history.since(from, |header, bytes| all.push((header.time, bytes.to_vec())));
        all
    }

    #[test]
    fn history_retains_frames_within_the_time_limit() {
        let mut history = History::new(HistoryLimits { bytes: 1 << 20, time: 10 });
        for time in 0..100 {
            history.push(&at(time, &[time as u8; 3]));
        }
        let stored = all(&history, HistoryStart::Oldest);
        assert_eq!(stored.len(), 11);
        assert_eq!(stored[0], (89, vec![89; 3]));
        assert_eq!(history.numbers(), (11, 89));
        assert_eq!(all(&history, HistoryStart::Time(97)).len(), 3);
        assert_eq!(all(&history, HistoryStart::Number(98)), stored[9..]);
        assert_eq!(all(&history, HistoryStart::Number(3)), stored, "what is gone is gone");
    }

    #[test]
    fn history_evicts_frames_beyond_the_byte_limit() {
        let limits = HistoryLimits { bytes: 1000, time: Time::MAX };
        let mut history = History::new(limits);
        for length in (0..400).chain([2000, 10]) {
            history.push(&at(5, &vec![7; length]));
            assert!(history.used() <= limits.bytes);
        }
        assert_eq!(history.numbers(), (1, 401), "behind one that is too long");
        history.push(&bare(b"no frame"));
        assert_eq!(history.numbers(), (0, 403));
    }
}
