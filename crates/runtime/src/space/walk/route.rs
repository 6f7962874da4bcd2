//! Routing of blocks from a node along its arcs to the next nodes.

use super::{Arrival, CYCLE_BATCHES_MAX, HOPS_MAX, WaitingBatch, Walk};
use crate::ledger::{EdgeKind, must_lose_block};
use crate::space::arc::{GraphArc, NodeId};
use crate::space::class_selection::SelectedClasses;
use crate::space::node::OutputCounters;
use filter::{Amount, Batch, LaneMask, lanes};

impl<'a> Walk<'_, 'a> {
    /// Sends the live lanes of a batch along the arcs that accept them, and continues the walk
    /// there.
    pub(in crate::space) fn route(&mut self, from: NodeId, batch: &mut Batch<'a>, hops: u8) {
        if let Some(arrival) = self.route_step(from, batch, hops) {
            self.enter_node(arrival, batch, hops);
        }
    }

    /// Routes the live lanes of a batch from node `from`. Completes the walk along all accepting
    /// arcs except the last one. Returns the arrival, over the last arc, of the remaining blocks at
    /// the next node, or `None` if no blocks remain.
    #[inline(always)]
    pub(super) fn route_step(
        &mut self,
        from: NodeId,
        batch: &mut Batch<'a>,
        hops: u8,
    ) -> Option<Arrival> {
        if self.observed && self.route_blocks_singly(from, batch, hops) {
            return None;
        }
        let node = &mut self.nodes[from];
        let [arc] = node.arcs.as_slice() else {
            return self.fork(from, batch, hops);
        };
        let mask = match &arc.wanted {
            SelectedClasses::Answered => batch.answered_lanes(),
            wanted => wanted.select_lanes(batch),
        };
        let amount = count_routed_lanes(&mut node.flow, batch, mask);
        if self.observed {
            self.pass.observers.before_routing(node, batch, mask, self.now);
        }
        batch.retain_lanes(mask);
        let arc = node.arcs.first_mut().filter(|_| mask != 0)?;
        let arrives = count_put_blocks(arc, amount, batch);
        if arc.is_direct {
            return Some(Arrival { to: arc.to, branch: arc.branch, amount: arrives });
        }
        self.queue_batch_on_arc((from, 0), amount, batch, hops);
        None
    }

    /// Routes the blocks of a batch one by one, if an observer requires batches of one block.
    /// Returns true in this case. Otherwise does nothing and returns false.
    #[cold]
    fn route_blocks_singly(&mut self, from: NodeId, batch: &Batch<'a>, hops: u8) -> bool {
        let live = batch.live_lanes();
        let split = live.count_ones() > 1 && self.pass.observers.must_split_batches();
        for l in lanes(live).filter(|_| split) {
            let mut one = batch.duplicate();
            one.retain_lanes(1 << l);
            self.route(from, &mut one, hops);
        }
        split
    }

    /// Sends a duplicate of the batch along each accepting arc except the last one, and the batch
    /// itself along the last one. Returns the arrival over the last arc, or `None` if no blocks
    /// remain.
    fn fork(&mut self, from: NodeId, batch: &mut Batch<'a>, hops: u8) -> Option<Arrival> {
        let arcs = self.nodes[from].arcs.len();
        let mut masks = [0 as LaneMask; 8];
        let mut more = Vec::new();
        let masks: &mut [LaneMask] = if arcs <= masks.len() {
            &mut masks[..arcs]
        } else {
            more.resize(arcs, 0);
            &mut more
        };
        for (mask, arc) in masks.iter_mut().zip(&self.nodes[from].arcs) {
            *mask = arc.wanted.select_lanes(batch);
        }
        if self.shape.numbering_forks[from] {
            batch.renumber_live_blocks(&mut self.next_sequence_number);
        }
        let any = masks.iter().fold(0, |a, b| a | b);
        self.count_and_keep_routed_lanes(from, batch, any);
        let last = masks.iter().rposition(|mask| *mask != 0)?;
        for (arc, mask) in masks.iter().enumerate().take(last).filter(|(_, mask)| **mask != 0) {
            let mut copy = batch.duplicate();
            self.walk_lanes((from, arc), *mask, &mut copy, hops);
        }
        batch.retain_lanes(masks[last]);
        let amount = batch.cache_amount_in_lanes(masks[last]);
        self.send_batch_over_arc((from, last), amount, batch, hops)
    }

    /// Sends the lanes in `mask` along one arc, and continues their walk. Removes all other lanes
    /// from the batch.
    pub(in crate::space) fn walk_lanes(
        &mut self,
        arc: (NodeId, usize),
        mask: LaneMask,
        batch: &mut Batch<'a>,
        hops: u8,
    ) {
        batch.retain_lanes(mask);
        let amount = batch.cache_amount_in_lanes(mask);
        if let Some(arrival) = self.send_batch_over_arc(arc, amount, batch, hops) {
            self.enter_node(arrival, batch, hops);
        }
    }

    /// Counts the lanes that arcs accept as routed, and the other lanes as unselected. Only the
    /// routed lanes stay live. Returns the amount of routed blocks and bytes.
    pub(super) fn count_and_keep_routed_lanes(
        &mut self,
        from: NodeId,
        batch: &mut Batch<'a>,
        wanted: LaneMask,
    ) -> Amount {
        let node = &mut self.nodes[from];
        let routed = count_routed_lanes(&mut node.flow, batch, wanted);
        if self.observed {
            self.pass.observers.before_routing(node, batch, wanted, self.now);
        }
        batch.retain_lanes(wanted);
        routed
    }

    /// Puts a batch on arc `arc` of node `from`; `amount` is the number of blocks and bytes in the
    /// batch. Returns the arrival at the next node, or `None` if the batch waits or was dropped.
    #[inline]
    fn send_batch_over_arc(
        &mut self,
        (from, arc): (NodeId, usize),
        amount: Amount,
        batch: &mut Batch<'a>,
        hops: u8,
    ) -> Option<Arrival> {
        let edge = &mut self.nodes[from].arcs[arc];
        let arrives = count_put_blocks(edge, amount, batch);
        if edge.is_direct {
            return Some(Arrival { to: edge.to, branch: edge.branch, amount: arrives });
        }
        self.queue_batch_on_arc((from, arc), amount, batch, hops);
        None
    }

    /// Queues a batch on an arc that leads to a join or is a back edge: arc `arc` of node `from`.
    /// On a back edge, drops the batch if it has already followed the maximum number of back edges,
    /// or if the work list is full.
    fn queue_batch_on_arc(
        &mut self,
        (from, arc): (NodeId, usize),
        amount: Amount,
        batch: &Batch<'a>,
        hops: u8,
    ) {
        let edge = &mut self.nodes[from].arcs[arc];
        let waiting = |batch: &Batch<'a>| WaitingBatch { from, arc, batch: batch.duplicate() };
        if !edge.is_back {
            self.waiting.push(waiting(batch));
        } else if hops >= HOPS_MAX {
            edge.dropped.too_many_hops += amount;
        } else if self.on_back_edges.len() >= CYCLE_BATCHES_MAX {
            edge.dropped.cycle_full += amount;
        } else {
            self.on_back_edges.push((waiting(batch), hops + 1));
        }
    }
}

