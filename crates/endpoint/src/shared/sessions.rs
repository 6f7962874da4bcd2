//! Sessions in a shared ring: decides which sessions a reader may read, and how many bytes of each
//! the reader has missed.
//!
//! The writer stamps each block with the position of its first byte in its direction of the
//! session, and marks the first block of a session. A reader admits a session only at that mark, so
//! it never sees a session from the middle. From the positions, the reader computes how many bytes
//! of an admitted session were overwritten before it read them.

use abi::{BLOCK_MAX, BlockMetadata, Class, Entry, Flags, Marks, RichPointer};
use std::collections::HashMap;

/// Size of a stamp in a message, in bytes.
pub(super) const STAMP_BYTES: usize = 16;
/// Maximum number of missing bytes in one direction of a session. A session with more is ended.
const MISSING_MAX: u64 = 32 << 20;

/// The stamp that the writer adds to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SharedStamp {
    /// Number of bytes that precede the block in its direction of the session.
    pub(super) position: u64,
    /// Number of the block in the ring, counted from 0.
    pub(super) number: u64,
    /// True for the first block of a session.
    pub(super) begins: bool,
}

/// Bit of a stamp's second word that holds [`SharedStamp::begins`]. The other bits hold
/// [`SharedStamp::number`].
const BEGINS_BIT: u64 = 1 << 63;

impl SharedStamp {
    pub(super) fn write(self, room: &mut [u8]) {
        let number = self.number & !BEGINS_BIT | if self.begins { BEGINS_BIT } else { 0 };
        if let Some((position, rest)) = room.split_first_chunk_mut::<8>() {
            *position = self.position.to_ne_bytes();
            if let Some(to) = rest.first_chunk_mut::<8>() {
                *to = number.to_ne_bytes();
            }
        }
    }

    pub(super) fn read(message: &[u8]) -> Option<(Self, &[u8])> {
        let (head, block) = message.split_first_chunk::<STAMP_BYTES>()?;
        let (position, number) = head.split_first_chunk::<8>()?;
        let number = u64::from_ne_bytes(*number.first_chunk::<8>()?);
        let (begins, number) = (number & BEGINS_BIT != 0, number & !BEGINS_BIT);
        Some((Self { position: u64::from_ne_bytes(*position), number, begins }, block))
    }
}

/// Progress of the two directions of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Progress {
    position: [u64; 2],
    ended: [bool; 2],
    /// Class and time of the latest block of the session.
    class: Class,
    time: u64,
}

impl Progress {
    /// Counts a block. Returns true if both directions have ended.
    fn count_block(&mut self, entry: &Entry) -> bool {
        let way = direction_index(entry.context);
        self.position[way] += u64::from(entry.pointer.length());
        self.ended[way] |= entry.context.flags.has(Flags::END);
        (self.class, self.time) = (entry.pointer.class, entry.context.time);
        self.ended == [true; 2]
    }
}

fn direction_index(context: BlockMetadata) -> usize {
    usize::from(context.flags.has(Flags::BACKWARD))
}

/// The sessions that have begun in the writer and have not ended.
#[derive(Debug, Default)]
pub(super) struct WrittenSessions(HashMap<u32, Progress>);

impl WrittenSessions {
    /// Returns the stamp of the next block, which has this number in the ring. For a block without
    /// a session, the other fields of the stamp are 0.
    pub(super) fn stamp(&mut self, entry: &Entry, number: u64) -> SharedStamp {
        let session = entry.context.session;
        if session == 0 {
            return SharedStamp { number, ..SharedStamp::default() };
        }
        let mut begins = false;
        let open = self.0.entry(session).or_insert_with(|| {
            begins = true;
            Progress::default()
        });
        let position = open.position[direction_index(entry.context)];
        if open.count_block(entry) {
            self.0.remove(&session);
        }
        SharedStamp { position, number, begins }
    }
}

/// The sessions that a reader has admitted.
#[derive(Debug, Default)]
pub(super) struct ReadSessions {
    open: HashMap<u32, Progress>,
    /// Number of sessions whose beginning the reader has seen.
    pub(super) begun: u64,
    /// Number of admitted sessions of which data was overwritten before it was read.
    pub(super) torn: u64,
}

/// Decision of [`ReadSessions::admit`] about a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    /// The block is admitted, after the holes that the call added to `before`.
    Follows,
    /// The block is refused: its session began before this reader joined, or the beginning was
    /// overwritten.
    Unbegun,
}

impl ReadSessions {
    /// Decides on a block. Adds holes to `before` for the bytes that were lost in front of the
    /// block.
    pub(super) fn admit(
        &mut self,
        stamp: SharedStamp,
        entry: &Entry,
        before: &mut Vec<Entry>,
    ) -> Admission {
        let session = entry.context.session;
        if session == 0 {
            return Admission::Follows;
        }
        if stamp.begins {
            // A number that is used again: the end of its last session was overwritten.
            self.end_session(session, before);
            self.open.insert(session, Progress::default());
            self.begun += 1;
        }
        let way = direction_index(entry.context);
        let Some(open) = self.open.get_mut(&session) else { return Admission::Unbegun };
        let missing = stamp.position.checked_sub(open.position[way]);
        match missing {
            Some(0) => {}
            Some(missing) if missing <= MISSING_MAX => {
                self.torn += 1;
                add_holes(missing, entry, before);
                open.position[way] = stamp.position;
            }
            _ => {
                self.torn += 1;
                self.end_session(session, before);
                return Admission::Unbegun;
            }
        }
        if open.count_block(entry) {
            self.open.remove(&session);
        }
        Admission::Follows
    }

    /// Ends a session. For each direction that is still open, adds an empty hole that marks the
    /// end.
    fn end_session(&mut self, session: u32, to: &mut Vec<Entry>) {
        let Some(open) = self.open.remove(&session) else { return };
        for (way, ended) in open.ended.into_iter().enumerate() {
            let back = if way == 1 { Flags::BACKWARD } else { Flags::NONE };
            let flags = Flags::END_MASK.with(back);
            let context = BlockMetadata { time: open.time, session, origin: 0, flags };
            let pointer = RichPointer::hole(0).with_class(open.class);
            to.extend((!ended).then(|| Entry::new(pointer, context, Marks::bare(0))));
        }
    }

    /// Ends all sessions, in ascending order of their numbers.
    pub(super) fn end_all(&mut self, to: &mut Vec<Entry>) {
        let mut all: Vec<u32> = self.open.keys().copied().collect();
        all.sort_unstable();
        all.into_iter().for_each(|session| self.end_session(session, to));
    }
}

/// Adds holes of `missing` bytes in front of a block.
fn add_holes(mut missing: u64, entry: &Entry, to: &mut Vec<Entry>) {
    let flags =
        if entry.context.flags.has(Flags::BACKWARD) { Flags::BACKWARD } else { Flags::NONE };
    let context = BlockMetadata { flags, ..entry.context };
    while missing > 0 {
        let length = u32::try_from(missing.min(BLOCK_MAX as u64)).unwrap_or(1);
        let pointer = RichPointer::hole(length).with_class(entry.pointer.class);
        to.push(Entry::new(pointer, context, Marks::bare(length)));
        missing -= u64::from(length);
    }
}
