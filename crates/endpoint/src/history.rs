//! The frames that came last, with their bytes, in bounded memory: what there is to look back into.
//!
//! In: blocks, in the order in which they come. Out: their frames again, oldest first, as far back
//! as bytes and time allow. The bytes are copies, so that nothing keeps the memory of a source from
//! being used again: a ring of a packet socket that waits for a history would lose packets.
//! [SL §5.2, readers that begin in the past]

use filter::{Block, Time};
use std::collections::VecDeque;
use wire::capture::write;
use wire::link::LinkType;

/// The bounds of a history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    /// At most so many bytes of frames.
    pub bytes: usize,
    /// At most so long before the newest, in ns.
    pub time: Time,
}

impl Reach {
    /// Nothing is kept.
    pub const NONE: Self = Self { bytes: 0, time: 0 };
}

/// Frames that came.
#[derive(Debug)]
pub struct History {
    reach: Reach,
    kept: VecDeque<Kept>,
    bytes: VecDeque<u8>,
    /// The number of the next frame, from 0.
    next: u64,
    newest: Time,
}

/// A frame that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// The time of arrival.
    pub time: Time,
    /// The link type of the frame.
    pub link: LinkType,
    /// Its length on the wire.
    pub wire_length: u32,
    length: usize,
}

/// Cost of a frame besides its bytes.
const BESIDE: usize = size_of::<Kept>();

/// From where on somebody looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// The oldest frame.
    Oldest,
    /// The first frame since this time.
    Time(Time),
    /// The frame of this number, from 0, and what came after it.
    Number(u64),
}

impl History {
    /// Nothing yet.
    #[must_use]
    pub const fn new(reach: Reach) -> Self {
        Self { reach, kept: VecDeque::new(), bytes: VecDeque::new(), next: 0, newest: 0 }
    }

    /// Keeps the frame of a block, and forgets what lies too far back. A block that lies in no
    /// frame, or one that is longer than all that may be kept, is only counted.
    pub fn push(&mut self, block: &Block<'_>) {
        self.next += 1;
        self.newest = self.newest.max(block.context.time);
        let length = block.frame.len();
        let fits = block.marks.is_frame() && length + BESIDE <= self.reach.bytes;
        if fits {
            let (time, wire_length) = (block.context.time, block.marks.wire_length);
            let link = LinkType(block.marks.link);
            self.kept.push_back(Kept { time, link, wire_length, length });
            self.bytes.extend(block.frame);
        } else {
            // Numbers are those of blocks: what is between is not there.
            self.clear();
        }
        while let Some(oldest) = self.kept.front()
            && (self.used() > self.reach.bytes
                || oldest.time < self.newest.saturating_sub(self.reach.time))
        {
            self.bytes.drain(..oldest.length);
            self.kept.pop_front();
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.kept.clear();
        self.bytes.clear();
    }

    /// Bytes that are used.
    #[must_use]
    pub fn used(&self) -> usize {
        self.bytes.len() + self.kept.len() * BESIDE
    }

    /// Returns the number of frames stored, and the number of the first.
    #[must_use]
    pub fn numbers(&self) -> (u64, u64) {
        let there = self.kept.len() as u64;
        (there, self.next - there)
    }

    /// The time of the newest frame that came.
    #[must_use]
    pub const fn newest(&self) -> Time {
        self.newest
    }

    /// Calls `each` with the frames from there on, oldest first; answers how many.
    pub fn since(&self, from: From, mut each: impl FnMut(&Kept, &[u8])) -> u64 {
        let (_, first) = self.numbers();
        let (mut at, mut told) = (0, 0);
        let mut joined = Vec::new();
        for (number, kept) in (first..).zip(&self.kept) {
            let end = at + kept.length;
            let wanted = match from {
                From::Oldest => true,
                From::Time(time) => kept.time >= time,
                From::Number(wanted) => number >= wanted,
            };
            if wanted {
                joined.clear();
                joined.extend(self.bytes.range(at..end));
                each(kept, &joined);
                told += 1;
            }
            at = end;
        }
        told
    }
}

/// Appends a frame as a record of a capture; cut where no reader would accept it.
pub fn record(kept: &Kept, frame: &[u8], to: &mut Vec<u8>) {
    let bytes = frame.get(..write::SNAP_LENGTH as usize).unwrap_or(frame);
    let captured = u32::try_from(bytes.len()).unwrap_or(write::SNAP_LENGTH);
    to.extend_from_slice(&write::record(kept.time, captured, kept.wire_length));
    to.extend_from_slice(bytes);
}

/// Bytes of a record beside its frame.
pub const RECORD: usize = write::RECORD;

/// The beginning of a capture of frames of this link type.
#[must_use]
pub fn header(link: LinkType) -> [u8; write::HEADER] {
    write::header(link)
}

impl Kept {
    /// Copies a block into the history.
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

    fn all(history: &History, from: From) -> Vec<(Time, Vec<u8>)> {
        let mut all = Vec::new();
        history.since(from, |kept, bytes| all.push((kept.time, bytes.to_vec())));
        all
    }

    #[test]
    fn what_came_last_is_there_as_far_as_time_reaches() {
        let mut history = History::new(Reach { bytes: 1 << 20, time: 10 });
        for time in 0..100 {
            history.push(&at(time, &[time as u8; 3]));
        }
        let there = all(&history, From::Oldest);
        assert_eq!(there.len(), 11);
        assert_eq!(there[0], (89, vec![89; 3]));
        assert_eq!(history.numbers(), (11, 89));
        assert_eq!(all(&history, From::Time(97)).len(), 3);
        assert_eq!(all(&history, From::Number(98)), there[9..]);
        assert_eq!(all(&history, From::Number(3)), there, "what is gone is gone");
    }

    #[test]
    fn memory_is_bounded() {
        let reach = Reach { bytes: 1000, time: Time::MAX };
        let mut history = History::new(reach);
        for length in (0..400).chain([2000, 10]) {
            history.push(&at(5, &vec![7; length]));
            assert!(history.used() <= reach.bytes);
        }
        assert_eq!(history.numbers(), (1, 401), "behind one that is too long");
        history.push(&bare(b"no frame"));
        assert_eq!(history.numbers(), (0, 403));
    }
}
