//! Movable state: sessions as plain data in a table (CONTRACT 15).
//!
//! A filter stores its state in a `Sessions<S>`, where `S` is plain data, so that saving, moving
//! and restoring are implemented only here. A private state is a single session with key 0. In the
//! Streamline thesis, a session pointer is swapped before each call [Th §5.3.3]. Here, a batch
//! contains blocks of many sessions, so the filter looks up the session of each block by its key.

use super::batch::LANES;
use super::context::PinId;
use super::holds::{HeldList, HoldTable};
use super::published::{Column, Field, PublishedSessions, RowCallback};
use super::value::Mistake;
use abi::Entry;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The state of one session: plain data, so that its bytes are valid in another process. Session
/// types that are looked up for every block should be aligned to cache lines.
pub trait Session: FromBytes + IntoBytes + Immutable + Default + Send + 'static {
    /// Returns the session's lists of held blocks, in a fixed order.
    fn held_lists(&mut self) -> Vec<&mut HeldList> {
        Vec::new()
    }

    /// Fields of the session that `state=NAME` publishes.
    const FIELDS: &'static [Field<Self>] = &[];

    /// Returns the session number that the session's blocks have in their metadata. By default,
    /// this is the key.
    fn session_number(&self, key: u64) -> u64 {
        key
    }
}

/// Returns the columns for the published fields of a session type.
#[must_use]
pub fn session_columns<S: Session>() -> Vec<Column> {
    S::FIELDS.iter().map(|field| field.column).collect()
}

/// Key of the private session, which contains the state that belongs to no single connection.
pub const PRIVATE_SESSION_KEY: u64 = 0;

/// The sessions of one filter, found by key.
#[derive(Debug)]
pub struct Sessions<S> {
    index: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    states: Vec<S>,
    /// The key of each session, by the session's index. Keys, flags and states are stored in
    /// separate vectors, so that the states stay aligned to cache lines.
    keys: Vec<u64>,
    /// The flags of each session, by the session's index: a combination of [`USED_FLAG`] and
    /// [`CHANGED_FLAG`]. The flags of a session do not move with it to another space.
    marks: Vec<u8>,
    free: Vec<u32>,
    /// Cache of recently used sessions, indexed by the low bits of the key.
    recent: [RecentKey; RECENT_KEY_COUNT],
    /// Index of the session that [`Sessions::evict`] visited last (the hand of the CLOCK
    /// algorithm).
    clock_hand: usize,
}

impl<S: Session> Default for Sessions<S> {
    fn default() -> Self {
        Self {
            index: HashMap::default(),
            states: Vec::new(),
            keys: Vec::new(),
            marks: Vec::new(),
            free: Vec::new(),
            recent: std::array::from_fn(|place| RecentKey { key: !(place as u64), number: 0 }),
            clock_hand: 0,
        }
    }
}

/// Entry of a cache that finds recently used sessions: the key and the index of a session. An empty
/// entry contains a key that belongs in another entry, so that no lookup finds it.
#[derive(Clone, Copy, Debug)]
struct RecentKey {
    key: u64,
    number: u32,
}

/// Flag of a session that was used after its creation, and after the last visit of
/// [`Sessions::evict`].
const USED_FLAG: u8 = 1;
/// Flag of a session that may have changed since it was last published ([`FilterState::publish`]):
/// it was used, created or ended. Set together with [`USED_FLAG`], at no extra cost.
const CHANGED_FLAG: u8 = 1 << 1;

/// Number of entries in the cache of recently used sessions, enough for the sessions of a few
/// batches.
const RECENT_KEY_COUNT: usize = 256;
/// Size of a cache line in bytes.
const CACHE_LINE_BYTES: usize = 64;

impl<S: Session> Sessions<S> {
    /// Returns the session with this key. Creates it if it does not exist.
    pub fn get_or_create(&mut self, key: u64) -> &mut S {
        let number = match self.session_index(key) {
            Some(number) => {
                self.marks[number as usize] = USED_FLAG | CHANGED_FLAG;
                number
            }
            None => self.create(key),
        };
        &mut self.states[number as usize]
    }

