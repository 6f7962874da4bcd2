//! The state of a replica, and the state of the join of a replica chain.

use super::arc::NodeId;
use super::final_sessions::FinalSessions;
use crate::replicas::{ReplicaProgress, nearest_batch_id, next_batch_id};
use crate::ring::RingImport;
use buffer::Fault;
use std::sync::Arc;

/// Names of a join's counters. `late` counts blocks that arrived after their batch was joined.
pub const JOIN_COUNTER_NAMES: &[&str] = &["late"];

/// The state of a replica, kept by the space that runs the replica.
#[derive(Debug)]
pub struct LocalReplica {
    /// Progress of the replica chain, shared by the dispatcher, the replicas and the join.
    pub progress: Arc<ReplicaProgress>,
    /// Index of the replica in its chain, from 0.
    pub number: usize,
    /// Id of the last batch that the dispatcher has sent to the replica.
    pub last_batch_id: u64,
}

impl Drop for LocalReplica {
    /// Marks the replica as ended even if its space fails, so that the join never waits for it.
    fn drop(&mut self) {
        self.progress.finish_batches_below(self.number, u64::MAX);
    }
}

/// The state of the join of a replica chain.
#[derive(Debug)]
pub struct ReplicaJoin {
    pub(super) progress: Arc<ReplicaProgress>,
    /// Inputs of the join: one for each replica, in the order of replica indices.
    pub(super) inputs: Vec<ReplicaInput>,
    /// Node at which the joined blocks of all replicas enter the graph.
    pub(super) node: NodeId,
    /// True if the dispatcher may divide the blocks of one batch among several replicas.
    pub(super) splits_batches: bool,
    /// Id of the current batch of the join: the lowest id of a batch that has not been joined.
    pub(super) batch_id: u64,
    /// True if a first part of the current batch has already been passed on.
    pub(super) is_partial: bool,
    /// Remaining sessions of the replica in this space; `None` until its input has ended.
    pub(super) final_sessions: Option<FinalSessions>,
    pub(super) ended: bool,
}

/// The ring through which a join receives the blocks of one replica. If the replica runs in the
/// join's own space, this is the ring from the dispatcher to the replica.
#[derive(Debug)]
pub struct ReplicaInput {
    /// Node at which the ring's blocks enter the graph.
    pub node: NodeId,
    /// Reading end of the ring.
    pub import: RingImport,
    /// Capacity of the ring, in entries.
    pub entries: usize,
    /// State of the replica that fills this input; `None` if the replica runs in another space than
    /// the join.
    pub local_replica: Option<LocalReplica>,
}

/// A replica's share of the current batch: the entries of this batch at the front of the replica's
/// ring to the join, and late entries of earlier batches.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BatchShare {
    pub(super) count: usize,
    /// True if the replica will put no more entries of the batch into the ring.
    pub(super) is_complete: bool,
    /// True if the counted entries fill so much of the ring that the replica may be waiting for
    /// room. A full ring wakes its writer only once at least half of it is free.
    may_block: bool,
    /// Sequence number of the last entry of this share; 0 if the share is empty.
    last_seq: u32,
    /// Number of entries of this share that arrived only after their batch had been joined.
    pub(super) late: u64,
}

impl ReplicaJoin {
    /// Creates a join at `node` from one input per replica. `splits_batches` is true if the blocks
    /// of one batch may be divided among several replicas.
    #[must_use]
    pub const fn new(
        progress: Arc<ReplicaProgress>,
        inputs: Vec<ReplicaInput>,
        node: NodeId,
        splits_batches: bool,
    ) -> Self {
        Self {
            progress,
            inputs,
            node,
            splits_batches,
            batch_id: 0,
            is_partial: false,
            final_sessions: None,
            ended: false,
        }
    }

    /// Returns the progress of the chain, shared by the dispatcher, the replicas and the join.
    pub(super) fn progress(&self) -> &ReplicaProgress {
        &self.progress
    }

    /// Returns the rings of the join, each with the node at which its blocks enter the graph.
    pub(super) fn imports(&self) -> impl Iterator<Item = (NodeId, &RingImport)> {
        self.inputs.iter().map(|way| (way.node, &way.import))
    }

