//! Leases that an owner holds on behalf of other processes. When a process exits, its leases are
//! released. [IOL §2.1, system-wide reference counts], RELIABILITY T8, T10, T12
//!
//! Input: processes that join, aggregates sent to them, slices that they release, and departures
//! (reported by a control socket or doorbell, however the process ended: `sys::doorbell`). Output:
//! segments that are held exactly as long as a process may read them.
//!
//! No counter is in shared memory, so no count is lost when a process is killed between two
//! instructions, and no count can be forged. The owner counts in its own memory the slices that it
//! has sent and the releases reported to it. A peer that reports too few releases holds memory, up
//! to its limit, until the peer exits. A peer that reports too many loses only its own slices.

use super::refusal::GrantRefusal;
use super::{Aggregate, Slice};
use abi::access::Credentials;
use abi::{DbufId, RichPointer};
use buffer::pool::Lease;
use std::collections::BTreeMap;

/// The id of a process that has joined. Never reused by an owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(u64);

/// The peers of an owner, with the segments held for each.
#[derive(Debug)]
pub struct Holders {
    peers: BTreeMap<PeerId, Peer>,
    next: u64,
    limit: usize,
}

#[derive(Debug)]
struct Peer {
    credentials: Credentials,
    /// Held segments, by the id of the dbuf and the position of the segment in it.
    held: BTreeMap<(DbufId, u64), HeldSegment>,
    /// Segment size in bytes of each dbuf from which a slice has been sent.
    segments: BTreeMap<DbufId, u64>,
    mistakes: u64,
}

/// A segment held for a peer: one lease for any number of references.
#[derive(Debug)]
struct HeldSegment {
    #[expect(dead_code, reason = "held to be dropped")]
    lease: Lease,
    references: u64,
}

/// Counters of the segments and slices held for one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeldCounts {
    /// Number of segments that are held for the peer and therefore cannot be reused.
    pub segments: usize,
    /// Number of slices sent but not yet released.
    pub references: u64,
    /// Number of invalid releases by the peer. A release is invalid if the peer does not hold the
    /// slice's segment.
    pub mistakes: u64,
}

impl Holders {
    /// Creates an empty set of peers, each of which may hold up to `limit` segments.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self { peers: BTreeMap::new(), next: 0, limit }
    }

    /// Adds a process, and returns its id. Until the process leaves, its access depends on these
    /// credentials, even if its user or groups change (T17).
    pub fn add_peer(&mut self, credentials: Credentials) -> PeerId {
        let id = PeerId(self.next);
        self.next += 1;
        let peer =
            Peer { credentials, held: BTreeMap::new(), segments: BTreeMap::new(), mistakes: 0 };
        self.peers.insert(id, peer);
        id
    }

    /// Returns the credentials of a peer; `None` if the peer is not present.
    #[must_use]
    pub fn credentials(&self, peer: PeerId) -> Option<&Credentials> {
        self.peers.get(&peer).map(|peer| &peer.credentials)
    }

    /// Returns the ids of all present peers.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.peers.keys().copied()
    }

    /// Holds every slice of an aggregate for a peer. Call this before sending the pointers. Fails,
    /// and holds nothing, if the peer has departed or would exceed its limit.
    pub fn hold(&mut self, peer: PeerId, aggregate: &Aggregate) -> Result<(), GrantRefusal> {
        let limit = self.limit;
        let known = self.peers.get_mut(&peer).ok_or(GrantRefusal::UnknownPeer(peer))?;
        for (count, slice) in aggregate.slices().enumerate() {
            if !known.hold(slice, limit) {
                for held in aggregate.slices().take(count) {
                    known.release(held.pointer());
                }
                return Err(GrantRefusal::Limit { peer, limit });
            }
        }
        Ok(())
    }

    /// Releases a slice that a peer holds. `pointer` is the pointer that was sent, or any other
    /// pointer into the same segment. Returns false if there is no such peer, or if the peer does
    /// not hold that segment, which also counts as a mistake of the peer.
    pub fn release(&mut self, peer: PeerId, pointer: RichPointer) -> bool {
        let Some(peer) = self.peers.get_mut(&peer) else { return false };
        let known = peer.release(pointer);
        peer.mistakes += u64::from(!known);
        known
    }

    /// Removes a peer and releases the segments held for it. Returns the counters of the peer at
    /// that moment, or `None` if there is no such peer.
    pub fn remove(&mut self, peer: PeerId) -> Option<HeldCounts> {
        self.peers.remove(&peer).map(|peer| peer.held_counts())
    }

    /// Returns the numbers of segments and slices held for a peer, or `None` if there is no such
    /// peer.
    #[must_use]
    pub fn held_counts(&self, peer: PeerId) -> Option<HeldCounts> {
        self.peers.get(&peer).map(Peer::held_counts)
    }
}

