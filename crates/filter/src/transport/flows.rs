//! Flows as sessions (CONTRACT 8): which one a frame belongs to, and which way it goes in it.
//!
//! In: the flow of a frame. Out: what its filter remembers of it (a [`Record`]), with the number of
//! its session. Numbers begin at 1 and are given in the order in which flows are first seen; none
//! comes back before 2³² others. Of several copies of a filter each gives numbers of its own.
//!
//! Flows are told apart by a hash of 64 bits. Its seed is random, so nobody can make two flows meet
//! on purpose; by chance, among 65,536 flows at once, two meet with a probability of 2⁻³³. State is
//! plain data: one small record per flow, and one, the private one, for what they share.
//!
//! When as many flows are known as may be, one is forgotten that was not met for long
//! ([`Sessions::evict`]): its next block begins a new session.

use crate::contract::{Field, PRIVATE, Session, Sessions, State, Unit};
use std::net::{IpAddr, Ipv4Addr};
use wire::flow::{Direction, Flow};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The flows that are known.
#[derive(Debug)]
pub(crate) struct Flows<R> {
    table: Sessions<R>,
    most: usize,
    /// Which of how many copies of the filter this is: each has numbers of its own.
    copy: (u32, u32),
}

/// What a filter remembers of a flow: plain data that holds an [`Identity`].
pub(crate) trait Record: Session {
    /// The part that all records have.
    fn identity(&self) -> &Identity;
    /// The same, to be changed.
    fn identity_mut(&mut self) -> &mut Identity;
}

/// What every record has, and the private record of all of them.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Identity {
    /// In the private record the seed of the hash; in the others what their filter likes.
    pub(crate) word: u64,
    /// The number of the session; in the private record the last that was given.
    pub(crate) session: u32,
    /// Whether forward is down (from the greater address and port to the lesser).
    pub(crate) down: u8,
    /// What the filter likes.
    pub(crate) flags: u8,
    /// What the filter likes.
    pub(crate) port: u16,
}

/// A record of nothing but who it is.
impl Session for Identity {
    const FIELDS: &'static [Field<Self>] =
        &[Field::new("down", Unit::YesNo, "forward is to the lesser address", |known, _| {
            known.down.into()
        })];

    fn number(&self, _: u64) -> u64 {
        self.session.into()
    }
}

impl Record for Identity {
    fn identity(&self) -> &Identity {
        self
    }

    fn identity_mut(&mut self) -> &mut Identity {
        self
    }
}

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

impl<R: Record> Flows<R> {
    /// Room for `most` flows, at least one, told apart by a hash with this seed
    /// ([`Arguments::seed`](crate::Arguments::seed)).
    pub(crate) fn new(most: usize, seed: u64) -> Self {
        let mut table = Sessions::<R>::default();
        table.of(PRIVATE).identity_mut().word = seed;
        Self { table, most: most.max(1), copy: (0, 1) }
    }

    /// The same for copy `number` of `of`: it gives every `of`-th number.
    pub(crate) fn for_copy(self, (number, of): (u32, u32)) -> Self {
        Self { copy: (number % of.max(1), of.max(1)), ..self }
    }

    /// The state, to be moved.
    pub(crate) fn state(&mut self) -> &mut dyn State {
        &mut self.table
    }

    /// The seed for [`Flows::key`], to be asked for once per batch.
    pub(crate) fn seed(&self) -> u64 {
        self.table.get(PRIVATE).map_or(0, |shared| shared.identity().word)
    }

    /// The key of a flow, the same for both ways, and whether a frame of it goes from the greater
    /// address and port to the lesser. No flow has the key of the private record.
    #[inline]
    pub(crate) fn key(flow: &Flow, seed: u64) -> (u64, bool) {
        let (hash, down) = match (flow.source, flow.target, flow.ports) {
            (IpAddr::V4(source), IpAddr::V4(target), Some(ports)) => {
                let end = |address: Ipv4Addr, port: u16| {
                    u64::from(address.to_bits()) << 16 | u64::from(port)
                };
                let (from, to) = (end(source, ports.source), end(target, ports.target));
                (hash(from.min(to), from.max(to), flow.protocol, seed), from > to)
            }
            _ => (flow.hash(seed), flow.normalised().1 == Direction::Down),
        };
        (hash.max(PRIVATE + 1), down)
    }

    /// What is known of the flow with this key.
    #[inline]
    pub(crate) fn find(&mut self, key: u64) -> Option<&mut R> {
        self.table.find(key)
    }

    /// Brings what is known of these flows into the cache ([`Sessions::look_ahead`]).
    pub(crate) fn look_ahead(&mut self, keys: impl IntoIterator<Item = u64>) {
        self.table.look_ahead(keys);
    }

    /// What is known of the flow with this key, only to look at.
    pub(crate) fn get(&self, key: u64) -> Option<&R> {
        self.table.get(key)
    }

    /// The record of a new flow, with the number of its session.
    pub(crate) fn begin(&mut self, key: u64, down: bool) -> &mut R {
        let shared = self.table.of(PRIVATE).identity_mut();
        shared.session = next(shared.session, self.copy);
        let session = shared.session;
        let record = self.table.of(key);
        *record = R::default();
        let identity = record.identity_mut();
        (identity.session, identity.down) = (session, down.into());
        record
    }

