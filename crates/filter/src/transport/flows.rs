//! Flow table, which assigns frames to sessions and directions (CONTRACT 8).
//!
//! Input: the flow of a frame. Output: the [`FlowRecord`] of the flow, which contains the session
//! number. Numbers are assigned in the order of first appearance, from the lowest of the filter's
//! own range ([`SessionNumbers`]). If only one filter of a request assigns sessions and it has no
//! replicas, its numbers are 1, 2, 3 and so on. After the range is exhausted, the table reuses
//! numbers that no flow in the table has.
//!
//! Flows are distinguished by a 64-bit hash. Its seed is random, so that collisions cannot be
//! forced; the probability of a chance collision among 65,536 concurrent flows is 2⁻³³. State is
//! plain data: one small record per flow, and a private one for the table itself.
//!
//! At the maximum number of flows the table evicts an idle flow ([`Sessions::evict`]), whose next
//! block then begins a new session.

use crate::contract::{
    Field, FilterState, HoldTable, Mistake, MovedSession, PRIVATE_SESSION_KEY, PublishedSessions,
    RowCallback, Session, SessionNumbers, Sessions, Unit,
};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use wire::flow::{Direction, Flow};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A table of flows, each with a record of type `R`.
#[derive(Debug)]
pub(crate) struct FlowTable<R> {
    table: Sessions<R>,
    flows_max: usize,
    /// Session numbers that the table assigns to flows.
    numbers: SessionNumbers,
    /// Session numbers that flows use and that are greater than the number assigned last, in
    /// descending order. `None` until all numbers of the range have been assigned, and while the
    /// list is outdated.
    used_numbers: Option<Vec<u32>>,
    /// Session numbers of this range that may still belong to flows in another table, to which the
    /// flows were moved. At most [`MOVED_NUMBERS_MAX`].
    away: BTreeSet<u32>,
}

/// Maximum number of session numbers that stay reserved for flows that were moved to another table.
const MOVED_NUMBERS_MAX: usize = 1 << 20;

/// The record of a flow: plain data of the filter, which contains a [`FlowIdentity`].
pub(crate) trait FlowRecord: Session {
    /// Returns the fields that records of all types have in common.
    fn identity(&self) -> &FlowIdentity;
    /// Returns the fields that records of all types have in common, for modification.
    fn identity_mut(&mut self) -> &mut FlowIdentity;
}

/// The fields that every record of a flow table has, including the private record of the table,
/// which belongs to no flow.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct FlowIdentity {
    /// Free for use by the filter. The private record of the table instead contains the hash seed
    /// of the table.
    pub(crate) word: u64,
    /// Session number of the flow. The private record of the table instead contains the session
    /// number that was assigned last.
    pub(crate) session: u32,
    /// Nonzero if the forward direction is from the greater address and port to the lesser.
    pub(crate) is_forward_down: u8,
    /// Flags, free for use by the filter. The private record of the table instead contains
    /// [`NUMBERS_REUSED_FLAG`] or 0.
    pub(crate) flags: u8,
    /// Free for use by the filter; `tcp` stores the server's port.
    pub(crate) port: u16,
}

/// A [`FlowIdentity`] is itself a record, for filters that store no other data per flow.
impl Session for FlowIdentity {
    const FIELDS: &'static [Field<Self>] = &[Field::new(
        "down",
        Unit::YesNo,
        "forward is from the greater address to the lesser",
        |known, _| known.is_forward_down.into(),
    )];

    fn session_number(&self, _: u64) -> u64 {
        self.session.into()
    }
}

impl FlowRecord for FlowIdentity {
    fn identity(&self) -> &FlowIdentity {
        self
    }

    fn identity_mut(&mut self) -> &mut FlowIdentity {
        self
    }
}

/// The session to which the table assigned a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlowSession {
    /// Session number of the block.
    pub(crate) session: u32,
    /// True if the block's direction is opposite to that of the session's first block.
    pub(crate) backward: bool,
    /// True if the block is the first of its session.
    pub(crate) is_new: bool,
    /// True if the table evicted another flow to make room for this session.
    pub(crate) has_evicted: bool,
}

/// Flag in the private record of a flow table that reuses session numbers. Set once all numbers of
/// the filter's range have been assigned, or after a move from a filter with another range.
const NUMBERS_REUSED_FLAG: u8 = 1;

