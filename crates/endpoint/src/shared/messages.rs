//! Tracking of the messages in a shared ring, to decide which messages a reader may begin, and
//! which of its open messages have lost a fragment.
//!
//! The writer stamps each fragment with the number of the block that begins its message, so a
//! reader needs no table to find out. Unlike blocks of streams, fragments carry no positions. If
//! blocks were overwritten, any open message may therefore lack a fragment. All open messages are
//! then ended, and the reader continues with messages that begin later.

use super::sessions::{SessionMap, SharedStamp};
use abi::{BlockFlags, BlockMetadata, Class, Entry, Marks, RichPointer};

/// Maximum number of open messages in each of the two maps of [`WriterMessages`]. When `young` is
/// full, `young` replaces `old`, and the messages in `old` are forgotten.
const OPEN_MESSAGES_PER_MAP_MAX: usize = 1 << 17;

/// Returns the key for one direction of a session.
fn direction_key(context: BlockMetadata) -> u64 {
    u64::from(context.session) << 1 | u64::from(context.flags.has(BlockFlags::BACKWARD))
}

/// The writer's table of open messages, with the number of the block that begins each message. Only
/// messages of several fragments are recorded. If the table is full, the messages that began first
/// are forgotten.
#[derive(Debug, Default)]
pub(super) struct WriterMessages {
    young: SessionMap<u64>,
    old: SessionMap<u64>,
}

impl WriterMessages {
    /// Returns the number of the block that begins this block's message, plus 1. If the block
    /// belongs to no open message, returns the block's own number, `number`, plus 1.
    pub(super) fn message_start_number(&mut self, entry: &Entry, number: u64) -> u64 {
        let (key, flags) = (direction_key(entry.context), entry.context.flags);
        let begins = flags.has(BlockFlags::FIRST);
        let ends = flags.has(BlockFlags::LAST) || flags.has(BlockFlags::END);
        if begins && !ends {
            if self.young.len() >= OPEN_MESSAGES_PER_MAP_MAX {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(key, number + 1);
            return number + 1;
        }
        let known = match ends {
            true => self.young.remove(&key),
            false => self.young.get(&key).copied(),
        };
        let known = known.or_else(|| match self.old.is_empty() {
            true => None,
            false if ends => self.old.remove(&key),
            false => self.old.get(&key).copied(),
        });
        known.filter(|_| !begins).unwrap_or(number + 1)
    }
}

/// The messages that are open for a reader, and the position from which it may begin further
/// messages.
#[derive(Debug, Default)]
pub(super) struct ReaderMessages {
    /// The classes of open messages, which have begun but not ended.
    open: SessionMap<Class>,
    /// Number of the block at which the reader joined.
    joined: u64,
    /// Number of the first block whose message the reader may begin: `joined`, or the block after
    /// the last overwritten block.
    from: u64,
    /// Timestamp of the latest fragment that was admitted.
    time: u64,
    /// Number of messages whose first fragment was admitted.
    pub(super) begun: u64,
}

/// Decision of [`ReaderMessages::admit`] about a fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FragmentAdmission {
    /// The message began after the reader joined, and no fragment of it was overwritten.
    Whole,
    /// The message began before the reader joined.
    Unbegun,
    /// A fragment of the message may have been overwritten.
    Torn,
}

impl ReaderMessages {
    /// Records the number of the first block that the reader can see in a ring.
    pub(super) fn join(&mut self, number: u64) {
        (self.joined, self.from) = (number, number);
    }

    /// Decides whether the reader may process a fragment.
    pub(super) fn admit(&mut self, stamp: SharedStamp, entry: &Entry) -> FragmentAdmission {
        let flags = entry.context.flags;
        let begins = flags.has(BlockFlags::FIRST);
        if !begins && stamp.position <= self.from {
            let is_known = stamp.position > self.joined;
            return if is_known { FragmentAdmission::Torn } else { FragmentAdmission::Unbegun };
        }
        self.begun += u64::from(begins);
        self.time = entry.context.time;
        let ends = flags.has(BlockFlags::LAST) || flags.has(BlockFlags::END);
        if ends && !self.open.is_empty() {
            self.open.remove(&direction_key(entry.context));
        } else if begins && !ends {
            self.open.insert(direction_key(entry.context), entry.pointer.class);
        }
        FragmentAdmission::Whole
    }

    /// Ends all open messages: adds a hole of length 0 for each to `to`, in ascending order of
    /// sessions. From then on, admits only messages that begin at or after block number `from`.
    /// Returns the number of ended messages.
    pub(super) fn end_all(&mut self, from: u64, to: &mut Vec<Entry>) -> u64 {
        self.from = from;
        let mut open: Vec<_> = self.open.drain().collect();
        open.sort_unstable_by_key(|(key, _)| *key);
        to.extend(open.iter().map(|(key, class)| {
            let back = if key & 1 == 1 { BlockFlags::BACKWARD } else { BlockFlags::NONE };
            let flags = BlockFlags::END_MASK.with(back);
            let session = u32::try_from(key >> 1).unwrap_or_default();
            let context = BlockMetadata { time: self.time, session, origin: 0, flags };
            Entry::new(RichPointer::hole(0).with_class(*class), context, Marks::bare(0))
        }));
        open.len() as u64
    }
}
