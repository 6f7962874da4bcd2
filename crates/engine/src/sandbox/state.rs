//! Filter state on its way between a path and its process: messages of the same streams that carry
//! blocks.
//!
//! ```text
//! path ─► blocks … SAVE ─────────────────────►     path ─► SESSION (HELD block)* … KNOWN ─►
//! path ◄─ blocks … SESSION (HELD block)* … KNOWN   path ◄─ TAUGHT
//! ```
//!
//! So the place between two blocks at which it is saved is the place of a message in the stream:
//! the process has done with everything before it, and what it gave for that came before the
//! answer.
//! No further socket and no further call is needed, and whoever does not get on with messages is
//! ended as one that does not get on with blocks. A message that is no block says so by a flag that
//! no block may have. docs/book/decisions/0041-untrusted-state.md
//!
//! What comes from a process is an allegation: it is bounded, and checked, before anything is made
//! of it ([`Gathering`]).

use super::message::{self, HEAD, LONGEST, Lie};
use crate::described::HOLD_BYTES;
use abi::{BlockMetadata, Entry, Flags};
use filter::{Counts, Description};
use runtime::space::node::Node;
use runtime::space::saved::{Saved, SavedBlock, SavedSession};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Flag of a message that is no block; no block may have it.
const RECORD: Flags = Flags(1 << 15);
/// The most bytes of plain data that a filter may have kept.
const STATE_MAX: usize = 256 << 20;
/// Least size charged for a session, in bytes, so that empty ones are bounded too.
const SESSION_MIN: usize = 64;
/// Maximum number of lists of held blocks that a session may have.
const LISTS_MAX: u64 = 64;

/// A message that is no block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Record<'m> {
    /// Say what you know, and then do nothing until something comes.
    Save,
    /// Cancels the request: go on.
    GoOn,
    /// One session: its key, how many lists of blocks it has, its plain data.
    Session(u64, u64, &'m [u8]),
    /// The next message is a block that the last session holds: in which list, by which key.
    Held(u32, u32),
    /// End of the state; holds the time of the filter's next timer call.
    Known(Option<u64>),
    /// The filter knows what it was given.
    Taught,
    /// Counters of the filter.
    Account(Account),
}

/// Counters that a sandboxed filter reports, since its start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Account {
    /// Blocks that came to it, and that left it.
    pub(crate) taken: u64,
    pub(crate) given: u64,
    /// Blocks that came to it or were made by it, and what it knows of where they are.
    pub(crate) came: u64,
    pub(crate) became: u64,
    /// Counts by the description's reasons and counters.
    pub(super) unanswered: Vec<u64>,
    pub(super) counters: Vec<u64>,
}

impl Account {
    /// Reads the counters of a node that runs a filter.
    pub(super) fn of(node: &Node) -> Self {
        let Counts { made, consumed, held, dropped, evicted, no_room, .. } = &node.counts;
        let flow = &node.flow;
        let (taken, given) = (node.taken_in_all().blocks, flow.routed.blocks);
        let rest = [flow.unselected, flow.failed, flow.beyond_count, *evicted, *no_room];
        let rest: u64 = rest.iter().chain(dropped).map(|amount| amount.blocks).sum();
        Self {
            taken,
            given,
            came: taken + made.blocks,
            became: given + consumed.blocks + held.blocks + rest,
            unanswered: node.counts.unanswered.clone(),
            counters: node.counts.counters.clone(),
        }
    }

    /// The same in the form in which filters count, as far as the description has it.
    pub(super) fn counts(&self, description: &Description) -> Counts {
        let mut counts = Counts::new(description.reasons.len(), description.counters.len());
        counts.unanswered.iter_mut().zip(&self.unanswered).for_each(|(to, from)| *to = *from);
        counts.counters.iter_mut().zip(&self.counters).for_each(|(to, from)| *to = *from);
        counts
    }
}

