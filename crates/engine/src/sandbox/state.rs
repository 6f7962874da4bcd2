//! Transfer of filter state between a path and a sandbox process, as messages in the streams that
//! carry blocks.
//!
//! ```text
//! path ─► blocks … SAVE ───────────────────►       path ─► SESSION (HELD block)* … END ─►
//! path ◄─ blocks … SESSION (HELD block)* … END     path ◄─ RESTORED
//! ```
//!
//! The words are variants of [`StateRecord`]. SAVE marks a point in the stream between two blocks.
//! The saved state is the state at this point: the process has processed all earlier blocks, and
//! their output precedes the state. No further socket or system call is needed, and the progress
//! deadlines for blocks also apply to these messages. These messages have a flag that no block may
//! have. docs/book/decisions/0041-untrusted-state.md
//!
//! State from a process is untrusted; it is bounded and checked before use ([`StateCollector`]).

use super::message::{self, MESSAGE_HEAD_SIZE, MESSAGE_SIZE_MAX, MessageDefect};
use crate::description::HOLD_BYTES_MAX;
use abi::{BlockFlags, BlockMetadata, Entry};
use filter::{Counts, Description};
use runtime::space::node::Node;
use runtime::space::saved_state::{SavedBlock, SavedSession, SavedState};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// The flag that marks a message as a state record. No block may have this flag.
const STATE_RECORD_FLAG: BlockFlags = BlockFlags(1 << 15);
/// Maximum size of a filter's state in bytes, without held blocks.
const STATE_BYTES_MAX: usize = 256 << 20;
/// Minimum size charged for each session in bytes, so that the number of empty sessions is bounded
/// too.
const SESSION_BYTES_MIN: usize = 64;
/// Maximum number of lists of held blocks in a session.
const HELD_LISTS_MAX: u64 = 64;

/// A state record: a message that is not a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum StateRecord<'m> {
    /// Requests the filter's state. The filter then pauses until the next message.
    Save,
    /// Cancels a request for the filter's state; the filter continues.
    Resume,
    /// A session: its key, the number of its held-block lists, and its plain data.
    Session(u64, u64, &'m [u8]),
    /// Announces a block that the preceding session holds. The block is the next message. Contains
    /// the index of the block's list, and its key in the list.
    Held(u32, u32),
    /// The end of the state, with the time in ns of the filter's next timer call, if any.
    End(Option<u64>),
    /// Confirms that the state is restored.
    Restored,
    /// Counters that the filter reports.
    Account(SandboxCounters),
}

/// Counters that a sandboxed filter reports, counted since its start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SandboxCounters {
    /// Number of blocks that the filter received.
    pub(crate) taken: u64,
    /// Number of blocks that the filter emitted.
    pub(crate) given: u64,
    /// Blocks that the filter received or created.
    pub(crate) received_or_made: u64,
    /// Blocks that the filter forwarded, consumed, dropped or holds.
    pub(crate) accounted_for: u64,
    /// Number of blocks that the filter left unanswered, by reason, in the order of the filter's
    /// description.
    pub(super) unanswered: Vec<u64>,
    /// Values of the filter's own counters, in the order of the filter's description.
    pub(super) counters: Vec<u64>,
}

impl SandboxCounters {
    /// Reads the counters of a node that runs a filter.
    pub(super) fn from_node(node: &Node) -> Self {
        let Counts { made, consumed, held, dropped, evicted, no_room, .. } = &node.counts;
        let flow = &node.flow;
        let (taken, given) = (node.total_taken().blocks, flow.routed.blocks);
        let rest = [flow.unselected, flow.failed, flow.beyond_count, *evicted, *no_room];
        let rest: u64 = rest.iter().chain(dropped).map(|amount| amount.blocks).sum();
        Self {
            taken,
            given,
            received_or_made: taken + made.blocks,
            accounted_for: given + consumed.blocks + held.blocks + rest,
            unanswered: node.counts.unanswered.clone(),
            counters: node.counts.counters.clone(),
        }
    }

