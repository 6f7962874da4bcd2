//! Dispatch of batches to replicas, by load or by session. [Th §5.4], [Par §IV-A]
//!
//! - By **load**: the whole batch goes to the least loaded replica. The replica in the dispatcher's
//!   space gets a batch only if every other replica has enough queued work to stay busy while that
//!   space processes the batch.
//! - By **session**: all blocks of a session, in both directions, go to one replica. Sessions are
//!   hashed into buckets ([`filter::sharing`]), and a table maps each bucket to its replica. A new
//!   bucket goes to the replica that has received the fewest blocks so far, which spreads large
//!   sessions. Blocks are counted per bucket, so that buckets can later move from the busiest
//!   replica to another one, together with the state of their sessions ([`super::balance`]).

use super::balance::SessionShares;
use super::{ReplicaProgress, next_batch_id};
use filter::sharing::ShardKey;
use filter::{Batch, LaneMask, lanes};
use std::sync::Arc;
use std::time::Duration;

/// Minimum number of queued blocks with which a replica in another space counts as busy. Four
/// batches keep the replica busy while the dispatcher's space processes a batch itself.
const BUSY_QUEUE_BLOCKS: usize = 4 * filter::LANES;
/// Number of buckets into which a dispatcher hashes sessions, to assign them to replicas.
const SESSION_BUCKETS: usize = 4096;
/// Replica index that marks a bucket of sessions without a replica. Exceeds every index of a
/// replica (`pipeline::plan::REPLICAS_MAX`).
const UNASSIGNED_REPLICA: u8 = u8::MAX;

/// The rule by which a dispatcher distributes blocks among the replicas of a chain.
#[derive(Debug)]
enum DispatchPolicy {
    Load,
    Session(SessionTable),
}

/// A table that assigns each bucket of sessions to a replica and counts the blocks of each bucket.
#[derive(Debug)]
struct SessionTable {
    key: ShardKey,
    /// Seed of the hash of session keys. The session tables of the replicas use the same seed
    /// ([`ShardKey::session_key`]).
    seed: u64,
    /// The index of the replica that owns each bucket of sessions. [`UNASSIGNED_REPLICA`] marks a
    /// bucket without a replica.
    replicas: Box<[u8]>,
    /// Number of blocks of each bucket of sessions since the last call of
    /// [`Dispatcher::take_bucket_shares`].
    blocks: Box<[u32]>,
    /// Number of blocks dispatched to each replica so far.
    dispatched: Vec<u64>,
}

/// A dispatcher, which assigns the batches of a replica chain, or their blocks, to replicas.
#[derive(Debug)]
pub struct Dispatcher {
    policy: DispatchPolicy,
    /// Progress of the replica chain. The dispatcher, the replicas and the join share it.
    progress: Arc<ReplicaProgress>,
    /// Id that the next dispatched batch gets.
    next_batch_id: u64,
    /// Index of the replica that runs in the dispatcher's space.
    local_replica: usize,
}

impl Dispatcher {
    /// Creates the dispatcher of a replica chain. Dispatches by session if `sharing` contains a
    /// key, otherwise by load. `here` is the index of the replica that runs in the dispatcher's
    /// space. `seed` is the seed that all filters of the replicas use for hashing.
    pub fn new(
        sharing: Option<ShardKey>,
        progress: Arc<ReplicaProgress>,
        (here, seed): (usize, u64),
    ) -> Self {
        let replicas = progress.replica_count();
        let policy = match sharing {
            None => DispatchPolicy::Load,
            Some(key) => DispatchPolicy::Session(SessionTable {
                key,
                seed,
                replicas: vec![UNASSIGNED_REPLICA; SESSION_BUCKETS].into(),
                blocks: vec![0; SESSION_BUCKETS].into(),
                dispatched: vec![0; replicas],
            }),
        };
        Self { policy, progress, next_batch_id: 0, local_replica: here }
    }