/// Record type, in a header word that has another meaning in a block.
const SAVE: u32 = 1;
const GO_ON: u32 = 2;
const SESSION: u32 = 3;
const HELD: u32 = 4;
const KNOWN: u32 = 5;
const TAUGHT: u32 = 6;
const ACCOUNT: u32 = 7;

impl<'m> Record<'m> {
    /// The record that a message is; none if it is a block, or is to be one.
    pub(super) fn read(message: &'m [u8]) -> Option<Result<Self, Lie>> {
        let (head, body) = message.split_at_checked(HEAD)?;
        let head = Entry::read_from_bytes(head).ok()?;
        if head.context.flags != RECORD {
            return None;
        }
        Some(Self::of(head.context.session, body).ok_or(Lie::Record))
    }

    fn of(kind: u32, mut body: &'m [u8]) -> Option<Self> {
        let from = &mut body;
        let read = match kind {
            SAVE => Self::Save,
            GO_ON => Self::GoOn,
            TAUGHT => Self::Taught,
            SESSION => Self::Session(word(from)?, word(from)?, std::mem::take(from)),
            HELD => Self::Held(word(from)?.try_into().ok()?, word(from)?.try_into().ok()?),
            KNOWN => {
                let (wakes, at) = (word(from)?, word(from)?);
                Self::Known((wakes == 1).then_some(at))
            }
            ACCOUNT => {
                let (taken, given, came, became) =
                    (word(from)?, word(from)?, word(from)?, word(from)?);
                let (unanswered, counters) = (words(from)?, words(from)?);
                Self::Account(Account { taken, given, came, became, unanswered, counters })
            }
            _ => return None,
        };
        from.is_empty().then_some(read)
    }

    /// The message that says this.
    pub(super) fn written(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let mut put = |word: u64| body.extend_from_slice(&word.to_le_bytes());
        let kind = match self {
            Self::Save => SAVE,
            Self::GoOn => GO_ON,
            Self::Taught => TAUGHT,
            Self::Session(key, lists, bytes) => {
                put(*key);
                put(*lists);
                body.extend_from_slice(bytes);
                SESSION
            }
            Self::Held(list, key) => {
                put(u64::from(*list));
                put(u64::from(*key));
                HELD
            }
            Self::Known(wake) => {
                put(u64::from(wake.is_some()));
                put(wake.unwrap_or_default());
                KNOWN
            }
            Self::Account(account) => {
                let Account { taken, given, came, became, unanswered, counters } = account;
                [*taken, *given, *came, *became].into_iter().for_each(&mut put);
                for all in [unanswered, counters] {
                    put(all.len() as u64);
                    all.iter().copied().for_each(&mut put);
                }
                ACCOUNT
            }
        };
        let context = BlockMetadata { flags: RECORD, session: kind, ..BlockMetadata::default() };
        let head = Entry { context, ..Entry::default() };
        [head.as_bytes(), &body].concat()
    }
}

fn word(from: &mut &[u8]) -> Option<u64> {
    let (word, rest) = from.split_first_chunk::<8>()?;
    *from = rest;
    Some(u64::from_le_bytes(*word))
}

/// As many words as the first says. A filter has at most 255 of a kind.
fn words(from: &mut &[u8]) -> Option<Vec<u64>> {
    let count = word(from)?;
    (count <= 256).then(|| (0..count).map(|_| word(from)).collect()).flatten()
}

/// Says all of this, message by message, the last of which says that it was all. `None`: a message
/// would be longer than a ring takes, or whoever gets them does not take them.
pub(super) fn tell(saved: &Saved, put: &mut dyn FnMut(&[u8]) -> Option<()>) -> Option<()> {
    saved.sessions.iter().try_for_each(|session| tell_session(session, put))?;
    put(&Record::Known(saved.wake).written())
}

