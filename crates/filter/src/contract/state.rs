//! State that can move: sessions as plain data in a table that the contract owns (CONTRACT 15).
//!
//! A filter keeps `Sessions<S>` where `S` is plain data. Saving, moving and restoring are written
//! here once for all filters; a private state is one session with key 0. The sources swap a pointer
//! to the session before each call [Th §5.3.3]; a batch holds many sessions, so here the filter
//! asks by key.

use super::arguments::Mistake;
use super::holds::{HeldList, Holds};
use super::shown::{Field, Row, Whose};
use super::turn::Pin;
use abi::Entry;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The state of one session: plain data, so that its bytes mean the same in another process. One
/// that every block asks for is best aligned to lines of the cache.
pub trait Session: FromBytes + IntoBytes + Immutable + Default + Send + 'static {
    /// The lists of held blocks in it, in a fixed order.
    fn lists(&mut self) -> Vec<&mut HeldList> {
        Vec::new()
    }

    /// Fields that may be published (`state=NAME`): none, unless the filter lists them.
    const FIELDS: &'static [Field<Self>] = &[];

    /// The number of the session, as blocks bear it, where that is not its key.
    fn number(&self, key: u64) -> u64 {
        key
    }
}

/// The key of the one session that holds a filter's private state.
pub const PRIVATE: u64 = 0;

/// All sessions of one filter.
#[derive(Debug)]
pub struct Sessions<S> {
    index: HashMap<u64, u32, BuildHasherDefault<Mix>>,
    states: Vec<S>,
    /// Beside each state its key, and marks: [`MET`] and [`CHANGED`]; these do not move with the
    /// session. Apart from the states, so that those begin where lines of the cache begin.
    keys: Vec<u64>,
    marks: Vec<u8>,
    free: Vec<u32>,
    /// Positions of recently used sessions, by the low bits of their keys.
    near: [NearKey; NEAR],
    /// Position of the last look of [`Sessions::evict`].
    hand: usize,
}

impl<S: Session> Default for Sessions<S> {
    fn default() -> Self {
        Self {
            index: HashMap::default(),
            states: Vec::new(),
            keys: Vec::new(),
            marks: Vec::new(),
            free: Vec::new(),
            near: std::array::from_fn(|place| NearKey { key: !(place as u64), number: 0 }),
            hand: 0,
        }
    }
}

/// A session's key and number. At a place where none is, a key with other low bits.
#[derive(Clone, Copy, Debug)]
struct NearKey {
    key: u64,
    number: u32,
}

/// It was asked for again since it was made, or since [`Sessions::evict`] looked.
const MET: u8 = 1;
/// It was asked for, made or ended since it was shown ([`State::show`]). Set together with the
/// other one, so that being shown costs nothing where the sessions are used.
const CHANGED: u8 = 1 << 1;

/// As many as batches of different sessions mostly fit in.
const NEAR: usize = 256;
/// Bytes of a line of the cache.
const LINE: usize = 64;

impl<S: Session> Sessions<S> {
    /// The session with this key, made if it is new.
    pub fn of(&mut self, key: u64) -> &mut S {
        let number = match self.number_of(key) {
            Some(number) => {
                self.marks[number as usize] = MET | CHANGED;
                number
            }
            None => self.make(key),
        };
        &mut self.states[number as usize]
    }

    /// The session with this key, if there is one.
    #[inline]
    pub fn find(&mut self, key: u64) -> Option<&mut S> {
        let number = self.number_of(key)? as usize;
        self.marks[number] = MET | CHANGED;
        self.states.get_mut(number)
    }

