//! Flow table, which assigns frames to sessions and directions (CONTRACT 8).
//!
//! Input: the flow of a frame. Output: the [`Record`] that the filter keeps for the flow, which
//! includes the session number. Numbers are assigned in the order of first appearance, from the
//! lowest of the filter's own range ([`SessionNumbers`]); a filter without replicas counts from 1.
//! After the range is exhausted, the table reuses numbers that no known flow has.
//!
//! Flows are distinguished by a 64-bit hash. Its seed is random, so that collisions cannot be
//! forced; the probability of a chance collision among 65,536 concurrent flows is 2⁻³³. State is
//! plain data: one small record per flow, and a private one for the table itself.
//!
//! At the maximum number of flows the table evicts an idle flow ([`Sessions::evict`]), whose next
//! block then begins a new session.

use crate::contract::{
    Field, FilterState, Holds, Mistake, MovedSession, PRIVATE, PublishedSessions, Row, Session,
    SessionNumbers, Sessions, Unit,
};
use std::net::{IpAddr, Ipv4Addr};
use wire::flow::{Direction, Flow};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A table of known flows.
#[derive(Debug)]
pub(crate) struct Flows<R> {
    table: Sessions<R>,
    most: usize,
    /// Session numbers that the table may assign.
    numbers: SessionNumbers,
    /// Numbers of known flows above the last assigned number, in descending order. Used once
    /// numbers are reused; `None` if the list must be rebuilt.
    taken: Option<Vec<u32>>,
}

/// The record of a flow: plain data of the filter that contains an [`Identity`].
pub(crate) trait Record: Session {
    /// Returns the common part of the record.
    fn identity(&self) -> &Identity;
    /// Returns the common part of the record, for modification.
    fn identity_mut(&mut self) -> &mut Identity;
}

/// The common part of all records, including the private record of the table.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Identity {
    /// The hash seed in the private record. Free for use by the filter in all other records.
    pub(crate) word: u64,
    /// Session number of the flow. In the private record, the number assigned last.
    pub(crate) session: u32,
    /// Nonzero if the forward direction is down: from the greater address and port to the lesser.
    pub(crate) down: u8,
    /// [`REUSED`] or 0 in the private record. Free for use by the filter in all other records.
    pub(crate) flags: u8,
    /// Free for use by the filter; `tcp` stores the server's port.
    pub(crate) port: u16,
}

/// An [`Identity`] is itself a record, for filters that store nothing else per flow.
impl Session for Identity {
    const FIELDS: &'static [Field<Self>] = &[Field::new(
        "down",
        Unit::YesNo,
        "forward is from the greater address to the lesser",
        |known, _| known.down.into(),
    )];

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

/// The session to which the table assigned a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlowSession {
    /// Session number.
    pub(crate) session: u32,
    /// True if the block's direction is opposite to that of the session's first block.
    pub(crate) backward: bool,
    /// True if the block is the first of its session.
    pub(crate) new: bool,
    /// True if the table evicted another flow to make room for this session.
    pub(crate) evicted: bool,
}

/// Flag in the private record: all numbers of the range have been assigned at least once.
const REUSED: u8 = 1;

/// Moves and publishes the records of the table. After a move, the list of used numbers is rebuilt.
impl<R: Record> FilterState for Flows<R> {
    fn sessions(&self) -> Vec<u64> {
        self.table.keys()
    }

    fn number(&self, key: u64) -> u64 {
        self.table.number(key)
    }

    fn take(&mut self, key: u64, holds: &mut Holds) -> Option<MovedSession> {
        self.table.take(key, holds)
    }

    fn put(&mut self, moved: MovedSession, holds: &mut Holds) -> Result<(), Mistake> {
        self.taken = None;
        self.table.put(moved, holds)?;
        let numbers = self.numbers;
        let shared = self.table.of(PRIVATE).identity_mut();
        if !numbers.has(shared.session) {
            // Numbers assigned elsewhere may belong to others here: continue with unused ones.
            (shared.session, shared.flags) = (0, shared.flags | REUSED);
        }
        Ok(())
    }

    fn publish(&mut self, whose: PublishedSessions, again: bool, to: &mut Row<'_>) {
        self.table.publish(whose, again, to);
    }
}

impl<R: Record> Flows<R> {
    /// Creates a table for at most `most` flows, but at least one. The flow hash uses `seed`
    /// ([`Arguments::seed`](crate::Arguments::seed)), and `numbers` are the session numbers to
    /// assign.
    pub(crate) fn new(most: usize, seed: u64, numbers: SessionNumbers) -> Self {
        let mut table = Sessions::<R>::default();
        table.of(PRIVATE).identity_mut().word = seed;
        // Guarantees a free number.
        let most = most.clamp(1, usize::try_from(numbers.count()).unwrap_or(usize::MAX));
        Self { table, most, numbers, taken: None }
    }