/// Says what one session is.
pub(super) fn tell_session(
    SavedSession { key, bytes, lists }: &SavedSession,
    put: &mut dyn FnMut(&[u8]) -> Option<()>,
) -> Option<()> {
    let session = Record::Session(*key, lists.len() as u64, bytes).written();
    (session.len() <= LONGEST).then(|| put(&session)).flatten()?;
    for (number, list) in (0..).zip(lists) {
        for SavedBlock { key, entry, frame } in list {
            put(&Record::Held(number, *key).written())?;
            let mut entry = *entry;
            if !entry.pointer.is_hole() {
                entry.marks.captured = u32::try_from(frame.len()).ok()?;
                entry.marks.wire_length = entry.marks.wire_length.max(entry.marks.captured);
            }
            let block = [entry.as_bytes(), frame].concat();
            (block.len() <= LONGEST).then(|| put(&block)).flatten()?;
        }
    }
    Some(())
}

/// Collects and checks alleged filter state, message by message.
#[derive(Debug)]
pub(super) struct Gathering {
    saved: Saved,
    /// In which list the next block belongs, by which key.
    held: Option<(u32, u32)>,
    /// Bytes of plain data, blocks, and bytes in view so far.
    so_far: (usize, u32, u64),
    held_max: u32,
    origins: u16,
    done: bool,
}

impl Gathering {
    /// Starts collecting for a filter that may hold `held_max` blocks, on a path with `origins`
    /// sources.
    pub(super) fn new(held_max: u32, origins: u16) -> Self {
        let saved = Saved::default();
        Self { saved, held: None, so_far: (0, 0, 0), held_max, origins, done: false }
    }

    /// Takes the next message, whatever it is; answers whether it was the last one.
    pub(super) fn take(&mut self, message: &[u8]) -> Result<bool, Lie> {
        if let Some((list, key)) = self.held.take() {
            let (entry, frame) = message::read(message, self.origins)?;
            let lists = self.saved.sessions.last_mut().map(|session| &mut session.lists);
            let list = lists.and_then(|lists| lists.get_mut(list as usize)).ok_or(Lie::State)?;
            let (_, blocks, bytes) = &mut self.so_far;
            *blocks += 1;
            *bytes += u64::from(entry.pointer.length());
            if *blocks > self.held_max || *bytes > HOLD_BYTES {
                return Err(Lie::TooMuch);
            }
            list.push(SavedBlock { key, entry: message::apart(entry), frame: frame.to_vec() });
            return Ok(false);
        }
        match Record::read(message).ok_or(Lie::State)?? {
            Record::Session(key, lists, bytes) => {
                let last = self.saved.sessions.last().map(|session| session.key);
                if lists > LISTS_MAX || last.is_some_and(|last| last >= key) {
                    return Err(Lie::State);
                }
                self.so_far.0 += bytes.len().max(SESSION_MIN);
                if self.so_far.0 > STATE_MAX {
                    return Err(Lie::TooMuch);
                }
                let lists = (0..lists).map(|_| Vec::new()).collect();
                self.saved.sessions.push(SavedSession { key, bytes: bytes.to_vec(), lists });
            }
            Record::Held(list, key) => self.held = Some((list, key)),
            Record::Known(wake) => {
                self.saved.wake = wake;
                self.done = true;
            }
            _ => return Err(Lie::State),
        }
        Ok(self.done)
    }

    /// Returns true if a message is valid here: a record until the end, and a block where one is
    /// held.
    pub(super) const fn takes(&self, is_record: bool) -> bool {
        !self.done && (is_record || self.held.is_some())
    }

    /// Returns true if the state is complete.
    pub(super) const fn is_done(&self) -> bool {
        self.done
    }

