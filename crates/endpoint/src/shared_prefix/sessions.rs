//! Tracking of the sessions in a shared ring, to decide which sessions a reader may read, and how
//! many bytes of each session the reader has missed. [`super::messages`] does the same for rings of
//! messages.
//!
//! The writer stamps each block with the position of its first byte in its direction of the
//! session, and flags the first block of a session. A reader admits a session only at a block with
//! this flag, so it never starts in the middle of a session. From the positions, the reader
//! computes the number of bytes of an admitted session that were overwritten.

use super::messages::{FragmentAdmission, ReaderMessages, WriterMessages};
use abi::{BLOCK_LENGTH_MAX, BlockFlags, BlockMetadata, Class, Entry, Marks, RichPointer};
use filter::KeyHasher;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

/// Maximum number of bytes that may be missing between two blocks of a session in one direction. If
/// more are missing, the reader ends the session.
const MISSING_BYTES_MAX: u64 = 32 << 20;

/// A map whose keys are sessions, or directions of sessions. A process of the same user assigns the
/// session numbers, so no protection against collision attacks is needed.
pub(super) type SessionMap<T> = HashMap<u64, T, BuildHasherDefault<KeyHasher>>;

/// The stamp with which the writer of a shared ring labels a block, so that readers can find gaps:
/// the block's position in its session, and its number in the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SharedStamp {
    /// Position of the block. In a ring of streams, the number of bytes that precede the block in
    /// its direction of the session. In a ring of messages, the number of the block that begins the
    /// message, plus 1.
    pub(super) position: u64,
    /// Number of the block in the ring, from 0.
    pub(super) number: u64,
    /// True for the first block of a session in a ring of streams.
    pub(super) begins: bool,
    /// True if the ring holds fragments of messages, false if it holds blocks of streams.
    pub(super) holds_fragments: bool,
}

/// Progress of an open session. The arrays contain the position and the end of each direction,
/// forward first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct SessionProgress {
    position: [u64; 2],
    ended: [bool; 2],
    /// Class of the session's latest block.
    class: Class,
    /// Timestamp of the session's latest block.
    time: u64,
}

impl SessionProgress {
    /// Updates the progress of a session with the session's next block. Returns true if both
    /// directions have ended.
    fn advance(&mut self, entry: &Entry) -> bool {
        let way = direction_index(entry.context);
        self.position[way] += u64::from(entry.pointer.length());
        self.ended[way] |= entry.context.flags.contains(BlockFlags::SESSION_END);
        (self.class, self.time) = (entry.pointer.class, entry.context.time);
        self.ended == [true; 2]
    }
}

fn direction_index(context: BlockMetadata) -> usize {
    usize::from(context.flags.contains(BlockFlags::BACKWARD))
}

/// The writer's table of sessions that have begun but not ended.
#[derive(Debug, Default)]
pub(super) struct WriterSessions {
    open: SessionMap<SessionProgress>,
    /// The open messages in a ring of messages; `None` for a ring of streams.
    messages: Option<WriterMessages>,
}

impl WriterSessions {
    /// Creates a table for the sessions of a ring. `framed` is true if the ring holds fragments of
    /// messages, and false if it holds blocks of streams.
    pub(super) fn new(framed: bool) -> Self {
        Self { messages: framed.then(WriterMessages::default), ..Self::default() }
    }

    /// Returns true if the ring holds fragments of messages, and false if it holds blocks of
    /// streams.
    pub(super) const fn holds_fragments(&self) -> bool {
        self.messages.is_some()
    }

    /// Returns the stamp for the next block, with the block's number in the ring, `number`. In a
    /// ring of streams, the flag `begins` of the stamp is set for the first block of a session. The
    /// position is 0 for a block without a session.
    pub(super) fn next_stamp(&mut self, entry: &Entry, number: u64) -> SharedStamp {
        let session = entry.context.session;
        let framed = self.messages.is_some();
        if session == 0 {
            return SharedStamp { number, holds_fragments: framed, ..SharedStamp::default() };
        }
        if let Some(messages) = &mut self.messages {
            let position = messages.message_start_number(entry, number);
            return SharedStamp { position, number, begins: false, holds_fragments: framed };
        }
        let mut begins = false;
        let open = self.open.entry(session.into()).or_insert_with(|| {
            begins = true;
            SessionProgress::default()
        });
        let position = open.position[direction_index(entry.context)];
        if open.advance(entry) {
            self.open.remove(&session.into());
        }
        SharedStamp { position, number, begins, holds_fragments: false }
    }
}