    /// Returns the seed for [`Flows::key`]. Callers read it once per batch.
    pub(crate) fn seed(&self) -> u64 {
        self.table.get(PRIVATE).map_or(0, |shared| shared.identity().word)
    }

    /// Returns the key of a flow, which is the same for both directions and differs from the
    /// private record's key. Also returns true if the frame was sent from the greater address and
    /// port to the lesser.
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
            _ => (flow.hash(seed), flow.normalized().1 == Direction::Down),
        };
        (hash.max(PRIVATE + 1), down)
    }

    /// Returns the record with this key and marks it as used; `None` if the flow is unknown.
    #[inline]
    pub(crate) fn find(&mut self, key: u64) -> Option<&mut R> {
        self.table.find(key)
    }

    /// Prefetches the records of these flows ([`Sessions::prefetch`]).
    pub(crate) fn prefetch(&mut self, keys: impl IntoIterator<Item = u64>) {
        self.table.prefetch(keys);
    }

    /// Returns the record with this key without marking it as used; `None` if the flow is unknown.
    pub(crate) fn get(&self, key: u64) -> Option<&R> {
        self.table.get(key)
    }

    /// Begins a flow with a new session number, and returns its record.
    pub(crate) fn begin(&mut self, key: u64, down: bool) -> &mut R {
        let session = self.next_number();
        let record = self.table.of(key);
        *record = R::default();
        let identity = record.identity_mut();
        (identity.session, identity.down) = (session, down.into());
        record
    }

    /// Returns a session number that no known flow has.
    fn next_number(&mut self) -> u32 {
        let shared = self.table.of(PRIVATE).identity_mut();
        match self.numbers.after(shared.session) {
            Some(next) if shared.flags & REUSED == 0 => {
                shared.session = next;
                next
            }
            next => self.next_reused(next),
        }
    }

    /// Returns the next number to reuse. `next` is the number after the last assigned one, or
    /// `None` if that was the highest of the range.
    #[cold]
    fn next_reused(&mut self, next: Option<u32>) -> u32 {
        let next = next.and_then(|next| {
            let taken = self.taken.take().unwrap_or_else(|| self.used_from(next));
            self.first_free(next, taken)
        });
        // There are more numbers than flows; if a moved state brought too many flows, the lowest
        // number will do.
        let from_the_lowest = || self.first_free(self.numbers.first(), self.used_from(0));
        let next = next.or_else(from_the_lowest).unwrap_or_else(|| self.numbers.first());
        let shared = self.table.of(PRIVATE).identity_mut();
        (shared.session, shared.flags) = (next, shared.flags | REUSED);
        next
    }

    /// Returns the first number, from `next` on, that is not in `taken`; `None` if all numbers up
    /// to the end of the range are taken.
    fn first_free(&mut self, mut next: u32, mut taken: Vec<u32>) -> Option<u32> {
        while taken.last().is_some_and(|lowest| *lowest <= next) {
            if taken.pop() == Some(next) {
                next = self.numbers.after(next)?;
            }
        }
        self.taken = Some(taken);
        Some(next)
    }

    /// Returns the session numbers of known flows, from `from` upwards, in descending order.
    fn used_from(&self, from: u32) -> Vec<u32> {
        let keys = self.table.keys().into_iter().filter(|key| *key != PRIVATE);
        let numbers = keys.filter_map(|key| Some(self.get(key)?.identity().session));
        let mut taken: Vec<u32> = numbers.filter(|number| *number >= from).collect();
        taken.sort_unstable_by(|one, other| other.cmp(one));
        taken
    }

    /// Removes a flow and returns its record; `None` if the flow is unknown.
    pub(crate) fn end(&mut self, key: u64) -> Option<R> {
        self.table.end(key)
    }

    /// If the table is full, evicts an idle flow and returns its record.
    pub(crate) fn make_room(&mut self) -> Option<R> {
        // The private record counts as one more.
        match self.table.len() > self.most {
            true => self.table.evict().map(|(_, record)| record),
            false => None,
        }
    }

    /// Returns the keys of all records, the private one included.
    pub(crate) fn keys(&self) -> Vec<u64> {
        self.table.keys()
    }

    /// Returns the keys of all flows, ordered by session number.
    pub(crate) fn keys_by_session(&self) -> Vec<u64> {
        let keys = self.table.keys().into_iter().filter(|key| *key != PRIVATE);
        let session = |key: u64| self.get(key).map_or(0, |record| record.identity().session);
        let mut numbered: Vec<(u32, u64)> = keys.map(|key| (session(key), key)).collect();
        numbered.sort_unstable();
        numbered.into_iter().map(|(_, key)| key).collect()
    }
}