impl Peer {
    /// Holds a slice for this peer. Returns false, and holds nothing, if the peer would then hold
    /// more than `limit` segments.
    fn hold(&mut self, slice: &Slice, limit: usize) -> bool {
        let key = (slice.pointer().dbuf(), slice.segment_position());
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

    fn release(&mut self, pointer: RichPointer) -> bool {
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

    fn held_counts(&self) -> HeldCounts {
        HeldCounts {
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
    use buffer::pool::PoolConfig;
    use sys::process::effective_ids;
    use testkit::Random;

    const SEGMENT_SIZE: usize = 4096;

    fn create_pool(segments: usize) -> AllocationPool {
        let config = PoolConfig { segment: SEGMENT_SIZE, segments };
        AllocationPool::new(DbufId::new(3).unwrap(), config, AccessList::private(effective_ids()))
            .unwrap()
    }

    fn one_segment_aggregate(pool: &mut AllocationPool) -> Aggregate {
        pool.copy(&[1; SEGMENT_SIZE]).unwrap()
    }

    #[test]
    fn q18_segments_are_held_until_peer_releases_or_exits() {
        let mut pool = create_pool(4);
        let mut holders = Holders::new(8);
        let [first, second] = [1, 2].map(|user| holders.add_peer(Credentials::new(user, user)));
        let sent = one_segment_aggregate(&mut pool);
        let pointer = sent.slices().next().unwrap().pointer();
        for peer in [first, first, second] {
            holders.hold(peer, &sent).unwrap();
        }
        drop(sent);
        assert_eq!(pool.usage().leased, 1);
        assert!(holders.release(second, pointer.subrange(7, 1)));
        assert!(!holders.release(second, pointer), "it has none left");
        let counted = holders.remove(first).unwrap();
        assert_eq!(counted, HeldCounts { segments: 1, references: 2, mistakes: 0 });
        assert_eq!(pool.usage().leased, 0);
        assert_eq!(holders.remove(first), None, "gone once");
        assert!(!holders.release(first, pointer));
        assert_eq!(holders.remove(second).unwrap().mistakes, 1);
    }

    #[test]
    fn peer_at_its_limit_holds_whole_aggregates_or_none() {
        let mut pool = create_pool(8);
        let mut holders = Holders::new(3);
        let peer = holders.add_peer(Credentials::from(effective_ids()));
        let mut sent = Aggregate::new();
        for _ in 0..4 {
            sent.append(one_segment_aggregate(&mut pool)).unwrap();
        }
        assert_eq!(holders.hold(peer, &sent), Err(GrantRefusal::Limit { peer, limit: 3 }));
        assert_eq!(holders.held_counts(peer), Some(HeldCounts::default()));
        sent.truncate(3 * SEGMENT_SIZE);
        holders.hold(peer, &sent).unwrap();
        holders.hold(peer, &sent).unwrap();
        drop(sent);
        let held = HeldCounts { segments: 3, references: 6, mistakes: 0 };
        assert_eq!(holders.held_counts(peer), Some(held));
        assert_eq!(pool.usage().leased, 3);
        drop(holders);
        assert_eq!(pool.usage().leased, 0, "an owner that is gone keeps nothing");
    }

    /// Expects arbitrary releases by one peer to affect neither the slices of other peers nor
    /// slices that have not been sent yet.
    #[test]
    fn q18_false_releases_do_not_affect_other_peers() {
        let mut random = Random::with_replayable_seed();
        let mut pool = create_pool(8);
        let mut holders = Holders::new(8);
        let (honest, liar) = (
            holders.add_peer(Credentials::from(effective_ids())),
            holders.add_peer(Credentials::from(effective_ids())),
        );
        let sent: Vec<_> = (0..8).map(|_| one_segment_aggregate(&mut pool)).collect();
        for aggregate in &sent {
            holders.hold(honest, aggregate).unwrap();
        }
        holders.hold(liar, &sent[0]).unwrap();
        drop(sent);
        let mut given = 0;
        for _ in 0..100_000 {
            let near = random.next_u64() % (10 * SEGMENT_SIZE as u64);
            let position = *random.pick(&[near, random.clone().next_u64()]);
            let dbuf = DbufId::new(random.within(2..5) as u32).unwrap();
            let place = Extent::new(position, random.within(0..SEGMENT_SIZE) as u32);
            given += u32::from(holders.release(liar, RichPointer::new(dbuf, place, Class::YES)));
        }
        assert_eq!(given, 1, "its own, once");
        assert_eq!(holders.held_counts(liar).unwrap().mistakes, 99_999);
        assert_eq!(pool.usage().leased, 8);
        assert_eq!(holders.held_counts(honest).unwrap().references, 8);
    }
}
