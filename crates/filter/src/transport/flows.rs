//! Flows as sessions (CONTRACT 8): which one a datagram belongs to, and which way it goes in it.
//!
//! In: the flow of a frame. Out: the number of its session, and whether it goes the other way than
//! the first block of the session that was seen. Numbers begin at 1 and are given in the order in
//! which flows are first seen; none comes back before 2³² others.
//!
//! Flows are told apart by a hash of 64 bits. Its seed is random, so nobody can make two flows meet
//! on purpose; by chance, among 65,536 flows at once, two meet with a probability of 2⁻³³. State is
//! plain data: one small record per flow, and one, the private one, for what they share.
//!
//! When as many flows are known as may be, one is forgotten that was not met for long
//! ([`Sessions::evict`]): its next block begins a new session.

use crate::contract::{PRIVATE, Session, Sessions, State};
use std::hash::{BuildHasher, RandomState};
use wire::flow::{Direction, Flow};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The flows that are known.
#[derive(Debug)]
pub(crate) struct Flows {
    table: Sessions<Known>,
    most: usize,
}

/// What is known of a flow, and in the private record of all of them.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, Debug)]
#[repr(C)]
struct Known {
    /// The seed of the hash; only in the private record.
    seed: u64,
    /// The number of the session; in the private record the last that was given.
    session: u32,
    /// Whether the first block went down (from the greater address to the lesser).
    down: u8,
    spare: [u8; 3],
}

impl Session for Known {}

/// Where a block belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// The number of its session.
    pub(crate) session: u32,
    /// Whether it goes against the first block.
    pub(crate) backward: bool,
    /// Whether it is the first block.
    pub(crate) new: bool,
    /// Whether another flow had to be forgotten for it.
    pub(crate) evicted: bool,
}

impl Flows {
    /// Room for `most` flows, at least one.
    pub(crate) fn new(most: usize) -> Self {
        let mut table = Sessions::<Known>::default();
        table.of(PRIVATE).seed = RandomState::new().hash_one(0);
        Self { table, most: most.max(1) }
    }

    /// The state, to be moved.
    pub(crate) fn state(&mut self) -> &mut dyn State {
        &mut self.table
    }

    /// The seed for [`Flows::find`], to be asked for once per batch.
    pub(crate) fn seed(&self) -> u64 {
        self.table.get(PRIVATE).map_or(0, |shared| shared.seed)
    }

    /// The session of a flow, made if it is new.
    pub(crate) fn find(&mut self, flow: &Flow, seed: u64) -> Found {
        // No flow has the key of the private record.
        let key = flow.hash(seed).max(PRIVATE + 1);
        let down = u8::from(flow.normalised().1 == Direction::Down);
        if let Some(known) = self.table.find(key) {
            let backward = known.down != down;
            return Found { session: known.session, backward, new: false, evicted: false };
        }
        self.begin(key, down)
    }

    #[cold]
    fn begin(&mut self, key: u64, down: u8) -> Found {
        // The private record is one more.
        let evicted = self.table.len() > self.most && self.table.evict().is_some();
        let shared = self.table.of(PRIVATE);
        shared.session = shared.session.wrapping_add(1).max(1);
        let session = shared.session;
        *self.table.of(key) = Known { session, down, ..Known::default() };
        Found { session, backward: false, new: true, evicted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::ports::Ports;

    fn flow(source: u16, target: u16) -> Flow {
        let ports = Some(Ports { source, target });
        Flow { source: [10, 0, 0, 1].into(), target: [10, 0, 0, 2].into(), protocol: 17, ports }
    }

    #[test]
    fn both_ways_are_one_session_and_the_first_is_forward() {
        let mut flows = Flows::new(10);
        let seed = flows.seed();
        let mut find = |flow: Flow| {
            let found = flows.find(&flow, seed);
            (found.session, found.backward, found.new)
        };
        let (query, other) = (flow(4000, 53), flow(4001, 53));
        assert_eq!(find(query.reversed()), (1, false, true));
        assert_eq!(find(query), (1, true, false));
        assert_eq!(find(other), (2, false, true));
        assert_eq!(find(query.reversed()), (1, false, false));
        assert_eq!(find(other.reversed()), (2, true, false));
        assert_eq!(find(Flow { protocol: 6, ..query }), (3, false, true));
    }

    #[test]
    fn of_too_many_the_one_that_was_not_met_for_long_is_forgotten() {
        for most in [1, 2, 7] {
            let mut flows = Flows::new(most);
            let seed = flows.seed();
            for port in 0..100 {
                let busy = flows.find(&flow(9, 9), seed);
                assert!(busy.session == 1 || most == 1, "{most}: {busy:?}");
                let found = flows.find(&flow(1000 + port, 53), seed);
                assert!(found.new && found.evicted == (usize::from(port) + 2 > most), "{found:?}");
                assert!(flows.table.len() <= most + 1);
            }
        }
    }

    #[test]
    fn numbers_are_not_given_again() {
        let mut flows = Flows::new(3);
        let seed = flows.seed();
        let numbers = (0..1000).map(|port| flows.find(&flow(port, 53), seed).session);
        assert!(numbers.eq(1..=1000));
        flows.table.of(PRIVATE).session = u32::MAX;
        assert_eq!(flows.find(&flow(5000, 53), seed).session, 1, "0 is no session");
    }
}
