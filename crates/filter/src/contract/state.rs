//! State that can move: sessions as plain data in a table that the contract owns (CONTRACT 15).
//!
//! A filter keeps `Sessions<S>` where `S` is plain data. Saving, moving and restoring are written here
//! once for all filters; a private state is one session with key 0. The sources swap a pointer to the
//! session before each call [Th §5.3.3]; a batch holds many sessions, so here the filter asks by key.

use super::arguments::Mistake;
use super::holds::{HeldList, Holds};
use super::turn::Pin;
use abi::Entry;
use std::collections::HashMap;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The state of one session: plain data, so that its bytes mean the same in another process.
pub trait Session: FromBytes + IntoBytes + Immutable + Default + Send + 'static {
    /// The lists of held blocks in it, in a fixed order.
    fn lists(&mut self) -> Vec<&mut HeldList> {
        Vec::new()
    }
}

/// The key of the one session that holds a filter's private state.
pub const PRIVATE: u64 = 0;

/// All sessions of one filter.
#[derive(Debug)]
pub struct Sessions<S> {
    index: HashMap<u64, u32>,
    slots: Vec<(u64, S)>,
    free: Vec<u32>,
    last: Option<(u64, u32)>,
}

impl<S: Session> Default for Sessions<S> {
    fn default() -> Self {
        Self { index: HashMap::new(), slots: Vec::new(), free: Vec::new(), last: None }
    }
}

impl<S: Session> Sessions<S> {
    /// The session with this key, made if it is new.
    pub fn of(&mut self, key: u64) -> &mut S {
        let number = match self.last {
            Some((k, number)) if k == key => number,
            _ => self.number_of(key),
        };
        self.last = Some((key, number));
        &mut self.slots[number as usize].1
    }

    /// The session with this key, if there is one.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<&S> {
        let number = *self.index.get(&key)?;
        self.slots.get(number as usize).map(|(_, session)| session)
    }

    /// Ends a session and gives its state back.
    pub fn end(&mut self, key: u64) -> Option<S> {
        let number = self.index.remove(&key)?;
        self.last = None;
        self.free.push(number);
        self.slots.get_mut(number as usize).map(|(_, s)| std::mem::take(s))
    }

    /// The number of sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is no session.
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

    fn number_of(&mut self, key: u64) -> u32 {
        if let Some(number) = self.index.get(&key) {
            return *number;
        }
        let number = match self.free.pop() {
            Some(number) => {
                self.slots[number as usize] = (key, S::default());
                number
            }
            None => {
                self.slots.push((key, S::default()));
                u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 sessions")
            }
        };
        self.index.insert(key, number);
        number
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

/// What the space can do with a filter's state. Implemented once, for [`Sessions`].
pub trait State {
    /// The keys of all sessions, sorted.
    fn sessions(&self) -> Vec<u64>;
    /// Takes a session out, with what it holds.
    fn take(&mut self, key: u64, holds: &mut Holds) -> Option<Moved>;
    /// Puts a session in that was taken out of another instance of the same filter.
    fn put(&mut self, moved: Moved, holds: &mut Holds) -> Result<(), Mistake>;
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
            at: None,
            what: format!(
                "the saved state has {} bytes, the filter's has {}",
                moved.bytes.len(),
                size_of::<S>()
            ),
            hint: Some("it was saved by another version of the filter".to_owned()),
        })?;
        for (list, blocks) in session.lists().into_iter().zip(moved.held) {
            *list = HeldList::default();
            for (key, entry, pin) in blocks {
                holds.insert(list, key, entry, pin);
            }
        }
        *self.of(moved.key) = session;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
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
    }

    #[test]
    fn a_session_moves_with_what_it_holds() {
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
