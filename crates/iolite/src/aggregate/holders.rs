//! Leases in the name of other processes, given back when the process is gone. [IOL §2.1,
//! system-wide reference counts], RELIABILITY T8, T10, T12
//!
//! In: who joined, which aggregates were sent to whom, what came back, and who is gone (their
//! control socket or their doorbell says so, however they ended: `sys::doorbell`). Out: segments
//! that stay as long as somebody may look at them, and no longer.
//!
//! No count lies in shared memory, so none is lost when a process is killed between two
//! instructions, and none can be forged. The owner counts, in its own memory, by what it sent and
//! what is said to have come back. A peer that says too little keeps memory up to its limit, until
//! it is gone; one that says too much loses what it could still look at, and nobody else does.

use super::refusal::GrantRefusal;
use super::{Aggregate, Slice};
use abi::access::Credentials;
use abi::{DbufId, RichPointer};
use buffer::pool::Lease;
use std::collections::BTreeMap;

/// Names a process that joined. Never given twice by one owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(u64);

/// The peers of an owner, and what each of them keeps.
#[derive(Debug)]
pub struct Holders {
    peers: BTreeMap<PeerId, Peer>,
    next: u64,
    limit: usize,
}

#[derive(Debug)]
struct Peer {
    credentials: Credentials,
    /// Keyed by dbuf and by the position at which the segment begins.
    held: BTreeMap<(DbufId, u64), HeldSegment>,
    /// Bytes of a segment of each dbuf that was ever sent.
    segments: BTreeMap<DbufId, u64>,
    mistakes: u64,
}

/// One segment that a peer keeps: one lease, however often it refers to it.
#[derive(Debug)]
struct HeldSegment {
    #[expect(dead_code, reason = "held to be dropped")]
    lease: Lease,
    references: u64,
}

/// The holdings of one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Holding {
    /// Segments that cannot be used again because of it.
    pub segments: usize,
    /// Slices that were sent and have not come back.
    pub references: u64,
    /// Slices that were said to come back and had not been sent.
    pub mistakes: u64,
}

impl Holders {
    /// Makes an empty record; each peer will keep up to `limit` segments.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self { peers: BTreeMap::new(), next: 0, limit }
    }

    /// A process has come; what it may do depends on these credentials as long as it stays,
    /// whatever becomes of its user or groups (T17).
    pub fn join(&mut self, credentials: Credentials) -> PeerId {
        let id = PeerId(self.next);
        self.next += 1;
        let peer =
            Peer { credentials, held: BTreeMap::new(), segments: BTreeMap::new(), mistakes: 0 };
        self.peers.insert(id, peer);
        id
    }

    /// Returns the credentials of a peer that is still present.
    #[must_use]
    pub fn credentials(&self, peer: PeerId) -> Option<&Credentials> {
        self.peers.get(&peer).map(|peer| &peer.credentials)
    }

    /// Returns all present holders.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.peers.keys().copied()
    }

    /// Keeps every slice of an aggregate for a peer, or none. Call it before the pointers are sent.
    pub fn hold(&mut self, peer: PeerId, aggregate: &Aggregate) -> Result<(), GrantRefusal> {
        let limit = self.limit;
        let known = self.peers.get_mut(&peer).ok_or(GrantRefusal::UnknownPeer(peer))?;
        for (count, slice) in aggregate.slices().enumerate() {
            if !known.hold(slice, limit) {
                for held in aggregate.slices().take(count) {
                    known.give_back(held.pointer());
                }
                return Err(GrantRefusal::Limit { peer, limit });
            }
        }
        Ok(())
    }

    /// A peer says that it needs this slice no longer: the pointer as it was sent, or into its
    /// segment. `false`: nothing was sent that it could mean; counted, and nothing changed.
    pub fn give_back(&mut self, peer: PeerId, pointer: RichPointer) -> bool {
        let Some(peer) = self.peers.get_mut(&peer) else { return false };
        let known = peer.give_back(pointer);
        peer.mistakes += u64::from(!known);
        known
    }

    /// A peer is gone: all that it kept is given back. Answers how much it was.
    pub fn gone(&mut self, peer: PeerId) -> Option<Holding> {
        self.peers.remove(&peer).map(|peer| peer.holding())
    }

    /// Returns the holdings of a peer.
    #[must_use]
    pub fn holding(&self, peer: PeerId) -> Option<Holding> {
        self.peers.get(&peer).map(Peer::holding)
    }
}

impl Peer {
    /// `false`: it keeps as many segments as it may.
    fn hold(&mut self, slice: &Slice, limit: usize) -> bool {
        let key = (slice.pointer().dbuf(), slice.segment());
        if let Some(held) = self.held.get_mut(&key) {
            held.references += 1;
            return true;
        }
        let has_room = self.held.len() < limit;
        if has_room {
            self.segments.insert(key.0, slice.lease().segment_len() as u64);
            self.held.insert(key, HeldSegment { lease: slice.lease().clone(), references: 1 });
        }
        has_room
    }