/// The sessions or messages of a shared ring that a reader has admitted.
#[derive(Debug, Default)]
pub(super) struct ReaderSessions {
    open: SessionMap<SessionProgress>,
    pub(super) messages: ReaderMessages,
    /// Number of sessions whose first block the reader has seen.
    pub(super) begun: u64,
    /// Number of interruptions caused by overwritten blocks: gaps in sessions that the reader has
    /// admitted, and messages that the reader had to end early.
    pub(super) torn: u64,
}

/// The decision of [`ReaderSessions::admit`] about a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    /// The block is admitted. The caller must first emit the blocks that were added to `before`.
    Admitted,
    /// The block is refused: its session or message began before this reader joined, the beginning
    /// was overwritten, or the session misses too many bytes.
    BeginningMissed,
    /// The block is refused: a fragment of its message was overwritten.
    FragmentLost,
}

impl ReaderSessions {
    /// Decides whether the reader admits a block. `is_gap` is true if blocks were overwritten
    /// between this block and the previous one. Adds holes to `before` that represent the lost
    /// bytes before the block.
    pub(super) fn admit(
        &mut self,
        stamp: SharedStamp,
        entry: &Entry,
        is_gap: bool,
        before: &mut Vec<Entry>,
    ) -> Admission {
        let session = entry.context.session;
        if stamp.holds_fragments && is_gap {
            self.torn += self.messages.end_open_messages(stamp.number, before);
        }
        if session == 0 {
            return Admission::Admitted;
        }
        if stamp.holds_fragments {
            return match self.messages.admit(stamp, entry) {
                FragmentAdmission::Whole => Admission::Admitted,
                FragmentAdmission::FragmentLost => Admission::FragmentLost,
                FragmentAdmission::BegunBeforeJoin => Admission::BeginningMissed,
            };
        }
        let key = u64::from(session);
        if stamp.begins {
            // The session number is used again, which means that the end of the earlier session was
            // overwritten.
            self.end_session(session, before);
            self.open.insert(key, SessionProgress::default());
            self.begun += 1;
        }
        let way = direction_index(entry.context);
        let Some(open) = self.open.get_mut(&key) else { return Admission::BeginningMissed };
        let missing = stamp.position.checked_sub(open.position[way]);
        match missing {
            Some(0) => {}
            Some(missing) if missing <= MISSING_BYTES_MAX => {
                self.torn += 1;
                add_holes(missing, entry, before);
                open.position[way] = stamp.position;
            }
            _ => {
                self.torn += 1;
                self.end_session(session, before);
                return Admission::BeginningMissed;
            }
        }
        if open.advance(entry) {
            self.open.remove(&key);
        }
        Admission::Admitted
    }

    /// Ends a session. For each direction that is still open, appends a hole of length 0 to `to`,
    /// which marks the end of the direction.
    fn end_session(&mut self, session: u32, to: &mut Vec<Entry>) {
        let Some(open) = self.open.remove(&session.into()) else { return };
        for (way, ended) in open.ended.into_iter().enumerate() {
            let back = if way == 1 { BlockFlags::BACKWARD } else { BlockFlags::NONE };
            let flags = BlockFlags::SESSION_END_MASK.with(back);
            let context = BlockMetadata { time: open.time, session, origin: 0, flags };
            let pointer = RichPointer::hole(0).with_class(open.class);
            to.extend((!ended).then(|| Entry::new(pointer, context, Marks::for_plain_block(0))));
        }
    }

    /// Ends all admitted sessions and messages, because their ring has ended. Appends end markers
    /// for them to `to`, in ascending order of session numbers.
    pub(super) fn end_sessions_and_messages(&mut self, to: &mut Vec<Entry>) {
        self.messages.end_open_messages(0, to);
        let mut all: Vec<u32> =
            self.open.keys().filter_map(|key| u32::try_from(*key).ok()).collect();
        all.sort_unstable();
        all.into_iter().for_each(|session| self.end_session(session, to));
    }
}

/// Adds holes with a total length of `missing` bytes to `to`. The holes represent the bytes lost
/// before the block of `entry`.
fn add_holes(mut missing: u64, entry: &Entry, to: &mut Vec<Entry>) {
    let flags = if entry.context.flags.contains(BlockFlags::BACKWARD) {
        BlockFlags::BACKWARD
    } else {
        BlockFlags::NONE
    };
    let context = BlockMetadata { flags, ..entry.context };
    while missing > 0 {
        let length = u32::try_from(missing.min(BLOCK_LENGTH_MAX as u64)).unwrap_or(1);
        let pointer = RichPointer::hole(length).with_class(entry.pointer.class);
        to.push(Entry::new(pointer, context, Marks::for_plain_block(length)));
        missing -= u64::from(length);
    }
}