    /// Dispatches a batch: numbers its blocks, assigns its lanes to replicas, and announces the
    /// batch to the join. `load` returns the queue length of a replica in blocks. Returns the batch
    /// id and a list of replicas, each with the lanes that it gets. The caller must put the lanes
    /// into the replicas' rings.
    pub fn dispatch(
        &mut self,
        batch: &mut Batch<'_>,
        load: impl FnMut(usize) -> usize,
    ) -> (u64, Vec<(usize, LaneMask)>) {
        let batch_id = self.next_batch_id;
        self.next_batch_id = next_batch_id(batch_id);
        batch.number_lanes(super::first_sequence_number(batch_id));
        let hands = match &mut self.policy {
            DispatchPolicy::Load => {
                vec![(
                    least_loaded_replica(self.progress.replica_count(), self.local_replica, load),
                    batch.live_lanes(),
                )]
            }
            DispatchPolicy::Session(table) => table.dispatch(batch),
        };
        self.progress.announce_batch(batch_id, hands.iter().map(|(copy, _)| *copy));
        (batch_id, hands)
    }

    /// Returns the number of blocks of each bucket of sessions that were dispatched since the last
    /// call, and the replica of each bucket. Returns `None` if sessions cannot move to another
    /// replica.
    pub fn take_bucket_shares(&mut self) -> Option<SessionShares> {
        let DispatchPolicy::Session(table) = &mut self.policy else { return None };
        table.key.can_find_sessions().then(|| SessionShares {
            replicas: table.replicas.clone(),
            blocks: std::mem::replace(&mut table.blocks, vec![0; SESSION_BUCKETS].into()),
            replica_count: table.dispatched.len(),
        })
    }

    /// Returns the key by which sessions are dispatched, or `None` if batches are dispatched by
    /// load.
    pub const fn shard_key(&self) -> Option<ShardKey> {
        match &self.policy {
            DispatchPolicy::Session(table) => Some(table.key),
            DispatchPolicy::Load => None,
        }
    }

    /// Makes replica `to` the owner of these buckets of sessions. From now on, it gets all blocks
    /// of the buckets. Skips a bucket that cannot move ([`can_move_bucket`]). The caller must have
    /// moved the state of the sessions in these buckets. Does nothing if batches are dispatched by
    /// load.
    pub fn reassign(&mut self, buckets: &[u16], to: u8) {
        let DispatchPolicy::Session(table) = &mut self.policy else { return };
        for bucket in buckets.iter().filter(|bucket| can_move_bucket(**bucket)) {
            if let Some(replica) = table.replicas.get_mut(usize::from(*bucket)) {
                *replica = to;
            }
        }
    }

    /// Blocks for at most `limit` until all replicas in other spaces have finished the batches
    /// dispatched to them. Returns true if they have.
    pub fn wait_for_replicas(&self, limit: Duration) -> bool {
        self.progress.wait_until(limit, |progress| {
            let mut others =
                (0..progress.replica_count()).filter(|copy| *copy != self.local_replica);
            others.all(|copy| progress.has_finished_all_batches(copy))
        })
    }

    /// Returns the index of the replica that runs in the dispatcher's space.
    pub const fn local_replica(&self) -> usize {
        self.local_replica
    }

    /// Returns the progress of the chain, shared by the dispatcher, the replicas and the join.
    pub fn progress(&self) -> &ReplicaProgress {
        &self.progress
    }

    /// Announces to the replicas and the join that the last batch has been dispatched. `clock` is
    /// the newest block time in nanoseconds.
    pub fn close(&self, clock: u64) {
        self.progress.close(clock);
    }

    /// Announces that the replica in the dispatcher's space has ended.
    pub fn end_local_replica(&self) {
        self.progress.finish_batches_below(self.local_replica, u64::MAX);
    }

    /// Marks all batches that were dispatched to the replica in the dispatcher's space as finished.
    pub fn finish_local_batches(&self) {
        self.progress.finish_batches_below(
            self.local_replica,
            self.progress.dispatched_end(self.local_replica),
        );
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        if !self.progress.is_closed() {
            self.progress.close(0);
        }
        self.end_local_replica();
    }
}

/// Returns the least loaded replica in another space, or `here` if all other replicas are busy.
fn least_loaded_replica(
    replicas: usize,
    here: usize,
    mut load: impl FnMut(usize) -> usize,
) -> usize {
    let others = (0..replicas).filter(|copy| *copy != here).map(|copy| (load(copy), copy));
    match others.min() {
        Some((waiting, copy)) if waiting < BUSY_QUEUE_BLOCKS => copy,
        _ => here,
    }
}

/// Returns the bucket of a session. `key` and `number` identify the session in the first filter of
/// the replica chain that has sessions. Returns `None` if the bucket is unknown or cannot move.
pub fn session_bucket(sharing: ShardKey, key: u64, number: u64) -> Option<u16> {
    sharing
        .key_of_session(key, number)
        .map(bucket_for_key)
        .filter(|bucket| can_move_bucket(*bucket))
}