    /// Returns the session with this key and marks it as used, or `None` if there is no such
    /// session.
    #[inline]
    pub fn find(&mut self, key: u64) -> Option<&mut S> {
        let number = self.session_index(key)? as usize;
        self.marks[number] = USED_FLAG | CHANGED_FLAG;
        self.states.get_mut(number)
    }

    /// Returns the session with this key without marking it as used, or `None` if there is no such
    /// session.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<&S> {
        let number = *self.index.get(&key)?;
        self.states.get(number as usize)
    }

    /// Prefetches the sessions with these keys, at most [`LANES`] of them. With many sessions,
    /// nearly every lookup misses the CPU cache, and prefetching makes the misses overlap. Index
    /// and states are read in two loops, because the processor overlaps more iterations of a short
    /// loop than of a long one.
    #[inline]
    pub fn prefetch(&mut self, keys: impl IntoIterator<Item = u64>) {
        let (mut numbers, mut found) = ([0; LANES], 0);
        for key in keys.into_iter().take(LANES) {
            if let Some(number) = self.session_index(key) {
                numbers[found] = number;
                found += 1;
            }
        }
        let mut folded = 0;
        for number in &numbers[..found] {
            let state = self.states.get(*number as usize);
            let bytes = state.map_or(&[][..], S::as_bytes);
            folded ^= bytes.iter().step_by(CACHE_LINE_BYTES).fold(0, |folded, byte| folded ^ byte);
        }
        std::hint::black_box(folded);
    }

    /// Removes the session with this key and returns its state, or `None` if there is no such
    /// session.
    pub fn remove(&mut self, key: u64) -> Option<S> {
        let number = self.index.remove(&key)?;
        let recent = self.recent_key_mut(key);
        if recent.key == key {
            recent.key = !key;
        }
        self.marks[number as usize] = CHANGED_FLAG;
        self.free.push(number);
        self.states.get_mut(number as usize).map(std::mem::take)
    }

    /// Removes a session that has not been used recently, and returns its key and state. Selects it
    /// by the CLOCK algorithm ("second chance"), which prefers sessions that were not used after
    /// their creation. Never removes the private session. Returns `None` if there is no other
    /// session.
    pub fn evict(&mut self) -> Option<(u64, S)> {
        for _ in 0..2 * self.states.len() {
            self.clock_hand = (self.clock_hand + 1) % self.states.len();
            let key = self.keys[self.clock_hand];
            let here =
                self.index.get(&key).is_some_and(|number| *number as usize == self.clock_hand);
            let was_used = self.marks[self.clock_hand] & USED_FLAG != 0;
            if here && key != PRIVATE_SESSION_KEY {
                self.marks[self.clock_hand] &= !USED_FLAG;
            }
            if here && key != PRIVATE_SESSION_KEY && !was_used {
                return self.remove(key).map(|session| (key, session));
            }
        }
        None
    }

    /// Makes room for the session with this key. If the table lacks this session and contains
    /// `most` or more others, evicts one of them and returns its state. Otherwise returns `None`.
    pub fn make_room(&mut self, key: u64, most: usize) -> Option<S> {
        let full = self.len() >= most && !self.index.contains_key(&key);
        if full { self.evict().map(|(_, session)| session) } else { None }
    }

    /// Returns the number of sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns true if there is no session.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Returns the keys of all sessions, sorted.
    #[must_use]
    pub fn keys(&self) -> Vec<u64> {
        let mut keys: Vec<u64> = self.index.keys().copied().collect();
        keys.sort_unstable();
        keys
    }

    #[inline]
    fn session_index(&mut self, key: u64) -> Option<u32> {
        let recent = self.recent_key_mut(key);
        if recent.key == key {
            return Some(recent.number);
        }
        let number = *self.index.get(&key)?;
        *self.recent_key_mut(key) = RecentKey { key, number };
        Some(number)
    }

    #[inline]
    fn recent_key_mut(&mut self, key: u64) -> &mut RecentKey {
        &mut self.recent[key as usize % RECENT_KEY_COUNT]
    }

    fn create(&mut self, key: u64) -> u32 {
        let number = match self.free.pop() {
            Some(number) => {
                self.states[number as usize] = S::default();
                self.keys[number as usize] = key;
                self.marks[number as usize] = CHANGED_FLAG;
                number
            }
            None => {
                self.states.push(S::default());
                self.keys.push(key);
                self.marks.push(CHANGED_FLAG);
                u32::try_from(self.states.len() - 1).expect("fewer than 2^32 sessions")
            }
        };
        self.index.insert(key, number);
        *self.recent_key_mut(key) = RecentKey { key, number };
        number
    }
}