    /// Returns the reading ends of the join's rings.
    pub(super) fn imports_mut(&mut self) -> impl Iterator<Item = &mut RingImport> {
        self.inputs.iter_mut().map(|way| &mut way.import)
    }

    /// Returns, for each input, the number of entries of the current batch that may be forwarded
    /// now. The caller must then take the counted entries from the rings. If the join must wait for
    /// a replica, returns an empty list or counts of 0, and records the id of the awaited batch.
    ///
    /// A replica that waits for room in its ring finishes its batch only if the join takes entries.
    /// The entries in each ring are in sequence order, so the entries up to the lowest of the
    /// rings' last sequence numbers may be forwarded before the batch is complete.
    pub(super) fn forwardable_shares(&mut self) -> Result<Vec<BatchShare>, Fault> {
        let (batch_id, progress) = (self.batch_id, &self.progress);
        let shares = self.inputs.iter_mut().enumerate().map(|(copy, way)| {
            // Read before the ring, so that all entries of a finished batch are visible.
            let may_add = progress.may_have_unfinished_lanes(copy, batch_id);
            way.count_batch_entries(batch_id, may_add)
        });
        let mut shares: Vec<BatchShare> = shares.collect::<Result<_, _>>()?;
        if shares.iter().all(|share| share.is_complete) {
            return Ok(shares);
        }
        progress.record_awaited_batch(batch_id);
        if !self.splits_batches {
            return Ok(shares);
        }
        let unfinished = || shares.iter().filter(|share| !share.is_complete);
        if !unfinished().any(|share| share.may_block) || unfinished().any(|share| share.count == 0)
        {
            return Ok(Vec::new());
        }
        let until = unfinished().map(|share| share.last_seq).min().unwrap_or(u32::MAX);
        for (way, share) in self.inputs.iter_mut().zip(&mut shares) {
            way.limit_batch_share(share, batch_id, until)?;
        }
        Ok(shares)
    }

    /// Makes the next batch the current batch of the join.
    pub(super) fn advance_to_next_batch(&mut self) {
        self.batch_id = next_batch_id(self.batch_id);
        self.is_partial = false;
    }

    pub(super) fn is_finished(&mut self) -> Result<bool, Fault> {
        let mut finished = self.final_sessions.as_ref().is_none_or(FinalSessions::has_ended);
        for way in &mut self.inputs {
            finished &= way.import.is_finished()?;
        }
        Ok(finished)
    }
}

impl ReplicaInput {
    /// Counts the entries of the batch `batch_id`, and of earlier batches, at the beginning of this
    /// ring. Leaves them in the ring. `may_add` is true if the replica may still add entries of the
    /// batch.
    fn count_batch_entries(&mut self, batch_id: u64, may_add: bool) -> Result<BatchShare, Fault> {
        let closed = self.import.is_finished()?;
        let waits = self.import.refresh_and_peek()?;
        let mut share = BatchShare { is_complete: closed || !may_add, ..BatchShare::default() };
        for at in 0..waits.len() {
            let (seq, last) = waits.entry(at).marks.seq();
            let of = nearest_batch_id(seq, batch_id);
            // The final output of a replica follows all batches.
            let is_final = self.local_replica.is_none() && waits.entry(at).marks.end_step().0 > 0;
            if is_final || of > batch_id {
                share.is_complete = true;
                break;
            }
            share.late += u64::from(of < batch_id);
            share.count += 1;
            share.last_seq = seq;
            if self.local_replica.is_some() && last {
                share.is_complete = true;
                break;
            }
        }
        share.may_block = share.count > self.entries / 2;
        Ok(share)
    }

    /// Removes from `share` the entries of the batch `batch_id` whose sequence numbers exceed
    /// `until`.
    fn limit_batch_share(
        &mut self,
        share: &mut BatchShare,
        batch_id: u64,
        until: u32,
    ) -> Result<(), Fault> {
        let waits = self.import.peek_up_to(share.count)?;
        let is_within = |at: &usize| {
            let (seq, _) = waits.entry(*at).marks.seq();
            nearest_batch_id(seq, batch_id) < batch_id || seq <= until
        };
        let count = (0..share.count).take_while(is_within).count();
        share.is_complete &= count == share.count;
        share.count = count;
        Ok(())
    }
}