    /// Ends a flow.
    pub(crate) fn end(&mut self, key: u64) -> Option<R> {
        self.table.end(key)
    }

    /// Forgets a flow that was not met for long, if there is no room for one more.
    pub(crate) fn make_room(&mut self) -> Option<R> {
        // The private record is one more.
        match self.table.len() > self.most {
            true => self.table.evict().map(|(_, record)| record),
            false => None,
        }
    }

    /// The keys of all records, the private one's among them.
    pub(crate) fn keys(&self) -> Vec<u64> {
        self.table.keys()
    }

    /// The keys of all flows by the numbers of their sessions.
    pub(crate) fn in_order(&self) -> Vec<u64> {
        let keys = self.table.keys().into_iter().filter(|key| *key != PRIVATE);
        let session = |key: u64| self.get(key).map_or(0, |record| record.identity().session);
        let mut numbered: Vec<(u32, u64)> = keys.map(|key| (session(key), key)).collect();
        numbered.sort_unstable();
        numbered.into_iter().map(|(_, key)| key).collect()
    }
}

impl Flows<Identity> {
    /// The session of a flow of which nothing else is remembered, made if it is new.
    pub(crate) fn session(&mut self, flow: &Flow, seed: u64) -> Found {
        let (key, down) = Self::key(flow, seed);
        let down = u8::from(down);
        if let Some(known) = self.table.find(key) {
            let backward = known.down != down;
            return Found { session: known.session, backward, new: false, evicted: false };
        }
        let evicted = self.make_room().is_some();
        let session = self.begin(key, down != 0).session;
        Found { session, backward: false, new: true, evicted }
    }
}

/// The number behind `last` that copy `number` of `of` gives: those that leave the same rest.
fn next(last: u32, (number, of): (u32, u32)) -> u32 {
    let first = number + 1;
    if last == 0 { first } else { last.checked_add(of).unwrap_or(first) }
}

/// The hash of a flow over IPv4, whose ends are 48 bits each: a product of both, each beside a
/// secret, then the finisher of SplitMix64. What `wire::flow` has for addresses of any length costs
/// four times as much.
#[inline]
fn hash(low: u64, high: u64, protocol: u8, seed: u64) -> u64 {
    let other = seed.rotate_left(23) ^ 0x9e37_79b9_7f4a_7c15 ^ u64::from(protocol) << 48;
    let product = u128::from(low ^ seed) * u128::from(high ^ other);
    let folded = product as u64 ^ (product >> 64) as u64;
    let mixed = (folded ^ (folded >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
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
        let mut flows = Flows::new(10, 7);
        let seed = flows.seed();
        let mut find = |flow: Flow| {
            let found = flows.session(&flow, seed);
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
    fn n2_copies_give_no_session_the_same_number() {
        let mut seen = std::collections::HashSet::new();
        for number in 0..3 {
            let mut flows = Flows::new(100, 7).for_copy((number, 3));
            let seed = flows.seed();
            let given: Vec<u32> =
                (0..50).map(|port| flows.session(&flow(port, 53), seed).session).collect();
            assert_eq!(given[0], number + 1);
            assert!(given.into_iter().all(|session| seen.insert(session)));
        }
        assert_eq!([next(u32::MAX - 1, (1, 3)), next(u32::MAX, (0, 1))], [2, 1], "none is 0");
    }

    #[test]
    fn of_too_many_the_one_that_was_not_met_for_long_is_forgotten() {
        for most in [1, 2, 7] {
            let mut flows = Flows::new(most, 7);
            let seed = flows.seed();
            for port in 0..100 {
                let busy = flows.session(&flow(9, 9), seed);
                assert!(busy.session == 1 || most == 1, "{most}: {busy:?}");
                let found = flows.session(&flow(1000 + port, 53), seed);
                assert!(found.new && found.evicted == (usize::from(port) + 2 > most), "{found:?}");
                assert!(flows.table.len() <= most + 1);
            }
        }
    }

    #[test]
    fn keys_tell_flows_apart_and_not_their_ways() {
        for seed in [0, 1, 0x0123_4567_89ab_cdef] {
            let mut keys = std::collections::HashSet::new();
            for n in 0..40_000_u32 {
                let [a, b, ..] = (n / 200).to_le_bytes();
                let ports = Ports { source: (n % 200) as u16, target: 53 };
                let protocol = if n % 2 == 0 { 6 } else { 17 };
                let (source, target) = ([10, 0, a, b].into(), [10, 0, b, a].into());
                let flow = Flow { source, target, protocol, ports: Some(ports) };
                let ((key, down), (back, up)) = (
                    Flows::<Identity>::key(&flow, seed),
                    Flows::<Identity>::key(&flow.reversed(), seed),
                );
                assert_eq!((key, down), (back, flow.normalised().1 == Direction::Down));
                assert!(!(up && down));
                assert!(keys.insert(key), "seed {seed}: {flow}");
            }
        }
    }

    #[test]
    fn numbers_are_not_given_again() {
        let mut flows = Flows::new(3, 7);
        let seed = flows.seed();
        let numbers = (0..1000).map(|port| flows.session(&flow(port, 53), seed).session);
        assert!(numbers.eq(1..=1000));
        flows.table.of(PRIVATE).session = u32::MAX;
        assert_eq!(flows.session(&flow(5000, 53), seed).session, 1, "0 is no session");
    }
}
