//! Tracking of the messages in a shared ring, to decide which messages a reader may begin, and
//! which of its open messages have lost a fragment.
//!
//! The writer stamps each fragment with the number of the block that begins its message, so a
//! reader knows from the stamp when the message began. Fragments have no byte positions that would
//! reveal a gap. If blocks of the ring were overwritten, any open message may therefore lack a
//! fragment. All open messages are then ended, and the reader continues with messages that begin
//! later.

use super::sessions::{SessionMap, SharedStamp};
use abi::{BlockFlags, BlockMetadata, Class, Entry, Marks, RichPointer};

/// Maximum number of open messages in each of the maps `young` and `old` of [`WriterMessages`].
/// When `young` is full, it becomes `old`, and the previous messages in `old` are forgotten.
const OPEN_MESSAGES_PER_MAP_MAX: usize = 1 << 17;

/// Returns the map key for the session and the direction of a block.
fn direction_key(context: BlockMetadata) -> u64 {
    u64::from(context.session) << 1 | u64::from(context.flags.contains(BlockFlags::BACKWARD))
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
    /// Returns the number, plus 1, of the block that begins the message of this block. `number` is
    /// the number of this block; the result is `number` plus 1 if the block belongs to no open
    /// message.
    pub(super) fn message_start_number(&mut self, entry: &Entry, number: u64) -> u64 {
        let (key, flags) = (direction_key(entry.context), entry.context.flags);
        let begins = flags.contains(BlockFlags::FIRST);
        let ends = flags.contains(BlockFlags::LAST) || flags.contains(BlockFlags::SESSION_END);
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

/// A reader's view of the messages in a ring: the open messages, and the block from which the
/// reader may begin further messages.
#[derive(Debug, Default)]
pub(super) struct ReaderMessages {
    /// The class of each open message, that is, of each message that has begun but not ended.
    open: SessionMap<Class>,
    /// Number of the first block that the reader could read when it joined the ring.
    joined: u64,
    /// Number of a block. The reader may begin only messages that begin at or after this block,
    /// which is `joined` or the block after the last overwritten block.
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
    BegunBeforeJoin,
    /// A fragment of the message may have been overwritten.
    FragmentLost,
}

impl ReaderMessages {
    /// Records that the reader joins the ring, and that `number` is the first block it can read.
    pub(super) fn record_join(&mut self, number: u64) {
        (self.joined, self.from) = (number, number);
    }

    /// Decides whether the reader may process a fragment of a message in the shared ring.
    pub(super) fn admit(&mut self, stamp: SharedStamp, entry: &Entry) -> FragmentAdmission {
        let flags = entry.context.flags;
        let begins = flags.contains(BlockFlags::FIRST);
        if !begins && stamp.position <= self.from {
            let is_known = stamp.position > self.joined;
            return if is_known {
                FragmentAdmission::FragmentLost
            } else {
                FragmentAdmission::BegunBeforeJoin
            };
        }
        self.begun += u64::from(begins);
        self.time = entry.context.time;
        let ends = flags.contains(BlockFlags::LAST) || flags.contains(BlockFlags::SESSION_END);
        if ends && !self.open.is_empty() {
            self.open.remove(&direction_key(entry.context));
        } else if begins && !ends {
            self.open.insert(direction_key(entry.context), entry.pointer.class);
        }
        FragmentAdmission::Whole
    }

    /// Ends all open messages. Appends a hole of length 0 for each message to `to`, in ascending
    /// order of sessions. From then on, the reader admits only messages that begin at or after
    /// block number `from`. Returns the number of ended messages.
    pub(super) fn end_open_messages(&mut self, from: u64, to: &mut Vec<Entry>) -> u64 {
        self.from = from;
        let mut open: Vec<_> = self.open.drain().collect();
        open.sort_unstable_by_key(|(key, _)| *key);
        to.extend(open.iter().map(|(key, class)| {
            let back = if key & 1 == 1 { BlockFlags::BACKWARD } else { BlockFlags::NONE };
            let flags = BlockFlags::SESSION_END_MASK.with(back);
            let session = u32::try_from(key >> 1).unwrap_or_default();
            let context = BlockMetadata { time: self.time, session, origin: 0, flags };
            Entry::new(RichPointer::hole(0).with_class(*class), context, Marks::for_plain_block(0))
        }));
        open.len() as u64
    }
}