/// Returns true if a bucket of sessions may move to another replica. The bucket of blocks without a
/// session cannot, because the state that a filter keeps for these blocks is private to the replica
/// ([`filter::PRIVATE_SESSION_KEY`]).
pub const fn can_move_bucket(bucket: u16) -> bool {
    bucket != bucket_for_key(filter::PRIVATE_SESSION_KEY)
}

/// Returns the bucket of the sessions with this key.
const fn bucket_for_key(key: u64) -> u16 {
    // The high bits are included because the replicas' session tables are indexed by the low bits.
    ((key ^ key >> 32) as usize % SESSION_BUCKETS) as u16
}

impl SessionTable {
    fn dispatch(&mut self, batch: &Batch<'_>) -> Vec<(usize, LaneMask)> {
        let Self { key, seed, replicas, blocks, dispatched } = self;
        let mut masks = vec![0 as LaneMask; dispatched.len()];
        for l in lanes(batch.live_lanes()) {
            let bucket = usize::from(bucket_for_key(key.session_key(&batch.block(l), *seed)));
            let copy = match replicas[bucket] {
                UNASSIGNED_REPLICA => {
                    let all = 0..dispatched.len();
                    let idle = all.min_by_key(|copy| dispatched[*copy]).unwrap_or(0);
                    replicas[bucket] = idle as u8;
                    idle
                }
                copy => copy.into(),
            };
            blocks[bucket] = blocks[bucket].wrapping_add(1);
            dispatched[copy] += 1;
            masks[copy] |= 1 << l;
        }
        masks.into_iter().enumerate().filter(|(_, mask)| *mask != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n3_least_loaded_replica_gets_the_next_batch() {
        let waits = |loads: [usize; 3]| least_loaded_replica(3, 0, |copy| loads[copy]);
        assert_eq!(waits([0, 0, 0]), 1, "another one, before we are busy ourselves");
        assert_eq!(waits([0, 64, 0]), 2);
        assert_eq!(waits([0, BUSY_QUEUE_BLOCKS, BUSY_QUEUE_BLOCKS - 1]), 2);
        assert_eq!(waits([0, BUSY_QUEUE_BLOCKS, 4096]), 0, "all others have enough");
        assert_eq!(least_loaded_replica(1, 0, |_| 0), 0);
    }

    #[test]
    fn n3_new_session_goes_to_least_used_replica_and_stays() {
        use filter::testing::{Arena, Frame, Space};
        let progress = Arc::new(ReplicaProgress::new(3, Arc::default()));
        let mut dispatcher = Dispatcher::new(Some(ShardKey::Flow), progress, (0, 5));
        let mut hands = |ports: &[u16]| {
            let frames: Vec<_> = ports.iter().map(|port| Frame::udp(*port, 53, b"x")).collect();
            let arena = Arena::new(frames.len());
            let space = Space::new(&arena);
            let batch = space.batch(&frames);
            let DispatchPolicy::Session(table) = &mut dispatcher.policy else { panic!() };
            let hands = table.dispatch(&batch);
            let copy = |lane: usize| hands.iter().find(|(_, mask)| mask & 1 << lane != 0);
            (0..ports.len()).map(|lane| copy(lane).expect("somebody").0).collect::<Vec<_>>()
        };
        // One heavy session precedes light ones, which avoid the heavy session's replica.
        let heavy = hands(&[7; 40])[0];
        let light = hands(&(100..120).collect::<Vec<_>>());
        assert!(light.iter().all(|copy| *copy != heavy), "{heavy}: {light:?}");
        assert_eq!(hands(&[7; 40]), [heavy; 40], "a session stays where it is");
        assert_eq!(hands(&(100..120).collect::<Vec<_>>()), light);
        let shares = dispatcher.take_bucket_shares().unwrap();
        let loads = shares.replica_block_counts();
        assert_eq!(loads.iter().sum::<u64>(), 120);
        assert_eq!(
            dispatcher.take_bucket_shares().unwrap().replica_block_counts(),
            [0; 3],
            "counted once"
        );
        let DispatchPolicy::Session(SessionTable { dispatched, .. }) = &dispatcher.policy else {
            panic!()
        };
        assert_eq!(*dispatched, loads);
        assert!(
            dispatched[heavy] == 80 && dispatched.iter().all(|got| *got >= 20),
            "{dispatched:?}"
        );
    }
}