    /// Converts the report to filter counters. Ignores values for which the description has no
    /// counter.
    pub(super) fn to_counts(&self, description: &Description) -> Counts {
        let mut counts = Counts::new(description.reasons.len(), description.counters.len());
        counts.unanswered.iter_mut().zip(&self.unanswered).for_each(|(to, from)| *to = *from);
        counts.counters.iter_mut().zip(&self.counters).for_each(|(to, from)| *to = *from);
        counts
    }
}

/// Type of the record [`StateRecord::Save`] in a message header; the constants below are the types
/// of the other records. The header stores the type in the field that holds the session of a block.
const SAVE_RECORD_TYPE: u32 = 1;
const RESUME_RECORD_TYPE: u32 = 2;
const SESSION_RECORD_TYPE: u32 = 3;
const HELD_RECORD_TYPE: u32 = 4;
const END_RECORD_TYPE: u32 = 5;
const RESTORED_RECORD_TYPE: u32 = 6;
const ACCOUNT_RECORD_TYPE: u32 = 7;

impl<'m> StateRecord<'m> {
    /// Decodes a record. Returns `None` if the message is a block, even an invalid one.
    pub(super) fn read(message: &'m [u8]) -> Option<Result<Self, MessageDefect>> {
        let (head, body) = message.split_at_checked(MESSAGE_HEAD_SIZE)?;
        let head = Entry::read_from_bytes(head).ok()?;
        if head.context.flags != STATE_RECORD_FLAG {
            return None;
        }
        Some(Self::decode(head.context.session, body).ok_or(MessageDefect::StateRecord))
    }

    fn decode(kind: u32, mut body: &'m [u8]) -> Option<Self> {
        let from = &mut body;
        let read = match kind {
            SAVE_RECORD_TYPE => Self::Save,
            RESUME_RECORD_TYPE => Self::Resume,
            RESTORED_RECORD_TYPE => Self::Restored,
            SESSION_RECORD_TYPE => {
                Self::Session(read_word(from)?, read_word(from)?, std::mem::take(from))
            }
            HELD_RECORD_TYPE => {
                Self::Held(read_word(from)?.try_into().ok()?, read_word(from)?.try_into().ok()?)
            }
            END_RECORD_TYPE => {
                let (wakes, at) = (read_word(from)?, read_word(from)?);
                Self::End((wakes == 1).then_some(at))
            }
            ACCOUNT_RECORD_TYPE => {
                let (taken, given, received_or_made, accounted_for) =
                    (read_word(from)?, read_word(from)?, read_word(from)?, read_word(from)?);
                let (unanswered, counters) = (read_u64_list(from)?, read_u64_list(from)?);
                Self::Account(SandboxCounters {
                    taken,
                    given,
                    received_or_made,
                    accounted_for,
                    unanswered,
                    counters,
                })
            }
            _ => return None,
        };
        from.is_empty().then_some(read)
    }

    /// Encodes the record as a message.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let mut put = |word: u64| body.extend_from_slice(&word.to_le_bytes());
        let kind = match self {
            Self::Save => SAVE_RECORD_TYPE,
            Self::Resume => RESUME_RECORD_TYPE,
            Self::Restored => RESTORED_RECORD_TYPE,
            Self::Session(key, lists, bytes) => {
                put(*key);
                put(*lists);
                body.extend_from_slice(bytes);
                SESSION_RECORD_TYPE
            }
            Self::Held(list, key) => {
                put(u64::from(*list));
                put(u64::from(*key));
                HELD_RECORD_TYPE
            }
            Self::End(wake) => {
                put(u64::from(wake.is_some()));
                put(wake.unwrap_or_default());
                END_RECORD_TYPE
            }
            Self::Account(account) => {
                let SandboxCounters { taken, given, received_or_made, accounted_for, .. } = account;
                let SandboxCounters { unanswered, counters, .. } = account;
                [*taken, *given, *received_or_made, *accounted_for].into_iter().for_each(&mut put);
                for all in [unanswered, counters] {
                    put(all.len() as u64);
                    all.iter().copied().for_each(&mut put);
                }
                ACCOUNT_RECORD_TYPE
            }
        };
        let context =
            BlockMetadata { flags: STATE_RECORD_FLAG, session: kind, ..BlockMetadata::default() };
        let head = Entry { context, ..Entry::default() };
        [head.as_bytes(), &body].concat()
    }
}