/// Hasher for session keys. It multiplies once and combines the two halves of the product, so that
/// each bit of the key affects both the bucket index and the tag bits of the hash table.
///
/// Keys are flow hashes with a secret seed, or numbers assigned by the filter itself. Protection
/// against collision attacks, such as SipHash provides, is therefore not needed.
#[derive(Clone, Default, Debug)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
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

/// A session that is being moved to another instance of its filter: its bytes and held blocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MovedSession {
    /// Key of the session in the table of the filter.
    pub key: u64,
    /// The bytes of the session. The lists of held blocks in these bytes are invalid until they are
    /// rebuilt from `held`.
    pub bytes: Vec<u8>,
    /// The session's held blocks with their keys: one vector for each list, in the order of
    /// [`Session::held_lists`].
    pub held: Vec<Vec<(u32, Entry, PinId)>>,
}

/// Operations of a space on the state of a filter. Implemented by [`Sessions`], and by filters that
/// contain a [`Sessions`] and must rebuild derived data after a move.
pub trait FilterState {
    /// Returns the keys of all sessions, sorted.
    fn session_keys(&self) -> Vec<u64>;
    /// Removes a session and its held blocks from this instance. Returns `None` if there is no
    /// session with this key.
    fn take_session(&mut self, key: u64, holds: &mut HoldTable) -> Option<MovedSession>;
    /// Inserts a session that was moved from another instance of the filter.
    ///
    /// # Errors
    ///
    /// Fails if the bytes or lists of the session do not match this version of the filter.
    fn put_session(&mut self, moved: MovedSession, holds: &mut HoldTable) -> Result<(), Mistake>;
    /// Returns the number that identifies the session with this key in block metadata.
    fn session_number(&self, key: u64) -> u64;
    /// Calls `to` for each session that `whose` selects and that may have changed since the last
    /// call, or for all selected sessions if `again` is true. `to` receives the index of the
    /// session's row, which never changes during the session and is 0 for the private session. `to`
    /// also receives the numbers of the row in column order
    /// ([`Description::published_state`](super::Description::published_state)), or `None` if the
    /// session has ended.
    fn publish(&mut self, whose: PublishedSessions, again: bool, to: &mut RowCallback<'_>);
}

/// Returns the published numbers of a session, in column order.
fn published_values<S: Session>(session: &S) -> impl Iterator<Item = u64> {
    let all =
        |field: &'static Field<S>| (0..field.column.value_count).map(|at| (field.of)(session, at));
    S::FIELDS.iter().flat_map(all)
}

impl<S: Session> FilterState for Sessions<S> {
    fn session_keys(&self) -> Vec<u64> {
        self.keys()
    }

    fn take_session(&mut self, key: u64, holds: &mut HoldTable) -> Option<MovedSession> {
        let mut session = self.remove(key)?;
        let held = session
            .held_lists()
            .into_iter()
            .map(|list| std::iter::from_fn(|| holds.pop(list)).collect())
            .collect();
        Some(MovedSession { key, bytes: session.as_bytes().to_vec(), held })
    }