/// Moves and publishes the records of the flow table. After a move, the table rebuilds the list of
/// the session numbers in use.
impl<R: FlowRecord> FilterState for FlowTable<R> {
    fn session_keys(&self) -> Vec<u64> {
        self.table.keys()
    }

    fn session_number(&self, key: u64) -> u64 {
        self.table.session_number(key)
    }

    fn take_session(&mut self, key: u64, holds: &mut HoldTable) -> Option<MovedSession> {
        let number = self.table.get(key)?.identity().session;
        if key != PRIVATE_SESSION_KEY
            && self.numbers.contains(number)
            && self.away.len() < self.moved_flows_max()
        {
            self.away.insert(number);
            self.used_numbers = None;
        }
        self.table.take_session(key, holds)
    }

    fn put_session(&mut self, moved: MovedSession, holds: &mut HoldTable) -> Result<(), Mistake> {
        self.used_numbers = None;
        let key = moved.key;
        self.table.put_session(moved, holds)?;
        if let Some(back) = self.table.get(key).filter(|_| key != PRIVATE_SESSION_KEY) {
            self.away.remove(&back.identity().session);
        }
        let numbers = self.numbers;
        let shared = self.table.get_or_create(PRIVATE_SESSION_KEY).identity_mut();
        if !numbers.contains(shared.session) {
            // A number assigned by another instance may belong to another flow here, so only unused
            // numbers are assigned from now on.
            (shared.session, shared.flags) = (0, shared.flags | NUMBERS_REUSED_FLAG);
        }
        Ok(())
    }

    fn publish(&mut self, whose: PublishedSessions, again: bool, to: &mut RowCallback<'_>) {
        self.table.publish(whose, again, to);
    }
}

impl<R: FlowRecord> FlowTable<R> {
    /// Creates a table for at most `flows_max` flows. The maximum is clamped to the range from 1 to
    /// the number of session numbers. `seed` is the seed of the flow hash
    /// ([`Arguments::seed`](crate::Arguments::seed)), and `numbers` are the session numbers to
    /// assign.
    pub(crate) fn new(flows_max: usize, seed: u64, numbers: SessionNumbers) -> Self {
        let mut table = Sessions::<R>::default();
        table.get_or_create(PRIVATE_SESSION_KEY).identity_mut().word = seed;
        // With at most this many flows, a number is always free.
        let flows_max = flows_max.clamp(1, usize::try_from(numbers.count()).unwrap_or(usize::MAX));
        Self { table, flows_max, numbers, used_numbers: None, away: BTreeSet::new() }
    }

    /// Returns the maximum number of session numbers that this table reserves for flows that were
    /// moved to another table, so that enough numbers remain for the flows of this table.
    fn moved_flows_max(&self) -> usize {
        (self.numbers.count() as usize).saturating_sub(self.flows_max).min(MOVED_NUMBERS_MAX)
    }

    /// Returns the seed for [`FlowTable::flow_key_and_direction`]. Callers read it once per batch.
    pub(crate) fn seed(&self) -> u64 {
        self.table.get(PRIVATE_SESSION_KEY).map_or(0, |shared| shared.identity().word)
    }

    /// Returns the key of a flow, and true if the frame was sent from the greater address and port
    /// to the lesser. The key is the same for both directions, and never equals the key of the
    /// private record.
    #[inline]
    pub(crate) fn flow_key_and_direction(flow: &Flow, seed: u64) -> (u64, bool) {
        let (hash, down) = match (flow.source, flow.target, flow.ports) {
            (IpAddr::V4(source), IpAddr::V4(target), Some(ports)) => {
                let end = |address: Ipv4Addr, port: u16| {
                    u64::from(address.to_bits()) << 16 | u64::from(port)
                };
                let (from, to) = (end(source, ports.source), end(target, ports.target));
                (hash_ipv4_flow(from.min(to), from.max(to), flow.protocol, seed), from > to)
            }
            _ => (flow.hash(seed), flow.normalized().1 == Direction::HighToLow),
        };
        (hash.max(PRIVATE_SESSION_KEY + 1), down)
    }