fn read_word(from: &mut &[u8]) -> Option<u64> {
    let (word, rest) = from.split_first_chunk::<8>()?;
    *from = rest;
    Some(u64::from_le_bytes(*word))
}

/// Decodes a list of at most 256 integers of 64 bits, preceded by its length. Returns `None` if the
/// list is truncated or longer. The limit suffices, because a filter has at most 255 counters of
/// each kind.
fn read_u64_list(from: &mut &[u8]) -> Option<Vec<u64>> {
    let count = read_word(from)?;
    (count <= 256).then(|| (0..count).map(|_| read_word(from)).collect()).flatten()
}

/// Sends a filter's state as messages, with a final [`StateRecord::End`]. Returns `None` if a
/// message is too long or the receiver has closed its end.
pub(super) fn send_state(
    saved: &SavedState,
    put: &mut dyn FnMut(&[u8]) -> Option<()>,
) -> Option<()> {
    saved.sessions.iter().try_for_each(|session| send_session(session, put))?;
    put(&StateRecord::End(saved.wake).encode())
}

/// Sends the messages for one session. Returns `None` like [`send_state`].
pub(super) fn send_session(
    SavedSession { key, bytes, lists }: &SavedSession,
    put: &mut dyn FnMut(&[u8]) -> Option<()>,
) -> Option<()> {
    let session = StateRecord::Session(*key, lists.len() as u64, bytes).encode();
    (session.len() <= MESSAGE_SIZE_MAX).then(|| put(&session)).flatten()?;
    for (number, list) in (0..).zip(lists) {
        for SavedBlock { key, entry, frame } in list {
            put(&StateRecord::Held(number, *key).encode())?;
            let mut entry = *entry;
            if !entry.pointer.is_hole() {
                entry.marks.captured = u32::try_from(frame.len()).ok()?;
                entry.marks.wire_length = entry.marks.wire_length.max(entry.marks.captured);
            }
            let block = [entry.as_bytes(), frame].concat();
            (block.len() <= MESSAGE_SIZE_MAX).then(|| put(&block)).flatten()?;
        }
    }
    Some(())
}

/// A collector for the state of an untrusted filter, which checks every message.
#[derive(Debug)]
pub(super) struct StateCollector {
    saved: SavedState,
    /// The held block that the next message must contain, as announced by [`StateRecord::Held`]:
    /// the index of its list, and its key in that list. `None` if no block is expected.
    held: Option<(u32, u32)>,
    /// Totals of the messages received so far: bytes of plain data, number of blocks, and bytes in
    /// the views of blocks.
    so_far: (usize, u32, u64),
    held_max: u32,
    origins: u16,
    done: bool,
}

impl StateCollector {
    /// Creates a collector for the state of a filter. The filter may hold `held_max` blocks, and
    /// its path has `origins` sources.
    pub(super) fn new(held_max: u32, origins: u16) -> Self {
        let saved = SavedState::default();
        Self { saved, held: None, so_far: (0, 0, 0), held_max, origins, done: false }
    }

