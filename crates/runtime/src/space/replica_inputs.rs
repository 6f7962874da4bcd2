//! The inputs of a replica chain ([`crate::replicas`]). One input passes dispatched batches to the
//! replica in this space; the join takes batches from all replicas in input order.

use super::arc::NodeId;
use super::graph::LocalGraph;
use super::join_state::ReplicaJoin;
use super::memory::Frames;
use super::node::Operator;
use super::pass::PassResult;
use super::{Input, Space};
use crate::failure::PathFailure;
use crate::replicas::{last_sequence_number, nearest_batch_id};
use buffer::Fault;
use buffer::crossing::Batch as RingBatch;
use filter::{BatchMemory, LANES};

impl Space {
    /// Takes at most one batch that the dispatcher has sent to the replica in this space, and
    /// passes it through the graph. `i` is the index of the replica's input among the inputs of the
    /// space.
    pub(super) fn walk_dispatched_batch(&mut self, i: usize, pass: &mut PassResult) {
        let Input::Replica { node, import, ended, replica: own } = &mut self.inputs.list[i] else {
            return;
        };
        if *ended {
            return;
        }
        let at = *node;
        let taken = match import.peek_up_to(LANES) {
            Ok(taken) if taken.is_empty() => {
                match import.is_finished() {
                    Ok(finished) => {
                        *ended = finished;
                        pass.expects_input |= !finished;
                    }
                    Err(fault) => self.fail_path_with_ring_fault(at, fault),
                }
                return;
            }
            Ok(taken) => taken,
            Err(fault) => return self.fail_path_with_ring_fault(at, fault),
        };
        let seqs = (0..taken.len()).map(|at| taken.entry(at).marks.seq());
        let (count, last) = seqs
            .clone()
            .position(|(_, last)| last)
            .map_or((taken.len(), false), |at| (at + 1, true));
        let first = seqs.clone().next().map_or(0, |(seq, _)| seq);
        own.last_batch_id = nearest_batch_id(first, own.last_batch_id);
        own.progress.finish_batches_below(own.number, own.last_batch_id);
        let graph = &mut self.graph;
        graph.pass.order = last_sequence_number(own.last_batch_id);
        let walked = match import.peek_up_to(count) {
            Ok(taken) => {
                graph.walk_ring_batches(&[taken], &[at], last);
                import.release(count)
            }
            Err(fault) => Err(fault),
        };
        pass.expects_input = true;
        pass.moved = true;
        self.end_pass();
        match walked {
            Ok(()) => {
                let Input::Replica { replica: own, .. } = &self.inputs.list[i] else { return };
                let done = if last { own.last_batch_id + 1 } else { own.last_batch_id };
                own.progress.finish_batches_below(own.number, done);
            }
            Err(fault) => self.fail_path_with_ring_fault(at, fault),
        }
    }

    /// Passes the next batch from the replicas through the graph. After the last batch, passes a
    /// part of the replicas' final output instead. `i` is the index of the join among the inputs of
    /// the space.
    pub(super) fn join_replicas(&mut self, i: usize, pass: &mut PassResult) {
        let Input::Join(gather) = &mut self.inputs.list[i] else { return };
        if gather.ended {
            return;
        }
        let at = gather.node;
        let graph = &mut self.graph;
        let moved = graph.join_next_batch(gather);
        match moved {
            Ok(true) => (pass.expects_input, pass.moved) = (true, true),
            Ok(false) => match gather.is_finished() {
                Ok(finished) => {
                    gather.ended = finished;
                    pass.expects_input |= !finished;
                }
                Err(fault) => self.fail_path_with_ring_fault(at, fault),
            },
            Err(fault) => self.fail_path_with_ring_fault(at, fault),
        }
        if pass.moved {
            self.end_pass();
        }
    }

    fn fail_path_with_ring_fault(&mut self, at: NodeId, fault: Fault) {
        let name = self.graph.nodes[at].name.clone();
        self.graph.pass.failure = Some(PathFailure::from_ring(name, fault));
    }

    /// Notifies each dispatcher in this space that the local replica has finished its batches or,
    /// if `ends` is true, that it has ended.
    pub(super) fn report_local_replica_finished(&mut self, ends: bool) {
        for at in &self.graph.shape.dispatchers {
            if let Operator::Dispatch(dispatcher) = &self.graph.nodes[*at].operator {
                match ends {
                    true => dispatcher.end_local_replica(),
                    false => dispatcher.finish_local_batches(),
                }
            }
        }
    }
}

