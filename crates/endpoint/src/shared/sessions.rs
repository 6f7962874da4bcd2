//! Sessions in a shared ring: decides which sessions a reader may read, and how many bytes of each
//! the reader has missed. For a ring of messages see [`super::messages`].
//!
//! The writer stamps each block with the position of its first byte in its direction of the
//! session, and marks the first block of a session. A reader admits a session by that mark only, so
//! it never sees the middle of one. By the positions it finds how many bytes of an admitted session
//! it has lost to overwriting.

use super::messages::ReadMessages;
use abi::{BLOCK_MAX, BlockMetadata, Class, Entry, Flags, Marks, RichPointer};
use std::collections::HashMap;

/// Size of a stamp in a message, in bytes.
pub(super) const STAMP_BYTES: usize = 16;
/// Maximum number of missing bytes in one direction of a session. A session that misses more bytes
/// is ended.
const MISSING_MAX: u64 = 32 << 20;

/// The stamp that the writer adds to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SharedStamp {
    /// Number of bytes of this direction of the session before the block.
    pub(super) position: u64,
    /// Number of the block in the ring, from 0.
    pub(super) number: u64,
    /// True for the first block of a session.
    pub(super) begins: bool,
    /// True if the ring holds fragments of messages, which have no positions.
    pub(super) framed: bool,
}

/// Bits of a stamp's second word that hold [`SharedStamp::begins`] and [`SharedStamp::framed`]. The
/// other bits hold [`SharedStamp::number`].
const BEGINS_BIT: u64 = 1 << 63;
const FRAMED_BIT: u64 = 1 << 62;

impl SharedStamp {
    pub(super) fn write(self, room: &mut [u8]) {
        let begins = if self.begins { BEGINS_BIT } else { 0 };
        let framed = if self.framed { FRAMED_BIT } else { 0 };
        let number = self.number & !(BEGINS_BIT | FRAMED_BIT) | begins | framed;
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
        let word = u64::from_ne_bytes(*number.first_chunk::<8>()?);
        let (begins, framed) = (word & BEGINS_BIT != 0, word & FRAMED_BIT != 0);
        let number = word & !(BEGINS_BIT | FRAMED_BIT);
        Some((Self { position: u64::from_ne_bytes(*position), number, begins, framed }, block))
    }
}

/// Progress of the two directions of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Progress {
    position: [u64; 2],
    ended: [bool; 2],
    /// Class and time of the latest block.
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

/// The sessions that the writer has begun and that have not ended.
#[derive(Debug, Default)]
pub(super) struct WrittenSessions {
    open: HashMap<u32, Progress>,
    /// True if the blocks are fragments of messages, which need no table.
    framed: bool,
}

impl WrittenSessions {
    /// Creates a table for streams, or, if `framed`, for messages.
    pub(super) fn new(framed: bool) -> Self {
        Self { framed, ..Self::default() }
    }

    /// Returns the stamp of the next block, which has this number in the ring. For a block without
    /// a session, the other fields of the stamp are 0.
    pub(super) fn stamp(&mut self, entry: &Entry, number: u64) -> SharedStamp {
        let session = entry.context.session;
        if session == 0 || self.framed {
            return SharedStamp { number, framed: self.framed, ..SharedStamp::default() };
        }
        let mut begins = false;
        let open = self.open.entry(session).or_insert_with(|| {
            begins = true;
            Progress::default()
        });
        let position = open.position[direction_index(entry.context)];
        if open.count_block(entry) {
            self.open.remove(&session);
        }
        SharedStamp { position, number, begins, framed: false }
    }
}

/// The sessions, or messages, that a reader has admitted.
#[derive(Debug, Default)]
pub(super) struct ReadSessions {
    open: HashMap<u32, Progress>,
    pub(super) messages: ReadMessages,
    /// Number of the block that follows the last one that was read; `None` before the first.
    next: Option<u64>,
    /// True if blocks of messages were overwritten.
    is_torn: bool,
    /// Number of sessions whose beginning the reader has seen.
    pub(super) begun: u64,
    /// Number of admitted sessions or messages that have lost data to overwriting.
    pub(super) torn: u64,
}

/// Decision of [`ReadSessions::admit`] about a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    /// The block is admitted. It follows the blocks that the call added to the list.
    Follows,
    /// The block is refused: its session or message began before this reader joined, or the
    /// beginning was overwritten.
    Unbegun,
    /// The block is refused: a fragment of its message was overwritten.
    Headless,
}

impl ReadSessions {
    /// Decides on a block. Adds to `before` the holes that stand for the bytes lost in front of the
    /// block.
    pub(super) fn admit(
        &mut self,
        stamp: SharedStamp,
        entry: &Entry,
        before: &mut Vec<Entry>,
    ) -> Admission {
        let session = entry.context.session;
        let is_gap = self.next.replace(stamp.number + 1).is_some_and(|next| next != stamp.number);
        if stamp.framed && is_gap {
            self.torn += self.messages.end_all(before);
            self.is_torn = true;
        }
        if session == 0 {
            return Admission::Follows;
        }
        if stamp.framed {
            return match (self.messages.admits(entry), self.is_torn) {
                (true, _) => Admission::Follows,
                (false, true) => Admission::Headless,
                (false, false) => Admission::Unbegun,
            };
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

    /// Ends a session: adds, for each direction that is still open, an empty hole that marks its
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

    /// Ends all sessions and messages, in ascending order of their numbers. The next block may have
    /// any number, as in another ring.
    pub(super) fn end_all(&mut self, to: &mut Vec<Entry>) {
        self.next = None;
        self.messages.end_all(to);
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
