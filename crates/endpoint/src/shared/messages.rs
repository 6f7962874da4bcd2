//! The messages in a shared ring: the messages that a reader may begin with, and those of which it
//! has lost a fragment.
//!
//! A message begins with a block that has [`Flags::FIRST`], so neither side keeps a table of
//! sessions to admit one. Fragments carry no position: where blocks were overwritten, each open
//! message may lack one, so all are ended, and the reader goes on with messages that begin later.

use abi::{BlockMetadata, Class, Entry, Flags, Marks, RichPointer};
use std::collections::HashMap;

/// Number of directions in a generation. Two generations are known at once.
const GENERATION: usize = 1 << 17;

/// A direction of a session.
type SessionDirection = (u32, bool);

/// Class and time of the last fragment of an open message; `None` between two messages.
type Open = Option<(Class, u64)>;

/// The directions of sessions in which a reader has seen the beginning of a message. Those that are
/// silent for longest are forgotten, and begin again with a message.
#[derive(Debug, Default)]
pub(super) struct ReadMessages {
    young: HashMap<SessionDirection, Open>,
    old: HashMap<SessionDirection, Open>,
    /// Number of messages that have begun.
    pub(super) begun: u64,
}

impl ReadMessages {
    /// Returns true if the block begins a message, or follows one that this reader has seen.
    pub(super) fn admits(&mut self, entry: &Entry) -> bool {
        let BlockMetadata { flags, session, time, .. } = entry.context;
        let way = (session, flags.has(Flags::BACKWARD));
        let begins = flags.has(Flags::FIRST);
        let known = self.old.remove(&way).or_else(|| self.young.get(&way).copied());
        if !begins && known.is_none() {
            return false;
        }
        self.begun += u64::from(begins);
        let ends = flags.has(Flags::LAST) || flags.has(Flags::END);
        let is_open = !ends && (begins || known.flatten().is_some());
        let open = is_open.then_some((entry.pointer.class, time));
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(way, open);
        true
    }

    /// Ends all open messages, in ascending order of their sessions, by an empty hole each, and
    /// forgets all directions. Returns the number of messages.
    pub(super) fn end_all(&mut self, to: &mut Vec<Entry>) -> u64 {
        let known = self.old.drain().chain(self.young.drain());
        let mut open: Vec<_> = known.filter_map(|(way, open)| Some((way, open?))).collect();
        open.sort_unstable_by_key(|(way, _)| *way);
        to.extend(open.iter().map(|((session, is_backward), (class, time))| {
            let back = if *is_backward { Flags::BACKWARD } else { Flags::NONE };
            let flags = Flags::END_MASK.with(back);
            let context = BlockMetadata { time: *time, session: *session, origin: 0, flags };
            Entry::new(RichPointer::hole(0).with_class(*class), context, Marks::bare(0))
        }));
        open.len() as u64
    }
}