impl LocalGraph {
    /// Joins the next batch of the replicas. After the last batch, emits a part of their final
    /// output instead. Returns true if blocks were passed through the graph.
    fn join_next_batch(&mut self, gather: &mut ReplicaJoin) -> Result<bool, Fault> {
        // Read before the batch id: once the chain is closed, no further batch follows.
        let closed = gather.progress.is_closed();
        if gather.progress.next_undispatched_batch_id() <= gather.batch_id {
            return if closed { self.merge_final_output(gather) } else { Ok(false) };
        }
        let shares = gather.forwardable_shares()?;
        let whole = !shares.is_empty() && shares.iter().all(|share| share.is_complete);
        let count: usize = shares.iter().map(|share| share.count).sum();
        if count == 0 {
            if whole {
                if gather.is_partial {
                    let now = self.clock.advance_to(0, self.wall_clock_time());
                    self.run_expired_timers(now, &[]);
                }
                gather.advance_to_next_batch();
            }
            return Ok(whole);
        }
        let (mut all, mut nodes) = (Vec::new(), Vec::new());
        let late: u64 = shares.iter().map(|share| share.late).sum();
        for (way, share) in gather.inputs.iter_mut().zip(&shares).filter(|(_, s)| s.count > 0) {
            all.push(way.import.peek_up_to(share.count)?);
            nodes.push(way.node);
        }
        self.pass.order = last_sequence_number(gather.batch_id);
        self.walk_ring_batches(&all, &nodes, whole);
        drop(all);
        for (way, share) in gather.inputs.iter_mut().zip(&shares).filter(|(_, s)| s.count > 0) {
            way.import.release(share.count)?;
            // The local replica has finished, even if the batch still lacks blocks of other
            // replicas.
            if let Some(own) = way.local_replica.as_ref().filter(|_| share.is_complete) {
                own.progress.finish_batches_below(own.number, gather.batch_id + 1);
            }
        }
        if let Some(counted) = self.nodes[gather.node].counts.counters.first_mut() {
            *counted += late;
        }
        if whole {
            gather.advance_to_next_batch();
        } else {
            gather.is_partial = true;
        }
        Ok(true)
    }

    /// Passes the blocks of several rings through the graph in one walk. The blocks of each ring
    /// enter at the node in `nodes` that corresponds to the ring. `last` is true if these blocks
    /// complete a batch; expired timers are then served, as after any batch in a path without
    /// replicas.
    pub(super) fn walk_ring_batches(
        &mut self,
        all: &[RingBatch<'_>],
        nodes: &[NodeId],
        last: bool,
    ) {
        let mut batches: Vec<(NodeId, usize, usize, BatchMemory)> = Vec::new();
        let mut now = self.wall_clock_time();
        let live = now;
        for (ring, (taken, node)) in all.iter().zip(nodes).enumerate() {
            for from in (0..taken.len()).step_by(LANES) {
                let mut room = self.pass.spare_memories.pop().unwrap_or_default();
                room.columns.clear();
                if from == 0 {
                    room.columns.fill(|pointers, context, marks| {
                        taken.copy_columns(pointers, context, marks)
                    });
                } else {
                    (from..taken.len().min(from + LANES)).for_each(|at| {
                        room.columns.push(taken.entry(at));
                    });
                }
                room.columns.load_sequence_numbers();
                now = self.clock.advance(&room.columns, live);
                batches.push((*node, ring, from, room));
            }
        }
        let mut rooms = Vec::new();
        self.walk(now, all, |walk| {
            let all = walk.memory.imported;
            for (node, ring, from, room) in batches {
                let taken = &all[ring];
                let frames = Frames::new(|number, _| taken.segment(from + number));
                let mut batch = frames.into_batch(room);
                walk.route(node, &mut batch, 0);
                rooms.push(batch.into_memory());
            }
            walk.walk_waiting_batches();
        });
        rooms.into_iter().for_each(|room| self.pass.store_spare_memory(room));
        if last {
            self.run_expired_timers(now, all);
        }
    }
}