    /// Adds the next message to the collected state. Returns true if the state is then complete.
    /// Fails if the message is invalid.
    pub(super) fn add_message(&mut self, message: &[u8]) -> Result<bool, MessageDefect> {
        if let Some((list, key)) = self.held.take() {
            let (entry, frame) = message::read(message, self.origins)?;
            let lists = self.saved.sessions.last_mut().map(|session| &mut session.lists);
            let list =
                lists.and_then(|lists| lists.get_mut(list as usize)).ok_or(MessageDefect::State)?;
            let (_, blocks, bytes) = &mut self.so_far;
            *blocks += 1;
            *bytes += u64::from(entry.pointer.length());
            if *blocks > self.held_max || *bytes > HOLD_BYTES_MAX {
                return Err(MessageDefect::TooMuch);
            }
            list.push(SavedBlock {
                key,
                entry: message::entry_without_frame(entry),
                frame: frame.to_vec(),
            });
            return Ok(false);
        }
        match StateRecord::read(message).ok_or(MessageDefect::State)?? {
            StateRecord::Session(key, lists, bytes) => {
                let last = self.saved.sessions.last().map(|session| session.key);
                if lists > HELD_LISTS_MAX || last.is_some_and(|last| last >= key) {
                    return Err(MessageDefect::State);
                }
                self.so_far.0 += bytes.len().max(SESSION_BYTES_MIN);
                if self.so_far.0 > STATE_BYTES_MAX {
                    return Err(MessageDefect::TooMuch);
                }
                let lists = (0..lists).map(|_| Vec::new()).collect();
                self.saved.sessions.push(SavedSession { key, bytes: bytes.to_vec(), lists });
            }
            StateRecord::Held(list, key) => self.held = Some((list, key)),
            StateRecord::End(wake) => {
                self.saved.wake = wake;
                self.done = true;
            }
            _ => return Err(MessageDefect::State),
        }
        Ok(self.done)
    }

    /// Returns true if a message may come next in the stream. `is_record` is true for a state
    /// record, which is valid until the state is complete. It is false for a block, which is valid
    /// only after [`StateRecord::Held`].
    pub(super) const fn accepts(&self, is_record: bool) -> bool {
        !self.done && (is_record || self.held.is_some())
    }

    /// Returns true if the entire state of the filter has been received.
    pub(super) const fn is_done(&self) -> bool {
        self.done
    }