    /// The session with this key, if there is one, only to look at.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<&S> {
        let number = *self.index.get(&key)?;
        self.states.get(number as usize)
    }

    /// Brings the sessions with these keys into the cache, for a filter that will ask for one after
    /// the other: among many sessions nearly every one is in memory, and the processor waits for
    /// several at once only where nothing else stands between.
    #[inline]
    pub fn look_ahead(&mut self, keys: impl IntoIterator<Item = u64>) {
        let mut seen = 0;
        for key in keys {
            let number = self.number_of(key);
            let state = number.and_then(|number| self.states.get(number as usize));
            let bytes = state.map_or(&[][..], S::as_bytes);
            seen ^= bytes.iter().step_by(LINE).fold(0, |seen, byte| seen ^ byte);
        }
        std::hint::black_box(seen);
    }

    /// Ends a session and gives its state back.
    pub fn end(&mut self, key: u64) -> Option<S> {
        let number = self.index.remove(&key)?;
        let near = self.near_mut(key);
        if near.key == key {
            near.key = !key;
        }
        self.marks[number as usize] = CHANGED;
        self.free.push(number);
        self.states.get_mut(number as usize).map(std::mem::take)
    }

    /// Ends a session that nobody asked for again since the last time round ("second chance"):
    /// nearly the one that has waited longest, and cheap, since looking passes over a session only
    /// if it was asked for. Sessions of one block go before busy ones. The private one stays.
    pub fn evict(&mut self) -> Option<(u64, S)> {
        for _ in 0..2 * self.states.len() {
            self.hand = (self.hand + 1) % self.states.len();
            let key = self.keys[self.hand];
            let here = self.index.get(&key).is_some_and(|number| *number as usize == self.hand);
            let was_met = self.marks[self.hand] & MET != 0;
            if here && key != PRIVATE {
                self.marks[self.hand] &= !MET;
            }
            if here && key != PRIVATE && !was_met {
                return self.end(key).map(|session| (key, session));
            }
        }
        None
    }

    /// The number of sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns true if there is no session.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The keys of all sessions, sorted.
    #[must_use]
    pub fn keys(&self) -> Vec<u64> {
        let mut keys: Vec<u64> = self.index.keys().copied().collect();
        keys.sort_unstable();
        keys
    }

    #[inline]
    fn number_of(&mut self, key: u64) -> Option<u32> {
        let near = self.near_mut(key);
        if near.key == key {
            return Some(near.number);
        }
        let number = *self.index.get(&key)?;
        *self.near_mut(key) = NearKey { key, number };
        Some(number)
    }

    #[inline]
    fn near_mut(&mut self, key: u64) -> &mut NearKey {
        &mut self.near[key as usize % NEAR]
    }

    fn make(&mut self, key: u64) -> u32 {
        let number = match self.free.pop() {
            Some(number) => {
                self.states[number as usize] = S::default();
                self.keys[number as usize] = key;
                self.marks[number as usize] = CHANGED;
                number
            }
            None => {
                self.states.push(S::default());
                self.keys.push(key);
                self.marks.push(CHANGED);
                u32::try_from(self.states.len() - 1).expect("fewer than 2^32 sessions")
            }
        };
        self.index.insert(key, number);
        *self.near_mut(key) = NearKey { key, number };
        number
    }
}