impl Flows<Identity> {
    /// Returns the session of a flow. If the flow is unknown, begins a session.
    pub(crate) fn session(&mut self, flow: &Flow, seed: u64) -> FlowSession {
        let (key, down) = Self::key(flow, seed);
        let down = u8::from(down);
        if let Some(known) = self.table.find(key) {
            let backward = known.down != down;
            return FlowSession { session: known.session, backward, new: false, evicted: false };
        }
        let evicted = self.make_room().is_some();
        let session = self.begin(key, down != 0).session;
        FlowSession { session, backward: false, new: true, evicted }
    }
}

/// Hashes an IPv4 flow whose two endpoints are given as 48 bits each (address and port). Combines
/// each endpoint with a secret, multiplies both, and applies the SplitMix64 finalizer. Costs a
/// quarter of the general hash of `wire::flow`.
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
    fn flow_is_one_session_both_ways_and_first_is_forward() {
        let mut flows = Flows::new(10, 7, SessionNumbers::ALL);
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
    fn n2_replicas_assign_distinct_session_numbers() {
        let mut seen = std::collections::HashSet::new();
        for number in 0..3 {
            let mut flows = Flows::new(100, 7, SessionNumbers::ALL.split(number, 3));
            let seed = flows.seed();
            let given: Vec<u32> =
                (0..50).map(|port| flows.session(&flow(port, 53), seed).session).collect();
            assert_eq!(given[0], number + 1);
            assert!(given.into_iter().all(|session| seen.insert(session)));
        }
    }

    #[test]
    fn full_table_evicts_an_idle_flow() {
        for most in [1, 2, 7] {
            let mut flows = Flows::new(most, 7, SessionNumbers::ALL);
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
    fn keys_distinguish_flows_but_not_directions() {
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
                assert_eq!((key, down), (back, flow.normalized().1 == Direction::Down));
                assert!(!(up && down));
                assert!(keys.insert(key), "seed {seed}: {flow}");
            }
        }
    }

    #[test]
    fn numbers_are_not_reused_early() {
        let mut flows = Flows::new(3, 7, SessionNumbers::ALL);
        let seed = flows.seed();
        let numbers = (0..1000).map(|port| flows.session(&flow(port, 53), seed).session);
        assert!(numbers.eq(1..=1000));
        flows.table.of(PRIVATE).session = u32::MAX;
        assert_eq!(flows.session(&flow(5000, 53), seed).session, 1, "0 is no session");
    }

    #[test]
    fn a14_reuse_skips_numbers_of_known_flows() {
        let mut flows = Flows::new(4, 7, SessionNumbers::ALL);
        let seed = flows.seed();
        for port in [1, 2, 3] {
            flows.session(&flow(port, 53), seed);
        }
        flows.end(Flows::<Identity>::key(&flow(2, 53), seed).0);
        flows.table.of(PRIVATE).session = u32::MAX;
        let mut given = |port| flows.session(&flow(port, 53), seed).session;
        assert_eq!([4, 1, 3, 5].map(&mut given), [2, 1, 3, 4], "1 and 3 are still known");
    }

    /// With few numbers and many flows, the numbers of known flows stay distinct and within the
    /// filter's range, after any sequence of ends, evictions and moves.
    #[test]
    fn a14_known_flows_have_distinct_numbers() {
        let mut random = testkit::Random::replayable();
        for _ in 0..40 {
            let step = random.within(1..5) as u32;
            let first = random.within(1..9) as u32;
            let count = random.within(1..40) as u32;
            let numbers = SessionNumbers::from_words([first, step, first + step * count]);
            let most = random.within(1..60);
            let mut flows = Flows::<Identity>::new(most, 7, numbers);
            let seed = flows.seed();
            let mut began = 0;
            for _ in 0..600 {
                let flow = flow(random.below(200) as u16, 53);
                match random.below(20) {
                    0 => {
                        let mut other = Flows::new(most, 7, numbers);
                        let mut holds = Holds::new(0, 0);
                        for key in flows.keys() {
                            let moved = flows.take(key, &mut holds).expect("it is there");
                            other.put(moved, &mut holds).expect("it fits");
                        }
                        flows = other;
                    }
                    1..6 => drop(flows.end(Flows::<Identity>::key(&flow, seed).0)),
                    _ => began += u32::from(flows.session(&flow, seed).new),
                }
                let known = flows.keys_by_session();
                let known = known.iter().map(|key| flows.get(*key).expect("known").session);
                let mut known: Vec<u32> = known.collect();
                let own = |number: &u32| {
                    *number >= first
                        && (number - first).is_multiple_of(step)
                        && *number <= first + step * count
                };
                assert!(known.iter().all(own), "{known:?} of {numbers:?}");
                let before = known.len();
                known.dedup();
                assert_eq!(known.len(), before, "{known:?} of {numbers:?}");
            }
            assert!(began > 2 * count, "numbers came again");
        }
    }
}