    /// Returns the collected state, or `None` if it is not complete.
    pub(super) fn into_state(self) -> Option<SavedState> {
        self.done.then_some(self.saved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{Class, DbufId, Extent, Marks, RichPointer};

    fn example_state() -> SavedState {
        let pointer = RichPointer::new(DbufId::new(9).unwrap(), Extent::new(77, 20), Class(80));
        let entry = Entry::new(pointer, BlockMetadata::default(), Marks::frame(1, 60, 60));
        let block = |key| SavedBlock { key, entry, frame: vec![7; 60] };
        let lists = vec![vec![block(u32::MAX), block(1)], Vec::new()];
        let session = |key| SavedSession { key, bytes: vec![1, 2, 3], lists: lists.clone() };
        SavedState { sessions: vec![session(0), session(u64::MAX)], wake: Some(5) }
    }

    fn encode_messages(saved: &SavedState) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        send_state(saved, &mut |message| {
            all.push(message.to_vec());
            Some(())
        })
        .unwrap();
        all
    }

    fn gather_state(
        messages: &[Vec<u8>],
        held_max: u32,
    ) -> Result<Option<SavedState>, MessageDefect> {
        let mut gathering = StateCollector::new(held_max, 1);
        for message in messages {
            if gathering.add_message(message)? {
                return Ok(gathering.into_state());
            }
        }
        Ok(gathering.into_state())
    }

    #[test]
    fn v18_filter_state_decodes_to_the_sent_state() {
        let saved = example_state();
        let again = gather_state(&encode_messages(&saved), 4).unwrap().unwrap();
        assert_eq!((again.wake, again.sessions.len()), (saved.wake, 2));
        for (before, after) in saved.sessions.iter().zip(&again.sessions) {
            assert_eq!((before.key, &before.bytes), (after.key, &after.bytes));
            let of = |block: &SavedBlock| {
                let (length, view) = (block.entry.pointer.length(), block.entry.marks.view);
                (block.key, length, view, block.frame.clone())
            };
            let of_list = |list: &Vec<SavedBlock>| list.iter().map(of).collect::<Vec<_>>();
            let blocks =
                |session: &SavedSession| session.lists.iter().map(of_list).collect::<Vec<_>>();
            assert_eq!(blocks(before), blocks(after));
        }
        assert_eq!((again.held_amount().blocks, again.held_amount().bytes), (4, 80));
    }

    #[test]
    fn v18_invalid_filter_state_is_refused() {
        let honest = encode_messages(&example_state());
        assert_eq!(
            gather_state(&honest, 3).err(),
            Some(MessageDefect::TooMuch),
            "more than it may hold"
        );
        let all = honest.len();
        assert!(gather_state(&honest[..all - 1], 4).unwrap().is_none(), "not all of it");
        let with = |at: usize, message: Vec<u8>| {
            let mut lying = honest.clone();
            lying[at] = message;
            gather_state(&lying, 4).map(|saved| saved.is_some())
        };
        // Invalid sessions: out of order, with too many lists, truncated.
        let second = honest.iter().rposition(|m| m.len() == MESSAGE_HEAD_SIZE + 19).unwrap();
        assert_eq!(with(second, honest[0].clone()), Err(MessageDefect::State), "a key twice");
        let many = StateRecord::Session(9, HELD_LISTS_MAX + 1, &[]).encode();
        assert_eq!(with(second, many), Err(MessageDefect::State));
        assert_eq!(
            with(second, honest[0][..MESSAGE_HEAD_SIZE + 9].to_vec()),
            Err(MessageDefect::StateRecord)
        );
        // Invalid held blocks: in a missing list, replaced by a record, with a truncated frame.
        assert_eq!(with(1, StateRecord::Held(2, 1).encode()), Err(MessageDefect::State));
        assert!(with(2, honest[1].clone()).is_err());
        assert!(with(2, honest[2][..honest[2].len() - 1].to_vec()).is_err());
        // Invalid messages: a block that was not announced, and a record that is not a response.
        assert_eq!(with(1, honest[2].clone()), Err(MessageDefect::State));
        assert_eq!(with(0, StateRecord::Save.encode()), Err(MessageDefect::State));
        // The state exceeds the size that a filter may have.
        let mut gathering = StateCollector::new(0, 1);
        let long = vec![0; MESSAGE_SIZE_MAX - MESSAGE_HEAD_SIZE - 16];
        let refused = (0..=STATE_BYTES_MAX / long.len() as usize)
            .map(|key| gathering.add_message(&StateRecord::Session(key as u64, 0, &long).encode()))
            .find_map(Result::err);
        assert_eq!(refused, Some(MessageDefect::TooMuch));
    }

    #[test]
    fn v18_every_state_record_decodes_to_the_encoded_one() {
        let account = SandboxCounters {
            taken: 1,
            given: 2,
            received_or_made: 3,
            accounted_for: 4,
            ..SandboxCounters::default()
        };
        let account = SandboxCounters { unanswered: vec![5, 6], counters: vec![7], ..account };
        let all = [
            StateRecord::Save,
            StateRecord::Resume,
            StateRecord::Session(3, 2, b"plain"),
            StateRecord::Held(1, u32::MAX),
            StateRecord::End(Some(9)),
            StateRecord::End(None),
            StateRecord::Restored,
            StateRecord::Account(account),
        ];
        for record in all {
            let bytes = record.encode();
            assert_eq!(StateRecord::read(&bytes), Some(Ok(record.clone())));
            assert!(message::read(&bytes, u16::MAX).is_err(), "it is no block: {record:?}");
            let longer = [bytes.as_slice(), &[0]].concat();
            let open = matches!(record, StateRecord::Session(..));
            assert_eq!(matches!(StateRecord::read(&longer), Some(Ok(_))), open, "{record:?}");
        }
    }
}