    fn put_session(&mut self, moved: MovedSession, holds: &mut HoldTable) -> Result<(), Mistake> {
        let foreign = |what| {
            let mistake = Mistake { message: what, ..Mistake::default() };
            mistake.with_hint("it was saved by another version of the filter")
        };
        let mut session = S::read_from_bytes(&moved.bytes).map_err(|_| {
            let (arrived, own) = (moved.bytes.len(), size_of::<S>());
            foreign(format!("the saved state has {arrived} bytes, the filter's has {own}"))
        })?;
        let lists = session.held_lists();
        // The lists refer to slots in the table of another space, so they are rebuilt even if no
        // blocks were moved.
        let (here, arrived) = (lists.len(), moved.held.len());
        if arrived > here {
            let what =
                format!("the saved state holds {arrived} lists of blocks, the filter's {here}");
            return Err(foreign(what));
        }
        let none = std::iter::repeat_with(Vec::new);
        for (list, blocks) in lists.into_iter().zip(moved.held.into_iter().chain(none)) {
            *list = HeldList::default();
            for (key, entry, pin) in blocks {
                holds.insert(list, key, entry, pin);
            }
        }
        *self.get_or_create(moved.key) = session;
        Ok(())
    }

    fn session_number(&self, key: u64) -> u64 {
        self.get(key).map_or(key, |session| session.session_number(key))
    }

