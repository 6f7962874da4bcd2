//! Dispatch of batches to replicas, by load or by session. [Th §5.4], [Par §IV-A]
//!
//! - By **load**: the whole batch goes to the least loaded replica. The replica in the dispatcher's
//!   space gets a batch only if every other replica has enough queued work to stay busy in the
//!   meantime.
//! - By **session**: all blocks of a session, in both directions, go to one replica for the
//!   session's lifetime. A table maps each class of sessions ([`filter::sharing`]) to its replica;
//!   a new class goes to the replica that has received the fewest blocks so far, so that large
//!   sessions are spread. (RSS++ can migrate sessions later; here they never move, because they
//!   have private state.)

use super::{ReplicaProgress, next_batch_id};
use filter::sharing::ShardKey;
use filter::{Batch, LaneMask, lanes};
use std::sync::Arc;

/// Number of queued blocks at which a replica in another space counts as busy. Four batches suffice
/// to keep the replica busy while the dispatcher's space processes a batch itself.
const BUSY_BLOCKS: usize = 4 * filter::LANES;
/// Number of classes into which sessions are hashed.
const SESSION_CLASSES: usize = 4096;
/// Table entry of a class that has no replica yet. Exceeds every replica index
/// (`pipeline::plan::REPLICAS_MAX`).
const UNASSIGNED: u8 = u8::MAX;

/// The dispatch policy of a replica chain.
#[derive(Debug)]
enum DispatchPolicy {
    Load,
    Session { what: ShardKey, table: Box<[u8]>, dispatched: Vec<u64> },
}

/// A dispatcher of batches to replicas.
#[derive(Debug)]
pub struct Dispatcher {
    by: DispatchPolicy,
    /// Progress of the chain, shared by the dispatcher, the replicas and the join.
    progress: Arc<ReplicaProgress>,
    /// Next batch id.
    next: u64,
    /// Index of the replica in this space.
    here: usize,
}

impl Dispatcher {
    /// Creates a dispatcher that distributes by session, or by load if `sharing` is `None`. `here`
    /// is the index of the replica in this space.
    pub fn new(sharing: Option<ShardKey>, progress: Arc<ReplicaProgress>, here: usize) -> Self {
        let copies = progress.copies();
        let by = match sharing {
            None => DispatchPolicy::Load,
            Some(what) => DispatchPolicy::Session {
                what,
                table: vec![UNASSIGNED; SESSION_CLASSES].into(),
                dispatched: vec![0; copies],
            },
        };
        Self { by, progress, next: 0, here }
    }

    /// Numbers the blocks of a batch, assigns the lanes to replicas, and announces the batch to the
    /// join. Returns the batch id and, for each replica that gets at least one lane, its lanes.
    /// `load` returns the queue length of a replica in blocks.
    pub fn dispatch(
        &mut self,
        batch: &mut Batch<'_>,
        load: impl FnMut(usize) -> usize,
    ) -> (u64, Vec<(usize, LaneMask)>) {
        let batch_id = self.next;
        self.next = next_batch_id(batch_id);
        batch.number_lanes(super::first_seq(batch_id));
        let hands = match &mut self.by {
            DispatchPolicy::Load => {
                vec![(least_loaded_replica(self.progress.copies(), self.here, load), batch.live())]
            }
            DispatchPolicy::Session { what, table, dispatched } => {
                dispatch_by_session(*what, table, dispatched, batch)
            }
        };
        self.progress.announce_batch(batch_id, hands.iter().map(|(copy, _)| *copy));
        (batch_id, hands)
    }

    /// Returns the index of the replica in this space.
    pub const fn local_replica(&self) -> usize {
        self.here
    }

    /// Returns the progress of the chain, shared by the dispatcher, the replicas and the join.
    pub fn progress(&self) -> &ReplicaProgress {
        &self.progress
    }

    /// Announces that no more batches follow. `clock` is the newest block time in nanoseconds.
    pub fn close(&self, clock: u64) {
        self.progress.close(clock);
    }

    /// Marks the replica in this space as ended.
    pub fn end_local_replica(&self) {
        self.progress.finish(self.here, u64::MAX);
    }

    /// Marks all batches that were dispatched to the replica in this space as finished.
    pub fn finish_local_batches(&self) {
        self.progress.finish(self.here, self.progress.given(self.here));
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
fn least_loaded_replica(copies: usize, here: usize, mut load: impl FnMut(usize) -> usize) -> usize {
    let others = (0..copies).filter(|copy| *copy != here).map(|copy| (load(copy), copy));
    match others.min() {
        Some((waiting, copy)) if waiting < BUSY_BLOCKS => copy,
        _ => here,
    }
}

fn dispatch_by_session(
    what: ShardKey,
    table: &mut [u8],
    dispatched: &mut [u64],
    batch: &Batch<'_>,
) -> Vec<(usize, LaneMask)> {
    let mut masks = vec![0 as LaneMask; dispatched.len()];
    for l in lanes(batch.live()) {
        let class = what.hash(&batch.block(l)) as usize % table.len();
        let copy = match table[class] {
            UNASSIGNED => {
                let idle = (0..dispatched.len()).min_by_key(|copy| dispatched[*copy]).unwrap_or(0);
                table[class] = idle as u8;
                idle
            }
            copy => copy.into(),
        };
        dispatched[copy] += 1;
        masks[copy] |= 1 << l;
    }
    masks.into_iter().enumerate().filter(|(_, mask)| *mask != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n3_least_loaded_replica_gets_the_next_batch() {
        let waits = |loads: [usize; 3]| least_loaded_replica(3, 0, |copy| loads[copy]);
        assert_eq!(waits([0, 0, 0]), 1, "another one, before we are busy ourselves");
        assert_eq!(waits([0, 64, 0]), 2);
        assert_eq!(waits([0, BUSY_BLOCKS, BUSY_BLOCKS - 1]), 2);
        assert_eq!(waits([0, BUSY_BLOCKS, 4096]), 0, "all others have enough");
        assert_eq!(least_loaded_replica(1, 0, |_| 0), 0);
    }

    #[test]
    fn n3_new_session_goes_to_least_used_replica_and_stays() {
        use filter::testing::{Arena, Frame, Space};
        let (mut table, mut dispatched) = ([UNASSIGNED; SESSION_CLASSES], [0; 3]);
        let mut hands = |ports: &[u16]| {
            let frames: Vec<_> = ports.iter().map(|port| Frame::udp(*port, 53, b"x")).collect();
            let arena = Arena::new(frames.len());
            let space = Space::new(&arena);
            let batch = space.batch(&frames);
            let hands = dispatch_by_session(ShardKey::Flow, &mut table, &mut dispatched, &batch);
            let copy = |lane: usize| hands.iter().find(|(_, mask)| mask & 1 << lane != 0);
            (0..ports.len()).map(|lane| copy(lane).expect("somebody").0).collect::<Vec<_>>()
        };
        // One heavy session, then light ones: they avoid the replica of the heavy one.
        let heavy = hands(&[7; 40])[0];
        let light = hands(&(100..120).collect::<Vec<_>>());
        assert!(light.iter().all(|copy| *copy != heavy), "{heavy}: {light:?}");
        assert_eq!(hands(&[7; 40]), [heavy; 40], "a session stays where it is");
        assert_eq!(hands(&(100..120).collect::<Vec<_>>()), light);
        assert_eq!(dispatched.iter().sum::<u64>(), 120);
        assert!(
            dispatched[heavy] == 80 && dispatched.iter().all(|got| *got >= 20),
            "{dispatched:?}"
        );
    }
}