    /// Returns the record with this key and marks it as used, or `None` if the flow is not in the
    /// table.
    #[inline]
    pub(crate) fn find(&mut self, key: u64) -> Option<&mut R> {
        self.table.find(key)
    }

    /// Prefetches the records of the flows with these keys ([`Sessions::prefetch`]).
    pub(crate) fn prefetch(&mut self, keys: impl IntoIterator<Item = u64>) {
        self.table.prefetch(keys);
    }

    /// Returns the record with this key without marking it as used, or `None` if the flow is not in
    /// the table.
    pub(crate) fn get(&self, key: u64) -> Option<&R> {
        self.table.get(key)
    }

    /// Begins a flow with a new session number, and returns its record. `down` is true if the
    /// forward direction is from the greater address and port to the lesser.
    pub(crate) fn begin_flow(&mut self, key: u64, down: bool) -> &mut R {
        let session = self.unused_session_number();
        let record = self.table.get_or_create(key);
        *record = R::default();
        let identity = record.identity_mut();
        (identity.session, identity.is_forward_down) = (session, down.into());
        record
    }

    /// Returns a session number that no flow in the table has.
    fn unused_session_number(&mut self) -> u32 {
        let shared = self.table.get_or_create(PRIVATE_SESSION_KEY).identity_mut();
        match self.numbers.next_after(shared.session) {
            Some(next) if shared.flags & NUMBERS_REUSED_FLAG == 0 => {
                shared.session = next;
                next
            }
            next => self.next_reused_session_number(next),
        }
    }

    /// Returns the next session number to reuse. `next` is the number after the one assigned last,
    /// or `None` if that one was the highest of the range.
    #[cold]
    fn next_reused_session_number(&mut self, next: Option<u32>) -> u32 {
        let next = next.and_then(|next| {
            let taken =
                self.used_numbers.take().unwrap_or_else(|| self.used_session_numbers_from(next));
            self.first_free_number(next, taken)
        });
        // There are more numbers than flows. If moved state has brought too many flows, the lowest
        // number is used twice.
        let from_the_lowest =
            || self.first_free_number(self.numbers.first(), self.used_session_numbers_from(0));
        let next = next.or_else(from_the_lowest).unwrap_or_else(|| self.numbers.first());
        let shared = self.table.get_or_create(PRIVATE_SESSION_KEY).identity_mut();
        (shared.session, shared.flags) = (next, shared.flags | NUMBERS_REUSED_FLAG);
        next
    }

    /// Returns the first session number from `next` on that is not in `taken`. Returns `None` if
    /// all of these numbers are taken.
    fn first_free_number(&mut self, mut next: u32, mut taken: Vec<u32>) -> Option<u32> {
        while taken.last().is_some_and(|lowest| *lowest <= next) {
            if taken.pop() == Some(next) {
                next = self.numbers.next_after(next)?;
            }
        }
        self.used_numbers = Some(taken);
        Some(next)
    }

    /// Returns the session numbers in use from `from` on, in descending order: those of flows in
    /// the table, and those of flows that were moved to another table.
    fn used_session_numbers_from(&self, from: u32) -> Vec<u32> {
        let keys = self.table.keys().into_iter().filter(|key| *key != PRIVATE_SESSION_KEY);
        let numbers = keys.filter_map(|key| Some(self.get(key)?.identity().session));
        let away = self.away.range(from..).copied();
        let mut taken: Vec<u32> = numbers.filter(|number| *number >= from).chain(away).collect();
        taken.sort_unstable_by(|one, other| other.cmp(one));
        taken
    }

    /// Removes a flow and returns its record, or `None` if the flow is not in the table.
    pub(crate) fn remove(&mut self, key: u64) -> Option<R> {
        self.table.remove(key)
    }

    /// If the table is full, evicts an idle flow and returns its record. Otherwise returns `None`.
    pub(crate) fn make_room(&mut self) -> Option<R> {
        // `len` includes the private record.
        match self.table.len() > self.flows_max {
            true => self.table.evict().map(|(_, record)| record),
            false => None,
        }
    }

    /// Returns the keys of all records, including the private record of the table.
    pub(crate) fn keys(&self) -> Vec<u64> {
        self.table.keys()
    }