    fn give_back(&mut self, pointer: RichPointer) -> bool {
        let dbuf = pointer.dbuf();
        let Some(segment) = self.segments.get(&dbuf) else { return false };
        let key = (dbuf, pointer.place.position() & !(segment - 1));
        let Some(held) = self.held.get_mut(&key) else { return false };
        held.references -= 1;
        if held.references == 0 {
            self.held.remove(&key);
        }
        true
    }

    fn holding(&self) -> Holding {
        Holding {
            segments: self.held.len(),
            references: self.held.values().map(|held| held.references).sum(),
            mistakes: self.mistakes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::AllocationPool;
    use super::*;
    use abi::access::AccessList;
    use abi::{Class, Extent};
    use buffer::pool::Config;
    use sys::process::identity;
    use testkit::Random;

    const SEGMENT: usize = 4096;

    fn pool(segments: usize) -> AllocationPool {
        let config = Config { segment: SEGMENT, segments };
        AllocationPool::new(DbufId::new(3).unwrap(), config, AccessList::private(identity()))
            .unwrap()
    }

    fn segment(pool: &mut AllocationPool) -> Aggregate {
        pool.copy(&[1; SEGMENT]).unwrap()
    }

    #[test]
    fn q18_what_a_peer_refers_to_stays_until_it_is_gone() {
        let mut pool = pool(4);
        let mut holders = Holders::new(8);
        let [first, second] = [1, 2].map(|user| holders.join(Credentials::new(user, user)));
        let sent = segment(&mut pool);
        let pointer = sent.slices().next().unwrap().pointer();
        for peer in [first, first, second] {
            holders.hold(peer, &sent).unwrap();
        }
        drop(sent);
        assert_eq!(pool.usage().leased, 1);
        assert!(holders.give_back(second, pointer.within(7, 1)));
        assert!(!holders.give_back(second, pointer), "it has none left");
        let counted = holders.gone(first).unwrap();
        assert_eq!(counted, Holding { segments: 1, references: 2, mistakes: 0 });
        assert_eq!(pool.usage().leased, 0);
        assert_eq!(holders.gone(first), None, "gone once");
        assert!(!holders.give_back(first, pointer));
        assert_eq!(holders.gone(second).unwrap().mistakes, 1);
    }

    #[test]
    fn a_peer_keeps_no_more_than_its_limit_and_an_aggregate_is_kept_whole_or_not() {
        let mut pool = pool(8);
        let mut holders = Holders::new(3);
        let peer = holders.join(Credentials::from(identity()));
        let mut sent = Aggregate::new();
        for _ in 0..4 {
            sent.append(segment(&mut pool)).unwrap();
        }
        assert_eq!(holders.hold(peer, &sent), Err(GrantRefusal::Limit { peer, limit: 3 }));
        assert_eq!(holders.holding(peer), Some(Holding::default()));
        sent.truncate(3 * SEGMENT);
        holders.hold(peer, &sent).unwrap();
        holders.hold(peer, &sent).unwrap();
        drop(sent);
        let held = Holding { segments: 3, references: 6, mistakes: 0 };
        assert_eq!(holders.holding(peer), Some(held));
        assert_eq!(pool.usage().leased, 3);
        drop(holders);
        assert_eq!(pool.usage().leased, 0, "an owner that is gone keeps nothing");
    }

    /// A peer may say anything: what others keep, and what was not sent, stays.
    #[test]
    fn q18_no_allegation_gives_back_what_another_keeps() {
        let mut random = Random::replayable();
        let mut pool = pool(8);
        let mut holders = Holders::new(8);
        let (honest, liar) = (
            holders.join(Credentials::from(identity())),
            holders.join(Credentials::from(identity())),
        );
        let sent: Vec<_> = (0..8).map(|_| segment(&mut pool)).collect();
        for aggregate in &sent {
            holders.hold(honest, aggregate).unwrap();
        }
        holders.hold(liar, &sent[0]).unwrap();
        drop(sent);
        let mut given = 0;
        for _ in 0..100_000 {
            let near = random.next() % (10 * SEGMENT as u64);
            let position = *random.pick(&[near, random.clone().next()]);
            let dbuf = DbufId::new(random.within(2..5) as u32).unwrap();
            let place = Extent::new(position, random.within(0..SEGMENT) as u32);
            given += u32::from(holders.give_back(liar, RichPointer::new(dbuf, place, Class::YES)));
        }
        assert_eq!(given, 1, "its own, once");
        assert_eq!(holders.holding(liar).unwrap().mistakes, 99_999);
        assert_eq!(pool.usage().leased, 8);
        assert_eq!(holders.holding(honest).unwrap().references, 8);
    }
}