    /// Returns the state, if complete.
    pub(super) fn done(self) -> Option<Saved> {
        self.done.then_some(self.saved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{Class, DbufId, Extent, Marks, RichPointer};

    fn saved() -> Saved {
        let pointer = RichPointer::new(DbufId::new(9).unwrap(), Extent::new(77, 20), Class(80));
        let entry = Entry::new(pointer, BlockMetadata::default(), Marks::frame(1, 60, 60));
        let block = |key| SavedBlock { key, entry, frame: vec![7; 60] };
        let lists = vec![vec![block(u32::MAX), block(1)], Vec::new()];
        let session = |key| SavedSession { key, bytes: vec![1, 2, 3], lists: lists.clone() };
        Saved { sessions: vec![session(0), session(u64::MAX)], wake: Some(5) }
    }

    fn messages(saved: &Saved) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        tell(saved, &mut |message| {
            all.push(message.to_vec());
            Some(())
        })
        .unwrap();
        all
    }

    fn gathered(messages: &[Vec<u8>], held_max: u32) -> Result<Option<Saved>, Lie> {
        let mut gathering = Gathering::new(held_max, 1);
        for message in messages {
            if gathering.take(message)? {
                return Ok(gathering.done());
            }
        }
        Ok(gathering.done())
    }

    #[test]
    fn v18_what_a_filter_knows_comes_back_as_it_was_said() {
        let saved = saved();
        let again = gathered(&messages(&saved), 4).unwrap().unwrap();
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
        assert_eq!((again.held().blocks, again.held().bytes), (4, 80));
    }

    #[test]
    fn v18_no_lie_about_what_a_filter_knows_is_believed() {
        let honest = messages(&saved());
        assert_eq!(gathered(&honest, 3).err(), Some(Lie::TooMuch), "more than it may hold");
        let all = honest.len();
        assert!(gathered(&honest[..all - 1], 4).unwrap().is_none(), "not all of it");
        let with = |at: usize, message: Vec<u8>| {
            let mut lying = honest.clone();
            lying[at] = message;
            gathered(&lying, 4).map(|saved| saved.is_some())
        };
        // A session: the first, again behind itself, with too many lists, cut short.
        let second = honest.iter().rposition(|m| m.len() == HEAD + 19).unwrap();
        assert_eq!(with(second, honest[0].clone()), Err(Lie::State), "a key twice");
        let many = Record::Session(9, LISTS_MAX + 1, &[]).written();
        assert_eq!(with(second, many), Err(Lie::State));
        assert_eq!(with(second, honest[0][..HEAD + 9].to_vec()), Err(Lie::Record));
        // A block: in a list that there is not, a record in its place, a lie about its frame.
        assert_eq!(with(1, Record::Held(2, 1).written()), Err(Lie::State));
        assert!(with(2, honest[1].clone()).is_err());
        assert!(with(2, honest[2][..honest[2].len() - 1].to_vec()).is_err());
        // A block where none is held, and what no answer is.
        assert_eq!(with(1, honest[2].clone()), Err(Lie::State));
        assert_eq!(with(0, Record::Save.written()), Err(Lie::State));
        // More than anybody keeps.
        let mut gathering = Gathering::new(0, 1);
        let long = vec![0; LONGEST - HEAD - 16];
        let refused = (0..=STATE_MAX / long.len() as usize)
            .map(|key| gathering.take(&Record::Session(key as u64, 0, &long).written()))
            .find_map(Result::err);
        assert_eq!(refused, Some(Lie::TooMuch));
    }

    #[test]
    fn v18_every_record_comes_back_as_it_was_written() {
        let account = Account { taken: 1, given: 2, came: 3, became: 4, ..Account::default() };
        let account = Account { unanswered: vec![5, 6], counters: vec![7], ..account };
        let all = [
            Record::Save,
            Record::GoOn,
            Record::Session(3, 2, b"plain"),
            Record::Held(1, u32::MAX),
            Record::Known(Some(9)),
            Record::Known(None),
            Record::Taught,
            Record::Account(account),
        ];
        for record in all {
            let bytes = record.written();
            assert_eq!(Record::read(&bytes), Some(Ok(record.clone())));
            assert!(message::read(&bytes, u16::MAX).is_err(), "it is no block: {record:?}");
            let longer = [bytes.as_slice(), &[0]].concat();
            let open = matches!(record, Record::Session(..));
            assert_eq!(matches!(Record::read(&longer), Some(Ok(_))), open, "{record:?}");
        }
    }
}