    /// Returns the keys of all flows, ordered by session number.
    pub(crate) fn keys_by_session(&self) -> Vec<u64> {
        let keys = self.table.keys().into_iter().filter(|key| *key != PRIVATE_SESSION_KEY);
        let session = |key: u64| self.get(key).map_or(0, |record| record.identity().session);
        let mut numbered: Vec<(u32, u64)> = keys.map(|key| (session(key), key)).collect();
        numbered.sort_unstable();
        numbered.into_iter().map(|(_, key)| key).collect()
    }
}

impl FlowTable<FlowIdentity> {
    /// Returns the session of a flow. Begins a session if the flow is not in the table.
    pub(crate) fn assign_session(&mut self, flow: &Flow, seed: u64) -> FlowSession {
        let (key, down) = Self::flow_key_and_direction(flow, seed);
        let down = u8::from(down);
        if let Some(known) = self.table.find(key) {
            let backward = known.is_forward_down != down;
            return FlowSession {
                session: known.session,
                backward,
                is_new: false,
                has_evicted: false,
            };
        }
        let evicted = self.make_room().is_some();
        let session = self.begin_flow(key, down != 0).session;
        FlowSession { session, backward: false, is_new: true, has_evicted: evicted }
    }
}

/// Hashes an IPv4 flow. `low` and `high` are the two endpoints, each an address and a port in 48
/// bits. The function combines each endpoint with a secret, multiplies the results, and applies the
/// SplitMix64 finalizer. It is cheaper than the general hash of `wire::flow`.
#[inline]
fn hash_ipv4_flow(low: u64, high: u64, protocol: u8, seed: u64) -> u64 {
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

    fn test_flow(source: u16, target: u16) -> Flow {
        let ports = Some(Ports { source, target });
        Flow { source: [10, 0, 0, 1].into(), target: [10, 0, 0, 2].into(), protocol: 17, ports }
    }

    #[test]
    fn flow_is_one_session_and_first_direction_is_forward() {
        let mut flows = FlowTable::new(10, 7, SessionNumbers::ALL);
        let seed = flows.seed();
        let mut find = |flow: Flow| {
            let found = flows.assign_session(&flow, seed);
            (found.session, found.backward, found.is_new)
        };
        let (query, other) = (test_flow(4000, 53), test_flow(4001, 53));
        assert_eq!(find(query.reversed()), (1, false, true));
        assert_eq!(find(query), (1, true, false));
        assert_eq!(find(other), (2, false, true));
        assert_eq!(find(query.reversed()), (1, false, false));
        assert_eq!(find(other.reversed()), (2, true, false));
        assert_eq!(find(Flow { protocol: 6, ..query }), (3, false, true));
    }

    #[test]
    fn n2_replicas_assign_distinct_session_numbers() {
        let mut assigned = std::collections::HashSet::new();
        for number in 0..3 {
            let mut flows = FlowTable::new(100, 7, SessionNumbers::ALL.nth_share(number, 3));
            let seed = flows.seed();
            let sessions: Vec<u32> = (0..50)
                .map(|port| flows.assign_session(&test_flow(port, 53), seed).session)
                .collect();
            assert_eq!(sessions[0], number + 1);
            assert!(sessions.into_iter().all(|session| assigned.insert(session)));
        }
    }

    #[test]
    fn full_table_evicts_an_idle_flow() {
        for flows_max in [1, 2, 7] {
            let mut flows = FlowTable::new(flows_max, 7, SessionNumbers::ALL);
            let seed = flows.seed();
            for port in 0..100 {
                let busy = flows.assign_session(&test_flow(9, 9), seed);
                assert!(busy.session == 1 || flows_max == 1, "{flows_max}: {busy:?}");
                let found = flows.assign_session(&test_flow(1000 + port, 53), seed);
                assert!(
                    found.is_new && found.has_evicted == (usize::from(port) + 2 > flows_max),
                    "{found:?}"
                );
                assert!(flows.table.len() <= flows_max + 1);
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
                    FlowTable::<FlowIdentity>::flow_key_and_direction(&flow, seed),
                    FlowTable::<FlowIdentity>::flow_key_and_direction(&flow.reversed(), seed),
                );
                assert_eq!((key, down), (back, flow.normalized().1 == Direction::HighToLow));
                assert!(!(up && down));
                assert!(keys.insert(key), "seed {seed}: {flow}");
            }
        }
    }

    #[test]
    fn session_numbers_are_not_reused_early() {
        let mut flows = FlowTable::new(3, 7, SessionNumbers::ALL);
        let seed = flows.seed();
        let numbers =
            (0..1000).map(|port| flows.assign_session(&test_flow(port, 53), seed).session);
        assert!(numbers.eq(1..=1000));
        flows.table.get_or_create(PRIVATE_SESSION_KEY).session = u32::MAX;
        assert_eq!(flows.assign_session(&test_flow(5000, 53), seed).session, 1, "0 is no session");
    }

    #[test]
    fn a14_reuse_skips_numbers_of_known_flows() {
        let mut flows = FlowTable::new(4, 7, SessionNumbers::ALL);
        let seed = flows.seed();
        for port in [1, 2, 3] {
            flows.assign_session(&test_flow(port, 53), seed);
        }
        flows.remove(FlowTable::<FlowIdentity>::flow_key_and_direction(&test_flow(2, 53), seed).0);
        flows.table.get_or_create(PRIVATE_SESSION_KEY).session = u32::MAX;
        let mut given = |port| flows.assign_session(&test_flow(port, 53), seed).session;
        assert_eq!([4, 1, 3, 5].map(&mut given), [2, 1, 3, 4], "1 and 3 are still known");
    }

    #[test]
    fn a14_reuse_skips_numbers_of_flows_in_other_replicas() {
        let mut flows = FlowTable::new(9, 7, SessionNumbers::ALL);
        let mut other = FlowTable::<FlowIdentity>::new(9, 7, SessionNumbers::ALL.nth_share(1, 2));
        let (seed, mut holds) = (flows.seed(), HoldTable::new(0, 0));
        for port in [1, 2, 3] {
            flows.assign_session(&test_flow(port, 53), seed);
        }
        let key =
            |port| FlowTable::<FlowIdentity>::flow_key_and_direction(&test_flow(port, 53), seed).0;
        for port in [1, 2] {
            let moved = flows.take_session(key(port), &mut holds).unwrap();
            other.put_session(moved, &mut holds).unwrap();
        }
        flows.table.get_or_create(PRIVATE_SESSION_KEY).session = u32::MAX;
        assert_eq!(flows.assign_session(&test_flow(4, 53), seed).session, 4, "1 and 2 live there");
        // A flow that returns to this table and ends here frees its number.
        let moved = other.take_session(key(2), &mut holds).unwrap();
        flows.put_session(moved, &mut holds).unwrap();
        flows.remove(key(2));
        flows.table.get_or_create(PRIVATE_SESSION_KEY).session = u32::MAX;
        flows.used_numbers = None;
        assert_eq!(flows.assign_session(&test_flow(5, 53), seed).session, 2);
    }

    /// With few numbers and many flows, the session numbers of known flows stay distinct and within
    /// the filter's range, after any sequence of ends, evictions and moves.
    #[test]
    fn a14_known_flows_have_distinct_numbers() {
        let mut random = testkit::Random::with_replayable_seed();
        for _ in 0..40 {
            let step = random.within(1..5) as u32;
            let first = random.within(1..9) as u32;
            let count = random.within(1..40) as u32;
            let numbers = SessionNumbers::from_words([first, step, first + step * count]);
            let flows_max = random.within(1..60);
            let mut flows = FlowTable::<FlowIdentity>::new(flows_max, 7, numbers);
            let seed = flows.seed();
            let mut began = 0;
            for _ in 0..600 {
                let flow = test_flow(random.below(200) as u16, 53);
                match random.below(20) {
                    0 => {
                        let mut other = FlowTable::new(flows_max, 7, numbers);
                        let mut holds = HoldTable::new(0, 0);
                        for key in flows.keys() {
                            let moved = flows.take_session(key, &mut holds).expect("it is there");
                            other.put_session(moved, &mut holds).expect("it fits");
                        }
                        flows = other;
                    }
                    1..6 => {
                        let (key, _) =
                            FlowTable::<FlowIdentity>::flow_key_and_direction(&flow, seed);
                        _ = flows.remove(key);
                    }
                    _ => began += u32::from(flows.assign_session(&flow, seed).is_new),
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