    fn publish(&mut self, whose: PublishedSessions, again: bool, to: &mut RowCallback<'_>) {
        let width: usize = S::FIELDS.iter().map(|field| field.column.value_count).sum();
        let mut row = Vec::with_capacity(width + 1);
        if whose == PublishedSessions::Private
            && again
            && !self.index.contains_key(&PRIVATE_SESSION_KEY)
        {
            // The session does not exist yet: report its initial values.
            let fresh = S::default();
            row.extend(published_values(&fresh));
            to(0, Some(&row));
        }
        for number in 0..self.marks.len() {
            let changed = self.marks[number] & CHANGED_FLAG != 0;
            if !changed && !again {
                continue;
            }
            self.marks[number] &= !CHANGED_FLAG;
            let key = self.keys[number];
            if (key == PRIVATE_SESSION_KEY) != (whose == PublishedSessions::Private) {
                continue;
            }
            let place = if whose == PublishedSessions::Private { 0 } else { number };
            if self.index.get(&key).is_none_or(|at| *at as usize != number) {
                to(place, None);
                continue;
            }
            let state = &self.states[number];
            row.clear();
            row.extend((whose == PublishedSessions::Sessions).then(|| state.session_number(key)));
            row.extend(published_values(state));
            to(place, Some(&row));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::published::Unit;
    use super::*;

    #[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, PartialEq, Debug)]
    #[repr(C)]
    struct TestSession {
        blocks: u64,
        held: HeldList,
        spare: u32,
    }

    impl Session for TestSession {
        fn held_lists(&mut self) -> Vec<&mut HeldList> {
            vec![&mut self.held]
        }

        const FIELDS: &'static [Field<Self>] =
            &[Field::new("blocks", Unit::Blocks, "", |counted, _| counted.blocks)];
    }

    #[test]
    fn m2_unused_session_is_evicted_first() {
        let mut sessions = Sessions::<TestSession>::default();
        for key in [PRIVATE_SESSION_KEY, 1, 2, 3, 4] {
            sessions.get_or_create(key).blocks = key;
        }
        let evicted = |sessions: &mut Sessions<TestSession>| sessions.evict().map(|(key, _)| key);
        assert_eq!(evicted(&mut sessions), Some(1), "no session was used: the oldest is evicted");
        assert_eq!(sessions.find(2).map(|session| session.blocks), Some(2));
        assert_eq!(evicted(&mut sessions), Some(3));
        assert!(sessions.find(3).is_none());
        sessions.get_or_create(5).blocks = 5;
        assert_eq!(evicted(&mut sessions), Some(4));
        assert_eq!([(); 3].map(|()| evicted(&mut sessions)), [Some(2), Some(5), None]);
        assert_eq!(sessions.keys(), [PRIVATE_SESSION_KEY]);
    }

    #[test]
    fn v18_moved_list_names_no_block_of_the_new_space() {
        let mut sessions = Sessions::<TestSession>::default();
        let mut holds = HoldTable::new(4, 100);
        let mut held = HeldList::default();
        holds.insert(&mut held, 1, Entry::default(), PinId(1));
        let lying = TestSession { blocks: 3, held, spare: 0 };
        let bytes = lying.as_bytes().to_vec();
        let moved = |held| MovedSession { key: 7, bytes: bytes.clone(), held };
        sessions.put_session(moved(Vec::new()), &mut holds).unwrap();
        assert_eq!(sessions.get_or_create(7), &TestSession { held: HeldList::default(), ..lying });
        assert!(sessions.put_session(moved(vec![Vec::new(); 2]), &mut holds).is_err());
        assert_eq!(holds.pop(&mut held).map(|(key, ..)| key), Some(1), "it is still held here");
    }

    #[test]
    fn m3_changed_and_ended_sessions_are_published_once() {
        let mut sessions = Sessions::<TestSession>::default();
        let published = |sessions: &mut Sessions<TestSession>, whose, again| {
            let mut rows = Vec::new();
            sessions
                .publish(whose, again, &mut |at, row| rows.push((at, row.map(<[u64]>::to_vec))));
            rows
        };
        sessions.get_or_create(PRIVATE_SESSION_KEY).blocks = 100;
        sessions.get_or_create(7).blocks = 3;
        sessions.get_or_create(9).blocks = 4;
        let (seven, nine) = ((1, Some(vec![7, 3])), (2, Some(vec![9, 4])));
        assert_eq!(
            published(&mut sessions, PublishedSessions::Sessions, false),
            [seven, nine.clone()]
        );
        assert_eq!(published(&mut sessions, PublishedSessions::Sessions, false), []);
        assert_eq!(
            published(&mut sessions, PublishedSessions::Private, true),
            [(0, Some(vec![100]))]
        );
        sessions.get_or_create(PRIVATE_SESSION_KEY).blocks = 101;
        sessions.remove(7);
        assert_eq!(published(&mut sessions, PublishedSessions::Sessions, false), [(1, None)]);
        assert_eq!(published(&mut sessions, PublishedSessions::Sessions, true), [(1, None), nine]);
        sessions.get_or_create(8).blocks = 1;
        let eight = (1, Some(vec![8, 1]));
        assert_eq!(
            published(&mut sessions, PublishedSessions::Sessions, false),
            [eight],
            "in the same place"
        );
        sessions.evict();
        sessions.evict();
        assert!(
            sessions.get(PRIVATE_SESSION_KEY).is_some() && sessions.len() == 1,
            "as without being shown"
        );
    }

    #[test]
    fn session_keys_spread_over_the_hash_table() {
        let hash = |key: u64| {
            let mut mix = KeyHasher::default();
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
    fn m2_m4_session_moves_with_its_held_blocks() {
        let (mut here, mut there) =
            (Sessions::<TestSession>::default(), Sessions::<TestSession>::default());
        let (mut holds, mut other) = (HoldTable::new(8, 1 << 20), HoldTable::new(8, 1 << 20));
        here.get_or_create(7).blocks = 3;
        for key in [2, 1] {
            let mut list = here.get_or_create(7).held;
            holds.insert(&mut list, key, Entry::default(), PinId(key.into()));
            here.get_or_create(7).held = list;
        }
        let moved = here.take_session(7, &mut holds).expect("the session is there");
        assert!(here.is_empty() && holds.is_empty());
        there.put_session(moved, &mut other).expect("the same filter");
        assert_eq!(there.get_or_create(7).blocks, 3);
        let list = there.get_or_create(7).held;
        assert_eq!(other.blocks(&list).map(|(key, _, _)| key).collect::<Vec<_>>(), [1, 2]);
        let wrong = MovedSession { key: 1, bytes: vec![0; 3], held: Vec::new() };
        assert!(there.put_session(wrong, &mut other).is_err());
    }
}