/// Spreads keys over the index: one multiplication whose halves are folded, so that every bit of
/// the key reaches the bits that choose a bucket and those that tell entries apart.
///
/// That suffices, and what makes hash tables safe against hostile keys (SipHash with a random key)
/// would be paid twice: keys are hashes of flows that were made with a random seed, so that nobody
/// outside can choose them, or numbers that a filter gave itself.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0.rotate_left(8) ^ u64::from(*byte)));
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a product")]
    fn write_u64(&mut self, key: u64) {
        let product = u128::from(key ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

/// A session on its way: bytes, and the blocks that it holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// The session's key.
    pub key: u64,
    /// Its plain data; the lists in it are rebuilt from `held`.
    pub bytes: Vec<u8>,
    /// The blocks that it holds, list by list, in order.
    pub held: Vec<Vec<(u32, Entry, Pin)>>,
}

/// Operations of the space on a filter's state. Implemented once, for [`Sessions`].
pub trait State {
    /// The keys of all sessions, sorted.
    fn sessions(&self) -> Vec<u64>;
    /// Takes a session out, with what it holds.
    fn take(&mut self, key: u64, holds: &mut Holds) -> Option<Moved>;
    /// Puts a session in that was taken out of another instance of the same filter.
    fn put(&mut self, moved: Moved, holds: &mut Holds) -> Result<(), Mistake>;
    /// The number of a session, as blocks bear it.
    fn number(&self, key: u64) -> u64;
    /// Tells the sessions that may have changed since they were shown last, all of them if
    /// `again`: the place of each, which it keeps as long as it lives, and its numbers in the order
    /// of the columns ([`Description::shown`](super::Description::shown)). The private one is
    /// always at place 0.
    fn show(&mut self, whose: Whose, again: bool, to: &mut Row<'_>);
}

impl<S: Session> State for Sessions<S> {
    fn sessions(&self) -> Vec<u64> {
        self.keys()
    }

    fn take(&mut self, key: u64, holds: &mut Holds) -> Option<Moved> {
        let mut session = self.end(key)?;
        let held = session
            .lists()
            .into_iter()
            .map(|list| std::iter::from_fn(|| holds.pop(list)).collect())
            .collect();
        Some(Moved { key, bytes: session.as_bytes().to_vec(), held })
    }

    fn put(&mut self, moved: Moved, holds: &mut Holds) -> Result<(), Mistake> {
        let mut session = S::read_from_bytes(&moved.bytes).map_err(|_| Mistake {
            parameter: None,
            which: 0,
            at: None,
            what: format!(
                "the saved state has {} bytes, the filter's has {}",
                moved.bytes.len(),
                size_of::<S>()
            ),
            hint: Some("it was saved by another version of the filter".to_owned()),
        })?;
        let lists = session.lists();
        // What its lists were elsewhere means nothing here, whether anything came for them or not.
        let (here, came) = (lists.len(), moved.held.len());
        if came > here {
            return Err(Mistake {
                parameter: None,
                which: 0,
                at: None,
                what: format!("the saved state holds {came} lists of blocks, the filter's {here}"),
                hint: Some("it was saved by another version of the filter".to_owned()),
            });
        }
        let none = std::iter::repeat_with(Vec::new);
        for (list, blocks) in lists.into_iter().zip(moved.held.into_iter().chain(none)) {
            *list = HeldList::default();
            for (key, entry, pin) in blocks {
                holds.insert(list, key, entry, pin);
            }
        }
        *self.of(moved.key) = session;
        Ok(())
    }

    fn number(&self, key: u64) -> u64 {
        self.get(key).map_or(key, |session| session.number(key))
    }

    fn show(&mut self, whose: Whose, again: bool, to: &mut Row<'_>) {
        let width: usize = S::FIELDS.iter().map(|field| field.column.times).sum();
        let mut row = Vec::with_capacity(width + 1);
        if whose == Whose::Private && again && !self.index.contains_key(&PRIVATE) {
            // Nothing has come: what it knows is what it begins with.
            let fresh = S::default();
            let of = |field: &Field<S>| {
                (0..field.column.times).map(|at| (field.of)(&fresh, at)).collect::<Vec<_>>()
            };
            row.extend(S::FIELDS.iter().flat_map(of));
            to(0, Some(&row));
        }
        for number in 0..self.marks.len() {
            let changed = self.marks[number] & CHANGED != 0;
            if !changed && !again {
                continue;
            }
            self.marks[number] &= !CHANGED;
            let key = self.keys[number];
            if (key == PRIVATE) != (whose == Whose::Private) {
                continue;
            }
            let place = if whose == Whose::Private { 0 } else { number };
            if self.index.get(&key).is_none_or(|at| *at as usize != number) {
                to(place, None);
                continue;
            }
            let state = &self.states[number];
            row.clear();
            row.extend((whose == Whose::Sessions).then(|| state.number(key)));
            for field in S::FIELDS {
                row.extend((0..field.column.times).map(|at| (field.of)(state, at)));
            }
            to(place, Some(&row));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shown::Unit;
    use super::*;

    #[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, PartialEq, Debug)]
    #[repr(C)]
    struct Counted {
        blocks: u64,
        held: HeldList,
        spare: u32,
    }

    impl Session for Counted {
        fn lists(&mut self) -> Vec<&mut HeldList> {
            vec![&mut self.held]
        }

        const FIELDS: &'static [Field<Self>] =
            &[Field::new("blocks", Unit::Blocks, "", |counted, _| counted.blocks)];
    }

    #[test]
    fn m2_who_is_not_asked_for_is_evicted_first() {
        let mut sessions = Sessions::<Counted>::default();
        for key in [PRIVATE, 1, 2, 3, 4] {
            sessions.of(key).blocks = key;
        }
        let evicted = |sessions: &mut Sessions<Counted>| sessions.evict().map(|(key, _)| key);
        assert_eq!(evicted(&mut sessions), Some(1), "nobody was asked for: the oldest");
        assert_eq!(sessions.find(2).map(|session| session.blocks), Some(2));
        assert_eq!(evicted(&mut sessions), Some(3));
        assert!(sessions.find(3).is_none());
        sessions.of(5).blocks = 5;
        assert_eq!(evicted(&mut sessions), Some(4));
        assert_eq!([(); 3].map(|()| evicted(&mut sessions)), [Some(2), Some(5), None]);
        assert_eq!(sessions.keys(), [PRIVATE]);
    }

    #[test]
    fn v18_what_comes_from_elsewhere_names_no_block_that_is_held_here() {
        let mut sessions = Sessions::<Counted>::default();
        let mut holds = Holds::new(4, 100);
        let mut held = HeldList::default();
        holds.insert(&mut held, 1, Entry::default(), Pin(1));
        let lying = Counted { blocks: 3, held, spare: 0 };
        let bytes = lying.as_bytes().to_vec();
        let moved = |held| Moved { key: 7, bytes: bytes.clone(), held };
        sessions.put(moved(Vec::new()), &mut holds).unwrap();
        assert_eq!(sessions.of(7), &Counted { held: HeldList::default(), ..lying });
        assert!(sessions.put(moved(vec![Vec::new(); 2]), &mut holds).is_err());
        assert_eq!(holds.pop(&mut held).map(|(key, ..)| key), Some(1), "it is still held here");
    }

    #[test]
    fn m3_what_changed_is_shown_once_and_what_ended_is_told() {
        let mut sessions = Sessions::<Counted>::default();
        let shown = |sessions: &mut Sessions<Counted>, whose, again| {
            let mut rows = Vec::new();
            sessions.show(whose, again, &mut |at, row| rows.push((at, row.map(<[u64]>::to_vec))));
            rows
        };
        sessions.of(PRIVATE).blocks = 100;
        sessions.of(7).blocks = 3;
        sessions.of(9).blocks = 4;
        let (seven, nine) = ((1, Some(vec![7, 3])), (2, Some(vec![9, 4])));
        assert_eq!(shown(&mut sessions, Whose::Sessions, false), [seven, nine.clone()]);
        assert_eq!(shown(&mut sessions, Whose::Sessions, false), []);
        assert_eq!(shown(&mut sessions, Whose::Private, true), [(0, Some(vec![100]))]);
        sessions.of(PRIVATE).blocks = 101;
        sessions.end(7);
        assert_eq!(shown(&mut sessions, Whose::Sessions, false), [(1, None)]);
        assert_eq!(shown(&mut sessions, Whose::Sessions, true), [(1, None), nine]);
        sessions.of(8).blocks = 1;
        let eight = (1, Some(vec![8, 1]));
        assert_eq!(shown(&mut sessions, Whose::Sessions, false), [eight], "in the same place");
        sessions.evict();
        sessions.evict();
        assert!(sessions.get(PRIVATE).is_some() && sessions.len() == 1, "as without being shown");
    }

    #[test]
    fn keys_of_every_kind_are_spread() {
        let hash = |key: u64| {
            let mut mix = Mix::default();
            mix.write_u64(key);
            mix.finish()
        };
        let kinds: [fn(u64) -> u64; 4] = [|n| n, |n| n << 32, |n| n << 56, |n| n * 0x1_0001];
        for (kind, key) in kinds.iter().enumerate() {
            for shift in [0, 57] {
                let mut buckets = [0; 128];
                (0..256).for_each(|n| buckets[(hash(key(n)) >> shift) as usize % 128] += 1);
                let fullest = buckets.iter().max();
                assert!(fullest < Some(&12), "kind {kind}, shift {shift}: {buckets:?}");
            }
        }
    }

    #[test]
    fn m2_m4_a_session_moves_with_what_it_holds() {
        let (mut here, mut there) =
            (Sessions::<Counted>::default(), Sessions::<Counted>::default());
        let (mut holds, mut other) = (Holds::new(8, 1 << 20), Holds::new(8, 1 << 20));
        here.of(7).blocks = 3;
        for key in [2, 1] {
            let mut list = here.of(7).held;
            holds.insert(&mut list, key, Entry::default(), Pin(key.into()));
            here.of(7).held = list;
        }
        let moved = here.take(7, &mut holds).expect("the session is there");
        assert!(here.is_empty() && holds.is_empty());
        there.put(moved, &mut other).expect("the same filter");
        assert_eq!(there.of(7).blocks, 3);
        let list = there.of(7).held;
        assert_eq!(other.blocks(&list).map(|(key, _, _)| key).collect::<Vec<_>>(), [1, 2]);
        let wrong = Moved { key: 1, bytes: vec![0; 3], held: Vec::new() };
        assert!(there.put(wrong, &mut other).is_err());
    }
}