/// Counts the lanes in `wanted` as routed, and the other live lanes as unselected. Returns the
/// amount of routed blocks and bytes.
#[inline]
fn count_routed_lanes(
    flow: &mut OutputCounters,
    batch: &mut Batch<'_>,
    wanted: LaneMask,
) -> Amount {
    let rest = batch.live_lanes() & !wanted;
    if rest != 0 {
        flow.unselected += batch.amount_in_lanes(rest);
    }
    let routed = batch.cache_amount_in_lanes(wanted);
    flow.routed += routed;
    routed
}

/// Counts a batch as put on an arc. Returns the amount that arrives at the end of the arc, which is
/// lower if fault injection has removed a block.
#[inline]
pub(super) fn count_put_blocks(
    edge: &mut GraphArc,
    amount: Amount,
    batch: &mut Batch<'_>,
) -> Amount {
    edge.put += amount;
    let kind = if edge.is_back { EdgeKind::Back } else { EdgeKind::Call };
    if !must_lose_block(kind, edge.put) {
        return amount;
    }
    drop_one_block(batch);
    batch.cache_amount_in_lanes(batch.live_lanes())
}

/// Drops one block of the batch. Called only in fault-injection builds.
#[cold]
fn drop_one_block(batch: &mut Batch<'_>) {
    let first = batch.live_lanes() & batch.live_lanes().wrapping_neg();
    batch.retain_lanes(!first);
}
